# SPDX-License-Identifier: Apache-2.0
"""A fabric as a drawing sees it: columns of hosts, switch levels, boxes, and bundles of cables.

A box (`Node`) is one switch or one host, or many: the hosts of a rack or leaf that are drawn as a
stack, or all hosts or all switches of one level in a collapsed group.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from railweave.fabric.errors import InputError
from railweave.fabric.graph import DeviceKind
from railweave.tools.columns import Column, columns_of, host_racks, peers_of_hosts
from railweave.tools.levels import planes_of, switch_levels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric

__all__ = ["Bundle", "Node", "Tiers", "arrange"]

TIER_NAMES: Final = {0: "hosts", 1: "leaf", 2: "spine", 3: "core"}
_STACK_ABOVE: Final = 160  # hosts one by one; above, those with the same switches make a stack
_RAIL_BOXES: Final = 24  # boxes of a level up to which the rails of a collapsed group lie apart
_SERVED_SETS: Final = 32  # sets of columns up to which a level's switches lie apart by them


@dataclass(frozen=True)
class Node:
    """A box of the drawing.

    ``members`` are device indices of switches, or numbers of hosts at level 0; ``column`` is the
    number of its column, -1 above all columns; ``rail`` and ``plane`` are -1 unless all its
    switches share one.
    """

    level: int
    column: int
    members: tuple[int, ...]
    name: str
    rail: int = -1
    plane: int = -1
    collapsed: bool = False


@dataclass(frozen=True, eq=False)
class Bundle:
    """All cables between two boxes, or between one NIC of a host's box and another box.

    ``lower`` and ``upper`` are numbers of nodes; ``nics`` are the devices at which the cables end
    where these boxes are hosts, else -1; ``cables`` holds the even link of each cable.
    """

    lower: int
    upper: int
    nics: tuple[int, int]
    cables: NDArray[np.int64]
    tier: str

    @cached_property
    def links(self) -> NDArray[np.int64]:
        """Both directions of every cable."""
        return np.concatenate((self.cables, self.cables + 1))


@dataclass(frozen=True, eq=False)
class Tiers:
    """The parts of a drawing of ``fabric``; ``level`` is 0 for hosts and 1, 2, ... for switches."""

    fabric: Fabric
    columns: tuple[Column, ...]
    nodes: tuple[Node, ...]
    bundles: tuple[Bundle, ...]
    n_cables: int  # network cables in all, those inside a box included
    declared: bool  # levels are the tiers that the fabric names
    plane: int | None = None  # the only plane that is drawn

    @cached_property
    def levels(self) -> dict[int, list[int]]:
        """Numbers of the nodes of each level."""
        found: dict[int, list[int]] = {}
        for number, node in enumerate(self.nodes):
            found.setdefault(node.level, []).append(number)
        return found

    def count(self, level: int) -> int:
        """Return the number of switches, or hosts, of a level."""
        return sum(len(self.nodes[number].members) for number in self.levels.get(level, ()))

    @cached_property
    def parts(self) -> dict[int, dict[DeviceKind, list[int]]]:
        """The devices, by kind and in index order, of each host that has a box of its own."""
        alone = [n.members[0] for n in self.nodes if n.level == 0 and len(n.members) == 1]
        found: dict[int, dict[DeviceKind, list[int]]] = {host: {} for host in alone}
        wanted = np.zeros(len(self.fabric.host_names) + 1, np.bool_)  # [-1]: no host
        wanted[alone] = True
        for device in np.flatnonzero(wanted[self.fabric.host]).tolist():
            kind = DeviceKind(int(self.fabric.kind[device]))
            found[int(self.fabric.host[device])].setdefault(kind, []).append(device)
        return found

    @cached_property
    def gpus_of_hosts(self) -> NDArray[np.int64]:
        """int64 (hosts,): the number of GPUs of each host."""
        hosts = self.fabric.host[self.fabric.gpus]
        return np.bincount(hosts, minlength=len(self.fabric.host_names))

    @cached_property
    def racks(self) -> NDArray[np.int64]:
        """int64 (hosts,): the NVSwitch that joins the hosts of a rack, or -1."""
        return host_racks(self.fabric)

    @cached_property
    def bands(self) -> dict[tuple[int, int], list[Bundle]]:
        """Bundles by the levels that they join, lower first."""
        found: dict[tuple[int, int], list[Bundle]] = {}
        for bundle in self.bundles:
            key = self.nodes[bundle.lower].level, self.nodes[bundle.upper].level
            found.setdefault(key, []).append(bundle)
        return dict(sorted(found.items()))

    @cached_property
    def railed(self) -> bool:
        """Whether switches belong to rails, so that rails are worth a colour."""
        return bool(np.any(self.fabric.rail[self.fabric.switches] >= 0))

    @cached_property
    def collapsed(self) -> bool:
        """Whether some boxes stand for a whole group."""
        return any(node.collapsed for node in self.nodes)

    @property
    def top(self) -> int:
        """Highest level."""
        return max(self.levels, default=0)

    def level_name(self, level: int) -> str:
        """Return what a level is called: ``leaf``, or ``switch level 1`` where no tier is named."""
        if level == 0 or (self.declared and level in TIER_NAMES):
            return TIER_NAMES[level]
        return "switches" if self.top == 1 else f"switch level {level}"

    def rail_of(self, bundle: Bundle) -> int:
        """Return the rail of a bundle's cables, or -1."""
        if not self.railed:
            return -1
        nics = (int(self.fabric.rail[nic]) for nic in bundle.nics if nic >= 0)
        return max(self.nodes[bundle.lower].rail, self.nodes[bundle.upper].rail, *nics)

    def plane_of(self, bundle: Bundle) -> int:
        """Return the plane of a bundle's cables, or -1."""
        return max(self.nodes[bundle.lower].plane, self.nodes[bundle.upper].plane)


def arrange(
    fabric: Fabric, *, expand: Sequence[str] | None = None, plane: int | None = None
) -> Tiers:
    """Find the columns, boxes and bundles of a fabric, in an order that never varies.

    Parameters
    ----------
    fabric
        What is drawn.
    expand
        Groups to draw host by host: see `columns_of`.
    plane
        Leave out the switches of all other planes, and their cables.

    Raises
    ------
    InputError
        There is no such group or plane.
    """
    level, planes = switch_levels(fabric), planes_of(fabric)
    known = sorted({int(one) for one in planes if one >= 0})
    if plane is not None and plane not in known:
        raise InputError(
            f"there is no plane {plane}",
            field="--plane",
            expected=" | ".join(map(str, known)) or "a fabric of several planes",
        )
    hidden = (planes >= 0) & (planes != plane) if plane is not None else planes < -1
    columns = columns_of(fabric, expand)
    nodes = _host_nodes(fabric, columns)
    column_of = _columns_of_switches(fabric, columns, level)
    nodes += _switch_nodes(fabric, columns, column_of, level, planes, hidden)
    bundles, n_cables = _bundles(fabric, nodes, level, hidden)
    return Tiers(
        fabric=fabric,
        columns=tuple(columns),
        nodes=tuple(nodes),
        bundles=tuple(bundles),
        n_cables=n_cables,
        declared=bool(len(fabric.switches)) and bool(np.all(fabric.tier[fabric.switches] >= 1)),
        plane=plane,
    )


def _host_nodes(fabric: Fabric, columns: Sequence[Column]) -> list[Node]:
    """Return a box per host, per stack of hosts, or per collapsed column."""
    single = sum(len(column.hosts) for column in columns if not column.collapsed)
    peers = peers_of_hosts(fabric) if single > _STACK_ABOVE else []
    nodes = []
    for number, column in enumerate(columns):
        if column.collapsed:
            nodes.append(Node(0, number, column.hosts, column.title, collapsed=True))
        elif single <= _STACK_ABOVE:
            nodes += [Node(0, number, (host,), fabric.host_names[host]) for host in column.hosts]
        else:
            stacks: dict[frozenset[int], list[int]] = {}
            for host in column.hosts:
                stacks.setdefault(peers[host], []).append(host)
            for stack in stacks.values():
                names = [fabric.host_names[host] for host in stack]
                name = names[0] if len(names) == 1 else f"{names[0]}\N{EN DASH}{names[-1]}"
                nodes.append(Node(0, number, tuple(stack), name))
    return nodes


def _columns_of_switches(
    fabric: Fabric, columns: Sequence[Column], level: NDArray[np.int64]
) -> NDArray[np.int64]:
    """int64 (devices,): the column of each switch, -1 above all columns."""
    found = np.full(fabric.n_devices, -1, np.int64)
    of_group = {group: number for number, column in enumerate(columns) for group in column.groups}
    switches = fabric.switches
    if of_group:
        found[switches] = [of_group.get(group, -1) for group in fabric.group[switches].tolist()]
    if any(column.groups for column in columns) or not any(column.label for column in columns):
        return found
    column_of_host = np.empty(len(fabric.host_names) + 1, np.int64)  # no groups: below which leaf
    for number, column in enumerate(columns):
        column_of_host[list(column.hosts)] = number
    hosts = fabric.host[fabric.link_src]
    ends = (hosts >= 0) & fabric.link_network & (level[fabric.link_dst] >= 1)
    low, high = np.full(len(found), len(columns)), np.full(len(found), -1)
    np.minimum.at(low, fabric.link_dst[ends], column_of_host[hosts[ends]])
    np.maximum.at(high, fabric.link_dst[ends], column_of_host[hosts[ends]])
    return np.where(low == high, low, -1)


class _Place(NamedTuple):
    """What the switches of one box share; a box of its own has the switch itself as ``single``."""

    level: int
    column: int
    plane: int
    rail: int
    serves: tuple[int, ...] = ()  # columns below, of switches that stand above columns
    single: int = -1


def _switch_nodes(
    fabric: Fabric,
    columns: Sequence[Column],
    column_of: NDArray[np.int64],
    level: NDArray[np.int64],
    plane: NDArray[np.int64],
    hidden: NDArray[np.bool_],
) -> list[Node]:
    """Return a box per switch, or per level, plane and collapsed column, by level and column.

    Switches above all columns are drawn one by one only if all columns are.
    """
    any_collapsed = any(column.collapsed for column in columns)
    served = _served(fabric, columns, column_of, level) if any_collapsed else {}
    gathered: dict[_Place, list[int]] = {}
    for switch in fabric.switches[~hidden[fabric.switches]].tolist():
        place = _Place(
            int(level[switch]), int(column_of[switch]), int(plane[switch]), int(fabric.rail[switch])
        )
        collapsed = columns[place.column].collapsed if place.column >= 0 else any_collapsed
        if not collapsed:
            place = _Place(place.level, place.column, -1, -1, single=switch)
        elif place.column < 0:
            place = place._replace(serves=served.get(switch, ()))
        gathered.setdefault(place, []).append(switch)
    boxes = Counter(place.level for place in gathered if place.single < 0)
    merged: dict[_Place, list[int]] = {}
    for place, members in gathered.items():
        crowded = place.single < 0 and place.column >= 0 and boxes[place.level] > _RAIL_BOXES
        merged.setdefault(place._replace(rail=-1) if crowded else place, []).extend(members)
    return [
        _switch_node(fabric, place, members, plane) for place, members in sorted(merged.items())
    ]


def _served(
    fabric: Fabric,
    columns: Sequence[Column],
    column_of: NDArray[np.int64],
    level: NDArray[np.int64],
) -> dict[int, tuple[int, ...]]:
    """Return the columns below each switch that stands above columns, level by level.

    Where the switches of a level serve many different sets, as if by chance, none is told.
    """
    reach = np.zeros((fabric.n_devices, len(columns)), np.bool_)
    inside = np.flatnonzero(column_of >= 0)
    reach[inside, column_of[inside]] = True
    src, dst = fabric.link_src, fabric.link_dst
    found: dict[int, tuple[int, ...]] = {}
    switches = fabric.switches
    for at in range(1, int(level.max(initial=0)) + 1):
        up = (level[src] < at) & (level[dst] == at) & (level[src] > 0) & (column_of[dst] < 0)
        np.logical_or.at(reach, dst[up], reach[src[up]])
        own = switches[(level[switches] == at) & (column_of[switches] < 0)]
        sets, which = np.unique(reach[own], axis=0, return_inverse=True)
        if 1 < len(sets) <= _SERVED_SETS:
            told = [tuple(np.flatnonzero(one).tolist()) for one in sets]
            found |= {s: told[i] for s, i in zip(own.tolist(), which.ravel().tolist(), strict=True)}
    return found


def _switch_node(
    fabric: Fabric, place: _Place, members: Sequence[int], plane: NDArray[np.int64]
) -> Node:
    first, last = (fabric.device_names[switch] for switch in (members[0], members[-1]))
    rails = {int(fabric.rail[switch]) for switch in members}
    return Node(
        level=place.level,
        column=place.column,
        members=tuple(members),
        name=first if len(members) == 1 else f"{first}\N{EN DASH}{last}",
        rail=rails.pop() if len(rails) == 1 else -1,
        plane=int(plane[members[0]]),
        collapsed=len(members) > 1,
    )


def _bundles(
    fabric: Fabric,
    nodes: Sequence[Node],
    level: NDArray[np.int64],
    hidden: NDArray[np.bool_],
) -> tuple[list[Bundle], int]:
    """Return the bundles by lower and upper box, and the number of cables in all."""
    host = fabric.host
    node_of_host = np.full(len(fabric.host_names) + 1, -1, np.int64)
    alone = np.zeros(len(fabric.host_names) + 1, np.bool_)
    node_of = np.full(fabric.n_devices, -1, np.int64)
    for number, node in enumerate(nodes):
        members = list(node.members)
        if node.level:
            node_of[members] = number
        else:
            node_of_host[members] = number
            alone[members] = len(members) == 1 and not node.collapsed
    inside = host >= 0
    node_of[inside] = node_of_host[host[inside]]

    src, dst = fabric.link_src[::2].astype(np.int64), fabric.link_dst[::2].astype(np.int64)
    outside = fabric.link_network[::2] & ((host[src] < 0) | (host[src] != host[dst]))
    outside &= ~hidden[src] & ~hidden[dst]
    cables = np.flatnonzero(outside)
    a, b = src[cables], dst[cables]
    swap = (level[a] > level[b]) | ((level[a] == level[b]) & (a > b))
    a, b = np.where(swap, b, a), np.where(swap, a, b)
    lower, upper = node_of[a], node_of[b]
    ends = [np.where((host[end] >= 0) & alone[host[end]], end, -1) for end in (a, b)]
    keys = np.stack((lower, ends[0], upper, ends[1]))
    drawn = np.flatnonzero((lower != upper) & (lower >= 0) & (upper >= 0))
    order = drawn[np.lexsort(keys[::-1, drawn])]
    starts = np.flatnonzero((np.diff(keys[:, order], axis=1) != 0).any(axis=0)) + 1
    found = []
    for part in np.split(order, starts) if len(order) else []:
        below, low_nic, above, high_nic = keys[:, part[0]].tolist()
        found.append(
            Bundle(
                lower=below,
                upper=above,
                nics=(low_nic, high_nic),
                cables=2 * cables[part].astype(np.int64),
                tier=fabric.link_tier[2 * int(cables[part[0]])],
            )
        )
    return found, len(cables)
