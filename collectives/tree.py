# SPDX-License-Identifier: Apache-2.0
"""Pipelined double binary trees: all_reduce, broadcast, reduce and barrier.

Two binary trees span the ranks below one root, so that a rank that passes chunks on in one of them
is a leaf in the other. Each tree carries half of the buffer in chunks, up (reduce), down
(broadcast) or up and then down (all_reduce). So no rank sends or receives more than the buffer
once per direction of the trees, though inner ranks have two children.

The trees are those of `railweave.collectives.double_tree`; neighbours in rank order are neighbours
in them.

Times. All_reduce with full pipelining: ``2 * ceil(log2(n)) * alpha + 2 * S / B`` (less for two and
three ranks, see `tree_load`). It is reached when the buffer is long against ``alpha * B``, and
exactly the latency of an empty one; between, a rank may fill the wait for what comes down with
what goes up and take less than the sum, though never less than ``2 * S / B`` and twice
``ceil(log2(n)) * alpha``. Broadcast and reduce with ``k`` chunks on each tree and one slot:
``(D + k - 1) * (alpha + S / (k * B))``; in that model a chunk takes ``S / (k * B)`` as it goes to
two children at once.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from railweave.collectives.algorithm import Links, Shape, algorithm
from railweave.collectives.double_tree import send_over_trees, tree_depth, tree_load, two_trees
from railweave.collectives.pipeline import SLOTS, last_start_ps, nics_in_use, sized_chunks
from railweave.collectives.structure import Structure, StructureBuilder
from railweave.fabric.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = [
    "tree_all_reduce",
    "tree_barrier",
    "tree_broadcast",
    "tree_reduce",
]


def _options(
    shape: Shape, size_bytes: int, links: Links | None, given: Mapping[str, int], *, ways: int
) -> Mapping[str, int]:
    channels = given.get("channels", 1)
    return sized_chunks(
        shape,
        size_bytes // channels,
        links,
        given,
        depth=ways * max(tree_depth(shape.ranks), 1),
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
    sent = tree_load(shape.ranks) * size_bytes / nics_in_use(shape, channels)
    return 2 * tree_depth(shape.ranks) * links.alpha_ps + sent * 8 * PS_PER_S / links.rate_bps


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
    depth = tree_depth(shape.ranks)
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
    build = StructureBuilder(n_ranks=shape.ranks, n_chunks=2 * channels * chunks)
    if shape.ranks == 1:
        return build.finish()
    connection = 2 * np.arange(channels, dtype=np.int32) + np.arange(2, dtype=np.int32)[:, None]
    part = np.arange(chunks, dtype=np.int32)[:, None, None]
    send_over_trees(
        build,
        rank=_orders(shape, root, channels).T,
        parent=two_trees(shape.ranks),
        chunk=connection * np.int32(chunks) + part,
        channel=connection,
        slots=slots,
        up=up,
        down=down,
    )
    return build.finish()


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
    return 2 * tree_depth(shape.ranks) * links.message_ps(Fraction(size_bytes // 2))


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
