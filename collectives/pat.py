# SPDX-License-Identifier: Apache-2.0
"""PAT all_gather and reduce_scatter: logarithmic steps over aggregated blocks.

In step ``s`` of an all_gather rank ``r`` sends the ``2**s`` blocks that it holds by then, those of
ranks ``r .. r + 2**s - 1``, to rank ``r - 2**s``: each block comes down a binomial tree, and the
blocks of a step travel together. A reduce_scatter is the same backwards. For networks with one GPU
per node; ``ceil(log2(n))`` latencies instead of a ring's ``n - 1``.

Time: ``ceil(log2(n)) * alpha + (n - 1) / n * S / B``.

Source: Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale",
arXiv:2506.20252 (NCCL 2.23); the all_gather is that of Bruck et al., "Efficient algorithms for
all-to-all communications in multiport message-passing systems", IEEE TPDS 8 (1997).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from railweave.collectives.algorithm import Links, Shape, algorithm
from railweave.collectives.structure import Structure, StructureBuilder
from railweave.fabric.units import PS_PER_S

__all__ = ["pat_all_gather", "pat_reduce_scatter"]


def _pat_ps(shape: Shape, size_bytes: int, links: Links) -> Fraction:
    ranks = shape.ranks
    moved = Fraction(size_bytes * (ranks - 1) * 8 * PS_PER_S, ranks * links.rate_bps)
    return (ranks - 1).bit_length() * links.alpha_ps + moved


def _build(ranks: int, *, backwards: bool) -> Structure:
    build = StructureBuilder(n_ranks=ranks, n_chunks=ranks)
    rank = np.arange(ranks, dtype=np.int32)
    steps = (ranks - 1).bit_length()
    sent: list[list[np.ndarray[tuple[int, ...], np.dtype[np.int32]]]] = []  # by step and part
    for step in range(steps):
        far = np.int32(1 << step)
        blocks = min(1 << step, ranks - (1 << step))
        # Blocks r .. r + blocks - 1 run over the end of the numbers at some ranks: two messages.
        first = np.minimum(ranks - rank, blocks).astype(np.int32)
        ends = (rank, (rank - far) % np.int32(ranks))
        src, dst = ends[::-1] if backwards else ends
        phase = steps - 1 - step if backwards else step
        one = build.transfers(
            src=src, dst=dst, chunk=rank, span=first, phase=phase, combine=backwards
        )
        over = np.flatnonzero(first < blocks)
        two = np.full(ranks, -1, np.int32)
        two[over] = build.transfers(
            src=src[over], dst=dst[over], chunk=0, span=np.int32(blocks) - first[over],
            phase=phase, combine=backwards,
        )  # fmt: skip
        sent.append([one, two])
    for step in range(steps):
        for before in range(step):
            near = np.int32(1 << before)
            for early in sent[before]:
                for late in sent[step]:
                    # What rank r sends in a later step includes what r + near sent to it.
                    came = np.roll(early, -int(near))
                    both = (came >= 0) & (late >= 0)
                    pair = (came[both], late[both])
                    first_, then = pair[::-1] if backwards else pair
                    build.depend(before=first_, after=then)
    return build.finish()


@algorithm("all_gather", "pat", closed_form=_pat_ps)
def pat_all_gather(shape: Shape) -> Structure:
    """Build a PAT all_gather."""
    return _build(shape.ranks, backwards=False)


@algorithm("reduce_scatter", "pat", closed_form=_pat_ps)
def pat_reduce_scatter(shape: Shape) -> Structure:
    """Build a PAT reduce_scatter."""
    return _build(shape.ranks, backwards=True)
