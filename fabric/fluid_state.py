# SPDX-License-Identifier: Apache-2.0
"""The arrays of one fluid simulation, and their growth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from railweave.fabric import _fluid_layout as col
from railweave.fabric._fluid_kernel import (
    advance,
    drop_finish,
    leave_links,
    push_finish,
    start_nodes,
    start_timer,
)
from railweave.fabric._fluid_solve import touch_link

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.fabric.binding import BoundSchedule, Usage

__all__ = ["FluidState", "SolvePaths"]

_NODE_ARRAYS = ("node_path", "node_wire", "node_delay", "node_deps", "node_group")
_EVENT_ARRAYS = ("timer_time", "timer_head", "timer_next", "arrivals")


def _grown(array: NDArray[Any], rows: int) -> NDArray[Any]:
    """Return ``array`` with room for ``rows`` rows; new rows are not initialised."""
    if len(array) >= rows:
        return array
    more = np.empty((max(rows, 2 * len(array)), *array.shape[1:]), array.dtype)
    more[: len(array)] = array
    return more


class SolvePaths(Protocol):
    """What a simulation reads of a table of paths (see `railweave.fabric.paths.PathTable`)."""

    solve_ptr: NDArray[np.int64]
    solve_link: NDArray[np.int32]
    solve_share: NDArray[np.float64]
    cost_f: NDArray[np.float64]
    cost_i: NDArray[np.int64]
    longest: int


class FluidState:
    """Links, paths, nodes, groups and active flows of one simulation, as arrays for the kernels.

    A group is one executed schedule or one sent flow: a block of nodes.

    Parameters
    ----------
    capacity_bps
        float64 (links,): what each link carries, in wire bit/s.
    ack_share
        float64 (links,): acknowledgement bits on the other direction per data bit; zeros: none.
    paths
        The table that path numbers refer to; it may grow while the state lives.
    """

    def __init__(
        self,
        capacity_bps: NDArray[np.float64],
        ack_share: NDArray[np.float64],
        paths: SolvePaths,
    ) -> None:
        links = len(capacity_bps)
        self.paths = paths
        self.link_f = np.zeros((links, col.LINK_F), np.float64)
        self.link_f[:, col.CAPACITY] = capacity_bps
        self.link_f[:, col.USABLE] = capacity_bps
        self.link_f[:, col.ACK_SHARE] = ack_share
        self.link_i = np.zeros((links, col.LINK_I), np.int64)
        self.link_i[:, col.TOUCHED] = -1
        self.touched = np.empty(links, np.int32)
        self.listed = np.empty(links, np.int32)
        self.pool = np.empty(max(64, 4 * links), np.int64)
        self.scalars = np.zeros(col.SCALARS, np.int64)
        self.scalars[col.ACKS] = int(ack_share.any())
        self.slot_f = np.empty((0, col.SLOT_F), np.float64)
        self.slot_i = np.empty((0, col.SLOT_I), np.int64)
        self.place = np.empty((0, 1), np.int32)
        self.finish = np.empty(0, np.int32)
        self.free = np.empty(0, np.int32)
        self.arrived = np.empty(0, np.int64)
        self._add_slots(64)
        self.node_path = np.empty(0, np.int32)
        self.node_wire = np.empty(0, np.int64)
        self.node_delay = np.empty(0, np.int64)
        self.node_deps = np.empty(0, np.int32)
        self.node_group = np.empty(0, np.int32)
        self.succ_ptr = np.empty(1, np.int64)
        self.succ = np.empty(0, np.int32)
        self.timer_time = np.empty(0, np.int64)
        self.timer_head = np.empty(0, np.int64)
        self.timer_next = np.empty(0, np.int64)
        self.open_time = np.full(col.OPEN, col.FOREVER, np.int64)
        self.open_head = np.empty(col.OPEN, np.int64)
        self.arrivals = np.empty(0, np.int32)
        self.group_i = np.empty((16, col.GROUP_I), np.int64)
        self.group_f = np.empty((16, col.GROUP_F), np.float64)
        self.done = np.empty(16, np.int64)
        self._nodes_used = 0
        self._edges_used = 0
        self._groups_used = 0
        # Ended blocks by (nodes, edges), each as (group, first node, first edge).
        self._free_blocks: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        self._blocks: dict[int, tuple[int, int, int, int]] = {}

    def _add_slots(self, rows: int) -> None:
        """Make room for ``rows`` active flows."""
        old = len(self.slot_f)
        for name in ("slot_f", "slot_i", "finish", "free", "place"):
            setattr(self, name, _grown(getattr(self, name), rows))
        self.slot_i[old:, (col.STAMP, col.FROZEN)] = 0
        self.slot_i[old:, col.SAVED] = -1
        rows = len(self.slot_f)
        self.arrived = _grown(self.arrived, rows)
        self.leaving = np.empty(rows, np.int64)
        self.chosen = np.empty(rows, np.int64)
        self.changed = np.empty(rows, np.int64)
        self.heap_key = np.empty(rows + len(self.link_f), np.float64)
        self.heap_id = np.empty(rows + len(self.link_f), np.int64)

    def _new_block(self, nodes: int, edges: int) -> tuple[int, int, int]:
        """Find room for a block; return its group, first node and first edge."""
        freed = self._free_blocks.get((nodes, edges))
        if freed:
            return freed.pop()
        group, base, edge = self._groups_used, self._nodes_used, self._edges_used
        self._groups_used += 1
        self._nodes_used += nodes + 1  # offsets need one entry more than there are nodes
        self._edges_used += edges
        for name in _NODE_ARRAYS + _EVENT_ARRAYS:
            setattr(self, name, _grown(getattr(self, name), self._nodes_used))
        self.succ_ptr = _grown(self.succ_ptr, self._nodes_used + 1)
        self.succ = _grown(self.succ, self._edges_used)
        self.group_i = _grown(self.group_i, self._groups_used)
        self.group_f = _grown(self.group_f, self._groups_used)
        self.done = _grown(self.done, self._groups_used)
        return group, base, edge

    @property
    def now_ps(self) -> int:
        """Time of the last event."""
        return int(self.scalars[col.NOW])

    @property
    def solves(self) -> tuple[int, int]:
        """How often rates were solved for, and how many flows in all."""
        return int(self.scalars[col.SOLVES]), int(self.scalars[col.SOLVED_FLOWS])

    def _write(
        self, bound: BoundSchedule, weight: float = 1.0, cap_bps: float = np.inf
    ) -> tuple[int, int]:
        """Write a schedule's nodes into a block; return its group and first node."""
        plan, nodes, edges = bound.schedule, bound.n_nodes, len(bound.schedule.succ)
        group, base, edge = self._new_block(nodes, edges)
        end = base + nodes
        self.node_path[base:end] = bound.path
        self.node_wire[base:end] = bound.wire_bytes
        self.node_delay[base:end] = plan.delay_ps
        self.node_group[base:end] = group
        self.succ_ptr[base : end + 1] = plan.succ_ptr
        self.succ_ptr[base : end + 1] += edge
        self.succ[edge : edge + edges] = plan.succ
        self.group_i[group, col.BASE] = base
        self.group_f[group] = (weight, cap_bps)
        self._blocks[group] = (nodes, edges, base, edge)
        self._widen_places()
        return group, base

    def add(
        self, bound: BoundSchedule, *, at_ps: int, weight: float = 1.0, cap_bps: float = np.inf
    ) -> int:
        """Start a bound schedule at ``at_ps``, not in the past, and return its group number."""
        group, _ = self._write(bound, weight, cap_bps)
        self.restart(group, bound, at_ps=at_ps)
        return group

    def _widen_places(self) -> None:
        """Let a slot remember its place on each link of the longest path."""
        longest = self.paths.longest
        if longest > self.place.shape[1]:
            wider = np.zeros((len(self.place), longest), np.int32)
            wider[:, : self.place.shape[1]] = self.place
            self.place = wider

    def restart(self, group: int, bound: BoundSchedule, *, at_ps: int) -> None:
        """Let a group that has ended (or not begun) run from its first nodes on."""
        base = int(self.group_i[group, col.BASE])
        self.group_i[group, col.LEFT] = bound.n_nodes
        self.node_deps[base : base + bound.n_nodes] = bound.schedule.n_deps
        start_nodes(
            base, bound.roots, bound.schedule.delay_ps, at_ps, self.timer_time, self.timer_head,
            self.timer_next, self.open_time, self.open_head, self.scalars,
        )

    def release(self, group: int) -> None:
        """Give back the nodes of a group that has ended."""
        nodes, edges, base, edge = self._blocks.pop(group)
        self._free_blocks.setdefault((nodes, edges), []).append((group, base, edge))

    def cancel(self, group: int) -> None:
        """Stop a group: its flows leave their links and its events come to nothing."""
        self.group_i[group, col.LEFT] = -1
        for slot in self.slots_of(group):
            drop_finish(slot, self.finish, self.slot_i, self.scalars)
            leave_links(
                slot, self.free, self.touched, self.slot_i, self.place, self.link_i, self.pool,
                self.paths.solve_ptr, self.paths.solve_link, self.scalars,
            )

    def slots_of(self, group: int) -> list[int]:
        """Slots of a group's active flows, in node order."""
        active = self.finish[: self.scalars[col.ACTIVE]]
        own = active[self.node_group[self.slot_i[active, col.NODE]] == group]
        return [int(s) for s in own[np.argsort(self.slot_i[own, col.NODE])]]

    def moved(self, group: int, bound: BoundSchedule, *, now_ps: int) -> Usage:
        """What a group under way has put on each path so far in its present run."""
        base = int(self.group_i[group, col.BASE])
        share = (self.node_deps[base : base + bound.n_nodes] == -1).astype(np.float64)
        for slot in self.slots_of(group):
            node = int(self.slot_i[slot, col.NODE]) - base
            passed = now_ps - int(self.slot_i[slot, col.UPDATED])
            left = self.slot_f[slot, col.REMAINING] - self.slot_f[slot, col.RATE] * passed / 8e12
            share[node] = 1.0 - max(left, 0.0) / max(int(bound.wire_bytes[node]), 1)
        return bound.usage_of(share)

    def set_capacity(self, link: int, capacity_bps: float) -> None:
        """Change what a link carries from now on."""
        self.link_f[link, col.USABLE] += capacity_bps - self.link_f[link, col.CAPACITY]
        self.link_f[link, col.CAPACITY] = capacity_bps
        touch_link(link, self.touched, self.link_i, self.scalars)

    def _pending(self) -> list[tuple[int, int]]:
        """Every scheduled node event as (time, code), in no order."""
        lists = [(int(t), int(h)) for t, h in zip(self.open_time, self.open_head, strict=True)
                 if t < col.FOREVER]
        waiting = int(self.scalars[col.TIMERS])
        lists += [(int(self.timer_time[i]), int(self.timer_head[i])) for i in range(waiting)]
        events = []
        for time, code in lists:
            while code != col.NO_TIMER:
                events.append((time, code))
                code = int(self.timer_next[code >> 1])
        return events

    def adopt(
        self,
        other: FluidState,
        group: int,
        bound: BoundSchedule,
        *,
        links: NDArray[np.int64],
        paths: NDArray[np.int32],
        offset_ps: int,
    ) -> int:
        """Take over a group under way in a smaller simulation; return its group here.

        Parameters
        ----------
        other, group
            The other simulation and the group in it.
        bound
            Its schedule, bound to the paths of this simulation.
        links, paths
            The number here of each link and path of the other; those links are idle here.
        offset_ps
            When the other's time 0 was.
        """
        mine, base = self._write(bound)
        their_base = int(other.group_i[group, col.BASE])
        moved = 2 * (base - their_base)
        self.group_i[mine, col.LEFT] = other.group_i[group, col.LEFT]
        self.node_deps[base : base + bound.n_nodes] = other.node_deps[
            their_base : their_base + bound.n_nodes
        ]
        for time, code in other._pending():
            start_timer(
                time + offset_ps, code + moved, self.timer_time, self.timer_head,
                self.timer_next, self.open_time, self.open_head, self.scalars,
            )
        slot_here: dict[int, int] = {}
        for theirs in other.slots_of(group):
            slot = slot_here[theirs] = self._take_slot()
            self.slot_f[slot] = other.slot_f[theirs]
            row = self.slot_i[slot]
            row[:] = other.slot_i[theirs]
            row[[col.STAMP, col.FROZEN]] = 0
            row[col.SAVED] = -1
            row[col.NODE] += base - their_base
            row[col.UPDATED] += offset_ps
            if row[col.FINISH] < col.FOREVER:
                row[col.FINISH] += offset_ps
            row[col.PATH] = paths[row[col.PATH]]
            if row[col.BOTTLENECK] >= 0:
                row[col.BOTTLENECK] = links[row[col.BOTTLENECK]]
            push_finish(slot, self.finish, self.slot_i, self.scalars)
        for theirs, link in enumerate(links):
            self._take_members(other, theirs, int(link), slot_here)
        return mine

    def _take_slot(self) -> int:
        """Return an unused slot."""
        if self.scalars[col.FREE] > 0:
            self.scalars[col.FREE] -= 1
            return int(self.free[self.scalars[col.FREE]])
        self.scalars[col.SLOTS_USED] += 1
        used = int(self.scalars[col.SLOTS_USED])
        if used > len(self.slot_f):
            self._add_slots(used)
        return used - 1

    def _take_members(
        self, other: FluidState, theirs: int, link: int, slot_here: dict[int, int]
    ) -> None:
        """Copy the member list and the load of one link, keeping the list's order."""
        loads = [col.USABLE, col.LOAD, col.ACKED]
        self.link_f[link, loads] = other.link_f[theirs, loads]
        at, count = (int(other.link_i[theirs, c]) for c in (col.MEMBERS_AT, col.MEMBERS))
        if count > self.link_i[link, col.ROOM]:
            start = int(self.scalars[col.POOL_USED])
            self.pool = _grown(self.pool, start + count)
            self.link_i[link, [col.MEMBERS_AT, col.ROOM]] = (start, count)
            self.scalars[col.POOL_USED] = start + count
        to = int(self.link_i[link, col.MEMBERS_AT])
        for m in range(count):
            entry = int(other.pool[at + m])
            slot, hop = slot_here[entry >> 16], entry & 0xFFFF
            self.pool[to + m] = slot << 16 | hop
            self.place[slot, hop] = m
        self.link_i[link, col.MEMBERS] = count

    def advance(self, limit_ps: int) -> list[int]:
        """Run to the first completions at or before ``limit_ps``; return the groups that ended.

        An empty list: nothing completes by then.
        """
        while True:
            paths = self.paths
            code = advance(
                limit_ps, self.arrivals, self.leaving, self.arrived, self.done, self.finish, self.free,
                self.touched, self.chosen, self.listed, self.changed, self.node_path,
                self.node_wire, self.node_delay, self.node_deps, self.node_group, self.succ_ptr,
                self.succ, self.group_i, self.group_f, self.slot_f, self.slot_i, self.place,
                self.link_f, self.link_i, self.pool, paths.solve_ptr, paths.solve_link,
                paths.solve_share, paths.cost_f, paths.cost_i, self.timer_time, self.timer_head,
                self.timer_next, self.open_time, self.open_head, self.heap_key, self.heap_id,
                self.scalars,
            )
            if code == col.COMPLETED:
                return sorted(int(g) for g in self.done[: self.scalars[col.DONE]])
            if code == col.NEED_SLOTS:
                self._add_slots(2 * len(self.slot_f))
            elif code == col.NEED_POOL:
                self.pool = _grown(self.pool, 2 * len(self.pool))
            else:
                return []
