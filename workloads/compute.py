# SPDX-License-Identifier: Apache-2.0
"""Compute time of a step by the roofline model, block by block.

A block (attention or mixer, feed-forward, output head) takes the longer of its arithmetic and its
memory traffic (Williams, Waterman and Patterson, "Roofline", CACM 2009):

``t = max(flops / (F * eff_compute), (weights read + cache read and written) / (B * eff_memory))``

What counts is in `railweave.workloads.compute_blocks`. The input table is looked up, not read.

Each block also takes a fixed time, by default the 3 us that ai-dynamo/aiconfigurator adds to each
memory-bound operation (``mem_empirical_constant_latency`` of its system files).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from railweave.fabric.errors import InputError
from railweave.fabric.units import PS_PER_S
from railweave.workloads.compute_blocks import (
    BlockWork,
    RankBlocks,
    experts_visited,
    head_work,
)
from railweave.workloads.shapes import kv_element_bytes, plain_bytes
from railweave.workloads.shapes_quantized import is_quantized, storage_format
from railweave.workloads.step_load import StepLoad

if TYPE_CHECKING:
    from railweave.fabric.devices import GpuModel
    from railweave.workloads.parallelism import ParallelismPlan
    from railweave.workloads.shapes_model import ModelShape

__all__ = [
    "BLOCK_OVERHEAD_PS",
    "BlockCost",
    "BlockWork",
    "StageTimer",
    "StepCost",
    "StepLoad",
    "arithmetic_formats",
    "experts_visited",
    "roofline_ps",
    "stage_cost",
]

BLOCK_OVERHEAD_PS: Final = 3_000_000


@dataclass(frozen=True)
class BlockCost:
    """Time of the blocks of a layer in ps, 0 for one that it does not have.

    Parameters
    ----------
    attention_ps
        Attention, or the recurrent mixer, or both side by side.
    feed_forward_ps
        Feed-forward network.
    """

    attention_ps: int
    feed_forward_ps: int

    @property
    def total_ps(self) -> int:
        """Time of the layer."""
        return self.attention_ps + self.feed_forward_ps


@dataclass(frozen=True)
class StepCost:
    """Compute time of one step on a rank of one pipeline stage, communication left out.

    Parameters
    ----------
    layers
        The stage's layers in order.
    head_ps
        The output head in ps, 0 unless the stage is the last.
    overhead_ps
        Fixed time of the step in ps.
    """

    layers: tuple[BlockCost, ...]
    head_ps: int
    overhead_ps: int

    @property
    def total_ps(self) -> int:
        """Time of the step."""
        return sum(layer.total_ps for layer in self.layers) + self.head_ps + self.overhead_ps


@lru_cache(maxsize=64)
def _rates(flops: int, bandwidth: int, compute: float, memory: float) -> tuple[int, int]:
    """Return the usable FLOP/s and bytes/s as whole numbers."""
    return int(flops * Fraction(str(compute))), int(bandwidth * Fraction(str(memory)))


def roofline_ps(*, flops: int, moved_bytes: int, gpu: GpuModel, dtype: str = "bf16") -> int:
    """Return the longer of arithmetic and memory time, rounded up to a picosecond.

    Parameters
    ----------
    flops
        Floating-point operations.
    moved_bytes
        Bytes read from and written to the GPU's memory.
    gpu
        The GPU: peak rates and the efficiencies that kernels reach.
    dtype
        Number format of the arithmetic.

    Raises
    ------
    InputError
        The GPU has no rate for ``dtype``.
    """
    if dtype not in gpu.flops:
        raise InputError(
            f"{gpu.name} has no arithmetic rate for {dtype}",
            field="dtype",
            expected="one of " + ", ".join(sorted(gpu.flops)),
        )
    flops_rate, bytes_rate = _rates(
        gpu.flops[dtype], gpu.memory_bandwidth_Bps, gpu.efficiency.compute, gpu.efficiency.memory
    )
    arithmetic = -(-flops * PS_PER_S // flops_rate)
    return max(arithmetic, -(-moved_bytes * PS_PER_S // bytes_rate))


def stage_cost(
    shape: ModelShape,
    plan: ParallelismPlan,
    gpu: GpuModel,
    load: StepLoad,
    *,
    stage: int = 0,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    block_overhead_ps: int = BLOCK_OVERHEAD_PS,
    step_overhead_ps: int = 0,
) -> StepCost:
    """Return the compute time of one step on a rank of one pipeline stage.

    Parameters
    ----------
    shape, plan
        The model and how it is divided.
    gpu
        The GPU that each rank has.
    load
        What the step computes.
    stage
        Pipeline stage.
    dtype, kv_dtype
        Number formats of the weights and of the cache.
    block_overhead_ps
        Fixed time of each block in ps.
    step_overhead_ps
        Fixed time of the step in ps: scheduling and launches of the serving engine.

    Raises
    ------
    InputError
        The GPU has no rate for the number format of the arithmetic.
    """
    timer = StageTimer(
        shape,
        plan,
        gpu,
        stage=stage,
        dtype=dtype,
        kv_dtype=kv_dtype,
        block_overhead_ps=block_overhead_ps,
    )
    blocks, head_ps = timer.times(load)
    return StepCost(tuple(blocks[kind] for kind in timer.order), head_ps, step_overhead_ps)


class StageTimer:
    """Times step after step on a rank of one pipeline stage; see `stage_cost` for its parameters.

    Attributes
    ----------
    kinds
        The distinct layers of the stage.
    order
        For each layer of the stage, its number in ``kinds``.
    blocks
        What a layer of each kind does on a rank.
    """

    def __init__(
        self,
        shape: ModelShape,
        plan: ParallelismPlan,
        gpu: GpuModel,
        *,
        stage: int = 0,
        dtype: str | None = None,
        kv_dtype: str | None = None,
        block_overhead_ps: int = BLOCK_OVERHEAD_PS,
    ) -> None:
        layers = [shape.layers[i] for i in plan.stage_layers(shape.n_layers)[stage]]
        self.kinds = tuple(dict.fromkeys(layers))
        self.order = tuple(map(self.kinds.index, layers))
        self._shape, self._tp, self._gpu = shape, plan.tp, gpu
        self._last = stage == plan.pp - 1
        self._overhead_ps = block_overhead_ps
        fmt = storage_format(shape, dtype)
        self._plain = plain_bytes(shape, fmt)
        self._narrow, self._wide = arithmetic_formats(shape, gpu, dtype=dtype)
        self.blocks = [
            RankBlocks(
                layer,
                hidden=shape.hidden_size,
                tp=plan.tp,
                ep=plan.ep,
                expert_tp=1 if plan.ep > 1 and plan.ep_over_tp else plan.tp,
                members=plan.ep_members if plan.ep_over_tp else plan.ep,
                fmt=fmt,
                plain=self._plain,
                kv_element=kv_element_bytes(shape, kv_dtype),
            )
            for layer in self.kinds
        ]

    def works(self, load: StepLoad) -> list[tuple[BlockWork | None, BlockWork | None]]:
        """Return what the two parts of a layer of each kind do; None where it has no such part."""
        return [(blocks.mixing(load), blocks.feeding(load.tokens)) for blocks in self.blocks]

    def times(self, load: StepLoad) -> tuple[list[BlockCost], int]:
        """Return the cost of a layer of each kind, and of the output head in ps (0: no head)."""
        costs = [BlockCost(self.time(a), self.time(b)) for a, b in self.works(load)]
        return costs, self.time(self.head(load))

    def head(self, load: StepLoad) -> BlockWork | None:
        """Return what the output head does; None unless the stage is the last and has rows."""
        if not self._last or not load.logits_rows:
            return None
        return head_work(self._shape, load.logits_rows, tp=self._tp, plain=self._plain)

    def time(self, work: BlockWork | None) -> int:
        """Return what a block takes in ps, its fixed time included; 0 for none."""
        if work is None:
            return 0
        return self._overhead_ps + roofline_ps(
            flops=work.flops,
            moved_bytes=work.moved_bytes,
            gpu=self._gpu,
            dtype=self._narrow if work.narrow else self._wide,
        )


def arithmetic_formats(
    shape: ModelShape, gpu: GpuModel, *, dtype: str | None = None
) -> tuple[str, str]:
    """Return the number formats of arithmetic: with converted weights, and with all others.

    fp8 weights are multiplied in fp8 and nvfp4 weights in fp4 where the GPU can; mxfp4 and int4
    weights are converted back first, as is any format that the GPU has no arithmetic for. bf16 and
    fp16 stand for each other on a GPU that has only one of them.

    Parameters
    ----------
    shape
        The model.
    gpu
        What computes.
    dtype
        Storage of the weights instead of the checkpoint's.
    """
    fmt = storage_format(shape, dtype)
    wide: str = shape.dtype if is_quantized(fmt) else fmt
    if wide not in gpu.flops:
        wide = {"bf16": "fp16", "fp16": "bf16"}.get(wide, wide)
    narrow = {"fp8": "fp8", "fp8-tensor": "fp8", "nvfp4": "fp4"}.get(fmt, wide)
    return (narrow if narrow in gpu.flops else wide), wide
