# SPDX-License-Identifier: Apache-2.0
"""Moving a schedule under way out of a small fluid simulation into a larger one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.fabric import _fluid_layout as lay
from railweave.fabric._fluid_events import start_timer, take_event
from railweave.fabric._fluid_layout import grown
from railweave.fabric.usage import expand_spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.fabric.fluid_graph import FluidGraph
    from railweave.fabric.fluid_state import FluidState

__all__ = ["adopt"]


def adopt(
    whole: FluidState,
    other: FluidState,
    group: int,
    graph: FluidGraph,
    *,
    links: NDArray[np.int64],
    paths: NDArray[np.int32],
    own: NDArray[np.int32],
    offset_ps: int,
) -> int:
    """Take over a group under way in a smaller simulation; return its group here.

    Parameters
    ----------
    whole
        The simulation that takes over.
    other, group
        The other simulation and the group in it.
    graph
        Its schedule, over the paths of this simulation.
    links, paths
        The number here of each link and path of the other; what they use is idle here.
    own
        The links that the schedule can limit or be limited by; not the other ways of their cables.
    offset_ps
        When the other's time 0 was.
    """
    mine, base = whole.write(graph)
    their_base = int(other.groups[group].first_node)
    whole.groups[mine].left = other.groups[group].left
    here, there = (slice(at, at + len(graph)) for at in (base, their_base))
    whole.nodes.deps[here] = other.nodes.deps[there]
    looped = graph.looped
    loops = other.loops[other.nodes.loop[their_base + looped]]
    whole.loops[whole.nodes.loop[base + looped]] = loops
    whole.add_events(int(whole.run.events_need + loops.early.sum() + other.run.events_used))
    whole.run.events_need += int(loops.early.sum())
    shift = base - their_base
    for time, code in other.pending():
        start_timer(
            whole.run, whole.events, whole.timers, whole.opened, time + offset_ps, code + 2 * shift
        )
    _take_lanes(whole, other, paths, shift)
    slot_here = _take_slots(
        whole, other, np.array(other.slots_of(group), np.int64), links=links, paths=paths,
        shift=shift, offset_ps=offset_ps,
    )  # fmt: skip
    at = np.flatnonzero(np.isin(links, own))  # others may use the other ways
    _take_members(whole, other, at, links[at], slot_here)
    return mine


def _take_lanes(whole: FluidState, other: FluidState, paths: NDArray[np.int32], shift: int) -> None:
    """Copy the queues of paths."""
    there: Any = other.lanes[: len(paths)]
    whole.lanes.busy[paths] = there.busy
    for theirs in np.flatnonzero(there.head != lay.NO_EVENT):
        here = whole.lanes[paths[theirs]]
        for number in other.codes(int(there.head[theirs])):
            event = take_event(whole.run, whole.events, number + shift)
            if here.head == lay.NO_EVENT:
                here.head = event
            else:
                whole.events[here.tail].next = event
            here.tail = event


def _take_slots(
    whole: FluidState,
    other: FluidState,
    theirs: NDArray[np.int64],
    *,
    links: NDArray[np.int64],
    paths: NDArray[np.int32],
    shift: int,
    offset_ps: int,
) -> NDArray[np.int64]:
    """Copy active flows; return the slot here of each slot there, -1 for others."""
    slots = _unused_slots(whole, len(theirs))
    flows: Any = other.slots[theirs]
    flows.stamp = 0
    flows.node += shift
    flows.updated += offset_ps
    flows.path = paths[flows.path]
    flows.hops = whole.paths.routes.hops[flows.path]
    flows.hops_end = whole.paths.routes.hops_end[flows.path]
    flows.finish[flows.finish < lay.FOREVER] += offset_ps
    held = flows.bottleneck >= 0
    flows.bottleneck[held] = links[flows.bottleneck[held]]
    np.add.at(whole.links.holding, flows.bottleneck[held], 1)
    whole.slots[slots] = flows
    _add_ends(whole, slots, flows.finish)
    slot_here = np.full(len(other.slots), -1, np.int64)
    slot_here[theirs] = slots
    return slot_here


def _unused_slots(whole: FluidState, count: int) -> NDArray[np.int64]:
    """Return slots for new flows: those freed last, then new ones."""
    run = whole.run
    freed = min(count, int(run.free))
    again = whole.lists[lay.FREE, int(run.free) - freed : int(run.free)][::-1].copy()
    run.free -= freed
    used = int(run.slots_used)
    run.slots_used += count - freed
    if run.slots_used > len(whole.slots):
        whole.add_slots(int(run.slots_used))
    return np.concatenate((again, np.arange(used, run.slots_used))).astype(np.int64)


def _add_ends(whole: FluidState, slots: NDArray[np.int64], times: NDArray[np.int64]) -> None:
    """Add flows to the finish heap: whatever is in order is one, and equal times keep any order."""
    before, after = int(whole.run.active), int(whole.run.active) + len(slots)
    whole.ends.time[before:after], whole.ends.slot[before:after] = times, slots
    order = np.argsort(whole.ends.time[:after], kind="stable")
    whole.ends[:after] = whole.ends[order]
    whole.where[whole.ends.slot[:after]] = np.arange(after)
    whole.run.active = after


def _take_members(
    whole: FluidState,
    other: FluidState,
    theirs: NDArray[np.int64],
    links: NDArray[np.int64],
    slot_here: NDArray[np.int64],
) -> None:
    """Copy what links know of their flows, and their member lists in their order."""
    there: Any = other.links[theirs]
    for name in ("usable", "load", "hold_level", "members"):
        whole.links[name][links] = there[name]
    longer = np.flatnonzero(there.members > whole.links.room[links])
    room, used = there.members[longer].astype(np.int64), int(whole.run.pool_used)
    whole.links.members_at[links[longer]] = used + np.cumsum(room) - room
    whole.links.room[links[longer]] = room
    whole.run.pool_used = used + int(room.sum())
    whole.pool = grown(whole.pool, int(whole.run.pool_used))
    entry = other.pool[expand_spans(there.members_at, there.members_at + there.members)]
    bits = int(other.run.hop_bits)
    slot, hop = slot_here[entry >> bits], entry & ((1 << bits) - 1)
    start = whole.links.members_at[links]
    whole.pool[expand_spans(start, start + there.members)] = slot << int(whole.run.hop_bits) | hop
    skipped = np.cumsum(there.members) - there.members
    whole.place[slot, hop] = np.arange(len(entry)) - np.repeat(skipped, there.members)
