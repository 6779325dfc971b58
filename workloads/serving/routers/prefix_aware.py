# SPDX-License-Identifier: Apache-2.0
"""The replica that has most of the prompt cached, unless load has drifted apart.

SGLang's cache-aware policy: if the busiest replica has more than 64 requests more than the idlest,
and more than 1.5 times as many, the idlest; else the one with the longest cached prefix, if that is
more than 0.3 of the prompt; else the one with the emptiest cache. Here the last is the one with the
most free KV blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.workloads.serving.routers import ReplicaView, RequestView, Router, least, router

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from railweave.workloads.serving.keys import RouterModel

__all__ = ["PrefixAware"]


@router("prefix-aware")
class PrefixAware(Router):
    """See the module."""

    def __init__(self, random: np.random.Generator, keys: RouterModel | None = None) -> None:
        super().__init__(random, keys)
        self._next = 0

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        """Return the replica with the longest prefix, or the least busy, or the emptiest."""
        load = [replica.connections for replica in replicas]
        keys = self.keys
        apart = max(load) - min(load) > keys.balance_abs_threshold
        apart = apart and max(load) > keys.balance_rel_threshold * min(load)
        cached = [replica.cached_tokens(request) for replica in replicas]
        if apart:
            chosen = least(load, self._next)
        elif max(cached) > keys.cache_threshold * request.prompt_tokens:
            chosen = least([-tokens for tokens in cached], self._next)
        else:
            chosen = least([-replica.free_blocks for replica in replicas], self._next)
        self._next = chosen + 1
        return chosen
