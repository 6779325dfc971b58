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

FAR = 24  # events ahead: rows that an event names; found by trying, as the next
_KIND = 15
_MIDDLE = 12  # and rows that those name
_NEAR = 6  # and rows that those name in turn
_NUMBER = (1 << KIND_SHIFT) - 1


@jit(inline=True)
def fetch_named(
    classes: Any, key: Any, arg: Any, packets: Any, ports: Any, egress: Any, ingress: Any, qps: Any
) -> None:
    """Fetch the rows that an event names."""
    kind = (key >> CLASS_SHIFT) & _KIND
    entity = key & ENTITY_MASK
    comes = np.int64(kind == ARRIVE)
    ends = np.int64(kind == TX_END)
    prefetch(packets, arg * comes, 0)
    prefetch(ingress, (entity >> 4) * classes * comes, 0)
    prefetch(ports, entity * ends, 0)
    prefetch(egress, entity * classes * ends, 0)
    if kind == SEND and entity >> KIND_SHIFT == PACE:
        prefetch(qps, entity & _NUMBER, 0)
        prefetch(qps, entity & _NUMBER, 1)


@jit(inline=True)
def fetch_next(
    run: Any, near: Any, packets: Any, ports: Any, egress: Any, ingress: Any, qps: Any, hops: Any
) -> None:
    """Fetch rows of coming events, and what the rows fetched before name.

    Which kinds of events follow each other is hard to foretell, so what one kind needs is fetched
    for all: a wrong guess of the processor costs more than fetching row 0, which is there.
    """
    at = run.at + FAR
    if at < run.count:
        fetch_named(run.classes, near[at].key, near[at].arg, packets, ports, egress, ingress, qps)
    at = run.at + _MIDDLE
    if at < run.count:
        kind = (near[at].key >> CLASS_SHIFT) & _KIND
        entity = near[at].key & ENTITY_MASK
        comes = np.int64(kind == ARRIVE)
        ends = np.int64(kind == TX_END)
        packet = packets[near[at].arg * comes]
        link = max(np.int64(packet.next), 0) * comes
        prefetch(ports, link, 0)
        prefetch(egress, link * run.classes, 0)
        prefetch(hops, packet.at * comes, 0)
        row = egress[entity * run.classes * ends]
        prefetch(packets, max(np.int64(row.head), 0) * ends, 0)
        if kind == TX_END and row.ready >= 0:
            prefetch(qps, row.ready, 0)
            prefetch(qps, row.ready, 1)
        elif kind == ARRIVE and packet.next < 0:
            prefetch(qps, packet.qp, 1)
        elif kind == SEND and entity >> KIND_SHIFT == PACE:
            prefetch(egress, qps[entity & _NUMBER].queue, 0)
            prefetch(hops, qps[entity & _NUMBER].path, 0)
    at = run.at + _NEAR
    if at < run.count:
        kind = (near[at].key >> CLASS_SHIFT) & _KIND
        comes = np.int64(kind == ARRIVE)
        ends = np.int64(kind == TX_END)
        link = max(np.int64(packets[near[at].arg * comes].next), 0) * comes
        link += (near[at].key & ENTITY_MASK) * ends
        prefetch(ingress, max(np.int64(ports[link].svc_in), 0), 0)
        row = egress[link * run.classes]
        packet = packets[max(np.int64(row.head), 0) * ends]
        prefetch(hops, packet.at * ends, 0)
        prefetch(ingress, max(np.int64(packet.ingress), 0) * ends, 0)
        prefetch(qps, packet.qp * ends, 1)
