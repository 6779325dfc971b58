# SPDX-License-Identifier: Apache-2.0
"""Pipelined chain broadcast and reduce.

The message is cut in chunks that follow each other along the chain of ranks that begins (reduce:
ends) at the root. A rank passes a chunk on once it has received it and has a free slot (see
`railweave.collectives.pipeline`); each channel carries a part of the message along a chain of its
own. With one channel and one slot, ``k`` chunks over ``D`` hops take
``(D + k - 1) * (alpha + S / (k * B))``, which is least, at the right ``k``, with
``(sqrt((D - 1) * alpha) + sqrt(S / B))**2``.

Source: NCCL's ring kernels for ncclBroadcast and ncclReduce; the time of a pipelined chain is
that of e.g. Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations
in MPICH" (2005).
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

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

__all__ = ["chain_broadcast", "chain_reduce"]


def _options(
    shape: Shape, size_bytes: int, links: Links | None, given: Mapping[str, int]
) -> Mapping[str, int]:
    hops, channels = shape.ranks - 1, given.get("channels", 1)
    return sized_chunks(
        shape, size_bytes // channels, links, given, depth=hops, nodes_per_chunk=hops * channels
    )


def _chain_ps(
    shape: Shape,
    size_bytes: int,
    links: Links,
    *,
    root: int = 0,
    chunks: int = 1,
    channels: int = 1,
    slots: int = SLOTS,
) -> Fraction:
    """Return the exact time; for channels over several hosts that of their busiest NIC, a bound."""
    shape.check_rank(root, field="root")
    hops = shape.ranks - 1
    if hops == 0:
        return Fraction(0)
    if channels > 1 and len(shape.host_shares) > 1:
        return links.message_ps(Fraction(size_bytes, nics_in_use(shape, channels)))
    # Channels on one host share its links, so that each gets on as one would alone.
    each = Fraction(size_bytes * 8 * PS_PER_S, chunks * links.rate_bps)
    start = last_start_ps(chunks, slots, alpha_ps=links.alpha_ps, each_ps=each)
    return hops * (links.alpha_ps + each) + start


def _chain(
    shape: Shape, *, root: int, chunks: int, channels: int, slots: int, reducing: bool
) -> Structure:
    shape.check_rank(root, field="root")
    orders = channel_orders(shape, channels)
    # The chain begins at the root, or at the rank after it so that it ends at the root.
    begins = np.nonzero(orders == root)[1] + reducing
    way = np.stack([np.roll(order, -at) for order, at in zip(orders, begins, strict=True)])
    build = StructureBuilder(n_ranks=shape.ranks, n_chunks=chunks * channels)
    chunk = np.arange(chunks, dtype=np.int32)[:, None, None]
    channel = np.arange(channels, dtype=np.int32)[None, :, None]
    hop = np.arange(shape.ranks - 1, dtype=np.int32)[None, None, :]
    node = build.transfers(
        src=way[None, :, :-1],
        dst=way[None, :, 1:],
        chunk=channel * np.int32(chunks) + chunk,
        phase=hop + chunk,
        combine=reducing,
        channel=channel,
    )
    build.depend(before=node[..., :-1], after=node[..., 1:])
    limit_to_slots(build, node, slots)
    return build.finish()


@algorithm("broadcast", "chain", closed_form=_chain_ps, sized_options=_options)
def chain_broadcast(
    shape: Shape, *, root: int = 0, chunks: int = 1, channels: int = 1, slots: int = SLOTS
) -> Structure:
    """Build a chain broadcast from rank ``root``, of ``chunks`` chunks on each channel."""
    return _chain(shape, root=root, chunks=chunks, channels=channels, slots=slots, reducing=False)


@algorithm("reduce", "chain", closed_form=_chain_ps, sized_options=_options)
def chain_reduce(
    shape: Shape, *, root: int = 0, chunks: int = 1, channels: int = 1, slots: int = SLOTS
) -> Structure:
    """Build a chain reduce to rank ``root``, of ``chunks`` chunks on each channel."""
    return _chain(shape, root=root, chunks=chunks, channels=channels, slots=slots, reducing=True)
