# SPDX-License-Identifier: Apache-2.0
"""More of the prompt in the prefix cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.workloads.serving.scorers import Scorer, scorer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.workloads.serving.routers import ReplicaView, RequestView

__all__ = ["Prefix"]


@scorer("prefix")
class Prefix(Scorer):
    """The share of the prompt that is cached."""

    def scores(self, request: RequestView, replicas: Sequence[ReplicaView]) -> list[float]:
        """Return a score from 0 to 1 for each replica."""
        return [replica.cached_tokens(request) / request.prompt_tokens for replica in replicas]
