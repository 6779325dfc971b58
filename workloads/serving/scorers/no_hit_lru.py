# SPDX-License-Identifier: Apache-2.0
"""Prompts that nobody has cached go round, so that caches fill evenly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.workloads.serving.scorers import Scorer, scorer, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from railweave.workloads.serving.routers import ReplicaView, RequestView

__all__ = ["NoHitLru"]


@scorer("no-hit-lru")
class NoHitLru(Scorer):
    """For a prompt that nobody has cached: the higher, the longer ago one came here."""

    def __init__(self, random: np.random.Generator) -> None:
        super().__init__(random)
        self._order: list[int] = []
        self._cold = False

    def scores(self, request: RequestView, replicas: Sequence[ReplicaView]) -> list[float]:
        """Return a score from 0 to 1 for each replica."""
        self._cold = not any(replica.cached_tokens(request) for replica in replicas)
        if not self._cold or len(replicas) < 2:
            return [0.5] * len(replicas)
        ages = [
            self._order.index(replica.number) if replica.number in self._order else -1
            for replica in replicas
        ]
        return spread(ages)

    def chosen(self, request: RequestView, replica: ReplicaView) -> None:
        """Learn which replica took the request."""
        if self._cold:
            self._order = [n for n in self._order if n != replica.number] + [replica.number]
