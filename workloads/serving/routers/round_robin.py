# SPDX-License-Identifier: Apache-2.0
"""Every replica in turn, whatever it has to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.workloads.serving.routers import ReplicaView, RequestView, Router, router

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from railweave.workloads.serving.keys import RouterModel

__all__ = ["RoundRobin"]


@router("round-robin")
class RoundRobin(Router):
    """The replica after the one chosen last."""

    def __init__(self, random: np.random.Generator, keys: RouterModel | None = None) -> None:
        super().__init__(random, keys)
        self._next = 0

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        """Return the next replica."""
        numbers = [replica.number for replica in replicas]
        later = [place for place, number in enumerate(numbers) if number >= self._next]
        chosen = later[0] if later else 0
        self._next = numbers[chosen] + 1
        return chosen
