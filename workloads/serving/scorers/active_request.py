# SPDX-License-Identifier: Apache-2.0
"""Fewer requests that were sent and have not been answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.workloads.serving.scorers import Scorer, scorer, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.workloads.serving.routers import ReplicaView, RequestView

__all__ = ["ActiveRequest"]


@scorer("active-request")
class ActiveRequest(Scorer):
    """``(max - x) / (max - min)`` of open requests."""

    def scores(self, request: RequestView, replicas: Sequence[ReplicaView]) -> list[float]:
        """Return a score from 0 to 1 for each replica."""
        return spread([replica.connections for replica in replicas])
