# SPDX-License-Identifier: Apache-2.0
"""Autoscaling: replicas that start when queues or KV memory fill, and stop when they are empty.

A replica is started as one group: after a delay every rank loads its weights, over the fabric from
another replica or from a host; only then does it serve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from railweave.fabric.flow import Flow
from railweave.workloads.memory import weight_bytes_per_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import simpy

    from railweave.workloads.serving.fleet import Fleet
    from railweave.workloads.serving.keys import AutoscaleModel
    from railweave.workloads.serving.model import ServingModel
    from railweave.workloads.serving.replica import Replica
    from railweave.workloads.shapes_model import ModelShape
    from railweave.workloads.workload import WorkloadContext

__all__ = ["Autoscaler"]


class Autoscaler:
    """Follows the rules of a workload.

    Parameters
    ----------
    workload, context, fleet, shape
        What is served, on what.

    Attributes
    ----------
    events
        What was decided: a mapping with ``at_ps``, ``pool``, ``replica``, ``did`` (``start``,
        ``serve``, ``stop``) each.
    """

    def __init__(
        self, workload: ServingModel, context: WorkloadContext, fleet: Fleet, shape: ModelShape
    ) -> None:
        self._workload, self._context, self._fleet, self._shape = workload, context, fleet, shape
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
                self._host_gpus(rule.weights_from, at)
        for name, pool in workload.pools.items():
            for replica in fleet.pools[name][pool.replicas :]:
                fleet.active[replica] = False

    def _host_gpus(self, host: str, at: tuple[Any, ...]) -> list[int]:
        fabric = self._context.fabric
        names = list(fabric.host_names)
        if host not in names:
            raise self._context.error(
                f"there is no host '{host}'", at=(*at, "weights_from"), expected="a host by name"
            )
        return [int(gpu) for gpu in fabric.gpus if fabric.host[gpu] == names.index(host)]

    def start(self, open_requests: Callable[[], int]) -> None:
        """Follow every rule while requests are open."""
        for number, rule in enumerate(self._workload.autoscale):
            self._context.env.process(self._follow(rule, number, open_requests))

    def _follow(
        self, rule: AutoscaleModel, number: int, open_requests: Callable[[], int]
    ) -> Generator[simpy.Event, Any, None]:
        env, engine = self._context.env, self._context.engine
        while True:
            yield env.timeout(rule.every)
            if not open_requests():
                return
            acted = self._look(rule, number)
            if not acted and env.peek() == float("inf") and not engine.busy:
                return  # nothing will ever change

    def _look(self, rule: AutoscaleModel, number: int) -> bool:
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
            self._context.env.process(self._bring_up(rule, number, idle[0], serving))
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
        self, rule: AutoscaleModel, number: int, replica: Replica, serving: list[Replica]
    ) -> Generator[simpy.Event, Any, None]:
        """Load the weights of every rank, then serve."""
        context = self._context
        yield context.env.timeout(rule.start_delay)
        keys = self._workload.pools[rule.pool]
        plan = keys.plan
        if rule.weights_from is not None:
            sources = self._host_gpus(rule.weights_from, ("autoscale", number))
        elif serving:
            sources = list(serving[0].plan.devices)
        else:
            sources = []
        flows = []
        for rank, device in enumerate(replica.plan.devices):
            size = weight_bytes_per_rank(
                self._shape, plan, stage=rank // keys.tp, dtype=self._workload.dtype
            )
            source = sources[rank % len(sources)] if sources else device
            if source != device:
                flows.append(
                    Flow(
                        id=f"{context.prefix}{replica.plan.name}.w{len(self.events)}.{rank}",
                        src=source,
                        dst=device,
                        size_bytes=size,
                        tag="weights",
                    )
                )
        yield context.env.all_of([context.engine.send(flow) for flow in flows])
        self._starting.discard(replica)
        self._fleet.active[replica] = True
        self._note(rule, replica, "serve")
        self._fleet.changed()

    def _note(self, rule: AutoscaleModel, replica: Replica, did: str) -> None:
        now = int(self._context.env.now)
        self.events.append(
            {"at_ps": now, "pool": rule.pool, "replica": replica.plan.name, "did": did}
        )
