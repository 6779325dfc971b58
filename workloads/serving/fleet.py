# SPDX-License-Identifier: Apache-2.0
"""The replicas of a service, and the endpoint picker that chooses among those that serve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.workloads.serving.groups import Group, groups_of
from railweave.workloads.serving.replica import Replica, ReplicaLostError
from railweave.workloads.serving.routers import ROUTERS
from railweave.workloads.serving.views import Views

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    import simpy

    from railweave.fabric.routing import Routing
    from railweave.workloads.serving.keys import RouterModel
    from railweave.workloads.serving.request import Request
    from railweave.workloads.workload import WorkloadContext

__all__ = ["Fleet"]


class Fleet:
    """Pools of replicas.

    Parameters
    ----------
    pools
        Replicas by pool.
    keys
        How replicas are chosen.
    context
        The clock, the routes, and random streams.

    Attributes
    ----------
    groups
        What of each pool starts and fails together.
    active
        For each replica, whether it is started.
    """

    def __init__(
        self, pools: Mapping[str, Sequence[Replica]], keys: RouterModel, context: WorkloadContext
    ) -> None:
        self.pools = pools
        self.groups = {name: groups_of(pool) for name, pool in pools.items()}
        self._env = context.env
        self._routing = context.routing
        self.active = {replica: True for pool in pools.values() for replica in pool}
        self._views = {name: Views(pool, keys.scrape_interval) for name, pool in pools.items()}
        self._routers = {}
        for name in pools:
            policy = getattr(keys, name, None) or keys.policy
            with context.at("router"):
                found = ROUTERS.get(policy)
            with context.at("router", "scorers"):
                self._routers[name] = found(context.random("router", name), keys)
        self._changed = context.env.event()
        self._cut: set[tuple[Replica, Replica]] = set()
        self._cutting: dict[tuple[Replica, Replica], simpy.Event] = {}
        self._hops: dict[tuple[Replica, Replica], int] = {}

    @property
    def replicas(self) -> list[Replica]:
        """All of them, pool by pool."""
        return [replica for pool in self.pools.values() for replica in pool]

    def serves(self, group: Group) -> bool:
        """Return whether requests may be sent to a group."""
        return group.up and self.active[group.members[0]]

    def activate(self, group: Group, active: bool) -> None:
        """Start a group, or stop it."""
        self.active.update(dict.fromkeys(group.members, active))

    def changed(self) -> None:
        """Let requests that found no replica look again."""
        self._changed.succeed()
        self._changed = self._env.event()

    def candidates(self, pool: str, source: Replica | None = None) -> list[Replica]:
        """Return the replicas of a pool that serve, and that a cache can reach from ``source``."""
        found = [one for one in self.pools[pool] if self.active[one] and one.up]
        if source is not None:
            return [one for one in found if (source, one) not in self._cut]
        if pool == "prefill" and self._cut:
            there = [one for one in self.pools["decode"] if self.active[one] and one.up]
            return [one for one in found if any((one, to) not in self._cut for to in there)]
        return found

    def pick(
        self, pool: str, request: Request, source: Replica | None = None
    ) -> Generator[simpy.Event, Any, Replica]:
        """Wait for a replica that serves, and return the one that the router chooses."""
        while True:
            found = self.candidates(pool, source)
            if found:
                break
            if source is not None and self.candidates(pool):
                raise ReplicaLostError(f"{source.plan.name} reaches nobody")
            request.doing = f"a {pool} replica that serves"
            yield self._changed
        views = self._views[pool].of(found, int(self._env.now))
        for view in views:
            view.distance = self._distance(source)
        return found[self._routers[pool].choose(request, views)]

    def _distance(self, source: Replica | None) -> Callable[[Replica], int]:
        def hops(target: Replica) -> int:
            if source is None or source is target:
                return 0
            key = (source, target)
            if key not in self._hops:
                ends = source.plan.devices[0], target.plan.devices[0]
                self._hops[key] = _links_between(self._routing, *ends)
            return self._hops[key]

        return hops

    # ------------------------------------------------------------------ what can reach what
    def cutting(self, source: Replica, target: Replica) -> simpy.Event:
        """Return the event that fails when no cache can get from one to the other, now or later."""
        key = (source, target)
        if key not in self._cutting:
            event = self._env.event()
            event.defused = True  # nobody may be waiting
            if key in self._cut:
                event.fail(_unreachable(target))
                return event
            self._cutting[key] = event
        return self._cutting[key]

    def set_cut(self, cut: set[tuple[Replica, Replica]]) -> None:
        """Say between which replicas no cache can move."""
        new = [pair for pair in self._cutting if pair in cut and pair not in self._cut]
        self._cut = cut
        for pair in new:
            event = self._cutting.pop(pair)
            event.fail(_unreachable(pair[1]))
            event.defused = True
        self.changed()


def _unreachable(replica: Replica) -> ReplicaLostError:
    return ReplicaLostError(f"{replica.plan.name} cannot be reached")


def _links_between(routing: Routing, source: int, target: int) -> int:
    ends = np.array([[source, target]], np.int32)
    routes = routing.routes(ends[:, 0].copy(), ends[:, 1].copy(), np.zeros(1, np.int32))
    return len(routes.path(0))
