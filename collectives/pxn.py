# SPDX-License-Identifier: Apache-2.0
"""Rail-aligned all_to_all: blocks change rails inside the sending host (PXN).

A block for a GPU of another host goes by NVLink to the GPU of the same host that is on the
destination's rail, and from there over the network without leaving that rail. The GPU that sends
it on waits for the blocks of its whole host for that destination and sends them as one message,
so that each pair of hosts and each rail has one.

Time with ``N`` hosts of ``g`` ranks: blocks of ``S / n`` change rails at
``a = (g - 1) * S / (n * B')`` per destination host, and a message takes ``b = g * S / (n * B)``;
``alpha' + alpha + max(a + (N - 1) * b, (N - 1) * a + b)``, primes within a host.

Source: Cowan et al. and NVIDIA, "Doubling all2all performance with NVIDIA Collective Communication
Library 2.12" (developer.nvidia.com/blog), which introduced PXN.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from railweave.collectives.algorithm import Links, Shape, algorithm
from railweave.collectives.structure import Structure, StructureBuilder
from railweave.fabric.units import PS_PER_S

__all__ = ["pxn_all_to_all"]


def _pxn_ps(shape: Shape, size_bytes: int, links: Links) -> Fraction:
    """Return the exact time for equal hosts; for unequal ones that of the smallest's NICs."""
    shares = shape.host_shares
    hosts, least, most = len(shares), min(shares), max(shares)
    block_bits = Fraction(size_bytes * 8 * PS_PER_S, shape.ranks)
    if hosts == 1:
        if shape.ranks == 1:
            return Fraction(0)
        return links.local_alpha_ps + (shape.ranks - 1) * block_bits / links.local_rate_bps
    if least != most:
        return links.alpha_ps + (shape.ranks - most) * block_bits / links.rate_bps
    change = (least - 1) * block_bits / links.local_rate_bps
    message = least * block_bits / links.rate_bps
    alpha_ps = links.alpha_ps + (links.local_alpha_ps if least > 1 else 0)
    others = hosts - 1
    return alpha_ps + max(change + others * message, others * change + message)


@algorithm("all_to_all", "pxn", closed_form=_pxn_ps, uses_hosts=True)
def pxn_all_to_all(shape: Shape) -> Structure:
    """Build a rail-aligned all_to_all; without known hosts all ranks are on one.

    A rank's rail is its place among the ranks of its host. Where the sending host has no rank on
    a rail, one of its ranks stands in. Chunk ``d * n + s`` goes from the ``s``-th to the ``d``-th
    rank in order of hosts.
    """
    members = shape.members
    order = np.concatenate(members)
    n, shares = np.int32(shape.ranks), np.array(shape.host_shares, np.int32)
    first = (np.cumsum(shares) - shares).astype(np.int32)
    host = np.repeat(np.arange(len(members), dtype=np.int32), shares)
    place = np.arange(shape.ranks, dtype=np.int32)
    rail = place - first[host]
    build = StructureBuilder(n_ranks=shape.ranks, n_chunks=shape.ranks**2, parts=shape.ranks)

    # Everything below speaks of places in order of hosts; a destination's blocks from one host
    # are chunks in a row. Nearer hosts come first, so that no two hosts send to one at a time.
    source, target = (grid.ravel() for grid in np.meshgrid(place, place, indexing="ij"))
    ahead = (host[target] - host[source]) % np.int32(len(members))
    by_distance = np.lexsort((target, source, ahead))
    source, target = source[by_distance], target[by_distance]
    relay = first[host[source]] + rail[target] % shares[host[source]]
    away = host[source] != host[target]
    changes = away & (relay != source)
    staged = build.transfers(
        src=order[source[changes]],
        dst=order[relay[changes]],
        chunk=target[changes] * n + source[changes],
    )
    sends = away & (relay == source)
    sent = build.transfers(
        src=order[source[sends]],
        dst=order[target[sends]],
        chunk=target[sends] * n + first[host[source[sends]]],
        span=shares[host[source[sends]]],
        phase=1,
    )
    message = np.full((len(members), shape.ranks), -1, np.int32)
    message[host[source[sends]], target[sends]] = sent
    build.depend(before=staged, after=message[host[source[changes]], target[changes]])
    near = ~away & (source != target)
    build.transfers(
        src=order[source[near]], dst=order[target[near]], chunk=target[near] * n + source[near]
    )
    return build.finish(order=order)
