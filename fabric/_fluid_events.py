# SPDX-License-Identifier: Apache-2.0
"""The fluid engine's queues, compiled: timers of nodes, finish times of flows, a sort."""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric._fluid_layout import FOREVER, NO_EVENT, OPEN
from railweave.fabric.jit import jit

__all__ = [
    "drop_finish",
    "give_event",
    "push_finish",
    "sift",
    "sort",
    "start_nodes",
    "start_timer",
    "take_event",
    "take_list",
]


@jit(inline=True)
def _push_list(run: Any, timers: Any, time: Any, head: Any) -> Any:
    at = run.timers
    run.timers += 1
    while at > 0:
        up = (at - 1) >> 1
        if timers[up].time <= time:
            break
        timers[at].time = timers[up].time
        timers[at].head = timers[up].head
        at = up
    timers[at].time = time
    timers[at].head = head


@jit(inline=True)
def _pop_list(run: Any, timers: Any) -> Any:
    run.timers -= 1
    n = run.timers
    time = timers[n].time
    head = timers[n].head
    at = 0
    while True:
        child = 2 * at + 1
        if child >= n:
            break
        if child + 1 < n and timers[child + 1].time < timers[child].time:
            child += 1
        if time <= timers[child].time:
            break
        timers[at].time = timers[child].time
        timers[at].head = timers[child].head
        at = child
    timers[at].time = time
    timers[at].head = head


@jit(inline=True)
def take_event(run: Any, events: Any, code: Any) -> Any:
    """Return a new event; `advance` has seen to it that there is one."""
    event = run.event_free
    if event == NO_EVENT:
        event = run.events_used
        run.events_used += 1
    else:
        run.event_free = events[event].next
        run.events_free -= 1
    events[event].code = code
    events[event].next = NO_EVENT
    return event


@jit(inline=True)
def give_event(run: Any, events: Any, event: Any) -> Any:
    """Free an event; return the one after it in its list."""
    after = np.int64(events[event].next)
    events[event].next = run.event_free
    run.event_free = event
    run.events_free += 1
    return after


@jit(inline=True)
def start_timer(run: Any, events: Any, timers: Any, opened: Any, time: Any, code: Any) -> Any:
    """Schedule ``code`` (node * 2, + 1 for its completion) at ``time``.

    Events of one time hang together in a list, whose ends wait in one of a few open places
    (collectives in lockstep fill one list with thousands) or, once another time claims that
    place, in a heap. One time may have several lists.
    """
    event = take_event(run, events, code)
    place = opened[(time ^ time >> 7) & (OPEN - 1)]
    if place.time == time:
        events[place.tail].next = event
    else:
        if place.time < FOREVER:
            _push_list(run, timers, place.time, place.head)
        place.time = time
        place.head = event
    place.tail = event


@jit(inline=True)
def take_list(run: Any, timers: Any, opened: Any) -> Any:
    """Return the first event of a list of this instant, or NO_EVENT."""
    place = opened[(run.now ^ run.now >> 7) & (OPEN - 1)]
    if place.time == run.now:
        place.time = FOREVER
        return place.head
    if run.timers > 0 and timers[0].time == run.now:
        head = timers[0].head
        _pop_list(run, timers)
        return head
    return np.int64(NO_EVENT)


@jit
def start_nodes(
    run: Any, events: Any, delays: Any, timers: Any, opened: Any, base: Any, roots: Any, time: Any
) -> Any:
    """Schedule the first nodes of a block at ``time`` plus their delays."""
    for i in range(len(roots)):
        node = base + roots[i]
        start_timer(run, events, timers, opened, time + delays[node], node * 2)


@jit(inline=True)
def sift(ends: Any, where: Any, n: Any, at: Any) -> None:
    """Restore the finish heap of ``n`` ends around place ``at``; equal times keep any order.

    ``where`` holds the place of each slot.
    """
    time = ends[at].time
    slot = ends[at].slot
    while at > 0:
        up = (at - 1) >> 1
        if ends[up].time <= time:
            break
        ends[at].time = ends[up].time
        ends[at].slot = ends[up].slot
        where[ends[at].slot] = at
        at = up
    while True:
        child = 2 * at + 1
        if child >= n:
            break
        if child + 1 < n and ends[child + 1].time < ends[child].time:
            child += 1
        if ends[child].time >= time:
            break
        ends[at].time = ends[child].time
        ends[at].slot = ends[child].slot
        where[ends[at].slot] = at
        at = child
    ends[at].time = time
    ends[at].slot = slot
    where[slot] = at


@jit(inline=True)
def push_finish(run: Any, ends: Any, where: Any, slot: Any, time: Any) -> None:
    """Add a slot to the finish heap."""
    n = run.active
    run.active = n + 1
    ends[n].time = time
    ends[n].slot = slot
    sift(ends, where, n + 1, n)


@jit(inline=True)
def drop_finish(run: Any, ends: Any, where: Any, slot: Any) -> None:
    """Take a slot out of the finish heap."""
    run.active -= 1
    n = run.active
    at = np.int64(where[slot])
    if at != n:
        ends[at].time = ends[n].time
        ends[at].slot = ends[n].slot
        sift(ends, where, n, at)


@jit(inline=True)
def sort(values: Any, n: Any) -> None:
    """Sort ``values[:n]``, which often is nearly sorted, one way or the other, already."""
    falls = 0
    for i in range(1, n):
        if values[i] < values[i - 1]:
            falls += 1
    if falls == 0:
        return
    if 2 * falls > n:
        for i in range(n // 2):
            value = values[i]
            values[i] = values[n - 1 - i]
            values[n - 1 - i] = value
        falls = n - 1 - falls
    # Shell's sort (a library sort would take seconds more to compile), by its last pass alone
    # where few are out of place.
    gap = n if falls > 1 else 2
    while gap > 1:
        gap = gap * 4 // 9 if gap > 2 else 1
        for i in range(gap, n):
            value = values[i]
            at = i
            while at >= gap and values[at - gap] > value:
                values[at] = values[at - gap]
                at -= gap
            values[at] = value
