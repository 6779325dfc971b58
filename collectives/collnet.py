# SPDX-License-Identifier: Apache-2.0
"""CollNet: all_reduce with reduction in the switches of the network (SHARP).

Each rail has an owner on every host. The ranks of a host send their parts of a rail's slice to its
owner, which adds them up and sends the sum to the switch of the rail; the switch adds what comes
from the hosts and sends the result back to each, and the owners pass it on inside. So a NIC sends
and receives its slice once, however many hosts there are, where a ring sends it nearly twice.

With several groups of hosts each rail has a switch for each group, and one above them that joins
those. Switches are ranks after the last one: for each rail those of the groups, then, if there are
several groups, for each rail the one above.

Time with one group, fully pipelined: ``2 * (alpha' + 2 * alpha_s)`` and the larger of
``2 * (g - 1) / g * S / B'`` and ``S / (g * B)``, primes within a host, where ``alpha_s`` is the
latency to a switch.

Source: Graham et al., "Scalable Hierarchical Aggregation Protocol (SHArP)", COMHPC 2016;
NVIDIA/nccl src/device/all_reduce.h (``NCCL_ALGO_COLLNET_DIRECT``).
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.collectives.algorithm import Links, Shape, algorithm
from railweave.collectives.structure import Structure, StructureBuilder
from railweave.fabric.errors import InputError
from railweave.fabric.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["collnet_all_reduce"]

_PIECES: Final = 32
_LEAST_BYTES: Final = 16384
_MOST_NODES: Final = 2**18


def _options(
    shape: Shape, size_bytes: int, links: Links | None, given: Mapping[str, int]
) -> Mapping[str, int]:
    del links
    if "chunks" in given or shape.ranks == 1:
        return {}
    slice_bytes = size_bytes // min(shape.host_shares)
    if "chunk_bytes" in given:
        return {"chunks": max(-(-slice_bytes // given["chunk_bytes"]), 1)}
    most = max(_MOST_NODES // (2 * min(shape.host_shares) * shape.ranks), 1)
    return {"chunks": max(min(slice_bytes // _LEAST_BYTES, _PIECES, most), 1)}


def _collnet_ps(
    shape: Shape, size_bytes: int, links: Links, *, chunks: int = 1, groups: int = 1
) -> Fraction:
    """Return the larger of both terms of bytes: a bound."""
    del chunks, groups
    shares = shape.host_shares
    size_ps, most = Fraction(size_bytes * 8 * PS_PER_S), max(shares)
    inside = size_ps * Fraction(2 * (most - 1), most) / links.local_rate_bps
    across = size_ps / (min(shares) * links.rate_bps) if len(shares) > 1 else Fraction(0)
    return max(inside, across)


@algorithm(
    "all_reduce", "collnet", closed_form=_collnet_ps, uses_hosts=True, sized_options=_options
)
def collnet_all_reduce(shape: Shape, *, chunks: int = 1, groups: int = 1) -> Structure:
    """Build an all_reduce through one switch per rail and group of hosts.

    ``groups`` divides the hosts in their order into groups of the same number.

    Raises
    ------
    InputError
        The hosts do not divide into so many groups.
    """
    members = shape.members
    hosts, rails = len(members), min(shape.host_shares)
    if not 1 <= groups <= hosts or hosts % groups:
        raise InputError(
            f"{hosts} hosts do not divide into {groups} groups",
            field="groups",
            expected="a divisor of the number of hosts",
        )
    switches = 0 if hosts == 1 else rails * groups + (rails if groups > 1 else 0)
    build = StructureBuilder(
        n_ranks=shape.ranks + switches, n_chunks=rails * chunks, switches=switches
    )
    if shape.ranks == 1:
        return build.finish()
    rail = np.arange(rails, dtype=np.int32)
    chunk = np.arange(chunks, dtype=np.int32)[:, None] + rail[None, :] * np.int32(chunks)
    gathered = [_inside(build, own, rails, chunk, gather=True, phase=0) for own in members]
    done: list[NDArray[np.int32] | None] = [None] * hosts
    if hosts > 1:
        done = list(_through_switches(build, members, rails, groups, chunk, gathered, shape.ranks))
    for own, before, came in zip(members, done, gathered, strict=True):
        spread = _inside(build, own, rails, chunk, gather=False, phase=5)
        if spread is None:
            continue
        if before is not None:
            build.depend(before=before[..., None], after=spread)
        elif came is not None:  # one host: all parts of a slice before any copy of it
            build.depend(before=came[..., :, None], after=spread[..., None, :])
    return build.finish()


def _inside(
    build: StructureBuilder,
    own: NDArray[np.int32],
    rails: int,
    chunk: NDArray[np.int32],
    *,
    gather: bool,
    phase: int,
) -> NDArray[np.int32] | None:
    """Add what goes between the owners of a host and its other ranks, (pieces, rails, others)."""
    if len(own) == 1:
        return None
    others = np.stack([np.delete(own, rail) for rail in range(rails)])[None]
    owner = own[None, :rails, None]
    src, dst = (others, owner) if gather else (owner, others)
    return build.transfers(src=src, dst=dst, chunk=chunk[..., None], combine=gather, phase=phase)


def _through_switches(
    build: StructureBuilder,
    members: list[NDArray[np.int32]],
    rails: int,
    groups: int,
    chunk: NDArray[np.int32],
    gathered: list[NDArray[np.int32] | None],
    ranks: int,
) -> NDArray[np.int32]:
    """Add the way up to the switches and back; return the last, (hosts, pieces, rails)."""
    hosts = len(members)
    owner = np.stack([own[:rails] for own in members])
    group = np.arange(hosts) * groups // hosts
    rail = np.arange(rails)
    leaf = (ranks + rail[None, :] * groups + group[:, None]).astype(np.int32)  # (hosts, rails)
    up = build.transfers(
        src=owner[:, None], dst=leaf[:, None], chunk=chunk[None], combine=True, phase=1
    )
    for host, came in enumerate(gathered):
        if came is not None:
            build.depend(before=came, after=up[host][..., None])
    down = build.transfers(src=leaf[:, None], dst=owner[:, None], chunk=chunk[None], phase=4)
    if groups == 1:
        build.depend(before=up[:, None], after=down[None])
        return down
    below = (ranks + rail[None, :] * groups + np.arange(groups)[:, None]).astype(np.int32)
    above = np.broadcast_to((ranks + rails * groups + rail).astype(np.int32), below.shape)
    raised = build.transfers(
        src=below[:, None], dst=above[:, None], chunk=chunk[None], combine=True, phase=2
    )
    lowered = build.transfers(src=above[:, None], dst=below[:, None], chunk=chunk[None], phase=3)
    build.depend(before=raised[:, None], after=lowered[None])
    build.depend(before=up, after=raised[group])
    build.depend(before=lowered[group], after=down)
    return down
