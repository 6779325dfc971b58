# SPDX-License-Identifier: Apache-2.0
"""Rows of packets: taken, put into a queue, given back; compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric.jit import jit
from railweave.fabric.packet.layout import NONE

__all__ = ["enqueue", "free_packet", "take_packet"]


@jit(inline=True)
def take_packet(runs: Any, packets: Any) -> Any:
    """Take an unused packet row; the event loop sees to it that there is one."""
    number = np.int64(runs[0].pk_free)
    runs[0].pk_free = packets[number].next
    runs[0].pk_left -= 1
    return number


@jit(inline=True)
def free_packet(runs: Any, packets: Any, number: Any) -> None:
    """Give a packet's row back."""
    packets[number].next = runs[0].pk_free
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
