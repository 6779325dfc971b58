# SPDX-License-Identifier: Apache-2.0
"""What pipelined algorithms share: channels, the window of slots, and how many chunks to make.

A buffer is cut in chunks that follow each other along the same connections. A rank sends a chunk
once it holds it and the connection has a free slot: with ``w`` slots, chunk ``c`` waits until
chunk ``c - w`` has arrived. NCCL's connections have 8 slots (``NCCL_STEPS`` in
src/include/device.h) in a buffer of 4 MiB (``NCCL_BUFFSIZE``), hence slots of 512 KiB. With one
slot the latency of a chunk is never hidden behind the next one, which is the model of Hockney,
"The communication challenge for MPP", Parallel Computing 20 (1994).
"""

from __future__ import annotations

from fractions import Fraction
from math import isqrt
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from railweave.collectives.algorithm import Links, Shape
    from railweave.collectives.structure import StructureBuilder

__all__ = [
    "SLOTS",
    "SLOT_BYTES",
    "best_chunks",
    "channel_orders",
    "last_start_ps",
    "limit_to_slots",
    "nics_in_use",
    "sized_chunks",
]

SLOTS: Final = 8
SLOT_BYTES: Final = 4 * 2**20 // SLOTS
_MOST_NODES: Final = 2**18  # of a schedule whose chunks were not asked for
_MOST_CHUNKS: Final = 128  # where nothing is known of the network
_LEAST_BYTES: Final = 4096  # a shorter chunk would not fill a packet


def channel_orders(shape: Shape, channels: int) -> NDArray[np.int32]:
    """Return the ranks in the order in which each channel goes round them.

    A single channel takes them by number. Of several, channel ``j`` goes through the hosts one
    after another: through an even one from its ``j``-th rank round to the one before it, through
    an odd one the other way. So it leaves a host, and enters the next, on one rail, and channels
    use different rails; with an odd number of hosts only the way back to the first changes rails.

    Returns
    -------
    int32, shape (channels, ranks).

    Examples
    --------
    >>> from railweave.collectives.algorithm import Shape
    >>> channel_orders(Shape(6, (0, 0, 0, 1, 1, 1)), 2).tolist()
    [[0, 1, 2, 5, 4, 3], [1, 2, 0, 3, 5, 4]]
    """
    if channels == 1:
        return np.arange(shape.ranks, dtype=np.int32)[None]
    members = shape.members
    return np.stack(
        [
            np.concatenate(
                [
                    np.roll(own, -channel)[:: -1 if host % 2 else 1]
                    for host, own in enumerate(members)
                ]
            )
            for channel in range(channels)
        ]
    )


def nics_in_use(shape: Shape, channels: int) -> int:
    """Return over how many NICs the host with the fewest spreads the traffic of the channels.

    Between the GPUs of one host all channels share the same links: 1.
    """
    if channels == 1 or len(shape.host_shares) == 1:
        return 1
    return min(channels, *shape.host_shares)


def limit_to_slots(build: StructureBuilder, node: NDArray[np.int32], slots: int) -> None:
    """Let each message wait for the one ``slots`` before it on its connection.

    Parameters
    ----------
    node
        int32, shape (messages, connections...): nodes by order on their connection.
    """
    if slots < len(node):
        build.depend(before=node[:-slots], after=node[slots:])


def last_start_ps(messages: int, slots: int, *, alpha_ps: int, each_ps: Fraction) -> Fraction:
    """Return when the last of equal messages starts on a connection, the first starting at 0.

    A message occupies the connection for ``each_ps`` and arrives ``alpha_ps`` later; ``slots`` may
    be under way.

    Examples
    --------
    >>> last_start_ps(5, 1, alpha_ps=3, each_ps=Fraction(2))
    Fraction(20, 1)
    >>> last_start_ps(5, 2, alpha_ps=3, each_ps=Fraction(2)), 2 * (3 + 2)
    (Fraction(10, 1), 10)
    >>> last_start_ps(5, 8, alpha_ps=3, each_ps=Fraction(2))
    Fraction(8, 1)
    """
    if (slots - 1) * each_ps >= alpha_ps:
        return (messages - 1) * each_ps
    laps, rest = divmod(messages - 1, slots)
    return laps * (alpha_ps + each_ps) + rest * each_ps


def best_chunks(size_bytes: int, *, depth: int, slots: int, links: Links) -> int:
    """Return the number of chunks with which a pipeline of ``depth`` hops takes least.

    With one slot ``k`` chunks take ``(depth + k - 1) * (alpha + S / (k * B))``, least at
    ``sqrt((depth - 1) * S / (B * alpha))``. With ``w`` slots latencies are hidden as long as
    ``k <= (w - 1) * S / (B * alpha)``, so that more chunks are better up to there; beyond it
    ``(depth + (k - 1) / w) * (alpha + S / (k * B))`` is least at
    ``sqrt((w * depth - 1) * S / (B * alpha))``. The larger of the two is the minimum.

    Examples
    --------
    >>> from railweave.collectives.algorithm import Links
    >>> at = Links(alpha_ps=5_000_000, rate_bps=400 * 10**9,
    ...            local_alpha_ps=0, local_rate_bps=1)
    >>> best_chunks(2**30, depth=63, slots=1, links=at)  # sqrt(62 * 4294.97)
    516
    >>> best_chunks(2**30, depth=63, slots=8, links=at)
    30065
    """
    most = max(size_bytes // _LEAST_BYTES, 1)
    if links.alpha_ps == 0:
        return most if depth > 1 or slots > 1 else 1
    ratio = Fraction(size_bytes * 8 * PS_PER_S, links.rate_bps * links.alpha_ps)
    hidden = round((slots - 1) * ratio)
    square = (slots * depth - 1) * ratio
    root = (isqrt(int(4 * square)) + 1) // 2  # rounded to the nearest
    return min(max(hidden, root, 1), most)


def sized_chunks(
    shape: Shape,
    stream_bytes: int,
    links: Links | None,
    given: Mapping[str, int],
    *,
    depth: int,
    nodes_per_chunk: int,
    slots: int = SLOTS,
) -> Mapping[str, int]:
    """Return ``chunks`` for a pipeline whose connections carry ``stream_bytes`` each.

    Parameters
    ----------
    links, given
        As for `railweave.collectives.algorithm.Algorithm`.
    depth
        Hops that a chunk goes.
    nodes_per_chunk
        Transfers that each further chunk adds; chunks nobody asked for are bounded by it.
    slots
        Default where ``given`` has none.
    """
    if "chunks" in given or shape.ranks == 1:
        return {}
    if "chunk_bytes" in given:
        return {"chunks": max(-(-stream_bytes // given["chunk_bytes"]), 1)}
    most = max(_MOST_NODES // max(nodes_per_chunk, 1), 1)
    if links is None:
        return {"chunks": min(max(-(-stream_bytes // SLOT_BYTES), 1), _MOST_CHUNKS, most)}
    slots = given.get("slots", slots)
    return {"chunks": min(best_chunks(stream_bytes, depth=depth, slots=slots, links=links), most)}
