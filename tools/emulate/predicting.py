# SPDX-License-Identifier: Apache-2.0
"""The fluid engine on the paths that the kernels chose, buckets of the shapers included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.fabric.engine import Engine
from railweave.fabric.errors import InputError
from railweave.fabric.fluid import FluidEngine
from railweave.fabric.jobs import Job
from railweave.fabric.schedule import NodeKind
from railweave.tools.emulate.buckets import Buckets, CreditedBounds
from railweave.tools.emulate.kernel_routing import KernelRouting
from railweave.tools.emulate.single import single_transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import simpy
    from numpy.typing import NDArray

    from railweave.fabric.flow import Flow

__all__ = ["PredictingEngine", "check_flow"]


def check_flow(flow: Flow) -> None:
    """Refuse what TCP over shaped cables cannot show."""
    if flow.weight != 1:
        raise InputError(
            f"flow '{flow.id}' has weight {flow.weight:g}",
            field="weight",
            expected="1: TCP connections share alike",
        )
    if flow.cap_bps is not None:
        raise InputError(f"flow '{flow.id}' has a cap", field="cap", expected="no cap")
    if flow.qps not in (None, 1):
        raise InputError(
            f"flow '{flow.id}' is split over {flow.qps} queue pairs",
            field="qps",
            expected="1: a flow is one connection",
        )


class _Part(Job):
    """One transfer of a schedule, sent by itself."""

    then: Callable[[], None]


class PredictingEngine(CreditedBounds, FluidEngine):
    """What the emulation should measure.

    Transfers of a schedule are started one by one, so that each finds the buckets as they are.

    Parameters
    ----------
    burst_bytes
        float64 (links,): the buckets.
    credit_ps
        Longest time that any of them is worth.
    """

    name = "fluid"

    def __init__(
        self, *args: Any, burst_bytes: NDArray[np.float64], credit_ps: int, **options: Any
    ) -> None:
        super().__init__(*args, memo=False, **options)
        self._buckets = Buckets(burst_bytes, self.fabric.link_rate_bps)
        self._shaped = burst_bytes > 0
        self.credit_ps = credit_ps
        self.burst_bytes = int(burst_bytes.max(initial=0))
        self._starting: list[Job] = []

    @property
    def kernel(self) -> KernelRouting:
        """The routing, which is the kernels'."""
        routing = self.binder.routing
        assert isinstance(routing, KernelRouting)
        return routing

    def prepare(self, flows: Iterable[Flow]) -> None:
        """Find the circuits of flows all at once."""
        known = list(flows)
        for flow in known:
            check_flow(flow)
        self.kernel.find(known)

    def send(self, flow: Flow) -> simpy.Event:
        """Start a flow on its circuit's path."""
        check_flow(flow)
        self.kernel.check_outside(flow)
        return super().send(self.kernel.pinned(flow))

    def send_all(self, flows: Sequence[Flow], *, start_ps: Sequence[int]) -> simpy.Event:
        """Send each flow at its time, by itself: each finds the buckets as they are."""
        return Engine.send_all(self, flows, start_ps=start_ps)

    # ------------------------------------------------------------------ starting
    def _begin(self, job: Job) -> None:
        if job.flow is not None or isinstance(job, _Part):
            self._starting.append(job)
        else:
            self._walk(job)

    def _walk(self, job: Job) -> None:
        """Send the transfers of a schedule, each when those before it have ended."""
        plan = job.bound.schedule
        missing, left = plan.n_deps.copy(), len(plan)
        last: dict[int, list[int]] = {}  # path -> transfers that wait for their turn on it

        def ready(node: int) -> None:
            delay = int(plan.delay_ps[node])
            if delay:
                timer = self.env.timeout(delay)
                timer.callbacks.append(lambda _: go(node))
            else:
                go(node)

        def go(node: int) -> None:
            path = int(job.bound.path[node])
            if plan.kind[node] != NodeKind.TRANSFER or path < 0:
                ended(node)
                return
            queue = last.setdefault(path, [])
            queue.append(node)
            if len(queue) == 1:
                start(node, path)

        def start(node: int, path: int) -> None:
            bound = single_transfer(self.table, path, int(plan.size_bytes[node]))
            part = _Part(bound, self._event(), int(self.env.now), 1, job.tag)

            def then() -> None:
                queue = last[path]
                queue.pop(0)
                if queue:
                    start(queue[0], path)
                ended(node)

            part.then = then
            self._starting.append(part)

        def ended(node: int) -> None:
            nonlocal left
            left -= 1
            for after in plan.succ[plan.succ_ptr[node] : plan.succ_ptr[node + 1]].tolist():
                missing[after] -= 1
                if not missing[after]:
                    ready(after)
            if not left:
                again()

        def again() -> None:
            job.runs_left -= 1
            if job.runs_left:
                self._walk(job)
            else:
                self._finish(job, end_ps=int(self.env.now))

        for node in np.flatnonzero(plan.n_deps == 0).tolist():
            ready(node)

    def _start_all(self) -> None:
        """Give what starts now its share of the buckets, then its rate."""
        starting, self._starting = self._starting, []
        self._fill()
        paths = [
            [
                int(link)
                for link in self.table.links_of(int(job.bound.path[0]))
                if self._shaped[link]
            ]
            for job in starting
        ]
        sizes = [float(job.bound.wire_bytes.sum()) for job in starting]
        for job, given in zip(starting, self._buckets.take(paths, sizes), strict=True):
            if given > 0:
                self._shorten(job, given)
            self._run(job, self._add(job))

    def _shorten(self, job: Job, given_bytes: float) -> None:
        """Leave out of a transfer what went at once, all but its last byte."""
        plan = job.bound.schedule
        size = int(plan.size_bytes[0])
        wire = int(job.bound.wire_bytes[0])
        spared = min(int(given_bytes * size / wire), size - 1) if wire else 0
        if spared > 0:
            job.bound = single_transfer(self.table, int(job.bound.path[0]), size - spared)

    def _fill(self) -> None:
        counters = super().counters()
        self._buckets.advance(int(self.env.now), counters.wire_bytes + counters.ack_bytes)

    def _add(self, job: Job) -> int:
        if job.flow is not None:
            return super()._add(job)
        return self.state.add(job.bound.graph, at_ps=int(self.env.now), in_turn=False)

    # ------------------------------------------------------------------ time
    @property
    def busy(self) -> bool:
        """Whether anything has started that has not ended."""
        return bool(self._starting) or super().busy

    def advance(self, limit_ps: int | None) -> int | None:
        """Run to the first completions at or before ``limit_ps``."""
        if self._starting:
            self._start_all()
        return super().advance(limit_ps)

    def deliver(self) -> None:
        """Fire the events of the completions that `advance` reached."""
        super().deliver()
        self._fill()

    def _finish(self, job: Job, *, end_ps: int) -> None:
        if isinstance(job, _Part):
            self._count(job.bound.usage, 1)
            job.then()
            return
        if job.flow is None:  # its parts have been counted, one by one
            self._count(job.bound.usage, -job.repeat)
        super()._finish(job, end_ps=end_ps)
