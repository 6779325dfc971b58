# SPDX-License-Identifier: Apache-2.0
"""A fabric as a drawing sees it: switch levels, hosts in blocks, parallel cables in bundles."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.graph import DeviceKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.fabric.graph import Fabric

__all__ = ["Bundle", "Tiers", "Unit", "arrange", "switch_levels"]

TIER_NAMES: Final = {0: "hosts", 1: "leaf", 2: "spine", 3: "core"}
_STACK_ABOVE: Final = 160  # hosts; above, hosts with the same switches are drawn as one stack


@dataclass(frozen=True)
class Unit:
    """What is drawn as one host: a host, or several that are cabled to the same switches."""

    hosts: tuple[int, ...]
    group: int


@dataclass(frozen=True)
class Bundle:
    """All cables between two drawn things; ``lower`` and ``upper`` are device indices."""

    lower: int
    upper: int
    cables: tuple[int, ...]  # the even link of each cable
    tier: str


@dataclass(frozen=True)
class Tiers:
    """The parts of a drawing of ``fabric``.

    ``level`` is 0 for whatever sits in a host and 1, 2, ... for switches; ``unit_of_host`` gives
    the number of the unit that draws a host.
    """

    fabric: Fabric
    level: tuple[int, ...]
    units: tuple[Unit, ...]
    unit_of_host: tuple[int, ...]
    bundles: tuple[Bundle, ...]
    declared: bool  # levels are the tiers that the fabric names

    def switches(self, level: int) -> list[int]:
        """Return the switches of a level in index order."""
        return [int(s) for s in self.fabric.switches if self.level[s] == level]

    @cached_property
    def parts(self) -> list[dict[DeviceKind, list[int]]]:
        """The devices of each host by kind, in index order."""
        found: list[dict[DeviceKind, list[int]]] = [{} for _ in self.fabric.host_names]
        for device, host in enumerate(self.fabric.host.tolist()):
            if host >= 0:
                kind = DeviceKind(int(self.fabric.kind[device]))
                found[host].setdefault(kind, []).append(device)
        return found

    @cached_property
    def bands(self) -> dict[tuple[int, int], list[Bundle]]:
        """Bundles by the levels that they join, lower first."""
        found: dict[tuple[int, int], list[Bundle]] = {}
        for bundle in self.bundles:
            key = self.level[bundle.lower], self.level[bundle.upper]
            found.setdefault(key, []).append(bundle)
        return dict(sorted(found.items()))

    @cached_property
    def railed(self) -> bool:
        """Whether switches belong to rails, so that rails are worth a colour."""
        return bool(np.any(self.fabric.rail[self.fabric.switches] >= 0))

    @property
    def top(self) -> int:
        """Highest level."""
        return max(self.level, default=0)

    def level_name(self, level: int) -> str:
        """Return what a level is called: ``leaf``, or ``switch level 1`` where no tier is named."""
        if level == 0 or (self.declared and level in TIER_NAMES):
            return TIER_NAMES[level]
        return "switches" if self.top == 1 else f"switch level {level}"


def switch_levels(fabric: Fabric) -> list[int]:
    """Return the level of each device: its tier, else one more than its lowest neighbour's."""
    level = [
        0 if fabric.kind[i] != DeviceKind.SWITCH else max(0, int(fabric.tier[i])) or -1
        for i in range(fabric.n_devices)
    ]
    ptr, links = fabric.out_links
    frontier = [i for i, found in enumerate(level) if found >= 0]
    while frontier:
        reached: dict[int, int] = {}
        for device in frontier:
            for link in links[ptr[device] : ptr[device + 1]]:
                peer = int(fabric.link_dst[link])
                if level[peer] < 0:
                    reached[peer] = min(reached.get(peer, 1 << 30), level[device] + 1)
        for peer, found in reached.items():
            level[peer] = found
        frontier = sorted(reached)
    return [1 if found < 0 else found for found in level]


def arrange(fabric: Fabric) -> Tiers:
    """Find the levels, units and bundles of a fabric, in an order that never varies."""
    level = switch_levels(fabric)
    outside = [
        link
        for link in range(0, fabric.n_links, 2)
        if fabric.host[fabric.link_src[link]] < 0
        or fabric.host[fabric.link_src[link]] != fabric.host[fabric.link_dst[link]]
    ]
    units = _units(fabric, outside)
    unit_of_host = [0] * len(fabric.host_names)
    for number, unit in enumerate(units):
        for host in unit.hosts:
            unit_of_host[host] = number
    return Tiers(
        fabric=fabric,
        level=tuple(level),
        units=tuple(units),
        unit_of_host=tuple(unit_of_host),
        bundles=tuple(_bundles(fabric, level, outside, units, unit_of_host)),
        declared=bool(len(fabric.switches)) and bool(np.all(fabric.tier[fabric.switches] >= 1)),
    )


def _units(fabric: Fabric, outside: Sequence[int]) -> list[Unit]:
    hosts = range(len(fabric.host_names))
    group = [-1] * len(hosts)
    for device in range(fabric.n_devices - 1, -1, -1):
        if fabric.host[device] >= 0:
            group[fabric.host[device]] = int(fabric.group[device])
    peers: list[set[int]] = [set() for _ in hosts]
    for link in outside:
        ends = int(fabric.link_src[link]), int(fabric.link_dst[link])
        for here, there in (ends, ends[::-1]):
            if fabric.host[here] >= 0:
                peers[fabric.host[here]].add(there)
    for host in hosts:  # hosts without a group take that of their switches
        if group[host] < 0:
            found = {int(fabric.group[peer]) for peer in peers[host]}
            group[host] = found.pop() if len(found) == 1 else -1
    order = sorted(hosts, key=lambda host: (group[host], host))
    if len(hosts) <= _STACK_ABOVE:
        return [Unit((host,), group[host]) for host in order]
    stacks: dict[tuple[int, frozenset[int]], list[int]] = {}
    for host in order:
        stacks.setdefault((group[host], frozenset(peers[host])), []).append(host)
    return [Unit(tuple(stack), found) for (found, _), stack in stacks.items()]


def _bundles(
    fabric: Fabric,
    level: Sequence[int],
    outside: Sequence[int],
    units: Sequence[Unit],
    unit_of_host: Sequence[int],
) -> list[Bundle]:
    stacked = len(units) < len(fabric.host_names)
    face: dict[int, int] = {}  # the device that stands for a whole unit
    for device in range(fabric.n_devices):
        if fabric.host[device] >= 0:
            face.setdefault(unit_of_host[fabric.host[device]], device)
    joined: dict[tuple[int, int], list[int]] = {}
    for link in outside:
        ends = [int(fabric.link_src[link]), int(fabric.link_dst[link])]
        if stacked:
            ends = [d if fabric.host[d] < 0 else face[unit_of_host[fabric.host[d]]] for d in ends]
        lower, upper = sorted(ends, key=lambda device: (level[device], device))
        joined.setdefault((lower, upper), []).append(link)
    return [
        Bundle(lower, upper, tuple(cables), fabric.link_tier[cables[0]])
        for (lower, upper), cables in sorted(joined.items())
    ]
