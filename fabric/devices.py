# SPDX-License-Identifier: Apache-2.0
"""The device catalogue: GPUs, NICs, hosts, racks and switches, each number with its source.

The numbers lie in ``catalog/*.yaml``; `railweave.fabric.catalogue` reads them. Cables and optics
are in `railweave.fabric.cables`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from railweave.fabric._seats import Seats
from railweave.fabric.catalogue import (
    Figure,
    Footprint,
    catalogue_names,
    figures_of,
    find_entry,
    footprint_of,
)
from railweave.fabric.units import (
    parse_flops,
    parse_rate_bps,
    parse_size_bytes,
    parse_time_ps,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Efficiency",
    "Figure",
    "GpuModel",
    "HostLink",
    "HostModel",
    "NicModel",
    "NvlinkModel",
    "RackModel",
    "SwitchModel",
    "catalogue_names",
    "gpu_model",
    "host_model",
    "nic_model",
    "rack_model",
    "switch_model",
]


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """Share of a GPU's arithmetic and memory rate that a good kernel reaches, 0 to 1."""

    compute: float
    memory: float


@dataclass(frozen=True, kw_only=True)
class GpuModel:
    """A GPU: memory in bytes and bytes/s, dense FLOP/s per number type."""

    name: str
    title: str
    memory_bytes: int
    memory_bandwidth_Bps: int
    flops: Mapping[str, int]
    efficiency: Efficiency
    figures: Mapping[str, Figure] = field(repr=False)
    footprint: Footprint = field(default_factory=Footprint)


@dataclass(frozen=True, kw_only=True)
class NicModel:
    """A network adapter with ``ports`` ports of ``rate_bps`` each."""

    name: str
    title: str
    ports: int
    rate_bps: int
    protocols: frozenset[str]
    figures: Mapping[str, Figure] = field(repr=False)
    footprint: Footprint = field(default_factory=Footprint)


@dataclass(frozen=True, kw_only=True)
class HostLink:
    """A link inside a host: usable rate in bit/s and direction, latency in ps."""

    rate_bps: int
    latency_ps: int


@dataclass(frozen=True, kw_only=True)
class NvlinkModel(HostLink):
    """All NVLinks of one GPU, striped over ``planes`` equal planes of NVSwitch chips."""

    planes: int

    def without_planes_bps(self, failed: int) -> int:
        """Return the rate in bit/s that is left when some planes have failed.

        Every GPU has as many links to each plane, so that each plane carries an equal share.

        Examples
        --------
        >>> host_model("dgx-a100").nvlink.without_planes_bps(1) // 10**9  # 5 of 6 planes
        1600
        """
        return self.rate_bps * max(0, self.planes - failed) // self.planes


@dataclass(frozen=True, kw_only=True)
class HostModel:
    """A host and what it holds.

    Parameters
    ----------
    gpus, nics, cpus
        How many of each; ``nics`` is None where every cable brings its own NIC (a bare host), and
        ``cpus`` 0 where no bytes pass a CPU.
    nvlink
        Link from each GPU to the aggregated NVSwitch plane, or None.
    pcie
        Link between a GPU or NIC and its PCIe switch, or between both where there is none.
    root
        Link between a CPU root and the PCIe switches and GPUs on it, or None.
    socket
        Link from each CPU root to every other, or None.
    gpu_tree, nic_tree
        PCIe switch of each GPU and NIC, -1 on a CPU root; empty where GPUs are joined straight to
        their NIC.
    gpu_root, nic_root
        CPU root of each GPU and NIC, also of those behind a PCIe switch; empty without CPUs.
    tree_root
        CPU root of each PCIe switch.
    gpu_nic
        NIC that each GPU uses: of its own PCIe switch, else of its own root, else any, in turn.
    """

    name: str
    title: str
    gpu: GpuModel
    gpus: int
    nic: NicModel | None
    nics: int | None
    cpus: int
    nvlink: NvlinkModel | None
    pcie: HostLink
    root: HostLink | None
    socket: HostLink | None
    gpu_tree: tuple[int, ...]
    nic_tree: tuple[int, ...]
    gpu_root: tuple[int, ...]
    nic_root: tuple[int, ...]
    tree_root: tuple[int, ...]
    gpu_nic: tuple[int, ...]
    figures: Mapping[str, Figure] = field(repr=False)
    footprint: Footprint = field(default_factory=Footprint)

    @property
    def trees(self) -> int:
        """Number of PCIe switches."""
        return len(self.tree_root)


@dataclass(frozen=True, kw_only=True)
class RackModel:
    """A rack whose hosts share one NVLink domain.

    Parameters
    ----------
    host
        Its compute trays.
    hosts, switch_trays
        How many compute trays and how many trays of NVSwitch chips.
    """

    name: str
    title: str
    host: HostModel
    hosts: int
    switch_trays: int
    figures: Mapping[str, Figure] = field(repr=False)
    footprint: Footprint = field(default_factory=Footprint)

    @property
    def gpus(self) -> int:
        """GPUs of the rack, all in one NVLink domain."""
        return self.hosts * self.host.gpus


@dataclass(frozen=True, kw_only=True)
class SwitchModel:
    """A switch: ports per rate, one-direction capacity in bit/s, packet buffer in bytes."""

    name: str
    title: str
    ports: Mapping[int, int]
    capacity_bps: int
    protocols: frozenset[str]
    buffer_bytes: int | None
    figures: Mapping[str, Figure] = field(repr=False)
    footprint: Footprint = field(default_factory=Footprint)

    def port_mode_bps(self, rate_bps: int) -> int | None:
        """Return the rate of the port that a link of ``rate_bps`` occupies, None if too fast."""
        return min((mode for mode in self.ports if mode >= rate_bps), default=None)


@cache
def gpu_model(name: str) -> GpuModel:
    """Return a GPU of the catalogue.

    Examples
    --------
    >>> gpu_model("H100").memory_bytes
    80000000000

    Raises
    ------
    InputError
        Not in the catalogue; the nearest name is given.
    """
    name, entry = find_entry("gpus", "GPU", name)
    return GpuModel(
        name=name,
        title=entry["title"],
        memory_bytes=parse_size_bytes(entry["memory"]["value"]),
        memory_bandwidth_Bps=parse_rate_bps(entry["memory_bandwidth"]["value"]) // 8,
        flops={dtype: parse_flops(item["value"]) for dtype, item in entry["flops"].items()},
        efficiency=Efficiency(
            compute=entry["efficiency"]["compute"]["value"],
            memory=entry["efficiency"]["memory"]["value"],
        ),
        figures=figures_of(entry),
        footprint=footprint_of(entry),
    )


@cache
def nic_model(name: str) -> NicModel:
    """Return a network adapter of the catalogue.

    Examples
    --------
    >>> nic_model("connectx-7").rate_bps
    400000000000

    Raises
    ------
    InputError
        Not in the catalogue; the nearest name is given.
    """
    name, entry = find_entry("nics", "NIC", name)
    return NicModel(
        name=name,
        title=entry["title"],
        ports=entry["ports"]["value"],
        rate_bps=parse_rate_bps(entry["rate"]["value"]),
        protocols=frozenset(entry["protocols"]),
        figures=figures_of(entry),
        footprint=footprint_of(entry),
    )


@cache
def switch_model(name: str) -> SwitchModel:
    """Return a switch of the catalogue.

    Examples
    --------
    >>> switch_model("quantum-2").ports[400 * 10**9]
    64

    Raises
    ------
    InputError
        Not in the catalogue; the nearest name is given.
    """
    name, entry = find_entry("switches", "switch", name)
    buffer = entry.get("buffer")
    return SwitchModel(
        name=name,
        title=entry["title"],
        ports={parse_rate_bps(rate): item["value"] for rate, item in entry["ports"].items()},
        capacity_bps=parse_rate_bps(entry["capacity"]["value"]),
        protocols=frozenset(entry["protocols"]),
        buffer_bytes=parse_size_bytes(buffer["value"]) if buffer else None,
        figures=figures_of(entry),
        footprint=footprint_of(entry),
    )


@cache
def host_model(name: str) -> HostModel:
    """Return a host of the catalogue.

    Examples
    --------
    >>> host_model("dgx-h100").gpu_nic
    (0, 1, 2, 3, 4, 5, 6, 7)

    Raises
    ------
    InputError
        Not in the catalogue; the nearest name is given.
    """
    name, entry = find_entry("hosts", "host", name)
    gpus: int = entry["gpus"]["value"]
    nics: int | None = entry["nics"]["value"] if "nics" in entry else None
    pcie = entry["pcie"]
    seats = Seats.of(pcie["roots"]["parts"] if "roots" in pcie else [])
    nvlink = entry.get("nvlink")
    return HostModel(
        name=name,
        title=entry["title"],
        gpu=gpu_model(entry["gpu"]),
        gpus=gpus,
        nic=nic_model(entry["nic"]) if "nic" in entry else None,
        nics=nics,
        cpus=seats.roots,
        nvlink=NvlinkModel(**_host_link(nvlink), planes=nvlink["planes"]["value"])
        if nvlink
        else None,
        pcie=HostLink(**_host_link(pcie)),
        root=HostLink(**_host_link(pcie["root"])) if "root" in pcie else None,
        socket=HostLink(**_host_link(pcie["socket"])) if "socket" in pcie else None,
        gpu_tree=seats.column("gpu", gpus, 1),
        nic_tree=seats.column("nic", nics or 0, 1),
        gpu_root=seats.column("gpu", gpus, 0),
        nic_root=seats.column("nic", nics or 0, 0),
        tree_root=tuple(seats.tree_root),
        gpu_nic=seats.affine(gpus, nics or 1),
        figures=figures_of(entry),
        footprint=footprint_of(entry),
    )


def _host_link(entry: Mapping[str, Any]) -> dict[str, int]:
    return {
        "rate_bps": parse_rate_bps(entry["rate"]["value"]),
        "latency_ps": parse_time_ps(entry["latency"]["value"]),
    }


@cache
def rack_model(name: str) -> RackModel:
    """Return a rack of the catalogue.

    Examples
    --------
    >>> rack_model("gb200-nvl72").gpus
    72

    Raises
    ------
    InputError
        Not in the catalogue; the nearest name is given.
    """
    name, entry = find_entry("racks", "rack", name)
    return RackModel(
        name=name,
        title=entry["title"],
        host=host_model(entry["host"]),
        hosts=entry["hosts"]["value"],
        switch_trays=entry["switch_trays"]["value"],
        figures=figures_of(entry),
        footprint=footprint_of(entry),
    )
