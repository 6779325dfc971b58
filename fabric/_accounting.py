# SPDX-License-Identifier: Apache-2.0
"""Compiled sums over the transfers of a bound schedule: frames, paths, longest chain."""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric.jit import jit

__all__ = ["durations", "longest_chain", "paths_of_pairs", "wire_bytes"]


@jit
def wire_bytes(path: Any, size: Any, framing: Any, wire: Any, frame: Any) -> None:
    """Fill ``wire`` with the bytes of each transfer on its path's network links.

    ``frame`` has a row per framing: padding unit, payload of a packet, overhead of a packet,
    further overhead of the first. A transfer that crosses no link (path -1) has 0.
    """
    last_size = np.int64(-1)
    last_row = np.int64(-1)
    last_wire = np.int64(0)
    for i in range(len(path)):
        if path[i] < 0:
            wire[i] = 0
            continue
        row = np.int64(framing[path[i]])
        if size[i] != last_size or row != last_row:  # most are as the one before: spare divisions
            last_size = size[i]
            last_row = row
            pad = frame[row, 0]
            mtu = frame[row, 1]
            packets = (last_size + mtu - 1) // mtu if last_size > 0 else 1
            padded = (last_size + pad - 1) // pad * pad
            last_wire = padded + packets * frame[row, 2] + frame[row, 3]
        wire[i] = last_wire


@jit
def paths_of_pairs(
    kind: Any, src: Any, dst: Any, qp: Any, ranks: Any, qps: Any, table: Any, path: Any
) -> None:
    """Look the path of each transfer up by its pair of ranks and queue pair.

    ``table`` has an entry per ``(src * ranks + dst) * qps + qp``. Where ``path`` is empty, the
    entries of the pairs in use are set to 0 instead. ``qp`` may be empty: all 0.
    """
    for i in range(len(kind)):
        code = np.int64(-1)
        if kind[i] == 0 and src[i] != dst[i]:
            code = (np.int64(src[i]) * ranks + dst[i]) * qps
            if len(qp):
                code += qp[i]
        if len(path):
            path[i] = table[code] if code >= 0 else -1
        elif code >= 0:
            table[code] = 0


@jit
def durations(path: Any, wire: Any, size: Any, cost: Any, out: Any) -> None:
    """Fill ``out`` with the least time of each transfer alone on its path, 0 without a path.

    ``cost`` is float64 (paths, 5): latency ps, ps per byte of the first packet, largest first
    packet, ps per wire byte of the narrowest network link, ps per payload byte of the narrowest
    link inside a host. A transfer lasts its latency and its serialisation.
    """
    for i in range(len(path)):
        p = path[i]
        out[i] = 0
        if p >= 0:
            first = np.float64(wire[i])
            if first > cost[p, 2]:
                first = cost[p, 2]
            stored = np.rint(first * cost[p, 1])
            serial = wire[i] * cost[p, 3]
            if serial < size[i] * cost[p, 4]:
                serial = size[i] * cost[p, 4]
            near = np.rint(serial)
            if abs(serial - near) >= 1e-3:
                near = np.floor(serial)
            out[i] = np.int64(cost[p, 0] + stored + near)


@jit
def longest_chain(
    lasts: Any,
    delay: Any,
    waits: Any,
    left: Any,
    early: Any,
    succ_ptr: Any,
    succ: Any,
    ready: Any,
    queue: Any,
    begins: Any,
) -> Any:
    """Return the longest sum of delays and durations along a chain of dependencies.

    Parameters
    ----------
    lasts, delay
        int64 (nodes,): how long each node lasts, and what passes before.
    waits, left
        int32 (nodes,): predecessors, and runs; overwritten.
    succ_ptr, succ
        As in `railweave.fabric.fluid_graph.FluidGraph`.
    early, ready
        (nodes,): working room that comes filled with 0.
    queue, begins
        Working room for twice the nodes.
    """
    room = len(queue)
    head = 0
    waiting = 0
    for node in range(len(lasts)):
        if waits[node] == 0:
            queue[waiting] = node
            begins[waiting] = 0
            waiting += 1
    longest = np.int64(0)
    while waiting > 0:
        node = queue[head]
        begin = begins[head]
        head = (head + 1) % room
        waiting -= 1
        end = begin + delay[node] + lasts[node]
        if end > longest:
            longest = end
        left[node] -= 1
        if early[node] > 0:  # released before its first run: runs as soon as that one
            early[node] -= 1
            queue[(head + waiting) % room] = node
            begins[(head + waiting) % room] = begin
            waiting += 1
        for e in range(succ_ptr[node], succ_ptr[node + 1]):
            again = succ[e] < 0
            if again != (left[node] > 0):
                continue
            after = ~succ[e] if again else succ[e]
            starts = end
            if again:
                if waits[after] > 0:
                    early[after] += 1
                    continue
            else:
                if end > ready[after]:
                    ready[after] = end
                waits[after] -= 1
                if waits[after] > 0:
                    continue
                starts = ready[after]
            queue[(head + waiting) % room] = after
            begins[(head + waiting) % room] = starts
            waiting += 1
    return longest
