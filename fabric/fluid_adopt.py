# SPDX-License-Identifier: Apache-2.0
"""Moving a schedule under way out of a small fluid simulation into a larger one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric import _fluid_layout as lay
from railweave.fabric._fluid_events import push_finish, start_timer, take_event
from railweave.fabric._fluid_layout import grown

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
    for theirs, path in enumerate(paths):
        _take_lane(whole, other, theirs, int(path), shift)
    slot_here: dict[int, int] = {}
    for theirs in other.slots_of(group):
        slot = slot_here[theirs] = _take_slot(whole)
        whole.slots[slot] = other.slots[theirs]
        flow = whole.slots[slot]
        flow.stamp = 0
        flow.node += shift
        flow.updated += offset_ps
        flow.path = paths[flow.path]
        route = whole.paths.routes[flow.path]
        flow.hops, flow.hops_end = route.hops, route.hops_end
        if flow.finish < lay.FOREVER:
            flow.finish += offset_ps
        if flow.bottleneck >= 0:
            flow.bottleneck = links[flow.bottleneck]
            whole.links[flow.bottleneck].holding += 1
        push_finish(whole.run, whole.ends, whole.where, slot, flow.finish)
    for at in np.flatnonzero(np.isin(links, own)):  # others may use the other ways
        _take_members(whole, other, int(at), int(links[at]), slot_here)
    return mine


def _take_lane(whole: FluidState, other: FluidState, theirs: int, path: int, shift: int) -> None:
    """Copy the queue of one path."""
    here, there = whole.lanes[path], other.lanes[theirs]
    here.busy = there.busy
    for number in other.codes(int(there.head)):
        event = take_event(whole.run, whole.events, number + shift)
        if here.head == lay.NO_EVENT:
            here.head = event
        else:
            whole.events[here.tail].next = event
        here.tail = event


def _take_slot(whole: FluidState) -> int:
    """Return an unused slot."""
    if whole.run.free > 0:
        whole.run.free -= 1
        return int(whole.lists[lay.FREE, whole.run.free])
    whole.run.slots_used += 1
    used = int(whole.run.slots_used)
    if used > len(whole.slots):
        whole.add_slots(used)
    return used - 1


def _take_members(
    whole: FluidState, other: FluidState, theirs: int, link: int, slot_here: dict[int, int]
) -> None:
    """Copy the member list of one link, keeping its order."""
    here, there = whole.links[link], other.links[theirs]
    here.usable, here.load, here.hold_level = there.usable, there.load, there.hold_level
    count = int(there.members)
    if count > here.room:
        here.members_at = whole.run.pool_used
        here.room = count
        whole.run.pool_used += count
        whole.pool = grown(whole.pool, int(whole.run.pool_used))
    for m in range(count):
        entry = int(other.pool[there.members_at + m])
        slot, hop = slot_here[entry >> 16], entry & 0xFFFF
        whole.pool[here.members_at + m] = slot << 16 | hop
        whole.place[slot, hop] = m
    here.members = count
