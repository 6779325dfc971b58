# SPDX-License-Identifier: Apache-2.0
"""The level and the plane of each switch of a fabric, as drawings stack them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.graph import DeviceKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric

__all__ = ["planes_of", "switch_levels"]

_PLANE: Final = re.compile(r"\.p(\d+)$")


def switch_levels(fabric: Fabric) -> NDArray[np.int64]:
    """int64 (devices,): the tier of each, else one more than its lowest neighbour's."""
    switch = fabric.kind == DeviceKind.SWITCH
    level = np.where(switch, np.where(fabric.tier > 0, fabric.tier, -1), 0).astype(np.int64)
    src, dst = fabric.link_src, fabric.link_dst
    while True:
        reached = (level[src] >= 0) & (level[dst] < 0)
        if not reached.any():
            level[level < 0] = 1
            return level
        found = np.full(len(level), np.iinfo(np.int64).max)
        np.minimum.at(found, dst[reached], level[src[reached]] + 1)
        level = np.where((level < 0) & (found < found.max(initial=0)), found, level)


def planes_of(fabric: Fabric) -> NDArray[np.int64]:
    """int64 (devices,): the plane of each switch, told by its name (``leaf0.r3.p1``), or -1."""
    plane = np.full(fabric.n_devices, -1, np.int64)
    for switch in fabric.switches.tolist():
        if found := _PLANE.search(fabric.device_names[switch]):
            plane[switch] = int(found[1])
    return plane
