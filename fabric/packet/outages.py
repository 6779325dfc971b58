# SPDX-License-Identifier: Apache-2.0
"""Packets that go astray because a link is down or a watchdog drops, compiled.

What is on a link when it goes down is lost if the link is still down when it would arrive. A switch
drops what it would have to send over a link that is down, until routes follow; a host keeps it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric.jit import jit
from railweave.fabric.packet.buffers import release
from railweave.fabric.packet.events import push
from railweave.fabric.packet.layout import (
    CLASS_BITS,
    CLASS_SHIFT,
    CONTROL,
    CREDIT,
    EFFECTIVE,
    KIND_SHIFT,
    NONE,
)
from railweave.fabric.packet.queues import free_packet

__all__ = ["astray", "flush", "lose"]


@jit(inline=True)
def astray(ports: Any, packet: Any, link: Any, onward: Any) -> Any:
    """Tell whether a packet that arrives by ``link`` and goes on by ``onward`` is lost."""
    if ports[link].up == 0:
        return True
    return onward >= 0 and (ports[onward].dropping >> (np.int64(packet.flag) >> CLASS_BITS)) & 1


@jit
def lose(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any, packets: Any, qps: Any,
    link: Any, onward: Any, number: Any,
) -> None:  # fmt: skip
    """Lose a packet that came by ``link`` and was to go on by ``onward``."""
    run = runs[0]
    packet = packets[number]
    klass = np.int64(packet.flag) >> CLASS_BITS
    at = link if ports[link].up == 0 else onward
    egress[at * run.classes + klass].dropped += 1
    if ports[at].up == 0:
        run.drops_down += 1
    else:
        run.drops_watchdog += 1
    if run.fold == 0 or packet.flag & CONTROL:
        qps[packet.qp].inflight -= 1
    if ports[link].credit == 1 and onward != NONE:
        key = (EFFECTIVE << CLASS_SHIFT) | (CREDIT << KIND_SHIFT) | (link << 4) | klass
        size = np.int64(packet.wire) - run.gap
        push(runs, ev, wheel, far, run.now + ports[link].peer_prop, key, size)
    free_packet(runs, packets, number)


@jit
def flush(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any, ingress: Any,
    switches: Any, swports: Any, packets: Any, qps: Any, queue: Any,
) -> None:  # fmt: skip
    """Drop all packets that wait in an egress queue of a switch."""
    run = runs[0]
    row = egress[queue]
    link = queue // run.classes
    port = ports[link]
    while row.head >= 0:
        number = np.int64(row.head)
        packet = packets[number]
        row.head = packet.next
        size = np.int64(packet.wire) - run.gap
        held = np.int64(packet.ingress)
        source = held // run.classes
        row.bytes -= size
        row.dropped += 1
        if port.up == 0:
            run.drops_down += 1
        else:
            run.drops_watchdog += 1
        release(
            runs, ev, wheel, far, ports, egress, ingress, switches, swports, held, size,
            np.int64(port.switch),
        )  # fmt: skip
        if ports[source].credit == 1:
            key = (EFFECTIVE << CLASS_SHIFT) | (CREDIT << KIND_SHIFT) | (source << 4)
            key |= held - source * run.classes
            push(runs, ev, wheel, far, run.now + ports[source].peer_prop, key, size)
        if run.fold == 0 or packet.flag & CONTROL:
            qps[packet.qp].inflight -= 1
        free_packet(runs, packets, number)
    if row.ready < 0:
        port.mask &= ~(1 << (queue - link * run.classes))
