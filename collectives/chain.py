# SPDX-License-Identifier: Apache-2.0
"""Pipelined chain broadcast and reduce.

The message is cut in chunks that follow each other along the chain of ranks that begins (reduce:
ends) at the root. A rank passes a chunk on once it has received it and has sent the chunk before.

Source: NCCL's ring kernels for ncclBroadcast and ncclReduce; the time of a pipelined chain is
that of e.g. Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations
in MPICH" (2005).
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.collectives.algorithm import Links, Shape, algorithm
from railweave.collectives.structure import Structure, StructureBuilder
from railweave.fabric.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["chain_broadcast", "chain_reduce"]

# NCCL passes a message on in slots: its buffer of 4 MiB (NCCL_BUFFSIZE) has 8 of them
# (NCCL_STEPS in src/include/device.h).
_SLOT_BYTES: Final = 4 * 2**20 // 8
_MAX_CHUNKS: Final = 128  # bounds the schedule of a huge message; longer chunks then


def _chunks_by_size(shape: Shape, size_bytes: int) -> Mapping[str, int]:
    return {"chunks": min(max(-(-size_bytes // _SLOT_BYTES), 1), _MAX_CHUNKS)}


def _chain_ps(
    shape: Shape, size_bytes: int, links: Links, *, root: int = 0, chunks: int = 1
) -> Fraction:
    hops = shape.ranks - 1
    if hops == 0:
        return Fraction(0)
    return (hops + chunks - 1) * links.message_ps(Fraction(size_bytes, chunks))


def _chain(shape: Shape, *, root: int, chunks: int, reducing: bool) -> Structure:
    shape.check_rank(root, field="root")
    if chunks < 1:
        raise InputError(
            f"{chunks} is not a number of chunks", field="chunks", expected="1 or more"
        )
    ranks = np.int32(shape.ranks)
    build = StructureBuilder(n_ranks=shape.ranks, n_chunks=chunks)
    hop = np.arange(shape.ranks - 1, dtype=np.int32)[:, None]
    chunk = np.arange(chunks, dtype=np.int32)[None, :]
    # A reduce begins at the root's successor, so that the chain ends at the root.
    begin = np.int32(root + reducing)
    node = build.transfers(
        src=(begin + hop) % ranks,
        dst=(begin + hop + np.int32(1)) % ranks,
        chunk=chunk,
        phase=hop + chunk,
        combine=reducing,
    )
    build.depend(before=node[:-1, :], after=node[1:, :])
    build.depend(before=node[:, :-1], after=node[:, 1:])
    return build.finish()


@algorithm("broadcast", "chain", closed_form=_chain_ps, sized_options=_chunks_by_size)
def chain_broadcast(shape: Shape, *, root: int = 0, chunks: int = 1) -> Structure:
    """Build a chain broadcast of ``chunks`` chunks from rank ``root``."""
    return _chain(shape, root=root, chunks=chunks, reducing=False)


@algorithm("reduce", "chain", closed_form=_chain_ps, sized_options=_chunks_by_size)
def chain_reduce(shape: Shape, *, root: int = 0, chunks: int = 1) -> Structure:
    """Build a chain reduce of ``chunks`` chunks to rank ``root``."""
    return _chain(shape, root=root, chunks=chunks, reducing=True)
