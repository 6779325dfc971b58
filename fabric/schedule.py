# SPDX-License-Identifier: Apache-2.0
"""A schedule: the dependency graph of transfers that realises an operation, as arrays.

Schedules speak of ranks only; an engine binds ranks to GPUs and paths when it executes one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.errors import RailweaveError

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from numpy.typing import NDArray

    from railweave.fabric.loops import Loops

__all__ = ["NodeKind", "Schedule", "ScheduleBuilder", "dependency_csr"]


class NodeKind(IntEnum):
    """What a node of a schedule does."""

    TRANSFER = 0  # size_bytes go from rank src to rank dst
    REDUCE = 1  # rank src combines two buffers: takes delay_ps
    COMPUTE = 2  # rank src is busy for delay_ps
    BARRIER = 3  # no work: joins its predecessors


@dataclass(frozen=True, eq=False)
class Schedule:
    """A directed acyclic graph of `NodeKind` nodes over ranks ``0..n_ranks-1``.

    Parameters
    ----------
    n_ranks
        Number of ranks that the schedule speaks of, ``switches`` included.
    kind, src, dst
        int32, shape (nodes,): `NodeKind`, sending rank, receiving rank (src again if no transfer).
    size_bytes
        int64, shape (nodes,): payload of a transfer, else 0.
    delay_ps
        int64, shape (nodes,): a transfer starts this long after its last dependency;
        any other node lasts this long.
    n_deps
        int32, shape (nodes,): number of predecessors.
    succ_ptr, succ
        int32, shapes (nodes + 1,) and (edges,): successors in CSR form.
    chunk, phase
        Optional int32 (nodes,): the logical chunk a transfer carries (-1: none) and the step
        it belongs to. For verification and drawing; engines ignore them.
    span
        Optional int32 (nodes,): a transfer carries chunks ``chunk .. chunk + span - 1``; None: one.
    combine
        Optional bool (nodes,): the receiver adds what arrives to what it holds, or replaces it.
    channel
        Optional int32 (nodes,): the connection between its two ranks that a transfer takes, as a
        queue pair of its own; None: all take the first. Messages of one connection take turns,
        those of several share the links.
    n_chunks
        Number of logical chunks that ``chunk`` counts.
    order
        Optional int32 (shares,): where each rank has a share of the chunks, or several, the ranks
        in order of these shares; None: rank ``r`` has share ``r``. Engines ignore it.
    loops
        How often nodes run, where some run more than once (`railweave.fabric.loops`). ``n_deps``
        counts the predecessors of a node's first run.
    switches
        How many of the ranks, the last ones, are switches that reduce and multicast.
    op, algorithm
        Names of the operation and of the algorithm that realises it.
    key
        Equal keys mean equal schedules, so that an engine may remember one; None: not known.

    Notes
    -----
    Schedules of one shape share their arrays. Nobody writes to them: copy first.
    """

    n_ranks: int
    kind: NDArray[np.int32]
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    size_bytes: NDArray[np.int64]
    delay_ps: NDArray[np.int64]
    n_deps: NDArray[np.int32]
    succ_ptr: NDArray[np.int32]
    succ: NDArray[np.int32]
    chunk: NDArray[np.int32] | None = None
    phase: NDArray[np.int32] | None = None
    span: NDArray[np.int32] | None = None
    combine: NDArray[np.bool_] | None = None
    channel: NDArray[np.int32] | None = None
    n_chunks: int = 0
    order: NDArray[np.int32] | None = None
    loops: Loops | None = None
    switches: int = 0
    op: str = ""
    algorithm: str = ""
    key: Hashable = None

    def __len__(self) -> int:
        return len(self.kind)

    @cached_property
    def total_bytes(self) -> int:
        """Payload bytes of all transfers."""
        return int(self._node_bytes().sum())

    @cached_property
    def n_runs(self) -> int:
        """Number of runs of all nodes."""
        return len(self) if self.loops is None else int(self.loops.runs.sum(dtype=np.int64))

    def _node_bytes(self) -> NDArray[np.int64]:
        """Payload bytes of all runs of each node, int64."""
        if self.loops is None:
            return self.size_bytes
        chunk = np.zeros(len(self), np.int32) if self.chunk is None else self.chunk
        return self.size_bytes * self.loops.runs + self.loops.longer_runs(chunk)

    def bytes_sent_per_rank(self) -> NDArray[np.int64]:
        """Payload bytes that each rank sends, int64, shape (n_ranks,)."""
        sent = np.zeros(self.n_ranks, np.int64)
        moving = self.kind == NodeKind.TRANSFER
        np.add.at(sent, self.src[moving], self._node_bytes()[moving])
        return sent

    def check(self) -> None:
        """Raise if the arrays disagree with each other or the graph has a cycle."""
        n = len(self)
        columns = (self.src, self.dst, self.size_bytes, self.delay_ps, self.n_deps)
        if any(len(column) != n for column in columns) or len(self.succ_ptr) != n + 1:
            raise RailweaveError("schedule columns differ in length")
        if n and (
            min(self.src.min(), self.dst.min()) < 0
            or max(self.src.max(), self.dst.max()) >= self.n_ranks
        ):
            raise RailweaveError(f"schedule names a rank outside 0..{self.n_ranks - 1}")
        if n and (self.size_bytes.min() < 0 or self.delay_ps.min() < 0):
            raise RailweaveError("schedule has a negative size or delay")
        if self.loops is not None:
            from railweave.fabric.loops import expand

            expand(self).check()
            return
        if not np.array_equal(np.bincount(self.succ, minlength=n), self.n_deps):
            raise RailweaveError("n_deps does not count the predecessors")
        left, ready, seen = self.n_deps.copy(), list(np.flatnonzero(self.n_deps == 0)), 0
        while ready:
            node = ready.pop()
            seen += 1
            for after in self.succ[self.succ_ptr[node] : self.succ_ptr[node + 1]]:
                left[after] -= 1
                if left[after] == 0:
                    ready.append(after)
        if seen != n:
            raise RailweaveError(f"schedule has a cycle through {n - seen} of its {n} nodes")


def dependency_csr(
    n_nodes: int, before: NDArray[np.int32], after: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Turn an edge list into ``(n_deps, succ_ptr, succ)``, keeping the order of equal sources.

    Parameters
    ----------
    n_nodes
        Number of nodes.
    before, after
        int32, shape (edges,): node ``after[i]`` waits for node ``before[i]``.
    """
    order = np.argsort(before, kind="stable")
    ptr = np.zeros(n_nodes + 1, np.int32)
    np.cumsum(np.bincount(before, minlength=n_nodes), out=ptr[1:])
    n_deps = np.bincount(after, minlength=n_nodes).astype(np.int32)
    return n_deps, ptr, after[order].astype(np.int32)


class ScheduleBuilder:
    """Collects nodes one by one; for small or irregular schedules.

    Regular collectives of many ranks build their arrays directly.

    Examples
    --------
    >>> build = ScheduleBuilder(n_ranks=2)
    >>> first = build.transfer(0, 1, 4096)
    >>> _ = build.transfer(1, 0, 4096, after=[first])
    >>> len(build.finish()), build.finish().total_bytes
    (2, 8192)
    """

    def __init__(self, *, n_ranks: int) -> None:
        self.n_ranks = n_ranks
        self._rows: list[tuple[int, int, int, int, int, int, int]] = []
        self._edges: list[tuple[int, int]] = []

    def _add(self, row: tuple[int, int, int, int, int, int, int], after: Sequence[int]) -> int:
        node = len(self._rows)
        self._rows.append(row)
        self._edges.extend((before, node) for before in after)
        return node

    def transfer(
        self,
        src: int,
        dst: int,
        size_bytes: int,
        *,
        after: Sequence[int] = (),
        delay_ps: int = 0,
        chunk: int = -1,
        phase: int = -1,
    ) -> int:
        """Add a transfer from rank ``src`` to rank ``dst`` and return its node number."""
        row = (NodeKind.TRANSFER, src, dst, size_bytes, delay_ps, chunk, phase)
        return self._add(row, after)

    def work(
        self,
        rank: int,
        delay_ps: int,
        *,
        after: Sequence[int] = (),
        kind: NodeKind = NodeKind.COMPUTE,
    ) -> int:
        """Add a node that keeps ``rank`` busy for ``delay_ps`` and return its number."""
        return self._add((kind, rank, rank, 0, delay_ps, -1, -1), after)

    def finish(self) -> Schedule:
        """Return the schedule."""
        table = np.array(self._rows, np.int64).reshape(-1, 7)
        edges = np.array(self._edges, np.int32).reshape(-1, 2)
        n_deps, ptr, succ = dependency_csr(len(table), edges[:, 0], edges[:, 1])
        kind, src, dst, chunk, phase = (table[:, i].astype(np.int32) for i in (0, 1, 2, 5, 6))
        return Schedule(
            n_ranks=self.n_ranks,
            kind=kind,
            src=src,
            dst=dst,
            size_bytes=table[:, 3].copy(),
            delay_ps=table[:, 4].copy(),
            n_deps=n_deps,
            succ_ptr=ptr,
            succ=succ,
            chunk=chunk,
            phase=phase,
        )
