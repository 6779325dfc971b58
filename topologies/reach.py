# SPDX-License-Identifier: Apache-2.0
"""Who reaches whom: pieces of a fabric, and pairs of GPUs that nothing joins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.graph import DeviceKind, LinkModel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric

__all__ = [
    "ReachClasses",
    "cross_rail_pairs",
    "joined_labels",
    "list_unreachable",
    "one_rail",
    "pieces",
    "reach_classes",
    "unreachable_pairs",
]


def joined_labels(
    fabric: Fabric, links: NDArray[np.bool_], *, hosts_joined: bool = False
) -> NDArray[np.int64]:
    """Label each device with the smallest device it is joined to over ``links``.

    Parameters
    ----------
    fabric
        The fabric.
    links
        bool (m,): the links that join.
    hosts_joined
        Whether the parts of a host are one piece even where nothing inside joins them.
    """
    label = np.arange(fabric.n_devices)
    src, dst = fabric.link_src[links], fabric.link_dst[links]
    if hosts_joined:
        parts = np.flatnonzero(fabric.host >= 0)
        _, first, host = np.unique(fabric.host[parts], return_index=True, return_inverse=True)
        src, dst = np.append(src, parts), np.append(dst, parts[first[host]])
    while True:
        before = label.copy()
        np.minimum.at(label, dst, before[src])
        np.minimum.at(label, src, before[dst])
        label = label[label]
        if np.array_equal(label, before):
            return label


def pieces(fabric: Fabric) -> list[list[str]]:
    """Return the hosts of each part of a fabric, the first hosts first."""
    label = joined_labels(fabric, fabric.link_up, hosts_joined=True)
    parts = np.flatnonzero(fabric.host >= 0)
    found: dict[int, dict[str, None]] = {}
    for host, piece in np.unique(np.stack([fabric.host[parts], label[parts]]), axis=1).T.tolist():
        found.setdefault(piece, {})[fabric.host_names[host]] = None
    return [list(names) for names in found.values()]


@dataclass(frozen=True, eq=False)
class ReachClasses:
    """The GPUs of a fabric by what they can reach.

    ``nvlink`` and ``pcie`` label the domains of each GPU, ``place`` says where on the network its
    NIC is, ``cut[a, b]`` whether the network does not join place a to place b.
    """

    nvlink: NDArray[np.int64]
    pcie: NDArray[np.int64]
    place: NDArray[np.int64]
    cut: NDArray[np.bool_]

    def cut_within(self, *labels: NDArray[np.int64]) -> int:
        """Count ordered pairs of GPUs in places cut off from each other, of equal labels."""
        keys, sizes = np.unique(np.stack([*labels, self.place]), axis=1, return_counts=True)
        starts = np.ones(keys.shape[1], np.bool_)  # of each combination of labels
        starts[1:] = (keys[:-1, 1:] != keys[:-1, :-1]).any(axis=0)
        group = np.cumsum(starts) - 1
        first = np.flatnonzero(starts)
        members = np.bincount(group)
        # each entry beside every entry of its own group
        left = np.repeat(np.arange(len(group)), members[group])
        offset = np.arange(len(left)) - np.repeat(
            np.cumsum(members[group]) - members[group], members[group]
        )
        right = first[group[left]] + offset
        off = self.cut[keys[-1, left], keys[-1, right]]
        return int((sizes[left] * sizes[right])[off].sum())

    def count(self) -> int:
        """Count ordered pairs of GPUs that nothing joins."""
        sizes = np.bincount(self.place, minlength=len(self.cut))
        lost = int((self.cut * sizes[:, None] * sizes[None, :]).sum())
        if lost:
            by_nvlink, by_pcie = self.cut_within(self.nvlink), self.cut_within(self.pcie)
            lost -= by_nvlink + by_pcie - self.cut_within(self.nvlink, self.pcie)
        return lost

    def unreachable(self, gpu: int) -> NDArray[np.int64]:
        """Return the numbers of the GPUs that one cannot reach."""
        apart = (self.nvlink != self.nvlink[gpu]) & (self.pcie != self.pcie[gpu])
        return np.flatnonzero(apart & self.cut[self.place[gpu], self.place])


def reach_classes(fabric: Fabric) -> ReachClasses:
    """Return the classes of a fabric's GPUs by what they can reach."""
    gpus = fabric.gpus
    pcie = fabric.link_used & (fabric.link_model == LinkModel.PCIE)
    inside = joined_labels(fabric, fabric.link_up & pcie)
    nic = fabric.gpu_nic[gpus]
    usable = (nic >= 0) & (inside[gpus] == inside[nic])
    reach, place = _nic_reach(fabric)
    nvlink = fabric.link_up & (fabric.link_model == LinkModel.NVLINK)
    return ReachClasses(
        nvlink=joined_labels(fabric, nvlink)[gpus],
        pcie=inside[gpus],
        place=np.where(usable, place[nic], len(reach) - 1),
        cut=~reach,
    )


def unreachable_pairs(fabric: Fabric) -> tuple[int, tuple[str, str] | None]:
    """Count ordered GPU pairs that nothing joins, and name the first.

    A pair is joined inside an NVLink domain; or over PCIe inside a host; or by a cable between the
    two NICs; or if a switch of one NIC reaches a switch of the other by climbing first and
    descending after (never up again). Where switches have no tiers any path will do. Bytes that a
    GPU would have to pass on are not counted as joining: that is for a collective to arrange.
    """
    found = reach_classes(fabric)
    lost = found.count()
    return lost, next(_list(fabric, found), None) if lost else None


def cross_rail_pairs(fabric: Fabric) -> tuple[int, tuple[str, str] | None]:
    """Count and name as `unreachable_pairs` does those whose NICs are of different rails."""
    found = reach_classes(fabric)
    rail = fabric.rail[fabric.gpu_nic[fabric.gpus]]
    rail_of = np.full(len(found.cut), -1, np.int64)
    rail_of[found.place] = rail
    different = found.cut & (rail_of[:, None] != rail_of[None, :])
    apart = replace(found, cut=different)
    lost = apart.count()
    return lost, next(_list(fabric, apart), None) if lost else None


def one_rail(fabric: Fabric, a: str, b: str) -> bool:
    """Return whether the NICs of two GPUs, given by name, are of one rail."""
    one, other = (fabric.rail[fabric.gpu_nic[fabric.device(name)]] for name in (a, b))
    return bool(one == other)


def list_unreachable(fabric: Fabric) -> Iterator[tuple[str, str]]:
    """Yield the names of each ordered pair of GPUs that nothing joins, in index order."""
    yield from _list(fabric, reach_classes(fabric))


def _list(fabric: Fabric, found: ReachClasses) -> Iterator[tuple[str, str]]:
    names = [fabric.device_names[gpu] for gpu in fabric.gpus.tolist()]
    some: NDArray[np.bool_] = np.asarray(found.cut[:, np.unique(found.place)].any(axis=1))
    for gpu in np.flatnonzero(some[found.place]).tolist():
        for other in found.unreachable(gpu).tolist():
            yield names[gpu], names[other]


def _nic_reach(fabric: Fabric) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return which places reach which, and the place of each device.

    A place stands for all NICs on the same switches; a NIC with a cable to another NIC has a place
    of its own. The last place is nowhere: it reaches nothing.
    """
    network = fabric.link_up & fabric.link_network
    is_nic = fabric.kind == DeviceKind.NIC
    leaving = network & is_nic[fabric.link_src]
    pairs = np.unique(
        fabric.link_src[leaving].astype(np.int64) * fabric.n_devices + fabric.link_dst[leaving]
    )
    nic, peer = np.divmod(pairs, fabric.n_devices)
    alone = (np.bincount(nic, minlength=fabric.n_devices)[nic] == 1) & ~is_nic[peer]
    homes = np.unique(peer[alone])
    keys: dict[tuple[int, ...], int] = {(home,): i for i, home in enumerate(homes.tolist())}
    neighbours: dict[int, list[int]] = {}
    for a, b in zip(nic[~alone].tolist(), peer[~alone].tolist(), strict=True):
        neighbours.setdefault(a, []).append(b)
    place_of: dict[int, int] = {}
    for a, others in neighbours.items():
        beside = (a,) if any(is_nic[other] for other in others) else ()
        place_of[a] = keys.setdefault((*others, *beside), len(keys))
    # The switches of each place, one by one, and a last one that nothing reaches, so that none
    # is without. A place reaches what any of its switches reaches.
    count = len(fabric.switches)
    dense = np.full(fabric.n_devices, count, np.int64)
    dense[fabric.switches] = np.arange(count)
    members = [[*dense[list(key)].tolist(), count] for key in (*keys, ())]
    starts = np.cumsum([0, *(len(member) for member in members[:-1])])
    flat = np.concatenate(members)
    below = np.zeros((count + 1, count + 1), np.bool_)
    below[:count, :count] = _switch_reach(fabric, network)
    from_place = np.logical_or.reduceat(below[flat], starts, axis=0)
    reach = np.logical_or.reduceat(from_place[:, flat], starts, axis=1)
    place = np.full(fabric.n_devices, len(keys), np.int64)
    place[nic[alone]] = np.searchsorted(homes, peer[alone])
    place[list(place_of)] = list(place_of.values())
    for a, others in neighbours.items():
        for other in others:
            if is_nic[other]:
                reach[place[a], place[other]] = True
    return reach, place


def _switch_reach(fabric: Fabric, network: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return, by two switches, whether the second lies below the top of a climb from the first."""
    switches = fabric.switches
    is_switch = fabric.kind == DeviceKind.SWITCH
    between = network & is_switch[fabric.link_src] & is_switch[fabric.link_dst]
    if (fabric.tier[switches] <= 0).any():
        label = joined_labels(fabric, between)[switches]
        joined: NDArray[np.bool_] = label[:, None] == label[None, :]
        return joined
    number = np.cumsum(is_switch) - 1
    src, dst = fabric.link_src[between], fabric.link_dst[between]
    climbs = fabric.tier[src] < fabric.tier[dst]
    edges = np.stack([fabric.tier[src], number[src], number[dst]])[:, climbs]
    tier, low, high = np.unique(edges, axis=1)
    # Row s of bits: what lies below switch s, lowest tier first; then also below those above it.
    reach = np.packbits(np.eye(len(switches), dtype=np.bool_), axis=1)
    levels = np.unique(tier)
    for level in levels:
        _merge(reach, high[tier == level], low[tier == level])
    for level in levels[::-1]:
        _merge(reach, low[tier == level], high[tier == level])
    return np.unpackbits(reach, axis=1, count=len(switches)).astype(np.bool_)


def _merge(rows: NDArray[np.uint8], into: NDArray[np.int64], of: NDArray[np.int64]) -> None:
    """Add to each row ``into[i]`` the bits of row ``of[i]``; no row is on both sides."""
    order = np.argsort(into, kind="stable")
    kept, starts = np.unique(into[order], return_index=True)
    rows[kept] |= np.bitwise_or.reduceat(rows[of[order]], starts, axis=0)
