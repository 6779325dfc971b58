# SPDX-License-Identifier: Apache-2.0
"""One training step as a graph: passes of micro-batches, messages between stages, gradients.

The last backward pass of each chunk is divided into its layers, so that each bucket of gradients
goes off as soon as its last layer is done.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from railweave.workloads.ops import TrafficOp, collective
from railweave.workloads.optimizer import (
    bucket_elements,
    buckets,
    data_parallel_ops,
)
from railweave.workloads.pipeline_schedules import Pass, pipeline_order, previous_pass
from railweave.workloads.replay.step_graph import StepGraph, Task
from railweave.workloads.replay.training_layers import TrainingLayers
from railweave.workloads.shares import (
    Parameters,
    layer_parameters,
    outer_parameters,
)
from railweave.workloads.step_layers import Busy, Lane, free_ps
from railweave.workloads.training import boundary_ops
from railweave.workloads.works import Work

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


__all__ = ["TrainingStep"]


@dataclass(frozen=True, eq=False)
class TrainingStep(TrainingLayers):
    """Makes the tasks of a step.

    Parameters
    ----------
    shape, plan, style, gpu, compute
        As for `TrainingLayers`.
    lanes
        Replicas that run together; every replica in one of them.
    bucket
        Elements of a bucket of gradients; None: Megatron-LM's default.
    overlap
        Whether gradients are summed while the last backward pass still runs.
    """

    lanes: Sequence[Lane]
    bucket: int | None = None
    overlap: bool = True

    # ------------------------------------------------------------------ passes
    @lru_cache(maxsize=4096)  # noqa: B019 - a step lives as long as its cache
    def _pass(self, lane: int, stage: int, chunk: int, kind: str) -> tuple[tuple[Work, ...], int]:
        """Return the parts of a whole pass, and what they take without communication."""
        order = [self.order[i] for i in self.parts[stage][chunk]]
        one = self.lanes[lane]
        if kind == "weights":
            times, head_ps = self.forward_ps
            compute = sum(sum(times[k]) for k in order)
            if stage == self.plan.pp - 1 and chunk == self.style.chunks - 1:
                compute += head_ps
            return one.works([Busy(compute)], stage), compute
        if kind == "backward":
            order.reverse()
        kinds = self.layers(stage, chunk, kind)
        before, after = self.ends(stage, chunk, kind)
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
        order = [self.order[i] for i in self.parts[stage][chunk]]
        if kind == "backward":
            order.reverse()
        kinds = self.layers(stage, chunk, kind)
        before, after = self.ends(stage, chunk, kind)
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
        layers = [self.shape.layers[i] for i in reversed(self.parts[stage][chunk])]
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
