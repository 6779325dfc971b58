# SPDX-License-Identifier: Apache-2.0
"""Sending on a receiver's credit, and entropy values, compiled: the sender's side.

Olteanu et al., "An edge-queued datagram service for all datacenter traffic", NSDI 2022 (EQDS), as
in the receiver-credit congestion control of Ultra Ethernet 1.0: a bandwidth-delay product unasked,
everything beyond it against credit. Credit is a total of transmissions, so a lost pull costs
nothing that the next one does not bring.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric.jit import jit
from railweave.fabric.packet.layout import (
    ACK_REQUEST,
    CLASS_BITS,
    CONTROL,
    KIND_CREDIT,
    NEW_WINDOW,
    NONE,
)
from railweave.fabric.packet.queues import enqueue, take_packet

__all__ = ["announce", "ask", "next_entropy"]


@jit(inline=True)
def next_entropy(qp: Any, bits: Any) -> None:
    """Move on to the next entropy value; one that met congestion is left out once."""
    for _ in range(qp.entropies):
        at = qp.avoid + (np.int64(qp.tx) & 65535) % qp.entropies
        if bits[at] == 0:
            return
        bits[at] = 0
        qp.tx += 1


@jit
def ask(runs: Any, ports: Any, egress: Any, packets: Any, qps: Any, pair: Any, flags: Any) -> None:
    """Tell a receiver how many transmissions a sender has yet to make, and what it holds."""
    run = runs[0]
    qp = qps[pair]
    number = take_packet(runs, packets)
    packet = packets[number]
    packet.qp = pair
    packet.psn = qp.used + (qp.posted - qp.psn) + qp.wanted
    packet.node = qp.grant
    packet.at = qp.path
    packet.wire = run.pull_wire
    packet.ingress = NONE
    packet.again = (qp.answers - packet.psn) & 65535
    qp.answers += 1
    qp.inflight += 1
    link = np.int64(qp.queue // run.classes)
    klass = np.int64(run.strict)
    packet.flag = flags | CONTROL | KIND_CREDIT | ACK_REQUEST | (klass << CLASS_BITS)
    enqueue(ports, egress, packets, link, klass, link * run.classes + klass, number)


@jit(inline=True)
def announce(
    runs: Any, ports: Any, egress: Any, packets: Any, qps: Any, node: Any, pair: Any
) -> None:
    """Begin a new window for a message after silence, or ask where no packet of it will tell."""
    qp = qps[pair]
    if qp.una == node.psn:
        node.state = NEW_WINDOW
        qp.grant = max(qp.grant, qp.used + qp.unasked)
    elif qp.used + qp.wanted + (node.psn - qp.psn) >= qp.grant:
        ask(runs, ports, egress, packets, qps, pair, 0)
