# SPDX-License-Identifier: Apache-2.0
"""Device and network profiles: what NCCL makes of a kind of box and of a kind of network.

A profile holds the few constants of a physical model, one set per hardware family: what a launch
costs, what a step costs under each protocol, which share of a link's rate is reached, and how long
messages must be to reach it. Shipped profiles lie in ``catalog/profiles.yaml``; a file of the same
layout with one profile in it serves as well (`load_profile`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from railweave.fabric.catalogue import catalogue_names, find_entry
from railweave.fabric.errors import InputError, nearest_name
from railweave.fabric.units import format_rate, format_size, format_time

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ARCHITECTURES",
    "LAUNCH_MODES",
    "PROTOCOL_NAMES",
    "DeviceProfile",
    "NearbyGpus",
    "NetworkProfile",
    "NvlsProfile",
    "find_network",
    "find_profile",
    "load_profile",
    "network_for",
    "profile_for_gpu",
    "profile_text",
]

LAUNCH_MODES: Final = ("nccl-tests", "torch-eager", "cuda-graph", "custom")
"""Back-to-back launches of nccl-tests, torch.distributed, a captured CUDA graph, and one-shot or
two-shot kernels of inference servers in place of NCCL's."""

PROTOCOL_NAMES: Final = ("LL", "LL128", "Simple")
ARCHITECTURES: Final = ("volta", "turing", "ampere", "ada", "hopper", "blackwell")


@dataclass(frozen=True, kw_only=True)
class NvlsProfile:
    """Reduction and multicast in the NVSwitches (NVLS).

    Parameters
    ----------
    latency_ps
        Of a whole all_reduce, beyond launch and bytes.
    efficiency
        Share of a GPU's link rate that the bytes of a GPU reach.
    ramp_bytes
        As `DeviceProfile.ramp_bytes`.
    least_ranks
        Fewest ranks of a host with which NCCL chooses it.
    """

    latency_ps: int
    efficiency: float
    ramp_bytes: int
    least_ranks: int = 3


@dataclass(frozen=True, kw_only=True)
class NearbyGpus:
    """GPUs that reach each other at another rate than the rest of the box: a bridge, a switch."""

    gpus: int
    rate_bps: int


@dataclass(frozen=True, kw_only=True)
class DeviceProfile:
    """What NCCL makes of the GPUs of a box and the links between them.

    Parameters
    ----------
    name, title
        Its name and what it stands for.
    architecture, interconnect
        One of `ARCHITECTURES`; ``nvlink`` or ``pcie``.
    gpus
        Names of the catalogue's GPUs that it stands for.
    domain
        Most GPUs that these links join.
    rate_bps
        Rate of a GPU's links, one direction, as NCCL counts on it, bit/s.
    launch_ps
        Launch constant of each of `LAUNCH_MODES`; a mode that is not there is not known.
    step_ps
        Latency of a step between two GPUs under each of `PROTOCOL_NAMES`.
    efficiency
        Share of ``rate_bps`` times the protocol's share of payload that a ring reaches, by
        protocol; under ``p2p`` that of grouped sends.
    ramp_bytes
        Bytes of a GPU's link at which, under ``Simple`` and ``p2p``, the time is twice that of
        the full rate.
    p2p_ps
        Latency of grouped sends and receives beyond the launch, ``LL`` and ``Simple``.
    copy_bps
        Rate at which a GPU passes its own share from one buffer to the other, bit/s.
    nvls
        Reduction in the NVSwitches, where there is any.
    nearby
        GPUs that are nearer to each other than to the rest, if any.
    source, fitted_to
        Where the figures come from, and the data sets to which they were fitted.
    """

    name: str
    title: str
    architecture: str
    interconnect: str
    gpus: tuple[str, ...]
    domain: int
    rate_bps: int
    launch_ps: Mapping[str, int]
    step_ps: Mapping[str, int]
    efficiency: Mapping[str, float]
    ramp_bytes: Mapping[str, int]
    p2p_ps: Mapping[str, int]
    copy_bps: int
    nvls: NvlsProfile | None = None
    nearby: NearbyGpus | None = None
    source: str = field(default="", repr=False)
    fitted_to: tuple[str, ...] = field(default=(), repr=False)

    def launch(self, mode: str) -> int:
        """Return the launch constant of a mode in ps.

        Raises
        ------
        InputError
            The mode is unknown, or not known for this hardware.
        """
        if mode not in self.launch_ps:
            known = [name for name in LAUNCH_MODES if name in self.launch_ps]
            raise InputError(
                f"profile {self.name} has no launch constant for '{mode}'",
                field="launch",
                expected=" | ".join(known),
                nearest=nearest_name(mode, known),
            )
        return self.launch_ps[mode]

    def link_bps(self, gpus: int) -> int:
        """Return the rate of the slowest link that ``gpus`` GPUs of a box need, bit/s."""
        if self.nearby is not None and gpus <= self.nearby.gpus:
            return self.nearby.rate_bps
        return self.rate_bps


@dataclass(frozen=True, kw_only=True)
class NetworkProfile:
    """What NCCL makes of the network between boxes.

    Parameters
    ----------
    name, title
        Its name and what it stands for.
    kind
        ``infiniband``, ``roce``, ``efa`` or ``tcpx``.
    rate_bps
        Line rate of a NIC, bit/s.
    base_ps
        What the first message over the network adds: a proxy that wakes up, a flush.
    step_ps
        Latency of a step over the network under each of `PROTOCOL_NAMES`.
    efficiency
        Share of the line rate that payload reaches under Simple; LL and LL128 less by theirs.
    ramp_bytes
        As `DeviceProfile.ramp_bytes`, of a NIC.
    reduction
        Whether its switches reduce (SHARP).
    """

    name: str
    title: str
    kind: str
    rate_bps: int
    base_ps: int
    step_ps: Mapping[str, int]
    efficiency: float
    ramp_bytes: int
    reduction: bool = False
    source: str = field(default="", repr=False)
    fitted_to: tuple[str, ...] = field(default=(), repr=False)


@cache
def find_profile(name: str) -> DeviceProfile:
    """Return a shipped device profile.

    Examples
    --------
    >>> find_profile("h100").architecture
    'hopper'

    Raises
    ------
    InputError
        There is none of that name; the nearest is given.
    """
    from railweave.fabric.profile_file import DeviceFile

    name, entry = find_entry("profiles", "device profile", name)
    return DeviceFile.model_validate(entry).profile(name)


@cache
def find_network(name: str) -> NetworkProfile:
    """Return a shipped network profile.

    Examples
    --------
    >>> find_network("infiniband-400g").rate_bps // 10**9
    400

    Raises
    ------
    InputError
        There is none of that name; the nearest is given.
    """
    from railweave.fabric.profile_file import NetworkFile

    name, entry = find_entry("networks", "network profile", name)
    return NetworkFile.model_validate(entry).profile(name)


def load_profile(name_or_path: str) -> DeviceProfile:
    """Return a shipped device profile, or the one in a YAML file.

    Raises
    ------
    InputError
        There is neither; or the file is wrong: file, line, field and what was expected.
    """
    from railweave.fabric.profile_file import read_profile

    if name_or_path.endswith((".yaml", ".yml")) or Path(name_or_path).is_file():
        return read_profile(name_or_path)
    try:
        return find_profile(name_or_path)
    except InputError as error:
        raise error.located(field="profile") from None


@cache
def profile_for_gpu(gpu: str, *, domain: int = 8) -> DeviceProfile | None:
    """Return the profile that stands for a GPU of the catalogue in a domain of some size.

    Examples
    --------
    >>> profile_for_gpu("h200").name, profile_for_gpu("gb200", domain=72).name
    ('h100', 'gb200-nvl72')
    """
    fitting = [
        profile for profile in map(find_profile, catalogue_names("profiles")) if gpu in profile.gpus
    ]
    large = [profile for profile in fitting if profile.domain >= domain]
    return min(large or fitting, key=lambda p: (p.domain, p.name), default=None)


@cache
def network_for(kind: str, rate_bps: int) -> NetworkProfile:
    """Return the profile of a network kind whose rate is nearest to that of its NICs."""
    known = [find_network(name) for name in catalogue_names("networks")]
    alike = [network for network in known if network.kind == kind] or known
    return min(alike, key=lambda n: (abs(n.rate_bps - rate_bps), n.name))


def profile_text(profile: DeviceProfile) -> str:
    """Return a device profile as the text of a file that `load_profile` reads."""
    import yaml

    data: dict[str, Any] = {"schema": 1, "kind": "device-profile"}
    for key, value in _fields(profile).items():
        if value is not None and value != () and value != "":
            data[_spelling(key)] = _shown(key, value)
    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100))


def _fields(value: Any) -> dict[str, Any]:
    return {one.name: getattr(value, one.name) for one in fields(value)}


_ENDINGS: Final = MappingProxyType({"_ps": format_time, "_bps": format_rate, "_bytes": format_size})


def _spelling(key: str) -> str:
    for ending in _ENDINGS:
        key = key.removesuffix(ending)
    return key


def _shown(key: str, value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    if is_dataclass(value):
        value = _fields(value)
    if hasattr(value, "items"):
        inner = next((ending for ending in _ENDINGS if key.endswith(ending)), "")
        return {_spelling(k): _shown(inner or k, v) for k, v in value.items() if v is not None}
    for ending, text in _ENDINGS.items():
        if key.endswith(ending) and isinstance(value, int):
            return text(value)
    return value
