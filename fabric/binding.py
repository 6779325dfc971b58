# SPDX-License-Identifier: Apache-2.0
"""Binding: a schedule over ranks becomes a schedule over paths, with its bytes and its bound."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.critical_path import longest_path_ps
from railweave.fabric.network import Framing
from railweave.fabric.schedule import NodeKind, Schedule, dependency_csr

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.fabric.paths import PathTable
    from railweave.fabric.routing import Routing

__all__ = ["Binder", "BoundSchedule", "Usage", "link_bytes", "split_over_qps"]


_REMEMBERED = 512  # rank lists whose paths are kept


@dataclass(frozen=True, eq=False)
class Usage:
    """What one run of a bound schedule puts on each path.

    ``path`` int32 (p,), unique; ``wire_bytes``, ``payload_bytes``, ``ack_bytes`` int64 (p,).
    """

    path: NDArray[np.int32]
    wire_bytes: NDArray[np.int64]
    payload_bytes: NDArray[np.int64]
    ack_bytes: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class BoundSchedule:
    """A schedule whose transfers know their path.

    ``path`` int32 (nodes,), -1 where nothing crosses a link; ``wire_bytes`` int64 (nodes,);
    the rest as in `Schedule`. ``roots`` are the nodes without predecessors.
    """

    schedule: Schedule
    table: PathTable
    path: NDArray[np.int32]
    wire_bytes: NDArray[np.int64]

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self.path)

    @cached_property
    def roots(self) -> NDArray[np.int64]:
        """Nodes that wait for nothing, int64."""
        return np.flatnonzero(self.schedule.n_deps == 0)

    @cached_property
    def usage(self) -> Usage:
        """Bytes per path of one run."""
        return self.usage_of(None)

    def usage_of(self, share: NDArray[np.float64] | None) -> Usage:
        """Bytes per path of a part of a run: ``share`` float64 (nodes,) done of each node."""
        moving = np.flatnonzero(self.path >= 0)
        path, size = self.path[moving], self.schedule.size_bytes[moving]
        settings, wire = self.table.settings, self.wire_bytes[moving]
        acks = np.zeros(len(moving), np.int64)
        if settings.ack_every:
            packets = np.maximum(1, -(-size // settings.mtu_bytes))
            per_ack = np.array([settings.ack_wire_bytes(kind) for kind in Framing], np.int64)
            acks = -(-packets // settings.ack_every) * per_ack[self.table.framing[path]]
        used = np.flatnonzero(np.bincount(path, minlength=1))
        row = np.zeros(len(self.table), np.int64)
        row[used] = np.arange(len(used))
        columns = np.zeros((3, len(used)), np.int64)
        for column, values in zip(columns, (wire, size, acks), strict=True):
            if share is not None:
                values = (values * share[moving]).astype(np.int64)
            np.add.at(column, row[path], values)
        return Usage(used.astype(np.int32), *columns)

    @cached_property
    def links(self) -> NDArray[np.int32]:
        """Links that can limit or be limited by this schedule, int32, unique, sorted."""
        table = self.table
        _, at = expand_rows(table.solve_ptr, self.usage.path)
        used = np.zeros(table.fabric.n_links, np.bool_)
        used[table.solve_link[at]] = True
        if table.settings.ack_every:
            used |= used.reshape(-1, 2)[:, ::-1].reshape(-1)
        return np.flatnonzero(used).astype(np.int32)

    @cached_property
    def transfer_bounds_ps(self) -> NDArray[np.int64]:
        """Time of each node alone on an empty fabric, without its start delay, int64 (nodes,)."""
        out = np.zeros(self.n_nodes, np.int64)
        moving = np.flatnonzero(self.path >= 0)
        out[moving] = self.table.bound_ps(
            self.path[moving], self.wire_bytes[moving], self.schedule.size_bytes[moving]
        )
        return out

    @cached_property
    def chain_ps(self) -> int:
        """Time of the longest chain of nodes of one run, alone on an empty fabric."""
        plan = self.schedule
        return int(
            longest_path_ps(
                self.transfer_bounds_ps + plan.delay_ps,
                plan.n_deps.copy(),
                plan.succ_ptr,
                plan.succ,
            )
        )

    @cached_property
    def bound_ps(self) -> int:
        """Lower bound of one run: its longest chain of nodes, and its busiest link (cut)."""
        return max(self.chain_ps, self.busiest_link_ps)

    @cached_property
    def busiest_link_ps(self) -> int:
        """Time that the busiest link needs for its bytes of one run."""
        wire, _ = link_bytes(self.table, self.usage)
        rate = self.table.fabric.link_rate_bps
        busy = wire * 8e12 / rate
        return int(np.floor(busy.max() * (1 - 1e-15))) if len(busy) else 0


def expand_rows(
    ptr: NDArray[np.int64], rows: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return ``(owner, at)`` of every entry of some CSR rows: which row of ``rows``, and where."""
    lengths = ptr[rows.astype(np.int64) + 1] - ptr[rows]
    owner = np.repeat(np.arange(len(rows)), lengths)
    skipped = np.cumsum(lengths) - lengths
    return owner, np.arange(lengths.sum()) - (skipped - ptr[rows])[owner]


def link_bytes(
    table: PathTable, usage: Usage
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return data bytes and ACK bytes on each link, two int64 arrays of shape (links,).

    Links inside a host carry payload, network links wire bytes; acknowledgements cross the other
    direction of each network link. A path sprayed over several links puts its share on each.
    """
    fabric = table.fabric
    owner, at = expand_rows(table.ptr, usage.path)
    link, share = table.link[at], table.share[at]
    network = fabric.link_network[link]
    size = np.where(network, usage.wire_bytes[owner], usage.payload_bytes[owner])
    acks = (share * usage.ack_bytes[owner])[network]
    return (
        _sum_by_link(link, share, size, fabric.n_links),
        np.rint(np.bincount(link[network] ^ 1, acks, fabric.n_links)).astype(np.int64),
    )


def _sum_by_link(
    link: NDArray[np.int32], share: NDArray[np.float64], size: NDArray[np.int64], n_links: int
) -> NDArray[np.int64]:
    """Add ``share * size`` by link: whole bytes exactly, sprayed shares to the nearest byte."""
    out = np.zeros(n_links, np.int64)
    whole = share == 1.0
    np.add.at(out, link[whole], size[whole])
    sprayed = np.bincount(link[~whole], share[~whole] * size[~whole], n_links)
    return out + np.rint(sprayed).astype(np.int64)


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
    )
    return split, np.where(barrier, 0, part).astype(np.int32)


class Binder:
    """Binds schedules to devices over one routing, remembering the paths of each rank list."""

    def __init__(self, table: PathTable, routing: Routing, *, qps: int, split: bool) -> None:
        self.table = table
        self.routing = routing
        self.qps = qps
        self.split = split
        # The schedule's array is kept beside the paths, so that its id is not reused meanwhile.
        self._pairs: dict[tuple[int, bytes], tuple[object, NDArray[np.int32]]] = {}
        self._single: dict[tuple[int, int, int], int] = {}

    def path(self, src: int, dst: int, qp: int = 0) -> int:
        """Return the path number of one pair (-1: nothing to cross)."""
        key = (src, dst, qp)
        if key not in self._single:
            ends = [np.array([value], np.int32) for value in key]
            self._single[key] = int(self.table.intern(self.routing.routes(*ends))[0])
        return self._single[key]

    def bind(self, schedule: Schedule, ranks: NDArray[np.int32]) -> BoundSchedule:
        """Bind ``schedule`` to the devices ``ranks``, int32 (n_ranks,)."""
        qp: NDArray[np.int32] | None = None
        if self.qps > 1 and self.split:
            schedule, qp = split_over_qps(schedule, self.qps)
        path = self._paths(schedule, ranks, qp)
        wire = np.where(path >= 0, schedule.size_bytes, 0)
        moving = np.flatnonzero(path >= 0)
        wire[moving] = self.table.wire_bytes(path[moving], schedule.size_bytes[moving])
        return BoundSchedule(schedule, self.table, path, wire)

    def _paths(
        self, schedule: Schedule, ranks: NDArray[np.int32], qp: NDArray[np.int32] | None
    ) -> NDArray[np.int32]:
        """Path of every node; the same structure on the same ranks is looked up once."""
        key = (id(schedule.src), ranks.tobytes())
        known = self._pairs.get(key)
        if known is not None and known[0] is schedule.src:
            return known[1]
        path = np.full(len(schedule), -1, np.int32)
        moving = np.flatnonzero(
            (schedule.kind == NodeKind.TRANSFER) & (schedule.src != schedule.dst)
        )
        code = schedule.src[moving].astype(np.int64) * schedule.n_ranks + schedule.dst[moving]
        code = code * self.qps + (qp[moving] if qp is not None else self._turn(code))
        pairs, inverse = _unique(code, schedule.n_ranks**2 * self.qps)
        pair, number = np.divmod(pairs, self.qps)
        src, dst = np.divmod(pair, schedule.n_ranks)
        found = self.routing.routes(
            ranks[src].astype(np.int32), ranks[dst].astype(np.int32), number.astype(np.int32)
        )
        path[moving] = self.table.intern(found)[inverse]
        if len(self._pairs) >= _REMEMBERED:
            del self._pairs[next(iter(self._pairs))]
        self._pairs[key] = (schedule.src, path)
        return path

    def _turn(self, code: NDArray[np.int64]) -> NDArray[np.int64]:
        """QP of each message when a pair's messages take its QPs in turn."""
        turn = np.zeros(len(code), np.int64)
        if self.qps > 1:
            order = np.argsort(code, kind="stable")
            ordered = code[order]
            start = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
            run = np.diff(np.concatenate((start, [len(code)])))
            turn[order] = (np.arange(len(code)) - np.repeat(start, run)) % self.qps
        return turn


def _unique(
    code: NDArray[np.int64], limit: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Like ``np.unique(code, return_inverse=True)``, by table where codes are below 2**25."""
    if limit > 2**25:
        values, inverse = np.unique(code, return_inverse=True)
        return values, inverse
    seen = np.zeros(limit, np.bool_)
    seen[code] = True
    values = np.flatnonzero(seen)
    row = np.zeros(limit, np.int64)
    row[values] = np.arange(len(values))
    return values, row[code]
