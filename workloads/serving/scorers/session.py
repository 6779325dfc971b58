# SPDX-License-Identifier: Apache-2.0
"""The replica that took the turns before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.workloads.serving.scorers import Scorer, scorer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from railweave.workloads.serving.routers import ReplicaView, RequestView

__all__ = ["Session"]


@scorer("session")
class Session(Scorer):
    """1 for the replica of the session, else 0."""

    def __init__(self, random: np.random.Generator) -> None:
        super().__init__(random)
        self._homes: dict[str, int] = {}

    def scores(self, request: RequestView, replicas: Sequence[ReplicaView]) -> list[float]:
        """Return a score from 0 to 1 for each replica."""
        home = self._homes.get(request.session, -1)
        return [float(replica.number == home) for replica in replicas]

    def chosen(self, request: RequestView, replica: ReplicaView) -> None:
        """Learn which replica took the request."""
        if request.session:
            self._homes[request.session] = replica.number
