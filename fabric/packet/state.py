# SPDX-License-Identifier: Apache-2.0
"""The arrays of one packet simulation: queue pairs, work, and their growth."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.fabric._fluid_layout import LOOP
from railweave.fabric.errors import InputError
from railweave.fabric.jit import as_python
from railweave.fabric.packet import layout as lay
from railweave.fabric.packet.elidable import calm_bytes, can_elide, lanes_of, safe_bytes
from railweave.fabric.packet.elision import ground_all
from railweave.fabric.packet.kernel import advance
from railweave.fabric.packet.layout import records
from railweave.fabric.packet.overrides import link_keys
from railweave.fabric.packet.preparing import set_up
from railweave.fabric.packet.spraying import run_sprays, set_entropies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from railweave.fabric.binding import BoundSchedule
    from railweave.fabric.graph import Fabric
    from railweave.fabric.network import NetworkSettings
    from railweave.fabric.packet.settings import CcSettings, PacketSettings

__all__ = ["PacketState"]

_NEAR_BYTES = 2**18  # of the caches that need no fetching ahead: most have as much (measured)
_PACKETS = 64  # rows made for each link: rows that are never used take no memory


def grown(array: Any, rows: int, used: slice = slice(None)) -> Any:
    """Return ``array`` with room for ``rows`` rows; new rows are zeros, as those not ``used``."""
    if len(array) >= rows:
        return array
    rows = max(rows, 2 * len(array))
    fields = array.dtype.fields is not None
    more = records(array.dtype, rows) if fields else np.zeros(rows, array.dtype)
    more[: len(array)][used] = array[used]
    return more


class PacketState:
    """Ports, buffers, queue pairs, packets and events of one simulation.

    Parameters
    ----------
    fabric, network, settings
        What is simulated.
    buffers
        int64 (switches,): bytes of each network switch's buffer, in the order of `Fabric.switches`.
    priorities
        802.1p priorities of data, besides that of the settings.
    trace_rows
        Keep that many events from the start on, int64 (rows, 3): time, key, what.
    failing, notice_ps
        Links may go down during the run, and how long it takes routing to notice.
    """

    ports: Any
    egress: Any
    ingress: Any
    switches: Any
    swports: NDArray[np.int32]
    into: NDArray[np.int32]  # switch that a link enters, or NONE
    mode: int
    cc: CcSettings | None

    def __init__(
        self,
        fabric: Fabric,
        network: NetworkSettings,
        settings: PacketSettings,
        *,
        buffers: NDArray[np.int64] | None = None,
        priorities: Sequence[int] = (),
        trace_rows: int = 0,
        tracing: bool = False,
        failing: bool = False,
        notice_ps: int = 0,
    ) -> None:
        self.failing = failing or settings.drops_on_storms
        self.notice_ps = notice_ps
        if settings.watchdog is not None and settings.drops_on_storms:
            self.notice_ps = max(notice_ps, settings.watchdog.detect_ps + settings.watchdog.poll_ps)
        self.fabric, self.network, self.settings = fabric, network, settings
        self.asked_priorities = frozenset(priorities)
        data = sorted({settings.priority, *priorities} - {settings.control_priority})
        self.priorities = (*data, settings.control_priority)  # by class
        self.link_keys = link_keys(fabric)
        self.runs = records(lay.RUN, 1)
        self.run = self.runs[0]
        self.trace = np.zeros((trace_rows, 3), np.int64)
        set_up(self, buffers, tracing=tracing or trace_rows > 0)
        self.ends_at = np.zeros(settings.ends_kept, np.int64)
        self.ev = records(lay.EVENT, 0)
        self.far = records(lay.FAR, 0)
        self.near = records(lay.NEAR, 0)
        self.packets = records(lay.PACKET, 0)
        self.wheel = np.zeros(lay.BUCKETS + lay.WORDS, np.int64)
        self.wheel[: lay.BUCKETS] = lay.NONE
        self.qps = records(lay.QP, 16)
        self.rates = records(lay.RATE_STATE, 16)
        self.n_qps = 0
        self.kept = np.zeros((3, fabric.n_links), np.int64)
        self.nodes = records(lay.NODE, 0)
        self.n_nodes = 0
        self.groups = records(lay.GROUP, 16)
        self.n_groups = 0
        self.succ = np.zeros(0, np.int32)
        self.n_succ = 0
        self.ready = np.zeros(0, np.int32)
        self.hops = records(lay.HOP, 16)
        self.n_hops = 0
        self.bits = np.zeros(1, np.uint8)
        self.n_bits = 0
        self.loops = records(LOOP, 1)
        self.n_loops = 0
        self.run.row_free = self.run.flight_free = lay.NONE
        self.run.train_free = lay.NONE
        self.run.elide = int(can_elide(self))
        self.run.fly = int(self.run.elide and settings.elide)
        self.run.quantum = settings.quantum if self.run.elide else 1
        self.run.calm_bytes = calm_bytes(self)
        self.safe = safe_bytes(self)
        self.lanes = records(lay.LANE, 16)
        self.flights = records(lay.FLIGHT, 0)
        self.trail = np.zeros((0, lay.TRAIL), np.int64)
        self.zones = records(lay.ZONE, fabric.n_devices)
        self.riders = np.full(fabric.n_links, lay.NONE, np.int32)
        self.users = np.zeros(fabric.n_links, np.int32)
        self.trains = records(lay.TRAIN_ROW, 0)
        self.ends = fabric.link_dst.astype(np.int32)
        self.out_ptr = fabric.out_links[0].astype(np.int32)
        widest = int(max(self.switches["last"] - self.switches["first"], default=0))
        self.spare = 64 + 2 * widest
        self.grow_events(4 * self.spare)
        self.grow_packets(max(16384, _PACKETS * fabric.n_links))

    # ------------------------------------------------------------------ growth
    def grow_events(self, blocks: int) -> None:
        """Make room for ``blocks`` blocks of events in the wheel, as many events in the heap."""
        old = len(self.ev) // lay.BLOCK
        self.ev = grown(self.ev, lay.BLOCK * max(blocks, 2 * old))
        run = self.run
        self.far = grown(self.far, len(self.ev), slice(int(run.far)))
        self.near = grown(self.near, 2 * len(self.ev), slice(int(run.at), int(run.count)))
        run.ev_left += len(self.ev) // lay.BLOCK - old

    def grow_packets(self, rows: int) -> None:
        """Make room for ``rows`` packets."""
        old = len(self.packets)
        self.packets = grown(self.packets, rows)
        self.run.pk_left += len(self.packets) - old

    def grow_rows(self) -> None:
        """Make room for more flights, and for as many messages of looped nodes and their events."""
        run = self.run
        flying = int(run.flights)
        if run.row_left <= flying:
            first, count = self.n_nodes, max(64, flying + 1)
            self.n_nodes += count
            self.nodes = grown(self.nodes, self.n_nodes)
            rows = self.nodes[first : self.n_nodes]
            rows.next = np.arange(first + 1, self.n_nodes + 1)
            rows.next[-1] = run.row_free
            run.row_free = first
            run.row_left += count
        if run.elide and run.flight_left < 1:
            old = len(self.flights)
            self.flights = grown(self.flights, max(64, 2 * old))
            new = len(self.flights)
            trail = np.zeros((new * lay.MOST_HOPS, lay.TRAIL), np.int64)
            trail[: len(self.trail)] = self.trail
            self.trail = trail
            self._chain(self.flights, old, "flight_free")
            run.flight_left += new - old
        if run.elide and run.train_left < 1:
            old = len(self.trains)
            self.trains = grown(self.trains, max(16, 2 * old) if run.quantum > 1 else 1)
            self._chain(self.trains, old, "train_free")
            run.train_left += len(self.trains) - old
        if min(run.ev_left, len(self.far) - run.far) < self.spare + flying:
            self.grow_events(len(self.ev) // lay.BLOCK + self.spare + flying)

    def _chain(self, pool: Any, old: int, head: str) -> None:
        """Put the new rows of a pool in front of its list of unused rows."""
        pool.next[old:] = np.arange(old + 1, len(pool) + 1)
        pool.next[-1] = self.run[head] if old else lay.NONE
        self.run[head] = old

    # ------------------------------------------------------------------ paths and queue pairs
    def add_paths(self, ptr: NDArray[np.int64], links: NDArray[np.int64]) -> NDArray[np.int64]:
        """Write paths (CSR) as hops, each with an end mark, and return the first hop of each."""
        n, count = len(ptr) - 1, len(links)
        base = self.n_hops
        self.n_hops += count + n
        self.hops = grown(self.hops, self.n_hops)
        at = base + np.arange(count) + np.repeat(np.arange(n), np.diff(ptr))
        self.hops.link[at] = links
        self.hops.next[at] = at + 1
        self.hops.link[base + ptr[1:] + np.arange(n)] = lay.NONE
        return np.asarray(base + ptr[:-1] + np.arange(n), np.int64)

    def add_rows(self, rows: Sequence[tuple[int, int]]) -> int:
        """Write rows of (link, row after it) and return the first; see HOP."""
        first = self.n_hops
        self.n_hops += len(rows)
        self.hops = grown(self.hops, self.n_hops)
        for i, (link, after) in enumerate(rows):
            hop = self.hops[first + i]
            hop.link, hop.next = link, after
        return first

    def add_qps(
        self,
        ptr: NDArray[np.int64],
        links: NDArray[np.int64],
        *,
        flow: int,
        back: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
        priority: int | None = None,
        cap_bps: int | None = None,
        entropies: int | None = None,
        into: int | None = None,
    ) -> NDArray[np.int64]:
        """Make a queue pair along each path (CSR) and return their numbers.

        Parameters
        ----------
        ptr, links
            int64: path ``i`` is ``links[ptr[i]:ptr[i + 1]]``.
        flow
            Number that random draws of the first go by; the others follow.
        back
            Paths of the answers; None: back along the same cables.
        priority
            802.1p priority of their data.
        cap_bps
            Highest rate on the wire.
        entropies
            Values that packets carry in turn; None: the settings' number.
        into
            Row of an unused queue pair to write to, where one is made.
        """
        fabric, n = self.fabric, len(ptr) - 1
        if into is None:
            numbers = np.arange(self.n_qps, self.n_qps + n)
            self.n_qps += n
            self.qps = grown(self.qps, self.n_qps)
            self.rates = grown(self.rates, len(self.qps))
            self.lanes = grown(self.lanes, len(self.qps))
            rows = 3 * fabric.n_links + 2 * self.n_qps  # lines of 64 bytes that frames need
            self.run.fetch = int(64 * rows > _NEAR_BYTES)
        else:
            numbers = np.array([into])
            self._keep_counts(into)
        if back is None:
            order = np.repeat(ptr[:-1] + ptr[1:] - 1, np.diff(ptr)) - np.arange(len(links))
            back = ptr, links[order] ^ 1
        net = fabric.link_network[links]
        crosses = np.logical_or.reduceat(net, ptr[:-1])
        place = np.where(net, np.arange(len(links)), len(links))
        first_net = np.minimum(np.minimum.reduceat(place, ptr[:-1]), len(links) - 1)
        line = fabric.link_rate_bps[links[np.where(crosses, first_net, ptr[:-1])]]
        klass, classes = self._class(priority), len(self.priorities)
        rows = records(lay.QP, n)
        for name in ("next", "node", "tail", "una_node", "recover", "lose", "cnp_at", "armed"):
            rows[name] = lay.NONE
        rows["path"], rows["back"] = self.add_paths(ptr, links), self.add_paths(*back)
        rows["klass"], rows["queue"] = klass, links[ptr[:-1]] * classes + klass
        control = klass if self.run.control < 0 else self.run.control
        rows["back_queue"] = back[1][back[0][:-1]] * classes + control
        rows["flow"], rows["line"] = flow + np.arange(n), line
        rows["cap"] = np.inf if cap_bps is None else cap_bps
        if cap_bps is not None:
            rows["rate"] = np.minimum(cap_bps, line)
        self._set_framing(rows, crosses)
        rates = records(lay.RATE_STATE, n)
        cc = self.cc
        if cc is not None:
            rates["floor"] = cc.min_bps
            rates["step"], rates["leap"] = cc.steps_bps(line.astype(np.float64))
            rates["target"], rates["alpha"], rates["rate_at"] = line, 1.0, -1
            rows["rate"] = np.where(crosses, np.minimum(rows["line"], rows["cap"]), rows["rate"])
        if self.mode >= lay.SELECTIVE:
            self._set_windows(rows, crosses, ptr, links, back)
        if run_sprays(self):
            set_entropies(self, rows, entropies)
        if into is not None:
            self._forget_lane(into)
        self.qps[numbers], self.rates[numbers] = rows, rates
        self.lanes[numbers] = lanes_of(self, rows, ptr, links)
        np.add.at(self.users, links, 1)
        return numbers

    def _forget_lane(self, number: int) -> None:
        """Let go of what elision knows of a queue pair whose row is used anew."""
        lane = self.lanes[number]
        if lane.last >= 0:
            self.flights[lane.last].next = self.run.flight_free
            self.run.flight_free = lane.last
            self.run.flight_left += 1
        first = int(self.qps[number].path)
        for link in self.hops.link[first : first + int(lane.hops)]:
            self.users[link] -= 1
            if self.riders[link] == number:
                self.riders[link] = lay.NONE

    def _set_framing(self, rows: Any, crosses: NDArray[np.bool_]) -> None:
        """Frames, acknowledgements and recovery of paths that cross the network; else none."""
        network, run = self.network, self.run
        rows["bare"] = np.where(crosses, 0, lay.BARE)
        rows["overhead"] = np.where(crosses, run.overhead, 0)
        rows["first"] = np.where(crosses, run.first, 0)
        padded = crosses & (network.frame_overhead_bytes is None)
        rows["pad"] = np.where(padded, 4, 1)
        rows["every"] = np.where(crosses, network.ack_every, 0)
        rows["latency"] = np.where(crosses, network.host_latency_ps, 0)
        rows["mode"] = np.where(crosses, self.mode, lay.TRUST)

    def _set_windows(
        self,
        rows: Any,
        crosses: NDArray[np.bool_],
        ptr: NDArray[np.int64],
        links: NDArray[np.int64],
        back: tuple[NDArray[np.int64], NDArray[np.int64]],
    ) -> None:
        """Cap what is under way: the empty path's bandwidth-delay product, and what an ACK answers.

        The product as in IRN. The frames that one ACK answers have arrived, but nothing says so
        before the last of them has.
        """
        fabric = self.fabric
        frame = int(self.run.mtu + self.run.overhead)
        trip = np.zeros(len(rows))
        for starts, way, size in ((ptr, links, frame), (*back, int(self.run.ack_wire))):
            switch = (self.into[way] >= 0) * self.network.switch_latency_ps
            hop = size * 8e12 / fabric.link_rate_bps[way] + fabric.link_delay_ps[way] + switch
            trip += np.add.reduceat(hop, starts[:-1])
        slowest = np.minimum.reduceat(fabric.link_rate_bps[links], ptr[:-1])
        answered = 1 if self.mode == lay.TRIM else self.network.ack_every  # credit comes of itself
        cap = np.ceil(slowest * trip / 8e12 / frame).astype(np.int64) + answered
        # How far packets may be ahead of a lost one.
        window = 1 << np.ceil(np.log2(8 * cap)).astype(np.int64)
        rows["window"] = window
        if self.mode == lay.TRIM:
            unasked = self.settings.unasked_bytes
            cap = cap if unasked is None else np.maximum(1, -(-unasked // frame))
            rows["unasked"] = rows["grant"] = rows["granted"] = cap
            rows["fresh"] = rows["pull_next"] = lay.NONE
            place = np.where(fabric.link_network[links], np.arange(len(links)), -1)
            rows["pacer"] = links[np.maximum(np.maximum.reduceat(place, ptr[:-1]), 0)] ^ 1
        else:
            rows["cap_packets"] = np.where(crosses, cap, 0)
        rows["bits"] = self.n_bits + np.cumsum(window) - window
        self.claim_bits(int(window.sum()))

    def _keep_counts(self, number: int) -> None:
        """Keep what a queue pair counted, whose row is used anew, for the links at its ends."""
        self.kept += self.end_counts(np.array([number]))

    def end_counts(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return notifications and retransmitted bytes by first link, late packets by last.

        int64 (3, links).
        """
        qps, rates = self.qps[numbers], self.rates[numbers]
        classes, found = len(self.priorities), np.zeros((3, self.fabric.n_links), np.int64)
        first, last = qps["queue"] // classes, (qps["back_queue"] // classes) ^ 1
        np.add.at(found[0], first, rates["cnps"])
        np.add.at(found[1], first, qps["resent"])
        np.add.at(found[2], last, qps["late"])
        return found

    def claim_bits(self, count: int) -> None:
        """Make room for ``count`` more bytes of states of packets and entropy values."""
        self.n_bits += count
        self.bits = grown(self.bits, self.n_bits)

    def _class(self, priority: int | None) -> int:
        wanted = self.settings.priority if priority is None else priority
        if wanted not in self.priorities:
            raise InputError(
                f"a flow has priority {wanted}, which was not announced before the run began"
            )
        return self.priorities.index(wanted)

    # ------------------------------------------------------------------ work
    def write(self, bound: BoundSchedule, qp: NDArray[np.int32], block: int | None = None) -> int:
        """Write a schedule's nodes and return its group; ``qp`` (nodes,) is -1 off the links.

        ``block`` is the group of an ended schedule of the same size, whose rows are used anew.
        """
        plan, n, edges = bound.schedule, bound.n_nodes, len(bound.schedule.succ)
        graph, looped = bound.graph, bound.looped
        if block is None:
            group, base, edge = self.n_groups, self.n_nodes, self.n_succ
            self.n_groups, self.n_nodes, self.n_succ = group + 1, base + n, edge + edges
            self.nodes, self.ready = grown(self.nodes, base + n), grown(self.ready, base + n)
            self.succ, self.groups = grown(self.succ, edge + edges), grown(self.groups, group + 1)
            loop = self.n_loops
            self.n_loops += len(looped)
            self.loops = grown(self.loops, self.n_loops)
        else:
            group, base = block, int(self.groups[block].first)
            edge = int(self.nodes[base].succ)
            loop = int(self.nodes.loop[base : base + n].max(initial=lay.NONE)) + 1 - len(looped)
        self.succ[edge : edge + edges] = graph.succ
        rows = self.nodes[base : base + n]
        rows.payload, rows.delay, rows.qp, rows.next = plan.size_bytes, plan.delay_ps, qp, lay.NONE
        rows.group, rows.deps, rows.state, rows.got = group, plan.n_deps, 0, 0
        rows.succ, rows.n_succ = edge + plan.succ_ptr[:-1], np.diff(plan.succ_ptr)
        rows.loop, rows.parent = lay.NONE, base + np.arange(n)
        if len(looped):
            rows.loop[looped] = loop + np.arange(len(looped))
            self.loops[loop : loop + len(looped)] = graph.loop_rows
        mtu = self.network.mtu_bytes
        rows.packets = np.maximum(1, -(-plan.size_bytes // mtu))
        row = self.groups[group]
        row.left, row.first = bound.n_runs, base
        row.open = int((qp >= 0).sum()) if self.mode != lay.TRUST else 0
        return group

    def begin(self, group: int, roots: NDArray[np.int64], *, at_ps: int) -> None:
        """Start a written group at ``at_ps``; everything before must have been run."""
        self.run.now = max(int(self.run.now), at_ps)
        first, n = int(self.run.ready), len(roots)
        self.ready[first : first + n] = self.groups[group].first + roots
        self.run.ready = first + n

    def paused_ps(self, now_ps: int) -> NDArray[np.int64]:
        """Paused time of each egress queue up to now, int64 (links x classes,)."""
        classes = len(self.priorities)
        klass = np.arange(len(self.egress)) % classes
        blocked = (np.repeat(self.ports.blocked, classes) >> klass) & 1
        pausing = np.repeat(self.ports.credit == 0, classes) & (blocked == 1)
        open_ps = np.where(pausing, now_ps - self.egress.since, 0)
        return np.asarray(self.egress.paused + np.maximum(open_ps, 0), np.int64)

    @property
    def now_ps(self) -> int:
        """Time of the last event."""
        return int(self.run.now)

    def advance(self, limit_ps: int) -> int:
        """Run to the first completions at or before ``limit_ps``; return why it stopped."""
        with np.errstate(over="ignore"):  # hashes wrap; only uncompiled runs would say so
            while True:
                code = int(
                    advance(
                        self.runs, self.ev, self.wheel, self.far, self.near, self.ports,
                        self.egress, self.ingress, self.switches, self.swports, self.packets,
                        self.qps, self.rates, self.nodes, self.groups, self.succ, self.hops,
                        self.bits, self.ready, self.trace, self.loops, self.lanes, self.flights,
                        self.trail, self.zones, self.users, self.riders, self.ends, self.out_ptr,
                        self.trains, self.ends_at, self.spare, limit_ps,
                    )
                )  # fmt: skip
                if code == lay.NEED_EVENTS:
                    self.grow_events(len(self.ev) // lay.BLOCK + self.spare)
                elif code == lay.NEED_PACKETS:
                    self.grow_packets(2 * len(self.packets))
                elif code == lay.NEED_ROWS:
                    self.grow_rows()
                else:
                    return code

    def silence(self, number: int) -> None:
        """Let a queue pair send nothing more, and leave the list of those that wait for a turn."""
        qp, row = self.qps[number], self.egress[self.qps[number].queue]
        qp.node = qp.una_node = qp.tail = lay.NONE
        qp.left = 0
        waiting = []
        at = int(row.ready)
        while at >= 0:
            waiting.append(at)
            at = int(self.qps[at].next)
        if number in waiting:
            waiting.remove(number)
            row.ready, row.ready_tail = (waiting[0], waiting[-1]) if waiting else (lay.NONE,) * 2
            for one, after in pairwise([*waiting, lay.NONE]):
                self.qps[one].next = after
            if row.ready < 0 and row.head < 0:
                self.ports[qp.queue // len(self.priorities)].mask &= ~(1 << int(qp.klass))
        qp.state = lay.QP_IDLE
        lane = self.lanes[number]
        lane.sends = lane.waits = lay.NONE
        own = self.trains.lane == number
        self.trains.leads[own] = 0  # none follows the one under way
        self.trains.frames[own & (self.trains.at == qp.path)] = 0  # nor does one that has not left

    def settle(self, now_ps: int) -> None:
        """Turn all flights into packets, as they are at ``now_ps``; groups begun then stay put."""
        run = self.run
        if run.flights == 0:
            return
        while run.row_left <= run.flights or run.ev_left < self.spare + run.flights:
            self.grow_rows()
        run.now = max(int(run.now), now_ps)
        as_python(
            ground_all, self.runs, self.ev, self.wheel, self.far, self.ports, self.egress,
            self.ingress, self.qps, self.nodes, self.hops, self.lanes, self.flights, self.trail,
            self.zones, self.ends, np.flatnonzero(self.lanes["head"][: self.n_qps] >= 0),
        )  # fmt: skip
        ready, run.ready = int(run.ready), 0
        while (code := self.advance(now_ps)) not in (lay.REACHED, lay.IDLE):
            assert code != lay.COMPLETED  # what ends by now has landed
        run.ready, run.now = ready, now_ps

    def ended(self) -> list[int]:
        """Return the groups that ended in the last instant, and forget them."""
        groups = sorted(int(g) for g in self.groups.done[: self.run.done])
        self.run.done = 0
        return groups
