# SPDX-License-Identifier: Apache-2.0
"""Two-level all_gather and reduce_scatter along the rails of hosts.

All_gather: the ranks that lead a rail, one on each host, pass the shares of their rail round the
hosts; then what each of them has goes round within its host. Reduce_scatter is the same backwards:
within each host rings reduce the buffer to a slice per rail, then the leaders of a rail reduce
their slice to a share for each host.

There are as many rails as the smallest host has ranks. On a larger host a further rank hands its
share to one of the leaders first (reduce_scatter: gets it from there at the end).

Time with ``N`` hosts of ``g`` ranks:
``(N - 1) * (alpha + S / (N * g * B)) + (g - 1) * (alpha' + S / (g * B'))``, primes within a host.

Source: as `railweave.collectives.hierarchical`; MVAPICH and NCCL's users know the scheme as
hierarchical or two-level collectives.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from railweave.collectives.algorithm import Links, Shape, algorithm
from railweave.collectives.hierarchical import depend_where, local_rings
from railweave.collectives.structure import Structure, StructureBuilder

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["two_level_all_gather", "two_level_reduce_scatter"]


def _two_level_ps(shape: Shape, size_bytes: int, links: Links) -> Fraction:
    """Return the exact time for equal hosts; for unequal ones the least that they need."""
    shares = shape.host_shares
    hosts, rails = len(shares), min(shares)
    total = Fraction(0)
    if rails > 1:
        total += (rails - 1) * links.local_message_ps(Fraction(size_bytes, max(shares)))
    if hosts > 1:
        total += (hosts - 1) * links.message_ps(Fraction(size_bytes, shape.ranks))
    return total


@dataclass(frozen=True)
class _Rails:
    """Shares in order of rails, then of hosts, so that a rail's shares are chunks in a row."""

    shape: Shape

    @cached_property
    def members(self) -> list[NDArray[np.int32]]:
        """Ranks of each host."""
        return self.shape.members

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return len(self.members)

    @cached_property
    def rails(self) -> int:
        """Number of rails."""
        return min(self.shape.host_shares)

    @cached_property
    def leaders(self) -> NDArray[np.int32]:
        """Leader of each rail on each host, int32 (hosts, rails)."""
        return np.stack([own[: self.rails] for own in self.members])

    @cached_property
    def order(self) -> NDArray[np.int32]:
        """Rank of each share."""
        return np.concatenate(
            [own[rail :: self.rails] for rail in range(self.rails) for own in self.members]
        )

    @cached_property
    def span(self) -> NDArray[np.int32]:
        """Shares that each leader stands for, int32 (rails, hosts)."""
        shares = np.array(self.shape.host_shares, np.int32)
        rail = np.arange(self.rails, dtype=np.int32)[:, None]
        return (shares - rail + np.int32(self.rails - 1)) // np.int32(self.rails)

    @cached_property
    def first(self) -> NDArray[np.int32]:
        """First of them, int32 (rails, hosts)."""
        flat = self.span.ravel()
        return (np.cumsum(flat) - flat).astype(np.int32).reshape(self.span.shape)

    def further(self) -> tuple[NDArray[np.int32], ...]:
        """Ranks beyond the rails: rank, host, rail and share of each, int32."""
        share = np.empty(self.shape.ranks, np.int32)
        share[self.order] = np.arange(self.shape.ranks, dtype=np.int32)
        rank = np.concatenate([own[self.rails :] for own in self.members])
        host = np.repeat(
            np.arange(self.hosts, dtype=np.int32),
            [len(own) - self.rails for own in self.members],
        )
        rail = np.concatenate(
            [np.arange(self.rails, len(own), dtype=np.int32) % self.rails for own in self.members]
        )
        return rank, host, rail.astype(np.int32), share[rank]


def _across(
    build: StructureBuilder, rails: _Rails, *, phase: int, reducing: bool
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Add a ring over the hosts for each rail.

    Returns nodes by sending host, each (steps, hosts, rails): those that begin, all, and those
    that end. Where all shares are alike, the three are one and the same step whose nodes run once
    for each step of the ring.
    """
    hosts = rails.hosts
    alike = len(set(rails.shape.host_shares)) == 1
    step = np.arange(1 if alike else hosts - 1, dtype=np.int32)[: hosts - 1, None, None]
    host = np.arange(hosts, dtype=np.int32)[None, :, None]
    rail = np.arange(rails.rails, dtype=np.int32)[None, None, :]
    block = (host - step - np.int32(reducing)) % np.int32(hosts)
    node = build.transfers(
        src=rails.leaders[None],
        dst=np.roll(rails.leaders, -1, axis=0)[None],
        chunk=rails.first[rail, block],
        span=rails.span[rail, block],
        phase=phase + step,
        combine=reducing,
    )
    after = np.roll(node, -1, axis=1)
    if not alike:
        build.depend(before=node[:-1], after=after[1:])
    elif len(node):
        build.loop(
            node,
            after=after,
            runs=hosts - 1,
            first=rails.first[rail, 0],
            cycle=hosts,
            combining=(hosts - 1) * reducing,
        )
    return node[:1], node, node[-1:]


@algorithm("all_gather", "hierarchical", closed_form=_two_level_ps, uses_hosts=True)
def two_level_all_gather(shape: Shape) -> Structure:
    """Build a two-level all_gather; without known hosts all ranks are on one."""
    rails = _Rails(shape)
    build = StructureBuilder(n_ranks=shape.ranks, n_chunks=shape.ranks)
    rank, host, rail, share = rails.further()
    handed = build.transfers(src=rank, dst=rails.leaders[host, rail], chunk=share)
    begin, across, _ = _across(build, rails, phase=int(len(rank) > 0), reducing=False)
    if len(begin):
        build.depend(before=handed, after=begin[0, host, rail])
    gathered, _ = local_rings(
        build,
        rails.members,
        rails.first[:, 0],
        rails.span.sum(axis=1, dtype=np.int32),
        phase=int(len(rank) > 0) + rails.hosts - 1,
        combine=False,
    )
    after = np.roll(gathered, -1, axis=0)[None]  # of the host that receives
    depend_where(build, before=across, after=after)
    build.depend(before=handed, after=gathered[host, rail])
    return build.finish(order=rails.order)


@algorithm("reduce_scatter", "hierarchical", closed_form=_two_level_ps, uses_hosts=True)
def two_level_reduce_scatter(shape: Shape) -> Structure:
    """Build a two-level reduce_scatter; without known hosts all ranks are on one."""
    rails = _Rails(shape)
    build = StructureBuilder(n_ranks=shape.ranks, n_chunks=shape.ranks)
    _, reduced = local_rings(
        build,
        rails.members,
        rails.first[:, 0],
        rails.span.sum(axis=1, dtype=np.int32),
        phase=0,
        combine=True,
    )
    longest = max(shape.host_shares) - 1
    _, across, end = _across(build, rails, phase=longest, reducing=True)
    rank, host, rail, share = rails.further()
    handed = build.transfers(
        src=rails.leaders[host, rail], dst=rank, chunk=share, phase=longest + rails.hosts - 1
    )
    # A leader sends nothing before its host's sum is complete.
    depend_where(build, before=reduced[..., None], after=np.moveaxis(across, 0, -1))
    build.depend(before=reduced[host, rail], after=handed)
    if len(end):
        build.depend(before=end[0, host - 1, rail], after=handed)
    return build.finish(order=rails.order)
