# SPDX-License-Identifier: Apache-2.0
"""When the frames of a message leave each port that nobody else uses, compiled.

Ports in a row that serve one queue pair are queues in tandem: frame ``k`` leaves port ``j`` at
``D(j, k) = max(arrival(j, k), D(j, k - 1)) + wire(k) * tau(j)``, and arrives at the next one a
propagation and a switch's pipeline later (Friedman, "Reduction methods for tandem queuing systems",
Operations Research 13(1), 1965). That is linear over (max, +): once a frame of full size leaves
every port by the same time after the one before it, all further ones of that size do. So a message
costs a few frames, whatever its length.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric.jit import jit
from railweave.fabric.packet.buffers import PS_BYTE
from railweave.fabric.packet.layout import (
    CARRY,
    ENDS,
    FREE_AT,
    HEADER_BYTES,
    MOST_HOPS,
    PEAK,
    SIZES,
    WAITING,
    WAITS,
)

__all__ = ["send_frames"]


@jit(inline=True)
def _begin(ports: Any, hops: Any, first: Any, n: Any, trail: Any, base: Any, before: Any) -> None:
    """Begin where the flight ``before`` left the ports, or as they stand."""
    for h in range(n):
        row = base + h
        if before >= 0:
            old = before * MOST_HOPS + h
            trail[row, FREE_AT] = trail[old, FREE_AT]
            trail[row, CARRY] = trail[old, CARRY]
            trail[row, WAITS] = trail[old, WAITS]
            for i in range(trail[old, WAITS]):
                trail[row, ENDS + i] = trail[old, ENDS + i]
                trail[row, SIZES + i] = trail[old, SIZES + i]
        else:
            port = ports[hops[first + h].link]
            trail[row, FREE_AT] = port.busy
            trail[row, CARRY] = port.carry
            trail[row, WAITS] = 0
        trail[row, PEAK] = 0


@jit(inline=True)
def _store(trail: Any, row: Any, at: Any, size: Any) -> Any:
    """Find what a switch holds as a frame arrives, itself included; -1: more frames than fit."""
    waits = trail[row, WAITS]
    gone = 0
    while gone < waits and trail[row, ENDS + gone] <= at:
        gone += 1
    waits -= gone
    held = size
    for i in range(waits):
        trail[row, ENDS + i] = trail[row, ENDS + i + gone]
        trail[row, SIZES + i] = trail[row, SIZES + i + gone]
        held += trail[row, SIZES + i]
    trail[row, WAITS] = waits
    if waits == WAITING:
        return np.int64(-1)
    if held > trail[row, PEAK]:
        trail[row, PEAK] = held
    return held


@jit(inline=True)
def _skip(trail: Any, base: Any, n: Any, by: Any) -> None:
    """Move everything on by the time of so many frames."""
    for h in range(n):
        row = base + h
        trail[row, FREE_AT] += by
        for i in range(trail[row, WAITS]):
            trail[row, ENDS + i] += by


@jit
def send_frames(
    runs: Any, ports: Any, qps: Any, hops: Any, lanes: Any, flights: Any, trail: Any, number: Any,
    before: Any,
) -> Any:  # fmt: skip
    """Work out a flight behind ``before`` (-1: nobody); return 1, or 0 if it could have an effect.

    Its trail tells when each port is free again and what the switch at it held at most.
    """
    run = runs[0]
    flight = flights[number]
    lane = lanes[flight.lane]
    qp = qps[flight.lane]
    first = np.int64(qp.path)
    n = np.int64(lane.hops)
    base = number * MOST_HOPS
    _begin(ports, hops, first, n, trail, base, before)
    last = flight.payload - (flight.packets - 1) * run.mtu
    full = np.int64(run.mtu)
    if qp.pad > 1:
        last = (last + 3) // 4 * 4
        full = (full + 3) // 4 * 4
    last += qp.overhead
    full += qp.overhead
    packets = np.int64(flight.packets)
    flight.wire = (packets - 1) * full + last + qp.first
    k = np.int64(0)
    alike = 0
    while k < packets:
        size = last if k == packets - 1 else full
        if k == 0:
            size += qp.first
        arrives = np.int64(flight.post)
        settled = bool(k > 0)
        step = np.int64(0)
        for h in range(n):
            row = base + h
            port = ports[hops[first + h].link]
            free = trail[row, FREE_AT]
            if h > 0:
                held = _store(trail, row, arrives, size - run.gap)
                if held < 0 or held > lane.most:
                    return 0
            start = max(arrives, free)
            if port.tau > 0:
                end = start + size * port.tau
            else:
                carry = trail[row, CARRY] if start == free else 0
                total = size * PS_BYTE + carry
                end = start + total // port.rate
                trail[row, CARRY] = total % port.rate
                settled = False
            trail[row, FREE_AT] = end
            if h == 0:
                flight.last_start = start
                step = end - free
            else:
                waits = trail[row, WAITS]
                trail[row, ENDS + waits] = end
                trail[row, SIZES + waits] = size - run.gap
                trail[row, WAITS] = waits + 1
                settled = settled and bool(end - free == step and waits < 2)
            arrives = end + port.fixed
            if run.cut == 1 and h + 1 < n and ports[hops[first + h + 1].link].rate <= port.rate:
                head = min(size, HEADER_BYTES) * PS_BYTE
                arrives = start + (head + port.rate - 1) // port.rate + port.fixed
                if trail[row + 1, FREE_AT] > arrives:  # no cutting through
                    rest = max(size - HEADER_BYTES, 0) * PS_BYTE
                    arrives += (rest + port.rate - 1) // port.rate
        flight.until = arrives
        flight.last_wire = size
        k += 1
        alike = alike + 1 if settled else 0
        if alike >= 2 and k < packets - 1:
            _skip(trail, base, n, (packets - 1 - k) * step)
            k = packets - 1
    return 1
