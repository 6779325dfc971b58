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
    from railweave.workloads.serving.groups import Group
    from railweave.workloads.serving.keys import AutoscaleModel
    from railweave.workloads.serving.model import ServingModel
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
        self._starting: set[Group] = set()
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
            for group in fleet.groups[name][pool.replicas :]:
                fleet.activate(group, active=False)

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
        fleet, groups = self._fleet, self._fleet.groups[rule.pool]
        serving = [group for group in groups if fleet.serves(group)]
        coming = [group for group in groups if group in self._starting]
        idle = [
            group
            for group in groups
            if group.up and not fleet.serves(group) and group not in self._starting
        ]
        count = len(serving) + len(coming)
        value = self._value(rule, serving, count)
        if value > rule.above and idle and count < rule.most:
            self._starting.add(idle[0])
            self._note(rule, idle[0], "start")
            self._context.env.process(self._bring_up(rule, idle[0]))
            return True
        if value < rule.below and not coming and len(serving) > rule.least:
            empty = [group for group in serving if group.empty]
            if empty:
                fleet.activate(empty[-1], active=False)
                self._note(rule, empty[-1], "stop")
                return True
        return False

    def _value(self, rule: AutoscaleModel, serving: list[Group], count: int) -> float:
        replicas = [replica for group in serving for replica in group.members]
        if rule.metric == "queue":
            return sum(replica.waiting_count for replica in replicas) / max(count, 1)
        blocks = sum(replica.memory.blocks for replica in replicas)
        free = sum(replica.free_blocks for replica in replicas)
        return 1 - free / blocks if blocks else 0.0

    def _bring_up(self, rule: AutoscaleModel, group: Group) -> Generator[simpy.Event, Any, None]:
        """Load the weights of every rank, then serve."""
        yield self._context.env.timeout(rule.start_delay)
        loaded = yield from self._loader.load(group, rule.weights_from)
        self._starting.discard(group)
        self._fleet.activate(group, active=True)
        self._note(rule, group, "serve", **loaded)
        self._fleet.changed()

    def _note(self, rule: AutoscaleModel, group: Group, did: str, **more: Any) -> None:
        now = int(self._context.env.now)
        self.events.append(
            {"at_ps": now, "pool": rule.pool, "replica": group.name, "did": did, **more}
        )
