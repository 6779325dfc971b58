# SPDX-License-Identifier: Apache-2.0
"""Fewer waiting requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.workloads.serving.scorers import Scorer, scorer, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.workloads.serving.routers import ReplicaView, RequestView

__all__ = ["Queue"]


@scorer("queue")
class Queue(Scorer):
    """``(max - x) / (max - min)`` of waiting requests."""

    def scores(self, request: RequestView, replicas: Sequence[ReplicaView]) -> list[float]:
        """Return a score from 0 to 1 for each replica."""
        return spread([replica.waiting for replica in replicas])
