# SPDX-License-Identifier: Apache-2.0
"""``railweave traffic``: the bytes that a model puts on the wire, from its shape alone."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from railweave.fabric.errors import InputError
from railweave.tools.output import aligned, emit, emit_json

if TYPE_CHECKING:
    from railweave.workloads.inference import TrafficOp
    from railweave.workloads.parallelism import ParallelismPlan
    from railweave.workloads.shapes_model import ModelShape

__all__ = ["traffic"]


def traffic(
    model: Annotated[
        str, typer.Argument(help="Shipped name, config.json, or the folder that holds one.")
    ],
    tp: Annotated[
        int | None, typer.Option(min=1, help="Tensor-parallel ranks. [default: 1]")
    ] = None,
    pp: Annotated[int | None, typer.Option(min=1, help="Pipeline stages. [default: 1]")] = None,
    phase: Annotated[
        str | None, typer.Option(help="prefill, or decode: a token per request. [default: decode]")
    ] = None,
    tokens: Annotated[
        int, typer.Option(min=1, help="Tokens in the step; with --kv, tokens that move.")
    ] = 1,
    rows: Annotated[
        int | None,
        typer.Option(min=0, help="Requests that need logits. [default: 1, decode: all]"),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Format of activations. [default: the model's]")
    ] = None,
    gpus_per_host: Annotated[
        int | None, typer.Option(min=1, help="GPUs that share NVLink. [default: 8]")
    ] = None,
    kv: Annotated[bool, typer.Option("--kv", help="The cache from prefill to decode.")] = False,
    prefill_tp: Annotated[
        int | None, typer.Option(min=1, help="With --kv: prefill ranks. [default: 1]")
    ] = None,
    decode_tp: Annotated[
        int | None, typer.Option(min=1, help="With --kv: decode ranks. [default: 1]")
    ] = None,
    prefill_pp: Annotated[
        int | None, typer.Option(min=1, help="With --kv: prefill stages. [default: 1]")
    ] = None,
    block: Annotated[
        int | None, typer.Option(min=1, help="With --kv: round tokens up to it. [default: exact]")
    ] = None,
    kv_dtype: Annotated[
        str | None, typer.Option(help="With --kv: format of the cache. [default: the model's]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say which bytes one step of a model sends, or its cache on the way to decode.

    Sizes are full logical buffers; wire bytes are what one rank sends in a ring.
    """
    step = {
        "--tp": tp,
        "--pp": pp,
        "--phase": phase,
        "--rows": rows,
        "--dtype": dtype,
        "--gpus-per-host": gpus_per_host,
    }
    transfer = {
        "--prefill-tp": prefill_tp,
        "--decode-tp": decode_tp,
        "--prefill-pp": prefill_pp,
        "--block": block,
        "--kv-dtype": kv_dtype,
    }
    for name, value in (step if kv else transfer).items():
        if value is not None:
            raise InputError(
                "does not go with --kv" if kv else "needs --kv",
                field=name,
                expected="one of " + ", ".join(transfer if kv else step),
            )
    from railweave.workloads.shapes import load_shape

    shape = load_shape(model)
    if kv:
        result = _transfer(
            shape,
            prefill_tp=prefill_tp or 1,
            decode_tp=decode_tp or 1,
            prefill_pp=prefill_pp or 1,
            tokens=tokens,
            block=block or 1,
            kv_dtype=kv_dtype,
        )
    else:
        from railweave.workloads.parallelism import ParallelismPlan

        result = _step(
            shape,
            ParallelismPlan(tp=tp or 1, pp=pp or 1),
            phase=phase or "decode",
            tokens=tokens,
            rows=rows,
            dtype=dtype,
            gpus_per_host=gpus_per_host or 8,
        )
    if as_json:
        emit_json(result)
    elif kv:
        _show_transfer(result)
    else:
        _show_step(result)


def _step(
    shape: "ModelShape",
    plan: "ParallelismPlan",
    *,
    phase: str,
    tokens: int,
    rows: int | None,
    dtype: str | None,
    gpus_per_host: int,
) -> dict[str, Any]:
    from railweave.workloads.inference import link_bytes, stage_wire_bytes, step_ops

    ops = step_ops(shape, plan, phase=phase, tokens=tokens, rows=rows, dtype=dtype)
    sent = [stage_wire_bytes(ops, stage) for stage in range(plan.pp)]
    busiest = max(range(plan.pp), key=lambda stage: sent[stage])
    links = link_bytes(ops, plan, stage=busiest, gpus_per_host=gpus_per_host)
    return {
        "model": shape.name,
        "tp": plan.tp,
        "pp": plan.pp,
        "phase": phase,
        "tokens": tokens,
        "gpus_per_host": gpus_per_host,
        "ops": [_row(op) for op in ops],
        "totals": {
            "per_rank_wire_bytes": sent[busiest],
            "by_link_class": {"nvlink": links.nvlink, "network": links.network},
            "stage": busiest,
            "per_stage_wire_bytes": sent,
        },
    }


def _row(op: "TrafficOp") -> dict[str, Any]:
    return {
        "op": op.op,
        "axis": op.axis,
        "count": op.count,
        "bytes": op.size_bytes,
        "wire_bytes_per_rank": op.wire_bytes_per_rank,
        "stage": op.stage,
        "to_stage": op.to_stage,
        "what": op.what,
    }


def _transfer(
    shape: "ModelShape",
    *,
    prefill_tp: int,
    decode_tp: int,
    prefill_pp: int,
    tokens: int,
    block: int,
    kv_dtype: str | None,
) -> dict[str, Any]:
    from railweave.workloads.kv_transfer import kv_matrix

    moved = kv_matrix(
        shape,
        prefill_tp,
        decode_tp,
        tokens,
        block=block,
        prefill_pp=prefill_pp,
        kv_dtype=kv_dtype,
    )
    return {
        "model": shape.name,
        "prefill_tp": prefill_tp,
        "prefill_pp": prefill_pp,
        "decode_tp": decode_tp,
        "tokens": tokens,
        "block": block,
        "unique_bytes": moved.unique_bytes,
        "wire_bytes": moved.wire_bytes,
        "transfers": [
            {"src_rank": src, "dst_rank": dst, "bytes": size} for src, dst, size in moved.transfers
        ],
    }


def _show_step(result: dict[str, Any]) -> None:
    totals = result["totals"]
    unit = "request" if result["phase"] == "decode" else "token"
    unit += "s" * (result["tokens"] > 1)
    emit(
        f"{result['model']}  tp {result['tp']}  pp {result['pp']}  "
        f"one {result['phase']} step of {result['tokens']:,} {unit}\n"
    )
    if not result["ops"]:
        emit("One rank: nothing goes on the wire.")
        return
    rows = [
        (
            op["op"],
            op["axis"],
            op["stage"] if op["to_stage"] is None else f"{op['stage']} > {op['to_stage']}",
            f"{op['count']:,}",
            f"{op['bytes']:,}",
            f"{op['wire_bytes_per_rank']:,}",
            op["what"],
        )
        for op in result["ops"]
    ]
    header = ("op", "axis", "stage", "count", "buffer B", "wire B/rank", "what")
    emit(aligned(rows, header=header, right=(3, 4, 5)))
    links = totals["by_link_class"]
    emit(
        f"\nA rank of stage {totals['stage']}, the busiest, sends "
        f"{totals['per_rank_wire_bytes']:,} B: {links['nvlink']:,} B on NVLink, "
        f"{links['network']:,} B on the network (hosts of {result['gpus_per_host']} GPUs)."
    )


def _show_transfer(result: dict[str, Any]) -> None:
    rounded = "" if result["block"] == 1 else f" in blocks of {result['block']:,}"
    stages = "" if result["prefill_pp"] == 1 else f" x pp {result['prefill_pp']}"
    emit(
        f"{result['model']}  cache of {result['tokens']:,} tokens{rounded}  "
        f"prefill tp {result['prefill_tp']}{stages} -> decode tp {result['decode_tp']}\n"
    )
    rows = [(t["src_rank"], t["dst_rank"], f"{t['bytes']:,}") for t in result["transfers"]]
    emit(aligned(rows, header=("prefill rank", "decode rank", "bytes"), right=(0, 1, 2)))
    emit(f"\nunique {result['unique_bytes']:,} B, on the wire {result['wire_bytes']:,} B")
