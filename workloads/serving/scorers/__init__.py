# SPDX-License-Identifier: Apache-2.0
"""Scores of replicas for the router ``weighted``. A new one is one module of this package.

They are those of llm-d's endpoint picker (llm-d/llm-d-inference-scheduler, its scorer plugins).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from railweave.fabric.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from railweave.workloads.serving.routers import ReplicaView, RequestView

__all__ = ["SCORERS", "Scorer", "scorer", "spread"]


class Scorer(ABC):
    """Scores the replicas of one pool.

    Parameters
    ----------
    random
        A random stream.
    """

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random

    @abstractmethod
    def scores(self, request: RequestView, replicas: Sequence[ReplicaView]) -> list[float]:
        """Return a score from 0 to 1 for each replica."""

    def chosen(self, request: RequestView, replica: ReplicaView) -> None:
        """Learn which replica took the request."""
        del request, replica


def spread(values: Sequence[float]) -> list[float]:
    """Return ``(max - x) / (max - min)`` of each value; 1 where all are equal.

    Examples
    --------
    >>> spread([1, 3, 2]), spread([4, 4])
    ([1.0, 0.0, 0.5], [1.0, 1.0])
    """
    high, low = max(values), min(values)
    if high == low:
        return [1.0] * len(values)
    return [(high - value) / (high - low) for value in values]


SCORERS: Final[Registry[type[Scorer]]] = Registry(
    "scorer", package="railweave.workloads.serving.scorers"
)
scorer = SCORERS
"""The decorator that registers a scorer: ``@scorer("name")``."""
