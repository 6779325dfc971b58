# SPDX-License-Identifier: Apache-2.0
"""Compute time of a step by the roofline model, block by block.

A block (attention, feed-forward, output head) takes the longer of its arithmetic and its memory
traffic (Williams, Waterman and Patterson, "Roofline", CACM 2009):

``t = max(flops / (F * eff_compute), (weights read + cache read and written) / (B * eff_memory))``

Arithmetic is two operations per weight that a token meets and four per query head, head element
and attended position. Activations between fused kernels are left out: they are small beside the
weights in decode and beside the arithmetic in prefill. The input table is looked up, not read.
Experts' weights are read if any token of the step visits them, under uniform routing.

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
from railweave.workloads.shapes import kv_element_bytes, plain_bytes
from railweave.workloads.shapes_model import LatentAttention, MoeFeedForward
from railweave.workloads.shapes_weights import (
    Split,
    Store,
    Weight,
    attention_weights,
    feed_forward_weights,
    head_weights,
    storage_format,
    stored_bytes,
)
from railweave.workloads.step_load import StepLoad

if TYPE_CHECKING:
    from collections.abc import Iterable

    from railweave.fabric.devices import GpuModel
    from railweave.workloads.parallelism import ParallelismPlan
    from railweave.workloads.shapes_model import Attention, FeedForward, ModelShape

__all__ = [
    "BLOCK_OVERHEAD_PS",
    "BlockCost",
    "StageTimer",
    "StepCost",
    "StepLoad",
    "experts_visited",
    "roofline_ps",
    "stage_cost",
]

BLOCK_OVERHEAD_PS: Final = 3_000_000


@dataclass(frozen=True)
class BlockCost:
    """Time of the two blocks of a layer in ps; tensor parallelism puts an all_reduce after each."""

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


def experts_visited(tokens: int, experts: int, top_k: int) -> int:
    """Return the expected number of distinct experts that ``tokens`` visit, rounded up.

    ``E (1 - (1 - k/E)^T)``, each token drawing k of E distinct experts uniformly.

    Examples
    --------
    >>> experts_visited(1, 128, 8), experts_visited(10_000, 128, 8)
    (8, 128)
    """
    # Repeated squaring in whole numbers of 2**-60: the same on every machine, unlike pow().
    one = 1 << 60
    missed, base, power = one, (experts - top_k) * one // experts, tokens
    while power:
        if power & 1:
            missed = missed * base >> 60
        base = base * base >> 60
        power >>= 1
    return min(-(-experts * (one - missed) // one), experts, tokens * top_k)


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
        self._shape = shape
        self._last = stage == plan.pp - 1
        fmt = storage_format(shape, dtype)
        self._unit = _Unit(
            hidden=shape.hidden_size,
            tp=plan.tp,
            fmt=fmt,
            plain=plain_bytes(shape, fmt),
            kv_element=kv_element_bytes(shape, kv_dtype),
            # fp8 weights are multiplied in fp8, mxfp4 experts after conversion to bf16.
            arithmetic="fp8" if fmt == "fp8" and "fp8" in gpu.flops else _wide(shape, fmt, gpu),
            wide=_wide(shape, fmt, gpu),
            gpu=gpu,
            overhead_ps=block_overhead_ps,
        )
        self._attention = [self._unit.attention_part(layer.attention) for layer in self.kinds]
        self._feed_forward = [
            self._unit.feed_forward_part(layer.feed_forward) for layer in self.kinds
        ]

    def times(self, load: StepLoad) -> tuple[list[BlockCost], int]:
        """Return the cost of a layer of each kind, and of the output head in ps (0: no head)."""
        unit = self._unit
        blocks = [
            BlockCost(
                unit.attention(layer.attention, attention, load),
                unit.feed_forward(layer.feed_forward, feed_forward, load.tokens),
            )
            for layer, attention, feed_forward in zip(
                self.kinds, self._attention, self._feed_forward, strict=True
            )
        ]
        head_ps = unit.head(self._shape, load.logits_rows) if self._last and load.logits_rows else 0
        return blocks, head_ps


def _wide(shape: ModelShape, fmt: str, gpu: GpuModel) -> str:
    """Return the format of unquantised arithmetic; fp16 and bf16 run at one rate where both do."""
    wide = shape.dtype if fmt in ("fp8", "mxfp4") else fmt
    return "bf16" if wide == "fp16" and "fp16" not in gpu.flops else wide


@dataclass(frozen=True)
class _Part:
    """What a block does whatever the load: its weights on this rank.

    ``matrices`` elements meet every token and ``moved_bytes`` are read in every step; a routed
    expert has ``expert`` elements, all of them together ``expert_bytes``.
    """

    matrices: int
    moved_bytes: int
    expert: int = 0
    expert_bytes: int = 0


@dataclass(frozen=True)
class _Unit:
    """One rank: times single blocks."""

    hidden: int
    tp: int
    fmt: str
    plain: int
    kv_element: int
    arithmetic: str
    wide: str
    gpu: GpuModel
    overhead_ps: int

    def _bytes(self, weights: Iterable[Weight]) -> int:
        return stored_bytes(weights, fmt=self.fmt, plain=self.plain, tp=self.tp)

    def _time(self, flops: int, moved_bytes: int, *, dtype: str) -> int:
        time_ps = roofline_ps(flops=flops, moved_bytes=moved_bytes, gpu=self.gpu, dtype=dtype)
        return time_ps + self.overhead_ps

    def attention_part(self, attention: Attention) -> _Part:
        weights = (Weight("norm", 1, self.hidden), *attention_weights(attention, self.hidden))
        matrices = sum(_local(w, self.tp) for w in weights if w.store is Store.LINEAR)
        return _Part(matrices, self._bytes(weights))

    def attention(self, attention: Attention, part: _Part, load: StepLoad) -> int:
        flops = 2 * part.matrices * load.tokens + self._score_flops(attention, load)
        moved = part.moved_bytes + self._cache_bytes(attention, load)
        return self._time(flops, moved, dtype=self.arithmetic)

    def _score_flops(self, attention: Attention, load: StepLoad) -> int:
        """Return the operations of scores and weighted values on this rank."""
        heads = attention.heads // self.tp
        if not isinstance(attention, LatentAttention):
            return 4 * heads * attention.head_dim * load.attended(attention.window)
        # DeepSeek-V2 (arXiv 2405.04434): a single new token attends in the latent space, with the
        # up-projection absorbed; longer pieces expand keys and values first.
        latent = 2 * attention.kv_lora_rank + attention.rope_dim
        expanded = attention.nope_dim + attention.rope_dim + attention.v_dim
        pairs = latent * load.attended(None, single=True)
        pairs += expanded * load.attended(None, single=False)
        return 2 * heads * pairs

    def _cache_bytes(self, attention: Attention, load: StepLoad) -> int:
        """Return the cache bytes that this rank reads or writes, each position once."""
        shares = 1
        if not isinstance(attention, LatentAttention):
            shares = min(self.tp, attention.kv_heads)
        position = attention.kv_elements * self.kv_element // shares
        return position * load.cached(attention.window)

    def feed_forward_part(self, block: FeedForward) -> _Part:
        weights = (Weight("norm", 1, self.hidden), *feed_forward_weights(block, self.hidden))
        routed = [w for w in weights if w.name.startswith("experts")]
        common = [w for w in weights if not w.name.startswith("experts")]
        matrices = sum(_local(w, self.tp) for w in common if w.rows > 1)
        if not isinstance(block, MoeFeedForward):
            return _Part(matrices, self._bytes(common))
        expert = sum(_local(w, self.tp) for w in routed if w.rows > 1) // block.experts
        return _Part(matrices, self._bytes(common), expert, self._bytes(routed))

    def feed_forward(self, block: FeedForward, part: _Part, tokens: int) -> int:
        matrices, moved = part.matrices, part.moved_bytes
        if isinstance(block, MoeFeedForward):
            visited = experts_visited(tokens, block.experts, block.top_k)
            moved += part.expert_bytes * visited // block.experts
            matrices += block.top_k * part.expert
        return self._time(2 * matrices * tokens, moved, dtype=self.arithmetic)

    def head(self, shape: ModelShape, rows: int) -> int:
        """Return the time of the output head, which stays in the wide format."""
        table = Weight("head", shape.hidden_size, shape.vocab_size, 1, Split.OUT)
        norms = [w for w in head_weights(shape) if w.rows == 1]
        flops = 2 * _local(table, self.tp) * rows
        return self._time(flops, self._bytes([table, *norms]), dtype=self.wide)


def _local(weight: Weight, tp: int) -> int:
    rows, columns = weight.local(tp)
    return rows * columns * weight.count
