# SPDX-License-Identifier: Apache-2.0
"""The replica whose KV memory is least full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.workloads.serving.routers import ReplicaView, RequestView, Router, least, router

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from railweave.workloads.serving.keys import RouterModel

__all__ = ["LeastKv"]


@router("least-kv")
class LeastKv(Router):
    """The least share of KV blocks in use; among equals the first after the one chosen last."""

    def __init__(self, random: np.random.Generator, keys: RouterModel | None = None) -> None:
        super().__init__(random, keys)
        self._next = 0

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        """Return the replica whose memory is least full."""
        used = [1 - replica.free_blocks / max(replica.blocks, 1) for replica in replicas]
        chosen = least(used, self._next)
        self._next = chosen + 1
        return chosen
