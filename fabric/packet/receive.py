# SPDX-License-Identifier: Apache-2.0
"""What ends of queue pairs do with what arrives, compiled.

Loss recovery: go-back-N as RoCE NICs do it (InfiniBand Architecture Specification, volume 1,
section 9.7), go-back-0 (Guo et al., "RDMA over commodity Ethernet at scale", SIGCOMM 2016), and
selective repeat with a cap on what is under way (Mittal et al., "Revisiting network support for
RDMA", SIGCOMM 2018).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric.jit import jit
from railweave.fabric.packet.events import push
from railweave.fabric.packet.hosts import resume, start_rto
from railweave.fabric.packet.layout import (
    ACK_REQUEST,
    CC_NONE,
    CE,
    CLASS_BITS,
    CLASS_SHIFT,
    CONTROL,
    DONE,
    ECHO,
    GO_BACK_0,
    KIND_ACK,
    KIND_CNP,
    KIND_NAK,
    KIND_SHIFT,
    LAST,
    NONE,
    RECEIVED,
    RTO,
    SACKED,
    SELECTIVE,
    TIMER,
    TRUST,
)
from railweave.fabric.packet.queues import enqueue, take_packet
from railweave.fabric.packet.rates import congested

__all__ = ["acknowledged", "answer_with", "ended", "receive", "timeout"]


@jit(inline=True)
def answer_with(
    runs: Any, ports: Any, egress: Any, packets: Any, qps: Any, pair: Any, wire: Any, flags: Any,
    psn: Any, told: Any,
) -> Any:  # fmt: skip
    """Send a control packet back along a queue pair; return the port it waits at."""
    run = runs[0]
    qp = qps[pair]
    number = take_packet(runs, packets)
    packet = packets[number]
    packet.qp = pair
    packet.psn = psn
    packet.at = qp.back
    packet.wire = wire
    packet.node = told
    packet.ingress = NONE
    packet.again = (qp.answers - psn) & 65535
    qp.answers += 1
    qp.inflight += 1
    link = np.int64(qp.back_queue // run.classes)
    queue = np.int64(qp.back_queue)
    klass = queue - link * run.classes
    packet.flag = flags | CONTROL | (klass << CLASS_BITS)
    enqueue(ports, egress, packets, link, klass, queue, number)
    return link


@jit(inline=True)
def _ack(
    runs: Any, ports: Any, egress: Any, packets: Any, qps: Any, pair: Any, kind: Any, told: Any
) -> Any:
    """Acknowledge what has arrived in order, echoing marks where that is asked for."""
    run = runs[0]
    qp = qps[pair]
    flags = kind
    if run.ack_echo == 1 and qp.ce == 1:
        flags |= ECHO
        qp.ce = 0
    if kind & KIND_NAK:
        run.naks += 1
        qp.naks += 1
    else:
        run.acks += 1
    return answer_with(
        runs, ports, egress, packets, qps, pair, run.ack_wire, flags, np.int64(qp.expected), told
    )


@jit(inline=True)
def ended(runs: Any, ev: Any, wheel: Any, far: Any, qps: Any, node: Any, number: Any) -> None:
    """Let a message end when its host has noticed."""
    node.state = 2
    at = runs[0].now + qps[node.qp].latency
    push(runs, ev, wheel, far, at, (DONE << CLASS_SHIFT) | np.int64(node.parent), number)


@jit(inline=True)
def _take_data(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any, packets: Any, qps: Any,
    nodes: Any, bits: Any, number: Any,
) -> Any:  # fmt: skip
    """Take a data packet; return the port at which an answer waits, or NONE."""
    run = runs[0]
    packet = packets[number]
    pair = np.int64(packet.qp)
    qp = qps[pair]
    flags = np.int64(packet.flag)
    psn = np.int64(packet.psn)
    message = np.int64(packet.node)
    node = nodes[message]
    out = np.int64(NONE)
    if flags & CE:
        qp.marks += 1
        qp.ce = 1
        if (
            run.cc != CC_NONE
            and run.ack_echo == 0
            and (qp.cnp_at < 0 or run.now - qp.cnp_at >= run.cnp_ps)
        ):
            qp.cnp_at = run.now
            run.cnps += 1
            out = answer_with(runs, ports, egress, packets, qps, pair, run.cnp_wire, KIND_CNP, 0, 0)
    if qp.mode == TRUST:
        qp.expected = psn + 1
        node.got += 1
        if flags & ACK_REQUEST:
            told = message if flags & LAST else np.int64(NONE)
            out = _ack(runs, ports, egress, packets, qps, pair, KIND_ACK, told)
        complete = node.got == node.packets or (run.fold == 1 and flags & LAST != 0)
        if complete and run.sender_ends == 0:
            ended(runs, ev, wheel, far, qps, node, message)
        return out
    fresh = False
    answer = 0
    if qp.mode >= SELECTIVE:
        slot = qp.bits + (psn & (qp.window - 1))
        if psn < qp.expected or bits[slot] & RECEIVED:
            answer = KIND_ACK
        else:
            fresh = True
            bits[slot] |= RECEIVED
            before = qp.expected
            while bits[qp.bits + (qp.expected & (qp.window - 1))] & RECEIVED:
                bits[qp.bits + (qp.expected & (qp.window - 1))] &= 255 - RECEIVED
                qp.expected += 1
            if qp.expected == before:
                qp.late += 1
                run.late += 1
                answer = KIND_NAK
            elif flags & ACK_REQUEST or qp.expected > before + 1:
                answer = KIND_ACK
    elif (
        qp.mode == GO_BACK_0
        and psn == node.psn
        and psn <= qp.expected
        and (node.state == 1 and node.qp == pair)
    ):
        fresh = True  # the message begins anew
        node.got = 0
        qp.expected = psn + 1
        qp.nak = 0
        answer = KIND_ACK if flags & ACK_REQUEST else 0
    elif psn == qp.expected:
        fresh = True
        qp.expected = psn + 1
        qp.nak = 0
        answer = KIND_ACK if flags & ACK_REQUEST else 0
    elif psn > qp.expected:
        qp.late += 1
        run.late += 1
        if qp.nak == 0:
            qp.nak = 1
            answer = KIND_NAK
    else:
        answer = KIND_ACK
    if fresh:
        node.got += 1
        if node.got == node.packets and run.sender_ends == 0:
            ended(runs, ev, wheel, far, qps, node, message)
    if answer:
        out = _ack(runs, ports, egress, packets, qps, pair, answer, psn)
    return out


@jit(inline=True)
def acknowledged(
    runs: Any, ev: Any, wheel: Any, far: Any, qps: Any, nodes: Any, groups: Any, bits: Any,
    pair: Any, psn: Any,
) -> None:  # fmt: skip
    """Let a sender know that everything before ``psn`` has arrived."""
    run = runs[0]
    qp = qps[pair]
    if psn <= qp.una:
        return
    if qp.mode >= SELECTIVE:
        for passed in range(qp.una, psn):
            slot = qp.bits + (passed & (qp.window - 1))
            if bits[slot] & SACKED:
                bits[slot] &= 255 - SACKED
                qp.sacks -= 1
        if qp.recover >= 0 and psn > qp.recover:
            qp.recover = NONE
    qp.una = psn
    qp.retry = 0
    if psn > qp.sacked or qp.mode >= SELECTIVE:
        run.vain = 0
        qp.sacked = max(qp.sacked, psn)
    while qp.una_node >= 0:
        node = nodes[qp.una_node]
        if psn < node.psn + node.packets:
            break
        if run.sender_ends == 1:
            ended(runs, ev, wheel, far, qps, node, np.int64(qp.una_node))
        groups[node.group].open -= 1
        qp.una_node = node.next
    if qp.una_node < 0:
        qp.tail = NONE
    if qp.psn < psn:  # it had gone back over what has arrived after all
        _move_to(qp, nodes, psn)
    start_rto(runs, ev, wheel, far, qps, pair)


@jit(inline=True)
def _move_to(qp: Any, nodes: Any, psn: Any) -> None:
    """Let the next packet sent be ``psn``."""
    number = qp.una_node
    while number >= 0 and psn >= nodes[number].psn + nodes[number].packets:
        number = nodes[number].next
    qp.psn = psn
    qp.node = number
    if number >= 0:
        qp.left = nodes[number].psn + nodes[number].packets - psn


@jit(inline=True)
def _go_back(qp: Any, nodes: Any) -> None:
    """Send everything from the oldest packet on again (its message, in go-back-0)."""
    psn = np.int64(qp.una)
    if qp.mode == GO_BACK_0 and qp.una_node >= 0:
        psn = np.int64(nodes[qp.una_node].psn)
        qp.una = psn
    _move_to(qp, nodes, psn)


@jit(inline=True)
def _take_answer(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any, packets: Any, qps: Any,
    rates: Any, nodes: Any, groups: Any, bits: Any, number: Any,
) -> Any:  # fmt: skip
    """Take a control packet at the sender; return the port to try, or NONE."""
    run = runs[0]
    packet = packets[number]
    pair = np.int64(packet.qp)
    qp = qps[pair]
    flags = np.int64(packet.flag)
    if flags & (KIND_CNP | ECHO) and run.cc != CC_NONE:
        congested(runs, ev, wheel, far, qps, rates, pair)
    if flags & KIND_CNP:
        return np.int64(NONE)
    if qp.mode == TRUST:
        if run.sender_ends == 1 and packet.node >= 0:
            ended(runs, ev, wheel, far, qps, nodes[packet.node], np.int64(packet.node))
        return np.int64(NONE)
    back = flags & KIND_NAK != 0 and packet.psn >= qp.una
    acknowledged(runs, ev, wheel, far, qps, nodes, groups, bits, pair, np.int64(packet.psn))
    if back and qp.mode <= GO_BACK_0:
        _go_back(qp, nodes)
    elif back:
        told = np.int64(packet.node)
        slot = qp.bits + (told & (qp.window - 1))
        if told >= qp.una and bits[slot] & SACKED == 0:
            bits[slot] |= SACKED
            qp.sacks += 1
            run.vain = 0
        qp.sacked = max(qp.sacked, told + 1)
        if qp.recover < 0:
            qp.recover = qp.high
            qp.scan = qp.una
    return resume(runs, ev, wheel, far, ports, egress, qps, bits, pair)


@jit(inline=True)
def receive(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any, packets: Any, qps: Any,
    rates: Any, nodes: Any, groups: Any, bits: Any, number: Any,
) -> Any:  # fmt: skip
    """Take a packet at the end of its path; return the port to try, or NONE."""
    run = runs[0]
    packet = packets[number]
    if packet.flag & CONTROL:
        qps[packet.qp].inflight -= 1
        return _take_answer(
            runs, ev, wheel, far, ports, egress, packets, qps, rates, nodes, groups, bits, number
        )
    if run.fold == 0:
        qps[packet.qp].inflight -= 1
    return _take_data(runs, ev, wheel, far, ports, egress, packets, qps, nodes, bits, number)


@jit(inline=True)
def timeout(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any, qps: Any, nodes: Any,
    bits: Any, pair: Any,
) -> Any:  # fmt: skip
    """Let a retransmission timer fire; return the port to try, or NONE."""
    run = runs[0]
    qp = qps[pair]
    qp.rto_on = 0
    if qp.una >= qp.high:
        return np.int64(NONE)
    if run.now < qp.rto_at:
        qp.rto_on = 1
        push(
            runs, ev, wheel, far, qp.rto_at, (TIMER << CLASS_SHIFT) | (RTO << KIND_SHIFT) | pair, 0
        )
        return np.int64(NONE)
    run.timeouts += 1
    qp.timeouts += 1
    qp.retry += 1
    if qp.retry > run.retries:
        run.failed_qp = pair
        return np.int64(NONE)
    if qp.mode <= GO_BACK_0:
        _go_back(qp, nodes)
    else:
        qp.recover = qp.high
        qp.scan = qp.una
        qp.sacked = qp.high  # nothing was heard of the others: taken for lost (RFC 6675, 5.1)
    start_rto(runs, ev, wheel, far, qps, pair)
    return resume(runs, ev, wheel, far, ports, egress, qps, bits, pair)
