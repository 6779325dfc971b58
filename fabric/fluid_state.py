# SPDX-License-Identifier: Apache-2.0
"""The arrays of one fluid simulation, and their growth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from railweave.fabric import _fluid_layout as lay
from railweave.fabric._fluid_events import drop_finish, start_nodes
from railweave.fabric._fluid_kernel import advance, leave_links
from railweave.fabric._fluid_layout import grown, records
from railweave.fabric._fluid_solve import touch_link
from railweave.fabric.errors import RailweaveError
from railweave.fabric.jit import call_for_work
from railweave.fabric.sole_paths import sole_rates
from railweave.fabric.usage import spans

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from railweave.fabric.binding import BoundSchedule
    from railweave.fabric.fluid_graph import FluidGraph
    from railweave.fabric.usage import Usage

__all__ = ["FluidState", "SolvePaths"]

_MANY = 1 << 14  # flows that start together, for which links are laid out at once


@dataclass(frozen=True)
class _Block:
    """Where a group lies: numbers of nodes, edges and loops, and the first of each."""

    sizes: tuple[int, int, int]
    node: int
    edge: int
    loop: int

    @property
    def events(self) -> int:
        """Events that the group may need in one instant, but for runs released too early.

        A node has one at a time; of a looped node one message is on its links, one arrives, one
        completes and one is released.
        """
        nodes, _, loops = self.sizes
        return nodes + 3 * loops


class SolvePaths(Protocol):
    """What a simulation reads of a table of paths (see `railweave.fabric.paths.PathTable`)."""

    routes: Any  # PATH records
    hops: Any  # HOP records
    longest: int

    def __len__(self) -> int:
        """Return the number of paths."""


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
    tolerance
        Relative error that rates and times of flows may have, 0: none.
    """

    def __init__(
        self,
        capacity_bps: NDArray[np.float64],
        ack_share: NDArray[np.float64],
        paths: SolvePaths,
        *,
        tolerance: float = 0.0,
    ) -> None:
        n_links = len(capacity_bps)
        self.paths = paths
        self.n_links = n_links
        self.runs = records(lay.RUN, 1)
        self.run = self.runs[0]
        self.run.acks = int(ack_share.any())
        self.run.tolerance = tolerance
        self.run.instant = 1
        self.links = records(lay.LINK, n_links)
        self.links.capacity = capacity_bps
        self.links.usable = capacity_bps
        self.links.ack_share = self._ack_share = ack_share
        self.pool = np.empty(max(64, 4 * n_links), np.int32)
        self.run.hop_bits = 1
        self.slots = records(lay.SLOT, 0)
        self.lists = np.empty((lay.LISTS, 0), np.int32)
        self.ends = records(lay.END, 0)
        self.where = np.empty(0, np.int32)  # place of each slot in the finish heap
        self.place = np.empty((0, 1), np.int32)
        self.nodes = records(lay.NODE, 0)
        self.loops = records(lay.LOOP, 0)
        self.events = records(lay.EVENT, 64)
        self.run.event_free = lay.NO_EVENT
        self.delays = np.zeros(0, np.int64)  # before a node starts, or how long its work takes
        self.succ = np.empty(0, np.int32)
        self.lanes = records(lay.LANE, 0)
        self.sole = records(lay.SOLE, 0)  # of a closed simulation
        self.groups = records(lay.GROUP, 16)
        self.timers = records(lay.LIST, len(self.events))
        self.opened = records(lay.LIST, lay.OPEN)
        self.opened.time = lay.FOREVER
        self.order = np.empty(0, np.int64)
        self.add_slots(64)
        self._nodes_used = 0
        self._edges_used = 0
        self._groups_used = 0
        self._loops_used = 0
        # Ended blocks of groups, by their numbers of nodes, edges and loops.
        self._free_blocks: dict[tuple[int, int, int], list[tuple[int, _Block]]] = {}
        self._blocks: dict[int, _Block] = {}

    def add_slots(self, rows: int) -> None:
        """Make room for ``rows`` active flows, and for as many levels in the links' heap."""
        run, used = self.run, int(self.run.slots_used)
        self._check_slots(rows)
        self.slots = grown(self.slots, rows, used)
        rows = len(self.slots)
        lists = np.empty((lay.LISTS, max(rows, self.n_links)), np.int32)
        known = min(max(used, self.n_links), self.lists.shape[1])  # slots may be counted ahead
        lists[:, :known] = self.lists[:, :known]
        self.lists = lists
        self.ends = grown(self.ends, rows, run.active)
        self.where = grown(self.where, rows, used)
        self.place = grown(self.place, rows, used)
        self.links = grown(self.links, self.n_links + rows, self.n_links)
        self.order = grown(self.order, len(self.events) + rows, run.arrivals)

    def _new_block(self, graph: FluidGraph) -> tuple[int, _Block]:
        """Find room for a schedule; return its group and where it lies."""
        sizes = len(graph), len(graph.succ), len(graph.looped)
        freed = self._free_blocks.get(sizes)
        if freed:
            return freed.pop()
        nodes, edges, loops = sizes
        group = self._groups_used
        block = _Block(sizes, self._nodes_used, self._edges_used, self._loops_used)
        self._groups_used += 1
        self._nodes_used += nodes
        self._edges_used += edges
        self._loops_used += loops
        self.nodes = grown(self.nodes, self._nodes_used)
        if len(self.delays) < len(self.nodes):  # zeros take no memory until they are written
            longer = np.zeros(len(self.nodes), np.int64)
            longer[: len(self.delays)] = self.delays
            self.delays = longer
        self.succ = grown(self.succ, self._edges_used)
        self.loops = grown(self.loops, self._loops_used)
        self.groups = grown(self.groups, self._groups_used)
        return group, block

    def add_events(self, rows: int) -> None:
        """Make room for ``rows`` more events than are in use, and for what they cause."""
        run = self.run
        rows += int(run.events_used - run.events_free)
        self.events = grown(self.events, rows, run.events_used)
        self.timers = grown(self.timers, len(self.events), run.timers)
        self.order = grown(self.order, len(self.events) + len(self.slots), run.arrivals)

    @property
    def now_ps(self) -> int:
        """Time of the last event."""
        return int(self.run.now)

    @property
    def next_ps(self) -> int:
        """Time of the next event; at least ``2**62`` if there is none."""
        run = self.run
        if run.touches > 0:
            return int(run.now)
        times = [*self.opened.time, *self.timers.time[: min(run.timers, 1)]]
        return int(min([*times, *self.ends.time[: min(run.active, 1)]]))

    @property
    def solves(self) -> tuple[int, int]:
        """How often rates were solved for, and how many flows in all."""
        return int(self.run.solves), int(self.run.solved_flows)

    @property
    def contended(self) -> NDArray[np.int32]:
        """int32 (links,): 1 where several flows were held back together; may be written."""
        return np.asarray(self.links.contended[: self.n_links])

    def _add_lanes(self, rows: int) -> None:
        """Make an empty lane for each path."""
        old = len(self.lanes)
        self.lanes = grown(self.lanes, rows)
        fresh = self.lanes[old:]
        fresh.busy = 0
        fresh.reserved = lay.NO_NODE
        fresh.head = fresh.tail = lay.NO_EVENT

    def write(
        self,
        graph: FluidGraph,
        *,
        weight: float = 1.0,
        cap_bps: float = np.inf,
        in_turn: bool = True,
        timed: bool = False,
    ) -> tuple[int, int]:
        """Write a schedule's nodes into a block; return its group and first node."""
        group, block = self._new_block(graph)
        base, edge, n = block.node, block.edge, len(graph)
        nodes = self.nodes[base : base + n]
        nodes.path, nodes.wire, nodes.group, nodes.loop = graph.path, graph.wire_bytes, group, -1
        nodes.succ = edge + graph.succ_ptr[:-1]
        nodes.n_succ = np.diff(graph.succ_ptr)
        if len(graph.looped):
            loops = np.arange(block.loop, block.loop + len(graph.looped))
            self.nodes.loop[base + graph.looped] = loops
            self.loops[loops] = graph.loop_rows
        if graph.has_delays or self.delays[base : base + n].any():
            self.delays[base : base + n] = graph.delay_ps
        self.succ[edge : edge + len(graph.succ)] = graph.succ
        own = self.groups[group]
        own.first_node, own.weight, own.cap, own.in_turn = base, weight, cap_bps, in_turn
        own.timed = timed
        self._blocks[group] = block
        self.run.events_need += block.events
        self.make_room()
        return group, base

    def make_room(self) -> None:
        """Make room for all paths of the table."""
        self._add_lanes(len(self.paths))
        if self.paths.longest > self.place.shape[1]:
            wider = np.zeros((len(self.place), self.paths.longest), np.int32)
            wider[:, : self.place.shape[1]] = self.place
            self.place = wider
            self._widen_entries(int(self.paths.longest - 1).bit_length())

    def _widen_entries(self, bits: int) -> None:
        """Give the pool's entries ``bits`` bits for which hop of a path they are about."""
        old = int(self.run.hop_bits)
        if bits > old:
            known = self.pool[: self.run.pool_used]
            hop = known & ((1 << old) - 1)
            self.pool[: self.run.pool_used] = known >> old << bits | hop
            self.run.hop_bits = bits
            self._check_slots(int(self.run.slots_used))

    def _check_slots(self, rows: int) -> None:
        """Refuse more flows at once than the pool's entries can tell apart."""
        most = 1 << (31 - int(self.run.hop_bits))
        if rows > most:
            raise RailweaveError(
                f"more than {most:,} messages at once, over paths of up to {self.paths.longest} "
                "links, are too many for the fluid engine"
            )

    def add(
        self,
        graph: FluidGraph,
        *,
        at_ps: int,
        weight: float = 1.0,
        cap_bps: float = np.inf,
        in_turn: bool = True,
        timed: bool = False,
    ) -> int:
        """Start a schedule at ``at_ps``, not in the past, and return its group number.

        ``in_turn``: its messages on one path go one after the other; ``timed``: `ends_of` tells
        when each node completed.
        """
        group, _ = self.write(graph, weight=weight, cap_bps=cap_bps, in_turn=in_turn, timed=timed)
        self.restart(group, graph, at_ps=at_ps)
        return group

    def restart(self, group: int, graph: FluidGraph, *, at_ps: int) -> None:
        """Let a group that has ended (or not begun) run from its first nodes on."""
        block = self._blocks[group]
        nodes = slice(block.node, block.node + len(graph))
        self.groups[group].left = graph.n_runs
        self.nodes.deps[nodes] = graph.n_deps
        if len(graph.looped):
            self.loops[block.loop : block.loop + len(graph.looped)] = graph.loop_rows
        if int(self.run.events_need) > len(self.events) - self.run.events_used:
            self.add_events(int(self.run.events_need))
        if len(graph.roots) >= _MANY and not graph.has_delays:
            self._make_room(graph.path[graph.roots])
        call_for_work(
            16 * len(graph.roots), start_nodes,
            self.run, self.events, self.delays, self.timers, self.opened, block.node, graph.roots,
            at_ps,
        )  # fmt: skip

    def _make_room(self, paths: NDArray[np.int32]) -> None:
        """Lay out idle links for flows that start together, instead of growing with each one."""
        crossing = np.zeros(len(self.links), np.int64)
        routes = self.paths.routes
        for first in range(0, len(paths), _MANY):
            some = paths[first : first + _MANY]
            some = some[some >= 0]
            at = spans(routes.hops[some], routes.hops_end[some])
            crossing += np.bincount(self.paths.hops.link[at], minlength=len(crossing))
        links: Any = self.links[: self.n_links]
        wider = np.flatnonzero((links.members == 0) & (crossing[: self.n_links] > links.room))
        room = crossing[wider]
        used = int(self.run.pool_used)
        links.members_at[wider] = used + np.cumsum(room) - room
        links.room[wider] = room
        self.run.pool_used = used + int(room.sum())
        self.pool = grown(self.pool, int(self.run.pool_used) + len(self.pool) // 2, used)

    def close(self) -> None:
        """Say that nothing but what was added comes in, and that no link changes.

        Messages of paths that share no link then pass without being simulated one by one, to the
        same picosecond. What they have moved before the end is not known.
        """
        if not self.run.tolerance:
            rates = sole_rates(self.paths, self.links.capacity[: self.n_links], self._ack_share)
            self.sole = records(lay.SOLE, len(rates))
            self.sole.rate = rates

    def ends_of(self, group: int, graph: FluidGraph) -> NDArray[np.int64]:
        """Return when each node of a timed group completed, int64, -1 where it has not."""
        base = self._blocks[group].node
        own = self.nodes[base : base + len(graph)]
        return np.where(own.deps == -1, own.wire, -1)

    def release(self, group: int) -> None:
        """Give back the nodes of a group that has ended."""
        block = self._blocks.pop(group)
        self.run.events_need -= block.events
        self._free_blocks.setdefault(block.sizes, []).append((group, block))

    def reach(self, at_ps: int) -> None:
        """Set the clock, once the events that cancelled groups left before are out of the way."""
        while self.advance(at_ps - 1) is not None:
            pass
        self.run.now = max(int(self.run.now), at_ps)

    def cancel(self, group: int, *, at_ps: int) -> None:
        """Stop a group at ``at_ps``: its flows leave their links, its events come to nothing.

        Everything before ``at_ps`` must have been run.
        """
        self.reach(at_ps)
        self.groups[group].left = -1
        for slot in self.slots_of(group):
            drop_finish(self.run, self.ends, self.where, slot)
            leave_links(
                self.run, self.lists, self.slots, self.place, self.links, self.pool,
                self.paths.hops, slot,
            )  # fmt: skip

    def slots_of(self, group: int) -> list[int]:
        """Slots of a group's active flows, in node order."""
        active = self.ends.slot[: self.run.active]
        own = active[self.nodes.group[self.slots.node[active]] == group]
        return [int(s) for s in own[np.argsort(self.slots.node[own])]]

    def moved(self, group: int, bound: BoundSchedule, *, now_ps: int) -> Usage:
        """Return what a group under way has put on each path in its present run."""
        block = self._blocks[group]
        base, looped = block.node, bound.looped
        runs = (self.nodes.deps[base : base + bound.n_nodes] == -1).astype(np.float64)
        left = self.loops.left[block.loop : block.loop + len(looped)]
        runs[looped] = bound.runs[looped] - left
        for _, code in self.pending():
            node = (code >> 1) - base
            if code & 1 and 0 <= node < bound.n_nodes:
                runs[node] += 1.0  # off its links; its last bits are still on their way
        flows = self.slots[self.slots_of(group)]
        size = self._message_bytes(flows.node)
        remaining = flows.remaining - flows.rate * (now_ps - flows.updated) / 8e12
        runs[flows.node - base] += 1.0 - np.maximum(remaining, 0.0) / np.maximum(size, 1)
        return bound.usage_of(runs / bound.runs)

    def _message_bytes(self, nodes: NDArray[np.int32]) -> NDArray[np.int64]:
        """Wire bytes of the message that each node sends now or next (``message_bytes``)."""
        size: NDArray[np.int64] = self.nodes.wire[nodes].astype(np.int64)
        looped = np.flatnonzero(self.nodes.loop[nodes] >= 0)
        loops = self.loops[self.nodes.loop[nodes[looped]]]
        size[looped] += np.where(loops.part < loops.longer, loops.longer_by, 0)
        return size

    def set_capacity(self, link: int, capacity_bps: float, *, at_ps: int) -> None:
        """Change what a link carries from ``at_ps`` on; everything before must have been run."""
        self.reach(at_ps)
        row = self.links[link]
        row.capacity = capacity_bps
        self.run.narrowed = 1
        touch_link(self.run, self.lists, self.links, link)

    def pending(self) -> list[tuple[int, int]]:
        """Every scheduled node event as (time, code), in no order."""
        lists = [row for row in self.opened if row.time < lay.FOREVER]
        lists += list(self.timers[: self.run.timers])
        return [(int(row.time), code) for row in lists for code in self.codes(int(row.head))]

    def codes(self, event: int) -> Iterator[int]:
        """Yield the code of an event and of those after it in its list."""
        while event != lay.NO_EVENT:
            yield int(self.events[event].code)
            event = int(self.events[event].next)

    def advance(self, limit_ps: int) -> list[int] | None:
        """Run to the first completions at or before ``limit_ps``; return the groups that ended.

        None: nothing completes by then. An empty list: a pause on the way, at `now_ps`.
        """
        while True:
            code = advance(
                self.runs, self.nodes, self.loops, self.events, self.delays, self.succ,
                self.groups, self.ends, self.where, self.lists, self.slots, self.place,
                self.links, self.pool, self.lanes, self.sole, self.paths.routes,
                self.paths.hops, self.timers, self.opened, self.order, limit_ps,
            )  # fmt: skip
            if code == lay.COMPLETED:
                return sorted(int(g) for g in self.groups.done[: self.run.done])
            if code == lay.NEED_SLOTS:
                ahead = int(self.run.arrivals - self.run.placed)
                self.add_slots(max(2 * len(self.slots), int(self.run.slots_used) + ahead))
            elif code == lay.NEED_EVENTS:
                self.add_events(2 * int(self.run.events_need))
            elif code == lay.NEED_POOL:
                self.pool = grown(self.pool, 2 * len(self.pool))
            else:
                return [] if code == lay.PAUSED else None
