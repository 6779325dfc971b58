# SPDX-License-Identifier: Apache-2.0
"""Sums over the transfers of a bound schedule: frames, least times, the longest chain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.fabric.jit import jit
from railweave.fabric.usage import blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["durations", "longest_chain", "wire_bytes"]


def wire_bytes(
    path: NDArray[np.int32],
    size: NDArray[np.int64],
    framing: NDArray[np.int8],
    frame: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the bytes of each transfer on its path's network links, int64.

    ``frame`` has a row per framing: padding unit, payload of a packet, overhead of a packet,
    further overhead of the first. A transfer that crosses no link (path -1) has 0.
    """
    wire = np.zeros(len(path), np.int64)
    kind = np.append(framing, -1)[path]  # [-1]: no path
    for row, (pad, mtu, overhead, first) in enumerate(frame.tolist()):
        own: Any = kind == row
        if own.all():
            own = slice(None)
        elif not own.any():
            continue
        payload = size[own]
        packets = np.maximum(-(-payload // mtu), 1)
        padded = payload if pad == 1 else -(-payload // pad) * pad
        wire[own] = padded + packets * overhead + first
    return wire


def durations(
    path: NDArray[np.int32],
    wire: NDArray[np.int64],
    size: NDArray[np.int64],
    cost: NDArray[np.float64],
) -> NDArray[np.int64]:
    """Return the least time of each transfer alone on its path, int64 ps, 0 without a path.

    ``cost`` is float64 (paths, 5): latency ps, ps per byte of the first packet, largest first
    packet, ps per wire byte of the narrowest network link, ps per payload byte of the narrowest
    link inside a host. A transfer lasts its latency and its serialisation.
    """
    out = np.zeros(len(path), np.int64)
    for own in blocks(np.flatnonzero(path >= 0)):
        latency, per_byte, largest, wire_ps, payload_ps = cost[path[own]].T
        stored = np.rint(np.minimum(wire[own], largest) * per_byte)
        serial = np.maximum(wire[own] * wire_ps, size[own] * payload_ps)
        near = np.rint(serial)
        whole = np.where(np.abs(serial - near) >= 1e-3, np.floor(serial), near)
        out[own] = (latency + stored + whole).astype(np.int64)
    return out


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
        for e in range(succ_ptr[node], succ_ptr[node + 1]):
            again = succ[e] < 0
            if again != (left[node] > 0):
                continue
            after = ~succ[e] if again else succ[e]
            starts = end
            runs = 1
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
                runs += early[after]  # released before the first run: no sooner than that one
            for _ in range(runs):  # those of a node stay in their order
                queue[(head + waiting) % room] = after
                begins[(head + waiting) % room] = starts
                waiting += 1
    return longest
