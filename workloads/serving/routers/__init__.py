# SPDX-License-Identifier: Apache-2.0
"""Routers: which replica of a pool takes a request. A new one is one module of this package.

::

    @router("first")
    class First(Router):
        def choose(self, request, replicas):
            return 0
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Protocol

from railweave.fabric.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

__all__ = ["ROUTERS", "ReplicaView", "RequestView", "Router", "router"]


class RequestView(Protocol):
    """What a router may know of a request before it is served."""

    number: int
    prompt_tokens: int


class ReplicaView(Protocol):
    """What a router may know of a replica."""

    @property
    def connections(self) -> int:
        """Requests that were sent here and have not left."""

    @property
    def free_blocks(self) -> int:
        """KV blocks that no request holds."""


class Router(ABC):
    """Chooses among the replicas of one pool.

    Parameters
    ----------
    random
        A random stream of its own.
    """

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random

    @abstractmethod
    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        """Return the number of the replica that takes the request."""


ROUTERS: Final[Registry[type[Router]]] = Registry(
    "router", package="railweave.workloads.serving.routers"
)
router = ROUTERS
"""The decorator that registers a router: ``@router("name")``."""
