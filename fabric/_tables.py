# SPDX-License-Identifier: Apache-2.0
"""The index arrays that routing walks over, drawn from a fabric once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric._twins import Twins, merge_twins
from railweave.fabric.graph import DeviceKind, LinkModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric

__all__ = ["Tables", "draw_tables", "nvlink_domains"]


Csr = tuple["NDArray[np.int32]", "NDArray[np.int32]"]


@dataclass(frozen=True, eq=False)
class Tables:
    """Links in service, by dense switch and NIC number, next hops in (device index, port) order.

    Each group is a CSR: ``ptr``, and a table with a column per link, whose rows are the link and
    the dense number at its far end. ``ways``: all network links, where NICs are numbered after the
    switches, with a third row, the direction: +1 up (and to or from a NIC), 0 across, -1 down;
    ``into``: those between switches, by far end, with the near end in its place, for searching
    backwards; ``up``: NIC to switch; ``pair``: NIC to NIC; ``pcie`` and ``nvlink``: by device, and
    the links alone.

    Parameters
    ----------
    dense
        int32 (devices,): number of a switch among switches, of a NIC among NICs; else -1.
    tier
        int32 (switches,): tier, or -1 everywhere when any switch lacks one.
    access, access_sets
        int32 (nics,): from which set of switches a NIC is reached (-1: none); a set's number is
        its switch's if it has one switch, else counts on from the number of switches.
    position
        int64 (nics,): where a NIC sits in the tree, mixed radix: its place on its leaf, the
        leaf's place under its spine, and so on, lowest first. Failures do not move it.
    forwards
        bool (devices,): `Fabric.forwards`.
    """

    dense: NDArray[np.int32]
    tier: NDArray[np.int32]
    ways: Csr
    into: Csr
    up: Csr
    pair: Csr
    pcie: Csr
    nvlink: Csr
    access: NDArray[np.int32]
    access_sets: tuple[tuple[int, ...], ...]
    position: NDArray[np.int64]
    forwards: NDArray[np.bool_]
    widest: int
    twins: Twins


def _ptr(owners: NDArray[np.int32], count: int) -> NDArray[np.int32]:
    ptr = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(owners, minlength=count), out=ptr[1:])
    return ptr


def draw_tables(fabric: Fabric) -> Tables:
    """Return the tables of a fabric, without the links that are down."""
    switches, nics = fabric.switches, fabric.nics
    dense = np.full(fabric.n_devices, -1, np.int32)
    dense[switches] = np.arange(len(switches), dtype=np.int32)
    dense[nics] = np.arange(len(nics), dtype=np.int32)
    tier = fabric.tier[switches].astype(np.int32)
    if (tier < 1).any():
        tier = np.full(len(switches), -1, np.int32)

    order = fabric.out_links[1]
    src, dst = fabric.link_src[order], fabric.link_dst[order]
    live = fabric.link_up[order]
    framed = fabric.link_network[order]
    src_switch, dst_switch = (fabric.kind[end] == DeviceKind.SWITCH for end in (src, dst))
    src_nic, dst_nic = (fabric.kind[end] == DeviceKind.NIC for end in (src, dst))

    def joined(mask: NDArray[np.bool_], count: int) -> Csr:
        chosen = np.flatnonzero(mask & framed & live)
        table = np.stack((order[chosen], dense[dst[chosen]])).astype(np.int32)
        return _ptr(dense[src[chosen]], count), table

    hop_ptr, (hop_link, hop_to) = joined(src_switch & dst_switch, len(switches))
    hop_from = np.repeat(np.arange(len(switches), dtype=np.int32), np.diff(hop_ptr))
    untiered = len(tier) > 0 and tier[0] < 0
    direction = np.sign(tier[hop_to] - tier[hop_from]).astype(np.int32)
    if untiered:
        direction[:] = -1
    backwards = np.argsort(hop_to, kind="stable")
    into = np.stack((hop_link, hop_from, direction))[:, backwards]

    def inside(model: LinkModel) -> Csr:
        chosen = np.flatnonzero((fabric.link_model[order] == model) & live)
        return _ptr(src[chosen], fabric.n_devices), order[chosen]

    up = joined(src_nic & dst_switch, len(nics))
    down = joined(src_switch & dst_nic, len(switches))
    pair = joined(src_nic & dst_nic, len(nics))
    access, access_sets = _access(down, len(switches), len(nics))
    used = np.flatnonzero((src_switch | src_nic) & (dst_switch | dst_nic) & framed & live)
    near, far = (
        dense[ends[used]] + len(switches) * nic[used]
        for ends, nic in ((src, src_nic), (dst, dst_nic))
    )
    climbs = np.ones(len(used), np.int32)
    between = src_switch[used] & dst_switch[used]
    climbs[between] = direction  # both in the order of their links
    by_place = np.argsort(near, kind="stable")
    ways = np.stack((order[used], far, climbs)).astype(np.int32)[:, by_place]
    ways_ptr = _ptr(near, len(switches) + len(nics))
    return Tables(
        dense=dense,
        tier=tier,
        ways=(ways_ptr, np.ascontiguousarray(ways)),
        into=(_ptr(hop_to, len(switches)), np.ascontiguousarray(into)),
        up=up,
        pair=pair,
        pcie=inside(LinkModel.PCIE),
        nvlink=inside(LinkModel.NVLINK),
        access=access,
        access_sets=access_sets,
        position=_positions(fabric, dense, tier),
        forwards=fabric.forwards,
        widest=max(int(np.diff(ways_ptr).max(initial=0)), 1),
        twins=merge_twins(hop_from, hop_to, direction, homes=np.diff(down[0]) > 0),
    )


def _access(
    down: Csr, switches: int, nics: int
) -> tuple[NDArray[np.int32], tuple[tuple[int, ...], ...]]:
    owners = np.repeat(np.arange(switches, dtype=np.int64), np.diff(down[0]))
    pairs = np.unique(down[1][1].astype(np.int64) * max(switches, 1) + owners)
    nic, switch = pairs // max(switches, 1), pairs % max(switches, 1)
    homes = np.bincount(nic, minlength=nics)
    access = np.full(nics, -1, np.int32)
    single = homes[nic] == 1
    access[nic[single]] = switch[single]
    starts = np.cumsum(homes) - homes
    numbers: dict[tuple[int, ...], int] = {}
    for k in np.flatnonzero(homes > 1):
        homed = tuple(int(s) for s in switch[starts[k] : starts[k] + homes[k]])
        access[k] = switches + numbers.setdefault(homed, len(numbers))
    return access, (*((s,) for s in range(switches)), *numbers)


def _ranks(
    children: NDArray[np.int64], parents: NDArray[np.int64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return each child's first parent, its rank among that parent's children, and their number."""
    parent = np.full(count, -1, np.int64)
    rank = np.zeros(count, np.int64)
    width = np.ones(count, np.int64)
    if not len(children):
        return parent, rank, width
    span = int(children.max()) + 1
    pairs = np.unique(parents * span + children)  # by parent, then child
    owner, child = pairs // span, pairs % span
    sizes = np.bincount(owner)
    starts = np.cumsum(sizes) - sizes
    place = np.arange(len(pairs)) - starts[owner]
    some, first = np.unique(child, return_index=True)  # the lowest parent wins
    parent[some], rank[some], width[some] = owner[first], place[first], sizes[owner[first]]
    return parent, rank, width


def _positions(
    fabric: Fabric, dense: NDArray[np.int32], tier: NDArray[np.int32]
) -> NDArray[np.int64]:
    src, dst = fabric.link_src, fabric.link_dst
    framed = fabric.link_network & (fabric.kind[dst] == DeviceKind.SWITCH)
    homes = np.flatnonzero(framed & (fabric.kind[src] == DeviceKind.NIC))
    climbs = np.flatnonzero(framed & (fabric.kind[src] == DeviceKind.SWITCH))
    climbs = climbs[tier[dense[dst[climbs]]] > tier[dense[src[climbs]]]]

    def ends(chosen: NDArray[np.intp]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return dense[src[chosen]].astype(np.int64), dense[dst[chosen]].astype(np.int64)

    leaf, position, radix = _ranks(*ends(homes), len(fabric.nics))
    above, rank, width = _ranks(*ends(climbs), len(tier))
    while (leaf >= 0).any():
        at = np.maximum(leaf, 0)
        position += np.where(leaf >= 0, rank[at] * radix, 0)
        radix = np.where(leaf >= 0, radix * width[at], radix)
        leaf = np.where(leaf >= 0, above[at], -1)
    return position


def nvlink_domains(fabric: Fabric) -> NDArray[np.int32]:
    """Return int32 (devices,): a label shared by devices that NVLinks in service join."""
    label = np.arange(fabric.n_devices, dtype=np.int32)
    links = np.flatnonzero((fabric.link_model == LinkModel.NVLINK) & fabric.link_up)
    src, dst = fabric.link_src[links], fabric.link_dst[links]
    while True:
        lowest = label.copy()
        np.minimum.at(lowest, dst, label[src])
        np.minimum.at(lowest, src, label[dst])
        if np.array_equal(lowest, label):
            return label
        label = lowest
