# SPDX-License-Identifier: Apache-2.0
"""The fluid engine's dependency graph, compiled: nodes start, complete and take turns.

numba's cache watches one file at a time: whoever changes this file must touch `_fluid_kernel` too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric._fluid_events import start_timer
from railweave.fabric._fluid_layout import NO_NODE
from railweave.fabric.jit import jit

__all__ = ["complete_node", "next_in_lane", "start_node", "tail_ps", "write_nodes"]


@jit
def write_nodes(
    nodes: Any, base: Any, path: Any, wire: Any, succ_ptr: Any, edge: Any, group: Any
) -> Any:
    """Write a schedule's nodes from row ``base`` on; its successors lie from ``edge`` on."""
    for i in range(len(path)):
        node = nodes[base + i]
        node.path = path[i]
        node.wire = wire[i]
        node.group = group
        node.succ = edge + succ_ptr[i]
        node.n_succ = succ_ptr[i + 1] - succ_ptr[i]


@jit
def tail_ps(paths: Any, path: Any, wire: Any) -> Any:
    """Latency after the last bit left the narrowest link."""
    if path < 0:
        return 0
    first = np.float64(wire)
    if first > paths[path].first:
        first = paths[path].first
    return paths[path].latency + np.int64(np.rint(first * paths[path].per_byte))


@jit
def start_node(
    run: Any, nodes: Any, timers: Any, opened: Any, paths: Any, order: Any, number: Any
) -> Any:
    """Start a node now: a flow joins the arrivals, anything else completes after its latency."""
    node = nodes[number]
    if node.path >= 0 and node.wire > 0:
        order[run.arrivals] = number
        run.arrivals += 1
    else:
        tail = tail_ps(paths, node.path, node.wire)
        start_timer(run, nodes, timers, opened, run.now + tail, number * 2 + 1)


@jit
def complete_node(
    run: Any,
    nodes: Any,
    delays: Any,
    succ: Any,
    groups: Any,
    timers: Any,
    opened: Any,
    paths: Any,
    order: Any,
    number: Any,
) -> Any:
    """Complete a node: release its successors and perhaps its group."""
    node = nodes[number]
    node.deps = -1
    group = groups[node.group]
    group.left -= 1
    if group.left == 0:
        groups[run.done].done = node.group
        run.done += 1
    for e in range(node.succ, node.succ + node.n_succ):
        after = group.first_node + succ[e]
        nodes[after].deps -= 1
        if nodes[after].deps == 0:
            if delays[after] > 0:
                start_timer(run, nodes, timers, opened, run.now + delays[after], after * 2)
            else:
                start_node(run, nodes, timers, opened, paths, order, after)


@jit
def next_in_lane(run: Any, nodes: Any, lanes: Any, order: Any, path: Any) -> None:
    """Let the next message of a path arrive, now that the one before has left.

    ``order`` is being read from the front: what has been read is at least as long as the arrivals.
    """
    lane = lanes[path]
    if lane.head == NO_NODE:
        lane.busy = 0
        return
    lane.reserved = lane.head
    order[run.arrivals] = lane.head
    run.arrivals += 1
    lane.head = nodes[lane.head].next
