# SPDX-License-Identifier: Apache-2.0
"""What a step asks of the network: operations, their closed forms, who takes part.

Sizes follow one convention: the full logical buffer. An all_reduce's is what each rank holds, an
all_gather's the gathered result, a reduce_scatter's its input, an all_to_all's what one rank holds
for all, a send's the message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from railweave.fabric.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from railweave.workloads.parallelism import ParallelismPlan

__all__ = [
    "PHASES",
    "TrafficOp",
    "collective",
    "matrix_op",
    "op_groups",
    "ring_wire_bytes",
    "send",
    "total_wire_bytes",
]

PHASES: Final = ("forward", "recompute", "backward", "gradients", "parameters")
"""When an operation runs; those of inference are all ``forward``."""

# All ranks together send this many buffers, times n - 1 (Thakur, Rabenseifner and Gropp, 2005;
# also the bus-bandwidth factors of nccl-tests, times n).
_PASSES: Final = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


@dataclass(frozen=True)
class TrafficOp:
    """Equal operations of one pipeline stage in one step.

    Parameters
    ----------
    op
        ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all`` or ``send``.
    axis
        The groups that run it (`ParallelismPlan.groups`); ``pp``: to the same rank of another
        stage; ``embedding``: the same ranks of the first and the last stage.
    count
        How many of them, one after another, in each group.
    size_bytes
        Full logical buffer of one operation.
    wire_bytes_per_rank
        Bytes that the busiest rank sends in all ``count`` operations (ring or pairwise).
    stage
        The stage that runs it, or that sends.
    to_stage
        The stage that receives a ``send``, else None.
    what
        What the bytes are, for people.
    member
        The replica that runs it, None: every one.
    phase
        One of `PHASES`.
    messages
        Messages that the busiest rank sends in all ``count`` operations.
    matrix
        int64 (n, n): bytes from each rank of a group to each other, of an uneven all_to_all.
        None: even.
    """

    op: str
    axis: str
    count: int
    size_bytes: int
    wire_bytes_per_rank: int
    stage: int = 0
    to_stage: int | None = None
    what: str = ""
    member: int | None = None
    phase: str = "forward"
    messages: int = 0
    matrix: NDArray[np.int64] | None = field(default=None, compare=False, repr=False)


def ring_wire_bytes(op: str, size_bytes: int, n_ranks: int) -> int:
    """Return the bytes that each rank sends in one ring or pairwise collective, rounded up.

    ``2 (n-1)/n M`` for an all_reduce, ``(n-1)/n M`` for an all_gather, a reduce_scatter or an
    all_to_all (Thakur, Rabenseifner and Gropp, 2005; the bus-bandwidth factors of nccl-tests).

    Parameters
    ----------
    op
        The operation.
    size_bytes
        Full logical buffer M.
    n_ranks
        Ranks n.

    Examples
    --------
    >>> ring_wire_bytes("all_reduce", 16384, 8)
    28672
    """
    return -(-_PASSES[op] * (n_ranks - 1) * size_bytes // n_ranks)


def collective(
    op: str, axis: str, n_ranks: int, size_bytes: int, *, count: int = 1, **columns: Any
) -> Iterator[TrafficOp]:
    """Yield an operation over groups of ``n_ranks``; nothing where it moves nothing.

    Parameters
    ----------
    op, axis, size_bytes, count
        As in `TrafficOp`.
    n_ranks
        Ranks of a group.
    **columns
        Further columns of `TrafficOp`.
    """
    if n_ranks > 1 and count and size_bytes:
        steps = 2 * (n_ranks - 1) if op == "all_reduce" else n_ranks - 1
        wire = count * ring_wire_bytes(op, size_bytes, n_ranks)
        yield TrafficOp(op, axis, count, size_bytes, wire, messages=count * steps, **columns)


def send(
    size_bytes: int, *, stage: int, to_stage: int, count: int = 1, what: str, **columns: Any
) -> Iterator[TrafficOp]:
    """Yield a message from each rank of a stage to its peer; nothing where there is no byte."""
    if size_bytes and count:
        yield TrafficOp(
            "send", "pp", count, size_bytes, count * size_bytes, stage, to_stage, what,
            messages=count, **columns,
        )  # fmt: skip


def matrix_op(
    matrix: NDArray[np.int64], *, messages: int, count: int, **columns: Any
) -> Iterator[TrafficOp]:
    """Yield an uneven all_to_all over the expert-parallel group; nothing where nothing moves.

    Parameters
    ----------
    matrix
        int64 (n, n): bytes from rank to rank; what a rank keeps is not counted.
    messages
        Messages of the rank that sends the most of them, in one operation.
    count, **columns
        As in `TrafficOp`.
    """
    sent = matrix.sum(axis=1) - matrix.diagonal()
    if count and sent.any():
        yield TrafficOp(
            "all_to_all", "ep", count, int(matrix.sum(axis=1).max()), count * int(sent.max()),
            messages=count * messages, matrix=matrix, **columns,
        )  # fmt: skip


def op_groups(op: TrafficOp, plan: ParallelismPlan) -> list[tuple[int, ...]]:
    """Return the groups that run an operation; for sends each sender with its receiver."""
    if op.to_stage is not None:
        here = plan.stage_ranks(op.stage, member=op.member)
        there = plan.stage_ranks(op.to_stage, member=op.member)
        return list(zip(here, there, strict=True))
    if op.axis == "embedding":
        ends = (plan.stage_ranks(0), plan.stage_ranks(plan.pp - 1))
        return list(zip(*ends, strict=True))
    return plan.groups(op.axis, stage=op.stage, member=op.member)


def total_wire_bytes(op: TrafficOp, plan: ParallelismPlan) -> int:
    """Return the bytes that all ranks send in an operation: its closed form, exact.

    ``n - 1`` buffers for each all_gather, reduce_scatter and all_to_all over n ranks, twice that
    for an all_reduce, the off-diagonal sum of a matrix, the message of each send.
    """
    groups = op_groups(op, plan)
    if op.op == "send":
        return op.count * op.size_bytes * len(groups)
    if op.matrix is not None:
        return op.count * int(op.matrix.sum() - np.trace(op.matrix)) * len(groups)
    if op.op not in _PASSES:
        raise InputError(f"'{op.op}' has no closed form", expected=" | ".join((*_PASSES, "send")))
    each = _PASSES[op.op] * op.size_bytes
    return op.count * sum((len(group) - 1) * each for group in groups)
