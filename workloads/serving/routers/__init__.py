# SPDX-License-Identifier: Apache-2.0
"""Routers: which replica of a pool takes a request. A new one is one module of this package.

::

    @router("first")
    class First(Router):
        def choose(self, request, replicas):
            return 0

The replicas are those that serve, in the order of their numbers; what a router sees of them may be
old, as `railweave.workloads.serving.views` says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Protocol

from railweave.fabric.registry import Registry
from railweave.workloads.serving.keys import RouterModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

__all__ = ["ROUTERS", "ReplicaView", "RequestView", "Router", "least", "router"]


class RequestView(Protocol):
    """What a router may know of a request before it is served."""

    number: int
    prompt_tokens: int
    session: str
    hash_ids: tuple[int, ...]


class ReplicaView(Protocol):
    """What a router may know of a replica."""

    @property
    def number(self) -> int:
        """Which of its pool."""

    @property
    def connections(self) -> int:
        """Requests that were sent here and have not left."""

    @property
    def free_blocks(self) -> int:
        """KV blocks that no request holds."""

    @property
    def blocks(self) -> int:
        """KV blocks in all."""

    @property
    def waiting(self) -> int:
        """Requests that wait for their first step or for blocks."""

    @property
    def running(self) -> int:
        """Requests that steps compute."""

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens that are yet to be computed."""

    @property
    def inbound_bytes(self) -> int:
        """Bytes of KV caches that are on their way here."""

    def cached_tokens(self, request: RequestView) -> int:
        """Return how many tokens of the request's prompt are in its prefix cache."""

    def hops(self) -> int:
        """Return the links between it and the replica that prefills the request, 0 for none."""


class Router(ABC):
    """Chooses among the replicas of one pool.

    Parameters
    ----------
    random
        A random stream of its own.
    keys
        What the scenario says.
    """

    def __init__(self, random: np.random.Generator, keys: RouterModel | None = None) -> None:
        self.random = random
        self.keys = RouterModel() if keys is None else keys

    @abstractmethod
    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        """Return the place, among ``replicas``, of the one that takes the request."""


def least(values: Sequence[float], first: int) -> int:
    """Return the place of the least value; among equals the first from place ``first`` on.

    Examples
    --------
    >>> least([2, 1, 1], 0), least([2, 1, 1], 2)
    (1, 2)
    """
    turn = [(first + i) % len(values) for i in range(len(values))]
    return min(turn, key=lambda place: values[place])


ROUTERS: Final[Registry[type[Router]]] = Registry(
    "router", package="railweave.workloads.serving.routers"
)
router = ROUTERS
"""The decorator that registers a router: ``@router("name")``."""
