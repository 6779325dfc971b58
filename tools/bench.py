# SPDX-License-Identifier: Apache-2.0
"""Time a collective at one size after another, as nccl-tests does, on an emulated fabric."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from railweave.fabric.errors import InputError, StalledError

if TYPE_CHECKING:
    from railweave.collectives.algorithm import Links
    from railweave.fabric.engine import CollectiveRecord
    from railweave.fabric.schedule import Schedule

__all__ = ["Bench", "BenchRow"]

_FLAGS: Final = {
    "algorithm": "--algorithm",
    "channels": "--channels",
    "chunk_bytes": "--chunk",
    "chunks": "--chunk",
    "slots": "--slots",
    "root": "--root",
}


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """One size: times in ps, rates in byte/s.

    ``wire_Bps`` is what the busiest link carried, headers included, over the time; ``busiest`` its
    name and ``busiest_bps`` its rate.
    """

    size_bytes: int
    time_ps: int
    bound_ps: int
    algorithm_Bps: float
    bus_Bps: float
    wire_Bps: float
    algorithm: str
    busiest: str
    busiest_bps: int


class Bench:
    """A fabric with an engine on it, ready to time one operation.

    Parameters
    ----------
    op
        Operation, by any of its names.
    topology
        A topology file or the name of a shipped design.
    ranks
        Number of ranks, on the first GPUs in host order; None: all GPUs.
    algorithm
        One of the operation's algorithms, or ``auto``.
    channels, chunk_bytes, slots, root
        Options of the algorithm, as for `railweave.collectives.plan`; None: its defaults.
    engine
        ``analytic`` or ``fluid``.
    policy, qps, seed
        Routing policy, queue pairs per flow, seed of the routing hash.

    Raises
    ------
    InputError
        A name is unknown, or there are more ranks than GPUs.
    """

    def __init__(
        self,
        op: str,
        *,
        topology: str,
        ranks: int | None = None,
        algorithm: str = "auto",
        channels: int | None = None,
        chunk_bytes: int | None = None,
        slots: int | None = None,
        root: int | None = None,
        engine: str = "fluid",
        policy: str = "ecmp",
        qps: int = 1,
        seed: int = 1,
    ) -> None:
        from railweave.collectives import canonical_op, plan

        self.op = canonical_op(op)  # before anything heavy is imported or built
        from railweave.fabric.engine import FabricEnvironment
        from railweave.fabric.engines import make_engine
        from railweave.fabric.network_model import network_settings
        from railweave.fabric.routing import Routing
        from railweave.topologies.load import build_topology, load_topology
        from railweave.workloads.replay.collective import links_between

        spec = load_topology(topology)
        self.fabric = build_topology(spec)
        gpus = len(self.fabric.gpus)
        self.ranks = gpus if ranks is None else ranks
        if not 1 <= self.ranks <= gpus:
            raise InputError(
                f"{self.ranks} ranks do not fit on the {gpus} GPUs of {self.fabric.name}",
                field="--ranks",
                expected=f"1 to {gpus}",
            )
        self.algorithm = algorithm
        self._planned = partial(
            plan, op, channels=channels, chunk_bytes=chunk_bytes, slots=slots, root=root
        )
        self._links: Links | None = None
        self._devices = [int(gpu) for gpu in self.fabric.gpus[: self.ranks]]
        self._hosts = [int(host) for host in self.fabric.host[self._devices]]
        self._plan(0)  # a wrong algorithm is said before anything is printed
        self._env = FabricEnvironment()
        routing = Routing(self.fabric, policy=policy, seed=seed)
        settings = network_settings(spec.network)
        self._engine = make_engine(engine, self._env, self.fabric, routing, settings, qps=qps)
        self._links = links_between(self._engine, self._devices, self._hosts)

    def _plan(self, size_bytes: int) -> Schedule:
        from railweave.workloads.replay.collective import renamed

        try:
            return self._planned(
                ranks=self.ranks,
                size_bytes=size_bytes,
                algorithm=self.algorithm,
                hosts=self._hosts,
                links=self._links,
            )
        except InputError as error:
            raise renamed(error, _FLAGS) from None

    def run(self, size_bytes: int) -> BenchRow:
        """Execute the operation once, alone on the fabric.

        Raises
        ------
        PhysicsError
            The result beats its own bound.
        """
        from railweave.collectives import algorithm_bandwidth_Bps, bus_bandwidth_Bps

        schedule = self._plan(size_bytes)
        before = self._engine.counters().wire_bytes.copy()
        done = self._engine.execute(schedule, self._devices, tag=self.op)
        try:
            self._env.run(until=done)
        except RuntimeError:  # SimPy: no event is left
            if done.triggered:
                raise
            reasons = "; ".join(self._engine.waiting()[:3])
            raise StalledError(
                f"{self.op} of {size_bytes} B does not end within the time that a run can "
                f"last: {reasons}"
            ) from None
        record = cast("CollectiveRecord", done.value)
        took_ps = record.end_ps - record.start_ps
        self._engine.check_bound(
            f"{self.op} of {size_bytes} B", took_ps=took_ps, bound_ps=record.bound_ps
        )
        carried = self._engine.counters().wire_bytes - before
        busiest = int(np.argmax(carried / self.fabric.link_rate_bps))
        return BenchRow(
            size_bytes=size_bytes,
            time_ps=took_ps,
            bound_ps=record.bound_ps,
            algorithm_Bps=algorithm_bandwidth_Bps(size_bytes, took_ps),
            bus_Bps=bus_bandwidth_Bps(
                self.op, ranks=self.ranks, size_bytes=size_bytes, time_ps=took_ps
            ),
            wire_Bps=algorithm_bandwidth_Bps(int(carried[busiest]), took_ps),
            algorithm=schedule.algorithm,
            busiest=self.fabric.link_name(busiest),
            busiest_bps=int(self.fabric.link_rate_bps[busiest]),
        )
