# SPDX-License-Identifier: Apache-2.0
"""Two binary trees over the same positions, and what is sent up and down them.

A position that passes chunks on in one tree is a leaf in the other. The trees are in-order:
position ``p`` with lowest bit ``b`` hangs below ``p - b`` or ``p + b``; their depth is
``ceil(log2(n))``.

Source: Sanders, Speck and Traff, "Two-tree algorithms for full bandwidth broadcast, reduction and
scan", Parallel Computing 35 (2009); the trees are those of NCCL's src/graph/trees.cc, both hung
below the same root.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from railweave.collectives.pipeline import limit_to_slots

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.collectives.structure import StructureBuilder

__all__ = ["send_over_trees", "tree_depth", "tree_levels", "tree_load", "two_trees"]


def tree_depth(ranks: int) -> int:
    """Return the depth of the trees, ``ceil(log2(ranks))``."""
    return (ranks - 1).bit_length()


def tree_load(ranks: int) -> Fraction:
    """Return how often the busiest rank of an all_reduce sends the buffer.

    An inner rank with two children: half of it up and twice half of it down in one tree, half of
    it up as a leaf of the other. Two ranks have no inner one, of three none has two children.
    """
    return {1: Fraction(0), 2: Fraction(1), 3: Fraction(3, 2)}.get(ranks, Fraction(2))


def two_trees(ranks: int) -> NDArray[np.int32]:
    """Return the parent of each position in both trees; that of position 0, the root, is -1.

    Returns
    -------
    int32, shape (2, ranks).

    Examples
    --------
    >>> two_trees(6).tolist()
    [[-1, 2, 4, 2, 0, 4], [-1, 5, 3, 5, 3, 0]]
    """
    place = np.arange(1, ranks, dtype=np.int32)
    bit = place & -place
    above = (place ^ bit) | (bit << 1)
    first = np.where(above < ranks, above, place ^ bit)
    # The second tree has the odd positions, the leaves of the first, inside: mirrored where that
    # turns odd into even, else shifted by one.
    role = np.arange(ranks, dtype=np.int32)
    if ranks % 2:
        role[1:] = role[1:][::-1].copy()
    else:
        role[1:] = np.roll(role[1:], 1)
    holder = np.argsort(role).astype(np.int32)
    parent = np.full((2, ranks), -1, np.int32)
    parent[0, 1:] = first
    parent[1, holder[1:]] = holder[first]
    return parent


def tree_levels(parent: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the distance of each position from the root of its tree, int32, (trees, ranks)."""
    level = np.zeros_like(parent)
    for t in range(len(parent)):
        at = parent[t].copy()
        while (at >= 0).any():
            level[t] += at >= 0
            at = np.where(at >= 0, parent[t, at], np.int32(-1))
    return level


def send_over_trees(
    build: StructureBuilder,
    *,
    rank: NDArray[np.int32],
    parent: NDArray[np.int32],
    chunk: NDArray[np.int32],
    channel: NDArray[np.int32],
    slots: int | None = None,
    first_phase: int = 0,
    up: bool = True,
    down: bool = True,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Add what is combined up two trees, and what comes down them.

    Lanes are trees of the same form over other ranks. Nodes are numbered piece by piece and, within
    a piece, position by position: so lanes that differ by a rotation of the ranks look alike, on
    links that several of them share too.

    Parameters
    ----------
    rank
        int32 (positions, lanes): rank at each position of a lane.
    parent
        int32 (2, positions): parent of each position in both trees, -1 for position 0, the root.
    chunk
        int32 (pieces, 2, lanes): chunk of each piece of a tree of a lane.
    channel
        int32 (2, lanes): connection that it takes.
    slots
        Most pieces under way on a connection; None: any number.
    first_phase
        Phase of what leaves the deepest position.
    up, down
        Which ways are gone.

    Returns
    -------
    The nodes that rise from, and that come down to, each position below the root, int32 (pieces, 2,
    positions - 1, lanes); empty where that way is not gone.
    """
    level = tree_levels(parent)[:, 1:, None]
    depth = np.int32(level.max()) + np.int32(first_phase)
    part = np.arange(len(chunk), dtype=np.int32)[:, None, None, None]
    below, above = rank[None, 1:], rank[parent[:, 1:]]
    pieces, connection = chunk[:, :, None, :], channel[:, None, :]
    rising = falling = np.empty((0, 2, 0, 0), np.int32)
    if up:
        rising = build.transfers(
            src=below, dst=above, chunk=pieces, phase=depth - level + part, combine=True,
            channel=connection,
        )  # fmt: skip
    if down:
        after_up = depth if up else np.int32(first_phase)
        falling = build.transfers(
            src=above, dst=below, chunk=pieces, phase=after_up + level - np.int32(1) + part,
            channel=connection,
        )  # fmt: skip
    for way in (rising, falling):
        if slots is not None and way.size:
            limit_to_slots(build, way, slots)
    for t in range(2):
        over = parent[t, 1:]
        mine, top = np.flatnonzero(over > 0), np.flatnonzero(over == 0)
        its = over[mine] - 1
        if up:
            build.depend(before=rising[:, t, mine], after=rising[:, t, its])
        if down:
            build.depend(before=falling[:, t, its], after=falling[:, t, mine])
        if up and down:  # nothing comes down before all of it has reached the root
            build.depend(before=rising[:, t, top][:, :, None], after=falling[:, t, top][:, None])
    return rising, falling
