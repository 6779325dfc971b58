# SPDX-License-Identifier: Apache-2.0
"""What the names in faults stand for: cables, one direction of them, devices and hosts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.errors import InputError, nearest_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric

__all__ = ["devices_of", "links_of"]

_CABLE: Final = re.compile(r"(?P<a>.+:\d+)(?P<sign>[->])(?P<b>[^:]+:\d+)")


def links_of(fabric: Fabric, *, link: str | None = None, node: str | None = None) -> list[int]:
    """Return the links that a fault names: of a cable or one direction of it, or of a node.

    Raises
    ------
    InputError
        No such link or node; the nearest name is given.
    """
    if node is not None:
        devices = devices_of(fabric, node)
        touched = np.isin(fabric.link_src, devices) | np.isin(fabric.link_dst, devices)
        return [int(number) for number in np.flatnonzero(touched)]
    match = _CABLE.fullmatch(link or "")
    if match is None:
        raise InputError(
            f"'{link}' is not the name of a link", expected="A:port-B:port, or A:port>B:port"
        )
    ends = [tuple(match[side].rsplit(":", 1)) for side in ("a", "b")]
    for name, _ in ends:
        if name in fabric.host_index and name not in fabric.device_index:
            own = np.isin(fabric.link_src, devices_of(fabric, name)) & fabric.link_network
            cables = [fabric.link_name(int(k)).replace(">", "-") for k in np.flatnonzero(own)]
            raise InputError(
                f"'{name}' is a host, and cables end at its NICs",
                expected=cables[0] if len(cables) == 1 else "A:port-B:port of a cable",
                nearest=nearest_name(link or "", cables),
            )
    (a, a_port), (b, b_port) = ((fabric.device(name), int(port)) for name, port in ends)
    found = np.flatnonzero(
        (fabric.link_src == a)
        & (fabric.link_src_port == a_port)
        & (fabric.link_dst == b)
        & (fabric.link_dst_port == b_port)
    )
    if len(found) == 0:
        mine = np.flatnonzero((fabric.link_src == a) | (fabric.link_src == b)).tolist()
        names = [fabric.link_name(number) for number in mine]
        if match["sign"] == "-":
            names = [name.replace(">", "-") for name in names]
        raise InputError(
            f"{fabric.name} has no link '{link}'", nearest=nearest_name(link or "", names)
        )
    number = int(found[0])
    return [number, number ^ 1] if match["sign"] == "-" else [number]


def devices_of(fabric: Fabric, node: str) -> NDArray[np.int64]:
    """Return the devices of a host, or the one device of that name."""
    if node in fabric.host_index:
        return np.flatnonzero(fabric.host == fabric.host_index[node])
    return np.array([fabric.device(node)])
