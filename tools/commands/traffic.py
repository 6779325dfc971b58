# SPDX-License-Identifier: Apache-2.0
"""``railweave traffic``: the bytes that a model puts on the wire, from its shape alone."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from railweave.fabric.errors import InputError
from railweave.tools.choices import check_choice
from railweave.tools.output import aligned, emit, emit_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.workloads.ops import TrafficOp
    from railweave.workloads.parallelism import ParallelismPlan
    from railweave.workloads.shapes_model import ModelShape

__all__ = ["traffic"]

# Which options go together.
_BOTH: Final = ("--sequence-parallel", "--context")
_PLAN: Final = (
    "--tp", "--pp", "--cp", "--dp", "--ep", "--phase", "--dtype", *_BOTH, "--gpus-per-host",
    "--topology", "--by-link", "--routing",
)  # fmt: skip
_INFERENCE: Final = (
    "--rows", "--pad-to", "--ep-backend", "--ep-mode", "--dispatch-dtype", "--skew",
    "--node-limit",
)  # fmt: skip
_TRAINING: Final = (
    "--sequence", "--micro-batches", "--micro-batch-size", "--schedule", "--chunks", "--zero",
    "--grad-dtype", "--recompute",
)  # fmt: skip
_TRANSFER: Final = ("--prefill-tp", "--decode-tp", "--prefill-pp", "--block", "--kv-dtype")


def traffic(
    model: Annotated[
        str, typer.Argument(help="Shipped name, config.json, or the folder that holds one.")
    ],
    tp: Annotated[
        int | None, typer.Option(min=1, help="Tensor-parallel ranks. [default: 1]")
    ] = None,
    pp: Annotated[int | None, typer.Option(min=1, help="Pipeline stages. [default: 1]")] = None,
    cp: Annotated[
        int | None, typer.Option(min=1, help="Context-parallel ranks. [default: 1]")
    ] = None,
    dp: Annotated[int | None, typer.Option(min=1, help="Replicas. [default: 1]")] = None,
    ep: Annotated[
        int | None, typer.Option(min=1, help="Ranks that experts are divided over. [default: 1]")
    ] = None,
    phase: Annotated[
        str | None,
        typer.Option(help="prefill, train, or decode: a token per request. [default: decode]"),
    ] = None,
    tokens: Annotated[
        int,
        typer.Option(min=0, help="Tokens in the step of a replica; with --kv, tokens that move."),
    ] = 1,
    rows: Annotated[
        int | None, typer.Option(min=0, help="Requests that need logits. [default: 1, decode: all]")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Format of activations. [default: the model's]")
    ] = None,
    sequence_parallel: Annotated[
        bool | None, typer.Option(help="Scatter and gather instead of sums. [default: in training]")
    ] = None,
    context: Annotated[
        str | None, typer.Option(help="With --cp: ring, all_gather, ulysses.")
    ] = None,
    pad_to: Annotated[
        int | None, typer.Option(min=1, help="Round tokens up to a multiple. [default: 1]")
    ] = None,
    ep_backend: Annotated[
        str | None, typer.Option(help="replicated, allgather_reducescatter, mixed, all_to_all.")
    ] = None,
    ep_mode: Annotated[
        str | None, typer.Option(help="Of all_to_all: low_latency or normal. [default: by phase]")
    ] = None,
    dispatch_dtype: Annotated[
        str | None, typer.Option(help="On the way to experts: fp8 or bf16. [default: fp8]")
    ] = None,
    skew: Annotated[
        float | None, typer.Option(min=0, help="Of the experts' popularity. [default: 0, even]")
    ] = None,
    node_limit: Annotated[
        int | None, typer.Option(min=1, help="Most hosts that a token's experts lie on.")
    ] = None,
    sequence: Annotated[
        int | None, typer.Option(min=1, help="Training: tokens of a sequence. [default: 4096]")
    ] = None,
    micro_batches: Annotated[
        int | None, typer.Option(min=1, help="Training: micro-batches of a step. [default: 1]")
    ] = None,
    micro_batch_size: Annotated[
        int | None, typer.Option(min=1, help="Training: sequences of one. [default: 1]")
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(help="Training: 1f1b, interleaved, zero-bubble, gpipe. [default: 1f1b]"),
    ] = None,
    chunks: Annotated[
        int | None, typer.Option(min=1, help="Training: chunks of layers on a stage. [default: 1]")
    ] = None,
    zero: Annotated[
        int | None, typer.Option(min=0, max=3, help="Training: stage of ZeRO. [default: 1]")
    ] = None,
    grad_dtype: Annotated[
        str | None, typer.Option(help="Training: format of gradients. [default: fp32]")
    ] = None,
    recompute: Annotated[
        str | None, typer.Option(help="Training: none or full. [default: none]")
    ] = None,
    gpus_per_host: Annotated[
        int | None, typer.Option(min=1, help="GPUs that share NVLink. [default: 8]")
    ] = None,
    topology: Annotated[
        str | None, typer.Option(help="Place ranks on this fabric, hosts in order.")
    ] = None,
    links: Annotated[
        bool, typer.Option("--by-link", help="Also what each link of --topology carries.")
    ] = False,
    routing: Annotated[
        str | None,
        typer.Option(help="With --by-link: ecmp, ecmp-polarised, rail, spray. [default: ecmp]"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of draws and hashes.")] = 1,
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

    Sizes are full logical buffers; wire bytes are what one rank sends. They are counted from the
    collectives' schedules on the hosts at hand: an emulated step moves the same bytes.
    """
    given = {f"--{name.replace('_', '-')}": value for name, value in locals().items()}
    given["--by-link"] = given.pop("--links")
    step = phase or "decode"
    _check_choices(given)
    of_kind = "kv" if kv else "train" if step == "train" else "inference"
    _refuse_others(given, of_kind)
    if links and topology is None:
        raise InputError("it needs a fabric", field="--by-link", expected="--topology beside it")
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
        emit_json(result) if as_json else _show_transfer(result)
        return
    result = _step(shape, given, phase=step, tokens=tokens, seed=seed)
    if as_json:
        emit_json(result)
    else:
        _show(result)


def _check_choices(given: dict[str, Any]) -> None:
    """Refuse names that are none, whether or not this traffic has a use for them."""
    from railweave.fabric.routing import POLICIES
    from railweave.workloads.context import CONTEXT_KINDS
    from railweave.workloads.experts import BACKENDS
    from railweave.workloads.pipeline_schedules import PIPELINE_SCHEDULES

    known: dict[str, Sequence[str]] = {
        "--phase": ("prefill", "decode", "train"),
        "--context": CONTEXT_KINDS,
        "--ep-backend": BACKENDS,
        "--ep-mode": ("low_latency", "normal"),
        "--dispatch-dtype": ("fp8", "bf16"),
        "--schedule": PIPELINE_SCHEDULES,
        "--recompute": ("none", "full"),
        "--routing": POLICIES,
    }
    for option, names in known.items():
        check_choice(given[option], option, names)


def _refuse_others(given: dict[str, Any], kind: str) -> None:
    """Refuse options of another kind of traffic than the one that is asked for."""
    own = {
        "kv": _TRANSFER,
        "train": (*_PLAN, *_TRAINING),
        "inference": (*_PLAN, *_INFERENCE),
    }[kind]
    for name in dict.fromkeys((*_PLAN, *_TRAINING, *_INFERENCE, *_TRANSFER)):
        value = given[name]
        if value is None or value is False or name in own or (name, value) == ("--phase", kind):
            continue
        said = {"kv": "does not go with --kv", "train": "does not go with --phase train"}
        needs = "needs --kv" if name in _TRANSFER else "needs --phase train"
        raise InputError(
            said.get(kind, needs) if name not in _TRANSFER else "needs --kv",
            field=name,
            expected="one of " + ", ".join(own),
        )


def _step(
    shape: "ModelShape", given: dict[str, Any], *, phase: str, tokens: int, seed: int
) -> dict[str, Any]:
    from railweave.tools.traffic_tables import by_link, placed, step_result
    from railweave.workloads.op_schedules import packed
    from railweave.workloads.parallelism import ParallelismPlan

    degrees = {name: given[f"--{name}"] or 1 for name in ("tp", "pp", "cp", "dp", "ep")}
    order: Any = "pp-dp-cp-tp" if phase == "train" else "dp-pp-cp-tp"
    plan = ParallelismPlan(**degrees, order=order)
    per_host = given["--gpus-per-host"] or 8
    where, fabric, devices = f"hosts of {per_host} GPUs", None, []
    hosts = packed(plan.n_ranks, per_host)
    if given["--topology"] is not None:
        from railweave.topologies.load import build_topology, load_topology

        fabric = build_topology(load_topology(given["--topology"]))
        devices = placed(fabric, plan)
        hosts = [int(fabric.host[device]) for device in devices]
        per_host, where = max(map(hosts.count, set(hosts))), f"on {fabric.name}"
    ops = _ops(shape, plan, given, phase=phase, tokens=tokens, seed=seed, gpus_per_host=per_host)
    result = {
        "model": shape.name,
        **degrees,
        "phase": phase,
        "tokens": tokens,
        "gpus_per_host": per_host,
        "where": where,
        **step_result(ops, plan, hosts),
    }
    if phase == "train":
        names = ("--sequence", "--micro-batches", "--micro-batch-size")
        result["tokens"] = plan.dp
        for name, default in zip(names, (4096, 1, 1), strict=True):
            result["tokens"] *= given[name] or default
    if given["--by-link"] and fabric is not None:
        result["links"] = by_link(
            ops, plan, fabric, devices, policy=given["--routing"] or "ecmp", seed=seed
        )
    return result


def _ops(
    shape: "ModelShape",
    plan: "ParallelismPlan",
    given: dict[str, Any],
    *,
    phase: str,
    tokens: int,
    seed: int,
    gpus_per_host: int,
) -> "list[TrafficOp]":
    def known(names: dict[str, str]) -> dict[str, Any]:
        return {key: given[name] for key, name in names.items() if given[name] is not None}

    if phase == "train":
        from railweave.workloads.training import TrainingStyle, training_ops

        names = (*_TRAINING, *_BOTH, "--dtype")
        style = known({name[2:].replace("-", "_"): name for name in names})
        return training_ops(shape, plan, TrainingStyle(**{"sequence": 4096, **style}))
    from railweave.workloads.experts import ExpertStyle
    from railweave.workloads.inference import StepStyle, step_ops

    experts = {"mode": "low_latency" if phase == "decode" else "normal"} | known(
        {"backend": "--ep-backend", "mode": "--ep-mode", "dispatch_dtype": "--dispatch-dtype",
         "skew": "--skew", "node_limit": "--node-limit"}
    )  # fmt: skip
    how = StepStyle(
        experts=ExpertStyle(seed=seed, gpus_per_host=gpus_per_host, **experts),
        **known({"sequence_parallel": "--sequence-parallel", "context": "--context",
                 "pad_to": "--pad-to"}),
    )  # fmt: skip
    return step_ops(
        shape, plan, phase=phase, tokens=tokens, rows=given["--rows"], dtype=given["--dtype"],
        style=how,
    )  # fmt: skip


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


def _show(result: dict[str, Any]) -> None:
    from railweave.tools.traffic_tables import show_links, show_step

    degrees = [f"{name} {result[name]}" for name in ("tp", "pp")]
    degrees += [f"{name} {result[name]}" for name in ("cp", "dp", "ep") if result[name] > 1]
    if result["phase"] == "train":
        what = f"one training step of {result['tokens']:,} tokens"
    else:
        unit = "request" if result["phase"] == "decode" else "token"
        unit += "s" * (result["tokens"] != 1)
        each = " a replica" if result["dp"] > 1 else ""
        what = f"one {result['phase']} step of {result['tokens']:,} {unit}{each}"
    emit(f"{result['model']}  {'  '.join(degrees)}  {what}\n")
    show_step(result)
    if "links" in result:
        show_links(result["links"])


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
