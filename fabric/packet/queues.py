# SPDX-License-Identifier: Apache-2.0
"""Rows of packets: taken, put into a queue, given back; compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric.jit import jit
from railweave.fabric.packet.layout import CONTROL, KIND_ACK, KIND_NAK, NONE, TRIM

__all__ = ["enqueue", "free_packet", "sent_before", "take_packet"]

_LOW = 65535


@jit(inline=True)
def take_packet(runs: Any, packets: Any) -> Any:
    """Take an unused packet row; the event loop sees to it that there is one."""
    number = np.int64(runs[0].pk_free)
    runs[0].pk_free = number + 1 + packets[number].next
    runs[0].pk_left -= 1
    return number


@jit(inline=True)
def free_packet(runs: Any, packets: Any, number: Any) -> None:
    """Give a packet's row back.

    An unused row tells how far behind the row after it the next unused one is, so rows of zeros
    need no list, and nothing touches them before they are needed.
    """
    packets[number].next = runs[0].pk_free - number - 1
    runs[0].pk_free = number
    runs[0].pk_left += 1


@jit(inline=True)
def enqueue(
    ports: Any, egress: Any, packets: Any, link: Any, klass: Any, queue: Any, number: Any
) -> None:
    """Append a packet to a queue."""
    row = egress[queue]
    packets[number].next = NONE
    if row.head < 0:
        row.head = number
        ports[link].mask |= 1 << klass
    else:
        packets[row.tail].next = number
    row.tail = number


@jit(inline=True)
def sent_before(qp: Any, packet: Any) -> Any:
    """Return how many packets its queue pair had sent before one: a number that none shares.

    Answers count by themselves, but those to sprayed data by the packet that they answer. A packet
    has the number's low bits, as what is to be added to one that it carries anyway; the others are
    those of its queue pair, of which fewer than 65,536 packets are under way at once.
    """
    count = np.int64(qp.tx)
    low = np.int64(packet.psn) + packet.again
    if packet.flag & CONTROL:
        if qp.mode == TRIM and packet.flag & (KIND_ACK | KIND_NAK):
            low = np.int64(packet.node) + packet.again
        else:
            count = np.int64(qp.answers)
    return count - ((count - low) & _LOW)
