# SPDX-License-Identifier: Apache-2.0
"""What workloads made of steps share: where replicas run together, and the row of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from railweave.fabric.devices import gpu_model
from railweave.fabric.errors import InputError
from railweave.workloads.op_schedules import bytes_between
from railweave.workloads.ops import total_wire_bytes
from railweave.workloads.replay.lanes import alike
from railweave.workloads.step_layers import Lane

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from railweave.fabric.devices import GpuModel
    from railweave.workloads.op_schedules import LinkBytes
    from railweave.workloads.ops import TrafficOp
    from railweave.workloads.parallelism import ParallelismPlan
    from railweave.workloads.replay.step_graph import StepGraph
    from railweave.workloads.workload import WorkloadContext

__all__ = ["MOST_TASKS", "Turn", "gpu_of", "lanes_of", "place_ranks", "step_row"]

MOST_TASKS: Final = 20_000
"""Compute tasks above which replicas run in lockstep even where that may change times."""


@dataclass(frozen=True)
class Turn:
    """The part of a graph that is one step, where micro-batches go round and round.

    Parameters
    ----------
    marks
        For each lane, two tasks: a step is what lies between their ends, in the slowest lane.
        None at all: the whole graph.
    rounds
        How often the graph does everything.
    chain, shared
        For each lane, tasks that a step does one after another because each needs the one before;
        and tasks that do so because they are on one stage.
    """

    marks: tuple[tuple[int, int], ...]
    rounds: int = 1
    chain: tuple[tuple[int, ...], ...] = ()
    shared: tuple[tuple[int, ...], ...] = ()

    def span_ps(self, ends: Sequence[int], whole_ps: int) -> int:
        """Return how long the step takes, given when each task ends."""
        return max((ends[b] - ends[a] for a, b in self.marks), default=whole_ps)

    def bound_ps(self, graph: StepGraph, least: Callable[[int], int]) -> int:
        """Return the least that the step takes."""
        if not self.marks:
            return graph.longest(least)
        return max(sum(map(least, tasks)) for tasks in (*self.chain, *self.shared))


def gpu_of(devices: Sequence[int], context: WorkloadContext) -> GpuModel:
    """Return what all ranks run on.

    Raises
    ------
    InputError
        They sit on GPUs of different kinds, or of a kind that is not in the catalogue.
    """
    names = sorted({context.fabric.model[device] for device in devices})
    if len(names) > 1:
        raise context.error(
            f"the job would sit on different GPUs: {', '.join(names)}",
            at=("placement",) if context.placement_loc != ("placement",) else (),
            expected="one kind of GPU",
        )
    with context.at():
        return gpu_model(names[0])


def place_ranks(plan: ParallelismPlan, context: WorkloadContext) -> list[int]:
    """Return the device index of the GPU of each rank, and take them.

    Raises
    ------
    InputError
        There are not enough GPUs.
    """
    try:
        devices = context.place(plan.n_ranks)
    except InputError as error:
        if error.field != "ranks":
            raise
        raise context.error(
            error.message, at=("dp",), expected="tp x pp x cp x dp ranks, a GPU for each"
        ) from None
    context.occupy(devices)
    return devices


def lanes_of(
    plan: ParallelismPlan,
    members: Sequence[tuple[int, ...]],
    devices: Sequence[int],
    hosts: Sequence[int],
    ops: Sequence[TrafficOp],
    context: WorkloadContext,
    *,
    replicas: str,
    tasks: int,
) -> tuple[list[Lane], str]:
    """Return the replicas that run together, and in words how it was decided.

    Parameters
    ----------
    plan
        How the model is divided.
    members
        Replicas that cannot be told apart, such as those of one expert-parallel group.
    devices, hosts
        Device index and host of every rank.
    ops
        Operations within replicas.
    context
        Where they run.
    replicas
        ``auto``, ``lockstep`` or ``each``.
    tasks
        Compute tasks if each runs by itself.
    """
    apart = [Lane(plan, own, devices, hosts) for own in members]
    together = [Lane(plan, tuple(m for own in members for m in own), devices, hosts)]
    if len(members) == 1:
        return apart, "lockstep"
    if replicas == "each":
        return apart, "each"
    alone = not context.prefix and not context.document.data.get("faults")
    one_pair = context.document.data.get("routing", {}).get("qps", 1) == 1
    if alone and one_pair and _pairs_alike(plan, apart, ops, context):
        return together, "lockstep, alike"
    if replicas == "auto" and tasks <= MOST_TASKS:
        return apart, "each"
    context.findings.warn(
        f"the {len(members)} replicas of {context.name} run in lockstep, though their paths differ "
        "or others use them: one that is slow holds the others back (replicas: each runs each)"
    )
    return together, "lockstep"


def _pairs_alike(
    plan: ParallelismPlan,
    lanes: Sequence[Lane],
    ops: Sequence[TrafficOp],
    context: WorkloadContext,
) -> bool:
    """Tell whether the messages within replicas go by equal paths that do not meet."""
    lane_of = np.zeros(plan.n_ranks, np.int64)
    for number, lane in enumerate(lanes):
        lane_of[list(lane.ranks(*range(plan.pp)))] = number
    found: list[list[NDArray[np.int64]]] = [[] for _ in lanes]
    seen: set[tuple[object, ...]] = set()
    device = np.array(lanes[0].devices, np.int32)
    for op in ops:
        if op.member is not None:
            return False  # replicas that do different things
        same = (op.op == "send", op.axis, op.stage, op.to_stage, op.matrix is None)
        if same in seen and op.matrix is None:
            continue
        seen.add(same)
        src, dst, _ = bytes_between(op, plan, lanes[0].hosts)
        for number in range(len(lanes)):
            own = lane_of[src] == number
            if not (lane_of[dst[own]] == number).all():
                return False
            found[number].append(np.stack((device[src[own]], device[dst[own]]), axis=1))
    pairs = [
        np.concatenate(own).astype(np.int32) if own else np.zeros((0, 2), np.int32) for own in found
    ]
    return alike(context.fabric, context.routing, pairs)


def step_row(
    graph: StepGraph,
    context: WorkloadContext,
    plan: ParallelismPlan,
    ops: Sequence[TrafficOp],
    moved: LinkBytes,
    *,
    begin_ps: int,
    number: int,
    turn: Turn | None = None,
) -> dict[str, Any]:
    """Return what ``result.json`` says of one step.

    ``step_ps``: its time. ``compute_ps``: the same step with free communication, pipeline bubbles
    included. ``exposed_ps``: the difference. ``bubble_ps``: ``compute_ps`` less the arithmetic of
    the busiest stage. ``communication_ps``: on the stage where it is most, the time of collectives
    between blocks, of messages between stages and of collectives of their own, each summed up as
    if one came after the other; ``overlapped_ps``: how much more that is than what is exposed.
    ``limit``: which of the three parts of ``step_ps`` (arithmetic, bubble, exposed communication)
    is the longest.

    Parameters
    ----------
    graph
        A step that has ended.
    context, plan, ops
        Where it ran, how the model is divided, what it asked of the network.
    moved
        Bytes of each rank by class of link.
    begin_ps, number
        When the step began, and its number from 0.
    turn
        What of the graph is the step, where the graph is several steps that overlap.
    """
    turn = Turn(()) if turn is None else turn
    step_ps = turn.span_ps(graph.end_ps, int(context.env.now) - begin_ps)
    free = graph.ends(graph.computed_ps)
    compute_ps = turn.span_ps(free, max(free, default=0))
    least = graph.least(context.engine)
    bound_ps = turn.bound_ps(graph, least)
    stages = range(plan.pp)
    arithmetic = [_of_busiest_lane(_sums(graph, stage, compute=True)) for stage in stages]
    parts = [_by_axis(graph, stage) for stage in stages]
    busiest = max(stages, key=lambda stage: sum(parts[stage].values()))
    parts[busiest] = {axis: time // turn.rounds for axis, time in parts[busiest].items()}
    communication = sum(parts[busiest].values())
    work_ps = max(arithmetic) // turn.rounds
    exposed, bubble = step_ps - compute_ps, compute_ps - work_ps
    named = {"compute": work_ps, "bubble": bubble, "communication": exposed}
    by_axis: dict[str, int] = {}
    for op in ops:
        by_axis[op.axis] = by_axis.get(op.axis, 0) + total_wire_bytes(op, plan)
    return {
        "step": number,
        "ranks": plan.n_ranks,
        "plan": {name: getattr(plan, name) for name in ("tp", "pp", "cp", "dp", "ep")},
        "start_ps": begin_ps,
        "step_ps": step_ps,
        "bound_ps": bound_ps,
        "compute_ps": compute_ps,
        "exposed_ps": exposed,
        "bubble_ps": bubble,
        "communication_ps": communication,
        "overlapped_ps": max(communication - exposed, 0),
        "by_axis_ps": parts[busiest],
        "limit": max(named, key=lambda name: named[name]),
        "wire_bytes": {
            "nvlink": sum(moved.nvlink.tolist()),
            "network": sum(moved.network.tolist()),
            "by_axis": by_axis,
            "busiest_rank": int(moved.total.max(initial=0)),
        },
    }


def _sums(graph: StepGraph, stage: int, *, compute: bool) -> dict[int, int]:
    """Return, by lane, the arithmetic of a stage, or what its compute tasks took beyond it."""
    sums: dict[int, int] = {}
    for task, begin, end in zip(graph.tasks, graph.begin_ps, graph.end_ps, strict=True):
        if task.axis == "compute" and task.stage == stage:
            time = task.compute_ps if compute else end - begin - task.compute_ps
            sums[task.lane] = sums.get(task.lane, 0) + time
    return sums


def _of_busiest_lane(sums: dict[int, int]) -> int:
    """Return what all lanes do together and the most that one does by itself."""
    together = sums.pop(-1, 0)
    return together + max(sums.values(), default=0)


def _by_axis(graph: StepGraph, stage: int) -> dict[str, int]:
    """Return the communication of a stage by axis; ``layers``: between the blocks of layers."""
    by_axis: dict[str, dict[int, int]] = {}
    for task, begin, end in zip(graph.tasks, graph.begin_ps, graph.end_ps, strict=True):
        if task.axis != "compute" and task.stage == stage:
            sums = by_axis.setdefault(task.axis, {})
            sums[task.lane] = sums.get(task.lane, 0) + end - begin
    layers = _of_busiest_lane(_sums(graph, stage, compute=False))
    return {"layers": layers} | {
        axis: _of_busiest_lane(sums) for axis, sums in sorted(by_axis.items())
    }
