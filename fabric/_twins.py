# SPDX-License-Identifier: Apache-2.0
"""Switches that are equally far from everything, so that one search of distances does for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Twins", "merge_twins"]


@dataclass(frozen=True, eq=False)
class Twins:
    """Switches by what they are equally far from.

    Two switches without NICs and with the same neighbours in the same directions, such as the
    cores of a plane, are as many hops from any third switch: one search does for both. Parallel
    cables count once.

    Parameters
    ----------
    one
        int32 (switches,): the merged number of each switch.
    alone
        bool (switches,): whether no other switch has that number.
    into
        The steps between merged numbers as CSR by far end: ``ptr``, and a table whose rows are -1
        (no link in particular), the near end, and the direction: +1 up, 0 across, -1 down.
    """

    one: NDArray[np.int32]
    alone: NDArray[np.bool_]
    into: tuple[NDArray[np.int32], NDArray[np.int32]]


def merge_twins(
    near: NDArray[np.int32],
    far: NDArray[np.int32],
    direction: NDArray[np.int32],
    *,
    homes: NDArray[np.bool_],
) -> Twins:
    """Merge the switches that have the same steps onward and are not ``homes`` of NICs.

    Parameters
    ----------
    near, far, direction
        int32 (links,): the two switches of each link, and the direction of the step.
    homes
        bool (switches,): whether a NIC can be reached from the switch.

    Notes
    -----
    The hops from a switch to any other follow from its steps onward alone, so equal steps mean
    equal hops, in any phase of a path.
    """
    span = max(len(homes), 1)
    steps = np.unique((near.astype(np.int64) * span + far) * 3 + (direction + 1))
    owner, onward = np.divmod(steps, 3 * span)
    ptr = _ptr(owner, len(homes))
    known: dict[bytes, int] = {}
    one = np.empty(len(homes), np.int32)
    merged = 0
    for switch, home in enumerate(homes.tolist()):
        mine = onward[ptr[switch] : ptr[switch + 1]].tobytes()
        one[switch] = merged if home else known.setdefault(mine, merged)
        merged += int(one[switch] == merged)
    to, turn = np.divmod(onward, 3)
    span = max(merged, 1)
    ends, turn = np.divmod(np.unique((one[to].astype(np.int64) * span + one[owner]) * 3 + turn), 3)
    to, owner = np.divmod(ends, span)
    table = np.stack((np.full(len(to), -1), owner, turn - 1)).astype(np.int32)
    alone = np.bincount(one, minlength=merged)[one] == 1
    return Twins(one=one, alone=alone, into=(_ptr(to, merged), table))


def _ptr(owners: NDArray[np.int64], count: int) -> NDArray[np.int32]:
    ptr = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(owners, minlength=count), out=ptr[1:])
    return ptr
