# SPDX-License-Identifier: Apache-2.0
"""The token buckets of the shapers: what may leave at once after a pause.

A token bucket of ``b`` bytes at rate ``r`` passes at most ``b + r t`` in any time ``t`` (Cruz, "A
calculus for network delay, part I", IEEE Trans. Inf. Theory 37 (1991)), so what begins on idle
cables ends ``b / r`` sooner than the rate alone says. `Buckets` follows every cable's tokens and
shares them among those that begin together, max-min fairly like the rates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.jobs import JobEngine
from railweave.fabric.loops import expand
from railweave.fabric.schedule import NodeKind
from railweave.fabric.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from railweave.fabric.binding import BoundSchedule
    from railweave.fabric.jobs import Job
    from railweave.fabric.schedule import Schedule

__all__ = ["Buckets", "CreditedBounds", "longest_chain"]


def longest_chain(schedule: Schedule) -> int:
    """Return the most transfers that follow each other in a schedule."""
    depth = (schedule.kind == NodeKind.TRANSFER).astype(np.int64)
    own, missing = depth.copy(), schedule.n_deps.copy()
    ready = np.flatnonzero(missing == 0).tolist()
    while ready:
        node = ready.pop()
        for after in schedule.succ[schedule.succ_ptr[node] : schedule.succ_ptr[node + 1]].tolist():
            depth[after] = max(depth[after], depth[node] + own[after])
            missing[after] -= 1
            if not missing[after]:
                ready.append(after)
    return int(depth.max(initial=0))


class CreditedBounds(JobEngine):
    """Bounds of an engine whose links have buckets.

    Each transfer of a chain can be ahead of the rates by one full bucket, so a job by as many as
    its longest chain has transfers.
    """

    credit_ps: int = 0
    """Longest time that any bucket is worth, in ps of the fabric's clock."""
    _allowed_ps: int = 0
    _most_allowed_ps: int = 0

    def _bind(self, schedule: Schedule, devices: NDArray[np.int32]) -> BoundSchedule:
        """Bind a schedule with every run of its loops written out."""
        return super()._bind(expand(schedule), devices)

    def _finish(self, job: Job, *, end_ps: int) -> None:
        self._allowed_ps = self.credit_ps * longest_chain(job.bound.schedule) * job.repeat
        self._most_allowed_ps = max(self._most_allowed_ps, self._allowed_ps)
        super()._finish(job, end_ps=end_ps)
        self._allowed_ps = 0

    def check_bound(self, what: str, *, took_ps: int, bound_ps: int) -> None:
        """Raise `PhysicsError` if a result beat its bound by more than the buckets allow."""
        allowed = self._allowed_ps or self._most_allowed_ps
        super().check_bound(what, took_ps=took_ps + allowed, bound_ps=bound_ps)


class Buckets:
    """Tokens of every link, in bytes.

    Parameters
    ----------
    burst_bytes
        float64 (links,): size of each bucket; 0 where nothing is shaped.
    rate_bps
        int64 (links,): rate at which it fills.
    """

    def __init__(self, burst_bytes: NDArray[np.float64], rate_bps: NDArray[np.int64]) -> None:
        self._burst = burst_bytes
        self._rate_Bps = rate_bps / 8.0
        self._tokens = burst_bytes.copy()
        self._carried = np.zeros(len(burst_bytes))
        self._now_ps = 0

    def advance(self, now_ps: int, carried_bytes: NDArray[np.int64]) -> None:
        """Fill the buckets up to a time by what their links did not carry since the last one."""
        filled = self._rate_Bps * ((now_ps - self._now_ps) / PS_PER_S)
        used = carried_bytes - self._carried
        self._tokens = np.clip(self._tokens + filled - used, 0.0, self._burst)
        self._now_ps, self._carried = now_ps, carried_bytes.astype(np.float64)

    def take(self, paths: Sequence[Sequence[int]], wanted: Sequence[float]) -> list[float]:
        """Share the tokens among transfers that begin now; return what each gets, in bytes.

        Parameters
        ----------
        paths
            Shaped links of each.
        wanted
            Most that each can use, in bytes.
        """
        given = [0.0] * len(paths)
        open_ = [i for i, path in enumerate(paths) if path and wanted[i] > 0]
        while open_:
            users = np.zeros(len(self._tokens))
            for i in open_:
                np.add.at(users, list(paths[i]), 1)
            share = np.full(len(users), np.inf)
            np.divide(self._tokens, users, out=share, where=users > 0)
            step = min(float(share.min()), min(wanted[i] - given[i] for i in open_))
            self._tokens -= step * users
            for i in open_:
                given[i] += step
            self._tokens[self._tokens < 1e-6] = 0.0
            open_ = [
                i
                for i in open_
                if wanted[i] - given[i] > 1e-6 and all(self._tokens[link] > 0 for link in paths[i])
            ]
        return given
