# SPDX-License-Identifier: Apache-2.0
"""An engine that emulates: flows and schedules become TCP transfers over a real Linux network.

It stands where the fluid engine stands, so that every kind of workload, the run folder, drawings
and reports work on what was measured. Its clock is the fabric's: the emulation runs slower by the
scale, and while nothing is under way it is not waited for.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from railweave.fabric.engine import Capabilities, LinkCounters
from railweave.fabric.errors import InputError, RailweaveError, StalledError
from railweave.fabric.jobs import Job
from railweave.fabric.units import PS_PER_S
from railweave.tools.emulate.armed import Armed
from railweave.tools.emulate.buckets import CreditedBounds
from railweave.tools.emulate.kernel_routing import KernelRouting
from railweave.tools.emulate.predicting import check_flow
from railweave.tools.emulate.requests import Requests
from railweave.tools.emulate.sandbox import SandboxError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    import simpy
    from numpy.typing import NDArray

    from railweave.fabric.binding import BoundSchedule
    from railweave.fabric.flow import Flow
    from railweave.tools.emulate.lab import Lab

__all__ = ["EmulatedEngine", "Stall"]

_TURN_NS: Final = 50_000_000  # others (Ctrl-C) get a turn this often
_SETTLE_NS: Final = 5_000_000  # before traffic begins after a pause: buckets fill, queues drain
_HOPELESS_NS: Final = 20_000_000_000  # no end in sight for so long after it was due: stalled


@dataclass(frozen=True, kw_only=True)
class Stall:
    """The longest silence of a transfer, in ns of the wall clock."""

    length_ns: int
    began_ns: int


@dataclass(frozen=True)
class _Done:
    """A job that ended: times in ps of the fabric's clock."""

    end_ps: int
    job: Job
    message: dict[str, Any]


class EmulatedEngine(CreditedBounds):
    """Runs what it is given over a `Lab`.

    Parameters
    ----------
    lab
        The network and its circuits.

    ``stalls`` are the longest silences by flow or collective; ``inside`` tag and start of the
    collectives that no cable carried.
    """

    name = "emulated"
    capabilities = Capabilities(contention=True, packets=False, set_link=False)

    def __init__(self, *args: Any, lab: Lab, **options: Any) -> None:
        super().__init__(*args, **options)
        self._lab = lab
        self.burst_bytes = lab.ahead_bytes
        self.credit_ps = lab.credit_ps
        self.stalls: dict[str, Stall] = {}
        self.inside: set[tuple[str, int]] = set()
        self._inside_jobs: set[int] = set()
        self.began_ns: int | None = None
        self.ended_ns = 0
        self._ready: dict[str, tuple[Flow, BoundSchedule]] = {}
        self._armed = Armed()
        self._requests = Requests(self.kernel, self.table, scale=lab.plan.scale)
        self._waiting: list[Job] = []
        self._jobs: dict[int, Job] = {}
        self._ended: deque[_Done] = deque()
        self._anchor_ps, self._anchor_ns = 0, 0
        self._beside_ps = 0

    @property
    def kernel(self) -> KernelRouting:
        """The routing, which is the kernels'."""
        routing = self.binder.routing
        assert isinstance(routing, KernelRouting)
        return routing

    # ------------------------------------------------------------------ clock
    def wall_ns(self, time_ps: int) -> int:
        """Return the time of the monotonic clock at which a time of the fabric comes."""
        since_ps = time_ps - self._anchor_ps
        return self._anchor_ns + since_ps * self._lab.plan.scale // 1000

    def fabric_ps(self, wall_ns: int) -> int:
        """Return the fabric's time at a time of the monotonic clock."""
        return self._anchor_ps + (wall_ns - self._anchor_ns) * 1000 // self._lab.plan.scale

    # ------------------------------------------------------------------ starting
    def prepare(self, flows: Iterable[Flow]) -> None:
        """Open the connections of flows all at once, and bind the flows before time counts."""
        known = list(flows)
        for flow in known:
            check_flow(flow)
            self.kernel.check_outside(flow)
        self.kernel.find(known)
        self._lab.open()
        for flow in known:
            pinned = self.kernel.pinned(flow)
            self._ready[flow.id] = (pinned, super()._bind_flow(pinned))

    def expect(self, flow: Flow, after: Sequence[str]) -> None:
        """Have the inside start a flow itself when others end: a word from here takes longer."""
        if self.kernel.circuit_of(flow) is not None:
            self._armed.expect(flow.id, after)

    def send(self, flow: Flow) -> simpy.Event:
        """Start a flow on its own connection."""
        if flow.id not in self._ready:
            self.prepare([flow])
        return super().send(self._ready[flow.id][0])

    def _bind_flow(self, flow: Flow) -> BoundSchedule:
        return self._ready[flow.id][1]

    def _begin(self, job: Job) -> None:
        self._waiting.append(job)

    def _hand_over(self) -> None:
        """Give the inside what starts now."""
        starting, self._waiting = self._waiting, []
        started, graphs, running = {}, [], False
        for job in starting:
            flow_id = None if job.flow is None else job.flow.id
            number = self._armed.begun(flow_id)
            if number is not None:
                running = True
            else:
                number = self._armed.number(flow_id)
                graphs.append({"job": number, "repeat": job.repeat, **self._request(job)})
            started[number] = job
        for one in self._armed.ready(job.flow.id for job in starting if job.flow is not None):
            flow, bound = self._ready[one.flow]
            asked = self._request(Job(bound, self._event(), 0, 1, flow.tag, flow))
            graphs.append({"job": one.number, "repeat": 1, "after": one.after, **asked})
        self._lab.open()
        if self.began_ns is None:
            self._lab.begin()
        now_ps = int(self.env.now)
        first = self.began_ns is None
        if first or not (running or self._jobs or self._lab.deeds):  # nothing under way
            self._anchor_ps = now_ps
            self._anchor_ns = time.monotonic_ns() + _SETTLE_NS
        if self.began_ns is None:
            self.began_ns = self._anchor_ns
            self._lab.schedule(self.wall_ns(0))
        self._jobs.update(started)
        if graphs:
            self._lab.sandbox.post("start", graphs=graphs, not_before_ns=self.wall_ns(now_ps))

    def _request(self, job: Job) -> dict[str, Any]:
        graph = self._requests.graph(job)
        if graph is None:
            self._inside_jobs.add(id(job))
            return self._requests.alone(job)
        return graph

    # ------------------------------------------------------------------ time
    @property
    def busy(self) -> bool:
        """Whether anything has started that has not ended."""
        return bool(self._waiting or self._jobs or self._ended)

    def advance(self, limit_ps: int | None) -> int | None:
        """Wait for the next end, or until ``limit_ps`` has come."""
        if self._waiting:
            self._hand_over()
        turn_ns = time.monotonic_ns() + _TURN_NS
        limit_ns = None if limit_ps is None else self.wall_ns(limit_ps)
        while not self._ended:
            until = turn_ns if limit_ns is None else min(turn_ns, limit_ns)
            event = self._lab.sandbox.event(until)
            if event is not None:
                self._hear(event)
            elif limit_ns is not None and time.monotonic_ns() >= limit_ns:
                return None
            elif time.monotonic_ns() >= turn_ns:
                self._check_time()  # nothing to deliver: others get their turn
                return max(self.fabric_ps(turn_ns), int(self.env.now))
        first = self._ended[0].end_ps
        if limit_ps is not None and first > limit_ps:
            return None
        return max(first, int(self.env.now))

    def _hear(self, event: dict[str, Any]) -> None:
        if event["event"] == "done":
            job = self._jobs.pop(event["job"])
            self._ended.append(_Done(self.fabric_ps(event["end"]), job, event))
            self.ended_ns = max(self.ended_ns, event["end"])
        else:
            self._lab.heard(event)

    def _check_time(self) -> None:
        """Stop at the time limit, and where nothing ends any more."""
        now = time.monotonic_ns()
        self._lab.check_time(now)
        assert self.began_ns is not None
        if now > self._lab.due_ns(self.began_ns) + _HOPELESS_NS:
            waiting = "; ".join(self.waiting())
            raise StalledError(f"transfers that should have ended long ago go on: {waiting}")

    def deliver(self) -> None:
        """Fire the event of the first end."""
        if not self._ended:
            return
        done = self._ended.popleft()
        job, message = done.job, done.message
        job.start_ps = max(job.start_ps, self.fabric_ps(message["start"]))
        name = job.tag if job.flow is None else job.flow.id
        if id(job) in self._inside_jobs:
            self._inside_jobs.discard(id(job))
            self.inside.add((job.tag, job.start_ps))
        self.stalls[name] = Stall(length_ns=message["gap"], began_ns=message["gap_began"])
        self._finish(job, end_ps=done.end_ps)

    # ------------------------------------------------------------------ looking
    def cancel(self, flow: Flow) -> None:
        """Refuse: what is on its way stays there."""
        raise InputError(f"flow '{flow.id}' cannot be cancelled", expected="a simulated run")

    def set_link(self, link: int, *, up: bool | None = None, rate_bps: int | None = None) -> None:
        """Refuse: cables change by the scenario's faults only."""
        raise RailweaveError(f"link {link} changes by the scenario's faults only")

    def arithmetic(self) -> LinkCounters:
        """Return the data that links should have carried by the sizes and paths of what ended."""
        return super().counters()

    def counters(self) -> LinkCounters:
        """Return what the shapers counted; inside hosts, what should have been carried."""
        counted = super().counters()
        wire: NDArray[np.int64] = counted.wire_bytes.copy()
        acks: NDArray[np.int64] = counted.ack_bytes.copy()
        try:
            carried = self._lab.carried()
        except SandboxError:  # it is gone: what ended is what is known
            return counted
        if self._jobs:  # stopped in mid-run: the counters go on while they are read
            lag_ps = max(0, self.fabric_ps(time.monotonic_ns()) - int(self.env.now))
            fastest = int(self.fabric.link_rate_bps.max())
            self.burst_bytes = self._lab.ahead_bytes + fastest * lag_ps // (8 * PS_PER_S)
            self._most_allowed_ps += lag_ps + self.credit_ps
        for link, count in carried.data.items():
            wire[link], acks[link] = count, carried.acks[link]
        self._allow_beside(acks)
        return LinkCounters(wire_bytes=wire, ack_bytes=acks)

    def _allow_beside(self, acks: NDArray[np.int64]) -> None:
        """Let bounds know of the acknowledgements, which the rates of the cables do not hold."""
        self.burst_bytes += int(acks.max(initial=0))
        took_ps = acks * (8.0 * PS_PER_S) / self.fabric.link_rate_bps
        self._beside_ps = int(took_ps.max(initial=0.0))

    def check_bound(self, what: str, *, took_ps: int, bound_ps: int) -> None:
        """Raise `PhysicsError` if a result beat its bound by more than shapers allow."""
        super().check_bound(what, took_ps=took_ps + self._beside_ps, bound_ps=bound_ps)

    def waiting(self) -> list[str]:
        """Say what has started and has not ended."""
        names = self.fabric.device_names
        return [
            f"collective '{job.tag}' has not ended"
            if job.flow is None
            else f"flow '{job.flow.id}' ({names[job.flow.src]} -> {names[job.flow.dst]}) "
            "has not ended"
            for job in self._jobs.values()
        ]
