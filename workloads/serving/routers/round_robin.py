# SPDX-License-Identifier: Apache-2.0
"""Every replica in turn, whatever it has to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.workloads.serving.routers import ReplicaView, RequestView, Router, router

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

__all__ = ["RoundRobin"]


@router("round-robin")
class RoundRobin(Router):
    """The replica after the one chosen last."""

    def __init__(self, random: np.random.Generator) -> None:
        super().__init__(random)
        self._next = 0

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        """Return the next replica."""
        chosen = self._next % len(replicas)
        self._next = chosen + 1
        return chosen
