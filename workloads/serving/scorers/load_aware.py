# SPDX-License-Identifier: Apache-2.0
"""A queue that is not long, in absolute terms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.workloads.serving.scorers import Scorer, scorer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.workloads.serving.routers import ReplicaView, RequestView

__all__ = ["LoadAware"]


@scorer("load-aware")
class LoadAware(Scorer):
    """``0.5 (1 - min(waiting, 128) / 128)``, as llm-d has it."""

    def scores(self, request: RequestView, replicas: Sequence[ReplicaView]) -> list[float]:
        """Return a score from 0 to 1 for each replica."""
        return [0.5 * (1 - min(replica.waiting, 128) / 128) for replica in replicas]
