# SPDX-License-Identifier: Apache-2.0
"""Paths that begin or end at a network switch, as those of reduction in the network do.

A GPU reaches a switch that one of its NICs has a cable to, and a switch its neighbours: trees of
aggregation go from one to the next. Of several cables the first in service is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.errors import UnreachableError
from railweave.fabric.graph import DeviceKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from railweave.fabric._inside import Inside
    from railweave.fabric.graph import Fabric

    Paths = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]

__all__ = ["at_switches", "with_switches"]


def at_switches(
    fabric: Fabric, src: NDArray[np.int32], dst: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Return which flows begin or end at a network switch, bool (n,)."""
    known = (src >= 0) & (src < fabric.n_devices) & (dst >= 0) & (dst < fabric.n_devices)
    kind = fabric.kind
    safe = np.where(known, src, 0), np.where(known, dst, 0)
    touch = (kind[safe[0]] == DeviceKind.SWITCH) | (kind[safe[1]] == DeviceKind.SWITCH)
    return np.asarray(known & touch)


def _cable(fabric: Fabric, src: int, dst: int) -> int | None:
    ptr, links = fabric.out_links
    for link in links[ptr[src] : ptr[src + 1]]:
        if fabric.link_dst[link] == dst and fabric.link_up[link] and fabric.link_network[link]:
            return int(link)
    return None


def _path(fabric: Fabric, inside: Inside, src: int, dst: int, qp: int) -> list[int]:
    """Return the links of one path."""
    kind = fabric.kind
    if kind[src] == kind[dst] == DeviceKind.SWITCH:
        link = _cable(fabric, src, dst)
        found = None if link is None else [link]
    else:
        end, switch = (src, dst) if kind[dst] == DeviceKind.SWITCH else (dst, src)
        found = None
        for nic, out, back in inside.ways_to_nics(end, qp):
            link = _cable(fabric, *((nic, switch) if switch == dst else (switch, nic)))
            if link is not None:
                found = [*out, link] if switch == dst else [link, *back]
                break
    if found is None:
        names = fabric.device_names
        raise UnreachableError(
            f"no route from '{names[src]}' to '{names[dst]}': no cable in service joins the switch "
            "to the other end or to a NIC of it"
        )
    return found


def with_switches(
    fabric: Fabric,
    inside: Inside,
    flows: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint64]],
    odd: NDArray[np.bool_],
    others: Callable[..., Paths],
) -> Paths:
    """Return the paths of flows of which those in ``odd`` begin or end at a switch.

    ``others`` routes the rest; all are ``(ptr, links, share)`` as in a path set.
    """
    src, dst, qp = flows
    rest = np.flatnonzero(~odd)
    ptr, links, share = np.zeros(1, np.int32), np.empty(0, np.int32), np.empty(0)
    if len(rest):
        ptr, links, share = others(src[rest], dst[rest], qp[rest])
    pieces: list[NDArray[np.int32]] = [np.empty(0, np.int32)] * len(src)
    shares: list[NDArray[np.float64]] = [np.empty(0)] * len(src)
    for row, flow in enumerate(rest):
        pieces[flow] = links[ptr[row] : ptr[row + 1]]
        shares[flow] = share[ptr[row] : ptr[row + 1]]
    for flow in np.flatnonzero(odd):
        path = _path(fabric, inside, int(src[flow]), int(dst[flow]), int(qp[flow]))
        pieces[flow], shares[flow] = np.array(path, np.int32), np.ones(len(path))
    lengths = np.array([len(piece) for piece in pieces], np.int64)
    out = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    return out, np.concatenate(pieces).astype(np.int32), np.concatenate(shares)
