# SPDX-License-Identifier: Apache-2.0
"""Ring reduce_scatter, all_gather and all_reduce.

The buffer is cut in as many chunks as there are ranks. In each step every rank sends one chunk to
the next rank of the ring, and it sends a chunk only after having received it in the step before:
each chunk runs along one chain of transfers, and all chains run at once.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
J. Parallel Distrib. Comput. 69 (2009); the same steps as NCCL's ring kernels.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from railweave.collectives.algorithm import Links, Shape, algorithm
from railweave.collectives.structure import Structure, check_nodes

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ring_all_gather", "ring_all_reduce", "ring_reduce_scatter"]


def _ring(ranks: int, *, steps: int, reducing: int, first: int) -> Structure:
    """Build ``steps`` steps of a ring, of which the first ``reducing`` combine.

    In step ``s`` rank ``r`` sends chunk ``r - s + first`` (modulo the number of ranks). Node
    ``s * ranks + r`` is that transfer.
    """
    nodes = check_nodes(steps * ranks)
    rank = np.arange(ranks, dtype=np.int32)
    after = np.roll(rank, -1)
    step = np.arange(steps, dtype=np.int32)
    # Row s of this window over two turns of the ring is (r - s + first) mod ranks.
    turns = np.tile(rank, 3)
    starts = ranks + first - step % np.int32(ranks)
    chunk = np.lib.stride_tricks.sliding_window_view(turns, ranks)[starts].ravel()
    n_deps = np.ones(nodes, np.int32)
    n_deps[:ranks] = 0
    succ_ptr = np.arange(nodes + 1, dtype=np.int32)
    waits = max(nodes - ranks, 0)
    succ_ptr[waits:] = waits
    combine = np.zeros(nodes, np.bool_)
    combine[: reducing * ranks] = True
    return Structure(
        n_ranks=ranks,
        src=np.tile(rank, steps),
        dst=np.tile(after, steps),
        n_deps=n_deps,
        succ_ptr=succ_ptr,
        succ=_next_in_ring(after, steps),
        chunk=chunk,
        phase=np.repeat(step, ranks),
        combine=combine,
        n_chunks=ranks,
        parts=ranks,
    )


def _next_in_ring(after: NDArray[np.int32], steps: int) -> NDArray[np.int32]:
    """Return the successor of each node but those of the last step: the receiver's next send."""
    later = np.arange(1, max(steps, 1), dtype=np.int32) * np.int32(len(after))
    return (later[:, None] + after[None, :]).ravel()


def _half_ps(shape: Shape, size_bytes: int, links: Links) -> Fraction:
    steps = shape.ranks - 1
    return steps * links.message_ps(Fraction(size_bytes, shape.ranks))


def _whole_ps(shape: Shape, size_bytes: int, links: Links) -> Fraction:
    return 2 * _half_ps(shape, size_bytes, links)


@algorithm("reduce_scatter", "ring", closed_form=_half_ps)
def ring_reduce_scatter(shape: Shape) -> Structure:
    """Build a ring reduce_scatter: rank ``r`` ends with the sum of chunk ``r``."""
    steps = shape.ranks - 1
    return _ring(shape.ranks, steps=steps, reducing=steps, first=-1)


@algorithm("all_gather", "ring", closed_form=_half_ps)
def ring_all_gather(shape: Shape) -> Structure:
    """Build a ring all_gather: rank ``r`` begins with chunk ``r``."""
    return _ring(shape.ranks, steps=shape.ranks - 1, reducing=0, first=0)


@algorithm("barrier", "ring", closed_form=_whole_ps)
@algorithm("all_reduce", "ring", closed_form=_whole_ps)
def ring_all_reduce(shape: Shape) -> Structure:
    """Build a ring all_reduce: a reduce_scatter whose chunks go on round the ring.

    As a barrier it reduces a token, which is how ``torch.distributed`` does it over NCCL.
    """
    steps = shape.ranks - 1
    return _ring(shape.ranks, steps=2 * steps, reducing=steps, first=-1)
