# SPDX-License-Identifier: Apache-2.0
"""What no engine can beat on given GPUs: the memory wall of decode, the arithmetic of prefill.

Ceilings take the GPU's nameplate rates, count only what a step must compute and read, and leave
out all communication, fixed times and waiting: ``t >= max(flops / F, bytes / B)`` for each rank
(Williams, Waterman and Patterson, "Roofline", CACM 2009). Operations per byte below the ridge
``F / B`` are bound by memory, above it by arithmetic. Pipeline stages all work at once, each on a
batch of its own; one sequence passes them one after another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from railweave.workloads.compute import StageTimer, arithmetic_formats
from railweave.workloads.step_load import StepLoad

if TYPE_CHECKING:
    from railweave.fabric.devices import GpuModel
    from railweave.workloads.parallelism import ParallelismPlan
    from railweave.workloads.shapes_model import ModelShape

__all__ = ["Ceiling", "decode_ceiling", "prefill_ceiling", "ridge"]


@dataclass(frozen=True)
class Ceiling:
    """A bound on tokens per second.

    Parameters
    ----------
    tokens_per_s
        Of all replicas together, at nameplate rates.
    reached_per_s
        The same at the shares of the nameplate rates that good kernels reach.
    intensity
        Operations per byte of memory traffic, over all ranks of a replica.
    bound_by
        What the slowest rank waits for: ``memory`` or ``arithmetic``.
    """

    tokens_per_s: float
    reached_per_s: float
    intensity: float
    bound_by: Literal["memory", "arithmetic"]


@dataclass(frozen=True)
class _Stage:
    """What a rank of a stage does in a step: operations by number format, and bytes."""

    flops: dict[str, int]
    moved_bytes: int

    def times(self, gpu: GpuModel, *, reached: bool) -> tuple[float, float]:
        """Return the seconds of arithmetic and of memory traffic."""
        compute = gpu.efficiency.compute if reached else 1.0
        memory = gpu.efficiency.memory if reached else 1.0
        arithmetic = sum(flops / (gpu.flops[fmt] * compute) for fmt, flops in self.flops.items())
        return arithmetic, self.moved_bytes / (gpu.memory_bandwidth_Bps * memory)


def ridge(shape: ModelShape, gpu: GpuModel, *, dtype: str | None = None) -> float:
    """Return the operations per byte at which arithmetic and memory take equally long.

    Parameters
    ----------
    shape, gpu
        The model, whose weights fix the number format of the arithmetic, and the GPU.
    dtype
        Storage of the weights; default the checkpoint's.
    """
    narrow, _ = arithmetic_formats(shape, gpu, dtype=dtype)
    return gpu.flops[narrow] / gpu.memory_bandwidth_Bps


def decode_ceiling(
    shape: ModelShape,
    plan: ParallelismPlan,
    gpu: GpuModel,
    *,
    sequences: int,
    context: int,
    dtype: str | None = None,
    kv_dtype: str | None = None,
) -> Ceiling:
    """Return the bound on decode of equally long sequences.

    Parameters
    ----------
    shape, plan, gpu
        The model, how it is divided, and what each rank runs on.
    sequences
        Sequences of one replica; with pipeline stages each stage has its part of them.
    context
        Tokens that each has cached.
    dtype, kv_dtype
        Number formats of the weights and of the cache.
    """
    part = -(-sequences // plan.pp)
    stages = _stages(shape, plan, gpu, StepLoad.decode([context] * part), dtype, kv_dtype)
    if sequences == 1:
        return _ceiling(stages, gpu, tokens=plan.dp, in_turn=True)
    return _ceiling(stages, gpu, tokens=part * plan.dp, in_turn=False)


def prefill_ceiling(
    shape: ModelShape,
    plan: ParallelismPlan,
    gpu: GpuModel,
    *,
    tokens: int,
    dtype: str | None = None,
    kv_dtype: str | None = None,
) -> Ceiling:
    """Return the bound on prefill of prompts of ``tokens`` each, one after another."""
    stages = _stages(shape, plan, gpu, StepLoad.prefill(tokens), dtype, kv_dtype)
    return _ceiling(stages, gpu, tokens=tokens * plan.dp, in_turn=False)


def _stages(
    shape: ModelShape,
    plan: ParallelismPlan,
    gpu: GpuModel,
    load: StepLoad,
    dtype: str | None,
    kv_dtype: str | None,
) -> list[_Stage]:
    formats = arithmetic_formats(shape, gpu, dtype=dtype)
    stages = []
    for stage in range(plan.pp):
        timer = StageTimer(shape, plan, gpu, stage=stage, dtype=dtype, kv_dtype=kv_dtype)
        works = timer.works(load)
        parts = [part for kind in timer.order for part in works[kind]]
        parts.append(timer.head(load))
        flops: dict[str, int] = {}
        for part in parts:
            if part is not None:
                fmt = formats[0] if part.narrow else formats[1]
                flops[fmt] = flops.get(fmt, 0) + part.flops
        moved = sum(part.moved_bytes for part in parts if part is not None)
        stages.append(_Stage(flops, moved))
    return stages


def _ceiling(stages: list[_Stage], gpu: GpuModel, *, tokens: int, in_turn: bool) -> Ceiling:
    def seconds(*, reached: bool) -> float:
        each = [max(stage.times(gpu, reached=reached)) for stage in stages]
        return sum(each) if in_turn else max(each)

    slowest = max(stages, key=lambda stage: max(stage.times(gpu, reached=False)))
    arithmetic, memory = slowest.times(gpu, reached=False)
    flops = sum(sum(stage.flops.values()) for stage in stages)
    return Ceiling(
        tokens_per_s=tokens / seconds(reached=False),
        reached_per_s=tokens / seconds(reached=True),
        intensity=flops / sum(stage.moved_bytes for stage in stages),
        bound_by="arithmetic" if arithmetic > memory else "memory",
    )
