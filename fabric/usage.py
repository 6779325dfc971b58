# SPDX-License-Identifier: Apache-2.0
"""What work puts on paths and links, in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from railweave.fabric.paths import PathTable

__all__ = ["Usage", "blocks", "expand_spans", "link_bytes", "spans"]

_BLOCK = 1 << 14  # rows that are worked on at a time, so that they stay in the cache


def blocks(rows: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield an array in pieces that stay in the cache."""
    for first in range(0, len(rows), _BLOCK):
        yield rows[first : first + _BLOCK]


@dataclass(frozen=True, eq=False)
class Usage:
    """What one run of a bound schedule puts on each path.

    ``path`` int32 (p,), unique; ``wire_bytes``, ``payload_bytes``, ``ack_bytes`` int64 (p,).
    """

    path: NDArray[np.int32]
    wire_bytes: NDArray[np.int64]
    payload_bytes: NDArray[np.int64]
    ack_bytes: NDArray[np.int64]


def expand_spans(start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers ``start[0]..end[0] - 1``, then ``start[1]..end[1] - 1``, and so on.

    Examples
    --------
    >>> expand_spans(np.array([4, 0]), np.array([6, 3])).tolist()
    [4, 5, 0, 1, 2]
    """
    lengths = end - start
    skipped = np.cumsum(lengths) - lengths
    return np.asarray(np.arange(lengths.sum()) - np.repeat(skipped - start, lengths), np.int64)


def spans(start: NDArray[np.int64], end: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """Return what `expand_spans` does as an index: a slice, much faster, where one span follows on.

    Examples
    --------
    >>> spans(np.array([4, 6]), np.array([6, 9]))
    slice(4, 9, None)
    """
    if len(start) and (start[1:] == end[:-1]).all():
        return slice(int(start[0]), int(end[-1]))
    return expand_spans(start, end)


def link_bytes(table: PathTable, usage: Usage) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return data bytes and ACK bytes on each link, two int64 arrays of shape (links,).

    Links inside a host carry payload, network links wire bytes; acknowledgements cross the other
    direction of each network link. A path sprayed over several links puts its share on each.
    """
    fabric = table.fabric
    carried, acked = np.zeros(fabric.n_links, np.int64), np.zeros(fabric.n_links)
    for first in range(0, len(usage.path), _BLOCK):  # what is worked on stays in the cache
        some = slice(first, first + _BLOCK)
        path = usage.path[some].astype(np.int64)
        start, end = table.ptr[path], table.ptr[path + 1]
        owner, at = np.repeat(np.arange(len(start)), end - start), spans(start, end)
        link, share = table.link[at], table.share[at]
        network = fabric.link_network[link]
        size = np.where(network, usage.wire_bytes[some][owner], usage.payload_bytes[some][owner])
        carried += _sum_by_link(link, share, size, fabric.n_links)
        if usage.ack_bytes[some].any():
            acks = (share * usage.ack_bytes[some][owner])[network]
            acked += np.bincount(link[network] ^ 1, acks, fabric.n_links)
    return carried, np.rint(acked).astype(np.int64)


def _sum_by_link(
    link: NDArray[np.int32], share: NDArray[np.float64], size: NDArray[np.int64], n_links: int
) -> NDArray[np.int64]:
    """Add ``share * size`` by link: whole bytes exactly, sprayed shares to the nearest byte."""
    out = np.zeros(n_links, np.int64)
    whole = share == 1.0
    if whole.all():
        np.add.at(out, link, size)
        return out
    np.add.at(out, link[whole], size[whole])
    sprayed = np.bincount(link[~whole], share[~whole] * size[~whole], n_links)
    return out + np.rint(sprayed).astype(np.int64)
