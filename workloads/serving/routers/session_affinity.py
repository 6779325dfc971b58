# SPDX-License-Identifier: Apache-2.0
"""A conversation stays where it began, so that its cache is there.

The first turn, and a request without session, goes to the replica with the fewest requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.workloads.serving.routers import ReplicaView, RequestView, Router, least, router

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from railweave.workloads.serving.keys import RouterModel

__all__ = ["SessionAffinity"]


@router("session-affinity")
class SessionAffinity(Router):
    """The replica of the turns before."""

    def __init__(self, random: np.random.Generator, keys: RouterModel | None = None) -> None:
        super().__init__(random, keys)
        self._next = 0
        self._homes: dict[str, int] = {}

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        """Return the replica of the request's session."""
        places = {replica.number: place for place, replica in enumerate(replicas)}
        home = self._homes.get(request.session) if request.session else None
        if home is not None and home in places:
            return places[home]
        chosen = least([replica.connections for replica in replicas], self._next)
        self._next = chosen + 1
        if request.session:
            self._homes[request.session] = replicas[chosen].number
        return chosen
