# SPDX-License-Identifier: Apache-2.0
"""Which plans a model may have on so many GPUs, which of them do not fit, and the least of each.

A plan is dropped where a degree does not divide what it has to divide or where a rank's memory is
too small; why is kept. What is left gets a lower bound of its step: the arithmetic of the roofline
and, one after the other, the bytes of the collectives between blocks over the rate at which GPUs
send, in the order of the pipeline and without anything else. No emulated step is shorter, so plans
whose bound is above the best steps found need not be emulated to know that they are not among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from railweave.fabric.errors import InputError
from railweave.fabric.units import PS_PER_S
from railweave.workloads.limits import MOST_PASSES, MOST_REQUESTS, MOST_TOKENS, check_range
from railweave.workloads.op_schedules import link_bytes
from railweave.workloads.pipeline_schedules import makespan, pipeline_order
from railweave.workloads.replay.inference import InferenceModel, inference_memory
from railweave.workloads.replay.inference_graph import InferenceStep
from railweave.workloads.replay.training import TrainingModel
from railweave.workloads.replay.training_graph import TrainingStep
from railweave.workloads.shapes_model import dtype_bytes
from railweave.workloads.shapes_weights import storage_format
from railweave.workloads.training import stage_memory, training_ops

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from railweave.fabric.devices import GpuModel
    from railweave.workloads.ops import TrafficOp
    from railweave.workloads.parallelism import ParallelismPlan
    from railweave.workloads.pipeline_schedules import Pass
    from railweave.workloads.shapes_model import ModelShape
    from railweave.workloads.training import TrainingStyle

__all__ = ["MOST_GPUS", "Candidate", "Dropped", "Site", "candidates"]


MOST_GPUS: Final = 4096
"""GPUs for which every plan is worked out."""

_OF_PLANS: Final = (
    "tp", "pp", "cp", "dp", "ep", "tokens", "sequence", "micro_batches", "sequence_parallel",
    "context", "ep_backend", "node_limit", "zero", "chunks",
)  # fmt: skip
"""What is wrong with one plan and may be right with another."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where plans are to run.

    Parameters
    ----------
    gpus
        How many.
    gpu
        What they are.
    hosts
        Host of each, in the order in which ranks fill them.
    local_bps, network_bps
        Highest rates at which a GPU sends within its host and out of it.
    """

    gpus: int
    gpu: GpuModel
    hosts: Sequence[int]
    local_bps: int
    network_bps: int

    @property
    def gpus_per_host(self) -> int:
        """Most GPUs of a host."""
        return max(map(list(self.hosts).count, set(self.hosts)))


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A plan that may run.

    Parameters
    ----------
    workload
        The keys of its workload in a scenario, those that are not the default.
    plan
        How it divides the model.
    least_ps
        No step of it is shorter.
    memory_bytes
        On its fullest rank.
    fits
        Whether the GPU has as much.
    """

    workload: dict[str, Any]
    plan: ParallelismPlan
    least_ps: int
    memory_bytes: int
    fits: bool


@dataclass(frozen=True)
class Dropped:
    """A plan that cannot run, and why."""

    degrees: dict[str, Any]
    reason: str
    memory_bytes: int | None = None


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def _degrees(gpus: int, *, max_cp: int) -> Iterator[dict[str, int]]:
    """Yield every way to write the number of GPUs as tp x pp x cp x dp."""
    for tp in _divisors(gpus):
        for pp in _divisors(gpus // tp):
            for cp in _divisors(gpus // tp // pp):
                if cp <= max_cp:
                    yield {"tp": tp, "pp": pp, "cp": cp, "dp": gpus // tp // pp // cp}


def _variants(shape: ModelShape, degrees: dict[str, int], phase: str) -> Iterator[dict[str, Any]]:
    """Yield the ways to divide experts beside the other degrees."""
    yield degrees
    if not shape.moe_layers:
        return
    tp, dp, cp = degrees["tp"], degrees["dp"], degrees["cp"]
    if phase == "train":
        for ep in _divisors(dp * cp)[1:]:
            yield {**degrees, "ep": ep}
        return
    if cp == 1:
        if tp > 1:
            yield {**degrees, "ep": tp}
        if dp > 1:
            for backend in ("allgather_reducescatter", "all_to_all"):
                yield {**degrees, "ep": tp * dp, "ep_backend": backend}


def candidates(
    shape: ModelShape,
    model: str,
    site: Site,
    *,
    phase: str,
    batch: int,
    tokens: int,
    max_cp: int = 4,
    seed: int = 1,
    keys: dict[str, Any] | None = None,
) -> tuple[list[Candidate], list[Dropped]]:
    """Return the plans that divide, least bound first, and those that may not run.

    Those that do not fit in memory are in both.

    Parameters
    ----------
    shape, model
        The model, and what a scenario calls it.
    site
        Where.
    phase
        ``prefill``, ``decode`` or ``train``.
    batch
        Requests or sequences of a step over all GPUs.
    tokens
        Tokens of a sequence or prompt, or that are cached of each request.
    max_cp
        Most context-parallel ranks; decode has none.
    seed
        Of draws.
    keys
        Further keys of every workload.
    """
    found: list[Candidate] = []
    dropped: list[Dropped] = []
    given = keys or {}
    _check(shape, site, phase=phase, batch=batch, tokens=tokens, dtype=given.get("dtype"))
    for degrees in _degrees(site.gpus, max_cp=1 if phase == "decode" else max_cp):
        for variant in _variants(shape, degrees, phase):
            try:
                if phase == "train":
                    made = _training(shape, model, site, variant, batch, tokens, given)
                else:
                    made = _inference(
                        shape, model, site, variant, phase, batch, tokens, seed, given
                    )
            except InputError as error:
                if error.field not in _OF_PLANS:
                    raise
                dropped.append(Dropped(variant, f"{error.field or 'plan'}: {error.message}"))
                continue
            found.append(made)
            if not made.fits:
                said = f"memory: a rank needs more than the {site.gpu.name} has"
                dropped.append(Dropped(variant, said, made.memory_bytes))
    return sorted(found, key=lambda one: (one.least_ps, str(one.workload))), dropped


def _check(
    shape: ModelShape, site: Site, *, phase: str, batch: int, tokens: int, dtype: str | None
) -> None:
    """Raise `InputError` for what no plan at all can do."""
    check_range(site.gpus, "gpus", MOST_GPUS, least=1, what="GPUs, whose plans are all worked out")
    check_range(tokens, "tokens", MOST_TOKENS, least=1, what="tokens")
    if phase == "train":
        most = MOST_PASSES * site.gpus
        check_range(batch, "batch", most, least=1,
                    what=f"sequences: {MOST_PASSES:,} micro-batches of a replica")  # fmt: skip
    else:
        check_range(batch, "batch", MOST_REQUESTS, least=1, what="requests")
    if dtype is not None and phase == "train":
        dtype_bytes(dtype)
    elif dtype is not None:
        storage_format(shape, dtype)


def _sending_ps(ops: Sequence[TrafficOp], plan: ParallelismPlan, site: Site, stage: int) -> int:
    """Return the least time in which the ranks of a stage send the bytes of operations.

    The mean over the ranks over the rate of the faster class of link; never more than any order of
    the operations takes.
    """
    moved = link_bytes(ops, plan, site.hosts)
    ranks = list(plan.stage_ranks(stage))
    local, away = (int(b[ranks].sum()) // len(ranks) for b in (moved.nvlink, moved.network))
    return max(local * 8 * PS_PER_S // site.local_bps, away * 8 * PS_PER_S // site.network_bps)


def _training(
    shape: ModelShape,
    model: str,
    site: Site,
    degrees: dict[str, Any],
    batch: int,
    tokens: int,
    keys: dict[str, Any],
) -> Candidate:
    replicas = degrees["dp"]
    if batch % replicas:
        raise InputError(f"{replicas} replicas do not divide {batch} sequences", field="dp")
    own = {**degrees, "sequence": tokens, "micro_batches": batch // replicas, **keys}
    fitting = fullest = None
    for recompute in ("none", "full"):
        workload = TrainingModel(kind="training", model=model, **{"recompute": recompute, **own})
        plan, style = workload.plan(), workload.style()
        style.check(shape, plan)
        fullest = max(stage_memory(shape, plan, style, s).total for s in range(plan.pp))
        own["recompute"] = style.recompute
        if fullest <= site.gpu.memory_bytes:
            fitting = True
            break
        if "recompute" in keys:
            break
        own.pop("recompute")
    if not fitting:
        own["recompute"] = style.recompute
    assert fullest is not None
    least = _least_training_ps(shape, plan, style, site)
    workload_keys = {"kind": "training", "model": model, **own}
    return Candidate(
        workload=workload_keys, plan=plan, least_ps=least, memory_bytes=fullest,
        fits=bool(fitting),
    )  # fmt: skip


def _least_training_ps(
    shape: ModelShape, plan: ParallelismPlan, style: TrainingStyle, site: Site
) -> int:
    """Return what no step is shorter than: the pipeline, then the update of some stage."""
    step = TrainingStep(shape, plan, style, site.gpu, ())
    computing = step.pass_times()
    ops = training_ops(shape, plan, style)
    covered = ("ring",) if style.context == "ring" else ()
    passes = style.micro_batches * style.chunks
    sending: dict[tuple[int, str], int] = {}
    tails = []
    for stage in range(plan.pp):
        own = [op for op in ops if op.stage == stage]
        for kind, phases in (("forward", ("forward",)), ("backward", ("recompute", "backward"))):
            between = [
                op
                for op in own
                if op.phase in phases
                and (op.axis in ("tp", "ep") or (op.axis == "cp" and not covered))
            ]
            sending[stage, kind] = _sending_ps(between, plan, site, stage) // passes
        gathers = [op for op in own if op.phase == "parameters"]
        tails.append(step.update_ps(stage) + _sending_ps(gathers, plan, site, stage))

    def duration(stage: int, one: Pass) -> int:
        return computing[stage][one.chunk][one.kind] + sending.get((stage, one.kind), 0)

    order = pipeline_order(
        style.schedule, stages=plan.pp, micro_batches=style.micro_batches, chunks=style.chunks
    )
    # Passes of the stages' first and last chunks send a little more than the mean: a bound takes
    # off what they may differ by.
    slack = sum(sending.values()) if style.chunks > 1 else 0
    return max(makespan(order, duration, chunks=style.chunks) - slack, 0) + min(tails)


def _inference(
    shape: ModelShape,
    model: str,
    site: Site,
    degrees: dict[str, Any],
    phase: str,
    batch: int,
    tokens: int,
    seed: int,
    keys: dict[str, Any],
) -> Candidate:
    own = {**degrees, "phase": phase, "batch": batch, "tokens": tokens, **keys}
    workload = InferenceModel(kind="inference", model=model, **own)
    plan = workload.plan()
    plan.check(shape)
    style = workload.style(seed=seed, gpus_per_host=site.gpus_per_host)
    held = max(map(sum, inference_memory(shape, plan, workload)))
    step = InferenceStep(
        shape, plan, style, site.gpu, (), phase=phase, batch=batch, context_tokens=tokens,
        dtype=workload.dtype, kv_dtype=workload.kv_dtype,
    )  # fmt: skip
    ops = [op for op in step.ops() if op.axis in ("tp", "ep")
           or (op.axis == "cp" and style.context != "ring")]  # fmt: skip
    least = max(
        step.compute_ps(stage)
        + _sending_ps([op for op in ops if op.stage == stage], plan, site, stage)
        for stage in range(plan.pp)
    )
    return Candidate(
        workload={"kind": "inference", "model": model, **own},
        plan=plan,
        least_ps=least,
        memory_bytes=held,
        fits=held <= int(workload.gpu_memory_utilization * site.gpu.memory_bytes),
    )
