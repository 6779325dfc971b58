# SPDX-License-Identifier: Apache-2.0
"""Schedules made of simpler ones: busy ranks, transfers side by side, parts one after another.

A collective ends for all of its ranks before any of them goes on, so parts are joined by a barrier.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.errors import RailweaveError
from railweave.fabric.loops import join_loops
from railweave.fabric.schedule import NodeKind, Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["chain", "parallel", "work"]

_REMEMBERED: Final = 256  # structures kept
_ARRAYS_THAT_FIX_A_STRUCTURE: Final = ("kind", "src", "dst", "succ")


@lru_cache(maxsize=256)
def _side_by_side(n_ranks: int, pairs: tuple[tuple[int, int], ...], kind: NodeKind) -> Schedule:
    """Return a schedule without edges, sizes and delays; equal arguments share its arrays."""
    ends = np.array(pairs, np.int32).reshape(-1, 2)
    nodes = len(ends)
    return Schedule(
        n_ranks=n_ranks,
        kind=np.full(nodes, kind, np.int32),
        src=np.ascontiguousarray(ends[:, 0]),
        dst=np.ascontiguousarray(ends[:, 1]),
        size_bytes=np.zeros(nodes, np.int64),
        delay_ps=np.zeros(nodes, np.int64),
        n_deps=np.zeros(nodes, np.int32),
        succ_ptr=np.zeros(nodes + 1, np.int32),
        succ=np.zeros(0, np.int32),
    )


def work(n_ranks: int, delay_ps: int) -> Schedule:
    """Return the schedule in which every rank is busy for ``delay_ps``.

    Examples
    --------
    >>> work(2, 500).delay_ps.tolist()
    [500, 500]
    """
    like = _side_by_side(n_ranks, tuple((r, r) for r in range(n_ranks)), NodeKind.COMPUTE)
    delays = np.full(n_ranks, delay_ps, np.int64)
    return replace(like, delay_ps=delays, op="compute", key=("work", n_ranks, delay_ps))


def parallel(
    n_ranks: int, pairs: tuple[tuple[int, int], ...], sizes: tuple[int, ...], *, op: str = "send"
) -> Schedule:
    """Return the schedule of transfers that all start at once.

    Parameters
    ----------
    n_ranks
        Number of ranks.
    pairs
        Sending and receiving rank of each transfer.
    sizes
        Payload of each transfer in bytes.
    op
        Name of the whole.

    Examples
    --------
    >>> parallel(4, ((0, 2), (1, 3)), (10, 20)).bytes_sent_per_rank().tolist()
    [10, 20, 0, 0]
    """
    like = _side_by_side(n_ranks, pairs, NodeKind.TRANSFER)
    key = ("parallel", n_ranks, pairs, sizes)
    return replace(like, size_bytes=np.array(sizes, np.int64), op=op, key=key)


@dataclass(frozen=True, eq=False)
class _Structure:
    """What chains of the same structures share; ``parts`` are kept so that no id is reused."""

    parts: tuple[Schedule, ...]
    kind: NDArray[np.int32]
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    n_deps: NDArray[np.int32]
    succ_ptr: NDArray[np.int32]
    succ: NDArray[np.int32]
    again: NDArray[np.bool_]  # as in `Loops`


_STRUCTURES: Final[OrderedDict[tuple[int, ...], _Structure]] = OrderedDict()
_BARRIER: Final = np.zeros(1, np.int64)


def chain(parts: Sequence[Schedule], *, op: str = "chain") -> Schedule:
    """Return the schedule that runs ``parts`` one after another on the same ranks.

    Chains of parts that share their structure arrays share theirs too: only sizes and delays are
    new, which costs microseconds. The chain has a key if all parts have one.

    Parameters
    ----------
    parts
        At least one; all over the same number of ranks.
    op
        Name of the whole.

    Raises
    ------
    RailweaveError
        There is no part, or the parts differ in their number of ranks.

    Examples
    --------
    >>> both = chain([work(2, 500), work(2, 700)])
    >>> both.delay_ps.tolist(), both.n_deps.tolist()
    ([500, 500, 0, 700, 700], [0, 0, 2, 1, 1])
    """
    known = _structure(parts)
    sizes, delays = [parts[0].size_bytes], [parts[0].delay_ps]
    for part in parts[1:]:
        sizes += [_BARRIER, part.size_bytes]
        delays += [_BARRIER, part.delay_ps]
    keys = tuple(part.key for part in parts)
    loops = join_loops([(part, int(i > 0)) for i, part in enumerate(parts)], known.again)
    return Schedule(
        n_ranks=parts[0].n_ranks,
        kind=known.kind,
        src=known.src,
        dst=known.dst,
        size_bytes=np.concatenate(sizes),
        delay_ps=np.concatenate(delays),
        n_deps=known.n_deps,
        succ_ptr=known.succ_ptr,
        succ=known.succ,
        chunk=None if loops is None else _chunks(parts),
        channel=_channels(parts),
        loops=loops,
        op=op,
        key=None if None in keys else ("chain", keys),
    )


def _chunks(parts: Sequence[Schedule]) -> NDArray[np.int32]:
    """Return the chunk of each node, which decides its size where it runs more than once."""
    chunks = []
    for number, part in enumerate(parts):
        if number:
            chunks.append(np.full(1, -1, np.int32))
        chunks.append(np.full(len(part), -1, np.int32) if part.chunk is None else part.chunk)
    return np.concatenate(chunks)


def _channels(parts: Sequence[Schedule]) -> NDArray[np.int32] | None:
    """Return the connection of each node; None where all take the first."""
    if all(part.channel is None for part in parts):
        return None
    columns = []
    for number, part in enumerate(parts):
        columns.append(np.zeros(int(number > 0), np.int32))
        columns.append(np.zeros(len(part), np.int32) if part.channel is None else part.channel)
    return np.concatenate(columns)


def _structure(parts: Sequence[Schedule]) -> _Structure:
    key = tuple(id(getattr(p, name)) for p in parts for name in _ARRAYS_THAT_FIX_A_STRUCTURE)
    known = _STRUCTURES.get(key)
    if known is None:
        known = _STRUCTURES[key] = _join(tuple(parts))
        if len(_STRUCTURES) > _REMEMBERED:
            _STRUCTURES.popitem(last=False)
    return known


def _join(parts: tuple[Schedule, ...]) -> _Structure:
    if len({part.n_ranks for part in parts}) != 1:
        raise RailweaveError("a chain needs parts over one and the same number of ranks")
    kinds: list[NDArray[np.int32]] = []
    srcs: list[NDArray[np.int32]] = []
    dsts: list[NDArray[np.int32]] = []
    edges: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]] = []
    base, sinks = 0, np.zeros(0, np.int64)
    for number, part in enumerate(parts):
        if number:  # a barrier between the last nodes of what was and the first of what comes
            kinds.append(np.full(1, NodeKind.BARRIER, np.int32))
            srcs.append(np.zeros(1, np.int32))
            dsts.append(np.zeros(1, np.int32))
            edges.append(_plain(sinks, np.full(len(sinks), base)))
            roots = base + 1 + np.flatnonzero(part.n_deps == 0)
            edges.append(_plain(np.full(len(roots), base), roots))
            sinks = np.array([base])
            base += 1
        before = np.repeat(np.arange(len(part)), np.diff(part.succ_ptr))
        inner = _plain(base + before, base + part.succ.astype(int))
        if part.loops is not None:
            inner = (*inner[:2], part.loops.again)
        edges.append(inner)
        kinds.append(part.kind)
        srcs.append(part.src)
        dsts.append(part.dst)
        if len(part):
            leads_on = np.zeros(len(part), np.bool_)
            leads_on[before[~inner[2]]] = True
            sinks = base + np.flatnonzero(~leads_on)
        base += len(part)
    joined = tuple(np.concatenate(column) for column in zip(*edges, strict=True))
    order = np.argsort(joined[0], kind="stable")
    before, after, again = (column[order] for column in joined)
    n_deps = np.bincount(after[~again], minlength=base).astype(np.int32)
    ptr = np.zeros(base + 1, np.int32)
    np.cumsum(np.bincount(before, minlength=base), out=ptr[1:])
    return _Structure(
        parts=parts,
        kind=np.concatenate(kinds),
        src=np.concatenate(srcs),
        dst=np.concatenate(dsts),
        n_deps=n_deps,
        succ_ptr=ptr,
        succ=after.astype(np.int32),
        again=again,
    )


def _plain(
    before: NDArray[np.int64], after: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return edges that each hold once."""
    return before, after, np.zeros(len(before), np.bool_)
