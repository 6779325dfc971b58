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
    from railweave.workloads.serving.groups import Group
    from railweave.workloads.serving.handoff.mover import KvMover
    from railweave.workloads.serving.model import ServingModel
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
        self._down: dict[Group, Outage] = {}
        self._recoveries: dict[Group, simpy.Process] = {}
        self._split: set[Group] = set()  # between whose ranks nothing gets
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
        for group in self._groups():
            if dead[list(group.devices)].any():
                self._fail(group)
            elif group in self._down and group not in self._split:
                self._repaired(group)
        self._context.env.process(self._notice())

    def _groups(self) -> list[Group]:
        return [group for groups in self._fleet.groups.values() for group in groups]

    def _dead(self) -> Any:
        """Return bool (devices,): those that had links and have none."""
        fabric = self._context.fabric
        ends = (fabric.link_src, fabric.link_dst)
        had = sum(np.bincount(end[fabric.link_up], minlength=fabric.n_devices) for end in ends)
        have = sum(np.bincount(end[self._up], minlength=fabric.n_devices) for end in ends)
        return (np.asarray(had) > 0) & (np.asarray(have) == 0)

    def _fail(self, group: Group) -> None:
        """Take a replica down, or keep down one that was on its way back."""
        recovery = self._recoveries.pop(group, None)
        if recovery is not None and recovery.is_alive:
            recovery.interrupt()
        if group in self._down:
            return
        outage = Outage(replica=group.name, down_ps=int(self._context.env.now))
        self._down[group] = outage
        self.outages.append(outage)
        if group.up:
            lost = group.fail()
            outage.waiting = {sequence.request.number for sequence in lost if not sequence.left}
            outage.requests = len(outage.waiting)

    def _repaired(self, group: Group) -> None:
        """Bring back a replica whose ranks are all there and reach each other."""
        recovery = self._recoveries.get(group)
        dead = self._dead()[list(group.devices)].any()
        if dead or group in self._split or (recovery is not None and recovery.is_alive):
            return
        self._recoveries[group] = self._context.env.process(self._recover(group))

    def _recover(self, group: Group) -> Generator[simpy.Event, Any, None]:
        """Start, load the weights, and serve again, if everything stays up meanwhile."""
        outage = self._down[group]
        outage.repaired_ps = int(self._context.env.now)
        try:
            yield self._context.env.timeout(self._workload.restart_delay)
            outage.loaded = yield from self._loader.load(group)
        except simpy.Interrupt:
            return
        outage.up_ps = int(self._context.env.now)
        del self._down[group]
        group.recover()
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
        for group in self._groups():
            pairs = group.members[0].plan.pairs  # all of a group have the same
            if front is not None:
                pairs += [pair for one in group.members for pair in front.pairs(one.plan)]
            joined = _joined(left, pairs)
            if not joined and group not in self._split:
                self._split.add(group)
                self._fail(group)
            elif joined and group in self._split:
                self._split.discard(group)
                self._repaired(group)
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
