# SPDX-License-Identifier: Apache-2.0
"""The dependency graph, compiled: nodes begin, end and release others, and become messages.

A looped node (see `railweave.fabric.loops`) is one row however often it runs. Its first run waits
for its predecessors; each later one is released by a run of one other node, and starts no earlier
than the run before it. A message that such a node sends has a row of its own while it is under
way, whose ``parent`` is the node.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric.jit import jit
from railweave.fabric.packet.events import push
from railweave.fabric.packet.layout import CLASS_SHIFT, DONE, KIND_SHIFT, NONE, POST, SEND

__all__ = [
    "begin",
    "complete",
    "early",
    "free_row",
    "message_bytes",
    "packets_of",
    "take_row",
    "turn",
]


@jit(inline=True)
def begin(runs: Any, ev: Any, wheel: Any, far: Any, qps: Any, nodes: Any, number: Any) -> None:
    """Schedule what a node that was released does first."""
    node = nodes[number]
    at = runs[0].now + node.delay
    if node.qp >= 0:
        at += qps[node.qp].latency
        key = (SEND << CLASS_SHIFT) | (POST << KIND_SHIFT) | number
        push(runs, ev, wheel, far, at, key, 0)
    else:
        push(runs, ev, wheel, far, at, (DONE << CLASS_SHIFT) | number, number)


@jit(inline=True)
def early(
    runs: Any, ev: Any, wheel: Any, far: Any, loops: Any, node: Any, key: Any, arg: Any
) -> None:
    """Let a run that was released before the first one happen right after it."""
    loop = loops[node.loop]
    if loop.early > 0:
        loop.early -= 1
        push(runs, ev, wheel, far, runs[0].now, key, arg)


@jit(inline=True)
def complete(
    runs: Any, nodes: Any, loops: Any, groups: Any, succ: Any, ready: Any, number: Any
) -> None:
    """End a run of a node: count it off its group, and release what waited for it."""
    run = runs[0]
    node = nodes[number]
    group = groups[node.group]
    if group.left <= 0:  # cancelled
        return
    left = 0
    if node.loop >= 0:
        loops[node.loop].left -= 1
        left = loops[node.loop].left
    for i in range(node.succ, node.succ + node.n_succ):
        again = succ[i] < 0
        if again != (left > 0):  # runs release runs, the last one releases what comes after
            continue
        after = np.int64(group.first + (~succ[i] if again else succ[i]))
        if again:
            if nodes[after].deps > 0:
                loops[nodes[after].loop].early += 1
                continue
        else:
            nodes[after].deps -= 1
            if nodes[after].deps > 0:
                continue
        ready[run.ready] = after
        run.ready += 1
    group.left -= 1
    if group.left == 0:
        groups[run.done].done = node.group
        run.done += 1


@jit(inline=True)
def message_bytes(nodes: Any, loops: Any, number: Any) -> Any:
    """Payload of the message that a node sends next."""
    size = nodes[number].payload
    if nodes[number].loop >= 0:
        loop = loops[nodes[number].loop]
        if loop.part < loop.longer:
            size += 1
    return size


@jit(inline=True)
def turn(loops: Any, node: Any) -> None:
    """Move a looped node on to its next message."""
    loop = loops[node.loop]
    loop.part = (loop.part if loop.part > 0 else loop.cycle) - 1


@jit(inline=True)
def packets_of(run: Any, size: Any) -> Any:
    """Packets of a message; an empty one has one."""
    return max((size + run.mtu - 1) // run.mtu, 1)


@jit(inline=True)
def take_row(runs: Any, nodes: Any, number: Any, size: Any) -> Any:
    """Give a message of a looped node a row of its own; the event loop sees to it there is one."""
    run = runs[0]
    row = np.int64(run.row_free)
    run.row_free = nodes[row].next
    run.row_left -= 1
    message = nodes[row]
    message.payload = size
    message.qp = nodes[number].qp
    message.group = nodes[number].group
    message.packets = packets_of(run, size)
    message.parent = number
    message.loop = NONE
    return row


@jit(inline=True)
def free_row(runs: Any, nodes: Any, row: Any) -> None:
    """Give the row of a message back, if it is not a node's own."""
    if nodes[row].parent != row:
        nodes[row].next = runs[0].row_free
        runs[0].row_free = row
        runs[0].row_left += 1
