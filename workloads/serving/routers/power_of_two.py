# SPDX-License-Identifier: Apache-2.0
"""Two replicas by chance, and the one of them with fewer requests.

Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 2001.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.workloads.serving.routers import ReplicaView, RequestView, Router, router

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PowerOfTwo"]


@router("power-of-two")
class PowerOfTwo(Router):
    """The better of two."""

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        """Return the one of two with fewer open requests, the first drawn among equals."""
        if len(replicas) < 2:
            return 0
        first, second = self.random.choice(len(replicas), size=2, replace=False).tolist()
        fewer = replicas[second].connections < replicas[first].connections
        return int(second if fewer else first)
