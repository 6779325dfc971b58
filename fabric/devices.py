# SPDX-License-Identifier: Apache-2.0
"""The device catalogue: GPUs, NICs, hosts and switches, each number with its source.

The numbers lie in ``catalog/*.yaml``. Names are looked up without regard to case, dashes and
underscores, so ``H100``, ``tomahawk5`` and ``tomahawk-5`` all find their entry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from railweave.fabric.errors import InputError, nearest_name
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
    "SwitchModel",
    "catalogue_names",
    "gpu_model",
    "host_model",
    "nic_model",
    "switch_model",
]

CLASSES: Final = ("measured", "published", "derived", "assumed")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number of the catalogue as written, with where it comes from.

    ``grade`` is ``measured``, ``published``, ``derived`` (by arithmetic) or ``assumed``.
    """

    value: str | int | float
    source: str
    grade: str


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


@dataclass(frozen=True, kw_only=True)
class NicModel:
    """A network adapter with ``ports`` ports of ``rate_bps`` each."""

    name: str
    title: str
    ports: int
    rate_bps: int
    protocols: frozenset[str]
    figures: Mapping[str, Figure] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class HostLink:
    """A link inside a host: usable rate in bit/s and direction, latency in ps."""

    rate_bps: int
    latency_ps: int


@dataclass(frozen=True, kw_only=True)
class HostModel:
    """A host and what it holds.

    Parameters
    ----------
    gpus, nics
        How many of each; ``nics`` is None where every cable brings its own NIC (a bare host).
    nvlink
        Link from each GPU to the aggregated NVSwitch plane, or None.
    pcie
        Link between a GPU or NIC and its PCIe switch, or between both where there is none.
    gpu_tree, nic_tree
        PCIe switch of each GPU and NIC; empty where GPUs are joined straight to their NIC.
    gpu_nic
        NIC that each GPU uses.
    """

    name: str
    title: str
    gpu: GpuModel
    gpus: int
    nic: NicModel | None
    nics: int | None
    nvlink: HostLink | None
    pcie: HostLink
    gpu_tree: tuple[int, ...]
    nic_tree: tuple[int, ...]
    gpu_nic: tuple[int, ...]
    figures: Mapping[str, Figure] = field(repr=False)

    @property
    def trees(self) -> int:
        """Number of PCIe switches."""
        return max(self.gpu_tree, default=-1) + 1


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

    def port_mode_bps(self, rate_bps: int) -> int | None:
        """Return the rate of the port that a link of ``rate_bps`` occupies, None if too fast."""
        return min((mode for mode in self.ports if mode >= rate_bps), default=None)


def _key(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")


@cache
def _read(file: str) -> Mapping[str, Any]:
    """Read one catalogue file (shipped with railweave, hence trusted)."""
    import yaml

    text = resources.files("railweave.fabric").joinpath("catalog", file).read_text("utf-8")
    data: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return data


@cache
def _entries(section: str) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Return the entries of a section by name, and every spelling with the name it stands for."""
    entries = _read(f"{section}.yaml")[section]
    spellings: dict[str, str] = {}
    for name, entry in entries.items():
        for spelling in (name, *entry.get("aliases", ())):
            spellings[_key(spelling)] = name
    return entries, spellings


def catalogue_names(section: str) -> list[str]:
    """Return the names of a section: ``gpus``, ``nics``, ``hosts`` or ``switches``.

    Examples
    --------
    >>> "h100" in catalogue_names("gpus")
    True
    """
    return sorted(_entries(section)[0])


def _find(section: str, what: str, name: str) -> tuple[str, Mapping[str, Any]]:
    entries, spellings = _entries(section)
    found = spellings.get(_key(name))
    if found is None:
        near = nearest_name(_key(name), spellings)
        raise InputError(
            f"'{name}' is not a {what} of the catalogue",
            expected=f"one of {', '.join(sorted(entries))}",
            nearest=spellings[near] if near else None,
        )
    return found, entries[found]


def _figures(entry: Mapping[str, Any], prefix: str = "") -> dict[str, Figure]:
    """Collect the figures of an entry by dotted path, with their sources written out."""
    sources = _read("sources.yaml")["sources"]
    found: dict[str, Figure] = {}
    for key, item in entry.items():
        if not isinstance(item, dict):
            continue
        path = f"{prefix}{key}"
        if "value" in item:
            found[path] = Figure(
                value=item["value"], source=sources[item["source"]], grade=item["class"]
            )
        else:
            found |= _figures(item, f"{path}.")
    return found


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
    name, entry = _find("gpus", "GPU", name)
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
        figures=_figures(entry),
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
    name, entry = _find("nics", "NIC", name)
    return NicModel(
        name=name,
        title=entry["title"],
        ports=entry["ports"]["value"],
        rate_bps=parse_rate_bps(entry["rate"]["value"]),
        protocols=frozenset(entry["protocols"]),
        figures=_figures(entry),
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
    name, entry = _find("switches", "switch", name)
    buffer = entry.get("buffer")
    return SwitchModel(
        name=name,
        title=entry["title"],
        ports={parse_rate_bps(rate): item["value"] for rate, item in entry["ports"].items()},
        capacity_bps=parse_rate_bps(entry["capacity"]["value"]),
        protocols=frozenset(entry["protocols"]),
        buffer_bytes=parse_size_bytes(buffer["value"]) if buffer else None,
        figures=_figures(entry),
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
    name, entry = _find("hosts", "host", name)
    gpus: int = entry["gpus"]["value"]
    nics: int | None = entry["nics"]["value"] if "nics" in entry else None
    trees = entry["pcie"].get("trees", {"switches": []})["switches"]
    tree_of = {part: tree for tree, parts in enumerate(trees) for part in parts}
    gpu_tree = tuple(tree_of[f"gpu{i}"] for i in range(gpus)) if trees else ()
    nic_tree = tuple(tree_of[f"nic{i}"] for i in range(nics or 0)) if trees else ()
    return HostModel(
        name=name,
        title=entry["title"],
        gpu=gpu_model(entry["gpu"]),
        gpus=gpus,
        nic=nic_model(entry["nic"]) if "nic" in entry else None,
        nics=nics,
        nvlink=_host_link(entry["nvlink"]) if "nvlink" in entry else None,
        pcie=_host_link(entry["pcie"]),
        gpu_tree=gpu_tree,
        nic_tree=nic_tree,
        gpu_nic=_affine(gpus, nics, gpu_tree, nic_tree),
        figures=_figures(entry),
    )


def _host_link(entry: Mapping[str, Any]) -> HostLink:
    return HostLink(
        rate_bps=parse_rate_bps(entry["rate"]["value"]),
        latency_ps=parse_time_ps(entry["latency"]["value"]),
    )


def _affine(
    gpus: int, nics: int | None, gpu_tree: tuple[int, ...], nic_tree: tuple[int, ...]
) -> tuple[int, ...]:
    """Give each GPU a NIC of its own PCIe switch, in turn; without switches, one by one."""
    if not gpu_tree:
        return tuple(i % (nics or 1) for i in range(gpus))
    taken = [0] * (max(gpu_tree) + 1)
    chosen = []
    for tree in gpu_tree:
        beside = [nic for nic, other in enumerate(nic_tree) if other == tree]
        chosen.append(beside[taken[tree] % len(beside)])
        taken[tree] += 1
    return tuple(chosen)
