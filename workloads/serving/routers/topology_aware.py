# SPDX-License-Identifier: Apache-2.0
"""Near, and over rails that nothing else crosses: the fabric as a signal.

Among the replicas that are not much busier than the idlest, the one to which the fewest bytes of KV
caches are on their way, then the one fewest links away from the replica that prefills, then the
least busy. What to compare it with: NetKV (arXiv 2606.03910) routes by the network too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.workloads.serving.routers import ReplicaView, RequestView, Router, router

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from railweave.workloads.serving.keys import RouterModel

__all__ = ["TopologyAware"]


@router("topology-aware")
class TopologyAware(Router):
    """See the module."""

    def __init__(self, random: np.random.Generator, keys: RouterModel | None = None) -> None:
        super().__init__(random, keys)
        self._next = 0

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        """Return the replica that the cache reaches soonest."""
        load = [replica.connections for replica in replicas]
        most = min(load) * self.keys.near_factor + self.keys.near_slack
        able = [place for place in range(len(replicas)) if load[place] <= most]
        turn = sorted(able, key=lambda place: (place - self._next) % len(replicas))
        chosen = min(
            turn,
            key=lambda place: (
                replicas[place].inbound_bytes,
                replicas[place].hops(),
                load[place],
            ),
        )
        self._next = chosen + 1
        return chosen
