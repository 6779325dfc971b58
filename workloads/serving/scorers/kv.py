# SPDX-License-Identifier: Apache-2.0
"""More KV memory free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.workloads.serving.scorers import Scorer, scorer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.workloads.serving.routers import ReplicaView, RequestView

__all__ = ["Kv"]


@scorer("kv")
class Kv(Scorer):
    """The share of KV blocks that is free."""

    def scores(self, request: RequestView, replicas: Sequence[ReplicaView]) -> list[float]:
        """Return a score from 0 to 1 for each replica."""
        return [replica.free_blocks / max(replica.blocks, 1) for replica in replicas]
