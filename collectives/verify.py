# SPDX-License-Identifier: Apache-2.0
"""Proves that a schedule computes its operation, by tracking what each chunk contains.

The content of a chunk at a rank is the set of ranks whose data are summed in it. Transfers are
executed in one order that the dependencies allow; that every other such order gives the same is
proven apart: no two transfers that the dependencies leave unordered may touch the same chunk at
the same rank, unless both read it or both add to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.collectives.operations import canonical_op
from railweave.fabric.errors import CheckError, InputError
from railweave.fabric.loops import expand
from railweave.fabric.schedule import NodeKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from railweave.fabric.schedule import Schedule

__all__ = ["verify"]

_READ, _ADD, _REPLACE = range(3)
_REDUCING: Final = ("all_reduce", "barrier", "reduce", "reduce_scatter")
_SHARED: Final = ("all_gather", "all_to_all", "gather", "reduce_scatter", "scatter")
_BLOCK: Final = 4096  # nodes whose descendants are traced in one pass over the graph

_Cell = tuple[int, int]  # rank, chunk
_Held = dict[_Cell, int]  # set of contributing ranks, as the bits of an integer


@dataclass(frozen=True)
class _Contract:
    """What ranks hold before, and what they must hold after."""

    holds: _Held
    wants: _Held


def verify(
    schedule: Schedule,
    op: str | None = None,
    *,
    size_bytes: int | None = None,
    root: int = 0,
    pairs: Sequence[tuple[int, int]] | None = None,
) -> None:
    """Raise unless a schedule computes its operation, whatever the order of unordered nodes.

    Also proven: a chunk has one length wherever it goes, the lengths make up ``size_bytes``, and
    an all_reduce sends at least ``2 * (n - 1) / n`` of the buffer per rank on average, the least
    that is possible without reduction inside the network.

    Parameters
    ----------
    schedule
        A schedule with its ``chunk`` column; ``span`` and ``combine`` count as 1 and false where
        absent.
    op
        Operation; default: the one that the schedule names.
    size_bytes
        The operation's size in bytes, if that is to be checked too.
    root
        Root of a broadcast, reduce, gather or scatter.
    pairs
        For send and recv: source and target of each message, in order of chunks. Default: chunk
        ``r`` goes from rank ``r`` to the rank after it.

    Raises
    ------
    CheckError
        The schedule is wrong; the message says at which rank and chunk.

    Examples
    --------
    >>> from railweave.collectives import plan
    >>> verify(plan("all_reduce", ranks=5, size_bytes=1000), size_bytes=1000)
    """
    name = canonical_op(op or schedule.op)
    schedule = expand(schedule)
    schedule.check()
    if len(schedule) and schedule.chunk is None:
        raise CheckError("the schedule does not say which chunk each transfer carries")
    contract = _contract(schedule, name, root, pairs)
    run = _Execution(schedule, contract.holds)
    run.execute()
    run.check_order()
    for cell, wanted in contract.wants.items():
        found = run.held.get(cell, 0)
        if found != wanted:
            raise CheckError(
                f"{name}: rank {cell[0]} ends with chunk {cell[1]} of ranks {_ranks(found)}, "
                f"not of {_ranks(wanted)}"
            )
    _check_sizes(schedule, name, size_bytes)


def _ranks(content: int) -> list[int]:
    return [rank for rank in range(content.bit_length()) if content >> rank & 1]


def _contract(
    schedule: Schedule, op: str, root: int, pairs: Sequence[tuple[int, int]] | None
) -> _Contract:
    n = schedule.n_ranks - schedule.switches  # a switch holds nothing, and nothing is asked of it
    ranks, chunks = range(n), range(schedule.n_chunks)
    everyone = (1 << n) - 1
    order = list(ranks) if schedule.order is None else schedule.order.tolist()
    if sorted(order) != sorted([*ranks] * (len(order) // n)):
        raise CheckError(f"{op}: the order of shares does not name each rank equally often")
    if op in _SHARED and schedule.n_chunks % len(order):
        raise CheckError(f"{op}: {schedule.n_chunks} chunks cannot be shared evenly")
    share = max(schedule.n_chunks // len(order), 1)
    home = [order[c // share] for c in chunks] if op in _SHARED else []
    each = {(r, c): 1 << r for r in ranks for c in chunks} if op in _REDUCING else {}
    match op:
        case "all_reduce" | "barrier":
            return _Contract(each, dict.fromkeys(each, everyone))
        case "reduce_scatter":
            return _Contract(each, {(r, c): everyone for c, r in enumerate(home)})
        case "reduce":
            return _Contract(each, {(root, c): everyone for c in chunks})
        case "all_gather":
            return _Contract(
                {(r, c): 1 << r for c, r in enumerate(home)},
                {(to, c): 1 << r for to in ranks for c, r in enumerate(home)},
            )
        case "broadcast":
            return _Contract(
                {(root, c): 1 << root for c in chunks},
                {(r, c): 1 << root for r in ranks for c in chunks},
            )
        case "gather":
            return _Contract(
                {(r, c): 1 << r for c, r in enumerate(home)},
                {(root, c): 1 << r for c, r in enumerate(home)},
            )
        case "scatter":
            return _Contract(
                {(root, c): 1 << root for c in chunks},
                {(r, c): 1 << root for c, r in enumerate(home)},
            )
        case "all_to_all":
            if schedule.n_chunks != n**2:
                raise CheckError(f"all_to_all: {schedule.n_chunks} chunks are not one per pair")
            return _Contract(
                {(order[c % n], c): 1 << order[c % n] for c in chunks},
                {(home[c], c): 1 << order[c % n] for c in chunks},
            )
        case "send" | "recv":
            return _messages(schedule, pairs)
    raise InputError(f"verify does not know what {op} must compute", field="op")


def _messages(schedule: Schedule, pairs: Sequence[tuple[int, int]] | None) -> _Contract:
    if schedule.n_ranks == 1:
        return _Contract({}, {})
    if pairs is None:
        after = range(1, schedule.n_chunks + 1)
        pairs = [(r, to % schedule.n_ranks) for r, to in enumerate(after)]
    if len(pairs) != schedule.n_chunks:
        raise CheckError(f"{schedule.n_chunks} messages are sent, {len(pairs)} were asked for")
    return _Contract(
        {(source, c): 1 << source for c, (source, _) in enumerate(pairs)},
        {(target, c): 1 << source for c, (source, target) in enumerate(pairs)},
    )


@dataclass
class _Epoch:
    """The latest accesses of one kind to a cell, and those before that they must come after."""

    kind: int
    nodes: list[int]
    before: list[int]


class _Execution:
    """Executes a schedule on sets of ranks and collects what must be ordered."""

    def __init__(self, schedule: Schedule, holds: _Held) -> None:
        self.schedule = schedule
        self.held = dict(holds)
        ptr, succ = schedule.succ_ptr.tolist(), schedule.succ.tolist()
        self._after = [succ[ptr[i] : ptr[i + 1]] for i in range(len(schedule))]
        self._order = self._topological()
        self._epochs: dict[_Cell, _Epoch] = {}
        self._must_order: list[tuple[int, int, _Cell]] = []

    def _topological(self) -> list[int]:
        left = self.schedule.n_deps.tolist()
        order = [node for node, count in enumerate(left) if count == 0]
        for node in order:  # grows while it is walked
            for after in self._after[node]:
                left[after] -= 1
                if left[after] == 0:
                    order.append(after)
        return order

    def execute(self) -> None:
        """Run all transfers in a topological order, from what the ranks hold at first."""
        plan = self.schedule
        if plan.chunk is None:
            return
        kind, src, dst = plan.kind.tolist(), plan.src.tolist(), plan.dst.tolist()
        chunk = plan.chunk.tolist()
        span = [1] * len(plan) if plan.span is None else plan.span.tolist()
        combine = [False] * len(plan) if plan.combine is None else plan.combine.tolist()
        for node in self._order:
            if kind[node] != NodeKind.TRANSFER:
                continue
            first = chunk[node]
            if span[node] < 1 or first < 0 or first + span[node] > plan.n_chunks:
                raise CheckError(f"transfer {node} carries chunks outside 0..{plan.n_chunks - 1}")
            for c in range(first, first + span[node]):
                self._move(node, (src[node], c), (dst[node], c), adds=combine[node])

    def _move(self, node: int, source: _Cell, target: _Cell, *, adds: bool) -> None:
        moved = self.held.get(source)
        if moved is None:
            raise CheckError(f"rank {source[0]} sends chunk {source[1]} before it holds it")
        self._touch(source, _READ, node)
        self._touch(target, _ADD if adds else _REPLACE, node)
        if adds:
            kept = self.held.get(target, 0)
            if kept & moved:
                raise CheckError(
                    f"rank {target[0]} counts ranks {_ranks(kept & moved)} twice "
                    f"in chunk {target[1]}"
                )
            moved |= kept
        self.held[target] = moved

    def _touch(self, cell: _Cell, kind: int, node: int) -> None:
        epoch = self._epochs.get(cell)
        if epoch is None:
            self._epochs[cell] = _Epoch(kind, [node], [])
            return
        if epoch.kind == kind and kind != _REPLACE:
            epoch.nodes.append(node)
        else:
            epoch = self._epochs[cell] = _Epoch(kind, [node], epoch.nodes)
        self._must_order += [
            (before, node, cell) for before in epoch.before if node not in self._after[before]
        ]

    def check_order(self) -> None:
        """Raise if accesses that must be ordered are not ordered by the dependencies."""
        sources = sorted({before for before, _, _ in self._must_order})
        for start in range(0, len(sources), _BLOCK):
            bit = {node: i for i, node in enumerate(sources[start : start + _BLOCK])}
            reached = [0] * len(self.schedule)
            for node in self._order:
                mask = reached[node] | (1 << bit[node] if node in bit else 0)
                for after in self._after[node]:
                    reached[after] |= mask
            for before, node, cell in self._must_order:
                if before in bit and not reached[node] >> bit[before] & 1:
                    raise CheckError(
                        f"transfers {before} and {node} both touch chunk {cell[1]} at "
                        f"rank {cell[0]}, and no dependency orders them"
                    )


def _check_sizes(schedule: Schedule, op: str, size_bytes: int | None) -> None:
    """Check chunk lengths, their sum, and the least that an all_reduce must send."""
    if schedule.chunk is None or not len(schedule):
        return
    moving = schedule.kind == NodeKind.TRANSFER
    chunk, sizes = schedule.chunk[moving], schedule.size_bytes[moving]
    span = np.ones(len(chunk), np.int32) if schedule.span is None else schedule.span[moving]
    length = np.full(schedule.n_chunks, -1, np.int64)
    length[chunk[span == 1]] = sizes[span == 1]
    while True:
        known = np.concatenate([[0], np.cumsum(np.maximum(length, 0))])
        unknown = np.concatenate([[0], np.cumsum(length < 0)])
        missing = unknown[chunk + span] - unknown[chunk]
        rest = sizes - (known[chunk + span] - known[chunk])
        if np.any(rest[missing == 0]):
            raise CheckError("a chunk has different lengths in different transfers")
        tells = np.flatnonzero(missing == 1)
        if not len(tells):
            break
        # The only chunk of a transfer whose length is not known yet.
        at = np.searchsorted(unknown, unknown[chunk[tells]], side="right") - 1
        if np.any(rest[tells] < 0):
            raise CheckError("a chunk has different lengths in different transfers")
        length[at] = rest[tells]
    n = schedule.n_ranks - schedule.switches
    if op == "all_to_all":
        _check_blocks(length.reshape(n, n), size_bytes)
        return
    if op in ("gather", "scatter"):
        _check_kept(length, size_bytes, n)
        return
    if np.any(length < 0):
        raise CheckError("the lengths of some chunks cannot be told from the transfers")
    if op in ("send", "recv"):
        if size_bytes is not None and np.any(length != size_bytes):
            raise CheckError(f"a message is not of {size_bytes} bytes")
        return
    total = int(length.sum())
    if size_bytes is not None and total != size_bytes:
        raise CheckError(f"the chunks have {total} bytes together, not {size_bytes}")
    if op == "all_reduce" and schedule.total_bytes < 2 * (n - 1) * total:
        raise CheckError(
            f"an all_reduce of {total} bytes cannot send only {schedule.total_bytes} bytes in all"
        )


def _check_kept(length: NDArray[np.int64], size_bytes: int | None, ranks: int) -> None:
    """Check a gather or a scatter: what is sent, and the share the root keeps, are the buffer."""
    if size_bytes is None:
        return
    kept = size_bytes - int(length[length >= 0].sum())
    if not size_bytes // ranks <= kept <= -(-size_bytes // ranks):
        raise CheckError(f"the shares of the ranks do not make up {size_bytes} bytes")


def _check_blocks(length: NDArray[np.int64], size_bytes: int | None) -> None:
    """Check an all_to_all: what a rank sends, and the block that it keeps, are its buffer.

    ``length`` has a row per destination and a column per source.
    """
    if size_bytes is None:
        return
    n = len(length)
    sent = np.where(np.eye(n, dtype=np.bool_), 0, length).sum(axis=0)
    kept = size_bytes - sent
    if np.any(kept < size_bytes // n) or np.any(kept > -(-size_bytes // n)):
        raise CheckError(f"the blocks of a rank do not make up {size_bytes} bytes")
