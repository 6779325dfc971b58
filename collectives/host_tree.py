# SPDX-License-Identifier: Apache-2.0
"""NCCL's tree all_reduce: a chain inside each host, two binary trees between hosts.

Each channel has a chain of its own, which ends at another rank of the host and so leaves it by
another NIC. In a host a rank passes on what it holds and what came from behind it; the ends of the
chains combine over the hosts up the trees, each tree with half of the channel's part, and all of it
comes back the same way. Between two hosts each sends the buffer once, where a ring sends
``2 * (n - 1) / n`` of it: busbw may exceed the rate of the NICs.

Time with ``N`` hosts of ``g`` ranks, fully pipelined: ``2 * (g - 1) * alpha' + 2 * ceil(log2(N)) *
alpha`` and the larger of ``2 * (g - 1) / g * S / B'``, with chains that begin at every rank, and
``L * S / (c * B)``, primes within a host, where ``c`` NICs are in use and ``L`` is 1, 1.5 or 2 for
two, three or more hosts.

Source: NVIDIA/nccl src/graph/trees.cc (``ncclGetDtree``) and src/graph/connect.cc, where the tree
within a node is a chain.
"""

from __future__ import annotations

from fractions import Fraction
from math import isqrt
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.collectives.algorithm import Links, Shape, algorithm
from railweave.collectives.double_tree import send_over_trees, tree_depth, tree_load, two_trees
from railweave.collectives.pipeline import SLOTS
from railweave.collectives.structure import Structure, StructureBuilder
from railweave.fabric.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["host_tree_all_reduce"]

_MOST_CHUNKS: Final = 128
_MOST_NODES: Final = 2**18
_MOST_OF_LONG: Final = 2**20  # nodes where the buffer is long: filling the pipe costs more
_LONG_BYTES: Final = 2**28


def _options(
    shape: Shape, size_bytes: int, links: Links | None, given: Mapping[str, int]
) -> Mapping[str, int]:
    """Return a channel for each NIC, and pieces that grow with the root of what a tree carries.

    A pipeline of ``k`` pieces over ``D`` hops takes ``(D + k - 1) * (alpha + S / (k * B))``.
    """
    del links
    channels = given.get("channels", min(shape.host_shares))
    found: dict[str, int] = {} if "channels" in given else {"channels": channels}
    stream = size_bytes // (2 * channels)
    if "chunk_bytes" in given:
        found["chunks"] = max(-(-stream // given["chunk_bytes"]), 1)
    elif "chunks" not in given and shape.ranks > 1:
        nodes = _MOST_NODES if size_bytes < _LONG_BYTES else _MOST_OF_LONG
        most = max(nodes // (4 * (shape.ranks - 1) * channels), 2)
        pieces = max(min(isqrt(stream // 1024), _MOST_CHUNKS, most), 1)
        found["chunks"] = 1 << (pieces.bit_length() - 1)  # sizes share structures, and divide
    return found


def _tree_ps(
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
    shares = shape.host_shares
    hosts, most = len(shares), max(shares)
    size_ps = Fraction(size_bytes * 8 * PS_PER_S)
    latency = 2 * (most - 1) * links.local_alpha_ps + (2 * tree_depth(hosts) * links.alpha_ps)
    inside = size_ps * Fraction(2 * (most - 1), most) / links.local_rate_bps
    across = size_ps * tree_load(hosts) / (min(channels, *shares, 64) * links.rate_bps)
    return latency + max(inside, across)


def _parents(shares: tuple[int, ...]) -> NDArray[np.int32]:
    """Return the parent of each position in both trees, hosts one after another, int32 (2, ranks).

    The heads of hosts hang in the trees over hosts, all others below the one before them.
    """
    head = np.cumsum((0, *shares[:-1])).astype(np.int32)
    chain = np.arange(-1, sum(shares) - 1, dtype=np.int32)
    parent = np.stack((chain, chain))
    over = two_trees(len(shares))
    parent[:, head[1:]] = head[over[:, 1:]]
    return parent


@algorithm("all_reduce", "host_tree", closed_form=_tree_ps, uses_hosts=True, sized_options=_options)
def host_tree_all_reduce(
    shape: Shape, *, chunks: int = 1, channels: int = 1, slots: int = SLOTS
) -> Structure:
    """Build NCCL's tree all_reduce of ``chunks`` chunks on each of the two trees of a channel."""
    build = StructureBuilder(n_ranks=shape.ranks, n_chunks=2 * channels * chunks)
    if shape.ranks == 1:
        return build.finish()
    lanes = [[np.roll(own, -channel) for own in shape.members] for channel in range(channels)]
    connection = 2 * np.arange(channels, dtype=np.int32) + np.arange(2, dtype=np.int32)[:, None]
    part = np.arange(chunks, dtype=np.int32)[:, None, None]
    send_over_trees(
        build,
        rank=np.stack([np.concatenate(lane) for lane in lanes], axis=1),
        parent=_parents(shape.host_shares),
        chunk=connection * np.int32(chunks) + part,
        channel=connection,
        slots=slots,
    )
    return build.finish()
