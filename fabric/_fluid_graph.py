# SPDX-License-Identifier: Apache-2.0
"""The fluid engine's dependency graph, compiled: nodes start, complete and release others.

A looped node (see `railweave.fabric.loops`) is one row however often it runs. Its first run waits
for its predecessors; each later one is released by a run of one other node, and starts no earlier
than the run before it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric._fluid_events import give_event, start_timer
from railweave.fabric._fluid_layout import NO_EVENT, NO_NODE
from railweave.fabric.jit import jit

__all__ = ["complete_node", "message_bytes", "next_in_lane", "start_node", "tail_ps"]


@jit(inline=True)
def tail_ps(paths: Any, path: Any, wire: Any) -> Any:
    """Latency after the last bit left the narrowest link."""
    if path < 0:
        return 0
    first = np.float64(wire)
    if first > paths[path].first:
        first = paths[path].first
    return paths[path].latency + np.int64(np.rint(first * paths[path].per_byte))


@jit(inline=True)
def message_bytes(nodes: Any, loops: Any, number: Any) -> Any:
    """Wire bytes of the message that a node sends now or next."""
    wire = nodes[number].wire
    if nodes[number].loop >= 0:
        loop = loops[nodes[number].loop]
        if loop.part < loop.longer:
            wire += loop.longer_by
    return wire


@jit(inline=True)
def start_node(
    run: Any, nodes: Any, events: Any, timers: Any, opened: Any, order: Any, number: Any
) -> Any:
    """Start a node now: a message joins the arrivals, anything else completes at once."""
    if nodes[number].path >= 0:
        order[run.arrivals] = number
        run.arrivals += 1
    else:
        start_timer(run, events, timers, opened, run.now, number * 2 + 1)


@jit(inline=True)
def complete_node(
    run: Any,
    nodes: Any,
    loops: Any,
    events: Any,
    delays: Any,
    succ: Any,
    groups: Any,
    timers: Any,
    opened: Any,
    order: Any,
    number: Any,
) -> Any:
    """Complete a run of a node: release its successors and perhaps its group."""
    node = nodes[number]
    group = groups[node.group]
    group.left -= 1
    if group.left == 0:
        groups[run.done].done = node.group
        run.done += 1
    left = 0
    if node.loop >= 0:
        loops[node.loop].left -= 1
        left = loops[node.loop].left
    if left == 0:
        node.deps = -1
        if group.timed:
            node.wire = run.now
    for e in range(node.succ, node.succ + node.n_succ):
        again = succ[e] < 0
        if again != (left > 0):  # runs release runs, the last one releases what comes after
            continue
        after = group.first_node + (~succ[e] if again else succ[e])
        starts = 1
        if again:
            if nodes[after].deps > 0:
                loops[nodes[after].loop].early += 1
                run.events_need += 1
                continue
        else:
            nodes[after].deps -= 1
            if nodes[after].deps > 0:
                continue
            if nodes[after].loop >= 0:
                starts += loops[nodes[after].loop].early
                run.events_need -= loops[nodes[after].loop].early
                loops[nodes[after].loop].early = 0
        for _ in range(starts):
            if delays[after] > 0:
                start_timer(run, events, timers, opened, run.now + delays[after], after * 2)
            else:
                start_node(run, nodes, events, timers, opened, order, after)


@jit(inline=True)
def next_in_lane(run: Any, events: Any, lanes: Any, order: Any, path: Any) -> None:
    """Let the next message of a path arrive, now that the one before has left."""
    lane = lanes[path]
    if lane.head == NO_EVENT:
        lane.busy = 0
        lane.reserved = NO_NODE
        return
    lane.reserved = events[lane.head].code
    order[run.arrivals] = lane.reserved
    run.arrivals += 1
    lane.head = give_event(run, events, np.int64(lane.head))
