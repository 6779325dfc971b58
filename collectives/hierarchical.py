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

__all__ = ["hierarchical_all_reduce"]


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
    host_of = np.zeros(shape.ranks, np.int32)
    if shape.hosts is not None:
        host_of = np.array(shape.hosts, np.int32)
    members = [
        np.flatnonzero(host_of == host).astype(np.int32) for host in range(len(shape.host_shares))
    ]
    hosts, slices = len(members), min(shape.host_shares)
    build = StructureBuilder(n_ranks=shape.ranks, n_chunks=slices * hosts)
    piece = np.arange(slices, dtype=np.int32)

    reduced = [_local(build, own, piece, hosts, phase=0, combine=True) for own in members]
    longest = max(shape.host_shares) - 1
    across = _across(build, np.stack([own[:slices] for own in members]), phase=longest)
    gathered = [
        _local(build, own, piece, hosts, phase=longest + len(across), combine=False)
        for own in members
    ]
    for host in range(hosts):
        if len(reduced[host]):
            # A leader sends nothing before its host's sum is complete: what it forwards in a
            # reducing step, and the chunk that it completes, contain that sum.
            done = reduced[host][-1]
            build.depend(before=done, after=across[:hosts, host] if hosts > 1 else gathered[0][0])
        if len(gathered[host]) and hosts > 1:
            arriving = across[hosts - 2 :, host - 1]
            build.depend(before=arriving, after=gathered[host][0])
    return build.finish()


def _local(
    build: StructureBuilder,
    own: NDArray[np.int32],
    piece: NDArray[np.int32],
    hosts: int,
    *,
    phase: int,
    combine: bool,
) -> NDArray[np.int32]:
    """Add the ring within one host and return its nodes, shape (ranks of the host - 1, slices).

    A slice ends at its leader if it is combined, and begins there if it is not.
    """
    size = np.int32(len(own))
    step = np.arange(len(own) - 1, dtype=np.int32)[:, None]
    src = (piece[None, :] + step + np.int32(combine)) % size
    node = build.transfers(
        src=own[src],
        dst=own[(src + np.int32(1)) % size],
        chunk=piece[None, :] * np.int32(hosts),
        span=hosts,
        phase=phase + step,
        combine=combine,
    )
    build.depend(before=node[:-1], after=node[1:])
    return node


def _across(
    build: StructureBuilder, leaders: NDArray[np.int32], *, phase: int
) -> NDArray[np.int32]:
    """Add a ring all_reduce of each slice over the hosts.

    Returns the nodes, shape (2 * (hosts - 1), hosts, slices), by step and sending host.
    """
    hosts, slices = leaders.shape
    steps = 2 * (hosts - 1)
    step = np.arange(steps, dtype=np.int32)[:, None, None]
    host = np.arange(hosts, dtype=np.int32)[None, :, None]
    piece = np.arange(slices, dtype=np.int32)[None, None, :]
    node = build.transfers(
        src=leaders[None],
        dst=np.roll(leaders, -1, axis=0)[None],
        chunk=piece * np.int32(hosts) + (host - step - np.int32(1)) % np.int32(hosts),
        phase=phase + step,
        combine=step < hosts - 1,
    )
    build.depend(before=node[:-1], after=np.roll(node[1:], -1, axis=1))
    return node
