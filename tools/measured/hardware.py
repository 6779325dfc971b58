# SPDX-License-Identifier: Apache-2.0
"""Which profiles stand for the machines of a data set, by what it says of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from railweave.fabric.errors import InputError
from railweave.fabric.profiles import find_network, find_profile, network_for

if TYPE_CHECKING:
    from railweave.fabric.profiles import DeviceProfile, NetworkProfile
    from railweave.tools.measured.data import DataSet

__all__ = ["Machines", "machines_of", "network_of", "profile_of"]

_BY_WORD: Final = (
    (r"A100.*PCIE|PCIE.*A100|NC96ADS", "a100-pcie"),
    (r"GB200", "gb200-nvl72"),
    (r"B200|B300", "b200"),
    (r"H100|H200", "h100"),
    (r"A100", "a100"),
    (r"V100|P3DN", "v100"),
    (r"RTX[- ]?PRO[- ]?6000", "rtx-pro-6000"),
    (r"L40S|RTX[- ]?4090", "l40s"),
)
"""Words of GPUs and instances, most telling first; H20, H800, L4 and others have no profile."""


@dataclass(frozen=True, kw_only=True)
class Machines:
    """What predictions need of a data set.

    ``nics_per_node`` and ``nic_rate_bps`` are None where the profile of the network decides.
    """

    profile: DeviceProfile
    network: NetworkProfile | None = None
    nics_per_node: int | None = None
    nic_rate_bps: int | None = None


def profile_of(data: DataSet) -> DeviceProfile:
    """Return the device profile of a data set by its hardware.

    Raises
    ------
    InputError
        The file names no GPU, or one without a profile.
    """
    if not data.hardware:
        raise InputError(
            f"{data.name} does not say which GPUs it was measured on",
            expected="--profile NAME, or --topology T",
        )
    for words, name in _BY_WORD:
        if re.search(words, data.hardware.upper()):
            return find_profile(name)
    raise InputError(
        f"no profile is known for '{data.hardware}'", expected="--profile NAME, or --topology T"
    )


def network_of(link: str) -> tuple[NetworkProfile, int | None, int | None]:
    """Return the network that a description such as ``RoCEv2-8x400G`` means.

    Returns
    -------
    profile, nics, rate
        NICs of a node and their rate in bit/s; None where the description does not say.

    Raises
    ------
    InputError
        It says neither a kind nor a rate.
    """
    text = link.lower()
    cables = re.search(r"(\d+)x(?:[a-z0-9]*-)?(\d+)\s*g", text)
    nics = int(cables[1]) if cables else None
    rate = int(cables[2]) * 10**9 if cables else None
    efa = re.search(r"efa\s*v?(\d)?", text)
    if efa:
        return find_network(f"efa-v{efa[1] or 2}"), nics, rate
    if "tcpx" in text:
        return find_network("tcpxo-200g"), nics, rate
    kind = "roce" if re.search(r"roce|ethernet", text) else "infiniband"
    if not cables and not re.search(r"\bib\b|infiniband|roce|hdr|ndr|xdr", text):
        raise InputError(
            f"the network '{link}' is not known", expected="--topology T, or such as RoCEv2-8x400G"
        )
    named = re.search(r"hdr|ndr|xdr", text)
    speeds = {"hdr": 200, "ndr": 400, "xdr": 800}
    guess = speeds[named[0]] * 10**9 if named else 200 * 10**9
    return network_for(kind, rate or guess), nics, rate


def machines_of(data: DataSet, profile: DeviceProfile | None = None) -> Machines:
    """Return profile and network of a data set; a given profile goes before its hardware.

    Raises
    ------
    InputError
        They are not known.
    """
    device = profile or profile_of(data)
    if data.nodes < 1 or data.gpus_per_node < 1:
        raise InputError(
            f"{data.name} does not say how many GPUs took part", expected="--nodes, --gpus-per-node"
        )
    if data.nodes == 1 or (data.ranks <= device.domain and "NVL72" in data.link.upper()):
        return Machines(profile=device)
    network, nics, rate = network_of(data.link)
    return Machines(profile=device, network=network, nics_per_node=nics, nic_rate_bps=rate)
