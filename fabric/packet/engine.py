# SPDX-License-Identifier: Apache-2.0
"""The packet engine under the engine seam: flows and schedules become messages of queue pairs."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.fabric.binding import Binder, BoundSchedule
from railweave.fabric.engine import Capabilities, LinkCounters
from railweave.fabric.errors import (
    InputError,
    LivelockError,
    RailweaveError,
    StalledError,
    UnreachableError,
)
from railweave.fabric.faults import DETECTION_DELAY_PS, LinkChange
from railweave.fabric.in_use import PathsInUse
from railweave.fabric.jobs import Job, JobEngine
from railweave.fabric.loops import expand
from railweave.fabric.packet import layout as lay
from railweave.fabric.packet.balance import Ways
from railweave.fabric.packet.bounds import PacketPaths
from railweave.fabric.packet.deadlock import deadlock_cycle
from railweave.fabric.packet.failures import Failures
from railweave.fabric.packet.livelock import livelock_text, stuck_pairs
from railweave.fabric.packet.preparing import lossless
from railweave.fabric.packet.sampling import Sampler
from railweave.fabric.packet.settings import PacketSettings
from railweave.fabric.packet.state import PacketState
from railweave.fabric.packet.telemetry import (
    flow_columns,
    flow_counts,
    link_columns,
    network_totals,
)
from railweave.fabric.packet.timeouts import timeout_cautions
from railweave.fabric.packet.victims import drop_cautions, waiting_cautions
from railweave.fabric.reroute import ReroutingBinder
from railweave.fabric.units import PS_PER_S
from railweave.fabric.usage import expand_spans
from railweave.fabric.words import listed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from railweave.fabric.faults import FaultPlan
    from railweave.fabric.flow import Flow
    from railweave.fabric.packet.sampling import SampleSettings
    from railweave.fabric.schedule import Schedule

__all__ = ["PacketEngine"]

_SHORTEST_BYTES = 26  # an empty InfiniBand packet
_LOOKS = 8  # ended queue pairs looked at for one that may be used anew


class PacketEngine(JobEngine):
    """Every frame of every flow, through port queues, shared buffers, pauses, marks and losses.

    Parameters
    ----------
    packet
        Settings beyond frame sizes.
    buffers
        int64 (switches,): bytes of each network switch's buffer; None: the default for all.
    trace_rows
        Keep the first events of the run, for tests.
    samples
        Of queues over time; None: none are taken.
    changing, detection_delay_ps
        bool (links,): links that change during the run, and how long routing takes to notice;
        None: none does.
    """

    name = "packet"
    runs_loops = True
    capabilities = Capabilities(contention=True, packets=True, set_link=True)

    def __init__(
        self,
        *args: Any,
        packet: PacketSettings | None = None,
        buffers: NDArray[np.int64] | None = None,
        trace_rows: int = 0,
        tracing: bool = False,
        samples: SampleSettings | None = None,
        changing: NDArray[np.bool_] | None = None,
        detection_delay_ps: int = DETECTION_DELAY_PS,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.table = PacketPaths(self.fabric, self.settings)
        self.in_use = PathsInUse(self.table)
        old = self.binder
        kind = Binder if changing is None else ReroutingBinder
        self.binder = kind(self.table, old.routing, qps=old.qps, split=old.split)
        self.sampler = None if samples is None else Sampler(samples, self.fabric.n_links)
        self.failures = Failures(self, changing, detection_delay_ps)
        self.packet = packet or PacketSettings()
        self._buffers = buffers
        self._trace = trace_rows, tracing
        self._priorities: set[int] = set()
        self._state: PacketState | None = None
        self._lanes = np.empty(0, np.int32)  # queue pair of schedules by path, NONE: none yet
        self._jobs: dict[int, Job] = {}  # by group
        self._pairs: dict[int, list[int]] = {}  # queue pairs of flows, by group
        self._counts: dict[int, NDArray[np.int64]] = {}  # of ended flows, by record
        self._flows: dict[int, list[int]] = {}  # queue pairs of flows under way, by record
        self._unused: deque[int] = deque()  # queue pairs of ended flows
        self._blocks: dict[tuple[int, int, int], list[int]] = {}  # groups of ended work, by size
        self._closing: list[tuple[int, tuple[int, int, int]]] = []
        self._made = 0
        uneven = self.fabric.link_rate_bps[8 * PS_PER_S % self.fabric.link_rate_bps != 0]
        # 1 ps of the time of the shortest frame that an uneven link carries.
        self._early = float(uneven.max(initial=0)) / (8e12 * _SHORTEST_BYTES)
        self._ways: Ways | None = None
        self._ended: list[int] = []
        self._gave_up: int = lay.NONE  # a queue pair
        self._still = False  # an endless storm has stopped everything
        self._locked = False  # packets move and get nowhere
        self.cycle: list[tuple[int, int]] = []  # (link, priority) of a deadlock

    @property
    def state(self) -> PacketState:
        """The simulation; made when it is first needed."""
        if self._state is None:
            rows, tracing = self._trace
            self._state = PacketState(
                self.fabric, self.settings, self.packet, buffers=self._buffers,
                priorities=sorted(self._priorities), trace_rows=rows, tracing=tracing,
                failing=self.failures.changing,
                notice_ps=self.failures.detector.delay_ps if self.failures.changing else 0,
            )  # fmt: skip
            self.failures.install(self._state)
            if self.sampler is not None or self.failures.planned:
                self._state.run.elide = 0
        return self._state

    def set_up(self) -> None:
        """Make the simulation, which checks its settings."""
        self._state = self.state

    def announce(self, priority: int) -> None:
        """Let there be a priority that no flow asks for beforehand."""
        self._priorities.add(priority)

    def plan_faults(self, faults: FaultPlan) -> None:
        """Take the link changes and pause storms of a run, before it begins."""
        self.failures.plan(faults)

    # ------------------------------------------------------------------ starting
    def prepare(self, flows: Iterable[Flow]) -> None:
        """Route flows that are to be sent later, and note their priorities."""
        flows = list(flows)
        self._priorities.update(flow.priority for flow in flows if flow.priority is not None)
        super().prepare(flows)

    def send(self, flow: Flow) -> Any:
        """Start a flow now."""
        if flow.weight != 1.0:
            raise InputError(
                f"flow '{flow.id}' has weight {flow.weight:g}, which packets do not heed",
                expected="no weight, or the fluid engine",
            )
        if flow.priority is not None and self._state is None:
            self._priorities.add(flow.priority)
        return super().send(flow)

    def _begin(self, job: Job) -> None:
        state = self.state
        path = job.bound.path
        if job.flow is None:
            qp = self._lanes_of(path)
            pairs: list[int] = []
        else:
            qp = np.full(len(path), lay.NONE, np.int32)
            parts = np.flatnonzero(path >= 0)
            pairs = self._pairs_of(path[parts], job.flow) if len(parts) else []
            qp[parts] = pairs
            self._flows[job.record] = pairs
        group = self._write(job, qp)
        self._pairs[group] = pairs
        state.begin(group, job.bound.roots, at_ps=int(self.env.now))
        if self.sampler is not None:
            self.sampler.arm(state)

    def _bind(self, schedule: Schedule, devices: NDArray[np.int32]) -> BoundSchedule:
        """Bind a schedule; with a node for every run of its loops where packets may be lost."""
        if not self._trusts():
            schedule = expand(schedule)
        return super()._bind(schedule, devices)

    def _trusts(self) -> bool:
        if self._state is not None:
            return bool(self._state.mode == lay.TRUST)
        failing, asked = self.failures.changing, self._priorities
        return lossless(self.fabric, self.packet, failing=failing, priorities=asked)

    def _write(self, job: Job, qp: NDArray[np.int32]) -> int:
        self._reap()
        free = self._blocks.get(self._size(job))
        group = self.state.write(job.bound, qp, free.pop() if free else None)
        self._jobs[group] = job
        return group

    def _size(self, job: Job) -> tuple[int, int, int]:
        """Nodes, edges and looped nodes: groups of one size may use each other's rows."""
        return job.bound.n_nodes, len(job.bound.schedule.succ), len(job.bound.looped)

    def _spread(self, paths: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        """One way of each sprayed path (CSR), and the rows where each and its way back begin."""
        fabric, ptr, links, rows, back = self.fabric, [0], [], [], []
        for path in paths:
            own = self.table.links_of(path)
            src, dst = int(fabric.link_src[own[0]]), int(fabric.link_dst[own[-1]])
            row, one = self._first_hop(src, dst)
            rows.append(row)
            back.append(self._first_hop(dst, src)[0])
            links += one
            ptr.append(len(links))
        return tuple(np.array(column, np.int64) for column in (ptr, links, rows, back))

    def _first_hop(self, src: int, dst: int) -> tuple[int, list[int]]:
        """Return where packets begin, and one way of theirs.

        While a failure leaves none they go the ways that there were, and are lost on them.
        """
        if self._ways is None:
            self._ways = Ways(self.state, self.binder.routing)
        try:
            return self._ways.first_hop(src, dst)
        except UnreachableError:
            if not isinstance(self.binder, ReroutingBinder):
                raise
            return Ways(self.state, self.binder.whole).first_hop(src, dst)

    def _new_pairs(
        self, paths: NDArray[np.int64], *, pinned: bool = False, **options: Any
    ) -> NDArray[np.int64]:
        """Make a queue pair on each path."""
        sprayed = not pinned and self.packet.spread != "none"
        if sprayed:
            ptr, links, rows, back = self._spread(paths)
            numbers = self.state.add_qps(ptr, links, **options)
            self.state.qps.path[numbers] = rows
            if options.get("back") is None:
                self.state.qps.back[numbers] = back
        else:
            numbers = self.state.add_qps(*self._paths(paths), **options)
        if self.failures.changing and not pinned:
            pinned_back = options.get("back") is not None
            self.failures.note_lanes(numbers, paths, sprayed=sprayed, back=pinned_back)
        return numbers

    def _paths(self, paths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Links of some paths in CSR form; none may be spread over several ways."""
        start, end = self.table.ptr[paths], self.table.ptr[paths + 1]
        at = expand_spans(start, end)
        if (self.table.share[at] != 1.0).any():
            raise InputError(
                "a sprayed path needs a way for packets to choose", field="routing.policy",
                expected="spread settings",
            )  # fmt: skip
        ptr = np.concatenate(([0], np.cumsum(end - start))).astype(np.int64)
        return ptr, self.table.link[at].astype(np.int64)

    def _lanes_of(self, path: NDArray[np.int32]) -> NDArray[np.int32]:
        """Queue pairs of a schedule's nodes: one per path, kept for the run."""
        if len(self._lanes) <= len(self.table):  # one row even where there is no path
            more = np.full(2 * len(self.table) + 1, lay.NONE, np.int32)
            more[: len(self._lanes)] = self._lanes
            self._lanes = more
        used = np.zeros(len(self._lanes) + 1, np.bool_)
        used[path] = True  # [-1]: crosses no link
        new = np.flatnonzero(used[:-1] & (self._lanes < 0))
        if len(new):
            self._lanes[new] = self._new_pairs(new, flow=self._made)
            self._made += len(new)
        return np.where(path >= 0, self._lanes[path], lay.NONE).astype(np.int32)

    def _pairs_of(self, paths: NDArray[np.int32], flow: Flow) -> list[int]:
        """Make a queue pair on each path of a flow."""
        back = None
        if flow.ack_path is not None:
            self._settle()
            self.state.run.elide = 0  # answers come by devices that are not on the flow's path
            one = np.array(flow.ack_path, np.int64)
            n = len(paths)
            back = np.arange(n + 1) * len(one), np.tile(one, n)
        cap = None if flow.cap_bps is None else max(1, flow.cap_bps // len(paths))
        made = self._made
        self._made += len(paths)
        numbers = self._new_pairs(
            paths.astype(np.int64), pinned=flow.path is not None, flow=made, back=back,
            priority=flow.priority,
            cap_bps=cap, into=self._unused_pair() if len(paths) == 1 else None,
        )  # fmt: skip
        return [int(number) for number in numbers]

    def _unused_pair(self) -> int | None:
        """Return a queue pair of an ended flow of which nothing is under way any more."""
        for _ in range(min(_LOOKS, len(self._unused))):
            number = self._unused.popleft()
            if self._quiet(number):
                self.failures.forget(number)
                return number
            self._unused.append(number)
        return None

    def _quiet(self, number: int) -> bool:
        """Whether no packet, timer or event of a queue pair is under way."""
        qp, rate = self.state.qps[number], self.state.rates[number]
        return bool(
            qp.inflight == 0
            and qp.una_node < 0
            and qp.node < 0
            and qp.rto_on == 0
            and rate.armed == 0
            and rate.cut_armed == 0
            and qp.pulling == 0
        )

    # ------------------------------------------------------------------ changing
    def cancel(self, flow: Flow) -> None:
        """Stop a flow; what is on its way still arrives, and its event fails."""
        self._settle()
        for group, job in self._jobs.items():
            if job.flow is flow:
                self.state.groups[group].left = -1
                for number in self._pairs[group]:
                    self.state.silence(number)
                del self._jobs[group]
                job.event.fail(RailweaveError(f"flow '{flow.id}' was cancelled"))
                return
        raise InputError(f"flow '{flow.id}' is not under way")

    def set_link(self, link: int, *, up: bool | None = None, rate_bps: int | None = None) -> None:
        """Change one direction of a cable from now on; routing follows after the delay."""
        at = int(self.env.now)
        port = self.state.ports[link]
        change = LinkChange(
            at_ps=at, link=link, up=bool(port.up) if up is None else up,
            rate_bps=int(port.rate) if rate_bps is None else rate_bps,
        )  # fmt: skip
        self.failures.now(self.state, change)

    def routes_changed(self) -> None:
        """Forget what was worked out on routes that are no more."""
        self._bound.clear()
        self._ways = None

    def carry_over(self, remap: NDArray[np.int32]) -> None:
        """Let work under way, and queue pairs kept by path, have the paths that took the place."""
        moved = np.flatnonzero(remap[:-1] != np.arange(len(remap) - 1))
        room = int(remap.max(initial=-1)) + 1
        if len(self._lanes) < room:
            more = np.full(2 * room, lay.NONE, np.int32)
            more[: len(self._lanes)] = self._lanes
            self._lanes = more
        self._lanes[remap[moved]] = self._lanes[moved]
        self.in_use.move(remap)
        for job in self._jobs.values():
            new = remap[job.bound.path]
            if (new != job.bound.path).any():
                wire = self.table.wire_bytes(new, job.bound.schedule.size_bytes)
                job.before = (*job.before, job.bound)
                job.bound = BoundSchedule(job.bound.schedule, self.table, new, wire)

    # ------------------------------------------------------------------ time
    @property
    def busy(self) -> bool:
        """Whether anything has started that has not ended."""
        return bool(self._jobs)

    def advance(self, limit_ps: int | None) -> int | None:
        """Run to the first completions at or before ``limit_ps``."""
        state = self.state
        while True:
            code = state.advance(lay.FOREVER - 1 if limit_ps is None else limit_ps)
            if code == lay.COMPLETED:
                self._ended = state.ended()
                return state.now_ps
            if code == lay.PAUSED:
                self._ended = []
                return state.now_ps
            if code == lay.SUSPECT:
                self.cycle = deadlock_cycle(state)
                if not self.cycle and not (limit_ps is None and self.failures.stands(state)):
                    continue
                self._still = not self.cycle
                self._ended = []
                return state.now_ps
            if code == lay.ACTION:
                self.failures.take(state)
                continue
            if code == lay.LIVELOCK:
                self._locked = True
                self._ended = []
                return state.now_ps
            if code == lay.FAILED:
                self._gave_up = int(state.run.failed_qp)
                state.run.failed_qp = lay.NONE
                self._ended = []
                return state.now_ps
            return None

    def _deadlocked(self) -> str:
        circle = [f"{self.fabric.link_name(k)} (priority {priority})" for k, priority in self.cycle]
        names = listed(circle, between=" -> ")
        return (
            f"deadlock at {self.state.now_ps} ps: these paused links wait for each other in a "
            f"circle: {names}"
        )

    def _work_of(self, group: int) -> str:
        job = self._jobs[group]
        return f"flow '{job.flow.id}'" if job.flow is not None else f"collective '{job.tag}'"

    def _fail(self, number: int) -> None:
        """Let the work of a queue pair that gave up fail."""
        owner = int(self.state.nodes[self.state.qps[number].una_node].group)
        what, job = self._work_of(owner), self._jobs.pop(owner)
        self.state.groups[owner].left = -1
        links = self.state.hops.link[int(self.state.qps[number].path) :]
        first, name = int(links[0]), self.fabric.device_names
        job.event.fail(
            RailweaveError(
                f"a queue pair of {what} from {name[self.fabric.link_src[first]]} gave up after "
                f"{self.packet.retries} retries without an acknowledgement"
            )
        )

    def deliver(self) -> None:
        """Fire the events of the completions that `advance` reached.

        Raises
        ------
        StalledError
            It reached a deadlock.
        LivelockError
            Packets are sent again and again, and none arrives for the first time.
        """
        if self.cycle:
            raise StalledError(self._deadlocked())
        if self._still:
            raise StalledError(self.failures.said(self.state))
        if self._locked:
            raise LivelockError(livelock_text(self.state, self.fabric, self._work_of))
        if self._gave_up >= 0:
            gave_up, self._gave_up = self._gave_up, lay.NONE
            self._fail(gave_up)
            return
        groups, self._ended = self._ended, []
        for group in groups:
            job = self._jobs.pop(group)
            pairs = self._pairs.pop(group)
            job.runs_left -= 1
            self._closing.append((group, self._size(job)))
            if job.runs_left:
                again = self._write(job, self._lanes_of(job.bound.path))
                self._pairs[again] = pairs
                self.state.begin(again, job.bound.roots, at_ps=self.state.now_ps)
                continue
            if job.flow is not None:
                self._counts[job.record] = flow_counts(self, self._flows.pop(job.record))
            self._unused.extend(pairs)
            self._finish(job, end_ps=self.state.now_ps)

    def _reap(self) -> None:
        """Free the rows of ended work that no sender needs any more."""
        left = []
        for group, size in self._closing:
            if self.state.groups[group].open == 0:
                self._blocks.setdefault(size, []).append(group)
            else:
                left.append((group, size))
        self._closing = left

    def check_bound(self, what: str, *, took_ps: int, bound_ps: int) -> None:
        """Raise if a result beat its bound, by more than frames that end at whole ps explain.

        Where a byte takes no whole number of ps, each frame on each link ends up to 1 ps early.
        """
        early = int(np.ceil(took_ps * self._early))
        super().check_bound(what, took_ps=took_ps + early, bound_ps=bound_ps)

    # ------------------------------------------------------------------ looking
    def _settle(self) -> None:
        """Let everything under way be packets, for somebody looks at links before it has ended."""
        if self._state is not None:
            self._state.settle(self.now_ps)

    @property
    def now_ps(self) -> int:
        """Time up to which packets have moved."""
        return max(int(self.env.now), self.state.now_ps)

    def counters(self) -> LinkCounters:
        """Return what each link has carried up to now; frames on the wire count in part."""
        self._settle()
        ports = self.state.ports
        wire, other = ports.data_bytes.copy(), ports.control_bytes.copy()
        ahead = np.maximum(ports.busy - self.now_ps, 0)
        unsent = np.ceil(ahead * (ports.rate / 8e12)).astype(np.int64)
        control = ports.alternate == 2
        wire -= np.where(control, 0, np.minimum(unsent, wire))
        other -= np.where(control, np.minimum(unsent, other), 0)
        return LinkCounters(wire_bytes=wire, ack_bytes=other)

    def network(self) -> dict[str, Any]:
        """Return what the network did, in totals: pauses, marks, drops."""
        self._settle()
        stuck = stuck_pairs(self.state, self.fabric, self._work_of) if self._locked else []
        return {**network_totals(self), "livelock": stuck, **self.failures.network()}

    def link_columns(self) -> dict[str, list[int]]:
        """Return pauses, marks, drops and peaks of each link."""
        self._settle()
        return link_columns(self)

    def port_series(self) -> list[list[Any]]:
        """Return rows of ``ports.csv``: time, port, then `railweave.fabric.engine.SERIES`."""
        if self.sampler is None:
            return []
        fabric = self.fabric
        return self.sampler.series([fabric.link_name(i) for i in range(fabric.n_links)])

    def flow_columns(self) -> dict[str, list[Any]]:
        """Return marks, notifications and retransmissions of each flow, and its path."""
        return flow_columns(self)

    def counts_of(self, record: int) -> NDArray[np.int64]:
        """Return the counters of one flow so far."""
        self._settle()
        done = self._counts.get(record)
        return flow_counts(self, self._flows[record]) if done is None else done

    @property
    def repeated_bytes(self) -> int:
        """Wire bytes of retransmissions."""
        return int(self.state.run.resent)

    def cautions(self) -> list[str]:
        """Name circles of lossless links, their drops, and timeouts before failures are noticed."""
        return [*waiting_cautions(self), *drop_cautions(self), *timeout_cautions(self)]

    def waiting(self) -> list[str]:
        """Say what has started and cannot end."""
        if self.cycle:
            return [self._deadlocked()]
        lines = []
        for job in self._jobs.values():
            if job.flow is not None:
                names = self.fabric.device_names
                ends = f"{names[job.flow.src]} -> {names[job.flow.dst]}"
                lines.append(f"flow '{job.flow.id}' ({ends}) waits for packets that do not move")
            else:
                lines.append(f"collective '{job.tag}' waits for packets that do not move")
        return lines
