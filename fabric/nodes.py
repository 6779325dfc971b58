# SPDX-License-Identifier: Apache-2.0
"""Machines as NCCL sees them: nodes are hosts, or hosts that NVSwitches join to one."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric._tables import nvlink_domains
from railweave.fabric.errors import InputError
from railweave.fabric.graph import DeviceKind, LinkModel
from railweave.fabric.profiles import find_network, network_for, profile_for_gpu

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric
    from railweave.fabric.profiles import DeviceProfile, NetworkProfile

__all__ = ["Machines"]


class Machines:
    """The nodes, links and NICs of a group of GPUs.

    Parameters
    ----------
    fabric, devices
        The fabric, and the GPU (or NIC of a bare host) of each rank.
    """

    def __init__(self, fabric: Fabric, devices: Sequence[int]) -> None:
        self.fabric = fabric
        self.devices = [int(device) for device in devices]

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.devices)

    @cached_property
    def _domain(self) -> NDArray[np.int32]:
        return nvlink_domains(self.fabric)

    @cached_property
    def _switch_of_domain(self) -> dict[int, int]:
        """The NVSwitch plane of each NVLink domain that has one."""
        planes = np.flatnonzero(self.fabric.kind == DeviceKind.NVSWITCH)
        return {int(self._domain[plane]): int(plane) for plane in planes[::-1]}

    @cached_property
    def node(self) -> NDArray[np.int32]:
        """Node of each rank, numbered in order of first appearance, int32 (ranks,)."""
        names = []
        for device in self.devices:
            domain = int(self._domain[device])
            host = int(self.fabric.host[device])
            names.append(("d", domain) if domain in self._switch_of_domain else ("h", host))
        number = {name: i for i, name in enumerate(dict.fromkeys(names))}
        return np.array([number[name] for name in names], np.int32)

    @cached_property
    def nodes(self) -> int:
        """Number of nodes."""
        return int(self.node.max(initial=0)) + 1

    @cached_property
    def least_ranks(self) -> int:
        """Ranks of the node that has fewest."""
        return int(np.bincount(self.node).min(initial=self.ranks))

    @cached_property
    def switched(self) -> bool:
        """Whether NVSwitches join the ranks of every node."""
        return all(int(self._domain[device]) in self._switch_of_domain for device in self.devices)

    def with_switches(self, count: int) -> tuple[list[int], NDArray[np.int32]]:
        """Return the devices of the ranks and of ``count`` switches, and the node of each.

        With as many switches as nodes each is the NVSwitch plane of its node.

        Raises
        ------
        InputError
            A node has no NVSwitch, or the ranks of one switch are on several nodes.
        """
        if not count:
            return self.devices, self.node
        if count != self.nodes:
            raise InputError(
                f"NVSwitches do not join {self.nodes} nodes",
                field="algorithm",
                expected="ranks of one NVLink domain, or another algorithm",
            )
        planes = []
        for number in range(self.nodes):
            device = self.devices[int(np.argmax(self.node == number))]
            plane = self._switch_of_domain.get(int(self._domain[device]))
            if plane is None:
                raise InputError(
                    f"'{self.fabric.device_names[device]}' is on no NVSwitch",
                    field="algorithm",
                    expected="GPUs on NVSwitches, or another algorithm",
                )
            planes.append(plane)
        node = np.concatenate((self.node, np.arange(count, dtype=np.int32)))
        return [*self.devices, *planes], node

    def aggregation(self) -> tuple[int, list[int], NDArray[np.int32]]:
        """Return the switches that can reduce what the ranks of each rail send.

        Returns
        -------
        groups, devices, node
            In how many groups of nodes, in order, the leaves of a rail divide them; the ranks'
            devices, then the leaf of each rail and group, and where there are several groups a
            switch above them for each rail; the node of each, that of switches being their own.

        Raises
        ------
        InputError
            Nodes do not divide evenly over leaves, or no switch joins the leaves of a rail.
        """
        rails = self.least_ranks
        leaf = np.array(
            [
                [self._leaf(int(rank)) for rank in np.flatnonzero(self.node == node)[:rails]]
                for node in range(self.nodes)
            ]
        )
        groups = 1 + int((leaf[1:, 0] != leaf[:-1, 0]).sum())
        of = np.arange(self.nodes) * groups // self.nodes
        first = leaf[np.searchsorted(of, np.arange(groups))]
        if self.nodes % groups or (leaf != first[of]).any():
            raise InputError(
                "the nodes do not divide evenly over the leaves of their rails",
                field="algorithm",
                expected="another algorithm",
            )
        devices = [int(first[group, rail]) for rail in range(rails) for group in range(groups)]
        if groups > 1:
            devices += [self._above(first[:, rail], rail) for rail in range(rails)]
        own = self.nodes + np.arange(len(devices), dtype=np.int32)
        return groups, [*self.devices, *devices], np.concatenate((self.node, own))

    def _leaf(self, rank: int) -> int:
        """Return the switch that the first NIC of a rank has its first cable to."""
        fabric, device = self.fabric, self.devices[rank]
        nic = device if fabric.kind[device] == DeviceKind.NIC else int(fabric.gpu_nic[device])
        ptr, links = fabric.out_links
        for link in links[ptr[nic] : ptr[nic + 1]] if nic >= 0 else ():
            if fabric.link_network[link] and fabric.link_up[link]:
                return int(fabric.link_dst[link])
        raise InputError(
            f"'{fabric.device_names[device]}' reaches no switch",
            field="algorithm",
            expected="another algorithm",
        )

    def _above(self, leaves: NDArray[np.int64], rail: int) -> int:
        """Return a switch that all leaves of a rail have cables to, another for each rail."""
        fabric = self.fabric
        ptr, links = fabric.out_links
        common: set[int] | None = None
        for leaf in leaves:
            out = links[ptr[leaf] : ptr[leaf + 1]]
            far = fabric.link_dst[out[fabric.link_network[out] & fabric.link_up[out]]]
            near = set(far[fabric.kind[far] == DeviceKind.SWITCH].tolist())
            common = near if common is None else common & near
        if not common:
            raise InputError(
                "no switch joins the leaves of a rail",
                field="algorithm",
                expected="another algorithm",
            )
        return sorted(common)[rail % len(common)]

    @cached_property
    def profile(self) -> DeviceProfile | None:
        """The device profile that stands for the first rank's GPU, if any does."""
        device = self.devices[0]
        here = (self._domain == self._domain[device]) & (self.fabric.kind == DeviceKind.GPU)
        return profile_for_gpu(self.fabric.model[device], domain=max(int(here.sum()), 1))

    @cached_property
    def _nics(self) -> NDArray[np.int32]:
        """NICs that the ranks of the first node may use."""
        mine = {int(self.fabric.host[d]) for d, n in zip(self.devices, self.node, strict=True)
                if n == 0}  # fmt: skip
        nics = self.fabric.nics[~self.fabric.front_end[self.fabric.nics]]
        return nics[np.isin(self.fabric.host[nics], sorted(mine))]

    @cached_property
    def nics_per_gpu(self) -> int:
        """NICs for each GPU of the first node, at least 1."""
        hosts = np.unique(self.fabric.host[self._nics])
        gpus = int(np.isin(self.fabric.host[self.fabric.gpus], hosts).sum())
        return max(len(self._nics) // max(gpus, 1), 1)

    @cached_property
    def node_nics(self) -> int:
        """NICs over which the ranks of the first node send."""
        first = int((self.node == 0).sum())
        return min(len(self._nics), first * self.nics_per_gpu)

    @cached_property
    def _nic_link(self) -> int:
        """The first link from a NIC of the first node into the network, -1: none."""
        out = np.isin(self.fabric.link_src, self._nics) & self.fabric.link_network
        found = np.flatnonzero(out)
        return int(found[0]) if len(found) else -1

    @cached_property
    def nic_bps(self) -> int:
        """Line rate of a NIC over all of its cables, bit/s; 0 where there is no NIC."""
        if self._nic_link < 0:
            return 0
        fabric, nic = self.fabric, self.fabric.link_src[self._nic_link]
        return int(fabric.link_rate_bps[(fabric.link_src == nic) & fabric.link_network].sum())

    @property
    def node_nic_bps(self) -> int:
        """Line rate of the NICs over which the ranks of the first node send, bit/s."""
        return self.node_nics * self.nic_bps

    @cached_property
    def network(self) -> NetworkProfile | None:
        """The profile of the network between the nodes; None where there is one node."""
        if self.nodes == 1 or self._nic_link < 0:
            return None
        fabric = self.fabric
        make = fabric.model[fabric.link_src[self._nic_link]]
        if make.startswith("efa"):
            return find_network(make)
        infiniband = fabric.link_model[self._nic_link] == LinkModel.INFINIBAND
        return network_for("infiniband" if infiniband else "roce", self.nic_bps)
