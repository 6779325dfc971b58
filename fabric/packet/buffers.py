# SPDX-License-Identifier: Apache-2.0
"""Shared buffers and priority flow control, compiled.

A stored packet counts against its ingress (which drives pauses) and its egress (marks, drops).
Dynamic thresholds: Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet
switches", IEEE/ACM ToN 6(2), 1998. Pauses: IEEE 802.1Qbb; a pause frame jumps all queues of its
port but waits for the frame on the wire, and pauses of one port take effect in their order.

The end of a frame that nobody waits for has no event: its room counts as taken until a decision
depends on it. So counters are upper bounds; where those do not decide, `settle` makes them exact.
A paused queue has no such frames: their ends may resume its sender.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric.jit import jit
from railweave.fabric.packet.events import push
from railweave.fabric.packet.layout import (
    CLASS_SHIFT,
    EFFECTIVE,
    KIND_SHIFT,
    NONE,
    PAUSE,
    REFRESH,
    TIMER,
    TX_END,
)

__all__ = [
    "admit",
    "give_back",
    "leave_quietly",
    "refresh",
    "release",
    "send_pause",
    "serialise",
    "settle",
]

_MOST_QUANTA = 65535
PS_BYTE = 8 * 10**12


@jit(inline=True)
def serialise(ports: Any, link: Any, start: Any, size: Any) -> Any:
    """Take the wire of a port for ``size`` bytes from ``start`` on; return when it is free again.

    Where a byte takes no whole number of ps, the remainder is carried over to the next frame, and
    forgotten when the wire falls idle: no drift.
    """
    port = ports[link]
    if port.tau > 0:
        end = start + size * port.tau
    else:
        carry = port.carry
        if start > port.busy:
            carry = 0
        total = size * PS_BYTE + carry
        end = start + total // port.rate
        port.carry = total % port.rate
    port.busy = end
    return end


@jit(inline=True)
def send_pause(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, ingress: Any, queue: Any, quanta: Any
) -> None:
    """Send a pause (or, with 0 quanta, a resume) frame to the sender of an ingress queue.

    Nothing is sent over a link that is down; `Failures.change` says it again when that is repaired.
    """
    run = runs[0]
    link = queue // run.classes
    klass = queue - link * run.classes
    back = ports[link ^ 1]
    if back.up == 0:
        return
    start = max(run.now, back.busy)
    end = serialise(ports, link ^ 1, start, run.pfc_wire)
    back.pauses += 1
    if quanta > 0:
        ingress[queue].sent += 1
    back.control_bytes += run.pfc_wire
    at = end + back.prop + ports[link].response
    key = (EFFECTIVE << CLASS_SHIFT) | (PAUSE << KIND_SHIFT) | (link << 4) | klass
    push(runs, ev, wheel, far, at, key, quanta)


@jit(inline=True)
def refresh_ps(run: Any, port: Any) -> Any:
    """Return how long after an XOFF it is repeated."""
    if run.refresh_ps > 0:
        return run.refresh_ps
    return _MOST_QUANTA * port.quantum // 2


@jit(inline=True)
def _threshold(run: Any, own: Any, switch: Any) -> Any:
    """Return what an ingress queue may share now."""
    if own.alpha > 0.0:
        return own.alpha * (switch.total - switch.shared)
    return own.xoff * 1.0


@jit(inline=True)
def leave_quietly(ports: Any, egress: Any, ingress: Any, switches: Any, link: Any) -> None:
    """Free the room of a frame that has left a port without an event."""
    port = ports[link]
    size = port.svc_bytes
    own = ingress[port.svc_in]
    switch = switches[port.switch]
    egress[port.svc_queue].bytes -= size
    port.svc_queue = NONE
    port.lazy = 0
    switch.lazy -= 1
    own.lazy -= 1
    if own.kind == 0:
        switch.shared -= size
        return
    before = max(own.held - own.reserve, 0)
    own.held -= size
    switch.shared -= before - max(own.held - own.reserve, 0)


@jit
def _settle_some(
    run: Any, ports: Any, egress: Any, ingress: Any, switches: Any, swports: Any, number: Any,
    queue: Any,
) -> None:  # fmt: skip
    """Do what `settle` does for the frames that came by one ingress queue (NONE: by any)."""
    sole = np.int64(NONE)
    if queue >= 0 and ingress[queue].lazy == 1:  # mostly it is the one that was the last to start
        last = np.int64(ingress[queue].quiet)
        if ports[last].lazy == 1 and ports[last].svc_in == queue:
            sole = last
    for i in range(switches[number].first, switches[number].last):
        link = np.int64(swports[i]) if sole < 0 else sole
        port = ports[link]
        if (
            port.lazy == 1
            and (queue < 0 or port.svc_in == queue)
            and (port.svc_end < run.now or (port.svc_end == run.now and link < run.tie))
        ):
            leave_quietly(ports, egress, ingress, switches, link)
        if sole >= 0 or (queue >= 0 and ingress[queue].lazy == 0):
            return


@jit(inline=True)
def settle(
    run: Any, ports: Any, egress: Any, ingress: Any, switches: Any, swports: Any, number: Any
) -> None:
    """Free the room of every frame of a switch that has left without an event."""
    _settle_some(run, ports, egress, ingress, switches, swports, number, NONE)


@jit(inline=True)
def _resumes(
    run: Any, ports: Any, egress: Any, ingress: Any, switches: Any, swports: Any, own: Any,
    number: Any,
) -> Any:  # fmt: skip
    """Tell whether a paused queue without headroom in use lies at its XON threshold or below."""
    used = max(own.held - own.reserve, 0)
    if own.alpha == 0.0:
        return used <= own.xon
    switch = switches[number]
    free = switch.total - switch.shared
    if used <= max(own.alpha * free - own.hysteresis, 0.0):
        return True
    if switch.lazy == 0 or used > own.alpha * (free + switch.lazy * run.frame) - own.hysteresis:
        return False
    settle(run, ports, egress, ingress, switches, swports, number)
    return used <= max(own.alpha * (switch.total - switch.shared) - own.hysteresis, 0.0)


@jit(inline=True)
def release(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any, ingress: Any,
    switches: Any, swports: Any, queue: Any, size: Any, number: Any,
) -> None:  # fmt: skip
    """Free the room of a packet of ingress ``queue``, and resume its sender."""
    switch = switches[number]
    own = ingress[queue]
    if own.kind == 0:
        switch.shared -= size
        return
    from_head = min(own.head, size)
    own.head -= from_head
    before = max(own.held - own.reserve, 0)
    own.held -= size - from_head
    switch.shared -= before - max(own.held - own.reserve, 0)
    if (
        own.off == 1
        and own.head == 0
        and _resumes(runs[0], ports, egress, ingress, switches, swports, own, number)
    ):
        own.off = 0
        send_pause(runs, ev, wheel, far, ports, ingress, queue, 0)


@jit(inline=True)
def give_back(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any, ingress: Any,
    switches: Any, swports: Any, link: Any,
) -> None:  # fmt: skip
    """Free the room of the frame whose last bit has left a port, and resume its sender."""
    port = ports[link]
    if port.lazy == 1:
        leave_quietly(ports, egress, ingress, switches, link)
        return
    size = port.svc_bytes
    queue = port.svc_in
    egress[port.svc_queue].bytes -= size
    port.svc_queue = NONE
    release(
        runs, ev, wheel, far, ports, egress, ingress, switches, swports, queue, size,
        np.int64(port.switch),
    )  # fmt: skip


@jit(inline=True)
def _watch(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, ingress: Any, switches: Any,
    swports: Any, number: Any, queue: Any,
) -> None:  # fmt: skip
    """Give an event to the end of each frame in service that came from a queue just paused."""
    for i in range(switches[number].first, switches[number].last):
        link = np.int64(swports[i])
        port = ports[link]
        if port.lazy == 1 and port.svc_in == queue:
            port.lazy = 0
            switches[number].lazy -= 1
            ingress[queue].lazy -= 1
            port.pending = 1
            key = (TX_END << CLASS_SHIFT) | link
            push(runs, ev, wheel, far, port.svc_end, key, 0)


@jit(inline=True)
def admit(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any, ingress: Any,
    switches: Any, swports: Any, queue: Any, out: Any, size: Any,
) -> Any:  # fmt: skip
    """Find room for a packet that came by ingress ``queue`` and leaves by egress ``out``.

    Returns 1 if it was stored, 0 if it must be dropped.
    """
    run = runs[0]
    own = ingress[queue]
    number = own.switch
    switch = switches[number]
    leaving = egress[out]
    if own.kind == 0:
        for attempt in range(2):
            free = switch.total - switch.shared
            most = min(leaving.limit * free, leaving.room * 1.0)
            if size <= free and leaving.bytes + size <= most:
                switch.shared += size
                leaving.bytes += size
                leaving.peak = max(leaving.peak, leaving.bytes)
                return 1
            if attempt == 1 or switch.lazy == 0:
                break
            settle(run, ports, egress, ingress, switches, swports, number)
        leaving.dropped += 1
        return 0
    if own.kind == 2:  # its sender held credit for it
        if own.lazy > 0 and own.held + size > own.peak:
            _settle_some(run, ports, egress, ingress, switches, swports, number, queue)
        switch.shared += size
        own.held += size
        own.peak = max(own.peak, own.held)
        leaving.bytes += size
        leaving.peak = max(leaving.peak, leaving.bytes)
        return 1
    # While a queue is paused, the ends of its frames have events, and what it may share does not
    # matter. Otherwise its peak must not be decided by frames that may have left, nor a threshold.
    if switch.lazy > 0 and own.off == 0:
        if own.lazy > 0 and own.held + size > own.peak:
            _settle_some(run, ports, egress, ingress, switches, swports, number, queue)
        above = own.held + size - own.reserve
        if above > 0:
            after = switch.shared + above - max(own.held - own.reserve, 0)
            sure = after <= switch.total
            if sure and own.alpha > 0.0:
                sure = above <= own.alpha * (switch.total - after)
            elif sure:
                sure = above <= own.xoff
            if not sure:
                settle(run, ports, egress, ingress, switches, swports, number)
    used = max(own.held - own.reserve, 0)
    above = max(own.held + size - own.reserve, 0)
    if own.held + size <= own.reserve:
        own.held += size
    elif (
        own.head == 0
        and own.off == 0
        and own.held - own.reserve < _threshold(run, own, switch)
        and switch.shared + above - used <= switch.total
    ):
        own.held += size
        switch.shared += above - used
    elif own.head + size <= own.room:
        own.head += size
    else:
        own.dropped += 1
        run.violations += 1
        return 0
    own.peak = max(own.peak, own.held + own.head)
    leaving.bytes += size
    leaving.peak = max(leaving.peak, leaving.bytes)
    if own.off == 0 and (own.head > 0 or own.held - own.reserve > _threshold(run, own, switch)):
        own.off = 1
        own.since = run.now
        send_pause(runs, ev, wheel, far, ports, ingress, queue, _MOST_QUANTA)
        if own.lazy > 0:
            _watch(runs, ev, wheel, far, ports, ingress, switches, swports, number, queue)
        if run.pfc_expiry == 1 and own.refresh == 0:
            own.refresh = 1
            at = run.now + refresh_ps(run, ports[queue // run.classes])
            key = (TIMER << CLASS_SHIFT) | (REFRESH << KIND_SHIFT) | queue
            push(runs, ev, wheel, far, at, key, 0)
    return 1


@jit(inline=True)
def refresh(runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, ingress: Any, queue: Any) -> None:
    """Repeat an XOFF half a pause after it was sent, for as long as the queue stays above XON."""
    run = runs[0]
    own = ingress[queue]
    own.refresh = 0
    if own.off == 0:
        return
    every = refresh_ps(run, ports[queue // run.classes])
    if run.now - own.since >= every:
        own.since = run.now
        send_pause(runs, ev, wheel, far, ports, ingress, queue, _MOST_QUANTA)
    own.refresh = 1
    key = (TIMER << CLASS_SHIFT) | (REFRESH << KIND_SHIFT) | queue
    push(runs, ev, wheel, far, own.since + every, key, 0)
