# SPDX-License-Identifier: Apache-2.0
"""Sending ends of queue pairs, compiled: messages become packets, at their rate and in turn."""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric.jit import jit
from railweave.fabric.packet.credit import announce, next_entropy
from railweave.fabric.packet.events import push
from railweave.fabric.packet.layout import (
    ACK_REQUEST,
    CC_NONE,
    CLASS_BITS,
    CLASS_SHIFT,
    FIRST,
    KIND_CREDIT,
    KIND_SHIFT,
    LAST,
    NEW_WINDOW,
    NONE,
    PACE,
    QP_BLOCKED,
    QP_IDLE,
    QP_PACED,
    QP_READY,
    RESENT,
    RTO,
    SACKED,
    SELECTIVE,
    SEND,
    SPREAD_FLOWLET,
    TIMER,
    TRIM,
    TRUST,
    WANTED,
)
from railweave.fabric.packet.queues import take_packet
from railweave.fabric.packet.rates import count_bytes, gap_ps, reset

__all__ = ["after_emit", "drop_idle", "emit", "post", "resume", "start_rto", "wake"]


@jit(inline=True)
def _hole(qp: Any, bits: Any) -> Any:
    """Return the next packet that a selective repeat owes, or NONE; moves past those arrived."""
    if qp.mode == TRIM:  # it owes what it was told to be lost, nothing else
        if qp.wanted == 0:
            return np.int64(NONE)
        qp.scan = max(qp.scan, qp.una)
        while qp.scan < qp.high and bits[qp.bits + (qp.scan & (qp.window - 1))] & WANTED == 0:
            qp.scan += 1
        return np.int64(qp.scan)
    if qp.recover < 0:
        return np.int64(NONE)
    qp.scan = max(qp.scan, qp.una)
    while qp.scan < qp.sacked:
        if bits[qp.bits + (qp.scan & (qp.window - 1))] & SACKED == 0:
            return qp.scan
        qp.scan += 1
    return np.int64(NONE)


@jit(inline=True)
def may_send(qp: Any, bits: Any) -> Any:
    """Tell whether a queue pair has a packet that it may send: 1, or why not."""
    if qp.mode >= SELECTIVE and _hole(qp, bits) >= 0:
        return 1 if qp.mode == SELECTIVE or qp.used < qp.grant else -1
    if qp.node < 0:
        return 0
    if qp.mode == TRIM:
        return 1 if qp.used < qp.grant and qp.psn - qp.una < qp.window else -1
    if qp.cap_packets > 0 and (
        qp.psn - qp.una - qp.sacks >= qp.cap_packets or qp.psn - qp.una >= qp.window
    ):
        return -1
    return 1


@jit(inline=True)
def drop_idle(row: Any, qps: Any, bits: Any) -> None:
    """Take queue pairs off the front of a ready list that have nothing left to send.

    What they owed may have been acknowledged while they waited their turn.
    """
    while row.ready >= 0:
        qp = qps[row.ready]
        if qp.mode == TRUST:
            break
        more = may_send(qp, bits)
        if more > 0:
            break
        qp.state = QP_IDLE if more == 0 else QP_BLOCKED
        row.ready = qp.next


@jit(inline=True)
def start_rto(runs: Any, ev: Any, wheel: Any, far: Any, qps: Any, pair: Any) -> None:
    """Let the retransmission timer run anew; one event at most is on its way."""
    run = runs[0]
    qp = qps[pair]
    if run.rto_ps == 0:
        return
    wait = run.rto_ps
    if qp.mode == SELECTIVE and qp.high - qp.una < 3:
        wait = run.rto_low_ps
    qp.rto_at = run.now + wait
    if qp.rto_on == 0:
        qp.rto_on = 1
        key = (TIMER << CLASS_SHIFT) | (RTO << KIND_SHIFT) | pair
        push(runs, ev, wheel, far, qp.rto_at, key, 0)


@jit(inline=True)
def emit(
    runs: Any, ev: Any, wheel: Any, far: Any, packets: Any, qps: Any, rates: Any, nodes: Any,
    bits: Any, pair: Any,
) -> Any:  # fmt: skip
    """Make the next packet of a queue pair and return its number."""
    run = runs[0]
    qp = qps[pair]
    psn = np.int64(qp.psn)
    node = np.int64(qp.node)
    resent = False
    if qp.mode >= SELECTIVE:
        owed = _hole(qp, bits)
        if owed >= 0:
            resent = True
            psn = np.int64(owed)
            if qp.mode == TRIM:
                bits[qp.bits + (psn & (qp.window - 1))] &= 255 - WANTED
                qp.wanted -= 1
            qp.scan += 1
            node = np.int64(qp.una_node)
            while psn >= nodes[node].psn + nodes[node].packets:
                node = np.int64(nodes[node].next)
    begins = qp.begins == 1
    ends = qp.left == 1
    if qp.mode != TRUST:
        begins = psn == nodes[node].psn
        ends = psn == nodes[node].psn + nodes[node].packets - 1
    flags = np.int64(qp.bare | (qp.klass << CLASS_BITS))
    if qp.mode == TRIM:
        qp.used += 1
        if nodes[node].state == NEW_WINDOW:
            flags |= KIND_CREDIT
    if qp.entropies > 0:
        next_entropy(qp, bits)
    payload = run.mtu
    if ends:
        payload = nodes[node].payload - (nodes[node].packets - 1) * run.mtu
        flags |= LAST
    if qp.pad > 1:
        payload = (payload + 3) // 4 * 4
    wire = payload + qp.overhead
    if begins:
        wire += qp.first
        flags |= FIRST
    if qp.every > 0:
        qp.since_ack += 1
        if qp.since_ack >= qp.every or flags & LAST or resent:
            flags |= ACK_REQUEST
            qp.since_ack = 0
    if resent or psn < qp.high:
        flags |= RESENT
        qp.resent += wire
        run.resent += wire
        if qp.retry == 0:  # what timeouts send again ends with the retries
            run.vain += 1
    if not resent:
        qp.psn = psn + 1
        qp.left -= 1
        qp.begins = 0
        if qp.left == 0:
            qp.node = nodes[node].next
            qp.begins = 1
            if qp.node >= 0:
                qp.left = nodes[qp.node].packets
            elif qp.mode == TRUST:
                qp.tail = NONE  # its row may be used anew once the message has arrived
        qp.high = max(qp.high, qp.psn)
    number = take_packet(runs, packets)
    packet = packets[number]
    packet.qp = pair
    packet.psn = psn
    packet.at = qp.path
    packet.wire = wire
    packet.node = node
    packet.ingress = NONE
    packet.flag = flags
    packet.again = (qp.tx - psn) & 65535
    qp.tx += 1
    qp.sent += wire
    if run.spread == SPREAD_FLOWLET and run.now - qp.began > run.flowlet_ps:
        qp.flowlet += 1
    qp.began = run.now
    qp.wire = wire
    if qp.mode != TRUST and (qp.rto_on == 0 or qp.una == psn):
        start_rto(runs, ev, wheel, far, qps, pair)
    if run.fold == 0:
        qp.inflight += 1
    if run.cc != CC_NONE:
        count_bytes(runs, ev, wheel, far, qps, rates, pair, wire)
    if qp.rate > 0.0:
        qp.free = run.now + gap_ps(wire, qp.rate)
    return number


@jit(inline=True)
def wake(ports: Any, egress: Any, qps: Any, classes: Any, pair: Any) -> None:
    """Put a queue pair at the end of its port's ready list."""
    qp = qps[pair]
    qp.state = QP_READY
    qp.next = NONE
    row = egress[qp.queue]
    if row.ready < 0:
        row.ready = pair
        ports[qp.queue // classes].mask |= 1 << qp.klass
    else:
        qps[row.ready_tail].next = pair
    row.ready_tail = pair


@jit(inline=True)
def after_emit(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any, qps: Any, bits: Any,
    pair: Any, end: Any,
) -> None:  # fmt: skip
    """See what a queue pair does next when its frame ends: wait its turn, its time, or for more."""
    run = runs[0]
    qp = qps[pair]
    more = may_send(qp, bits)
    if more <= 0:
        qp.state = QP_IDLE if more == 0 else QP_BLOCKED
    elif qp.free <= end:
        wake(ports, egress, qps, run.classes, pair)
    else:
        qp.state = QP_PACED
        qp.armed = qp.free
        key = (SEND << CLASS_SHIFT) | (PACE << KIND_SHIFT) | pair
        push(runs, ev, wheel, far, qp.free, key, 0)


@jit(inline=True)
def resume(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any, qps: Any, bits: Any,
    pair: Any,
) -> Any:  # fmt: skip
    """Let a queue pair that waited for something send again; return its port, or NONE."""
    run = runs[0]
    qp = qps[pair]
    if qp.state != QP_IDLE and qp.state != QP_BLOCKED:
        return np.int64(NONE)
    after_emit(runs, ev, wheel, far, ports, egress, qps, bits, pair, run.now)
    if qp.state == QP_READY:
        return np.int64(qp.queue // run.classes)
    return np.int64(NONE)


@jit(inline=True)
def post(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any, packets: Any, qps: Any,
    rates: Any, nodes: Any, bits: Any, number: Any,
) -> Any:  # fmt: skip
    """Give a message to its queue pair; return the port to try, or NONE."""
    run = runs[0]
    node = nodes[number]
    pair = np.int64(node.qp)
    qp = qps[pair]
    node.next = NONE
    node.state = 1
    node.got = 0
    node.psn = qp.posted
    qp.posted += node.packets
    if qp.mode == TRIM:
        announce(runs, ports, egress, packets, qps, node, pair)
    idle = qp.node < 0 and run.now - qp.began > run.idle_ps
    if run.cc != CC_NONE and rates[pair].on == 1 and idle:
        reset(qp, rates[pair])
        qp.free = 0
    if qp.una_node < 0 and qp.mode != TRUST:
        qp.una_node = number
    if qp.tail >= 0:
        nodes[qp.tail].next = number
    qp.tail = number
    if qp.node < 0:
        qp.node = number
        qp.left = node.packets
        qp.begins = 1
    kick = resume(runs, ev, wheel, far, ports, egress, qps, bits, pair)
    if qp.mode == TRIM:  # it may have asked for credit
        kick = np.int64(qp.queue // run.classes)
    return kick
