# SPDX-License-Identifier: Apache-2.0
"""Fewer prompt tokens to compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.workloads.serving.scorers import Scorer, scorer, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.workloads.serving.routers import ReplicaView, RequestView

__all__ = ["TokenLoad"]


@scorer("token-load")
class TokenLoad(Scorer):
    """``(max - x) / (max - min)`` of prompt tokens that wait."""

    def scores(self, request: RequestView, replicas: Sequence[ReplicaView]) -> list[float]:
        """Return a score from 0 to 1 for each replica."""
        return spread([replica.waiting_tokens for replica in replicas])
