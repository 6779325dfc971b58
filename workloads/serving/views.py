# SPDX-License-Identifier: Apache-2.0
"""What the endpoint picker sees of replicas: their metrics, as old as the last reading.

Metrics are read when a request comes and the last reading is as old as the scrape interval, those
of all replicas of a pool at once. Between readings every request sees the same numbers, so that
requests which come close together run to the same replica.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from railweave.workloads.serving.replica import Replica
    from railweave.workloads.serving.routers import RequestView

__all__ = ["View", "Views"]


class View:
    """A replica's metrics at one time; the attributes of `railweave.workloads.serving.routers`."""

    def __init__(self, replica: Replica, *, keep: bool) -> None:
        replica.sync()
        self._replica = replica
        self.number = replica.plan.number
        self.connections = replica.connections
        self.blocks = replica.memory.blocks
        self.free_blocks = replica.memory.free_blocks
        self.waiting = replica.waiting_count
        self.running = len(replica.running)
        self.waiting_tokens = sum(sequence.need for sequence in replica.waiting)
        self.inbound_bytes = replica.inbound_bytes
        cache = replica.memory.cache
        self._ids = frozenset(cache.ids()) if keep and cache is not None else None
        self.distance: Callable[[Replica], int] = lambda _: 0

    def cached_tokens(self, request: RequestView) -> int:
        """Return how many tokens of the request's prompt are in the prefix cache."""
        cache = self._replica.memory.cache
        if cache is None or not request.hash_ids:
            return 0
        if self._ids is None:
            return cache.leading(request.hash_ids, request.prompt_tokens)
        known = sum(1 for _ in takewhile(self._ids.__contains__, request.hash_ids))
        return min(known, (request.prompt_tokens - 1) // cache.hash_tokens) * cache.hash_tokens

    def hops(self) -> int:
        """Return the links between this replica and the one that prefills, 0 for none."""
        return self.distance(self._replica)


class Views:
    """The metrics of a pool's replicas.

    Parameters
    ----------
    replicas
        All of them.
    interval_ps
        Age at which they are read again; 0: they are never old.
    """

    def __init__(self, replicas: Sequence[Replica], interval_ps: int) -> None:
        self._replicas = replicas
        self._interval_ps = interval_ps
        self._read_ps = -1
        self._kept: dict[int, View] = {}

    def of(self, serving: Sequence[Replica], now_ps: int) -> list[View]:
        """Return the metrics of those replicas that serve."""
        if not self._interval_ps:
            return [View(replica, keep=False) for replica in serving]
        if self._read_ps < 0 or now_ps - self._read_ps >= self._interval_ps:
            self._read_ps = now_ps
            self._kept = {id(one): View(one, keep=True) for one in self._replicas}
        return [self._kept[id(replica)] for replica in serving]
