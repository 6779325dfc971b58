# SPDX-License-Identifier: Apache-2.0
"""Inference steps as a graph: micro-batches through stages, token ids back to the first.

As many micro-batches are under way as there are stages (vLLM's virtual engines): each is a batch of
its own, and a decode step of all requests is one turn of them all. In a prefill the prompts pass
once. Replicas with experts in common wait for each other at every layer of experts: what their
slowest computes, all of them take.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from railweave.workloads.compute import BLOCK_OVERHEAD_PS, StageTimer, StepLoad
from railweave.workloads.expert_compute import expert_block_ps
from railweave.workloads.inference import StepOps, padded_tokens
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.replay.step_graph import StepGraph, Task
from railweave.workloads.replay.step_report import Turn
from railweave.workloads.shapes_model import MoeFeedForward, dtype_bytes
from railweave.workloads.step_layers import Busy, Item, Lane, free_ps, layer_items, together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.fabric.devices import GpuModel
    from railweave.workloads.inference import StepStyle
    from railweave.workloads.ops import TrafficOp
    from railweave.workloads.shapes_model import LayerShape, ModelShape
    from railweave.workloads.works import Work

__all__ = ["InferenceStep", "shared_out"]

_ROUNDS = 3  # the last of them is a turn like all that follow


def shared_out(total: int, parts: int) -> list[int]:
    """Return ``total`` in equal parts, the first ones larger by one.

    Examples
    --------
    >>> shared_out(10, 4)
    [3, 3, 2, 2]
    """
    each, more = divmod(total, parts)
    return [each + (i < more) for i in range(parts)]


@dataclass(frozen=True, eq=False)
class InferenceStep:
    """Makes the tasks of a step.

    Parameters
    ----------
    shape, plan, style
        The model, how it is divided, how the engine runs it.
    gpu
        What each rank has.
    lanes
        Replicas that run together; every replica in one of them.
    phase
        ``prefill`` or ``decode``.
    batch
        Requests in all.
    context_tokens
        Tokens of each prompt, or tokens that are cached of each request.
    dtype, kv_dtype
        Number formats of the weights and of the cache, None: the checkpoint's.
    compute
        Whether arithmetic takes time.
    """

    shape: ModelShape
    plan: ParallelismPlan
    style: StepStyle
    gpu: GpuModel
    lanes: Sequence[Lane]
    phase: str
    batch: int
    context_tokens: int
    dtype: str | None = None
    kv_dtype: str | None = None
    compute: bool = True

    @cached_property
    def micro_batches(self) -> list[list[int]]:
        """Requests of each replica in each micro-batch that has any."""
        members = shared_out(self.batch, self.plan.dp)
        split = [shared_out(requests, self.plan.pp) for requests in members]
        return [list(one) for one in zip(*split, strict=True) if any(one)]

    @cached_property
    def element(self) -> int:
        """Bytes of an activation."""
        return dtype_bytes(self.shape.dtype)

    def tokens(self, requests: Sequence[int]) -> list[int]:
        """Return the tokens that so many requests have in a step."""
        each = self.context_tokens if self.phase == "prefill" else 1
        return [n * each for n in requests]

    def parts(self, requests: Sequence[int]) -> StepOps:
        """Return the operations of a micro-batch."""
        given = self.tokens(requests)
        padded = padded_tokens(given, self.plan, self.style)
        return StepOps(self.shape, self.plan, self.style, self.element, padded)

    def ops(self) -> list[TrafficOp]:
        """Return the operations of a whole step."""
        found: list[TrafficOp] = []
        for requests in self.micro_batches:
            parts = self.parts(requests)
            for stage in range(self.plan.pp):
                found += parts.stage(stage)
                found += parts.head(stage, requests)
                found += parts.ids(stage, requests)
        return found

    # ------------------------------------------------------------------ compute
    @cached_property
    def _timer(self) -> StageTimer:
        return StageTimer(
            self.shape, ParallelismPlan(tp=self.plan.tp), self.gpu, dtype=self.dtype,
            kv_dtype=self.kv_dtype,
        )  # fmt: skip

    def _load(self, requests: int, padded: int) -> StepLoad:
        """Return what a replica computes; what pads a batch is new tokens without a cache."""
        if self.phase == "decode":
            dummies = max(padded - requests, 0)
            return StepLoad(((1, self.context_tokens),) * requests + ((1, 0),) * dummies,
                            rows=requests)  # fmt: skip
        new = -(-self.context_tokens // self.plan.cp)
        one = (new, (self.context_tokens - new) // 2)  # an even share of causal attention
        dummies = max(padded - requests * self.context_tokens, 0)
        more = ((dummies, 0),) if dummies else ()
        return StepLoad((one,) * requests + more, rows=requests)

    def _times(
        self, lane: Lane, requests: Sequence[int], padded: Sequence[int]
    ) -> tuple[dict[LayerShape, tuple[int, int]], int]:
        """Return block times of each kind of layer and of the head, of the slowest replica."""
        blocks: dict[LayerShape, tuple[int, int]] = {}
        head = 0
        for n, most in {(requests[m], padded[m]) for m in lane.members}:
            if not most:
                continue
            if not self.compute:
                blocks = dict.fromkeys(self._timer.kinds, (0, 0))
                continue
            costs, head_ps = self._timer.times(self._load(n, most))
            head = max(head, head_ps)
            for kind, cost in zip(self._timer.kinds, costs, strict=True):
                mixing, feed = blocks.get(kind, (0, 0))
                own = cost.feed_forward_ps
                if self.plan.ep > 1 and isinstance(kind.feed_forward, MoeFeedForward):
                    own = self._expert_ps(kind.feed_forward, most, padded)
                blocks[kind] = (max(mixing, cost.attention_ps), max(feed, own))
        return blocks, head

    def _expert_ps(self, block: MoeFeedForward, tokens: int, padded: Sequence[int]) -> int:
        members = self.plan.ep_members
        groups = [sum(padded[i : i + members]) for i in range(0, len(padded), members)]
        return expert_block_ps(
            self.shape, block, self.plan, self.gpu, tokens=tokens, group_tokens=max(groups),
            dtype=self.dtype, overhead_ps=BLOCK_OVERHEAD_PS,
        )  # fmt: skip

    def compute_ps(self, stage: int) -> int:
        """Return the arithmetic of a stage in a whole step, on the replica that has most."""
        everyone = Lane(self.plan, tuple(range(self.plan.dp)), (), ())
        layers = self.plan.stage_layers(self.shape.n_layers)[stage]
        total = 0
        for requests in self.micro_batches:
            times, head_ps = self._times(everyone, requests, self.parts(requests).tokens)
            total += sum(sum(times[self.shape.layers[i]]) for i in layers)
            total += head_ps if stage == self.plan.pp - 1 else 0
        return total

    # ------------------------------------------------------------------ parts
    def _stage_works(
        self, lane: Lane, stage: int, requests: Sequence[int]
    ) -> tuple[tuple[Work, ...], int]:
        """Return the parts of a micro-batch on a stage, and their time without communication."""
        parts = self.parts(requests)
        times, head_ps = self._times(lane, requests, parts.tokens)
        if not times:
            return (), 0
        layers = [self.shape.layers[i] for i in self.plan.stage_layers(self.shape.n_layers)[stage]]
        kinds = list(dict.fromkeys(layers))
        items = [layer_items(parts, stage, kind, times[kind]) for kind in kinds]
        before = together(parts.entry(stage))
        if stage == 0:
            before += together(parts.summed(stage, what="embedding"))
        after: list[Item] = []
        if stage == self.plan.pp - 1:
            after = [Busy(head_ps), *together(parts.head(stage, requests))]
        order = [kinds.index(layer) for layer in layers]
        works = (
            *lane.works(before, stage), *lane.layer_works(items, order, stage),
            *lane.works(after, stage),
        )  # fmt: skip
        return works, free_ps(after) + sum(free_ps(items[k]) for k in order)

    # ------------------------------------------------------------------ the graph
    def graph(self) -> tuple[StepGraph, Turn]:
        """Return the step and what of it counts."""
        graph = StepGraph()
        turns = self.phase == "decode" and self.plan.pp > 1
        rounds = _ROUNDS if turns else 1
        marks, chains, shared = [], [], []
        for number, lane in enumerate(self.lanes):
            found = self._lane(graph, number, lane, rounds)
            if turns and found[-1]:  # replicas without requests have nothing to do
                # From the end of a micro-batch's first stage in one turn to that in the next.
                first = [ends[0][0] for ends in found]
                marks.append((first[-2], first[-1]))
                own = found[-2][0]
                chains.append((*own[1:], first[-1]))
                shared.append((*[one[0] for one in found[-2][1:]], first[-1]))
        if not turns:
            return graph, Turn(())
        return graph, Turn(tuple(marks), rounds, tuple(chains), tuple(shared))

    def _lane(
        self, graph: StepGraph, number: int, lane: Lane, rounds: int
    ) -> list[list[list[int]]]:
        """Add the tasks of some replicas; return them by round and micro-batch, stage first.

        Each list begins with the first stage's compute and goes on with messages and stages in
        the order in which they need each other.
        """
        busy = [
            requests
            for requests in self.micro_batches
            if any(self.parts(requests).tokens[m] for m in lane.members)
        ]
        stages = range(self.plan.pp)
        works = [[self._stage_works(lane, s, requests) for s in stages] for requests in busy]
        sends = [[self._sends(lane, s, requests) for s in stages] for requests in busy]
        free: list[int | None] = [None] * self.plan.pp
        back: list[int | None] = [None] * len(busy)
        found: list[list[list[int]]] = []
        for turn in range(rounds):
            found.append([])
            for m in range(len(busy)):
                tasks: list[int] = []
                ready = back[m]
                for s in stages:
                    name = f"{self.phase} {turn}.{m} stage {s}"
                    task = Task(name, s, "compute", works[m][s][0], works[m][s][1], number)
                    free[s] = ready = graph.add(task, (free[s], ready))
                    tasks.append(ready)
                    if sends[m][s]:
                        to = (s + 1) % self.plan.pp
                        task = Task(f"micro-batch {turn}.{m} to stage {to}", s, "pp",
                                    sends[m][s], lane=number)  # fmt: skip
                        ready = graph.add(task, (ready,))
                        tasks.append(ready)
                back[m] = ready
                found[-1].append(tasks)
        return found

    def _sends(self, lane: Lane, stage: int, requests: Sequence[int]) -> tuple[Work, ...]:
        parts = self.parts(requests)
        ops = [*parts.exit(stage), *parts.ids(stage, requests)]
        return lane.send_works(ops) if ops else ()
