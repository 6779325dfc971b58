# SPDX-License-Identifier: Apache-2.0
"""NVLS, and NVLSTree over several hosts: reduction and multicast inside the NVSwitches.

Within a host each rank owns a share. For each piece of a share every rank sends its part to the
NVSwitch, which adds them up on the way to the owner (``multimem.ld_reduce``); the owner sends the
sum to the switch, which hands it to all others (``multimem.st``). So a rank sends
``(1 + 1 / g) * S`` and receives ``S``, whatever the number ``g`` of ranks.

Over several hosts (NVLSTree) the owners of a share, one on each host, first combine their sums up
two binary trees and bring the result down again, each tree with half of the share. Between two
hosts that is half of the bytes that a ring sends.

In the schedule the switches are ranks after the last one, a switch for each host.

Time: ``alpha + (1 + 1 / g) * S / B`` in a host with pieces that follow each other; over hosts the
larger of that and the bytes of the busiest NIC, and twice the depth of the trees in latencies.

Source: NVIDIA/nccl src/device/all_reduce.h (``NCCL_ALGO_NVLS``, ``NCCL_ALGO_NVLS_TREE``); Klenk et
al., "An in-network architecture for accelerating shared-memory multiprocessor collectives", ISCA
2020.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from railweave.collectives.algorithm import Links, Shape, algorithm
from railweave.collectives.double_tree import send_over_trees, tree_depth, tree_load, two_trees
from railweave.collectives.structure import Structure, StructureBuilder
from railweave.fabric.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["nvls_all_gather", "nvls_all_reduce", "nvls_reduce_scatter"]

_PIECES = 256  # of a buffer through one switch one after another, so that filling takes little
_PIECES_OF_MANY = 512  # over several hosts, on all connections between two of them
_LEAST_BYTES = 16384  # a shorter piece costs more events than it gains
_MOST_NODES = 2**18


def _options(
    shape: Shape, size_bytes: int, links: Links | None, given: Mapping[str, int]
) -> Mapping[str, int]:
    del links
    if "chunks" in given or shape.ranks == 1:
        return {}
    shares = min(shape.host_shares) * (2 if len(shape.host_shares) > 1 else 1)
    if "chunk_bytes" in given:
        return {"chunks": max(-(-size_bytes // (shares * given["chunk_bytes"])), 1)}
    most = max(_MOST_NODES // (shares * 3 * shape.ranks), 1)
    long = max(size_bytes // (shares * _LEAST_BYTES), 1)
    pieces = _PIECES if len(shape.host_shares) == 1 else _PIECES_OF_MANY
    return {"chunks": min(max(-(-pieces // shares), 1), most, long)}


def _alone_ps(shape: Shape, size_bytes: int, links: Links, *, chunks: int = 1) -> Fraction:
    """Return what the switch needs, and the last piece's way out; over hosts the busier of both."""
    if shape.ranks == 1:
        return Fraction(0)
    least, hosts = min(shape.host_shares), len(shape.host_shares)
    size_ps = Fraction(size_bytes * 8 * PS_PER_S)
    inside = size_ps * (1 + Fraction(1, max(shape.host_shares))) / links.local_rate_bps
    if hosts == 1:
        return 4 * links.local_alpha_ps + inside
    across = size_ps * tree_load(hosts) / (least * links.rate_bps)
    levels = 2 * tree_depth(hosts)
    return levels * links.alpha_ps + max(across, inside if max(shape.host_shares) > 1 else across)


def _build(shape: Shape, *, chunks: int) -> Structure:
    members = shape.members
    hosts, owners = len(members), min(shape.host_shares)
    trees = 2 if hosts > 1 else 1
    n_chunks = owners * trees * chunks
    switches = hosts if shape.ranks > 1 else 0
    build = StructureBuilder(n_ranks=shape.ranks + switches, n_chunks=n_chunks, switches=switches)
    if shape.ranks == 1:
        return build.finish()
    # Chunks have axes piece, tree, owner, so that the pieces of all owners follow each other.
    piece = np.arange(chunks, dtype=np.int32)[:, None, None]
    tree = np.arange(trees, dtype=np.int32)[None, :, None]
    owner = np.arange(owners, dtype=np.int32)[None, None, :]
    chunk = (owner * np.int32(trees) + tree) * np.int32(chunks) + piece
    leaders = np.stack([own[:owners] for own in members])
    summed = np.full((hosts, *chunk.shape), -1, np.int32)  # what brings a host's sum to its owner
    for host, own in enumerate(members):
        if len(own) > 1:
            summed[host] = _reduced(build, own, owners, shape.ranks + host, chunk)
    levels = tree_depth(hosts)
    final = _across(build, leaders, summed, chunk) if hosts > 1 else summed
    for host, own in enumerate(members):
        if len(own) > 1:
            _spread(build, own, owners, shape.ranks + host, chunk, final[host], 2 + 2 * levels)
    return build.finish()


def _reduced(
    build: StructureBuilder,
    own: NDArray[np.int32],
    owners: int,
    switch: int,
    chunk: NDArray[np.int32],
) -> NDArray[np.int32]:
    """Add what goes up to a host's switch and back to the owners; return the latter."""
    raised = build.transfers(
        src=own[None, None, None, :],
        dst=np.full(1, switch, np.int32),
        chunk=chunk[..., None],
        combine=True,
    )
    back = build.transfers(src=np.full(1, switch, np.int32), dst=own[:owners], chunk=chunk, phase=1)
    build.depend(before=raised, after=back[..., None])
    return back


def _spread(
    build: StructureBuilder,
    own: NDArray[np.int32],
    owners: int,
    switch: int,
    chunk: NDArray[np.int32],
    final: NDArray[np.int32],
    phase: int,
) -> None:
    """Add what the owners send to a host's switch, and it to all others, after ``final``."""
    out = build.transfers(
        src=own[:owners], dst=np.full(1, switch, np.int32), chunk=chunk, phase=phase, channel=1
    )
    if (final >= 0).all():
        build.depend(before=final, after=out)
    owner = np.broadcast_to(np.arange(owners)[None, None, :, None], (*chunk.shape, len(own)))
    other = np.broadcast_to(np.arange(len(own))[None, None, None, :], owner.shape)
    kept = other != owner
    wide = np.broadcast_to(chunk[..., None], owner.shape)
    down = build.transfers(
        src=np.full(1, switch, np.int32), dst=own[other[kept]], chunk=wide[kept], phase=phase + 1,
        channel=1,
    )  # fmt: skip
    build.depend(before=np.broadcast_to(out[..., None], owner.shape)[kept], after=down)


def _across(
    build: StructureBuilder,
    leaders: NDArray[np.int32],
    summed: NDArray[np.int32],
    chunk: NDArray[np.int32],
) -> NDArray[np.int32]:
    """Combine the sums of the hosts up two trees and bring them down.

    Returns
    -------
    What each host waits for before it spreads a chunk, shape of ``summed``: the message that
    brought it, or at the root of a tree the one that came last from below.
    """
    hosts, _, owners = summed.shape[0], *summed.shape[2:]
    parent = two_trees(hosts)
    lanes = np.arange(2, dtype=np.int32)[:, None]
    rising, falling = send_over_trees(
        build,
        rank=leaders,
        parent=parent,
        chunk=chunk,
        channel=np.broadcast_to(lanes, (2, owners)),
        first_phase=2,
    )
    final = np.full(summed.shape, -1, np.int32)
    for host in range(1, hosts):
        final[host] = falling[:, :, host - 1]
        for tree in range(2):
            up, above = rising[:, tree, host - 1], parent[tree, host]
            for at in (host, above):  # its own sum must be there before another's is added
                known = summed[at, :, tree]
                if (known >= 0).all():
                    build.depend(before=known, after=up)
            if above == 0:  # the root has one child
                final[0, :, tree] = up
    return final


@algorithm("all_reduce", "nvls", closed_form=_alone_ps, uses_hosts=True, sized_options=_options)
def nvls_all_reduce(shape: Shape, *, chunks: int = 1) -> Structure:
    """Build an all_reduce through NVSwitches, and over two trees between hosts if several."""
    return _build(shape, chunks=chunks)


def _shared_options(
    shape: Shape, size_bytes: int, links: Links | None, given: Mapping[str, int]
) -> Mapping[str, int]:
    return _options(Shape(shape.ranks), size_bytes, links, given)


def _half_ps(shape: Shape, size_bytes: int, links: Links, *, chunks: int = 1) -> Fraction:
    if shape.ranks == 1:
        return Fraction(0)
    return 2 * links.local_alpha_ps + Fraction(size_bytes * 8 * PS_PER_S, links.local_rate_bps)


@algorithm("all_gather", "nvls", closed_form=_half_ps, sized_options=_shared_options)
def nvls_all_gather(shape: Shape, *, chunks: int = 1) -> Structure:
    """Build an all_gather by multicast: each rank sends its share once to the only switch."""
    return _half(shape, chunks, reduced=False)


@algorithm("reduce_scatter", "nvls", closed_form=_half_ps, sized_options=_shared_options)
def nvls_reduce_scatter(shape: Shape, *, chunks: int = 1) -> Structure:
    """Build a reduce_scatter in which the switch adds up what each rank asks for."""
    return _half(shape, chunks, reduced=True)


def _half(shape: Shape, chunks: int, *, reduced: bool) -> Structure:
    ranks = shape.ranks
    switches = 1 if ranks > 1 else 0
    build = StructureBuilder(n_ranks=ranks + switches, n_chunks=ranks * chunks, switches=switches)
    if ranks == 1:
        return build.finish()
    own = np.arange(ranks, dtype=np.int32)
    piece = np.arange(chunks, dtype=np.int32)[:, None, None]
    chunk = own[None, None, :] * np.int32(chunks) + piece
    if reduced:
        _reduced(build, own, ranks, ranks, chunk)
    else:
        _spread(build, own, ranks, ranks, chunk, np.full(chunk.shape, -1, np.int32), 0)
    return build.finish()
