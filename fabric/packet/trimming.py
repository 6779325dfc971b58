# SPDX-License-Identifier: Apache-2.0
"""Full queues cut packets down to their headers, compiled.

Handley et al., "Re-architecting datacenter networks and stacks for low latency and high
performance", SIGCOMM 2017 (NDP): of the packet that arrives and the last of the queue, a fair coin
takes one and cuts it; headers go ahead of data, ten to one where both wait. Ultra Ethernet
Specification 1.0 has the same service of switches.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric._walk import mix
from railweave.fabric.jit import jit
from railweave.fabric.packet.layout import (
    ACK_REQUEST,
    CE,
    CLASS_BITS,
    FIRST,
    RESENT,
    TRIMMED,
)
from railweave.fabric.packet.queues import sent_before

__all__ = ["headers_first", "trim"]

_HEADERS_IN_A_ROW = 10  # NDP, section 3.1
_LOW_FLAGS = (1 << CLASS_BITS) - 1
_COIN = np.uint64(0x7472696D)  # sets these draws apart from those of marks


@jit(inline=True)
def headers_first(run: Any, port: Any, ready: Any) -> Any:
    """Return the classes whose turn it may be: data too after ten urgent frames in a row."""
    urgent = 1 << run.strict
    if port.switch < 0 or ready & urgent == 0 or ready == urgent:
        port.headers = 0
        return ready
    port.headers += 1
    if port.headers <= _HEADERS_IN_A_ROW:
        return ready
    port.headers = 0
    return ready & ~urgent


@jit
def trim(
    ports: Any, run: Any, egress: Any, ingress: Any, switches: Any, packets: Any, qps: Any,
    out: Any, queue: Any, ahead: Any, number: Any,
) -> None:  # fmt: skip
    """Cut a packet that queue ``out`` has no room for, or the last one there in its stead.

    Either way row ``number`` holds the cut one afterwards.
    """
    packet = packets[number]
    packet.at = ahead
    packet.ingress = queue
    row = egress[out]
    port = ports[out // run.classes]
    row.dropped -= 1
    row.trimmed += 1
    run.trims += 1
    if row.head >= 0:
        last = packets[row.tail]
        more = np.int64(packet.wire) - np.int64(last.wire)
        switch = switches[port.switch]
        fits = row.bytes + more <= row.room and switch.shared + more <= switch.total
        sent = sent_before(qps[packet.qp], packet)
        word = (np.uint64(qps[packet.qp].flow) << np.uint64(32)) | np.uint64(sent)
        if (
            fits
            and ingress[last.ingress].kind == 0
            and mix(port.draws ^ mix(word ^ _COIN)) >> np.uint64(63) == 0
        ):
            row.bytes += more
            row.peak = max(row.peak, row.bytes)
            switch.shared += more
            pair, psn, at, wire = packet.qp, packet.psn, packet.at, packet.wire
            node, held, flag, again = packet.node, packet.ingress, packet.flag, packet.again
            packet.qp, packet.psn, packet.at, packet.wire = last.qp, last.psn, last.at, last.wire
            packet.node, packet.ingress, packet.flag = last.node, last.ingress, last.flag
            packet.again = last.again
            last.qp, last.psn, last.at, last.wire = pair, psn, at, wire
            last.node, last.ingress, last.flag, last.again = node, held, flag, again
    packet.wire = run.trim_wire
    kept = np.int64(packet.flag) & _LOW_FLAGS & ~(FIRST | ACK_REQUEST | CE | RESENT)
    packet.flag = kept | TRIMMED | (run.strict << CLASS_BITS)
