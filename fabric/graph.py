# SPDX-License-Identifier: Apache-2.0
"""The Fabric: devices and directed links as index arrays, and the same as a frozen NetworkX graph.

Every cable is two links, one per direction: cable ``c`` is links ``2c`` and ``2c + 1``, so the
other direction of link ``l`` is ``l ^ 1``. Parallel cables are separate links, so they count in
capacity, in equal-cost sets and in the bill of cables.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.fabric._bulk import Table, copied_names, copy_fabric
from railweave.fabric.errors import InputError, nearest_name
from railweave.fabric.kinds import DeviceKind, LinkModel
from railweave.fabric.words import plural

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import networkx as nx
    from numpy.typing import ArrayLike, NDArray

__all__ = ["DeviceKind", "Fabric", "FabricBuilder", "LinkModel"]


@dataclass(frozen=True, eq=False)
class Fabric:
    """A frozen fabric: ``n`` devices and ``m`` directed links.

    Build one with `FabricBuilder`; derive a degraded one with `with_links`.

    Parameters
    ----------
    name
        The name of the topology.
    device_names
        Names such as ``h3/gpu5``, ``leaf0.r2``, in dense index order.
    kind, host, index, tier, group, rail
        int32 (n,): `DeviceKind`; dense host number or -1; number of the part inside its host or
        of the switch inside its tier; switch tier (1 leaf, 2 spine, 3 core; 0 host parts; -1 a
        switch without a tier); group (scalable unit or pod) or -1; rail of a leaf or NIC, or -1.
    model
        Catalogue name of each device.
    host_names
        Names of the hosts, in dense host order.
    link_src, link_dst, link_src_port, link_dst_port
        int32 (m,): device and port number at both ends.
    link_rate_bps, link_delay_ps
        int64 (m,): rate of this direction; propagation including the PHY constant.
    link_model
        int32 (m,): `LinkModel`.
    link_tier
        Tier class of each link: ``nvlink``, ``pcie``, ``host-leaf``, ``leaf-spine``,
        ``spine-core``, ``link``, or ``front-end`` in a service's network of its own.
    link_up
        bool (m,): False where the link was taken out of service.
    gpu_nic
        int32 (n,): device index of the affine NIC of a GPU (same PCIe switch), else -1.
    meta
        What the builder wants to remember (kind, declared oversubscription, ...).
    """

    name: str
    device_names: tuple[str, ...]
    kind: NDArray[np.int32]
    host: NDArray[np.int32]
    index: NDArray[np.int32]
    tier: NDArray[np.int32]
    group: NDArray[np.int32]
    rail: NDArray[np.int32]
    model: tuple[str, ...]
    host_names: tuple[str, ...]
    link_src: NDArray[np.int32]
    link_dst: NDArray[np.int32]
    link_src_port: NDArray[np.int32]
    link_dst_port: NDArray[np.int32]
    link_rate_bps: NDArray[np.int64]
    link_delay_ps: NDArray[np.int64]
    link_model: NDArray[np.int32]
    link_tier: tuple[str, ...]
    link_up: NDArray[np.bool_]
    gpu_nic: NDArray[np.int32]
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        parts = (
            plural(len(self.gpus), "GPU"),
            plural(len(self.host_names), "host"),
            plural(self.n_links // 2, "cable"),
        )
        return f"<Fabric {self.name}: {', '.join(parts)}>"

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return len(self.device_names)

    @property
    def n_links(self) -> int:
        """Number of directed links (twice the number of cables)."""
        return len(self.link_src)

    @cached_property
    def gpus(self) -> NDArray[np.int32]:
        """Device indices of all GPUs, in host order: rank r sits on ``gpus[r]`` by default."""
        return np.flatnonzero(self.kind == DeviceKind.GPU).astype(np.int32)

    @cached_property
    def nics(self) -> NDArray[np.int32]:
        """Device indices of all NICs in file order; NIC k has address 10.0.0.0 + k."""
        return np.flatnonzero(self.kind == DeviceKind.NIC).astype(np.int32)

    @cached_property
    def front_end(self) -> NDArray[np.bool_]:
        """Bool (n,): whether a device belongs to the front-end network, apart from the GPUs'."""
        links = np.array([tier == "front-end" for tier in self.link_tier], np.bool_)
        found = np.zeros(self.n_devices, np.bool_)
        found[self.link_src[links]] = True
        return found

    @cached_property
    def switches(self) -> NDArray[np.int32]:
        """Device indices of the network switches; switch k has hash identity k."""
        return np.flatnonzero(self.kind == DeviceKind.SWITCH).astype(np.int32)

    @cached_property
    def link_network(self) -> NDArray[np.bool_]:
        """Bool (m,): whether frames cross the link (it is not NVLink or PCIe)."""
        return self.link_model >= LinkModel.ROCE_LOSSLESS

    @cached_property
    def forwards(self) -> NDArray[np.bool_]:
        """Bool (n,): whether a device inside a host passes bytes on, links down or not.

        NVSwitches and PCIe switches do. A CPU root does in hosts without NVLink, and where a GPU
        reaches its NIC through it (the NIC sits on another PCIe switch, or either on the root).
        In other hosts nothing crosses it: GPUs that NVLink no longer joins use their NICs, which
        are faster than the way through a CPU, as in NCCL (``ncclTopoCheckNet``).
        """
        passes = np.isin(self.kind, (DeviceKind.NVSWITCH, DeviceKind.PCIE_SWITCH))
        cpus = np.flatnonzero(self.kind == DeviceKind.CPU)
        if not len(cpus):
            return passes
        src, dst = self.link_src, self.link_dst
        pcie = (self.link_model == LinkModel.PCIE) & (self.kind[dst] != DeviceKind.CPU)
        beside = np.full(self.n_devices, -1, np.int32)
        beside[src[pcie]] = dst[pcie]
        nic = self.gpu_nic[self.gpus]
        near = (beside[self.gpus] == nic) | (beside[self.gpus] == beside[nic])
        far = self.gpus[(nic >= 0) & ~((beside[self.gpus] >= 0) & near)]
        nvlink = src[self.link_model == LinkModel.NVLINK]
        joined = np.zeros(len(self.host_names) + 1, np.bool_)  # [-1]: outside hosts
        joined[self.host[nvlink]] = True
        joined[self.host[far]] = False
        passes[cpus] = ~joined[self.host[cpus]]
        return passes

    @cached_property
    def link_used(self) -> NDArray[np.bool_]:
        """Bool (m,): whether flows may cross the link: all but those of an idle CPU root."""
        idle = (self.kind == DeviceKind.CPU) & ~self.forwards
        return np.asarray(~(idle[self.link_src] | idle[self.link_dst]))

    @cached_property
    def device_index(self) -> Mapping[str, int]:
        """Device name -> dense index."""
        return {name: i for i, name in enumerate(self.device_names)}

    @cached_property
    def host_index(self) -> Mapping[str, int]:
        """Host name -> dense number."""
        return {name: i for i, name in enumerate(self.host_names)}

    @cached_property
    def out_links(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """CSR ``(ptr, links)`` of the links leaving each device, by (peer index, port)."""
        order = np.lexsort((self.link_src_port, self.link_dst, self.link_src)).astype(np.int32)
        ptr = np.zeros(self.n_devices + 1, np.int32)
        np.cumsum(np.bincount(self.link_src, minlength=self.n_devices), out=ptr[1:])
        return ptr, order

    def device(self, name: str) -> int:
        """Return the index of a device; an unknown name raises with the nearest one."""
        found = self.device_index.get(name)
        if found is None:
            names = (*self.device_names, *self.host_names)
            raise InputError(
                f"'{name}' is not a device of {self.name}", nearest=nearest_name(name, names)
            )
        return found

    def parts(self, host: str, kind: DeviceKind) -> list[int]:
        """Return the device indices of one kind in a host, in order."""
        number = self.host_index[host]
        return [int(i) for i in np.flatnonzero((self.host == number) & (self.kind == kind))]

    def nics_of(self, host: str) -> list[int]:
        """Return the device indices of a host's NICs, in order, without that of its front end."""
        found = self.parts(host, DeviceKind.NIC)
        return found if len(found) < 2 else [nic for nic in found if not self.front_end[nic]]

    def endpoint(self, name: str) -> int:
        """Return the device where a flow named ``name`` starts or ends.

        A GPU or NIC stands for itself; a bare host for its only NIC.

        Raises
        ------
        InputError
            Unknown name; a host with several NICs; a device that neither sends nor receives.
        """
        if name in self.host_index:
            nics = self.nics_of(name)
            if len(nics) == 1:
                return nics[0]
            listed = ", ".join(self.device_names[i] for i in nics)
            raise InputError(f"host '{name}' has {len(nics)} NICs", expected=f"one of {listed}")
        found = self.device(name)
        if self.kind[found] not in (DeviceKind.GPU, DeviceKind.NIC):
            raise InputError(f"'{name}' cannot send or receive", expected="a GPU, a NIC or a host")
        return found

    def link_name(self, link: int) -> str:
        """Return the name of one direction of a cable: ``leaf0.r0:33>spine1:0``."""
        src, dst = self.device_names[self.link_src[link]], self.device_names[self.link_dst[link]]
        return f"{src}:{self.link_src_port[link]}>{dst}:{self.link_dst_port[link]}"

    def cable_name(self, link: int) -> str:
        """Return the name of the cable of a link: ``leaf0.r0:33-spine1:0``."""
        return self.link_name(link & ~1).replace(">", "-")

    def with_links(
        self,
        *,
        up: NDArray[np.bool_] | None = None,
        rate_bps: NDArray[np.int64] | None = None,
    ) -> Fabric:
        """Return a copy with other link states or rates."""
        return replace(
            self,
            link_up=self.link_up if up is None else up,
            link_rate_bps=self.link_rate_bps if rate_bps is None else rate_bps,
        )

    @cached_property
    def graph(self) -> nx.MultiDiGraph:
        """The fabric as a frozen ``networkx.MultiDiGraph``.

        Nodes are device names with ``kind, host, tier, group, rail, model``; edges are links,
        keyed by link name, with ``link, rate_bps, delay_ps, model, tier, up``.
        """
        from railweave.fabric._networkx import frozen_graph

        return frozen_graph(self)


class FabricBuilder:
    """Collects hosts, devices and cables, then freezes them into a `Fabric`.

    Ports are numbered per device from 0 in the order cables are added, unless given.

    Examples
    --------
    >>> build = FabricBuilder("pair")
    >>> host = build.add_host("h0")
    >>> nic = build.add_device("h0/nic0", DeviceKind.NIC, host=host)
    >>> switch = build.add_device("s1", DeviceKind.SWITCH, tier=1)
    >>> _ = build.add_cable(nic, switch, rate_bps=400 * 10**9, delay_ps=500_000,
    ...                     model=LinkModel.ROCE_LOSSLESS, tier="host-leaf")
    >>> build.finish().link_name(0)
    'h0/nic0:0>s1:0'
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._hosts: list[str] = []
        self._names: list[str] = []
        self._devices = Table(6)
        self._models: list[str] = []
        self._cables = Table(7)
        self._cable_tiers: list[str] = []
        self._next_port: list[int] = []
        self._affine: list[int] = []

    def add_host(self, name: str) -> int:
        """Add a host and return its number."""
        self._hosts.append(name)
        return len(self._hosts) - 1

    def add_device(
        self,
        name: str,
        kind: DeviceKind,
        *,
        host: int = -1,
        index: int = 0,
        tier: int | None = None,
        group: int = -1,
        rail: int = -1,
        model: str = "",
    ) -> int:
        """Add a device and return its dense index."""
        if tier is None:
            tier = 0 if host >= 0 else -1
        self._names.append(name)
        self._devices.append((kind, host, index, tier, group, rail))
        self._models.append(model)
        self._next_port.append(0)
        self._affine.append(-1)
        return len(self._names) - 1

    def set_affine_nic(self, gpu: int, nic: int) -> None:
        """Say which NIC a GPU uses."""
        self._affine[gpu] = nic

    def add_cable(
        self,
        a: int,
        b: int,
        *,
        rate_bps: int,
        delay_ps: int,
        model: LinkModel,
        tier: str = "link",
        a_port: int | None = None,
        b_port: int | None = None,
    ) -> int:
        """Join two devices by one cable (two links) and return the number of the link ``a > b``."""
        ports = []
        for device, port in ((a, a_port), (b, b_port)):
            number = self._next_port[device] if port is None else port
            self._next_port[device] = max(self._next_port[device], number + 1)
            ports.append(number)
        self._cables.append((a, b, ports[0], ports[1], rate_bps, delay_ps, model))
        self._cable_tiers.append(tier)
        return 2 * len(self._cables) - 2

    def add_cables(
        self,
        a: ArrayLike,
        b: ArrayLike,
        *,
        a_port: ArrayLike,
        b_port: ArrayLike,
        rate_bps: ArrayLike,
        delay_ps: int,
        model: LinkModel,
        tier: str = "link",
    ) -> None:
        """Add many cables at once, as `add_cable` would one by one.

        Parameters
        ----------
        a, b, a_port, b_port
            (n,) or one for all: devices and their ports.
        rate_bps
            (n,) or one for all: rate of each cable in bit/s.
        delay_ps, model, tier
            As in `add_cable`, for all of them.
        """
        rows = np.broadcast_arrays(a, b, a_port, b_port, rate_bps, delay_ps, int(model))
        self._cables.extend(np.stack([np.atleast_1d(row) for row in rows], axis=1))
        self._cable_tiers.extend([tier] * rows[0].size)
        for device, port in ((rows[0], rows[2]), (rows[1], rows[3])):
            free = np.zeros(len(self._names), np.int64)
            np.maximum.at(free, device, port + 1)
            for used in np.unique(device).tolist():
                self._next_port[used] = max(self._next_port[used], int(free[used]))

    def add_copies(
        self,
        like: Fabric,
        names: Sequence[str],
        *,
        hosts: Sequence[str] | None = None,
        group: ArrayLike = -1,
    ) -> NDArray[np.int32]:
        """Add copies of a small fabric, such as one host or one rack.

        Parameters
        ----------
        like
            What to copy. The names of its devices start with that of their host, or, outside
            hosts, with its own.
        names
            Name of each copy.
        hosts
            Names of all hosts, copy by copy (default: ``names``, where each copy is a host).
        group
            (copies,) or one for all: group of the devices of each copy.

        Returns
        -------
        int32, shape (copies, devices): the dense index of each device of ``like`` in each copy.
        """
        count, hosts = len(names), names if hosts is None else hosts
        copies = copy_fabric(
            like, count, first_device=len(self._names), first_host=len(self._hosts)
        )
        copies.devices[:, 4] = np.repeat(np.broadcast_to(group, count), like.n_devices)
        self._names.extend(copied_names(like, names, hosts))
        self._hosts.extend(hosts)
        self._models.extend(like.model * count)
        self._devices.extend(copies.devices)
        self._affine.extend(copies.affine.tolist())
        self._next_port.extend(copies.free_ports.tolist())
        self._cables.extend(copies.cables)
        self._cable_tiers.extend(like.link_tier[::2] * count)
        return copies.numbers

    def finish(self, **meta: Any) -> Fabric:
        """Freeze what was collected; ``meta`` is kept with the fabric."""
        devices = self._devices.columns().astype(np.int32)
        a, b, a_port, b_port, rate_bps, delay_ps, model = self._cables.columns()

        def both(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int32]:
            return np.stack((one, other), axis=1).reshape(-1).astype(np.int32)

        return Fabric(
            name=self.name,
            device_names=tuple(self._names),
            kind=devices[0],
            host=devices[1],
            index=devices[2],
            tier=devices[3],
            group=devices[4],
            rail=devices[5],
            model=tuple(self._models),
            host_names=tuple(self._hosts),
            link_src=both(a, b),
            link_dst=both(b, a),
            link_src_port=both(a_port, b_port),
            link_dst_port=both(b_port, a_port),
            link_rate_bps=np.repeat(rate_bps, 2),
            link_delay_ps=np.repeat(delay_ps, 2),
            link_model=np.repeat(model, 2).astype(np.int32),
            link_tier=tuple(np.repeat(np.array(self._cable_tiers, object), 2).tolist()),
            link_up=np.ones(2 * len(a), np.bool_),
            gpu_nic=np.array(self._affine, np.int32),
            meta=dict(meta),
        )
