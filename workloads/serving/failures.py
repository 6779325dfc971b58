# SPDX-License-Identifier: Apache-2.0
"""What faults of the fabric do to replicas.

A replica is one group: one rank that is lost takes all of it down, with everything that its memory
held. When all of it is back it starts, which takes a delay, loads its weights again, all ranks
together (`railweave.workloads.serving.weights`), and serves. A replica between whose ranks, from
which to another, or from the clients to which nothing can get any more, notices that as late as
routing does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import simpy

from railweave.fabric.errors import UnreachableError
from railweave.fabric.routing import Routing

if TYPE_CHECKING:
    from collections.abc import Generator

    from railweave.fabric.faults import LinkChange
    from railweave.workloads.serving.fleet import Fleet
    from railweave.workloads.serving.frontend import Frontend
    from railweave.workloads.serving.handoff.mover import KvMover
    from railweave.workloads.serving.model import ServingModel
    from railweave.workloads.serving.replica import Replica
    from railweave.workloads.serving.request import Request
    from railweave.workloads.serving.weights import WeightLoader
    from railweave.workloads.workload import WorkloadContext

__all__ = ["Failures", "Outage"]


@dataclass(kw_only=True)
class Outage:
    """A replica that went down.

    Parameters
    ----------
    replica
        Its name.
    down_ps, up_ps
        From when to when it did not serve; -1: to the end.
    requests
        Requests that it had and that were sent again.
    served_ps
        When the last of those had been answered; -1: not all were.
    repaired_ps
        When all of it was back, the last time; -1: it never was.
    loaded
        Where its weights came from, and their bytes on links.
    """

    replica: str
    down_ps: int
    up_ps: int = -1
    requests: int = 0
    served_ps: int = -1
    repaired_ps: int = -1
    loaded: dict[str, Any] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)


class Failures:
    """Watches the faults of a run.

    Parameters
    ----------
    workload, context, fleet, mover, frontend
        What is served, on what.
    loader
        Brings the weights.

    Attributes
    ----------
    outages
        What went down, in order.
    """

    def __init__(
        self,
        workload: ServingModel,
        context: WorkloadContext,
        fleet: Fleet,
        mover: KvMover | None,
        frontend: Frontend,
        loader: WeightLoader,
    ) -> None:
        self._workload, self._context, self._fleet = workload, context, fleet
        self._mover, self._frontend, self._loader = mover, frontend, loader
        self.outages: list[Outage] = []
        self._down: dict[Replica, Outage] = {}
        self._recoveries: dict[Replica, simpy.Process] = {}
        self._split: set[Replica] = set()  # between whose ranks nothing gets
        fabric = context.fabric
        self._up = fabric.link_up.copy()
        self._known = self._up.copy()

    def start(self) -> None:
        """Be told of every change of links."""
        faults = self._context.faults
        for at_ps, group in groupby(faults.changes if faults else (), key=lambda one: one.at_ps):
            changes = list(group)
            if at_ps:
                timer = self._context.env.timeout(at_ps - int(self._context.env.now))
                assert timer.callbacks is not None
                timer.callbacks.append(partial(self._change, changes))

    def _change(self, changes: list[LinkChange], _: simpy.Event) -> None:
        before = self._up.copy()
        for change in changes:
            self._up[change.link] = change.up
        if (before == self._up).all():
            return
        dead = self._dead()
        for replica in self._fleet.replicas:
            gone = bool(dead[list(replica.plan.devices)].any())
            if gone:
                self._fail(replica)
            elif not gone and replica in self._down and replica not in self._split:
                self._repaired(replica)
        self._context.env.process(self._notice())

    def _dead(self) -> Any:
        """Return bool (devices,): those that had links and have none."""
        fabric = self._context.fabric
        ends = (fabric.link_src, fabric.link_dst)
        had = sum(np.bincount(end[fabric.link_up], minlength=fabric.n_devices) for end in ends)
        have = sum(np.bincount(end[self._up], minlength=fabric.n_devices) for end in ends)
        return (np.asarray(had) > 0) & (np.asarray(have) == 0)

    def _fail(self, replica: Replica) -> None:
        """Take a replica down, or keep down one that was on its way back."""
        recovery = self._recoveries.pop(replica, None)
        if recovery is not None and recovery.is_alive:
            recovery.interrupt()
        if replica in self._down:
            return
        outage = Outage(replica=replica.plan.name, down_ps=int(self._context.env.now))
        self._down[replica] = outage
        self.outages.append(outage)
        if replica.up:
            lost = replica.fail()
            outage.waiting = {sequence.request.number for sequence in lost if not sequence.left}
            outage.requests = len(outage.waiting)

    def _repaired(self, replica: Replica) -> None:
        """Bring back a replica whose ranks are all there and reach each other."""
        recovery = self._recoveries.get(replica)
        dead = self._dead()[list(replica.plan.devices)].any()
        if dead or replica in self._split or (recovery is not None and recovery.is_alive):
            return
        self._recoveries[replica] = self._context.env.process(self._recover(replica))

    def _recover(self, replica: Replica) -> Generator[simpy.Event, Any, None]:
        """Start, load the weights, and serve again, if everything stays up meanwhile."""
        outage = self._down[replica]
        outage.repaired_ps = int(self._context.env.now)
        try:
            yield self._context.env.timeout(self._workload.restart_delay)
            outage.loaded = yield from self._loader.load(replica)
        except simpy.Interrupt:
            return
        outage.up_ps = int(self._context.env.now)
        del self._down[replica]
        replica.recover()
        self._fleet.changed()

    def _notice(self) -> Generator[simpy.Event, Any, None]:
        """Find out, when routing has, what cannot reach what."""
        context = self._context
        yield context.env.timeout(context.detection_delay_ps)
        if (self._known == self._up).all():
            return
        self._known = self._up.copy()
        before = context.routing
        left = Routing(
            context.fabric.with_links(up=self._known), policy=before.policy, seed=before.seed
        )
        # When the gateway itself is cut off, nobody can tell a lost server from another.
        front = self._frontend if _joined(left, self._frontend.outside) else None
        for replica in self._fleet.replicas:
            devices = replica.plan.devices
            pairs = [(a, b) for a in devices for b in devices if a != b]
            if front is not None:
                pairs += front.pairs(replica.plan)
            joined = _joined(left, pairs)
            if not joined and replica not in self._split:
                self._split.add(replica)
                self._fail(replica)
            elif joined and replica in self._split:
                self._split.discard(replica)
                self._repaired(replica)
        if self._mover is None:
            return
        flows = self._mover.matrix(1).transfers
        self._fleet.set_cut(
            {
                (source, target)
                for source in self._fleet.pools["prefill"]
                for target in self._fleet.pools["decode"]
                if not _joined(
                    left,
                    [
                        (source.plan.devices[flow.src_rank], target.plan.devices[flow.dst_rank])
                        for flow in flows
                    ],
                )
            }
        )

    def served(self, request: Request) -> None:
        """Note that a request has been answered."""
        for outage in self.outages:
            if request.number in outage.waiting:
                outage.waiting.discard(request.number)
                if not outage.waiting:
                    outage.served_ps = request.last_ps


def _joined(routing: Routing, pairs: list[tuple[int, int]]) -> bool:
    """Return whether each of some pairs of devices has a route."""
    if not pairs:
        return True
    ends = np.array(pairs, np.int32)
    try:
        routing.routes(ends[:, 0].copy(), ends[:, 1].copy(), np.zeros(len(ends), np.int32))
    except UnreachableError:
        return False
    return True
