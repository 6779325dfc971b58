# SPDX-License-Identifier: Apache-2.0
"""Collectives on a fabric as NCCL would run them there.

From the GPUs and NICs of the ranks follow the profiles; from these NCCL's choice of algorithm and
protocol, and the schedule with the latencies and the efficiencies of that protocol.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from railweave.collectives import algorithms
from railweave.collectives.algorithm import Shape
from railweave.collectives.choice import Choice, choose
from railweave.collectives.nccl_model import ALGORITHMS, Box
from railweave.collectives.operations import canonical_op
from railweave.collectives.predict import PAYLOAD, slowness
from railweave.collectives.ring import ring_pieces
from railweave.collectives.select import select_algorithm
from railweave.collectives.traffic import traffic_of
from railweave.collectives.tuned import Tuning, tuned
from railweave.fabric.errors import InputError, nearest_name
from railweave.fabric.nodes import Machines
from railweave.fabric.units import PS_PER_S
from railweave.workloads.replay.placed import placed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.collectives.algorithm import Links
    from railweave.collectives.traffic import Traffic
    from railweave.fabric.graph import Fabric
    from railweave.fabric.profiles import DeviceProfile
    from railweave.fabric.schedule import Schedule

__all__ = ["Nccl", "NcclRun"]

# What plans each of NCCL's algorithms.
_PLANNED: Final = {
    "Ring": "ring",
    "Tree": "host_tree",
    "NVLS": "nvls",
    "NVLSTree": "nvls",
    "PAT": "pat",
    "CollNetDirect": "collnet",
    "CollNetChain": "collnet",
}
_STRIPED: Final = ("ring", "host_tree", "chain")
_MOST_CHANNELS: Final = 64  # NCCL's MAXCHANNELS


@dataclass(frozen=True, kw_only=True)
class NcclRun:
    """One operation, ready to execute.

    Parameters
    ----------
    schedule, devices
        What to execute, on which devices: the ranks, then the switches that take part.
    algorithm, protocol
        As NCCL names them, or railweave where NCCL has no such algorithm.
    before_ps
        What passes besides the schedule: launch, a proxy that wakes up, copies.
    local_idle, net_idle
        How much longer links are held than their bytes need, within and between nodes.
    """

    schedule: Schedule
    devices: list[int]
    algorithm: str
    protocol: str
    before_ps: int
    local_idle: float
    net_idle: float


class Nccl:
    """Plans operations of a group of ranks on a fabric.

    Parameters
    ----------
    fabric, devices
        The fabric, and the GPU of each rank.
    links
        What a message costs there on an idle network; None: the ranks are one.
    profile
        Of the GPUs; None: the one that stands for the first rank's.
    launch
        Launch mode of the profile.

    Raises
    ------
    InputError
        No profile stands for these GPUs, or it does not know the launch mode.
    """

    def __init__(
        self,
        fabric: Fabric,
        devices: Sequence[int],
        *,
        links: Links | None,
        profile: DeviceProfile | None = None,
        launch: str = "nccl-tests",
    ) -> None:
        self.machines = Machines(fabric, devices)
        found = profile or self.machines.profile
        if found is None:
            gpu = fabric.model[devices[0]] or "of unknown make"
            raise InputError(
                f"no device profile stands for GPUs '{gpu}'",
                field="profile",
                expected="the name of a profile, its file, or none",
            )
        self.profile = found
        self.links = links
        self.launch_ps = found.launch(launch)

    @cached_property
    def _shape(self) -> Shape:
        return Shape(self.machines.ranks, tuple(self.machines.node.tolist()))

    @cached_property
    def box(self) -> Box:
        """What NCCL knows of these machines; of nodes that differ, a mean."""
        machines, profile = self.machines, self.profile
        per_node = max(machines.ranks // machines.nodes, 1)
        network = machines.network
        nvls = profile.nvls
        return Box(
            architecture=profile.architecture,
            interconnect=profile.interconnect,
            nodes=machines.nodes,
            gpus_per_node=per_node,
            link_GBps=profile.link_bps(per_node) / 8e9,
            nic_GBps=machines.node_nic_bps / 8e9,
            nvls=nvls is not None and machines.switched,
            reduction=False if network is None else network.reduction,
            nvls_least_ranks=nvls.least_ranks if nvls else 2,
        )

    def run(
        self,
        op: str,
        *,
        size_bytes: int,
        algorithm: str = "auto",
        protocol: str = "auto",
        **options: int | None,
    ) -> NcclRun:
        """Return one operation, planned as NCCL would.

        Parameters
        ----------
        op, size_bytes
            Operation and its full logical buffer.
        algorithm, protocol
            ``auto``; NCCL's names; or an algorithm of `railweave.collectives.plan`, which runs
            under Simple.
        **options
            Of the algorithm, as for `railweave.collectives.plan`.

        Raises
        ------
        InputError
            A name is unknown, or NCCL has no such algorithm here.
        """
        name, chosen = self._chosen(op, size_bytes, algorithm, protocol)
        machines = self.machines
        if name in _STRIPED and options.get("channels") is None and machines.nodes > 1:
            channels = min(machines.least_ranks * machines.nics_per_gpu, _MOST_CHANNELS)
            options["channels"] = channels
            if name == "ring" and options.get("chunk_bytes") is None:
                options["chunks"] = ring_pieces(machines.ranks, channels, size_bytes)
        if canonical_op(op) == "barrier":
            options = {}
        counts = traffic_of(
            op,
            chosen.algorithm if chosen.algorithm in (*ALGORITHMS, "P2P") else "Ring",
            size_bytes=size_bytes,
            nodes=machines.nodes,
            gpus_per_node=self.box.gpus_per_node,
        )
        tuning, local_idle, net_idle = self._tuning(name, chosen, counts)
        links = self.links
        if links is not None:  # pieces are cut for what messages cost under the protocol
            links = tuning.felt(links, across=machines.nodes > 1)
        schedule, devices, node = placed(
            op, machines, size_bytes=size_bytes, algorithm=name, links=links, options=options
        )
        return NcclRun(
            schedule=tuned(schedule, tuning, node=node),
            devices=devices,
            algorithm=chosen.algorithm,
            protocol=chosen.protocol,
            before_ps=self._before_ps(counts),
            local_idle=local_idle,
            net_idle=net_idle,
        )

    def _chosen(
        self, op: str, size_bytes: int, algorithm: str, protocol: str
    ) -> tuple[str, Choice]:
        """Return the algorithm to plan, and what NCCL would call it."""
        plain = algorithm.lower().replace("-", "").replace("_", "")
        named = {one.lower() for one in (*ALGORITHMS, "P2P")}
        known = algorithms(op)
        if algorithm != "auto" and plain not in named:
            if algorithm not in known:
                names = ("auto", *ALGORITHMS, *known)
                raise InputError(
                    f"'{algorithm}' is not an algorithm of {canonical_op(op)}",
                    field="algorithm",
                    expected=" | ".join(names),
                    nearest=nearest_name(algorithm, names),
                )
            if protocol.lower() not in ("auto", "simple"):
                raise InputError(
                    f"NCCL has no {algorithm}, and so no protocols for it",
                    field="protocol",
                    expected="auto | Simple",
                )
            return algorithm, Choice(algorithm=algorithm, protocol="Simple")
        box = self.box
        if plain.startswith("collnet"):  # asked for: what switches reduce is for the user to say
            box = replace(box, reduction=True)
        chosen = choose(op, size_bytes=size_bytes, box=box, algorithm=algorithm, protocol=protocol)
        if chosen.algorithm == "P2P":
            if canonical_op(op) == "all_to_all" and self.machines.nodes > 1:
                return "pxn" if self.machines.switched else "direct", chosen
            return select_algorithm(op, self._shape), chosen
        if canonical_op(op) in ("broadcast", "reduce"):
            return "chain", chosen
        if canonical_op(op) == "barrier":
            return "tree", chosen
        return _PLANNED[chosen.algorithm], chosen

    def _before_ps(self, counts: Traffic) -> int:
        network = self.machines.network
        copy_ps = counts.copy_bytes * 8 * PS_PER_S / self.profile.copy_bps
        return self.launch_ps + round(copy_ps) + (network.base_ps if network else 0)

    def _tuning(self, name: str, chosen: Choice, counts: Traffic) -> tuple[Tuning, float, float]:
        """Return what the protocol does to transfers, and how idle it leaves links."""
        profile, links, protocol = self.profile, self.links, chosen.protocol
        if links is None:
            return Tuning(), 1.0, 1.0
        nvls, payload = profile.nvls, PAYLOAD[protocol]
        root_ps = local_ps = 0
        simple = protocol == "Simple"
        if name == "nvls" and nvls is not None:
            share, ramp = nvls.efficiency, nvls.ramp_bytes
            root_ps = max(nvls.latency_ps - 2 * links.local_alpha_ps, 0)
        elif chosen.algorithm == "P2P":
            share, ramp = profile.efficiency["p2p"], profile.ramp_bytes["p2p"]
            root_ps = max(profile.p2p_ps[protocol] - links.local_alpha_ps, 0)
            payload = 1.0
        else:
            share = profile.efficiency[protocol]
            ramp = profile.ramp_bytes["Simple"] if simple else 0
            local_ps = max(profile.step_ps[protocol] - links.local_alpha_ps, 0)
        # Where a pair of GPUs is joined by more than a box counts on, the box still sets the pace.
        wider = max(links.local_rate_bps / profile.link_bps(self.box.gpus_per_node), 1.0)
        local_idle = slowness(counts.link_bytes, ramp) / share * wider
        net_ps, net_idle, network = 0, 1.0, self.machines.network
        if network is not None:
            net_ps = max(network.step_ps[protocol] - links.alpha_ps, 0)
            each = counts.node_bytes / max(self.machines.node_nics, 1)
            ramp = network.ramp_bytes if simple else 0
            goodput = min(links.rate_bps / self.machines.nic_bps, 1.0)
            net_idle = max(slowness(each, ramp) * goodput / network.efficiency, 1.0)
        tuning = Tuning(
            local_delay_ps=local_ps,
            net_delay_ps=net_ps,
            root_delay_ps=root_ps,
            local_scale=local_idle / payload,
            net_scale=net_idle / PAYLOAD[protocol],
        )
        return tuning, local_idle, net_idle
