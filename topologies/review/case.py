# SPDX-License-Identifier: Apache-2.0
"""What a check is given: a fabric, the file it was built from, and views that many checks need."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from railweave.fabric.graph import DeviceKind
from railweave.fabric.network_model import network_settings, packet_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from railweave.fabric.document import Key
    from railweave.fabric.graph import Fabric
    from railweave.fabric.network import NetworkSettings
    from railweave.fabric.packet.settings import PacketSettings
    from railweave.topologies.spec import TopologySpec

__all__ = ["SHOWN", "TIERS", "Access", "Case", "Trunks", "listed"]

SHOWN: Final = 5
TIERS: Final = {1: "leaf", 2: "spine", 3: "core"}


def listed(names: Iterable[str], *, most: int = SHOWN) -> str:
    """Write the first few names, and how many more there are.

    Examples
    --------
    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    every = list(names)
    if len(every) <= most:
        return ", ".join(every)
    return f"{', '.join(every[:most])} and {len(every) - most} more"


class Access(NamedTuple):
    """Cables of hosts: int64 (n,) each of NIC, switch, and link from NIC to switch."""

    nic: NDArray[np.int64]
    switch: NDArray[np.int64]
    link: NDArray[np.int64]


class Trunks(NamedTuple):
    """Cables between switches: lower and upper switch, and link from lower to upper.

    Where two switches are of one tier, or have none, the one with the lower index is the lower.
    """

    lower: NDArray[np.int64]
    upper: NDArray[np.int64]
    link: NDArray[np.int64]


@dataclass(eq=False, kw_only=True)
class Case:
    """A fabric under review.

    Parameters
    ----------
    fabric
        The fabric, perhaps with faults applied, or as built.
    spec
        The topology it was built from, if there is a file.
    rows
        Cable (link // 2) -> file and line of a cabling plan, where the fabric was built from one.
    causes
        Devices at fault, filled as checks find them.
    """

    fabric: Fabric
    spec: TopologySpec | None = None
    rows: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    causes: set[int] = field(default_factory=set)

    @cached_property
    def settings(self) -> NetworkSettings:
        """Frame sizes and latencies of the file, or the defaults."""
        return network_settings(self.spec.network if self.spec else None)

    @cached_property
    def packet(self) -> PacketSettings:
        """Buffers, pauses and marks of the file, or the defaults."""
        return packet_settings(self.spec.network if self.spec else None)

    @cached_property
    def access(self) -> Access:
        """The cables of hosts, in service or not."""
        fabric = self.fabric
        link = np.flatnonzero(
            fabric.link_network
            & (fabric.kind[fabric.link_src] == DeviceKind.NIC)
            & (fabric.kind[fabric.link_dst] == DeviceKind.SWITCH)
        )
        src, dst = fabric.link_src.astype(np.int64), fabric.link_dst.astype(np.int64)
        return Access(src[link], dst[link], link)

    @cached_property
    def trunks(self) -> Trunks:
        """The cables between switches, in service or not."""
        fabric = self.fabric
        is_switch = fabric.kind == DeviceKind.SWITCH
        src, dst = fabric.link_src.astype(np.int64), fabric.link_dst.astype(np.int64)
        one, other = fabric.tier[src], fabric.tier[dst]
        upward = (one < other) | ((one == other) & (src < dst))
        link = np.flatnonzero(fabric.link_network & is_switch[src] & is_switch[dst] & upward)
        return Trunks(src[link], dst[link], link)

    @cached_property
    def tiered(self) -> bool:
        """Whether every network switch has a tier."""
        return bool((self.fabric.tier[self.fabric.switches] > 0).all())

    def at_fault_above(self, level: int) -> list[int]:
        """Return switches at fault in the tiers above: each takes its share from all below it."""
        return [device for device in self.causes if int(self.fabric.tier[device]) > level]

    def name(self, device: int) -> str:
        """Return a device's name."""
        return self.fabric.device_names[device]

    def host_of(self, device: int) -> str:
        """Return the name of a device's host."""
        return self.fabric.host_names[int(self.fabric.host[device])]

    def locate(self, at: int | None) -> tuple[str | None, int | None]:
        """Return file and line that speak of a device, or of a link given as ``~link``."""
        if at is not None and at < 0 and (~at) // 2 in self.rows:
            return self.rows[(~at) // 2]
        if self.spec is None:
            return None, None
        if at is None:
            return self.spec.file, None
        keys = self._link_keys(~at) if at < 0 else self._device_keys(at)
        return self.spec.file, self.spec.document.line((*self.spec.at, *keys))

    def _device_keys(self, device: int) -> tuple[Key, ...]:
        fabric = self.fabric
        host = int(fabric.host[device])
        assert self.spec is not None
        if self.spec.kind == "custom":
            return ("nodes", fabric.host_names[host] if host >= 0 else fabric.device_names[device])
        if host < 0:
            return (TIERS.get(int(fabric.tier[device]), "leaf"),)
        return ("racks",) if self.spec.kind == "nvl-domain" else ("hosts",)

    def _link_keys(self, link: int) -> tuple[Key, ...]:
        assert self.spec is not None
        if self.spec.kind != "custom":
            return ("links", self.fabric.link_tier[link])
        number = self._custom_links.get(link // 2)
        return ("links",) if number is None else ("links", number)

    @cached_property
    def _custom_links(self) -> dict[int, int]:
        """Cable -> number of the entry under ``links`` of a custom file that made it."""
        entries = self.spec.model.links if self.spec is not None else ()  # type: ignore[attr-defined]
        made = [i for i, entry in enumerate(entries) for _ in range(entry.count)]
        cables = (np.flatnonzero(self.fabric.link_network[::2])).tolist()
        return dict(zip(cables, made, strict=True)) if len(made) == len(cables) else {}
