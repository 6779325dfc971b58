# SPDX-License-Identifier: Apache-2.0
"""One training step as a graph: passes of micro-batches, messages between stages, gradients.

Within a layer arithmetic and tensor-parallel collectives take turns; keys and values that go round
a ring do so under cover of attention. A backward pass takes twice the arithmetic of a forward pass
(Narayanan et al., arXiv 2104.04473, section 3.1): gradients of the input and of the weights. The
last backward pass of each chunk is divided into its layers, so that each bucket of gradients goes
off as soon as its last layer is done.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from railweave.workloads.compute import BLOCK_OVERHEAD_PS, StageTimer, StepLoad, roofline_ps
from railweave.workloads.context import context_ops
from railweave.workloads.expert_compute import expert_block_ps
from railweave.workloads.ops import TrafficOp, collective
from railweave.workloads.optimizer import (
    bucket_elements,
    buckets,
    data_parallel_ops,
    update_bytes,
)
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.pipeline_schedules import Pass, pipeline_order, previous_pass
from railweave.workloads.replay.layers import Busy, Covered, Item, Lane, free_ps
from railweave.workloads.replay.step_graph import StepGraph, Task
from railweave.workloads.serving.steps import Work
from railweave.workloads.shapes_model import MoeFeedForward
from railweave.workloads.shares import (
    Parameters,
    chunk_layers,
    layer_parameters,
    outer_parameters,
    stage_parameters,
)
from railweave.workloads.training import boundary_ops

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from railweave.fabric.devices import GpuModel
    from railweave.workloads.shapes_model import LayerShape, ModelShape
    from railweave.workloads.training import TrainingStyle

__all__ = ["TrainingStep"]

_FP32 = 4


@dataclass(frozen=True, eq=False)
class TrainingStep:
    """Makes the tasks of a step.

    Parameters
    ----------
    shape, plan, style
        The model, how it is divided and trained.
    gpu
        What each rank has.
    lanes
        Replicas that run together; every replica in one of them.
    bucket
        Elements of a bucket of gradients; None: Megatron-LM's default.
    overlap
        Whether gradients are summed while the last backward pass still runs.
    compute
        Whether arithmetic takes time.
    """

    shape: ModelShape
    plan: ParallelismPlan
    style: TrainingStyle
    gpu: GpuModel
    lanes: Sequence[Lane]
    bucket: int | None = None
    overlap: bool = True
    compute: bool = True

    @cached_property
    def _parts(self) -> list[list[range]]:
        return chunk_layers(self.shape, self.plan, chunks=self.style.chunks)

    @cached_property
    def _kinds(self) -> tuple[LayerShape, ...]:
        return tuple(dict.fromkeys(self.shape.layers))

    @cached_property
    def _order(self) -> tuple[int, ...]:
        """The kind of each layer of the model."""
        number = {kind: i for i, kind in enumerate(self._kinds)}
        return tuple(number[layer] for layer in self.shape.layers)

    # ------------------------------------------------------------------ compute
    @cached_property
    def _forward_ps(self) -> tuple[list[tuple[int, int]], int]:
        """Times of attention and feed-forward of each kind of layer, and of the head."""
        if not self.compute:
            return [(0, 0)] * len(self._kinds), 0
        style, plan = self.style, self.plan
        timer = StageTimer(self.shape, ParallelismPlan(tp=plan.tp), self.gpu, dtype=style.dtype)
        new = style.sequence // plan.cp
        # As many (token, position) pairs as an even share of causal attention has.
        one = (new, (style.sequence - new) // 2)
        load = StepLoad((one,) * style.micro_batch_size, rows=style.tokens(plan))
        blocks, head_ps = timer.times(load)
        by_kind = dict(zip(timer.kinds, blocks, strict=True))
        times = []
        for kind in self._kinds:
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
        times, head_ps = self._forward_ps
        again = self.style.recompute == "full"
        found: list[list[dict[str, int]]] = []
        for stage, chunks in enumerate(self._parts):
            found.append([])
            for chunk, layers in enumerate(chunks):
                body = sum(sum(times[self._order[i]]) for i in layers)
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
        layer = self._kinds[kind]
        mixing_ps, feed_ps = (t * times for t in self._forward_ps[0][kind])
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

    def _layers(self, stage: int, chunk: int, phase: str) -> list[list[Item]]:
        """Return the items of each kind of layer in a pass."""
        if phase == "forward":
            return [self.layer_items(k, phase, stage) for k in range(len(self._kinds))]
        again = self.style.recompute == "full"
        return [
            [
                *(self.layer_items(k, "recompute", stage) if again else []),
                *self.layer_items(k, "backward", stage, times=self._backward_times()),
            ]
            for k in range(len(self._kinds))
        ]

    def _ends(self, stage: int, chunk: int, phase: str) -> tuple[list[Item], list[Item]]:
        """Return what comes before the layers of a pass and what after them."""
        scattered = self.style.scattered(self.plan)
        first = stage == 0 and chunk == 0
        last = stage == self.plan.pp - 1 and chunk == self.style.chunks - 1
        head_ps = self._forward_ps[1]
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

    # ------------------------------------------------------------------ passes
    @lru_cache(maxsize=4096)  # noqa: B019 - a step lives as long as its cache
    def _pass(self, lane: int, stage: int, chunk: int, kind: str) -> tuple[tuple[Work, ...], int]:
        """Return the parts of a whole pass, and what they take without communication."""
        order = [self._order[i] for i in self._parts[stage][chunk]]
        one = self.lanes[lane]
        if kind == "weights":
            times, head_ps = self._forward_ps
            compute = sum(sum(times[k]) for k in order)
            if stage == self.plan.pp - 1 and chunk == self.style.chunks - 1:
                compute += head_ps
            return one.works([Busy(compute)], stage), compute
        if kind == "backward":
            order.reverse()
        kinds = self._layers(stage, chunk, kind)
        before, after = self._ends(stage, chunk, kind)
        works = (
            *one.works(before, stage), *one.layer_works(kinds, order, stage),
            *one.works(after, stage),
        )  # fmt: skip
        compute = free_ps(before) + free_ps(after) + sum(free_ps(kinds[k]) for k in order)
        return works, compute

    @lru_cache(maxsize=4096)  # noqa: B019 - a step lives as long as its cache
    def pieces(
        self, lane: int, stage: int, chunk: int, kind: str
    ) -> tuple[tuple[tuple[Work, ...], int], ...]:
        """Return a pass layer by layer: what comes before them goes with the first of them."""
        order = [self._order[i] for i in self._parts[stage][chunk]]
        if kind == "backward":
            order.reverse()
        kinds = self._layers(stage, chunk, kind)
        before, after = self._ends(stage, chunk, kind)
        found = []
        known: dict[tuple[int, bool, bool], tuple[tuple[Work, ...], int]] = {}
        for place, number in enumerate(order):
            first, last = place == 0, place == len(order) - 1
            if (number, first, last) not in known:
                items = [*(before if first else ()), *kinds[number], *(after if last else ())]
                works = self.lanes[lane].works(items, stage)
                known[number, first, last] = (works, free_ps(items))
            found.append(known[number, first, last])
        return tuple(found)

    # ------------------------------------------------------------------ gradients
    def _gradient_parts(self, stage: int, chunk: int) -> list[Parameters]:
        """Return what becomes ready with each layer of a backward pass, in its order."""
        layers = [self.shape.layers[i] for i in reversed(self._parts[stage][chunk])]
        parts = [layer_parameters(x, self.shape.hidden_size, self.plan) for x in layers]
        last = stage == self.plan.pp - 1 and chunk == self.style.chunks - 1
        if stage == 0 and chunk == 0:
            # All outer parameters of the first stage with its last layer; where it is the last
            # stage too, the head's are ready earlier, and wait.
            parts[-1] += outer_parameters(self.shape, self.plan, stage)
        elif last:
            parts[0] += outer_parameters(self.shape, self.plan, stage)
        return parts

    def _bucketed(self, stage: int, chunk: int) -> Iterator[tuple[int, list[TrafficOp]]]:
        """Yield the operations of each bucket and the piece of the backward pass before it."""
        parts = self._gradient_parts(stage, chunk)
        replicas = self.plan.dp * self.plan.cp
        shared = self.plan.ep > 1
        columns = [([p.dense if shared else p.total for p in parts], replicas, False)]
        if shared:
            columns.append(([p.experts for p in parts], replicas // self.plan.ep, True))
        for sizes, n, experts in columns:
            for elements, piece in buckets(sizes, self.bucket or bucket_elements(n)):
                held = Parameters(0, elements) if experts else Parameters(elements)
                yield piece, list(
                    data_parallel_ops(
                        held, self.plan, stage=stage, zero=self.style.zero,
                        gradient_bytes=self.style.gradient_bytes, element=self.style.element,
                    )
                )  # fmt: skip

    def everyone(self) -> Lane:
        """Return all replicas together."""
        first = self.lanes[0]
        members = tuple(m for lane in self.lanes for m in lane.members)
        return replace(first, members=members) if len(self.lanes) > 1 else first

    def collective(self, op: TrafficOp, name: str, axis: str) -> Task:
        """Return an operation of a whole stage as a task."""
        lane = self.everyone()
        stages = (0, self.plan.pp - 1) if op.axis == "embedding" else (op.stage,)
        ranks = lane.ranks(*stages)
        found = lane.schedule(op, ranks)
        devices = tuple(lane.devices[r] for r in ranks)
        works = (Work(devices, found),) if found is not None else ()
        return Task(f"{name} stage {op.stage}", op.stage, axis, works)

    # ------------------------------------------------------------------ the graph
    def graph(self) -> StepGraph:
        """Return the step."""
        if self.style.zero == 3:
            from railweave.workloads.replay.sharded_graph import sharded_graph

            return sharded_graph(self)
        graph = StepGraph()
        ends = [self._pipeline(graph, lane) for lane in range(len(self.lanes))]
        for stage in range(self.plan.pp):
            self._finish(graph, stage, ends)
        return graph

    def _pipeline(self, graph: StepGraph, lane: int) -> dict[tuple[int, int], list[int]]:
        """Add the passes of some replicas; return the pieces of the last backward passes.

        Keys are stage and chunk; the last entry of each is the last pass of all.
        """
        plan, style = self.plan, self.style
        order = pipeline_order(
            style.schedule, stages=plan.pp, micro_batches=style.micro_batches, chunks=style.chunks
        )
        done: dict[tuple[int, Pass], int] = {}
        begun: dict[tuple[int, Pass], int] = {}
        last: dict[tuple[int, int], list[int]] = {}
        for stage, passes in enumerate(order):
            previous: int | None = None
            for step in passes:
                name = f"{step.kind} {step.micro_batch} stage {stage}"
                final = step.kind == "backward" and step.micro_batch == style.micro_batches - 1
                split = final and self.overlap and plan.dp * plan.cp > 1
                split = split and style.schedule != "zero-bubble"  # weights come later
                parts: Sequence[tuple[tuple[Work, ...], int]] = (
                    self.pieces(lane, stage, step.chunk, step.kind)
                    if split
                    else (self._pass(lane, stage, step.chunk, step.kind),)
                )
                pieces: list[int] = []
                for works, compute in parts:
                    computing = Task(name, stage, "compute", works, compute, lane)
                    previous = graph.add(computing, (previous,))
                    pieces.append(previous)
                begun[stage, step], done[stage, step] = pieces[0], pieces[-1]
                if step.kind != "forward":
                    # weight gradients come after those of the input, so the last pass counts
                    last[stage, step.chunk] = pieces
        # A message for each edge between stages, begun when its pass ends.
        for (stage, step), task in begun.items():
            needs = previous_pass(stage, step, stages=plan.pp, chunks=style.chunks)
            if needs is None:
                continue
            before = done[needs]
            if needs[0] != stage:
                works = self._sends(lane, needs[0], step.kind)
                what = f"{step.kind} {step.micro_batch} to stage {stage}"
                sending = Task(what, needs[0], "pp", works, lane=lane)
                before = graph.add(sending, (before,))
            graph.wait(task, before)
        return last

    @lru_cache(maxsize=1024)  # noqa: B019 - a step lives as long as its cache
    def _sends(self, lane: int, stage: int, phase: str) -> tuple[Work, ...]:
        ops = [
            op for op in boundary_ops(self.shape, self.plan, self.style, stage) if op.phase == phase
        ]
        return self.lanes[lane].send_works([replace(ops[0], count=1)])

    def _finish(
        self,
        graph: StepGraph,
        stage: int,
        ends: Sequence[dict[tuple[int, int], list[int]]],
    ) -> None:
        """Add gradients, the optimizer and the new parameters of a stage."""
        style, plan = self.style, self.plan
        last = [pieces[-1] for end in ends for (at, _), pieces in end.items() if at == stage]
        summed: list[int] = []
        gathers: list[TrafficOp] = []
        previous: int | None = None
        for chunk in reversed(range(style.chunks)):
            for piece, ops in self._bucketed(stage, chunk):
                ready = [end[stage, chunk][min(piece, len(end[stage, chunk]) - 1)] for end in ends]
                for op in ops:
                    if op.phase == "parameters":
                        gathers.append(op)
                        continue
                    task = self.collective(op, "gradients", "dp")
                    waits = ready if self.overlap else last
                    previous = graph.add(task, (previous, *waits))
                    summed.append(previous)
        if self.shape.tied and plan.pp > 1 and stage in (0, plan.pp - 1):
            summed.append(self._tied(graph, ends))
        update_ps = self.update_ps(stage)
        works = self.everyone().works([Busy(update_ps)], stage)
        update = graph.add(
            Task(f"optimizer stage {stage}", stage, "compute", works, update_ps), (*last, *summed)
        )
        for op in gathers:
            update = graph.add(self.collective(op, "parameters", "dp"), (update,))

    def _tied(self, graph: StepGraph, ends: Sequence[dict[tuple[int, int], list[int]]]) -> int:
        """Add the sum of the tied table's gradients, once, and return its task."""
        for number, task in enumerate(graph.tasks):
            if task.axis == "embedding":
                return number
        ops: list[Any] = list(
            collective(
                "all_reduce", "embedding", 2,
                self.shape.vocab_size * self.shape.hidden_size // self.plan.tp
                * self.style.gradient_bytes,
                stage=0,
            )
        )  # fmt: skip
        after = [pieces[-1] for end in ends for (at, _), pieces in end.items()
                 if at in (0, self.plan.pp - 1)]  # fmt: skip
        return graph.add(self.collective(ops[0], "tied table", "embedding"), after)
