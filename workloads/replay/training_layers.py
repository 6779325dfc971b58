# SPDX-License-Identifier: Apache-2.0
"""What passes of a training step are made of: arithmetic, and the operations between blocks.

Within a layer arithmetic and tensor-parallel collectives take turns; keys and values that go round
a ring do so under cover of attention. A backward pass takes twice the arithmetic of a forward pass
(Narayanan et al., arXiv 2104.04473, section 3.1): gradients of the input and of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from railweave.workloads.compute import BLOCK_OVERHEAD_PS, StageTimer, StepLoad, roofline_ps
from railweave.workloads.context import context_ops
from railweave.workloads.expert_compute import expert_block_ps
from railweave.workloads.ops import collective
from railweave.workloads.optimizer import update_bytes
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.shapes_model import MoeFeedForward
from railweave.workloads.shares import chunk_layers, stage_parameters
from railweave.workloads.step_layers import Busy, Covered, Item

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.fabric.devices import GpuModel
    from railweave.workloads.shapes_model import LayerShape, ModelShape
    from railweave.workloads.training import TrainingStyle

__all__ = ["TrainingLayers"]

_FP32 = 4


@dataclass(frozen=True, eq=False)
class TrainingLayers:
    """Makes the parts of passes.

    Parameters
    ----------
    shape, plan, style
        The model, how it is divided and trained.
    gpu
        What each rank has.
    compute
        Whether arithmetic takes time.
    """

    shape: ModelShape
    plan: ParallelismPlan
    style: TrainingStyle
    gpu: GpuModel
    compute: bool = field(default=True, kw_only=True)

    @cached_property
    def parts(self) -> list[list[range]]:
        """The layers of each chunk of each stage."""
        return chunk_layers(self.shape, self.plan, chunks=self.style.chunks)

    @cached_property
    def kinds(self) -> tuple[LayerShape, ...]:
        """The kinds of layers that the model has."""
        return tuple(dict.fromkeys(self.shape.layers))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The kind of each layer of the model."""
        number = {kind: i for i, kind in enumerate(self.kinds)}
        return tuple(number[layer] for layer in self.shape.layers)

    # ------------------------------------------------------------------ compute
    @cached_property
    def forward_ps(self) -> tuple[list[tuple[int, int]], int]:
        """Times of attention and feed-forward of each kind of layer, and of the head."""
        if not self.compute:
            return [(0, 0)] * len(self.kinds), 0
        style, plan = self.style, self.plan
        timer = StageTimer(self.shape, ParallelismPlan(tp=plan.tp), self.gpu, dtype=style.dtype)
        new = style.sequence // plan.cp
        # As many (token, position) pairs as an even share of causal attention has.
        one = (new, (style.sequence - new) // 2)
        load = StepLoad((one,) * style.micro_batch_size, rows=style.tokens(plan))
        blocks, head_ps = timer.times(load)
        by_kind = dict(zip(timer.kinds, blocks, strict=True))
        times = []
        for kind in self.kinds:
            block = kind.feed_forward
            feed_forward_ps = by_kind[kind].feed_forward_ps
            if plan.ep > 1 and isinstance(block, MoeFeedForward):
                feed_forward_ps = expert_block_ps(
                    self.shape, block, plan, self.gpu, tokens=style.tokens(plan),
                    group_tokens=style.tokens(plan) * plan.ep, dtype=style.dtype,
                    overhead_ps=BLOCK_OVERHEAD_PS,
                )  # fmt: skip
            times.append((by_kind[kind].attention_ps, feed_forward_ps))
        return times, head_ps

    def pass_times(self) -> list[list[dict[str, int]]]:
        """Return the arithmetic of each kind of pass, by stage and chunk, in ps."""
        times, head_ps = self.forward_ps
        again = self.style.recompute == "full"
        found: list[list[dict[str, int]]] = []
        for stage, chunks in enumerate(self.parts):
            found.append([])
            for chunk, layers in enumerate(chunks):
                body = sum(sum(times[self.order[i]]) for i in layers)
                last = stage == self.plan.pp - 1 and chunk == self.style.chunks - 1
                whole = body + (head_ps if last else 0)
                back = self._backward_times() * whole + (body if again else 0)
                found[-1].append({"forward": whole, "backward": back, "weights": whole})
        return found

    def update_ps(self, stage: int) -> int:
        """Return the time of the optimizer on a stage: it moves memory."""
        if not self.compute:
            return 0
        style = self.style
        held = stage_parameters(self.shape, self.plan, stage, chunks=style.chunks)
        moved = update_bytes(
            held, self.plan, zero=style.zero, gradient_bytes=style.gradient_bytes,
            element=style.element,
        )  # fmt: skip
        return roofline_ps(flops=0, moved_bytes=moved, gpu=self.gpu)

    # ------------------------------------------------------------------ items
    @cached_property
    def _whole(self) -> int:
        return self.style.tokens(self.plan) * self.shape.hidden_size * self.style.element

    def _tp(self, op: str, stage: int, *, count: int = 1, size: int | None = None) -> list[Item]:
        size = self._whole if size is None else size
        return list(collective(op, "tp", self.plan.tp, size, count=count, stage=stage))

    def _around(self, phase: str, stage: int, busy: Sequence[Item]) -> list[Item]:
        """Put what tensor parallelism does around a block."""
        if not self.style.scattered(self.plan):
            return [*busy, *self._tp("all_reduce", stage)]
        gathers = 2 if phase == "backward" else 1
        return [
            *self._tp("all_gather", stage, count=gathers), *busy,
            *self._tp("reduce_scatter", stage),
        ]  # fmt: skip

    def _mixing(self, kind: LayerShape, phase: str, stage: int, time_ps: int) -> list[Item]:
        """Return attention with what divides its sequences."""
        ops = list(
            context_ops(
                [kind], self.plan, self.style.context,
                tokens=self.style.tokens(self.plan) * self.plan.cp, element=self.style.element,
                stage=stage, phase=phase,
            )
        )  # fmt: skip
        if not ops:
            return [Busy(time_ps)]
        if self.style.context == "ring":
            return [Covered(ops[0], time_ps)]
        after = [op for op in ops if op.what.startswith(("attention", "gradients"))]
        return [*(op for op in ops if op not in after), Busy(time_ps), *after]

    def _experts(self, block: MoeFeedForward, phase: str, stage: int, busy: Busy) -> list[Item]:
        """Return a block of experts that all_to_alls reach."""
        plan, routed = self.plan, self._whole * block.top_k
        (there,) = collective("all_to_all", "ep", plan.ep, routed // plan.tp, stage=stage)
        # Backward the gradient of a combine is a dispatch, and the other way round.
        del phase
        return [
            there, *self._tp("all_gather", stage, size=routed), busy,
            *self._tp("reduce_scatter", stage, size=routed), there,
        ]  # fmt: skip

    def layer_items(self, kind: int, phase: str, stage: int, *, times: int = 1) -> list[Item]:
        """Return a layer's blocks and collectives; ``times``: of the forward arithmetic."""
        layer = self.kinds[kind]
        mixing_ps, feed_ps = (t * times for t in self.forward_ps[0][kind])
        block = layer.feed_forward
        by_experts = self.plan.ep > 1 and isinstance(block, MoeFeedForward)
        if layer.parallel and not by_experts:
            return self._around(
                phase, stage, [*self._mixing(layer, phase, stage, mixing_ps), Busy(feed_ps)]
            )
        blocks: list[list[Item]] = []
        if layer.attention is not None or layer.mixer is not None:
            both = layer.attention is not None and layer.mixer is not None and not layer.parallel
            blocks.append(self._around(phase, stage, self._mixing(layer, phase, stage, mixing_ps)))
            if both:
                blocks.append(self._around(phase, stage, []))
        if by_experts:
            assert isinstance(block, MoeFeedForward)
            blocks.append(self._experts(block, phase, stage, Busy(feed_ps)))
        elif block is not None:
            blocks.append(self._around(phase, stage, [Busy(feed_ps)]))
        ordered = reversed(blocks) if phase == "backward" else blocks
        return [item for items in ordered for item in items]

    def _backward_times(self) -> int:
        """Return how many times the forward arithmetic a backward pass does."""
        return 1 if self.style.schedule == "zero-bubble" else 2

    def layers(self, stage: int, chunk: int, phase: str) -> list[list[Item]]:
        """Return the items of each kind of layer in a pass."""
        if phase == "forward":
            return [self.layer_items(k, phase, stage) for k in range(len(self.kinds))]
        again = self.style.recompute == "full"
        return [
            [
                *(self.layer_items(k, "recompute", stage) if again else []),
                *self.layer_items(k, "backward", stage, times=self._backward_times()),
            ]
            for k in range(len(self.kinds))
        ]

    def ends(self, stage: int, chunk: int, phase: str) -> tuple[list[Item], list[Item]]:
        """Return what comes before the layers of a pass and what after them."""
        scattered = self.style.scattered(self.plan)
        first = stage == 0 and chunk == 0
        last = stage == self.plan.pp - 1 and chunk == self.style.chunks - 1
        head_ps = self.forward_ps[1]
        before: list[Item] = []
        after: list[Item] = []
        if phase == "forward":
            if first:
                before = self._tp("reduce_scatter" if scattered else "all_reduce", stage)
            if last:
                loss = self.style.tokens(self.plan) * _FP32
                gather = self._tp("all_gather", stage) if scattered else []
                after = [
                    *gather, Busy(head_ps), *self._tp("all_reduce", stage, count=3, size=loss)
                ]  # fmt: skip
            return before, after
        if last:
            busy = Busy(self._backward_times() * head_ps)
            before = [busy, *self._tp("all_reduce", stage)]
            if scattered:
                before = [
                    *self._tp("all_gather", stage), busy, *self._tp("reduce_scatter", stage)
                ]  # fmt: skip
        if first and scattered:
            after = self._tp("all_gather", stage)
        return before, after
