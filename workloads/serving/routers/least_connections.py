# SPDX-License-Identifier: Apache-2.0
"""The replica that holds the fewest requests, counted, not weighed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.workloads.serving.routers import ReplicaView, RequestView, Router, least, router

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from railweave.workloads.serving.keys import RouterModel

__all__ = ["LeastConnections"]


@router("least-connections")
class LeastConnections(Router):
    """The fewest open requests; among equals the first after the one chosen last."""

    def __init__(self, random: np.random.Generator, keys: RouterModel | None = None) -> None:
        super().__init__(random, keys)
        self._next = 0

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        """Return the replica with the fewest open requests."""
        chosen = least([replica.connections for replica in replicas], self._next)
        self._next = chosen + 1
        return chosen
