# SPDX-License-Identifier: Apache-2.0
"""Work that changed its paths on the way: what its bound is, and how far it has come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric._fluid_layout import FOREVER, NO_EVENT
from railweave.fabric.binding import BoundSchedule
from railweave.fabric.paths import PathTable
from railweave.fabric.usage import expand_spans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from railweave.fabric.fluid_state import FluidState

__all__ = ["arriving_runs", "least", "message_sizes", "share_done", "started_parts"]


class _Least(PathTable):
    """A path for each set of paths that stand for one another, no slower than any of them.

    Every figure that makes for time is the smallest of the set, and the links are those that all
    of them cross: whatever part of a message goes by which of them, it takes at least this.
    """

    def __init__(self, table: PathTable, ways: NDArray[np.int32]) -> None:
        self.fabric, self.settings = table.fabric, table.settings
        self._table, self._ways, self.even = table, ways, table.even
        self._n = ways.shape[1]
        self.cost = table.cost[ways].min(axis=0)
        self.framing = table.framing[ways[-1]]
        code, share = self._links(ways[0])
        for row in ways[1:]:
            other, other_share = self._links(row)
            code, at, there = np.intersect1d(code, other, assume_unique=True, return_indices=True)
            share = np.minimum(share[at], other_share[there])
        owner, link = np.divmod(code, self.fabric.n_links)
        self.link = link.astype(np.int32)  # as a table's, which kernels are compiled for
        self.share = share
        self.ptr = np.searchsorted(owner, np.arange(self._n + 1))

    def hop_latency(self) -> tuple[NDArray[np.float64], float]:
        """Nothing: which of its links come first is another question for each part."""
        return np.zeros(self.fabric.n_links), 0.0

    def _links(self, paths: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the links of paths as numbers that hold the path's place, and the shares."""
        start, end = self._table.ptr[paths], self._table.ptr[paths.astype(np.int64) + 1]
        at = expand_spans(start, end)
        owner = np.repeat(np.arange(len(paths)), end - start)
        code, first = np.unique(
            owner * np.int64(self.fabric.n_links) + self._table.link[at], return_index=True
        )
        return code, self._table.share[at][first]

    def wire_bytes(self, path: NDArray[np.int32], payload: NDArray[np.int64]) -> NDArray[np.int64]:
        """Fewest bytes of each message on any path of its set."""
        own = np.maximum(path, 0)
        sizes = [self._table.wire_bytes(row[own], payload) for row in self._ways]
        return np.asarray(np.where(path >= 0, np.minimum.reduce(sizes), 0))


def least(bounds: Sequence[BoundSchedule]) -> BoundSchedule:
    """Return a schedule whose bound holds for one that went by several paths in turn.

    A message that changes its path sends parts of its bytes on each of them, so it takes no less
    than all of them on the widest, and the latency of the quickest. A link holds it up for all its
    bytes if every one of its paths crosses that link.

    Parameters
    ----------
    bounds
        The same schedule bound to the paths of each stretch of time, at least one.
    """
    ways, row = np.unique(np.stack([bound.path for bound in bounds]), axis=1, return_inverse=True)
    kept = (ways >= 0).all(axis=0)
    number = np.where(kept, np.cumsum(kept) - 1, -1).astype(np.int32)
    table = _Least(bounds[0].table, np.ascontiguousarray(ways[:, kept]))
    path = number[row.reshape(-1)]
    wire = np.minimum.reduce([bound.wire_bytes for bound in bounds])
    return BoundSchedule(bounds[0].schedule, table, path, wire)


def arriving_runs(state: FluidState) -> NDArray[np.int64]:
    """Return by node how many runs are off its links with their last bits on the way, int64."""
    heads = [int(row.head) for row in state.opened if row.time < FOREVER]
    heads += state.timers.head[: state.run.timers].tolist()
    code, after = state.events.code.tolist(), state.events.next.tolist()
    nodes = []
    for head in heads:
        event = head
        while event != NO_EVENT:
            if code[event] & 1:
                nodes.append(code[event] >> 1)
            event = after[event]
    return np.asarray(np.bincount(np.array(nodes, np.int64), minlength=len(state.nodes)))


def started_parts(
    state: FluidState, arriving: NDArray[np.int64], now_ps: int
) -> NDArray[np.float64]:
    """Return by node how much of runs that have not completed is off its links, float64.

    ``arriving`` is what `arriving_runs` returned; of nodes that came since, it knows nothing.
    """
    part = np.zeros(len(state.nodes))
    part[: len(arriving)] = arriving
    flows = state.slots[np.sort(state.ends.slot[: state.run.active])]
    left = flows.remaining - flows.rate * (now_ps - flows.updated) / 8e12
    size = np.maximum(message_sizes(state, flows.node), 1)
    np.add.at(part, flows.node, 1.0 - np.clip(left / size, 0.0, 1.0))
    return part


def message_sizes(state: FluidState, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Wire bytes of the messages that nodes send now or next, int64."""
    size: NDArray[np.int64] = state.nodes.wire[nodes].astype(np.int64)
    again = np.flatnonzero(state.nodes.loop[nodes] >= 0)
    loops = state.loops[state.nodes.loop[nodes[again]]]
    size[again] += np.where(loops.part < loops.longer, loops.longer_by, 0)
    return size


def share_done(
    state: FluidState, group: int, bound: BoundSchedule, parts: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return how much of the runs of each node of a group is off its links, float64 (nodes,).

    Parameters
    ----------
    state, group
        A group under way.
    bound
        Its schedule.
    parts
        What `started_parts` returned.
    """
    base, looped = int(state.groups[group].first_node), bound.looped
    here = slice(base, base + bound.n_nodes)
    runs = (state.nodes.deps[here] == -1).astype(np.float64)
    left = state.loops.left[state.nodes.loop[base + looped]]
    runs[looped] = bound.runs[looped] - left
    return np.asarray((runs + parts[here]) / bound.runs)
