# SPDX-License-Identifier: Apache-2.0
"""Rows that coming events need are asked for ahead of them, compiled.

At scale the state of a run lies beyond the nearest caches, and an event would wait for one row
after another: packet, port, queues, buffer. The events of a bucket are known in order, so the rows
of those to come are fetched while others are processed: first what an event names itself, then,
some events ahead, what those rows name. Nothing is changed by it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric._prefetch import prefetch
from railweave.fabric.jit import jit
from railweave.fabric.packet.layout import (
    ARRIVE,
    CLASS_SHIFT,
    ENTITY_MASK,
    KIND_SHIFT,
    PACE,
    SEND,
    TX_END,
)

__all__ = ["FAR", "fetch_named", "fetch_next"]

FAR = 12  # events ahead: rows that an event names; found by trying, as the next
_KIND = 15
_MIDDLE = 6  # and rows that those name
_NEAR = 3  # and rows that those name in turn
_NUMBER = (1 << KIND_SHIFT) - 1


@jit(inline=True)
def fetch_named(
    classes: Any, key: Any, arg: Any, packets: Any, ports: Any, egress: Any, ingress: Any, qps: Any
) -> None:
    """Fetch the rows that an event names."""
    kind = (key >> CLASS_SHIFT) & _KIND
    entity = key & ENTITY_MASK
    if kind == ARRIVE:
        prefetch(packets, arg, 0)
        prefetch(ingress, (entity >> 4) * classes, 0)
    elif kind == TX_END:
        prefetch(ports, entity, 0)
        prefetch(egress, entity * classes, 0)
    elif kind == SEND and entity >> KIND_SHIFT == PACE:
        prefetch(qps, entity & _NUMBER, 0)
        prefetch(qps, entity & _NUMBER, 1)


@jit(inline=True)
def fetch_next(
    run: Any, near: Any, packets: Any, ports: Any, egress: Any, ingress: Any, qps: Any, hops: Any
) -> None:
    """Fetch rows of coming events, and what the rows fetched before name."""
    at = run.at + FAR
    if at < run.count:
        fetch_named(run.classes, near[at].key, near[at].arg, packets, ports, egress, ingress, qps)
    at = run.at + _MIDDLE
    if at < run.count:
        key = near[at].key
        kind = (key >> CLASS_SHIFT) & _KIND
        entity = key & ENTITY_MASK
        if kind == ARRIVE:
            packet = packets[near[at].arg]
            link = np.int64(packet.next)
            if link >= 0:
                prefetch(ports, link, 0)
                prefetch(egress, link * run.classes, 0)
            else:
                prefetch(qps, packet.qp, 1)
            prefetch(hops, packet.at, 0)
        elif kind == TX_END:
            row = egress[entity * run.classes]
            if row.head >= 0:
                prefetch(packets, row.head, 0)
            if ports[entity].svc_in >= 0:
                prefetch(ingress, ports[entity].svc_in, 0)
            elif row.ready >= 0:
                prefetch(qps, row.ready, 0)
                prefetch(qps, row.ready, 1)
        elif kind == SEND and entity >> KIND_SHIFT == PACE:
            row = qps[entity & _NUMBER]
            prefetch(egress, row.queue, 0)
            prefetch(hops, row.path, 0)
    at = run.at + _NEAR
    if at < run.count:
        key = near[at].key
        kind = (key >> CLASS_SHIFT) & _KIND
        entity = key & ENTITY_MASK
        if kind == ARRIVE:
            link = np.int64(packets[near[at].arg].next)
            if link >= 0 and ports[link].svc_queue >= 0:
                prefetch(ingress, ports[link].svc_in, 0)
        elif kind == TX_END:
            row = egress[entity * run.classes]
            if row.head >= 0:
                packet = packets[row.head]
                prefetch(hops, packet.at, 0)
                if packet.ingress >= 0:
                    prefetch(ingress, packet.ingress, 0)
                if row.bytes > row.kmin:
                    prefetch(qps, packet.qp, 1)
