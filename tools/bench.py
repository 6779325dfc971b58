# SPDX-License-Identifier: Apache-2.0
"""Time a collective at one size after another, as nccl-tests does, on an emulated fabric."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from railweave.fabric.errors import InputError, StalledError
from railweave.fabric.words import plural

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.collectives.algorithm import Links
    from railweave.fabric.engine import CollectiveRecord
    from railweave.fabric.schedule import Schedule
    from railweave.workloads.replay.nccl import Nccl, NcclRun

__all__ = ["Bench", "BenchRow"]

_FLAGS: Final = {
    "algorithm": "--algorithm",
    "channels": "--channels",
    "chunk_bytes": "--chunk",
    "chunks": "--chunk",
    "slots": "--slots",
    "root": "--root",
    "protocol": "--protocol",
    "profile": "--profile",
    "launch": "--launch",
}


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """One size: times in ps, rates in byte/s.

    ``wire_Bps`` is what the busiest link carried, headers included, over the time; ``busiest`` its
    name and ``busiest_bps`` its rate. With a profile the time is that of NCCL's launch, protocol
    and schedule, and ``algorithm`` and ``protocol`` are as NCCL names them.
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
    protocol: str = ""


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
    profile
        A device profile by name or file, ``auto`` for the one that stands for the GPUs (if any
        does), or ``none``: transfers cost what the network does, nothing for launch and protocol.
    protocol, launch
        Protocol and launch mode under a profile.
    iterations, warmup
        How often the operation runs, one after another, and how often before that; the time is
        the mean.
    policy, qps, qp_mode, seed
        Routing policy, queue pairs per connection, whether they ``split`` each message or take
        messages in turn (``round-robin``), seed of the routing hash.

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
        profile: str = "none",
        protocol: str = "auto",
        launch: str = "nccl-tests",
        iterations: int = 1,
        warmup: int = 0,
        engine: str = "fluid",
        policy: str = "ecmp",
        qps: int = 1,
        qp_mode: str = "split",
        seed: int = 1,
    ) -> None:
        from railweave.collectives import canonical_op

        self.op = canonical_op(op)  # before anything heavy is imported or built
        from railweave.fabric.engine import FabricEnvironment
        from railweave.fabric.engines import make_engine
        from railweave.fabric.network_model import network_settings
        from railweave.fabric.nodes import Machines
        from railweave.fabric.routing import Routing
        from railweave.topologies.load import build_topology, load_topology
        from railweave.workloads.replay.links import links_between, renamed

        spec = load_topology(topology)
        self.fabric = build_topology(spec)
        gpus = len(self.fabric.gpus)
        self.ranks = gpus if ranks is None else ranks
        if not 1 <= self.ranks <= gpus:
            raise InputError(
                f"{self.ranks} ranks do not fit on the {plural(gpus, 'GPU')} of {self.fabric.name}",
                field="--ranks",
                expected=f"1 to {gpus}",
            )
        self.algorithm, self.protocol = algorithm, protocol
        self.iterations, self.warmup = iterations, warmup
        self._asked_op = op
        self._options = {
            "channels": channels, "chunk_bytes": chunk_bytes, "slots": slots, "root": root
        }  # fmt: skip
        self._links: Links | None = None
        self._nccl: Nccl | None = None
        self._devices = [int(gpu) for gpu in self.fabric.gpus[: self.ranks]]
        self._hosts = [int(host) for host in self.fabric.host[self._devices]]
        self._machines = Machines(self.fabric, self._devices)
        self._nccl = self._under_profile(profile, launch)
        self._plan(1)  # a wrong algorithm is said before anything is printed
        self._env = FabricEnvironment()
        routing = Routing(self.fabric, policy=policy, seed=seed)
        settings = network_settings(spec.network)
        try:
            self._engine = make_engine(
                engine, self._env, self.fabric, routing, settings, qps=qps, qp_mode=qp_mode
            )
        except InputError as error:
            raise renamed(error, {"qp_mode": "--qp-mode"}) from None
        nodes = self._hosts if self._nccl is None else self._nccl.machines.node.tolist()
        self._links = links_between(self._engine, self._devices, nodes)
        if self._nccl is not None:
            self._nccl.links = self._links

    @property
    def profile_name(self) -> str:
        """Name of the device profile in use, ``none`` without one."""
        return "none" if self._nccl is None else self._nccl.profile.name

    @property
    def network_name(self) -> str:
        """Name of the network profile in use, empty without one."""
        network = None if self._nccl is None else self._nccl.machines.network
        return "" if network is None else network.name

    def _under_profile(self, profile: str, launch: str) -> Nccl | None:
        """Return what plans as NCCL would, None without a profile."""
        from railweave.workloads.replay.links import renamed

        if profile == "none":
            return None
        from railweave.fabric.profiles import load_profile
        from railweave.workloads.replay.nccl import Nccl

        if profile == "auto" and self._machines.profile is None:
            return None
        try:
            found = None if profile == "auto" else load_profile(profile)
            return Nccl(self.fabric, self._devices, links=None, profile=found, launch=launch)
        except InputError as error:
            raise renamed(error, _FLAGS) from None

    def _plan(self, size_bytes: int) -> NcclRun:
        from railweave.workloads.replay.links import renamed
        from railweave.workloads.replay.nccl import NcclRun
        from railweave.workloads.replay.placed import placed

        try:
            if self._nccl is not None:
                return self._nccl.run(
                    self._asked_op,
                    size_bytes=size_bytes,
                    algorithm=self.algorithm,
                    protocol=self.protocol,
                    **self._options,
                )
            if self.protocol != "auto":
                raise InputError(
                    "without a device profile there are no protocols",
                    field="protocol",
                    expected="auto, or --profile",
                )
            schedule, devices, _ = placed(
                self._asked_op,
                self._machines,
                size_bytes=size_bytes,
                algorithm=self.algorithm,
                hosts=self._hosts,
                links=self._links,
                options=self._options,
            )
        except InputError as error:
            raise renamed(error, _FLAGS) from None
        return NcclRun(
            schedule=schedule,
            devices=devices,
            algorithm=schedule.algorithm,
            protocol="",
            before_ps=0,
            local_idle=1.0,
            net_idle=1.0,
        )

    def _execute(self, schedule: Schedule, devices: list[int], repeat: int) -> CollectiveRecord:
        """Run a schedule some times in a row, alone on the fabric."""
        done = self._engine.execute(schedule, devices, tag=self.op, repeat=repeat)
        try:
            self._env.run(until=done)
        except RuntimeError:  # SimPy: no event is left
            if done.triggered:
                raise
            reasons = "; ".join(self._engine.waiting()[:3])
            raise StalledError(
                f"{self.op} does not end within the time that a run can last: {reasons}"
            ) from None
        return cast("CollectiveRecord", done.value)

    def run(self, size_bytes: int) -> BenchRow:
        """Execute the operation once, alone on the fabric.

        Raises
        ------
        PhysicsError
            The result beats its own bound.
        """
        from railweave.collectives import algorithm_bandwidth_Bps, bus_bandwidth_Bps

        run = self._plan(size_bytes)
        schedule, devices, before_ps = run.schedule, run.devices, run.before_ps
        idle = np.where(self._local_links, run.local_idle, run.net_idle)
        if self.warmup:
            self._execute(schedule, devices, self.warmup)
        before = self._engine.counters().wire_bytes.copy()
        record = self._execute(schedule, devices, self.iterations)
        took_ps = (record.end_ps - record.start_ps) // self.iterations
        bound_ps = record.bound_ps // self.iterations
        self._engine.check_bound(f"{self.op} of {size_bytes} B", took_ps=took_ps, bound_ps=bound_ps)
        took_ps += before_ps
        carried = (self._engine.counters().wire_bytes - before) / self.iterations / idle
        busiest = int(np.argmax(carried / self.fabric.link_rate_bps))
        return BenchRow(
            size_bytes=size_bytes,
            time_ps=took_ps,
            bound_ps=bound_ps + before_ps,
            algorithm_Bps=algorithm_bandwidth_Bps(size_bytes, took_ps),
            bus_Bps=bus_bandwidth_Bps(
                self.op, ranks=self.ranks, size_bytes=size_bytes, time_ps=took_ps
            ),
            wire_Bps=algorithm_bandwidth_Bps(int(carried[busiest]), took_ps),
            algorithm=run.algorithm,
            protocol=run.protocol,
            busiest=self.fabric.link_name(busiest),
            busiest_bps=int(self.fabric.link_rate_bps[busiest]),
        )

    @cached_property
    def _local_links(self) -> NDArray[np.bool_]:
        """Which links carry what stays in a node, bool (links,); of PCIe where there is one."""
        from railweave.fabric.graph import LinkModel

        fabric = self.fabric
        one = self._nccl is None or self._nccl.machines.nodes == 1
        local = fabric.link_model == LinkModel.NVLINK
        return np.asarray(local | ((fabric.link_model == LinkModel.PCIE) & one))
