# SPDX-License-Identifier: Apache-2.0
"""Hierarchical all_reduce along the rails of hosts.

Within each host a ring reduces the buffer to one slice per rail; each slice is then reduced and
gathered over the hosts by a ring of the ranks that lead it, which all sit on the same rail; at
last the slices go round within each host.

There are as many slices as the smallest host has ranks, and slice ``i`` is led by the ``i``-th
rank of each host. On a larger host a slice still passes every rank, so that all contribute: that
host's further ranks send only within it. More slices would make some rank of the smallest host
lead two, and its NIC would be the bottleneck.

Source: the scheme of Cho, Finkler, Kung and Hunter, "BlueConnect: decomposing all-reduce for deep
learning on heterogeneous network hierarchy", MLSys 2019, with rings at both levels.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from railweave.collectives.algorithm import Links, Shape, algorithm
from railweave.collectives.structure import Structure, StructureBuilder

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["depend_where", "hierarchical_all_reduce", "local_rings"]


def _hierarchical_ps(shape: Shape, size_bytes: int, links: Links) -> Fraction:
    """Return the exact time for equal hosts; for unequal ones the smallest host's, a bound."""
    shares = shape.host_shares
    hosts, slices = len(shares), min(shares)
    total = Fraction(0)
    if slices > 1:
        total += 2 * (slices - 1) * links.local_message_ps(Fraction(size_bytes, slices))
    if hosts > 1:
        total += 2 * (hosts - 1) * links.message_ps(Fraction(size_bytes, slices * hosts))
    return total


@algorithm("all_reduce", "hierarchical", closed_form=_hierarchical_ps, uses_hosts=True)
def hierarchical_all_reduce(shape: Shape) -> Structure:
    """Build a hierarchical all_reduce; without known hosts all ranks are on one.

    Slice ``i`` is the chunks ``i * hosts .. (i + 1) * hosts - 1``.
    """
    members = shape.members
    hosts, slices = len(members), min(shape.host_shares)
    build = StructureBuilder(n_ranks=shape.ranks, n_chunks=slices * hosts)
    first = np.arange(slices, dtype=np.int32) * np.int32(hosts)
    span = np.full_like(first, hosts)

    _, reduced = local_rings(build, members, first, span, phase=0, combine=True)
    longest = max(shape.host_shares) - 1
    across = _across(build, np.stack([own[:slices] for own in members]), phase=longest)
    gathered, _ = local_rings(
        build, members, first, span, phase=longest + 2 * (hosts - 1), combine=False
    )
    if hosts > 1:
        # A leader sends nothing before its host's sum is complete: what it forwards in a reducing
        # step, and the chunk that it completes, contain that sum.
        depend_where(build, before=reduced, after=across)
        depend_where(build, before=across, after=np.roll(gathered, -1, axis=0))
    else:
        depend_where(build, before=reduced, after=gathered)
    return build.finish()


def local_rings(
    build: StructureBuilder,
    members: list[NDArray[np.int32]],
    first: NDArray[np.int32],
    span: NDArray[np.int32],
    *,
    phase: int,
    combine: bool,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Let slices go round the ranks of each host; return their first and last transfers.

    A slice ends at its leader, the rank of its number, if it is combined, and begins there if it
    is not.

    Parameters
    ----------
    build
        Where to add the transfers.
    members
        Ranks of each host.
    first, span
        int32 (slices,): first chunk of each slice and number of its chunks.
    phase, combine
        Of the transfers; each step is a phase.

    Returns
    -------
    Two int32 arrays, shape (hosts, slices), -1 on hosts of one rank, where nothing goes round.
    """
    begin = np.full((len(members), len(first)), -1, np.int32)
    end = begin.copy()
    shares = np.array([len(own) for own in members])
    for share in np.unique(shares[shares > 1]):
        alike = np.flatnonzero(shares == share)
        own = np.stack([members[host] for host in alike])
        step = np.arange(share - 1, dtype=np.int32)[:, None]
        src = (np.arange(len(first), dtype=np.int32)[None, :] + step + np.int32(combine)) % share
        node = build.transfers(
            src=own[:, src].transpose(1, 0, 2),
            dst=own[:, (src + 1) % share].transpose(1, 0, 2),
            chunk=first,
            span=span,
            phase=phase + step[..., None],
            combine=combine,
        )
        build.depend(before=node[:-1], after=node[1:])
        begin[alike], end[alike] = node[0], node[-1]
    return begin, end


def depend_where(
    build: StructureBuilder, *, before: NDArray[np.int32], after: NDArray[np.int32]
) -> None:
    """Let nodes wait as `StructureBuilder.depend` does, where neither number is -1."""
    first, second = np.broadcast_arrays(before, after)
    both = (first >= 0) & (second >= 0)
    build.depend(before=first[both], after=second[both])


def _across(
    build: StructureBuilder, leaders: NDArray[np.int32], *, phase: int
) -> NDArray[np.int32]:
    """Add a ring all_reduce of each slice over the hosts; return the nodes, (hosts, slices).

    Each node runs once per step: in step ``s`` the leader on host ``h`` sends chunk ``h - s - 1``
    (modulo the number of hosts) of its slice.
    """
    hosts, slices = leaders.shape
    if hosts == 1:
        return np.empty((0, slices), np.int32)
    host = np.arange(hosts, dtype=np.int32)[:, None]
    first = np.arange(slices, dtype=np.int32)[None, :] * np.int32(hosts)
    node = build.transfers(
        src=leaders,
        dst=np.roll(leaders, -1, axis=0),
        chunk=first + (host - np.int32(1)) % np.int32(hosts),
        phase=phase,
        combine=True,
    )
    build.loop(
        node,
        after=np.roll(node, -1, axis=0),
        runs=2 * (hosts - 1),
        first=first,
        cycle=hosts,
        combining=hosts - 1,
    )
    return node
