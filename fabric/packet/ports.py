# SPDX-License-Identifier: Apache-2.0
"""A port starts its next frame, compiled: scheduler, marking, wire time, and when it arrives.

Control classes are served strictly first, the others by deficit round robin (Shreedhar and
Varghese, SIGCOMM 1995; here a queue may overdraw by one frame). Marks are set at dequeue on the
bytes that stay behind (Zhu et al., SIGCOMM 2015). Cut-through begins after 128 bytes (assumption)
where the way on is free and no faster than the way in.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric._walk import mix
from railweave.fabric.jit import jit
from railweave.fabric.packet.buffers import PS_BYTE, give_back, serialise
from railweave.fabric.packet.events import push
from railweave.fabric.packet.hosts import after_emit, drop_idle, emit
from railweave.fabric.packet.layout import (
    ACK_REQUEST,
    ARRIVE,
    BARE,
    CE,
    CLASS_SHIFT,
    CONTROL,
    CREDIT,
    EFFECTIVE,
    FIRST,
    HEAD,
    HEADER_BYTES,
    KIND_ACK,
    KIND_NAK,
    KIND_SHIFT,
    LAST,
    NONE,
    TRIMMED,
    TX_END,
)
from railweave.fabric.packet.queues import free_packet, sent_before
from railweave.fabric.packet.trimming import headers_first

__all__ = ["chance", "mark", "start"]

_UNIT = 2.0**-53
_SENT = (1 << 30) - 1
_EVENTFUL = LAST | CE | ACK_REQUEST | CONTROL


@jit(inline=True)
def chance(key: Any, qp: Any, packet: Any) -> Any:
    """Return a packet's draw from [0, 1) of a named stream, whatever was drawn before.

    It repeats after 2^30 packets of a queue pair: 4 TiB in packets of 4 KiB.
    """
    flags = np.int64(packet.flag)
    sent = sent_before(qp, packet) & _SENT
    if flags & CONTROL:  # answers, and what counts apart from them
        sent |= 2 << 30
        if flags & (KIND_ACK | KIND_NAK) == 0:
            sent |= 1 << 30
    word = (np.uint64(qp.flow) << np.uint64(32)) | np.uint64(sent)
    return np.float64(mix(key ^ mix(word)) >> np.uint64(11)) * _UNIT


@jit(inline=True)
def mark(ports: Any, queue: Any, link: Any, qp: Any, packet: Any, behind: Any) -> None:
    """Mark a data packet that leaves ``behind`` bytes in its queue, by the queue's law."""
    if behind > queue.kmax:
        packet.flag |= CE
    elif behind > queue.kmin:
        odds = queue.pmax * (behind - queue.kmin) / (queue.kmax - queue.kmin)
        if chance(ports[link].draws, qp, packet) < odds:
            packet.flag |= CE
    if packet.flag & CE:
        queue.marked += 1


@jit(inline=True)
def _pick(egress: Any, port: Any, first: Any, ready: Any, strict: Any, classes: Any) -> Any:
    """Return the class whose turn it is among the bits of ``ready``."""
    urgent = ready >> strict
    if urgent != 0:
        klass = strict
        while urgent > 1:
            urgent >>= 1
            klass += 1
        return klass
    if ready & (ready - 1) == 0:
        klass = 0
        while ready > 1:
            ready >>= 1
            klass += 1
        return klass
    klass = np.int64(port.turn)
    while True:
        if (ready >> klass) & 1:
            if egress[first + klass].deficit > 0:
                port.turn = klass
                return klass
            egress[first + klass].deficit += egress[first + klass].quantum
        klass = (klass + 1) % strict


@jit(inline=True)
def start(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any, ingress: Any,
    switches: Any, swports: Any, packets: Any, qps: Any, rates: Any, nodes: Any, hops: Any,
    bits: Any, link: Any,
) -> None:  # fmt: skip
    """Start the next frame of a port, or see to it that it is tried when the wire is free."""
    run = runs[0]
    port = ports[link]
    now = run.now
    if port.svc_queue >= 0 and port.svc_end <= now:
        give_back(runs, ev, wheel, far, ports, egress, ingress, switches, swports, link)
    if port.busy > now:
        if port.pending == 0 and port.mask & ~port.blocked != 0:
            when = port.busy
            if port.svc_queue >= 0:
                when = port.svc_end
                if port.lazy == 1:
                    port.lazy = 0
                    switches[port.switch].lazy -= 1
                    ingress[port.svc_in].lazy -= 1
            port.pending = 1
            push(runs, ev, wheel, far, when, (TX_END << CLASS_SHIFT) | link, 0)
        return
    if port.pending == 1:  # its end of this instant is still to come
        return
    ready = port.mask & ~port.blocked
    if ready == 0 or port.up == 0:
        return
    if run.trim_wire > 0:
        ready = headers_first(run, port, ready)
    first = link * run.classes
    klass = _pick(egress, port, first, ready, run.strict, run.classes)
    row = egress[first + klass]
    if run.fold == 0 and row.ready >= 0:
        drop_idle(row, qps, bits)
        if row.head < 0 and row.ready < 0:
            port.mask &= ~(1 << klass)
            if port.mask & ~port.blocked != 0:  # try the other classes
                port.pending = 1
                push(runs, ev, wheel, far, now, (TX_END << CLASS_SHIFT) | link, 0)
            return
    pair = np.int64(NONE)
    number = np.int64(row.head)
    if row.ready >= 0 and (number < 0 or (run.nic_first == 0 and port.alternate != 1)):
        port.alternate = 1
        pair = np.int64(row.ready)
        row.ready = qps[pair].next
        number = emit(runs, ev, wheel, far, packets, qps, rates, nodes, bits, pair)
        packet = packets[number]
    else:
        packet = packets[number]
        port.alternate = 2 if packet.flag & CONTROL else 0
        row.head = packet.next
    if row.head < 0 and row.ready < 0:
        port.mask &= ~(1 << klass)
    wire = np.int64(packet.wire)
    inner = wire - run.gap
    if port.inside == 1 and packet.flag & (BARE | TRIMMED) == 0:
        wire -= run.overhead
        if packet.flag & FIRST:
            wire -= run.first
    flags = np.int64(packet.flag)
    ahead = np.int64(hops[packet.at].next)
    onward = np.int64(hops[ahead].link)
    held = np.int64(packet.ingress)
    behind = row.bytes - inner
    if behind > row.kmin and flags & CONTROL == 0 and run.enqueue_marks == 0:
        mark(ports, row, link, qps[packet.qp], packet, behind)
        flags = np.int64(packet.flag)
    row.frames += 1
    if run.strict > 1:
        row.deficit -= wire
    end = serialise(ports, link, now, wire)
    if flags & (CONTROL | TRIMMED):
        port.control_bytes += wire
    else:
        port.data_bytes += wire
        run.hops += 1
    if port.credit == 1 and onward != NONE:
        row.credit -= inner
        if row.credit < port.need:
            port.blocked |= 1 << klass
    lost = False
    if port.lossy == 1:
        pairs = qps[packet.qp]
        lost = chance(port.draws, pairs, packet) < port.loss or (
            pairs.lose >= 0 and flags & CONTROL == 0 and sent_before(pairs, packet) == pairs.lose
        )
    if lost:
        run.drops_random += 1
        row.lost += 1
        if run.fold == 0 or flags & CONTROL:
            qps[packet.qp].inflight -= 1
        free_packet(runs, packets, number)
    elif onward == NONE and run.fold == 1 and flags & _EVENTFUL == 0:
        free_packet(runs, packets, number)
    else:
        arrival = end + port.fixed
        kind = 0
        if run.cut == 1 and onward >= 0 and ports[onward].rate <= port.rate:
            kind = HEAD
            head = min(np.int64(wire), np.int64(HEADER_BYTES)) * PS_BYTE
            arrival = now + (head + port.rate - 1) // port.rate + port.fixed
        packet.at = ahead
        packet.next = onward
        key = (ARRIVE << CLASS_SHIFT) | (link << 4) | kind
        push(runs, ev, wheel, far, arrival, key, number)
    if pair >= 0:
        after_emit(runs, ev, wheel, far, ports, egress, qps, bits, pair, end)
    if held >= 0 and ingress[held].credit == 1:
        source = held // run.classes
        key = (EFFECTIVE << CLASS_SHIFT) | (CREDIT << KIND_SHIFT) | (source << 4)
        key |= held - source * run.classes
        push(runs, ev, wheel, far, end + ports[source].peer_prop, key, inner)
    need = port.mask & ~port.blocked != 0
    if port.switch >= 0:
        port.svc_queue = first + klass
        port.svc_in = held
        port.svc_bytes = inner
        port.svc_end = end
        if ingress[held].off == 1 or run.eager == 1:
            need = True
        if not need:
            port.lazy = 1
            switches[port.switch].lazy += 1
            ingress[held].lazy += 1
            ingress[held].quiet = link
    if need:
        port.pending = 1
        push(runs, ev, wheel, far, end, (TX_END << CLASS_SHIFT) | link, 0)
