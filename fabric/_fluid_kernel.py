# SPDX-License-Identifier: Apache-2.0
"""The fluid engine's event loop: dependency graph, timers and flow completions, compiled.

Between events rates are constant. All events of one instant are taken together: flows end, nodes
complete, their successors start, and one solve follows. What leaves and what starts in an instant
is put in order of node numbers, so nothing depends on the shape of a queue.
"""

from __future__ import annotations

import numpy as np

from railweave.fabric._fluid_layout import (
    ACTIVE,
    ARRIVALS,
    ARRIVED,
    BASE,
    BOTTLENECK,
    CAP,
    CHANGED,
    COMPLETED,
    DONE,
    ENDED,
    FINISH,
    FIRST,
    FOREVER,
    FREE,
    G_CAP,
    G_WEIGHT,
    HEAP_AT,
    IDLE,
    INSTANT,
    LATENCY,
    LEFT,
    LEVEL,
    MEMBERS,
    MEMBERS_AT,
    NEED_POOL,
    NEED_SLOTS,
    NODE,
    NOW,
    NOWHERE,
    NO_TIMER,
    OLD_RATE,
    OPEN,
    PATH,
    PER_BYTE,
    PLACING,
    POOL_USED,
    RATE,
    REACHED,
    REMAINING,
    ROOM,
    SLOT_BITS,
    SLOTS_USED,
    TIMERS,
    TOUCHES,
    UPDATED,
    WEIGHT,
)
from railweave.fabric._fluid_solve import touch_link, solve
from railweave.fabric.jit import jit

__all__ = ["advance", "drop_finish", "leave_links", "push_finish", "start_nodes", "start_timer"]

_PS = 8e12  # picoseconds per second times bits per byte


@jit(inline=True)
def start_timer(  # type: ignore[no-untyped-def]
    time, code, timer_time, timer_head, timer_next, open_time, open_head, scalars
):
    """Schedule ``code`` (node * 2, + 1 for its completion) at ``time``.

    Events of one time hang together in a list, whose head waits in one of a few open places
    (collectives in lockstep fill one list with thousands) or, once another time claims that
    place, in a heap. One time may have several lists.
    """
    at = (time ^ time >> 7) & (OPEN - 1)
    if open_time[at] == time:
        timer_next[code >> 1] = open_head[at]
        open_head[at] = code
        return
    if open_time[at] < FOREVER:
        _push_list(open_time[at], open_head[at], timer_time, timer_head, scalars)
    open_time[at] = time
    open_head[at] = code
    timer_next[code >> 1] = NO_TIMER


@jit()
def _push_list(time, head, timer_time, timer_head, scalars):  # type: ignore[no-untyped-def]
    at = scalars[TIMERS]
    scalars[TIMERS] = at + 1
    while at > 0:
        up = (at - 1) >> 1
        if timer_time[up] <= time:
            break
        timer_time[at] = timer_time[up]
        timer_head[at] = timer_head[up]
        at = up
    timer_time[at] = time
    timer_head[at] = head


@jit()
def _pop_list(timer_time, timer_head, scalars):  # type: ignore[no-untyped-def]
    n = scalars[TIMERS] - 1
    scalars[TIMERS] = n
    time = timer_time[n]
    head = timer_head[n]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= n:
            break
        if child + 1 < n and timer_time[child + 1] < timer_time[child]:
            child += 1
        if time <= timer_time[child]:
            break
        timer_time[at] = timer_time[child]
        timer_head[at] = timer_head[child]
        at = child
    timer_time[at] = time
    timer_head[at] = head


@jit(inline=True)
def _take_list(  # type: ignore[no-untyped-def]
    now, timer_time, timer_head, open_time, open_head, scalars
):
    """Return the head of a list of events of this instant, or NO_TIMER."""
    at = (now ^ now >> 7) & (OPEN - 1)
    if open_time[at] == now:
        open_time[at] = FOREVER
        return open_head[at]
    if scalars[TIMERS] > 0 and timer_time[0] == now:
        head = timer_head[0]
        _pop_list(timer_time, timer_head, scalars)
        return head
    return np.int64(NO_TIMER)


@jit()
def start_nodes(  # type: ignore[no-untyped-def]
    base, roots, delay, time, timer_time, timer_head, timer_next, open_time, open_head, scalars
):
    """Schedule the first nodes of a block at ``time`` plus their delays."""
    for i in range(len(roots)):
        start_timer(
            time + delay[roots[i]], (base + roots[i]) * 2, timer_time, timer_head, timer_next,
            open_time, open_head, scalars,
        )


@jit(inline=True)
def _sift(at, finish, n, slot_i):  # type: ignore[no-untyped-def]
    """Restore the finish heap of ``n`` slots around place ``at``; equal times keep any order."""
    slot = finish[at]
    time = slot_i[slot, FINISH]
    while at > 0:
        up = (at - 1) >> 1
        if slot_i[finish[up], FINISH] <= time:
            break
        finish[at] = finish[up]
        slot_i[finish[at], HEAP_AT] = at
        at = up
    while True:
        child = 2 * at + 1
        if child >= n:
            break
        if child + 1 < n and slot_i[finish[child + 1], FINISH] < slot_i[finish[child], FINISH]:
            child += 1
        if slot_i[finish[child], FINISH] >= time:
            break
        finish[at] = finish[child]
        slot_i[finish[at], HEAP_AT] = at
        at = child
    finish[at] = slot
    slot_i[slot, HEAP_AT] = at


@jit(inline=True)
def push_finish(slot, finish, slot_i, scalars):  # type: ignore[no-untyped-def]
    """Add a slot to the finish heap."""
    n = scalars[ACTIVE]
    scalars[ACTIVE] = n + 1
    finish[n] = slot
    _sift(n, finish, n + 1, slot_i)


@jit(inline=True)
def leave_links(  # type: ignore[no-untyped-def]
    slot, free, touched, slot_i, place, link_i, pool, path_ptr, path_link, scalars
):
    """Take a flow off its links and free its slot."""
    path = slot_i[slot, PATH]
    start = path_ptr[path]
    for k in range(path_ptr[path + 1] - start):
        link = path_link[start + k]
        at = link_i[link, MEMBERS_AT]
        last = at + link_i[link, MEMBERS] - 1
        hole = at + place[slot, k]
        moved = pool[last]
        pool[hole] = moved
        place[moved >> 16, moved & 0xFFFF] = hole - at
        link_i[link, MEMBERS] -= 1
        touch_link(link, touched, link_i, scalars)
    free[scalars[FREE]] = slot
    scalars[FREE] += 1


@jit()
def drop_finish(slot, finish, slot_i, scalars):  # type: ignore[no-untyped-def]
    """Take a slot out of the finish heap."""
    n = scalars[ACTIVE] - 1
    scalars[ACTIVE] = n
    at = slot_i[slot, HEAP_AT]
    if at != n:
        finish[at] = finish[n]
        slot_i[finish[at], HEAP_AT] = at
        _sift(at, finish, n, slot_i)


@jit(inline=True)
def _place(  # type: ignore[no-untyped-def]
    node, finish, free, node_path, node_wire, node_group, group_f, slot_f, slot_i, place, link_i,
    pool, path_ptr, path_link, scalars,
):
    """Put a starting flow on its links; return its slot, or -NEED_* where memory ran out."""
    path = node_path[node]
    start = path_ptr[path]
    hops = path_ptr[path + 1] - start
    if scalars[FREE] == 0 and scalars[SLOTS_USED] >= len(slot_i):
        return -NEED_SLOTS
    for k in range(hops):
        link = path_link[start + k]
        room = link_i[link, ROOM]
        if link_i[link, MEMBERS] == room:
            more = max(np.int64(4), 2 * room)
            to = scalars[POOL_USED]
            if to + more > len(pool):
                return -NEED_POOL
            at = link_i[link, MEMBERS_AT]
            for m in range(room):
                pool[to + m] = pool[at + m]
            link_i[link, MEMBERS_AT] = to
            link_i[link, ROOM] = more
            scalars[POOL_USED] = to + more
    if scalars[FREE] > 0:
        scalars[FREE] -= 1
        slot = np.int64(free[scalars[FREE]])
    else:
        slot = scalars[SLOTS_USED]
        scalars[SLOTS_USED] += 1
    for k in range(hops):
        link = path_link[start + k]
        members = link_i[link, MEMBERS]
        pool[link_i[link, MEMBERS_AT] + members] = slot << 16 | k
        place[slot, k] = members
        link_i[link, MEMBERS] = members + 1
    group = node_group[node]
    slot_i[slot, NODE] = node
    slot_i[slot, PATH] = path
    slot_i[slot, UPDATED] = scalars[NOW]
    slot_i[slot, FINISH] = FOREVER
    slot_i[slot, BOTTLENECK] = NOWHERE
    slot_f[slot, RATE] = 0.0
    slot_f[slot, LEVEL] = 0.0
    slot_f[slot, REMAINING] = np.float64(node_wire[node])
    slot_f[slot, WEIGHT] = group_f[group, G_WEIGHT]
    slot_f[slot, CAP] = group_f[group, G_CAP]
    push_finish(slot, finish, slot_i, scalars)
    return slot


@jit(inline=True)
def _reschedule(n_changed, changed, finish, slot_f, slot_i, scalars):  # type: ignore[no-untyped-def]
    """Move the finish times of the flows whose rate changed."""
    now = scalars[NOW]
    for i in range(n_changed):
        slot = changed[i]
        rate = slot_f[slot, RATE]
        old = slot_f[slot, OLD_RATE]
        if rate == old and (rate > 0.0 or slot_i[slot, FINISH] == FOREVER):
            _sift(slot_i[slot, HEAP_AT], finish, scalars[ACTIVE], slot_i)
            continue
        passed = now - slot_i[slot, UPDATED]
        left = max(slot_f[slot, REMAINING] - old * passed / _PS, 0.0)
        slot_f[slot, REMAINING] = left
        slot_i[slot, UPDATED] = now
        if rate > 0.0:
            takes = left * _PS / rate
            # Up to the next picosecond, but not for the rounding of the division itself.
            whole = np.ceil(takes - 1e-3 - takes * 1e-15)
            slot_i[slot, FINISH] = now + max(np.int64(whole), np.int64(1))
        else:
            slot_i[slot, FINISH] = FOREVER
        _sift(slot_i[slot, HEAP_AT], finish, scalars[ACTIVE], slot_i)


@jit(inline=True)
def _tail_ps(path, wire, path_f, path_i):  # type: ignore[no-untyped-def]
    """Latency after the last bit left the narrowest link."""
    if path < 0:
        return np.int64(0)
    first = min(np.float64(wire), path_f[path, FIRST])
    return path_i[path, LATENCY] + np.int64(np.rint(first * path_f[path, PER_BYTE]))


@jit(inline=True)
def _start(  # type: ignore[no-untyped-def]
    node, arrivals, node_path, node_wire, path_f, path_i, timer_time, timer_head, timer_next,
    open_time, open_head, scalars,
):
    """Start a node now: a flow joins the arrivals, anything else completes after its latency."""
    path = node_path[node]
    if path >= 0 and node_wire[node] > 0:
        arrivals[scalars[ARRIVALS]] = node
        scalars[ARRIVALS] += 1
    else:
        tail = _tail_ps(path, node_wire[node], path_f, path_i)
        start_timer(
            scalars[NOW] + tail, np.int64(node) * 2 + 1, timer_time, timer_head, timer_next,
            open_time, open_head, scalars,
        )


@jit(inline=True)
def _complete(  # type: ignore[no-untyped-def]
    node, arrivals, done, node_path, node_wire, node_delay, node_deps, node_group, succ_ptr,
    succ, group_i, path_f, path_i, timer_time, timer_head, timer_next, open_time, open_head,
    scalars,
):
    """Complete a node: release its successors and perhaps its group."""
    group = node_group[node]
    node_deps[node] = -1
    group_i[group, LEFT] -= 1
    if group_i[group, LEFT] == 0:
        group_i[group, ENDED] = scalars[NOW]
        done[scalars[DONE]] = group
        scalars[DONE] += 1
    base = group_i[group, BASE]
    for e in range(succ_ptr[node], succ_ptr[node + 1]):
        after = base + succ[e]
        node_deps[after] -= 1
        if node_deps[after] == 0:
            delay = node_delay[after]
            if delay > 0:
                start_timer(
                    scalars[NOW] + delay, np.int64(after) * 2, timer_time, timer_head,
                    timer_next, open_time, open_head, scalars,
                )
            else:
                _start(
                    after, arrivals, node_path, node_wire, path_f, path_i, timer_time,
                    timer_head, timer_next, open_time, open_head, scalars,
                )


@jit()
def _drain(  # type: ignore[no-untyped-def]
    arrivals, leaving, done, finish, free, touched, node_path, node_wire, node_delay, node_deps,
    node_group, succ_ptr, succ, group_i, slot_i, place, link_i, pool, path_ptr, path_link, path_f,
    path_i, timer_time, timer_head, timer_next, open_time, open_head, scalars,
):
    """Take all events of this instant, and those that they cause in it."""
    now = scalars[NOW]
    n = 0
    while scalars[ACTIVE] > 0 and slot_i[finish[0], FINISH] == now:
        slot = np.int64(finish[0])
        drop_finish(slot, finish, slot_i, scalars)
        leaving[n] = slot_i[slot, NODE] << SLOT_BITS | slot
        n += 1
    _sort(leaving, n)
    for i in range(n):
        node = leaving[i] >> SLOT_BITS
        slot = leaving[i] & ((1 << SLOT_BITS) - 1)
        leave_links(
            slot, free, touched, slot_i, place, link_i, pool, path_ptr, path_link, scalars
        )
        tail = _tail_ps(node_path[node], node_wire[node], path_f, path_i)
        start_timer(
            now + tail, node * 2 + 1, timer_time, timer_head, timer_next, open_time, open_head,
            scalars,
        )
    while True:
        code = _take_list(now, timer_time, timer_head, open_time, open_head, scalars)
        if code == NO_TIMER:
            return
        while code != NO_TIMER:
            node = code >> 1
            is_end = code & 1
            code = timer_next[node]
            if group_i[node_group[node], LEFT] < 0:
                continue
            if is_end:
                _complete(
                    node, arrivals, done, node_path, node_wire, node_delay, node_deps,
                    node_group, succ_ptr, succ, group_i, path_f, path_i, timer_time, timer_head,
                    timer_next, open_time, open_head, scalars,
                )
            else:
                _start(
                    node, arrivals, node_path, node_wire, path_f, path_i, timer_time,
                    timer_head, timer_next, open_time, open_head, scalars,
                )


@jit()
def _sort(values, n):  # type: ignore[no-untyped-def]
    """Sort ``values[:n]``, which often is sorted, one way or the other, already."""
    rising = True
    falling = True
    for i in range(1, n):
        if values[i] < values[i - 1]:
            rising = False
        else:
            falling = False
    if rising:
        return
    if falling:
        values[:n] = values[:n][::-1].copy()
    else:
        values[:n].sort()


@jit()
def advance(  # type: ignore[no-untyped-def]
    limit, arrivals, leaving, arrived, done, finish, free, touched, chosen, listed, changed,
    node_path, node_wire, node_delay, node_deps, node_group, succ_ptr, succ, group_i, group_f,
    slot_f, slot_i, place, link_f, link_i, pool, path_ptr, path_link, path_share, path_f, path_i,
    timer_time, timer_head, timer_next, open_time, open_head, heap_key, heap_id, scalars,
):
    """Run until groups complete, or nothing is left at or before ``limit`` (ps).

    Returns REACHED, COMPLETED (``done[:scalars[DONE]]`` are the groups), IDLE, or NEED_* where an
    array must grow first; the call is then made again and goes on where it stopped.
    """
    while True:
        if scalars[PLACING] == 0:
            time = np.int64(FOREVER)
            for i in range(OPEN):
                time = min(time, open_time[i])
            if scalars[TIMERS] > 0:
                time = min(time, timer_time[0])
            if scalars[ACTIVE] > 0:
                time = min(time, slot_i[finish[0], FINISH])
            if scalars[TOUCHES] > 0:  # a capacity was changed from outside
                time = scalars[NOW]
            if time >= FOREVER:
                return IDLE
            if time > limit:
                return REACHED
            scalars[NOW] = time
            scalars[DONE] = 0
            scalars[ARRIVALS] = 0
            scalars[ARRIVED] = 0
            scalars[CHANGED] = 0
            _drain(
                arrivals, leaving, done, finish, free, touched, node_path, node_wire, node_delay,
                node_deps, node_group, succ_ptr, succ, group_i, slot_i, place, link_i, pool,
                path_ptr, path_link, path_f, path_i, timer_time, timer_head, timer_next,
                open_time, open_head, scalars,
            )
            _sort(arrivals, scalars[ARRIVALS])
            scalars[PLACING] = 1
        while scalars[ARRIVED] < scalars[ARRIVALS]:
            slot = _place(
                arrivals[scalars[ARRIVED]], finish, free, node_path, node_wire, node_group,
                group_f, slot_f, slot_i, place, link_i, pool, path_ptr, path_link, scalars,
            )
            if slot < 0:
                return -slot
            arrived[scalars[ARRIVED]] = slot
            scalars[ARRIVED] += 1
        if scalars[ARRIVED] > 0 or scalars[TOUCHES] > 0:
            solve(
                arrived, scalars[ARRIVED], touched, chosen, listed, changed, slot_f, slot_i,
                link_f, link_i, pool, path_ptr, path_link, path_share, heap_key, heap_id, scalars,
            )
            _reschedule(scalars[CHANGED], changed, finish, slot_f, slot_i, scalars)
        scalars[PLACING] = 0
        scalars[INSTANT] += 1
        if scalars[DONE] > 0:
            return COMPLETED
