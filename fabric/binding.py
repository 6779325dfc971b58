# SPDX-License-Identifier: Apache-2.0
"""Binding: a schedule over ranks becomes a schedule over paths, with its bytes and its bound."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric._fluid_layout import LOOP
from railweave.fabric.errors import InputError
from railweave.fabric.fluid_graph import FluidGraph
from railweave.fabric.kept import Kept
from railweave.fabric.kinds import DeviceKind
from railweave.fabric.loops import expand
from railweave.fabric.lower_bound import Chains, chains, floor_ps, least_ps
from railweave.fabric.network import Framing
from railweave.fabric.queue_pairs import split_over_qps
from railweave.fabric.schedule import NodeKind, Schedule
from railweave.fabric.usage import Usage, blocks, spans

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from railweave.fabric.paths import PathTable
    from railweave.fabric.routing import Routing

__all__ = ["Binder", "BoundSchedule"]

_KEPT_NODES = 2**24  # nodes of all schedules whose paths are kept
_PART = 2**15  # pairs that are routed at a time
_TABLE = 2**25  # largest table by pair of ranks; beyond it pairs are sorted
_NONE = np.empty(0, np.int32)
_NO_BYTES = np.zeros(1, np.int64)
_NONE_OF_MANY = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class BoundSchedule:
    """A schedule whose transfers know their path.

    ``path`` int32 (nodes,), -1 where nothing crosses a link; ``wire_bytes`` int64 (nodes,) of one
    run, the shorter where they differ; the rest as in `Schedule`. ``roots`` are the nodes without
    predecessors.
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
    def graph(self) -> FluidGraph:
        """The schedule as the fluid engine runs it."""
        plan = self.schedule
        return FluidGraph(
            path=self.path,
            wire_bytes=self.wire_bytes,
            delay_ps=plan.delay_ps,
            n_deps=plan.n_deps,
            succ_ptr=plan.succ_ptr,
            succ=self._successors,
            looped=self.looped,
            loop_rows=self._loop_rows,
            n_runs=self.n_runs,
        )

    @property
    def roots(self) -> NDArray[np.int64]:
        """Nodes that wait for nothing, int64."""
        return self.graph.roots

    @cached_property
    def looped(self) -> NDArray[np.int64]:
        """Nodes that run more than once, int64."""
        loops = self.schedule.loops
        return np.flatnonzero(loops.runs > 1) if loops is not None else _NONE_OF_MANY

    @cached_property
    def runs(self) -> NDArray[np.int32]:
        """Runs of each node, int32 (nodes,)."""
        loops = self.schedule.loops
        return loops.runs if loops is not None else np.ones(self.n_nodes, np.int32)

    @property
    def n_runs(self) -> int:
        """Number of runs of all nodes."""
        return int(self.runs.sum(dtype=np.int64)) if len(self.looped) else self.n_nodes

    @property
    def _successors(self) -> NDArray[np.int32]:
        """``schedule.succ`` with ``~s`` instead of ``s`` where each run releases the next one."""
        plan = self.schedule
        if plan.loops is None:
            return plan.succ
        return np.where(plan.loops.again, ~plan.succ, plan.succ).astype(np.int32)

    @cached_property
    def _longer_by(self) -> NDArray[np.int64]:
        """Wire bytes that a byte more makes, int64 (looped nodes,)."""
        at = self.looped
        more = self.table.wire_bytes(self.path[at], self.schedule.size_bytes[at] + 1)
        return more - self.wire_bytes[at]

    @property
    def _loop_rows(self) -> NDArray[np.void]:
        """LOOP records of the looped nodes before their first run."""
        loops, at = self.schedule.loops, self.looped
        rows = np.zeros(len(at), LOOP)
        if loops is not None and len(at):
            rows["left"] = loops.runs[at]
            rows["cycle"] = loops.cycle[at]
            rows["part"] = (self._chunk - loops.first)[at]
            rows["longer"] = loops.longer_parts()[at]
            rows["longer_by"] = self._longer_by
        return rows

    @property
    def _chunk(self) -> NDArray[np.int32]:
        chunk = self.schedule.chunk
        return np.zeros(self.n_nodes, np.int32) if chunk is None else chunk

    @cached_property
    def usage(self) -> Usage:
        """Bytes per path of one run."""
        return self.usage_of(None)

    def usage_of(self, share: NDArray[np.float64] | None) -> Usage:
        """Bytes per path of a part of a run: ``share`` float64 (nodes,) done of each node."""
        used, row = self.used_paths
        once = len(used) == len(row)  # each path has one node

        def summed(amount: NDArray[np.int64]) -> NDArray[np.int64]:
            if once and share is None:
                if not amount.any():
                    return np.zeros(len(used), np.int64)
                out = np.empty(len(used), np.int64)
                out[row] = amount
                return out
            part = amount if share is None else np.rint(amount * share)
            # float64 counts bytes exactly up to 2**53
            return np.rint(np.bincount(row + 1, part, len(used) + 1)[1:]).astype(np.int64)

        return Usage(used, *(summed(amount) for amount in self._amounts))

    @cached_property
    def _amounts(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Wire, payload and ACK bytes of all runs of each node."""
        loops = self.schedule.loops
        wire, size, acks = self.wire_bytes, self.schedule.size_bytes, self._ack_bytes(0)
        if loops is None or not len(self.looped):
            return wire, size, acks
        at = self.looped
        longer = loops.longer_runs(self._chunk)[at]
        wire, size, acks = wire * loops.runs, size * loops.runs, acks * loops.runs
        wire[at] += self._longer_by * longer
        size[at] += longer
        acks[at] += (self._ack_bytes(1) - self._ack_bytes(0))[at] * longer
        return wire, size, acks

    def _ack_bytes(self, more: int) -> NDArray[np.int64]:
        """ACK bytes that answer one run of each node, int64, or one of ``more`` bytes more."""
        settings = self.table.settings
        if not settings.ack_every:
            return np.broadcast_to(_NO_BYTES, self.n_nodes)
        per_ack = np.array([settings.ack_wire_bytes(kind) for kind in Framing], np.int64)
        packets = np.maximum(-(-(self.schedule.size_bytes + more) // settings.mtu_bytes), 1)
        framing = self.table.framing[np.maximum(self.path, 0)] if len(self.table) else self.path
        return np.asarray(-(-packets // settings.ack_every) * per_ack[framing])

    @cached_property
    def used_paths(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The paths in use, sorted, and the row of each node's path among them (-1: none)."""
        if self.n_nodes >= len(self.table):
            counts = np.bincount(self.path + 1, minlength=len(self.table) + 1)[1:]
            if counts.all():
                return np.arange(len(self.table), dtype=np.int32), self.path
        used, row = np.unique(self.path, return_inverse=True)
        skipped = int(used[0] < 0) if len(used) else 0
        return used[skipped:], (row - skipped).astype(np.int32)

    @cached_property
    def links(self) -> NDArray[np.int32]:
        """Links that can limit or be limited by this schedule, int32, unique, sorted."""
        table, n_links = self.table, self.table.fabric.n_links
        used = np.zeros(n_links + 2, np.bool_)  # and a cable that is not there, `nowhere`
        for paths in blocks(self.used_paths[0]):
            routes = table.routes[paths]
            used[table.hops.link[spans(routes.hops, routes.hops_end)]] = True
        if table.settings.ack_every:
            used |= used.reshape(-1, 2)[:, ::-1].reshape(-1)
        return np.flatnonzero(used[:n_links]).astype(np.int32)

    @cached_property
    def _chains(self) -> Chains:
        return chains(self)

    @property
    def chain_ps(self) -> int:
        """Time of the longest chain of nodes of one run, alone on an empty fabric."""
        return self._chains.longest_ps

    @property
    def least_ps(self) -> NDArray[np.int64]:
        """Time of each node alone on an empty fabric, int64 (nodes,)."""
        return least_ps(self)

    @cached_property
    def bound_ps(self) -> int:
        """Lower bound of one run (`railweave.fabric.lower_bound`)."""
        if self.n_nodes == 1 and not len(self.looped):
            return self.chain_ps
        return max(self.chain_ps, floor_ps(self, self._chains))


class Binder:
    """Binds schedules to devices over one routing, remembering the paths of each rank list."""

    def __init__(self, table: PathTable, routing: Routing, *, qps: int, split: bool) -> None:
        self.table = table
        self.routing = routing
        self.qps = qps
        self.split = split
        # The schedule's array is kept beside the paths, so that its id is not reused meanwhile.
        self._pairs: Kept[tuple[object, NDArray[np.int32]]] = Kept(most=_KEPT_NODES)
        self._single: dict[tuple[int, int, int], int] = {}

    def path(self, src: int, dst: int, qp: int = 0) -> int:
        """Return the path number of one pair (-1: nothing to cross)."""
        key = (src, dst, qp)
        if key not in self._single:
            self.prepare([key])
        return self._single[key]

    def prepare(self, keys: Iterable[tuple[int, int, int]]) -> None:
        """Route ``(src, dst, qp)`` keys in one go, which is much faster than one by one."""
        new = [key for key in dict.fromkeys(keys) if key not in self._single]
        if new:
            src, dst, qp = np.ascontiguousarray(np.array(new, np.int32).T)
            self._refuse_switches(np.concatenate((src, dst)))
            numbers = self._route(src, dst, qp)
            self._single.update(zip(new, numbers.tolist(), strict=True))

    def bind(self, schedule: Schedule, ranks: NDArray[np.int32]) -> BoundSchedule:
        """Bind ``schedule`` to the devices ``ranks``, int32 (n_ranks,)."""
        qp: NDArray[np.int32] | None = None
        self._refuse_switches(ranks[: len(ranks) - schedule.switches])
        if self.qps > 1:
            schedule = expand(schedule)
        if self.qps > 1 and self.split:
            schedule, qp = split_over_qps(schedule, self.qps)
        path = self._paths(schedule, ranks, qp)
        return BoundSchedule(
            schedule, self.table, path, self.table.wire_bytes(path, schedule.size_bytes)
        )

    def _refuse_switches(self, devices: NDArray[np.int32]) -> None:
        """Raise `InputError` for a switch: only schedules that reduce in switches send to some."""
        fabric = self.table.fabric
        known = devices[(devices >= 0) & (devices < fabric.n_devices)]
        switches = known[np.isin(fabric.kind[known], (DeviceKind.SWITCH, DeviceKind.NVSWITCH))]
        if len(switches):
            raise InputError(
                f"'{fabric.device_names[switches[0]]}' is a switch", expected="a GPU or a NIC"
            )

    def _paths(
        self, schedule: Schedule, ranks: NDArray[np.int32], qp: NDArray[np.int32] | None
    ) -> NDArray[np.int32]:
        """Path of every node; the same structure on the same ranks is looked up once."""
        if qp is not None:  # split anew for each schedule: nobody would find it again
            return self._look_up(schedule, ranks, qp)
        key = (id(schedule.src), ranks.tobytes())
        known = self._pairs.get(key)
        if known is not None and known[0] is schedule.src:
            return known[1]
        turns = self._turns(schedule) if self.qps > 1 else _NONE
        path = self._look_up(schedule, ranks, turns)
        self._pairs.put(key, (schedule.src, path), size=len(path) + len(ranks))
        return path

    def _look_up(
        self, schedule: Schedule, ranks: NDArray[np.int32], qp: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Route each pair of ranks in use once, and give every transfer its path."""
        n, qps = schedule.n_ranks, self.qps
        if schedule.channel is not None:  # each has its own queue pairs
            qp = schedule.channel * np.int32(qps) + (qp if len(qp) else np.int32(0))
            qps *= int(schedule.channel.max(initial=0)) + 1
        code = _codes(schedule, qp, qps)
        if n * n * qps <= _TABLE:
            table = np.full(n * n * qps + 1, -1, np.int32)
            row = np.arange(len(code), dtype=np.int32)
            table[code[::-1]] = row[::-1]  # of each pair's first transfer
            codes = code[(table[code] == row) & (code >= 0)]  # paths lie in the order of their use
            table[codes] = self._routed(codes, n, qps, ranks)
            table[-1] = -1  # of those without a pair
            return table[code]
        codes, inverse = np.unique(code, return_inverse=True)
        numbers = np.full(len(codes), -1, np.int32)
        numbers[codes >= 0] = self._routed(codes[codes >= 0], n, qps, ranks)
        return numbers[inverse]

    def _routed(
        self, codes: NDArray[np.int64], n: int, qps: int, ranks: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Path numbers of coded pairs."""
        pair, qp = np.divmod(codes, qps)
        src, dst = np.divmod(pair, n)
        return self._route(ranks[src], ranks[dst], qp.astype(np.int32))

    def _route(
        self, src: NDArray[np.int32], dst: NDArray[np.int32], qp: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Path numbers of pairs of devices, int32; -1 where they are one.

        Many are routed part by part: what is sprayed crosses hundreds of links, and routes take
        more memory while they are found than in the table.
        """
        count = len(src)
        numbers = np.empty(count, np.int32)
        for first in range(0, count, _PART):
            part = slice(first, first + _PART)
            found = self.routing.routes(src[part], dst[part], qp[part], of=count)
            if count > _PART and not first:  # the rest will be like them
                self.table.reserve(count, int(1.1 * count / _PART * len(found.links)))
            numbers[part] = self.table.intern(found)
        return numbers

    def _turns(self, schedule: Schedule) -> NDArray[np.int32]:
        """QP of each message when a pair's messages take its QPs in turn, int32 (nodes,)."""
        code = _codes(schedule, _NONE, 1)
        order = np.argsort(code, kind="stable")
        ordered = code[order]
        start = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        run = np.diff(np.concatenate((start, [len(code)])))
        turn = np.empty(len(code), np.int32)
        turn[order] = (np.arange(len(code)) - np.repeat(start, run)) % self.qps
        return turn


def _codes(schedule: Schedule, qp: NDArray[np.int32], qps: int) -> NDArray[np.int64]:
    """Code of each transfer: ``(src * ranks + dst) * qps + qp``; -1 where there is no pair."""
    code = schedule.src.astype(np.int64) * schedule.n_ranks + schedule.dst
    code = code * qps + (qp if len(qp) else 0)
    moving = (schedule.kind == NodeKind.TRANSFER) & (schedule.src != schedule.dst)
    return np.where(moving, code, -1)
