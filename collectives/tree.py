# SPDX-License-Identifier: Apache-2.0
"""Pipelined double binary trees: all_reduce, broadcast, reduce and barrier.

Two binary trees span the ranks below one root, so that a rank that passes chunks on in one of them
is a leaf in the other. Each tree carries half of the buffer in chunks, up (reduce), down
(broadcast) or up and then down (all_reduce). So no rank sends or receives more than the buffer
once per direction of the trees, though inner ranks have two children.

The trees are in-order: position ``p`` with lowest bit ``b`` hangs below ``p - b`` or ``p + b``.
Their depth is ``ceil(log2(n))``, and neighbours in rank order are neighbours in them.

Times. All_reduce with full pipelining: ``2 * ceil(log2(n)) * alpha + 2 * S / B`` (less for two and
three ranks, see `_load`). It is what is reached when the buffer is long against ``alpha * B``, and
exactly the latency of an empty one; between, a rank may fill the wait for what comes down with
what goes up and take less than the sum, though never less than ``2 * S / B`` and twice
``ceil(log2(n)) * alpha``. Broadcast and reduce with ``k`` chunks on each tree and one slot:
``(D + k - 1) * (alpha + S / (k * B))``; in that model a chunk takes ``S / (k * B)`` as it goes to
two children at once.

Source: Sanders, Speck and Traff, "Two-tree algorithms for full bandwidth broadcast, reduction and
scan", Parallel Computing 35 (2009); the trees are those of NCCL's src/graph/trees.cc, both hung
below the same root.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from railweave.collectives.algorithm import Links, Shape, algorithm
from railweave.collectives.pipeline import (
    SLOTS,
    last_start_ps,
    limit_to_slots,
    nics_in_use,
    sized_chunks,
)
from railweave.collectives.structure import Structure, StructureBuilder
from railweave.fabric.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = [
    "tree_all_reduce",
    "tree_barrier",
    "tree_broadcast",
    "tree_levels",
    "tree_reduce",
    "two_trees",
]


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


def _depth(ranks: int) -> int:
    return (ranks - 1).bit_length()


def _load(ranks: int) -> Fraction:
    """Return how often the busiest rank of an all_reduce sends the buffer.

    An inner rank with two children: half of it up and twice half of it down in one tree, half of
    it up as a leaf of the other. Two ranks have no inner one, of three none has two children.
    """
    return {1: Fraction(0), 2: Fraction(1), 3: Fraction(3, 2)}.get(ranks, Fraction(2))


def _options(
    shape: Shape, size_bytes: int, links: Links | None, given: Mapping[str, int], *, ways: int
) -> Mapping[str, int]:
    channels = given.get("channels", 1)
    return sized_chunks(
        shape,
        size_bytes // channels,
        links,
        given,
        depth=ways * max(_depth(shape.ranks), 1),
        nodes_per_chunk=2 * ways * (shape.ranks - 1) * channels,
    )


def _one_way_options(
    shape: Shape, size_bytes: int, links: Links | None, given: Mapping[str, int]
) -> Mapping[str, int]:
    return _options(shape, size_bytes, links, given, ways=1)


def _both_ways_options(
    shape: Shape, size_bytes: int, links: Links | None, given: Mapping[str, int]
) -> Mapping[str, int]:
    return _options(shape, size_bytes, links, given, ways=2)


def _all_reduce_ps(
    shape: Shape,
    size_bytes: int,
    links: Links,
    *,
    chunks: int = 1,
    channels: int = 1,
    slots: int = SLOTS,
) -> Fraction:
    """Return the time with full pipelining: chunks and slots change nothing then."""
    del chunks, slots
    sent = _load(shape.ranks) * size_bytes / nics_in_use(shape, channels)
    return 2 * _depth(shape.ranks) * links.alpha_ps + sent * 8 * PS_PER_S / links.rate_bps


def _one_way_ps(
    shape: Shape,
    size_bytes: int,
    links: Links,
    *,
    root: int = 0,
    chunks: int = 1,
    channels: int = 1,
    slots: int = SLOTS,
) -> Fraction:
    """Return the time of the pipeline on one host: exact from four ranks and two chunks on.

    Fewer ranks have no inner one with two children, and a single chunk may meet no other on some
    hop of a tree that is not full: both may take less.
    """
    shape.check_rank(root, field="root")
    depth = _depth(shape.ranks)
    if depth == 0:
        return Fraction(0)
    rate = links.rate_bps * nics_in_use(shape, channels)
    each = Fraction(size_bytes * 8 * PS_PER_S, chunks * rate)
    start = last_start_ps(chunks, slots, alpha_ps=links.alpha_ps, each_ps=each)
    return depth * (links.alpha_ps + each) + start


def _orders(shape: Shape, root: int | None, channels: int) -> NDArray[np.int32]:
    """Return the rank at each position of the trees of each channel, int32 (channels, ranks).

    Hosts lie one after another, each turned by the number of the channel, so that trees of
    different channels leave it by different ranks. The root, if it is given, and its host come
    first; else each channel has a root of its own.
    """
    members = list(shape.members)
    if root is not None:
        home = 0 if shape.hosts is None else shape.hosts[root]
        own = members.pop(home)
        rest = np.roll(own, -int(np.flatnonzero(own == root)[0]))[1:]
    orders = []
    for channel in range(channels):
        turned = [np.roll(own, -channel) for own in members]
        if root is not None:
            turned = [np.array([root], np.int32), np.roll(rest, -channel), *turned]
        orders.append(np.concatenate(turned))
    return np.stack(orders)


def _trees(
    shape: Shape, *, root: int | None, chunks: int, channels: int, slots: int, up: bool, down: bool
) -> Structure:
    if root is not None:
        shape.check_rank(root, field="root")
    rank = _orders(shape, root, channels)
    build = StructureBuilder(n_ranks=shape.ranks, n_chunks=2 * channels * chunks)
    if shape.ranks == 1:
        return build.finish()
    parent = two_trees(shape.ranks)
    below = np.arange(1, shape.ranks, dtype=np.int32)
    level = tree_levels(parent)[:, 1:]  # of the positions below the root
    depth = np.int32(level.max())
    part = np.arange(chunks, dtype=np.int32)[:, None, None, None]
    channel = np.arange(channels, dtype=np.int32)[None, :, None, None]
    tree = np.arange(2, dtype=np.int32)[None, None, :, None]
    connection = channel * np.int32(2) + tree
    chunk = connection * np.int32(chunks) + part
    child = rank[None, :, None, below]
    above = rank[:, parent[:, 1:]][None]
    # Nodes have axes chunk, channel, tree, position (less one).
    rising = falling = np.empty((0, 0, 2, 0), np.int32)
    if up:
        rising = build.transfers(
            src=child,
            dst=above,
            chunk=chunk,
            phase=depth - level + part,
            combine=True,
            channel=connection,
        )
        limit_to_slots(build, rising, slots)
    if down:
        phase = level - np.int32(1) + part + (depth if up else np.int32(0))
        falling = build.transfers(
            src=above, dst=child, chunk=chunk, phase=phase, channel=connection
        )
        limit_to_slots(build, falling, slots)
    for t in range(2):
        over = parent[t, 1:]
        inner = over > 0
        top = np.flatnonzero(~inner)
        mine, its = np.flatnonzero(inner), over[inner] - 1
        if up:
            build.depend(before=rising[:, :, t, mine], after=rising[:, :, t, its])
        if down:
            build.depend(before=falling[:, :, t, its], after=falling[:, :, t, mine])
        if up and down:  # the root has one child in each tree
            build.depend(before=rising[:, :, t, top], after=falling[:, :, t, top])
    return build.finish()


def tree_levels(parent: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the distance of each position from the root of its tree, int32, (trees, ranks)."""
    level = np.zeros_like(parent)
    for t in range(len(parent)):
        at = parent[t].copy()
        while (at >= 0).any():
            level[t] += at >= 0
            at = np.where(at >= 0, parent[t, at], np.int32(-1))
    return level


@algorithm(
    "all_reduce",
    "tree",
    closed_form=_all_reduce_ps,
    uses_hosts=True,
    sized_options=_both_ways_options,
)
def tree_all_reduce(
    shape: Shape, *, chunks: int = 1, channels: int = 1, slots: int = SLOTS
) -> Structure:
    """Build a double binary tree all_reduce of ``chunks`` chunks on each tree of a channel."""
    return _trees(
        shape, root=None, chunks=chunks, channels=channels, slots=slots, up=True, down=True
    )


def _barrier_ps(shape: Shape, size_bytes: int, links: Links) -> Fraction:
    """Return the time of a token of no size; of one that has a size, a bound."""
    return 2 * _depth(shape.ranks) * links.message_ps(Fraction(size_bytes // 2))


@algorithm("barrier", "tree", closed_form=_barrier_ps, uses_hosts=True)
def tree_barrier(shape: Shape) -> Structure:
    """Build a barrier: a token goes up the trees and comes down again."""
    return _trees(shape, root=None, chunks=1, channels=1, slots=SLOTS, up=True, down=True)


@algorithm(
    "broadcast",
    "tree",
    closed_form=_one_way_ps,
    uses_hosts=True,
    sized_options=_one_way_options,
)
def tree_broadcast(
    shape: Shape, *, root: int = 0, chunks: int = 1, channels: int = 1, slots: int = SLOTS
) -> Structure:
    """Build a two-tree broadcast from rank ``root``."""
    return _trees(
        shape, root=root, chunks=chunks, channels=channels, slots=slots, up=False, down=True
    )


@algorithm(
    "reduce",
    "tree",
    closed_form=_one_way_ps,
    uses_hosts=True,
    sized_options=_one_way_options,
)
def tree_reduce(
    shape: Shape, *, root: int = 0, chunks: int = 1, channels: int = 1, slots: int = SLOTS
) -> Structure:
    """Build a two-tree reduce to rank ``root``."""
    return _trees(
        shape, root=root, chunks=chunks, channels=channels, slots=slots, up=True, down=False
    )
