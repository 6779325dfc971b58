# SPDX-License-Identifier: Apache-2.0
"""What every engine shares: started work, its records and the bytes it put on links."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.fabric.binding import Binder, BoundSchedule
from railweave.fabric.engine import CollectiveRecord, Engine, LinkCounters
from railweave.fabric.errors import InputError
from railweave.fabric.flow import Flow, FlowRecord
from railweave.fabric.in_use import PathsInUse
from railweave.fabric.kept import Kept
from railweave.fabric.loops import expand
from railweave.fabric.paths import PathTable
from railweave.fabric.rerouted import least
from railweave.fabric.routing import PathSet
from railweave.fabric.schedule import Schedule, ScheduleBuilder
from railweave.fabric.units import PS_PER_S
from railweave.fabric.usage import Usage, link_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import simpy
    from numpy.typing import NDArray

    from railweave.fabric.batch import Batch
    from railweave.fabric.engine import FabricEnvironment
    from railweave.fabric.graph import Fabric
    from railweave.fabric.network import NetworkSettings
    from railweave.fabric.routing import Routing

__all__ = ["Job", "JobEngine"]

_KEPT_NODES = 2**22  # nodes of all bound schedules that are kept for reuse
_UNCOUNTED = 64  # jobs whose bytes are added up together
_SMALL = 100_000  # nodes; larger ones are bound anew
_EACH = 64  # what a schedule takes beside its nodes, in nodes


@dataclass(eq=False)
class Job:
    """Started work: one flow, a batch of flows, or one schedule run ``repeat`` times."""

    bound: BoundSchedule
    event: simpy.Event
    start_ps: int
    repeat: int
    tag: str
    flow: Flow | None = None
    record: int = -1  # index of a flow's record
    batch: Batch | None = None
    before: tuple[BoundSchedule, ...] = ()  # on the paths that it had before it was rerouted
    runs_left: int = field(init=False)

    def __post_init__(self) -> None:
        self.runs_left = self.repeat

    @property
    def bound_ps(self) -> int:
        """Lower bound of the whole job."""
        bound = least([*self.before, self.bound]) if self.before else self.bound
        return bound.bound_ps * self.repeat


class JobEngine(Engine):
    """An engine over one routing and one set of network settings.

    Parameters
    ----------
    env, fabric, routing, settings
        What it runs in and over.
    qps
        Queue pairs per connection.
    qp_mode
        ``split``: every message over all of them; ``round-robin``: one message each in turn.
    """

    runs_loops = False
    """Whether it executes looped schedules as they are, instead of with a node for each run."""

    def __init__(
        self,
        env: FabricEnvironment,
        fabric: Fabric,
        routing: Routing,
        settings: NetworkSettings,
        *,
        qps: int = 1,
        qp_mode: str = "split",
    ) -> None:
        super().__init__(env, fabric)
        self.settings = settings
        self.table = PathTable(fabric, settings)
        self.binder = Binder(self.table, routing, qps=qps, split=qp_mode == "split")
        self._bound: Kept[tuple[Schedule, BoundSchedule]] = Kept(most=_KEPT_NODES)
        self._records: list[FlowRecord | Job] = []  # of a batch its job
        self._collectives: list[CollectiveRecord] = []
        self.in_use = PathsInUse(self.table)
        self._moved = np.zeros((3, 0), np.int64)  # wire, payload, ACK bytes by path
        self._by_class: dict[str, NDArray[np.int64]] = {}  # the same of each tag
        # What was put there since, how often, and of what class.
        self._uncounted: list[tuple[Usage, int, str]] = []
        self._turns: dict[tuple[int, int], int] = {}

    # ------------------------------------------------------------------ starting work
    @abstractmethod
    def _begin(self, job: Job) -> None:
        """Start a job now."""

    def send(self, flow: Flow) -> simpy.Event:
        """Start a flow now."""
        if flow.size_bytes < 0:
            raise InputError(f"flow '{flow.id}' has a negative size", expected="0B or more")
        if not 0 < flow.weight < np.inf:
            raise InputError(f"flow '{flow.id}' has weight {flow.weight}", expected="above 0")
        if flow.cap_bps is not None and not flow.cap_bps > 0:
            raise InputError(f"flow '{flow.id}' has cap {flow.cap_bps}", expected="above 0")
        if flow.qps is not None and flow.qps < 1:
            raise InputError(f"flow '{flow.id}' has {flow.qps} queue pairs", expected="1 or more")
        bound = self._bind_flow(flow)
        self.in_use.note(bound.path, flow.priority, pinned=flow.path is not None)
        job = Job(bound, self._event(), int(self.env.now), 1, flow.tag, flow, len(self._records))
        self._records.append(self._record(job, end_ps=-1))
        self._begin(job)
        return job.event

    def prepare(self, flows: Iterable[Flow]) -> None:
        """Route flows that are to be sent later, all at once."""
        keys = []
        for flow in flows:
            if flow.path is None:
                qps = self.binder.qps if flow.qps is None else flow.qps
                keys += [(flow.src, flow.dst, qp) for qp in range(qps)]
        self.binder.prepare(keys)

    def execute(
        self, schedule: Schedule, ranks: Sequence[int], *, tag: str = "", repeat: int = 1
    ) -> simpy.Event:
        """Start a schedule now."""
        if repeat < 1:
            raise InputError(f"a schedule cannot run {repeat} times", expected="1 or more")
        devices = np.asarray(ranks, np.int32)
        if len(devices) != schedule.n_ranks:
            raise InputError(
                f"the schedule has {schedule.n_ranks} ranks, {len(devices)} devices were given"
            )
        job = Job(self._bind(schedule, devices), self._event(), int(self.env.now), repeat, tag)
        self.in_use.note(job.bound.usage.path)
        if len(schedule) == 0:
            job.runs_left = 0
            self._finish(job, end_ps=job.start_ps)
        else:
            self._begin(job)
        return job.event

    def bound_ps(self, schedule: Schedule, ranks: Sequence[int]) -> int:
        """Return the least that one run of a schedule can take."""
        bound = self._bind(schedule, np.asarray(ranks, np.int32))
        if self.binder.split or self.binder.qps == 1:
            return bound.bound_ps
        return bound.chain_ps  # sent one by one, messages take other queue pairs in turn

    def _bind(self, schedule: Schedule, devices: NDArray[np.int32]) -> BoundSchedule:
        identity = schedule.key if schedule.key is not None else id(schedule)
        key = (identity, devices.tobytes())
        known = self._bound.get(key)
        if known is not None and (schedule.key is not None or known[0] is schedule):
            return known[1]
        bound = self.binder.bind(schedule if self.runs_loops else expand(schedule), devices)
        if len(schedule) <= _SMALL:
            self._bound.put(key, (schedule, bound), size=len(schedule) + _EACH)
        return bound

    def _bind_flow(self, flow: Flow) -> BoundSchedule:
        qps = self.binder.qps if flow.qps is None else flow.qps
        if flow.path is not None:
            self._check_pinned(flow, flow.path)
            pinned = PathSet(
                np.array([0, len(flow.path)], np.int32),
                np.array(flow.path, np.int32),
                np.ones(len(flow.path)),
            )
            paths = [int(self.table.intern(pinned)[0])]
        elif self.binder.split:
            paths = [self.binder.path(flow.src, flow.dst, qp) for qp in range(qps)]
        else:
            turn = self._turns.get((flow.src, flow.dst), 0)
            self._turns[flow.src, flow.dst] = turn + 1
            paths = [self.binder.path(flow.src, flow.dst, turn % qps)]
        build = ScheduleBuilder(n_ranks=2)
        if paths[0] < 0:
            if flow.cap_bps is None:
                raise InputError(
                    f"flow '{flow.id}' starts and ends at the same GPU, so it crosses no link",
                    expected="a cap, or another destination",
                )
            build.work(0, -(-flow.size_bytes * 8 * PS_PER_S // flow.cap_bps))
            nothing = np.zeros(1, np.int64)
            return BoundSchedule(build.finish(), self.table, np.full(1, -1, np.int32), nothing)
        each, longer = divmod(flow.size_bytes, len(paths))
        for part in range(len(paths)):
            build.transfer(0, 1, each + (part < longer))
        plan = build.finish()
        path = np.array(paths, np.int32)
        return BoundSchedule(plan, self.table, path, self.table.wire_bytes(path, plan.size_bytes))

    def _check_pinned(self, flow: Flow, path: tuple[int, ...]) -> None:
        """Refuse a path that does not lead from the flow's source to its destination."""
        fabric, at = self.fabric, flow.src
        for link in path:
            if not 0 <= link < fabric.n_links:
                raise InputError(
                    f"the path of flow '{flow.id}' names link {link}",
                    expected=f"0 to {fabric.n_links - 1}",
                )
            if fabric.link_src[link] != at:
                raise InputError(
                    f"the path of flow '{flow.id}' breaks off before '{fabric.link_name(link)}'",
                    expected=f"a link that leaves '{fabric.device_names[at]}'",
                )
            at = int(fabric.link_dst[link])
        if at != flow.dst and path:
            raise InputError(
                f"the path of flow '{flow.id}' ends at '{fabric.device_names[at]}'",
                expected=f"'{fabric.device_names[flow.dst]}'",
            )

    # ------------------------------------------------------------------ ending work
    def _record(self, job: Job, *, end_ps: int) -> FlowRecord:
        assert job.flow is not None
        path = int(job.bound.path[0])
        links = tuple(int(i) for i in self.table.links_of(path)) if path >= 0 else ()
        return FlowRecord(
            flow=job.flow,
            start_ps=job.start_ps,
            end_ps=end_ps,
            bound_ps=job.bound_ps,
            wire_bytes=int(job.bound.wire_bytes.sum()),
            path=links,
        )

    def _count(self, usage: Usage, times: int, tag: str = "") -> None:
        """Note what a job put on its paths, for the class of traffic that it is of."""
        self._uncounted.append((usage, times, tag))
        if len(self._uncounted) >= _UNCOUNTED:
            self._add_up()

    def _add_up(self) -> None:
        """Add what was noted to the bytes of each path."""
        noted, self._uncounted = self._uncounted, []
        for usage, times, tag in noted:
            self._sum_up(usage, times)
            if tag:
                known = self._by_class.get(tag)
                self._by_class[tag] = self._added(known, usage, times)

    def _sum_up(self, usage: Usage, times: int) -> None:
        self._moved = self._added(self._moved, usage, times)

    def _added(
        self, moved: NDArray[np.int64] | None, usage: Usage, times: int
    ) -> NDArray[np.int64]:
        """Add to the bytes of paths in place, and return them, made longer where need be."""
        before = 0 if moved is None else moved.shape[1]
        if moved is None or before < len(self.table):
            more = np.zeros((3, len(self.table) + before), np.int64)
            if moved is not None:
                more[:, :before] = moved
            moved = more
        every = len(usage.path) == len(self.table)  # paths are sorted: a slice is much faster
        where: Any = slice(len(self.table)) if every else usage.path
        moved[0, where] += usage.wire_bytes * times
        moved[1, where] += usage.payload_bytes * times
        moved[2, where] += usage.ack_bytes * times
        return moved

    def _finish(self, job: Job, *, end_ps: int) -> None:
        """Record a job that ended and fire its event."""
        took = end_ps - job.start_ps
        self._count(job.bound.usage, job.repeat, job.tag)
        if job.batch is not None:
            for i in job.batch.early(self._batch_ends(job)):
                flow, ended = job.batch.flows[i], self._batch_ends(job)[i]
                self.check_bound(
                    f"flow '{flow.id}'",
                    took_ps=int(ended - job.batch.start_ps[i]),
                    bound_ps=int(job.batch.least_ps[i]),
                )
            job.event.succeed()
            return
        if job.flow is not None:
            self.check_bound(f"flow '{job.flow.id}'", took_ps=took, bound_ps=job.bound_ps)
            record = self._record(job, end_ps=end_ps)
            self._records[job.record] = record
            job.event.succeed(record)
            return
        plan = job.bound.schedule
        self.check_bound(f"collective '{job.tag}'", took_ps=took, bound_ps=job.bound_ps)
        collective = CollectiveRecord(
            tag=job.tag,
            ranks=plan.n_ranks,
            transfers=plan.n_runs,
            size_bytes=plan.total_bytes,
            start_ps=job.start_ps,
            end_ps=end_ps,
            bound_ps=job.bound_ps,
            repeat=job.repeat,
        )
        self._collectives.append(collective)
        job.event.succeed(collective)

    # ------------------------------------------------------------------ results
    def _in_flight(self) -> list[tuple[Usage, int, str]]:
        """Return what started work has moved beyond what `_finish` counted, and of what class."""
        return []

    def counters(self) -> LinkCounters:
        """Return what each link has carried up to now."""
        self._add_up()
        done = self._moved.copy()
        for usage, times, _ in self._in_flight():
            self._sum_up(usage, times)
        found = self._on_links(self._moved)
        self._moved = done
        return found

    def _on_links(self, moved: NDArray[np.int64]) -> LinkCounters:
        paths = np.arange(min(len(self.table), moved.shape[1]), dtype=np.int32)
        wire, acks = link_bytes(self.table, Usage(paths, *(moved[:, : len(paths)])))
        return LinkCounters(wire_bytes=wire, ack_bytes=acks)

    def class_counters(self) -> dict[str, LinkCounters]:
        """Return what each link has carried up to now of each class of traffic, by name.

        Classes are the tags of flows and collectives; what has no tag is of no class.
        """
        self._add_up()
        done = {tag: moved.copy() for tag, moved in self._by_class.items()}
        for usage, times, tag in self._in_flight():
            if tag:
                self._by_class[tag] = self._added(self._by_class.get(tag), usage, times)
        found = {tag: self._on_links(moved) for tag, moved in sorted(self._by_class.items())}
        self._by_class = done
        return found

    def records(self) -> Sequence[FlowRecord]:
        """Return a record for each flow given to `send` or `send_all`."""
        records: list[FlowRecord] = []
        for one in self._records:
            if not isinstance(one, Job):
                records.append(one)
            elif one.batch is not None:
                records += one.batch.records(self._batch_ends(one))
        return tuple(records)

    def _batch_ends(self, job: Job) -> NDArray[np.int64]:
        """Return when each flow of a batch ended, int64, -1 where it has not."""
        raise NotImplementedError

    def collectives(self) -> Sequence[CollectiveRecord]:
        """Return a record for each schedule that ended."""
        return tuple(self._collectives)
