# SPDX-License-Identifier: Apache-2.0
"""Ring reduce_scatter, all_gather and all_reduce.

The buffer is cut in as many chunks as there are ranks. In each step every rank sends one chunk to
the next rank of the ring, and it sends a chunk only after having received it in the step before:
each chunk runs along one chain of transfers, and all chains run at once.

With several channels each has a part of the buffer and a ring of its own, which leaves the hosts
by other NICs than the rings of the others. With several chunks the part is cut once more, and
while one piece is under way the next one follows it, as far as there are slots (see
`railweave.collectives.pipeline`).

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
J. Parallel Distrib. Comput. 69 (2009); the same steps as NCCL's ring kernels.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.collectives.algorithm import Links, Shape, algorithm
from railweave.collectives.pipeline import (
    SLOTS,
    channel_orders,
    last_start_ps,
    limit_to_slots,
    nics_in_use,
    sized_chunks,
)
from railweave.collectives.structure import Structure, StructureBuilder
from railweave.fabric.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Mapping


_PIECES: Final = 4
_LEAST_BYTES: Final = 4096  # a shorter piece would not fill a packet
_MOST_RUNS: Final = 2**20  # of a schedule whose pieces were not asked for

__all__ = [
    "ring_all_gather",
    "ring_all_reduce",
    "ring_barrier",
    "ring_pieces",
    "ring_reduce_scatter",
]


def _looped_rings(
    shape: Shape, *, steps: int, reducing: int, first: int, channels: int, chunks: int
) -> Structure:
    """Build rings of several channels and pieces, a node for each rank of each.

    Pieces that no slot holds back are rings on one connection. In step ``s`` the rank at place
    ``p`` of a ring sends its chunk ``p - s + first`` (modulo the number of ranks), which is of the
    rank at that place: run ``s`` of its node.
    """
    ranks = shape.ranks
    orders = np.repeat(channel_orders(shape, channels), chunks, axis=0)
    build = StructureBuilder(n_ranks=ranks, n_chunks=ranks * len(orders))
    if steps:
        base = np.arange(len(orders), dtype=np.int32)[:, None] * np.int32(ranks)
        place = np.arange(ranks, dtype=np.int32)[None, :]
        node = build.transfers(
            src=orders,
            dst=np.roll(orders, -1, axis=1),
            chunk=base + (place + np.int32(first)) % np.int32(ranks),
            combine=reducing > 0,
            channel=np.arange(len(orders), dtype=np.int32)[:, None] // np.int32(chunks),
        )
        build.loop(
            node, after=np.roll(node, -1, axis=1), runs=steps, first=base, cycle=ranks,
            combining=reducing,
        )  # fmt: skip
    return build.finish(order=orders.ravel() if len(orders) > 1 else None)


def _rings(
    shape: Shape, *, steps: int, reducing: int, first: int, channels: int, chunks: int, slots: int
) -> Structure:
    """Build rings whose pieces wait for slots; node axes are step, chunk, channel, position.

    Chunk ``(rank * channels + channel) * chunks + piece`` belongs to a rank's share.
    """
    ranks = shape.ranks
    orders = channel_orders(shape, channels)
    build = StructureBuilder(n_ranks=ranks, n_chunks=ranks * channels * chunks)
    step = np.arange(steps, dtype=np.int32)[:, None, None, None]
    piece = np.arange(chunks, dtype=np.int32)[None, :, None, None]
    channel = np.arange(channels, dtype=np.int32)[None, None, :, None]
    place = np.arange(ranks, dtype=np.int32)[None, None, None, :]
    home = orders[channel, (place - step + np.int32(first)) % np.int32(ranks)]
    node = build.transfers(
        src=orders[None, None],
        dst=np.roll(orders, -1, axis=1)[None, None],
        chunk=(home * np.int32(channels) + channel) * np.int32(chunks) + piece,
        phase=step * np.int32(chunks) + piece,
        combine=step < reducing,
        channel=channel,
    )
    if steps:
        build.depend(before=node[:-1], after=np.roll(node[1:], -1, axis=3))
        limit_to_slots(build, node.reshape(-1, channels, ranks), slots)
    return build.finish()


def _build(
    shape: Shape, *, turns: int, reduces: bool, first: int, channels: int, chunks: int, slots: int
) -> Structure:
    steps = turns * (shape.ranks - 1)
    reducing = (shape.ranks - 1) * reduces
    if slots >= chunks:  # a message cannot start before the one a step before arrived
        return _looped_rings(
            shape, steps=steps, reducing=reducing, first=first, channels=channels, chunks=chunks
        )
    return _rings(
        shape,
        steps=steps,
        reducing=reducing,
        first=first,
        channels=channels,
        chunks=chunks,
        slots=slots,
    )


def _ring_ps(
    shape: Shape,
    size_bytes: int,
    links: Links,
    *,
    channels: int = 1,
    chunks: int = 1,
    slots: int = SLOTS,
    turns: int = 1,
) -> Fraction:
    """Return the exact time; for channels over several hosts that of their busiest NIC, a bound."""
    steps = turns * (shape.ranks - 1)
    if steps == 0:
        return Fraction(0)
    share = Fraction(size_bytes * 8 * PS_PER_S, shape.ranks * links.rate_bps)
    if channels > 1 and len(shape.host_shares) > 1:
        return links.alpha_ps + steps * share / nics_in_use(shape, channels)
    each = share / chunks  # channels share the links, so that each gets on as one would alone
    start = last_start_ps(steps * chunks, min(chunks, slots), alpha_ps=links.alpha_ps, each_ps=each)
    return start + links.alpha_ps + each


def ring_pieces(ranks: int, channels: int, size_bytes: int) -> int:
    """Return in how many pieces rings of several channels hand a share on, as NCCL does in slots.

    As one message each, equal shares of all channels would keep step on the links that they share,
    which any order of packets breaks: up to 5 % of the time.
    """
    share = size_bytes // (ranks * channels)
    most = min(_PIECES, share // _LEAST_BYTES, _MOST_RUNS // (2 * ranks * ranks * channels))
    return 1 << max(most.bit_length() - 1, 0)


def _sized(
    shape: Shape, size_bytes: int, links: Links | None, given: Mapping[str, int]
) -> Mapping[str, int]:
    """Turn the size of the pieces into their number; a ring that was not asked makes one each."""
    if "chunk_bytes" not in given:
        return {}
    share = size_bytes // (shape.ranks * given.get("channels", 1))
    return sized_chunks(shape, share, links, given, depth=1, nodes_per_chunk=1)


def _half_ps(shape: Shape, size_bytes: int, links: Links, **options: int) -> Fraction:
    return _ring_ps(shape, size_bytes, links, **options)


def _whole_ps(shape: Shape, size_bytes: int, links: Links, **options: int) -> Fraction:
    return _ring_ps(shape, size_bytes, links, turns=2, **options)


@algorithm("reduce_scatter", "ring", closed_form=_half_ps, sized_options=_sized)
def ring_reduce_scatter(
    shape: Shape, *, channels: int = 1, chunks: int = 1, slots: int = SLOTS
) -> Structure:
    """Build a ring reduce_scatter: rank ``r`` ends with the sum of share ``r``."""
    return _build(
        shape, turns=1, reduces=True, first=-1, channels=channels, chunks=chunks, slots=slots
    )


@algorithm("all_gather", "ring", closed_form=_half_ps, sized_options=_sized)
def ring_all_gather(
    shape: Shape, *, channels: int = 1, chunks: int = 1, slots: int = SLOTS
) -> Structure:
    """Build a ring all_gather: rank ``r`` begins with share ``r``."""
    return _build(
        shape, turns=1, reduces=False, first=0, channels=channels, chunks=chunks, slots=slots
    )


@algorithm("all_reduce", "ring", closed_form=_whole_ps, sized_options=_sized)
def ring_all_reduce(
    shape: Shape, *, channels: int = 1, chunks: int = 1, slots: int = SLOTS
) -> Structure:
    """Build a ring all_reduce: a reduce_scatter whose chunks go on round the ring."""
    return _build(
        shape, turns=2, reduces=True, first=-1, channels=channels, chunks=chunks, slots=slots
    )


@algorithm("barrier", "ring", closed_form=_whole_ps)
def ring_barrier(shape: Shape) -> Structure:
    """Build a ring all_reduce of a token, which is a barrier."""
    return ring_all_reduce(shape)
