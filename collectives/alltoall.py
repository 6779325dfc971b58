# SPDX-License-Identifier: Apache-2.0
"""Direct all_to_all: every rank sends every other rank its block, all at once.

Source: NCCL, which realises ``ncclAllToAll`` as grouped point-to-point sends and receives.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from railweave.collectives.algorithm import Links, Shape, algorithm
from railweave.collectives.structure import Structure, StructureBuilder

__all__ = ["direct_all_to_all"]


def _direct_ps(shape: Shape, size_bytes: int, links: Links) -> Fraction:
    if shape.ranks == 1:
        return Fraction(0)
    return links.message_ps(Fraction(size_bytes * (shape.ranks - 1), shape.ranks))


@algorithm("all_to_all", "direct", closed_form=_direct_ps)
def direct_all_to_all(shape: Shape) -> Structure:
    """Build ``n * (n - 1)`` independent transfers; chunk ``dst * n + src`` is a block.

    Transfers are numbered by distance: first all to the next rank, then all to the one after.
    """
    ranks = shape.ranks
    build = StructureBuilder(n_ranks=ranks, n_chunks=ranks * ranks, parts=ranks)
    src = np.arange(ranks, dtype=np.int32)[None, :]
    dst = (src + np.arange(1, ranks, dtype=np.int32)[:, None]) % np.int32(ranks)
    build.transfers(src=src, dst=dst, chunk=dst * np.int32(ranks) + src)
    return build.finish()
