# SPDX-License-Identifier: Apache-2.0
"""Direct gather and scatter: the root receives from, or sends to, every other rank at once.

The root's own link is the bottleneck: ``alpha + (n - 1) / n * S / B``.

Source: nccl-tests src/gather.cu and src/scatter.cu, grouped point-to-point sends and receives.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from railweave.collectives.algorithm import Links, Shape, algorithm
from railweave.collectives.structure import Structure, StructureBuilder

__all__ = ["direct_gather", "direct_scatter"]


def _rooted_ps(shape: Shape, size_bytes: int, links: Links, *, root: int = 0) -> Fraction:
    shape.check_rank(root, field="root")
    if shape.ranks == 1:
        return Fraction(0)
    return links.message_ps(Fraction(size_bytes * (shape.ranks - 1), shape.ranks))


def _others(shape: Shape, root: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Return the ranks after the root, round to the one before it."""
    shape.check_rank(root, field="root")
    return np.roll(np.arange(shape.ranks, dtype=np.int32), -root)[1:]


@algorithm("gather", "direct", closed_form=_rooted_ps)
def direct_gather(shape: Shape, *, root: int = 0) -> Structure:
    """Build a transfer from each rank to the root; chunk ``r`` is the share of rank ``r``."""
    others = _others(shape, root)
    build = StructureBuilder(n_ranks=shape.ranks, n_chunks=shape.ranks)
    build.transfers(src=others, dst=np.full_like(others, root), chunk=others)
    return build.finish()


@algorithm("scatter", "direct", closed_form=_rooted_ps)
def direct_scatter(shape: Shape, *, root: int = 0) -> Structure:
    """Build a transfer from the root to each rank; chunk ``r`` is the share of rank ``r``."""
    others = _others(shape, root)
    build = StructureBuilder(n_ranks=shape.ranks, n_chunks=shape.ranks)
    build.transfers(src=np.full_like(others, root), dst=others, chunk=others)
    return build.finish()
