# SPDX-License-Identifier: Apache-2.0
"""Messages over several queue pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.schedule import NodeKind, Schedule, dependency_csr

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["split_over_qps"]


def split_over_qps(schedule: Schedule, qps: int) -> tuple[Schedule, NDArray[np.int32]]:
    """Split every transfer into ``qps`` equal parts that must all arrive; return QP numbers too.

    Each transfer becomes its parts and a barrier that joins them; successors wait for the
    barrier. The first ``size mod qps`` parts are one byte longer.
    """
    n = len(schedule)
    moving = schedule.kind == NodeKind.TRANSFER
    copies = np.where(moving, qps, 1)
    start = np.concatenate(([0], np.cumsum(copies + moving)))
    join = start[1:] - 1  # the barrier of a transfer, the node itself otherwise
    total = int(start[-1])
    owner = np.repeat(np.arange(n), copies + moving)
    part = np.arange(total) - start[owner]
    barrier = moving[owner] & (part == qps)
    kind = np.where(barrier, NodeKind.BARRIER, schedule.kind[owner]).astype(np.int32)
    size = schedule.size_bytes[owner]
    size = np.where(
        moving[owner] & ~barrier, size // qps + (part < size % qps), np.where(barrier, 0, size)
    )
    delay = np.where(barrier, 0, schedule.delay_ps[owner])
    # Old edges: from a node's join to every part of each successor.
    edges = len(schedule.succ)
    before = np.repeat(np.arange(n), np.diff(schedule.succ_ptr))
    fan = copies[schedule.succ]
    edge = np.repeat(np.arange(edges), fan)
    nth = np.arange(fan.sum()) - np.repeat(np.cumsum(fan) - fan, fan)
    head = start[schedule.succ[edge]] + nth
    parts = np.flatnonzero(moving[owner] & ~barrier)
    n_deps, ptr, succ = dependency_csr(
        total,
        np.concatenate((join[before[edge]], parts)).astype(np.int32),
        np.concatenate((head, join[owner[parts]])).astype(np.int32),
    )
    split = replace(
        schedule,
        kind=kind,
        src=schedule.src[owner],
        dst=np.where(barrier, schedule.src[owner], schedule.dst[owner]).astype(np.int32),
        size_bytes=size.astype(np.int64),
        delay_ps=delay.astype(np.int64),
        n_deps=n_deps,
        succ_ptr=ptr,
        succ=succ,
        chunk=None,
        phase=None,
        channel=None if schedule.channel is None else schedule.channel[owner],
    )
    return split, np.where(barrier, 0, part).astype(np.int32)
