# SPDX-License-Identifier: Apache-2.0
"""The analytic engine: everything takes its lower bound, as if alone on an empty fabric.

A flow takes its path latency and the serialisation on its narrowest link; a schedule the longer
of its longest chain of transfers and its busiest link. No other engine may beat it.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

from railweave.fabric.engine import Capabilities
from railweave.fabric.errors import InputError, RailweaveError
from railweave.fabric.jobs import Job, JobEngine

if TYPE_CHECKING:
    from railweave.fabric.flow import Flow

__all__ = ["AnalyticEngine"]


class AnalyticEngine(JobEngine):
    """Lower bounds as times: no contention, no queues."""

    name = "analytic"
    runs_loops = True
    capabilities = Capabilities(contention=False, packets=False, set_link=False)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._queue: list[tuple[int, int, Job]] = []
        self._started = 0

    def _begin(self, job: Job) -> None:
        end_ps = job.start_ps + self._takes_ps(job)
        heapq.heappush(self._queue, (end_ps, self._started, job))
        self._started += 1

    def _takes_ps(self, job: Job) -> int:
        takes = job.bound_ps
        if job.flow is not None and job.flow.cap_bps is not None:
            wire = int(job.bound.wire_bytes.sum()) or job.flow.size_bytes
            takes = max(takes, wire * 8 * 10**12 // job.flow.cap_bps)
        return takes

    def cancel(self, flow: Flow) -> None:
        """Stop a flow; its event fails."""
        for entry in self._queue:
            job = entry[2]
            if job.flow is flow:
                self._queue.remove(entry)
                heapq.heapify(self._queue)
                job.event.fail(RailweaveError(f"flow '{flow.id}' was cancelled"))
                return
        raise InputError(f"flow '{flow.id}' is not under way")

    def set_link(self, link: int, *, up: bool | None = None, rate_bps: int | None = None) -> None:
        """Refuse: nothing here depends on time."""
        raise InputError(
            "the analytic engine has no link changes during a run", expected="engine: fluid"
        )

    @property
    def busy(self) -> bool:
        """Whether anything has started that has not ended."""
        return bool(self._queue)

    def advance(self, limit_ps: int | None) -> int | None:
        """Run to the first completions at or before ``limit_ps``."""
        if not self._queue or (limit_ps is not None and self._queue[0][0] > limit_ps):
            return None
        return self._queue[0][0]

    def deliver(self) -> None:
        """Fire the events of the completions that `advance` reached."""
        now = self._queue[0][0]
        while self._queue and self._queue[0][0] == now:
            job = heapq.heappop(self._queue)[2]
            self._finish(job, end_ps=now)

    def waiting(self) -> list[str]:
        """Say nothing: everything ends here."""
        return []
