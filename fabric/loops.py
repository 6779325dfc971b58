# SPDX-License-Identifier: Apache-2.0
"""Schedules whose nodes run again and again, as rings' do: a row for all steps of a rank.

A ring all_reduce over 4,096 ranks makes 33.5 million transfers by the same few rules. A looped
schedule says the rules: how often each node runs, and which node's run releases which next run.
It is exactly the schedule that `expand` writes out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from railweave.fabric.schedule import Schedule

__all__ = ["Loops", "expand", "join_loops"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Loops:
    """How often the nodes of a schedule run, and with which chunks.

    Parameters
    ----------
    runs
        int32 (nodes,): runs of each node, 1 or more.
    again
        bool (edges,): each run of the edge's source but the last releases the next run of its
        target, which runs as often and has this one such edge; other edges lead from the end of
        all runs of the source to the first run of the target. A run starts no earlier than the
        run before it.
    first, cycle
        int32 (nodes,): where a node runs more than once, run ``r`` carries chunk
        ``first + (chunk - first - r) mod cycle``.
    longer
        int32 (nodes,): where a node runs more than once, those of its chunks that are below this
        one have a byte more than ``size_bytes`` says.
    combining
        int32 (nodes,): where a node runs more than once, the first so many runs combine.
    """

    runs: NDArray[np.int32]
    again: NDArray[np.bool_]
    first: NDArray[np.int32]
    cycle: NDArray[np.int32]
    longer: NDArray[np.int32]
    combining: NDArray[np.int32]

    def longer_parts(self) -> NDArray[np.int32]:
        """Return how many of the chunks of a node's cycle have a byte more, int32 (nodes,)."""
        parts = np.clip(self.longer - self.first, 0, self.cycle)
        return np.where(self.runs > 1, parts, 0).astype(np.int32)

    def longer_runs(self, chunk: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return in how many of its runs a node's chunk has a byte more, int64 (nodes,)."""
        longer, cycle = self.longer_parts().astype(np.int64), self.cycle.astype(np.int64)
        laps, rest = np.divmod(self.runs.astype(np.int64), cycle)
        top = chunk - self.first  # the last runs carry parts top, top - 1, ... around the cycle
        low = top - rest + 1
        direct = np.minimum(top + 1, longer) - np.maximum(low, 0)
        wrapped = np.minimum(cycle, longer) - (low + cycle)
        return np.asarray(
            laps * longer + np.maximum(direct, 0) + np.where(low < 0, np.maximum(wrapped, 0), 0)
        )


def join_loops(parts: Sequence[tuple[Schedule, int]], again: NDArray[np.bool_]) -> Loops | None:
    """Return the loops of schedules put together, None where no part has any.

    Parameters
    ----------
    parts
        Each schedule, and how many nodes that run once come before it.
    again
        As in `Loops`, for all edges.
    """
    if all(part.loops is None for part, _ in parts):
        return None

    def column(name: str, otherwise: int) -> NDArray[np.int32]:
        values = []
        for part, before in parts:
            own = np.full(before + len(part), otherwise, np.int32)
            if part.loops is not None:
                own[before:] = getattr(part.loops, name)
            values.append(own)
        return np.concatenate(values)

    return Loops(
        runs=column("runs", 1),
        again=again,
        first=column("first", 0),
        cycle=column("cycle", 1),
        longer=column("longer", 0),
        combining=column("combining", 0),
    )


def expand(schedule: Schedule) -> Schedule:
    """Return the same schedule with a node for every run; itself where nothing loops.

    Runs of a node are numbered in their order, one column of nodes after another: run ``r`` of
    node ``i`` comes after all earlier runs of all nodes that have as many runs.
    """
    from railweave.fabric.schedule import dependency_csr

    loops = schedule.loops
    if loops is None:
        return schedule
    runs = loops.runs.astype(np.int64)
    nodes = len(schedule)
    # Nodes of equal runs that lie together make a block: its runs come one after another.
    edge = np.flatnonzero(np.diff(runs)) + 1
    starts, ends = np.concatenate(([0], edge)), np.concatenate((edge, [nodes]))
    total = np.concatenate(([0], np.cumsum((ends - starts) * runs[starts])))
    block = np.repeat(np.arange(len(starts)), ends - starts)
    width = (ends - starts)[block]
    home = total[block] + np.arange(nodes) - starts[block]  # where run 0 of each node goes
    owner = np.empty(total[-1], np.int64)
    run = np.empty(total[-1], np.int64)
    for start, end, at in zip(starts, ends, total[:-1], strict=True):
        times = runs[start] if end > start else 0
        span = slice(at, at + (end - start) * times)
        owner[span] = np.tile(np.arange(start, end), times)
        run[span] = np.repeat(np.arange(times), end - start)

    before = np.repeat(np.arange(nodes), np.diff(schedule.succ_ptr))
    after = schedule.succ.astype(np.int64)
    sources, targets = [], []
    for source, target in zip(before[loops.again], after[loops.again], strict=True):
        times = np.arange(runs[source] - 1)
        sources.append(home[source] + times * width[source])
        targets.append(home[target] + (times + 1) * width[target])
    # All runs of a node come before what waits for it, and no run before what its first run waits
    # for: once its releases have gone full circle, earlier and later runs are ordered anyway.
    release = dict(zip(before[loops.again].tolist(), after[loops.again].tolist(), strict=True))
    once = ~loops.again
    for source, target in zip(before[once].tolist(), after[once].tolist(), strict=True):
        ends = np.arange(max(runs[source] - _circle(release, source), 0), runs[source])
        begins = np.arange(min(_circle(release, target), runs[target]))
        sources.append(np.repeat(home[source] + ends * width[source], len(begins)))
        targets.append(np.tile(home[target] + begins * width[target], len(ends)))
    n_deps, ptr, succ = dependency_csr(
        len(owner),
        np.concatenate(sources).astype(np.int32),
        np.concatenate(targets).astype(np.int32),
    )
    looped = runs[owner] > 1
    chunk, phase, combine = schedule.chunk, schedule.phase, schedule.combine
    size = schedule.size_bytes[owner]
    if chunk is not None:
        first, cycle = loops.first[owner], loops.cycle[owner]
        carried = first + (chunk[owner] - first - run) % cycle
        chunk = np.where(looped, carried, chunk[owner]).astype(np.int32)
        size = size + (looped & (chunk < loops.longer[owner]))
    if combine is not None:
        combine = np.where(looped, run < loops.combining[owner], combine[owner])
    return replace(
        schedule,
        kind=schedule.kind[owner],
        src=schedule.src[owner],
        dst=schedule.dst[owner],
        size_bytes=size,
        delay_ps=schedule.delay_ps[owner],
        n_deps=n_deps,
        succ_ptr=ptr,
        succ=succ,
        chunk=chunk,
        phase=None if phase is None else (phase[owner] + run).astype(np.int32),
        span=None if schedule.span is None else schedule.span[owner],
        combine=combine,
        channel=None if schedule.channel is None else schedule.channel[owner],
        loops=None,
    )


def _circle(release: dict[int, int], node: int) -> int:
    """Return after how many releases a node releases itself, or more than there are nodes."""
    if node not in release:
        return 1
    at, steps = release.get(node, -1), 1
    while at != node and steps <= len(release):
        at, steps = release.get(at, -1), steps + 1
    return steps
