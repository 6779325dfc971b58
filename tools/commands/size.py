# SPDX-License-Identifier: Apache-2.0
"""``railweave size``: does a model fit a GPU, what is left, and how fast can it be at best."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from railweave.fabric.errors import InputError
from railweave.tools.output import aligned, emit, emit_json
from railweave.tools.serving_review import refuse_beside_trace, review_of, show_review

if TYPE_CHECKING:
    from railweave.fabric.devices import GpuModel
    from railweave.workloads.memory import MemoryFit
    from railweave.workloads.parallelism import ParallelismPlan
    from railweave.workloads.shapes_model import ModelShape

__all__ = ["size"]

_PROMPT = 2048


def size(
    model: Annotated[
        str, typer.Argument(help="Shipped name, config.json, or the folder that holds one.")
    ],
    gpu: Annotated[str, typer.Option(help="GPU of the catalogue, such as H100.")],
    trace: Annotated[
        Path | None,
        typer.Option(help="Request trace: answer the questions of a serving review for it."),
    ] = None,
    trace_format: Annotated[
        str, typer.Option(help="azure, mooncake, burstgpt, vllm-bench, jsonl; auto: as it looks.")
    ] = "auto",
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the earliest so many requests of the trace.")
    ] = None,
    rate_scale: Annotated[
        float, typer.Option(help="The trace's requests arrive so many times as fast.")
    ] = 1.0,
    host: Annotated[
        str | None,
        typer.Option(help="Host of the GPUs, for --trace. [default: one of the catalogue]"),
    ] = None,
    tp: Annotated[
        int | None,
        typer.Option(min=1, help="Tensor-parallel ranks. [default: 1; with --trace the fewest]"),
    ] = None,
    pp: Annotated[
        int | None, typer.Option(min=1, help="Pipeline stages. [default: 1; with --trace as tp]")
    ] = None,
    dp: Annotated[int, typer.Option(min=1, help="Replicas.")] = 1,
    ep: Annotated[
        int, typer.Option(min=1, help="Ranks that experts are divided over: tp times replicas.")
    ] = 1,
    tokens: Annotated[
        int | None, typer.Option(min=0, help="Also ask for room for sequences this long.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Format of weights: bf16, fp8, int4, mxfp4, nvfp4, ... [default: the checkpoint's]"
        ),
    ] = None,
    kv_dtype: Annotated[
        str | None, typer.Option(help="Format of the cache. [default: the model's]")
    ] = None,
    memory_fraction: Annotated[
        float, typer.Option(help="Share of GPU memory for weights and cache.")
    ] = 0.9,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say whether a model fits, how much cache is left, and what bounds its speed.

    Bytes are per rank, GB decimal. Ceilings are of the GPUs alone: no link, no engine. Exit code
    1: it does not fit (with --trace: not even divided, or not as asked).
    """
    if trace is not None:
        refuse_beside_trace(tokens=tokens, dp=dp)
        found = review_of(
            model,
            gpu,
            trace,
            read={"format": trace_format, "limit": limit, "rate_scale": rate_scale},
            host=host,
            degrees=None if (tp, pp, ep) == (None, None, 1) else (tp or 1, pp or 1, ep),
            fraction=memory_fraction,
            dtype=dtype,
            kv_dtype=kv_dtype,
        )
        show_review(found, as_json=as_json)
        if not found["fits"]:
            raise typer.Exit(1)
        return
    if host is not None:
        raise InputError("says nothing without --trace", field="--host", expected="--trace FILE")
    from railweave.fabric.devices import gpu_model
    from railweave.workloads.memory import memory_fit
    from railweave.workloads.parallelism import ParallelismPlan
    from railweave.workloads.shapes import load_shape

    shape, device = load_shape(model), gpu_model(gpu)
    plan = ParallelismPlan(tp=tp or 1, pp=pp or 1, dp=dp, ep=ep)
    fit = memory_fit(
        shape,
        plan,
        memory_bytes=device.memory_bytes,
        fraction=memory_fraction,
        tokens=tokens,
        dtype=dtype,
        kv_dtype=kv_dtype,
    )
    result = {
        "memory_fraction": memory_fraction,
        "tokens": tokens,
        **_memory(shape, plan, device, fit, dtype=dtype, kv_dtype=kv_dtype),
        **_speed(shape, plan, device, fit, tokens=tokens, dtype=dtype, kv_dtype=kv_dtype),
    }
    if as_json:
        emit_json(result)
    else:
        _show(result)
    if not fit.fits:
        raise typer.Exit(1)


def _memory(
    shape: "ModelShape",
    plan: "ParallelismPlan",
    device: "GpuModel",
    fit: "MemoryFit",
    *,
    dtype: str | None,
    kv_dtype: str | None,
) -> dict[str, Any]:
    """Return what the model takes and what is left."""
    from railweave.workloads.shapes import (
        active_parameters,
        kv_bytes_per_token,
        kv_constant_bytes,
        parameters,
        weight_bytes,
    )

    return {
        "model": shape.name,
        "gpu": device.name,
        "gpu_memory_bytes": device.memory_bytes,
        "tp": plan.tp,
        "pp": plan.pp,
        "dp": plan.dp,
        "ep": plan.ep,
        "params": parameters(shape),
        "active_params": active_parameters(shape),
        "weight_bytes": weight_bytes(shape, dtype=dtype),
        "weight_bytes_per_rank": fit.weight_bytes_per_rank,
        "free_bytes_per_rank": fit.free_bytes_per_rank,
        "kv_bytes_per_token": kv_bytes_per_token(shape, kv_dtype=kv_dtype),
        "kv_bytes_per_token_per_rank": fit.kv_bytes_per_token_per_rank,
        "kv_constant_bytes": kv_constant_bytes(shape, kv_dtype=kv_dtype),
        "kv_capacity_tokens": fit.kv_capacity_tokens,
        "sequences": fit.sequences,
        "fits": fit.fits,
        "text_only": shape.text_only,
    }


def _speed(
    shape: "ModelShape",
    plan: "ParallelismPlan",
    device: "GpuModel",
    fit: "MemoryFit",
    *,
    tokens: int | None,
    dtype: str | None,
    kv_dtype: str | None,
) -> dict[str, Any]:
    """Return the ceilings of decode and prefill, and the ridge that they are on a side of."""
    from railweave.workloads.ceilings import decode_ceiling, prefill_ceiling, ridge

    formats = {"dtype": dtype, "kv_dtype": kv_dtype}
    prompt, context = tokens or _PROMPT, tokens or 0
    batches = [1, *([fit.sequences] if fit.sequences and fit.sequences > 1 else [])]
    found = [
        ("decode", count, decode_ceiling(
            shape, plan, device, sequences=count, context=context, **formats))
        for count in batches
    ]  # fmt: skip
    found.append(("prefill", 1, prefill_ceiling(shape, plan, device, tokens=prompt, **formats)))
    return {
        "ridge_flops_per_byte": ridge(shape, device, dtype=dtype),
        "ceilings": [
            {
                "phase": phase,
                "sequences": count,
                "tokens": prompt if phase == "prefill" else context,
                "tokens_per_s": ceiling.tokens_per_s,
                "reached_tokens_per_s": ceiling.reached_per_s,
                "flops_per_byte": ceiling.intensity,
                "bound_by": ceiling.bound_by,
            }
            for phase, count, ceiling in found
        ],
    }


def _show(result: dict[str, Any]) -> None:
    def gb(value: int) -> str:
        return f"{value / 1e9:,.2f} GB"

    def both(name: str, value: int) -> tuple[str, str, str]:
        return name, f"{value:,} B", gb(value)

    degrees = [f"{name} {result[name]}" for name in ("tp", "pp")]
    degrees += [f"{name} {result[name]}" for name in ("dp", "ep") if result[name] > 1]
    emit(
        f"{result['model']} on {result['gpu']}  {'  '.join(degrees)}  "
        f"{result['memory_fraction']:g} of {gb(result['gpu_memory_bytes'])} per GPU\n"
    )
    part = " (text model only)" if result["text_only"] else ""
    rows: list[tuple[str, ...]] = [("parameters", f"{result['params']:,}{part}")]
    if result["active_params"] != result["params"]:
        rows.append(("of which a token meets", f"{result['active_params']:,}"))
    rows += [
        both("weights", result["weight_bytes"]),
        both("weights per rank", result["weight_bytes_per_rank"]),
        both("left per rank", result["free_bytes_per_rank"]),
        ("cache per token", f"{result['kv_bytes_per_token']:,} B"),
        ("cache per token and rank", f"{result['kv_bytes_per_token_per_rank']:,} B"),
    ]
    if result["kv_constant_bytes"]:
        rows.append(("windows and states, per sequence", f"{result['kv_constant_bytes']:,} B"))
    rows.append(("room for cache", f"{result['kv_capacity_tokens']:,} tokens"))
    asked = "" if result["tokens"] is None else f" with a sequence of {result['tokens']:,} tokens"
    if result["sequences"] is not None:
        rows.append(
            (f"room for sequences of {result['tokens']:,} tokens", f"{result['sequences']:,}")
        )
    rows.append((f"fits{asked}", "yes" if result["fits"] else "no"))
    emit(aligned([(*row, "", "")[:3] for row in rows]))
    _show_speed(result)


def _show_speed(result: dict[str, Any]) -> None:
    rows = []
    for ceiling in result["ceilings"]:
        count, tokens = ceiling["sequences"], ceiling["tokens"]
        if ceiling["phase"] == "prefill":
            what = f"prefill of {tokens:,} tokens"
        else:
            what = f"decode of {count:,} sequence" + "s" * (count > 1)
            what += f", {tokens:,} tokens cached" if tokens else ""
        rows.append(
            (
                what,
                f"{ceiling['tokens_per_s']:,.1f}",
                f"{ceiling['reached_tokens_per_s']:,.1f}",
                f"{ceiling['flops_per_byte']:,.1f}",
                ceiling["bound_by"],
            )
        )
    header = ("at best", "tokens/s", "good kernels", "FLOP/B", "bound by")
    emit("\n" + aligned(rows, header=header, right=(1, 2, 3)))
    emit(
        f"\nThe GPU's ridge is {result['ridge_flops_per_byte']:,.0f} FLOP/B: "
        "below it memory bounds, above it arithmetic."
    )
