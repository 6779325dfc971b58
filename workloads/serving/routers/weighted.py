# SPDX-License-Identifier: Apache-2.0
"""Several scores, weighed and added: the highest wins, equals by chance.

As llm-d's endpoint picker does (llm-d/llm-d-inference-scheduler); the scores are in
`railweave.workloads.serving.scorers`. Without ``scorers`` it takes llm-d's sample profile, prefix 2
and queue 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from railweave.workloads.serving.routers import ReplicaView, RequestView, Router, router
from railweave.workloads.serving.scorers import SCORERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from railweave.workloads.serving.keys import RouterModel

__all__ = ["Weighted"]

_SAMPLE: Final = {"prefix": 2.0, "queue": 1.0}


@router("weighted")
class Weighted(Router):
    """See the module."""

    def __init__(self, random: np.random.Generator, keys: RouterModel | None = None) -> None:
        super().__init__(random, keys)
        weights = self.keys.scorers or _SAMPLE
        self._scorers = [(SCORERS.get(name)(random), weight) for name, weight in weights.items()]

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        """Return the replica with the highest sum of weighted scores."""
        totals = [0.0] * len(replicas)
        for scorer, weight in self._scorers:
            for place, score in enumerate(scorer.scores(request, replicas)):
                totals[place] += weight * score
        best = [place for place, total in enumerate(totals) if total == max(totals)]
        chosen = best[int(self.random.integers(len(best)))]
        for scorer, _ in self._scorers:
            scorer.chosen(request, replicas[chosen])
        return chosen
