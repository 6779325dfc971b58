# SPDX-License-Identifier: Apache-2.0
"""The fluid engine's event loop: dependency graph, timers and flow completions, compiled.

Between events rates are constant. All events of one instant are taken together: flows end, nodes
complete, their successors start, and one solve follows. What leaves and what starts in an instant
is put in order of node numbers, so nothing depends on the shape of a queue.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric._fluid_events import (
    drop_finish,
    give_event,
    push_finish,
    sift,
    sort,
    start_timer,
    take_event,
    take_list,
)
from railweave.fabric._fluid_graph import (
    complete_node,
    message_bytes,
    next_in_lane,
    start_node,
    tail_ps,
)
from railweave.fabric._fluid_layout import (
    ARRIVED,
    CHANGED,
    COMPLETED,
    FOREVER,
    FREE,
    IDLE,
    NEED_EVENTS,
    NEED_POOL,
    NEED_SLOTS,
    NO_EVENT,
    NO_NODE,
    NOWHERE,
    OPEN,
    PAUSED,
    REACHED,
    SLOT_BITS,
)
from railweave.fabric._fluid_solve import acknowledge, held_by, solve, touch_link
from railweave.fabric.jit import jit

__all__ = ["advance", "join_links", "lacks_room", "leave_links"]

_INSTANTS = 65_536  # most instants and solved flows of one call, some tenths of a second
_FLOWS = 1_000_000
_PS = 8e12  # picoseconds per second times bits per byte


@jit(inline=True)
def leave_links(
    run: Any,
    lists: Any,
    slots: Any,
    place: Any,
    links: Any,
    pool: Any,
    hops: Any,
    slot: Any,
) -> Any:
    """Take a flow off its links and free its slot."""
    held_by(slots, links, slot, np.int64(NOWHERE))
    rate = slots[slot].rate
    start = slots[slot].hops
    for k in range(slots[slot].hops_end - start):
        number = np.int64(hops[start + k].link)
        link = links[number]
        link.members -= 1
        link.load = link.load - hops[start + k].share * rate if link.members > 0 else 0.0
        moved = np.int64(pool[link.members_at + link.members])
        hole = place[slot, k]
        pool[link.members_at + hole] = moved
        place[moved >> run.hop_bits, moved & ((1 << run.hop_bits) - 1)] = hole
        if link.members > 0:
            touch_link(run, lists, links, number)
        elif run.acks:
            acknowledge(run, lists, links, number)
    lists[FREE, run.free] = slot
    run.free += 1


@jit(inline=True)
def lacks_room(run: Any, links: Any, pool: Any, hops: Any, start: Any, n_hops: Any) -> Any:
    """Tell whether the pool must grow before a flow can join the links of a path.

    A link that comes again on the path may need its k-th place too.
    """
    most = run.pool_used
    for k in range(n_hops):
        link = links[hops[start + k].link]
        if link.members + k >= link.room:
            most += 2 * link.room if link.room > 1 else 4
    return most > len(pool)


@jit(inline=True)
def join_links(
    run: Any,
    lists: Any,
    place: Any,
    links: Any,
    pool: Any,
    hops: Any,
    slot: Any,
    start: Any,
    n_hops: Any,
) -> None:
    """Put a flow on the links of its path, the hops from ``start`` on."""
    for k in range(n_hops):
        crossed = np.int64(hops[start + k].link)
        link = links[crossed]
        if link.members == link.room:
            room = 2 * link.room if link.room > 1 else 4
            for m in range(link.members):
                pool[run.pool_used + m] = pool[link.members_at + m]
            link.members_at = run.pool_used
            link.room = room
            run.pool_used += room
        pool[link.members_at + link.members] = slot << run.hop_bits | k
        place[slot, k] = link.members
        link.members += 1
        if run.acks and link.members == 1:
            acknowledge(run, lists, links, crossed)


@jit(inline=True)
def _takes_ps(wire: Any, rate: Any) -> Any:
    """Return how long bytes take at a rate, float64.

    Up to the next picosecond, but not for the rounding of the division itself.
    """
    takes = wire * _PS / rate
    return np.ceil(takes - 1e-3 - takes * 1e-15)


@jit(inline=True)
def _pass_alone(
    run: Any,
    nodes: Any,
    loops: Any,
    events: Any,
    sole: Any,
    paths: Any,
    timers: Any,
    opened: Any,
    number: Any,
) -> None:
    """Send a message over a path that nobody disturbs: when it is through is known at once."""
    node = nodes[number]
    lane = sole[node.path]
    wire = message_bytes(nodes, loops, number)
    if node.loop >= 0:
        loop = loops[node.loop]
        loop.part = (loop.part if loop.part > 0 else loop.cycle) - 1
    if lane.free < run.now:
        lane.free = run.now
    if wire > 0:
        takes = np.int64(_takes_ps(np.float64(wire), lane.rate))
        lane.free += takes if takes > 1 else 1
    arrives = lane.free + tail_ps(paths, node.path, wire)
    start_timer(run, events, timers, opened, arrives, number * 2 + 1)


@jit(inline=True)
def _leave_path(
    run: Any,
    nodes: Any,
    loops: Any,
    events: Any,
    groups: Any,
    lanes: Any,
    paths: Any,
    timers: Any,
    opened: Any,
    order: Any,
    number: Any,
    time: Any,
) -> Any:
    """Let a message arrive whose last bit leaves at ``time``; the next one has its turn."""
    node = nodes[number]
    tail = tail_ps(paths, node.path, message_bytes(nodes, loops, number))
    start_timer(run, events, timers, opened, time + tail, number * 2 + 1)
    if node.loop >= 0:
        loop = loops[node.loop]
        loop.part = (loop.part if loop.part > 0 else loop.cycle) - 1
    if groups[node.group].in_turn and lanes[node.path].busy:
        next_in_lane(run, events, lanes, order, node.path)


@jit(inline=True)
def _place(
    run: Any,
    nodes: Any,
    loops: Any,
    events: Any,
    groups: Any,
    ends: Any,
    where: Any,
    lists: Any,
    slots: Any,
    place: Any,
    links: Any,
    pool: Any,
    lanes: Any,
    sole: Any,
    paths: Any,
    hops: Any,
    timers: Any,
    opened: Any,
    order: Any,
    number: Any,
) -> Any:
    """Put a message on its links or in its lane; return 0, or NEED_* for lack of memory."""
    node = nodes[number]
    lane = lanes[node.path]
    if len(sole) > 0 and sole[node.path].rate > 0.0:
        _pass_alone(run, nodes, loops, events, sole, paths, timers, opened, number)
        return 0
    in_turn = groups[node.group].in_turn
    if in_turn and lane.busy and lane.reserved != number:
        event = take_event(run, events, number)
        if lane.head == NO_EVENT:
            lane.head = event
        else:
            events[lane.tail].next = event
        lane.tail = event
        return 0
    wire = message_bytes(nodes, loops, number)
    if wire == 0:  # on its way at once
        _leave_path(
            run, nodes, loops, events, groups, lanes, paths, timers, opened, order, number, run.now
        )
        return 0
    start = paths[node.path].hops
    n_hops = paths[node.path].hops_end - start
    if run.free == 0 and run.slots_used >= len(slots):
        return NEED_SLOTS
    if lacks_room(run, links, pool, hops, start, n_hops):
        return NEED_POOL
    if run.free > 0:
        run.free -= 1
        slot = np.int64(lists[FREE, run.free])
    else:
        slot = run.slots_used
        run.slots_used += 1
    join_links(run, lists, place, links, pool, hops, slot, start, n_hops)
    flow = slots[slot]
    flow.node = number
    flow.path = node.path
    flow.updated = run.now
    flow.began = run.now
    flow.finish = FOREVER
    flow.bottleneck = NOWHERE
    flow.rate = 0.0
    flow.hops = start
    flow.hops_end = start + n_hops
    flow.remaining = wire
    flow.weight = groups[node.group].weight
    flow.cap = groups[node.group].cap
    if in_turn:
        lane.busy = 1
        lane.reserved = NO_NODE
    push_finish(run, ends, where, slot, FOREVER)
    lists[ARRIVED, run.arrived] = slot
    run.arrived += 1
    return 0


@jit(inline=True)
def _reschedule(run: Any, ends: Any, where: Any, lists: Any, slots: Any) -> Any:
    """Move the finish times of the flows whose rate changed."""
    for i in range(run.changes):
        flow = slots[lists[CHANGED, i]]
        if flow.rate == flow.old_rate and (flow.rate > 0.0 or flow.finish == FOREVER):
            continue
        passed = run.now - flow.updated
        left = flow.remaining - flow.old_rate * passed / _PS
        flow.remaining = left if left > 0.0 else 0.0
        flow.updated = run.now
        if flow.rate > 0.0:
            takes = _takes_ps(flow.remaining, flow.rate)
            if takes < FOREVER - run.now:
                whole = np.int64(takes)
                flow.finish = run.now + (whole if whole > 1 else 1)
            else:
                flow.finish = FOREVER
        else:
            flow.finish = FOREVER
        at = np.int64(where[lists[CHANGED, i]])
        ends[at].time = flow.finish
        sift(ends, where, run.active, at)


@jit(inline=True)
def _drain(
    run: Any,
    nodes: Any,
    loops: Any,
    events: Any,
    delays: Any,
    succ: Any,
    groups: Any,
    ends: Any,
    where: Any,
    lists: Any,
    slots: Any,
    place: Any,
    links: Any,
    pool: Any,
    lanes: Any,
    paths: Any,
    hops: Any,
    timers: Any,
    opened: Any,
    order: Any,
) -> Any:
    """Take all events of this instant, and those that they cause in it."""
    n = 0
    while run.active > 0:
        slot = ends[0].slot
        ahead = ends[0].time - run.now
        if ahead > 0 and not ahead <= run.tolerance * (ends[0].time - slots[slot].began):
            break
        drop_finish(run, ends, where, slot)
        order[n] = slots[slot].node << SLOT_BITS | slot
        n += 1
    sort(order, n)
    for i in range(n):  # what has been read is at least as long as the arrivals
        slot = order[i] & ((1 << SLOT_BITS) - 1)
        number = slots[slot].node
        leave_links(run, lists, slots, place, links, pool, hops, slot)
        _leave_path(
            run, nodes, loops, events, groups, lanes, paths, timers, opened, order, number,
            slots[slot].finish,
        )  # fmt: skip
    while True:
        event = take_list(run, timers, opened)
        if event == NO_EVENT:
            return
        while event != NO_EVENT:
            code = np.int64(events[event].code)
            number = code >> 1
            event = give_event(run, events, event)
            if groups[nodes[number].group].left < 0:
                continue
            if code & 1:
                complete_node(
                    run, nodes, loops, events, delays, succ, groups, timers, opened, order, number
                )
            else:
                start_node(run, nodes, events, timers, opened, order, number)


@jit
def advance(
    all_runs: Any,
    nodes: Any,
    loops: Any,
    events: Any,
    delays: Any,
    succ: Any,
    groups: Any,
    ends: Any,
    where: Any,
    lists: Any,
    slots: Any,
    place: Any,
    links: Any,
    pool: Any,
    lanes: Any,
    sole: Any,
    paths: Any,
    hops: Any,
    timers: Any,
    opened: Any,
    order: Any,
    limit: Any,
) -> Any:
    """Run until groups complete, or nothing is left at or before ``limit`` (ps).

    Returns REACHED, COMPLETED (the first ``run.done`` of ``done`` are the groups), IDLE, NEED_*
    where an array must grow first, or PAUSED; after the last two the call is made again and goes
    on where it was.
    """
    run = all_runs[0]
    until_instant = run.instant + _INSTANTS
    until_solved = run.solved_flows + _FLOWS
    while True:
        if run.placing == 0:
            time = FOREVER
            for i in range(OPEN):
                if opened[i].time < time:
                    time = opened[i].time
            if run.timers > 0 and timers[0].time < time:
                time = timers[0].time
            if run.active > 0 and ends[0].time < time:
                time = ends[0].time
            if run.touches > 0:  # a capacity was changed from outside
                time = run.now
            if time >= FOREVER:
                return IDLE
            if time > limit:
                return REACHED
            if len(events) - run.events_used + run.events_free < run.events_need:
                return NEED_EVENTS
            run.now = time
            run.done = 0
            run.arrivals = 0
            run.placed = 0
            run.arrived = 0
            run.changes = 0
            _drain(
                run, nodes, loops, events, delays, succ, groups, ends, where, lists, slots, place,
                links, pool, lanes, paths, hops, timers, opened, order,
            )  # fmt: skip
            sort(order, run.arrivals)
            run.placing = 1
        while run.placed < run.arrivals:
            number = order[run.placed]
            need = _place(
                run, nodes, loops, events, groups, ends, where, lists, slots, place, links, pool,
                lanes, sole, paths, hops, timers, opened, order, number,
            )  # fmt: skip
            if need:
                return need
            run.placed += 1
        if run.arrived > 0 or run.touches > 0:
            solve(run, lists, slots, links, pool, hops)
            _reschedule(run, ends, where, lists, slots)
        run.placing = 0
        run.instant += 1
        if run.done > 0:
            return COMPLETED
        if run.instant > until_instant or run.solved_flows > until_solved:
            return PAUSED
