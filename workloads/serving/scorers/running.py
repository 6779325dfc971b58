# SPDX-License-Identifier: Apache-2.0
"""Fewer running requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.workloads.serving.scorers import Scorer, scorer, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.workloads.serving.routers import ReplicaView, RequestView

__all__ = ["Running"]


@scorer("running")
class Running(Scorer):
    """``(max - x) / (max - min)`` of running requests."""

    def scores(self, request: RequestView, replicas: Sequence[ReplicaView]) -> list[float]:
        """Return a score from 0 to 1 for each replica."""
        return spread([replica.running for replica in replicas])
