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
from railweave.fabric.packet.layout import ARRIVE, CLASS_SHIFT, ENTITY_MASK, TX_END

__all__ = ["fetch_named", "fetch_next"]

_KIND = 15
_FAR = 6  # events ahead: rows that named rows name; found by trying, as the next
_NEAR = 3  # and rows that those name in turn


@jit(inline=True)
def fetch_named(
    classes: Any, key: Any, arg: Any, packets: Any, ports: Any, egress: Any, ingress: Any
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


@jit(inline=True)
def fetch_next(
    run: Any, near: Any, packets: Any, ports: Any, egress: Any, ingress: Any, qps: Any, hops: Any
) -> None:
    """Fetch what the rows of coming events name."""
    at = run.at + _FAR
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
            number = np.int64(egress[entity * run.classes].head)
            if number >= 0:
                prefetch(hops, packets[number].at, 0)
