# SPDX-License-Identifier: Apache-2.0
"""Both ends of trimming with receiver credit, compiled.

Packets may come in any order and are acknowledged one by one where they do. A trimmed one is asked
for again at once, so a loss is known within a round trip and without a timer (Handley et al.,
SIGCOMM 2017). One pacer per receiving host gives credit to all its senders in turn, a little slower
than its line, so that the queue before it stays short (Olteanu et al., NSDI 2022). The timer is for
what was lost without a trace; it has the sender say what it lacks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric.jit import jit
from railweave.fabric.packet.credit import ask
from railweave.fabric.packet.events import push
from railweave.fabric.packet.hosts import resume, start_rto
from railweave.fabric.packet.layout import (
    ACK_REQUEST,
    CC_NONE,
    CE,
    CLASS_SHIFT,
    CONTROL,
    ECHO,
    KIND_ACK,
    KIND_CREDIT,
    KIND_NAK,
    KIND_SHIFT,
    NONE,
    PULL,
    RECEIVED,
    RESENT,
    RTO,
    SACKED,
    SEND,
    TIMER,
    TRIMMED,
    WANTED,
)
from railweave.fabric.packet.rates import congested
from railweave.fabric.packet.receive import acknowledged, answer_with, ended

__all__ = ["pull_credit", "receive_sprayed", "timeout_sprayed"]

_PS_BYTE = 8e12


@jit(inline=True)
def _expect(runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, qps: Any, pair: Any) -> None:
    """Let a queue pair wait for credit at its receiver if it needs more than it was given."""
    run = runs[0]
    qp = qps[pair]
    if qp.pulling == 1 or qp.want <= qp.granted:
        return
    qp.pulling = 1
    qp.pull_next = NONE
    port = ports[qp.pacer]
    if port.pull_head < 0:
        port.pull_head = pair
    else:
        qps[port.pull_tail].pull_next = pair
    port.pull_tail = pair
    if port.pull_on == 0:
        port.pull_on = 1
        at = max(run.now, port.pull_at)
        key = (SEND << CLASS_SHIFT) | (PULL << KIND_SHIFT) | np.int64(qp.pacer)
        push(runs, ev, wheel, far, at, key, 0)


@jit
def pull_credit(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any, packets: Any, qps: Any,
    link: Any,
) -> Any:  # fmt: skip
    """Send credit to the sender whose turn it is; return the port at which it waits."""
    run = runs[0]
    port = ports[link]
    pair = np.int64(port.pull_head)
    qp = qps[pair]
    port.pull_head = qp.pull_next
    port.pull_on = 0
    qp.granted = max(qp.granted, qp.arrived)
    count = min(run.pull_packets, qp.want - qp.granted)
    kick = np.int64(NONE)
    if count > 0:
        qp.granted += count
        run.pulls += 1
        kick = answer_with(
            runs, ports, egress, packets, qps, pair, run.pull_wire, KIND_CREDIT, 0, qp.granted
        )
        size = count * (run.mtu + run.overhead)
        port.pull_at = run.now + np.int64(size * _PS_BYTE / (run.pull_share * port.rate))
    qp.pulling = 0
    if qp.want > qp.granted:
        qp.pulling = 1
        qp.pull_next = NONE
        if port.pull_head < 0:
            port.pull_head = pair
        else:
            qps[port.pull_tail].pull_next = pair
        port.pull_tail = pair
    if port.pull_head >= 0:
        port.pull_on = 1
        key = (SEND << CLASS_SHIFT) | (PULL << KIND_SHIFT) | link
        push(runs, ev, wheel, far, max(run.now, port.pull_at), key, 0)
    return kick


@jit(inline=True)
def _take_data(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any, packets: Any, qps: Any,
    nodes: Any, bits: Any, number: Any,
) -> Any:  # fmt: skip
    """Take a data packet, whole or trimmed; return the port at which an answer waits, or NONE."""
    run = runs[0]
    packet = packets[number]
    pair = np.int64(packet.qp)
    qp = qps[pair]
    flags = np.int64(packet.flag)
    psn = np.int64(packet.psn)
    again = np.int64(packet.again)
    message = np.int64(packet.node)
    slot = qp.bits + (psn & (qp.window - 1))
    tell = 0
    if psn < qp.expected or bits[slot] & RECEIVED:  # it came before
        qp.want += 1
        tell = KIND_ACK
    else:
        node = nodes[message]
        if flags & KIND_CREDIT and node.psn > qp.fresh:
            qp.fresh = node.psn
            qp.granted = max(qp.granted, qp.arrived + qp.unasked)
        end = np.int64(node.psn) + node.packets
        if end > qp.known:
            qp.want += end - qp.known
            qp.known = end
        if flags & TRIMMED:
            qp.want += 1
            tell = KIND_NAK
        else:
            bits[slot] |= RECEIVED
            before = qp.expected
            while bits[qp.bits + (qp.expected & (qp.window - 1))] & RECEIVED:
                bits[qp.bits + (qp.expected & (qp.window - 1))] &= 255 - RECEIVED
                qp.expected += 1
            if qp.expected == before:
                qp.late += 1
                run.late += 1
                tell = KIND_ACK
            elif flags & (ACK_REQUEST | CE) or qp.expected > before + 1:
                tell = KIND_ACK
            node.got += 1
            if node.got == node.packets and run.sender_ends == 0:
                ended(runs, ev, wheel, far, qps, node, message)
    qp.arrived += 1
    _expect(runs, ev, wheel, far, ports, qps, pair)
    if tell == 0:
        return np.int64(NONE)
    if flags & CE:
        qp.marks += 1
        tell |= ECHO
    if tell & KIND_NAK:
        run.naks += 1
        qp.naks += 1
    else:
        run.acks += 1
    out = answer_with(
        runs, ports, egress, packets, qps, pair, run.ack_wire, tell, np.int64(qp.expected), psn
    )
    # What it was that came: the sender knows by it which entropy value the packet had.
    packets[egress[qp.back_queue].tail].again = again
    return out


@jit(inline=True)
def _take_answer(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any, packets: Any, qps: Any,
    rates: Any, nodes: Any, groups: Any, bits: Any, number: Any,
) -> Any:  # fmt: skip
    """Take a control packet, at the sender or (a request) at the receiver; return a port."""
    run = runs[0]
    packet = packets[number]
    pair = np.int64(packet.qp)
    qp = qps[pair]
    flags = np.int64(packet.flag)
    told = np.int64(packet.node)
    psn = np.int64(packet.psn)
    if flags & KIND_CREDIT and flags & ACK_REQUEST:
        qp.want = max(qp.want, psn)
        if flags & RESENT:  # after a timeout the sender's count is right
            qp.granted = told
        _expect(runs, ev, wheel, far, ports, qps, pair)
        return np.int64(NONE)
    if flags & KIND_CREDIT:
        qp.grant = max(qp.grant, told)
    else:
        if qp.entropies > 0 and flags & (KIND_NAK | ECHO):
            bits[qp.avoid + ((told + np.int64(packet.again)) & 65535) % qp.entropies] = 1
        if flags & ECHO and run.cc != CC_NONE:
            congested(runs, ev, wheel, far, qps, rates, pair)
        slot = qp.bits + (told & (qp.window - 1))
        if told >= qp.una and told < qp.high:
            if flags & KIND_ACK:
                if bits[slot] & SACKED == 0:
                    bits[slot] |= SACKED
                    qp.sacks += 1
                    run.vain = 0
                if bits[slot] & WANTED:
                    bits[slot] &= 255 - WANTED
                    qp.wanted -= 1
            elif bits[slot] & (SACKED | WANTED) == 0:
                bits[slot] |= WANTED
                qp.wanted += 1
                qp.scan = min(qp.scan, told)
        for passed in range(qp.una, psn):
            slot = qp.bits + (passed & (qp.window - 1))
            if bits[slot] & WANTED:
                bits[slot] &= 255 - WANTED
                qp.wanted -= 1
        acknowledged(runs, ev, wheel, far, qps, nodes, groups, bits, pair, psn)
    start_rto(runs, ev, wheel, far, qps, pair)
    return resume(runs, ev, wheel, far, ports, egress, qps, bits, pair)


@jit
def receive_sprayed(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any, packets: Any, qps: Any,
    rates: Any, nodes: Any, groups: Any, bits: Any, number: Any,
) -> Any:  # fmt: skip
    """Take a packet at the end of its path; return the port to try, or NONE."""
    qps[packets[number].qp].inflight -= 1
    if packets[number].flag & CONTROL:
        return _take_answer(
            runs, ev, wheel, far, ports, egress, packets, qps, rates, nodes, groups, bits, number
        )
    return _take_data(runs, ev, wheel, far, ports, egress, packets, qps, nodes, bits, number)


@jit
def timeout_sprayed(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any, packets: Any, qps: Any,
    bits: Any, pair: Any,
) -> Any:  # fmt: skip
    """Let a timer fire: nothing was heard for long, so what is not acknowledged is taken for lost.

    Returns the port to try, or NONE.
    """
    run = runs[0]
    qp = qps[pair]
    qp.rto_on = 0
    if qp.una >= qp.posted:
        return np.int64(NONE)
    if run.now < qp.rto_at:
        qp.rto_on = 1
        key = (TIMER << CLASS_SHIFT) | (RTO << KIND_SHIFT) | pair
        push(runs, ev, wheel, far, qp.rto_at, key, 0)
        return np.int64(NONE)
    run.timeouts += 1
    qp.timeouts += 1
    qp.retry += 1
    if qp.retry > run.retries:
        run.failed_qp = pair
        return np.int64(NONE)
    for psn in range(qp.una, qp.high):
        slot = qp.bits + (psn & (qp.window - 1))
        if bits[slot] & (SACKED | WANTED) == 0:
            bits[slot] |= WANTED
            qp.wanted += 1
    qp.scan = qp.una
    ask(runs, ports, egress, packets, qps, pair, RESENT)
    start_rto(runs, ev, wheel, far, qps, pair)
    resume(runs, ev, wheel, far, ports, egress, qps, bits, pair)
    return np.int64(qp.queue // run.classes)
