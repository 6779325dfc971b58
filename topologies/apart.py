# SPDX-License-Identifier: Apache-2.0
"""Which GPUs cannot reach which: groups by groups, by name, and within given groups."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from railweave.topologies.name_ranges import name_ranges
from railweave.topologies.reach import ReachClasses, reach_classes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from railweave.fabric.graph import Fabric

__all__ = ["Apart", "apart_groups", "lost_within"]


@dataclass(frozen=True, kw_only=True)
class Apart:
    """GPUs of one side that cannot reach those of the other.

    Parameters
    ----------
    one, other
        Names of GPUs, in index order; equal where GPUs cannot reach each other.
    pairs
        Ordered pairs that are lost, both ways: fewer than all where NVLink or PCIe joins some.
    joined
        Ordered pairs of the two sides that NVLink or PCIe joins all the same.
    """

    one: tuple[str, ...]
    other: tuple[str, ...]
    pairs: int
    joined: int

    def __str__(self) -> str:
        sides = f"{name_ranges(self.one)} and {name_ranges(self.other)}"
        if self.one == self.other:
            sides = f"{name_ranges(self.one)} among each other"
        inside = ", but those that NVLink or PCIe joins" if self.joined else ""
        return f"{sides}{inside} ({self.pairs:,} pairs)"


def apart_groups(fabric: Fabric) -> list[Apart]:
    """Return all pairs that `unreachable_pairs` counts, as few groups by groups as they make.

    Every unordered pair is of exactly one entry. GPUs that are cut off from most come first.
    """
    found = reach_classes(fabric)
    sizes = np.bincount(found.place, minlength=len(found.cut))
    open_pairs = found.cut & (sizes[:, None] > 0) & (sizes[None, :] > 0)
    open_pairs |= open_pairs.T
    names = np.array([fabric.device_names[gpu] for gpu in fabric.gpus.tolist()], object)
    groups = []
    while open_pairs.any():
        most = int(open_pairs.sum(axis=1).argmax())
        beyond = open_pairs[most].copy()
        # all places that are cut off from the same ones, as long as none is on both sides
        alike = (open_pairs == beyond).all(axis=1) & beyond.any()
        if (alike & beyond).any():
            alike = np.arange(len(beyond)) == most
        mask = alike[:, None] & beyond[None, :]
        mask |= mask.T
        pairs = replace(found, cut=found.cut & mask).count()
        one, other = alike[found.place], beyond[found.place]
        both = int((one & other).sum())
        every = 2 * int(one.sum()) * int(other.sum()) - both * both - both
        if pairs:
            groups.append(
                Apart(
                    one=tuple(names[one]),
                    other=tuple(names[other]),
                    pairs=pairs,
                    joined=every - pairs,
                )
            )
        open_pairs &= ~mask
    return groups


def lost_within(fabric: Fabric, groups: Iterable[Sequence[int]]) -> list[int]:
    """Count the ordered pairs within each group of GPUs that nothing joins.

    Parameters
    ----------
    fabric
        The fabric.
    groups
        Device indices of GPUs.
    """
    found = reach_classes(fabric)
    number = np.full(fabric.n_devices, -1, np.int64)
    number[fabric.gpus] = np.arange(len(fabric.gpus))
    lost = []
    for group in groups:
        members = number[np.asarray(group, np.int64)]
        places = np.unique(found.place[members])
        few = found.cut[np.ix_(places, places)]
        if not few.any():
            lost.append(0)
            continue
        some = ReachClasses(
            nvlink=found.nvlink[members],
            pcie=found.pcie[members],
            place=np.searchsorted(places, found.place[members]),
            cut=few,
        )
        lost.append(some.count())
    return lost
