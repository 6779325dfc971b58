# SPDX-License-Identifier: Apache-2.0
"""Autoscaling: replicas that start when queues or KV memory fill, and stop when they are empty.

A replica is started as one group: after a delay every rank loads its weights
(`railweave.workloads.serving.weights`); only then does it serve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import simpy

    from railweave.workloads.serving.fleet import Fleet
    from railweave.workloads.serving.keys import AutoscaleModel
    from railweave.workloads.serving.model import ServingModel
    from railweave.workloads.serving.replica import Replica
    from railweave.workloads.serving.weights import WeightLoader
    from railweave.workloads.workload import WorkloadContext

__all__ = ["Autoscaler"]


class Autoscaler:
    """Follows the rules of a workload.

    Parameters
    ----------
    workload, context, fleet
        What is served, on what.
    loader
        Brings the weights.

    Attributes
    ----------
    events
        What was decided: a mapping with ``at_ps``, ``pool``, ``replica``, ``did`` (``start``,
        ``serve``, ``stop``) each, and, as it serves, where its weights came from.
    """

    def __init__(
        self,
        workload: ServingModel,
        context: WorkloadContext,
        fleet: Fleet,
        loader: WeightLoader,
    ) -> None:
        self._workload, self._context, self._fleet = workload, context, fleet
        self._loader = loader
        self.events: list[dict[str, Any]] = []
        self._starting: set[Replica] = set()
        for number, rule in enumerate(workload.autoscale):
            at = ("autoscale", number)
            if rule.pool not in fleet.pools:
                raise context.error(
                    f"there is no pool '{rule.pool}'",
                    at=(*at, "pool"),
                    expected=" | ".join(fleet.pools),
                )
            if not rule.least <= workload.pools[rule.pool].replicas <= rule.most:
                raise context.error(
                    f"{workload.pools[rule.pool].replicas} replicas are not between {rule.least} "
                    f"and {rule.most}",
                    at=(*at, "most"),
                    expected="least <= replicas <= most",
                )
            if rule.below >= rule.above:
                raise context.error(
                    f"{rule.below:g} is not below {rule.above:g}",
                    at=(*at, "below"),
                    expected="below < above",
                )
            if rule.weights_from is not None:
                loader.check(rule.weights_from, (*at, "weights_from"))
        for name, pool in workload.pools.items():
            for replica in fleet.pools[name][pool.replicas :]:
                fleet.active[replica] = False

    def start(self, open_requests: Callable[[], int]) -> None:
        """Follow every rule while requests are open."""
        for rule in self._workload.autoscale:
            self._context.env.process(self._follow(rule, open_requests))

    def _follow(
        self, rule: AutoscaleModel, open_requests: Callable[[], int]
    ) -> Generator[simpy.Event, Any, None]:
        env, engine = self._context.env, self._context.engine
        while True:
            yield env.timeout(rule.every)
            if not open_requests():
                return
            acted = self._look(rule)
            if not acted and env.peek() == float("inf") and not engine.busy:
                return  # nothing will ever change

    def _look(self, rule: AutoscaleModel) -> bool:
        pool = self._fleet.pools[rule.pool]
        serving = [replica for replica in pool if self._fleet.active[replica] and replica.up]
        coming = [replica for replica in pool if replica in self._starting]
        idle = [
            replica
            for replica in pool
            if not self._fleet.active[replica] and replica not in self._starting and replica.up
        ]
        count = len(serving) + len(coming)
        value = self._value(rule, serving, count)
        if value > rule.above and idle and count < rule.most:
            self._starting.add(idle[0])
            self._note(rule, idle[0], "start")
            self._context.env.process(self._bring_up(rule, idle[0]))
            return True
        if value < rule.below and not coming and len(serving) > rule.least:
            empty = [replica for replica in serving if replica.empty]
            if empty:
                self._fleet.active[empty[-1]] = False
                self._note(rule, empty[-1], "stop")
                return True
        return False

    def _value(self, rule: AutoscaleModel, serving: list[Replica], count: int) -> float:
        if rule.metric == "queue":
            return sum(replica.waiting_count for replica in serving) / max(count, 1)
        blocks = sum(replica.memory.blocks for replica in serving)
        free = sum(replica.free_blocks for replica in serving)
        return 1 - free / blocks if blocks else 0.0

    def _bring_up(
        self, rule: AutoscaleModel, replica: Replica
    ) -> Generator[simpy.Event, Any, None]:
        """Load the weights of every rank, then serve."""
        yield self._context.env.timeout(rule.start_delay)
        loaded = yield from self._loader.load(replica, rule.weights_from)
        self._starting.discard(replica)
        self._fleet.active[replica] = True
        self._note(rule, replica, "serve", **loaded)
        self._fleet.changed()

    def _note(self, rule: AutoscaleModel, replica: Replica, did: str, **more: Any) -> None:
        now = int(self._context.env.now)
        self.events.append(
            {"at_ps": now, "pool": rule.pool, "replica": replica.plan.name, "did": did, **more}
        )
