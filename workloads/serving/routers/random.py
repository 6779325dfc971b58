# SPDX-License-Identifier: Apache-2.0
"""Any replica, with equal chances."""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.workloads.serving.routers import ReplicaView, RequestView, Router, router

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Random"]


@router("random")
class Random(Router):
    """A replica by chance."""

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        """Return a replica by chance."""
        return int(self.random.integers(len(replicas)))
