# SPDX-License-Identifier: Apache-2.0
"""Point to point: one message between two ranks, or every rank to the next one.

Source: nccl-tests ``sendrecv_perf``, in which rank ``r`` sends to ``r + 1`` and receives from
``r - 1``, all at once.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from railweave.collectives.algorithm import Links, Shape, algorithm
from railweave.collectives.structure import Structure, StructureBuilder
from railweave.fabric.errors import InputError

__all__ = ["send_pair", "send_shift"]


def _message_ps(shape: Shape, size_bytes: int, links: Links, **_: int) -> Fraction:
    return links.message_ps(Fraction(size_bytes)) if shape.ranks > 1 else Fraction(0)


@algorithm("recv", "pair", closed_form=_message_ps)
@algorithm("send", "pair", closed_form=_message_ps)
def send_pair(shape: Shape, *, source: int = 0, target: int | None = None) -> Structure:
    """Build one message from rank ``source`` to rank ``target`` (default: the one after it)."""
    ranks = shape.ranks
    to = (source + 1) % ranks if target is None else target
    for field, rank in (("source", source), ("target", to)):
        shape.check_rank(rank, field=field)
    build = StructureBuilder(n_ranks=ranks, n_chunks=1)
    if source != to:
        build.transfers(src=[source], dst=[to], chunk=0)
    elif ranks > 1:
        raise InputError("source and target are the same rank", field="target")
    return build.finish()


@algorithm("recv", "shift", closed_form=_message_ps)
@algorithm("send", "shift", closed_form=_message_ps)
def send_shift(shape: Shape) -> Structure:
    """Build a message of the whole size from each rank ``r`` to rank ``r + 1``; chunk ``r``."""
    ranks = shape.ranks
    build = StructureBuilder(n_ranks=ranks, n_chunks=ranks, parts=1)
    if ranks > 1:
        rank = np.arange(ranks, dtype=np.int32)
        build.transfers(src=rank, dst=np.roll(rank, -1), chunk=rank)
    return build.finish()
