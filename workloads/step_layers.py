# SPDX-License-Identifier: Apache-2.0
"""Layers as parts of a step: compute blocks and the operations between them, on some ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from railweave.fabric.beside import beside
from railweave.fabric.chain import chain, work
from railweave.workloads.op_schedules import op_schedule
from railweave.workloads.ops import TrafficOp
from railweave.workloads.works import Work, repeats

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from railweave.fabric.schedule import Schedule
    from railweave.workloads.inference import StepOps
    from railweave.workloads.parallelism import ParallelismPlan
    from railweave.workloads.shapes_model import LayerShape

__all__ = ["Busy", "Covered", "Item", "Lane", "Together", "free_ps", "layer_items", "together"]


@dataclass(frozen=True)
class Busy:
    """Every rank computes for ``time_ps``."""

    time_ps: int


@dataclass(frozen=True)
class Covered:
    """Communication under cover of ``time_ps`` of compute: both begin together."""

    op: TrafficOp
    time_ps: int


@dataclass(frozen=True)
class Together:
    """What several replicas do at once, each its own size."""

    ops: tuple[TrafficOp, ...]


Item: TypeAlias = TrafficOp | Busy | Covered | Together


def together(ops: Iterable[TrafficOp]) -> list[Item]:
    """Return operations as items: those of single replicas that do the same, as one."""
    found: list[Item] = []
    for op in ops:
        last = found[-1] if found else None
        if op.member is None:
            found.append(op)
        elif isinstance(last, Together) and (last.ops[0].op, last.ops[0].what) == (op.op, op.what):
            found[-1] = Together((*last.ops, op))
        else:
            found.append(Together((op,)))
    return found


def layer_items(
    parts: StepOps, stage: int, layer: LayerShape, times: tuple[int, int]
) -> list[Item]:
    """Return a layer's blocks and what lies between them.

    Parameters
    ----------
    parts, stage, layer
        The operations of the step, and of what.
    times
        Of the block that mixes tokens and of the feed-forward block, in ps.
    """
    mixing_ps, feed_ps = times
    before, own = parts.sums(layer)
    summed = together(parts.summed(stage, what="outputs"))
    busy: list[Item] = [Busy(mixing_ps)]
    around = list(parts.context(stage, [layer]))
    if around and parts.style.context == "ring":
        busy = [Covered(around[0], mixing_ps)]
    elif around:
        late = [op for op in around if op.what.startswith("attention")]
        early = [op for op in around if op not in late]
        busy = [*together(early), Busy(mixing_ps), *together(late)]
    if parts.by_experts(layer):
        ops = list(parts.experts(stage, layer.feed_forward, count=1))
        late = [op for op in ops if op.what.startswith(("outputs", "combine"))]
        early = [op for op in ops if op not in late]
        return [*busy, *summed * before, *together(early), Busy(feed_ps), *together(late)]
    if layer.feed_forward is None:
        return [*busy, *summed * before]
    if not own:  # side by side with attention
        return [*busy, Busy(feed_ps), *summed * before]
    return [*busy, *summed * before, Busy(feed_ps), *summed * own]


def free_ps(items: Sequence[Item]) -> int:
    """Return what items take where communication is free."""
    return sum(item.time_ps for item in items if isinstance(item, Busy | Covered))


@dataclass(frozen=True, eq=False)
class Lane:
    """Replicas that run a step together, on their GPUs.

    Parameters
    ----------
    plan
        How the model is divided.
    members
        Numbers of the replicas.
    devices, hosts
        Device index and host of the GPU of every rank of the plan.
    """

    plan: ParallelismPlan
    members: tuple[int, ...]
    devices: Sequence[int]
    hosts: Sequence[int]

    def ranks(self, *stages: int) -> tuple[int, ...]:
        """Return the ranks of these replicas in some stages, one stage after another."""
        return tuple(
            rank
            for stage in dict.fromkeys(stages)
            for member in self.members
            for rank in self.plan.stage_ranks(stage, member=member)
        )

    @cached_property
    def _schedules(self) -> dict[Hashable, tuple[TrafficOp, Schedule | None]]:
        return {}  # operations are kept so that no id of a matrix is another's later

    def schedule(self, op: TrafficOp, ranks: tuple[int, ...]) -> Schedule | None:
        """Return one of the operations on these ranks, None where none of them takes part."""
        key = (
            op.op, op.axis, op.size_bytes, op.stage, op.to_stage, op.member, id(op.matrix), ranks
        )  # fmt: skip
        if key not in self._schedules:
            self._schedules[key] = op, op_schedule(op, self.plan, ranks, self.hosts)
        return self._schedules[key][1]

    def _counted(self, op: TrafficOp, ranks: tuple[int, ...]) -> Schedule | None:
        """Return all ``count`` operations, one after another."""
        found = self.schedule(replace(op, count=1), ranks)
        return found if found is None or op.count == 1 else chain([found] * op.count, op=op.op)

    def works(self, items: Sequence[Item], stage: int, *, repeat: int = 1) -> tuple[Work, ...]:
        """Return items one after another, ``repeat`` times, as one part (or time passing)."""
        ranks = self.ranks(stage)
        if all(isinstance(item, Busy) for item in items):
            time_ps = free_ps(items) * repeat
            return (Work(wait_ps=time_ps),) if time_ps else ()
        parts: list[Schedule] = []
        own = tuple(range(len(ranks)))
        for item in items:
            if isinstance(item, Busy):
                if item.time_ps:
                    parts.append(work(len(ranks), item.time_ps))
                continue
            moving = [
                (schedule, own)
                for op in (item.ops if isinstance(item, Together) else (_op(item),))
                if (schedule := self._counted(op, ranks)) is not None
            ]
            if isinstance(item, Covered):
                moving.insert(0, (work(len(ranks), item.time_ps), own))
            if len(moving) == 1:
                parts.append(moving[0][0])
            elif moving:
                parts.append(beside(moving, n_ranks=len(ranks)))
        if not parts:
            return ()
        whole = chain(parts, op="layer") if len(parts) > 1 else parts[0]
        return (Work(tuple(self.devices[r] for r in ranks), whole, repeat),)

    def layer_works(
        self, kinds: Sequence[Sequence[Item]], order: Sequence[int], stage: int
    ) -> tuple[Work, ...]:
        """Return layers one after another; equal ones in a row are one part that repeats.

        Parameters
        ----------
        kinds
            Items of each kind of layer.
        order
            The kind of each layer.
        stage
            Whose layers they are.
        """
        found: list[Work] = []
        for pattern, times in repeats(order):
            items = [item for kind in pattern for item in kinds[kind]]
            found += self.works(items, stage, repeat=times)
        return tuple(found)

    def send_works(self, ops: Sequence[TrafficOp]) -> tuple[Work, ...]:
        """Return the messages of sends from one stage to another, all at once."""
        ends = [stage for op in ops for stage in (op.stage, op.to_stage) if stage is not None]
        ranks = self.ranks(*ends)
        own = tuple(range(len(ranks)))
        found = [(self.schedule(replace(op, count=1), ranks), op.count) for op in ops]
        parts = [(part, own) for part, count in found if part is not None for _ in range(count)]
        if not parts:
            return ()
        whole = beside(parts, n_ranks=len(ranks), op="send") if len(parts) > 1 else parts[0][0]
        return (Work(tuple(self.devices[r] for r in ranks), whole),)


def _op(item: TrafficOp | Covered) -> TrafficOp:
    return item if isinstance(item, TrafficOp) else item.op
