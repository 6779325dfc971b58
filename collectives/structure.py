# SPDX-License-Identifier: Apache-2.0
"""A schedule without its sizes: built once per shape, then filled for any number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from railweave.collectives._edges import check_nodes, successor_lists
from railweave.fabric.loops import Loops
from railweave.fabric.schedule import NodeKind, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from numpy.typing import NDArray

    from railweave.collectives._edges import Edges

__all__ = ["Structure", "StructureBuilder", "StructureCache", "split_bytes"]

_COLUMNS: Final[Mapping[str, type[np.generic]]] = MappingProxyType(
    {
        "src": np.int32,
        "dst": np.int32,
        "chunk": np.int32,
        "span": np.int32,
        "phase": np.int32,
        "combine": np.bool_,
        "channel": np.int32,
    }
)


def split_bytes(size_bytes: int, parts: int) -> NDArray[np.int64]:
    """Split a buffer evenly: the first ``size_bytes % parts`` parts are one byte longer.

    The longest part has ``ceil(size_bytes / parts)`` bytes; parts may be empty.

    Examples
    --------
    >>> split_bytes(10, 4).tolist()
    [3, 3, 2, 2]
    """
    base, longer = divmod(size_bytes, parts)
    sizes = np.full(parts, base, np.int64)
    sizes[:longer] += 1
    return sizes


@dataclass(frozen=True, eq=False, kw_only=True)
class Structure:
    """All of a schedule that its size does not change.

    Parameters
    ----------
    n_ranks, src, dst, n_deps, succ_ptr, succ, chunk, phase, span, combine, channel
        As in `Schedule`; every node is a transfer. ``span`` None means one chunk each,
        ``channel`` None that all take the first connection between their ranks.
    n_chunks
        Number of logical chunks, a multiple of ``parts``.
    parts
        The operation's buffer is split evenly in this many parts; chunk ``c`` is as long as
        part ``c // (n_chunks // parts)``. Each rank of an all_to_all has its own buffer:
        ``ranks`` parts and ``ranks**2`` chunks. Where chunks are more than parts, a span
        never crosses from one part to the next.
    order, loops, switches
        As in `Schedule`; chunks of looped nodes are parts.
    """

    n_ranks: int
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    n_deps: NDArray[np.int32]
    succ_ptr: NDArray[np.int32]
    succ: NDArray[np.int32]
    chunk: NDArray[np.int32]
    phase: NDArray[np.int32]
    combine: NDArray[np.bool_]
    n_chunks: int
    parts: int
    span: NDArray[np.int32] | None = None
    channel: NDArray[np.int32] | None = None
    order: NDArray[np.int32] | None = None
    loops: Loops | None = None
    switches: int = 0
    _kind: NDArray[np.int32] = field(init=False)
    _part: NDArray[np.int32] = field(init=False)
    _last_delay: tuple[int, NDArray[np.int64]] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        kind = np.full(len(self.src), NodeKind.TRANSFER, np.int32)
        copies = self.n_chunks // self.parts
        part = self.chunk // np.int32(copies) if copies > 1 else self.chunk
        object.__setattr__(self, "_kind", kind)
        object.__setattr__(self, "_part", part)

    def __len__(self) -> int:
        return len(self.src)

    def _delays(self, step_delay_ps: int) -> NDArray[np.int64]:
        """Return the same delay for each node; the array used last is used again."""
        if self._last_delay is None or self._last_delay[0] != step_delay_ps:
            delays = np.zeros(len(self), np.int64)  # zero pages cost nothing until they are read
            if step_delay_ps:
                delays += step_delay_ps
            object.__setattr__(self, "_last_delay", (step_delay_ps, delays))
            return delays
        return self._last_delay[1]

    def sizes(self, size_bytes: int) -> NDArray[np.int64]:
        """Return the payload of each transfer, int64, when the buffer has ``size_bytes``."""
        base, longer = divmod(size_bytes, self.parts)
        if self.span is None:
            sizes = np.full(len(self), base, np.int64)
            if longer:
                sizes += self._part < longer
        else:
            sizes = self.span * np.int64(base)
            if longer and self.parts < self.n_chunks:
                sizes += self.span * (self._part < longer)
            elif longer:
                sizes += np.minimum(np.maximum(longer - self._part, 0), self.span)
        if self.loops is not None:
            sizes[self.loops.runs > 1] = base
        return sizes

    def _loops(self, size_bytes: int) -> Loops | None:
        """Return the loops with the number of longer chunks."""
        if self.loops is None:
            return None
        longer = np.full(len(self), size_bytes % self.parts, np.int32)
        return replace(self.loops, longer=longer)

    def fill(
        self,
        size_bytes: int,
        *,
        step_delay_ps: int = 0,
        op: str = "",
        algorithm: str = "",
        key: Hashable = None,
    ) -> Schedule:
        """Return the schedule for a buffer of ``size_bytes``, each transfer delayed alike."""
        return Schedule(
            n_ranks=self.n_ranks,
            kind=self._kind,
            src=self.src,
            dst=self.dst,
            size_bytes=self.sizes(size_bytes),
            delay_ps=self._delays(step_delay_ps),
            n_deps=self.n_deps,
            succ_ptr=self.succ_ptr,
            succ=self.succ,
            chunk=self.chunk,
            phase=self.phase,
            span=self.span,
            combine=self.combine,
            channel=self.channel,
            n_chunks=self.n_chunks,
            order=self.order,
            loops=self._loops(size_bytes),
            switches=self.switches,
            op=op,
            algorithm=algorithm,
            key=key,
        )


class StructureBuilder:
    """Collects blocks of transfers and of dependencies, each block as whole arrays.

    Examples
    --------
    >>> build = StructureBuilder(n_ranks=3, n_chunks=1)
    >>> first = build.transfers(src=[0], dst=[1], chunk=0)
    >>> second = build.transfers(src=[1], dst=[2], chunk=0, phase=1)
    >>> build.depend(before=first, after=second)
    >>> build.finish().succ.tolist()
    [1]
    """

    def __init__(
        self, *, n_ranks: int, n_chunks: int, parts: int | None = None, switches: int = 0
    ) -> None:
        self.n_ranks = n_ranks
        self.switches = switches
        self.n_chunks = n_chunks
        self.parts = n_chunks if parts is None else parts
        self._nodes = 0
        self._columns: dict[str, list[NDArray[Any]]] = {name: [] for name in _COLUMNS}
        self._edges: list[Edges] = []
        self._again: list[Edges] = []
        self._loops: list[tuple[NDArray[np.int32], int, NDArray[np.int32], int, int]] = []

    def transfers(
        self,
        *,
        src: NDArray[np.int32] | Sequence[int],
        dst: NDArray[np.int32] | Sequence[int],
        chunk: NDArray[np.int32] | Sequence[int] | int,
        span: NDArray[np.int32] | Sequence[int] | int = 1,
        phase: NDArray[np.int32] | Sequence[int] | int = 0,
        combine: NDArray[np.bool_] | bool = False,
        channel: NDArray[np.int32] | int = 0,
    ) -> NDArray[np.int32]:
        """Add transfers (arrays broadcast against each other) and return their numbers.

        The numbers have the broadcast shape, so that blocks may be addressed by step and rank.
        """
        wide = np.broadcast_arrays(src, dst, chunk, span, phase, combine, channel)
        shape, size = wide[0].shape, wide[0].size
        for (name, dtype), column in zip(_COLUMNS.items(), wide, strict=True):
            self._columns[name].append(np.asarray(column, dtype).ravel())
        first, self._nodes = self._nodes, check_nodes(self._nodes + size)
        return np.arange(first, self._nodes, dtype=np.int32).reshape(shape)

    def depend(self, *, before: NDArray[np.int32], after: NDArray[np.int32]) -> None:
        """Let nodes ``after`` wait for nodes ``before``, pair by pair (arrays broadcast)."""
        first, second = np.broadcast_arrays(before, after)
        self._edges.append((first.ravel(), second.ravel()))

    def loop(
        self,
        node: NDArray[np.int32],
        *,
        after: NDArray[np.int32],
        runs: int,
        first: NDArray[np.int32] | int,
        cycle: int,
        combining: int,
    ) -> None:
        """Let nodes run several times; each run but the last releases the next run of ``after``.

        ``first``, ``cycle`` and ``combining`` are as in `railweave.fabric.loops.Loops`.
        """
        check_nodes(node.size * runs)
        if runs == 1:
            return
        firsts = np.broadcast_to(np.asarray(first, np.int32), node.shape)
        self._loops.append((node.ravel(), runs, firsts.ravel(), cycle, combining))
        self._again.append((node.ravel(), after.ravel()))

    def _connections(
        self,
        *,
        src: NDArray[np.int32],
        dst: NDArray[np.int32],
        channel: NDArray[np.int32],
        **_: object,
    ) -> NDArray[np.int32] | None:
        """Return the channels, numbered from 0 between each two ranks; None where that is all.

        So a GPU with several NICs gives those channels that go the same way a NIC each.
        """
        if not channel.any():
            return None
        most = np.int64(channel.max()) + 1
        codes, which = np.unique(
            (src.astype(np.int64) * self.n_ranks + dst) * most + channel, return_inverse=True
        )
        pair = codes // most
        number = (np.arange(len(codes)) - np.searchsorted(pair, pair)).astype(np.int32)
        return number[which] if number.any() else None

    def _joined_loops(self) -> tuple[Loops | None, list[Edges]]:
        """Return the loops, without their edges' marks, and the edges of their runs."""
        if not self._loops:
            return None, []
        count = self._nodes
        runs, first, cycle, combining = (np.full(count, v, np.int32) for v in (1, 0, 1, 0))
        for node, times, firsts, around, combines in self._loops:
            runs[node], first[node], cycle[node], combining[node] = times, firsts, around, combines
        none = np.zeros(0, np.bool_)
        loops = Loops(
            runs=runs, again=none, first=first, cycle=cycle, longer=first, combining=combining
        )
        return loops, [*self._again]

    def finish(self, *, order: NDArray[np.int32] | None = None) -> Structure:
        """Return the structure; ``order`` as in `Structure`. The builder is empty afterwards."""
        joined: dict[str, Any] = {}
        for name, dtype in _COLUMNS.items():  # column by column, so that little is held twice
            blocks = self._columns.pop(name)
            one = len(blocks) == 1
            joined[name] = blocks[0] if one else np.concatenate([np.empty(0, dtype), *blocks])
        if bool((joined["span"] == 1).all()):
            joined["span"] = None
        joined["channel"] = self._connections(**joined)
        loops, again = self._joined_loops()
        n_deps, ptr, succ = successor_lists(self._nodes, [*self._edges, *again])
        if loops is not None:
            marks = np.zeros(len(succ), np.bool_)
            for node, after in again:  # the last edge of each of these nodes
                marks[ptr[node + 1] - 1] = True
                n_deps[after] -= 1
            loops = replace(loops, again=marks)
        self._edges = []
        return Structure(
            n_ranks=self.n_ranks,
            n_deps=n_deps,
            succ_ptr=ptr,
            succ=succ,
            n_chunks=self.n_chunks,
            parts=self.parts,
            order=order,
            loops=loops,
            switches=self.switches,
            **joined,
        )


class StructureCache:
    """Keeps the structures used last, up to a number of nodes in all.

    Parameters
    ----------
    max_nodes
        What may be kept (a node takes about 36 bytes); a larger structure is not kept at all.
    """

    def __init__(self, *, max_nodes: int) -> None:
        self.max_nodes = max_nodes
        self._kept: OrderedDict[Hashable, Structure] = OrderedDict()
        self._nodes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, build: Callable[[], Structure]) -> Structure:
        """Return the structure of ``key``, building it if it is not kept."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found
        made = build()
        if len(made) <= self.max_nodes:
            self._kept[key] = made
            # An empty structure costs something too, or the number of entries had no limit.
            self._nodes += max(len(made), 1)
            while self._nodes > self.max_nodes:
                self._nodes -= max(len(self._kept.popitem(last=False)[1]), 1)
        return made
