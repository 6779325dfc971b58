# SPDX-License-Identifier: Apache-2.0
"""``railweave size``: does a model fit a GPU, and how much cache is left."""

from typing import Annotated, Any

import typer

from railweave.tools.output import aligned, emit, emit_json

__all__ = ["size"]


def size(
    model: Annotated[
        str, typer.Argument(help="Shipped name, config.json, or the folder that holds one.")
    ],
    gpu: Annotated[str, typer.Option(help="GPU of the catalogue, such as H100.")],
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks.")] = 1,
    pp: Annotated[int, typer.Option(min=1, help="Pipeline stages.")] = 1,
    tokens: Annotated[
        int | None, typer.Option(min=0, help="Also ask for room for one sequence this long.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="Format of weights: bf16, fp8, mxfp4, ... [default: the checkpoint's]"),
    ] = None,
    kv_dtype: Annotated[
        str | None, typer.Option(help="Format of the cache. [default: the model's]")
    ] = None,
    memory_fraction: Annotated[
        float, typer.Option(help="Share of GPU memory for weights and cache.")
    ] = 0.9,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say whether a model fits and how many tokens of cache are left (per rank, GB decimal)."""
    from railweave.fabric.devices import gpu_model
    from railweave.workloads.memory import memory_fit
    from railweave.workloads.parallelism import ParallelismPlan
    from railweave.workloads.shapes import (
        kv_bytes_per_token,
        kv_constant_bytes,
        load_shape,
        parameters,
        weight_bytes,
    )

    shape, device = load_shape(model), gpu_model(gpu)
    fit = memory_fit(
        shape,
        ParallelismPlan(tp=tp, pp=pp),
        memory_bytes=device.memory_bytes,
        fraction=memory_fraction,
        tokens=tokens,
        dtype=dtype,
        kv_dtype=kv_dtype,
    )
    result: dict[str, Any] = {
        "model": shape.name,
        "gpu": device.name,
        "gpu_memory_bytes": device.memory_bytes,
        "memory_fraction": memory_fraction,
        "tp": tp,
        "pp": pp,
        "tokens": tokens,
        "params": parameters(shape),
        "weight_bytes": weight_bytes(shape, dtype=dtype),
        "weight_bytes_per_rank": fit.weight_bytes_per_rank,
        "kv_bytes_per_token": kv_bytes_per_token(shape, kv_dtype=kv_dtype),
        "kv_bytes_per_token_per_rank": fit.kv_bytes_per_token_per_rank,
        "kv_constant_bytes": kv_constant_bytes(shape, kv_dtype=kv_dtype),
        "kv_capacity_tokens": fit.kv_capacity_tokens,
        "fits": fit.fits,
        "text_only": shape.text_only,
    }
    if as_json:
        emit_json(result)
    else:
        _show(result)


def _show(result: dict[str, Any]) -> None:
    def gb(value: int) -> str:
        return f"{value / 1e9:,.2f} GB"

    emit(
        f"{result['model']} on {result['gpu']}  tp {result['tp']}  pp {result['pp']}  "
        f"{result['memory_fraction']:g} of {gb(result['gpu_memory_bytes'])} per GPU\n"
    )
    part = " (text model only)" if result["text_only"] else ""
    rows = [
        ("parameters", f"{result['params']:,}{part}"),
        ("weights", f"{result['weight_bytes']:,} B", gb(result["weight_bytes"])),
        (
            "weights per rank",
            f"{result['weight_bytes_per_rank']:,} B",
            gb(result["weight_bytes_per_rank"]),
        ),
        ("cache per token", f"{result['kv_bytes_per_token']:,} B"),
        ("cache per token and rank", f"{result['kv_bytes_per_token_per_rank']:,} B"),
    ]
    if result["kv_constant_bytes"]:
        windows = f"{result['kv_constant_bytes']:,} B"
        rows.append(("cache in full windows, per sequence", windows))
    rows.append(("room for cache", f"{result['kv_capacity_tokens']:,} tokens"))
    asked = "" if result["tokens"] is None else f" with a sequence of {result['tokens']:,} tokens"
    rows.append((f"fits{asked}", "yes" if result["fits"] else "no"))
    emit(aligned([(*row, "")[:3] for row in rows]))
