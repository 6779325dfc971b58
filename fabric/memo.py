# SPDX-License-Identifier: Apache-2.0
"""Remembered spans: what a schedule takes while nobody else uses its links.

The links that a schedule can use are copied into a simulation of their own, numbered in the
order of the fabric, so that it computes bit for bit what the whole fabric would. Two placements
that look alike there share one remembered span. When a foreign flow comes, the same small
simulation is run up to that instant and its state moved into the whole one, which goes on from
there.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric._alike_links import alike_cables, without
from railweave.fabric._fluid_layout import FOREVER, HOP, PATH
from railweave.fabric.fluid_adopt import adopt
from railweave.fabric.fluid_state import FluidState
from railweave.fabric.folding import FoldedPaths
from railweave.fabric.folds import Folds
from railweave.fabric.usage import spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.fabric.binding import BoundSchedule
    from railweave.fabric.fluid_graph import FluidGraph
    from railweave.fabric.fluid_state import SolvePaths
    from railweave.fabric.paths import PathTable
    from railweave.fabric.usage import Usage

__all__ = ["Isolated", "Span"]


@dataclass(frozen=True, eq=False)
class Span:
    """What an undisturbed run takes, and the own links that held several flows back."""

    time_ps: int
    contended: NDArray[np.int64]


class _OwnPaths:
    """The limiting links of a few paths, renumbered; what `FluidState` needs of a `PathTable`."""

    def __init__(self, table: PathTable, paths: NDArray[np.int32]) -> None:
        routes = table.routes[paths]
        self.hops = table.hops[spans(routes.hops, routes.hops_end)].copy()
        cable = self.hops.link >> 1
        used = np.zeros(table.nowhere // 2 + 1, np.bool_)
        used[cable] = True
        self.cables = np.flatnonzero(used)
        number = (np.cumsum(used, dtype=np.int32) - 1) * np.int32(2)
        self.hops.link = number[cable] + (self.hops.link & 1)
        lengths = routes.hops_end - routes.hops
        routes.hops_end = np.cumsum(lengths)
        routes.hops = routes.hops_end - lengths
        self.routes = routes
        self.longest = int(lengths.max()) if len(lengths) else 1

    def __len__(self) -> int:
        return len(self.routes)

    @property
    def links(self) -> NDArray[np.int64]:
        """Fabric's link number of each own link."""
        return (self.cables[:, None] * 2 + np.arange(2)).reshape(-1)


def _to_the_end(state: FluidState, until_ps: int) -> bool:
    """Simulate the one group of a state; return whether it ended by ``until_ps``."""
    ended = state.advance(until_ps)
    while ended == []:  # a pause
        ended = state.advance(until_ps)
    return ended is not None


class Isolated:
    """A bound schedule cut out of its fabric.

    Parameters
    ----------
    bound
        The schedule.
    whole
        The simulation of the whole fabric, for capacities.
    folds
        How schedules fold, as far as it is known.
    """

    def __init__(self, bound: BoundSchedule, whole: FluidState, folds: Folds | None = None) -> None:
        self.bound = bound
        self._folds = folds or Folds()
        self.paths = _OwnPaths(bound.table, bound.usage.path)
        self.links = self.paths.links
        self._capacity = whole.links.capacity[self.links]
        self._ack_share = whole.links.ack_share[self.links]
        self._tolerance = float(whole.run.tolerance)
        self._watched: tuple[FluidState, int, int] | None = None  # as `moved` left it

    @cached_property
    def _own(self) -> FluidGraph:
        """The schedule over the own paths."""
        row = np.full(len(self.bound.table) + 1, -1, np.int32)
        row[self.bound.usage.path] = np.arange(len(self.bound.usage.path), dtype=np.int32)
        return replace(self.bound.graph, path=row[self.bound.path])

    @cached_property
    def key(self) -> bytes:
        """Equal keys take equal times: everything that the simulation depends on, hashed."""
        digest = hashlib.blake2b(digest_size=16)
        paths = self.paths
        for array in (
            *(array for _, array in self._own.columns()),
            *(paths.routes[name] for name in PATH.names or ()),
            *(paths.hops[name] for name in HOP.names or ()), self._capacity, self._ack_share,
        ):  # fmt: skip
            digest.update(len(array).to_bytes(8, "little"))
            digest.update(np.ascontiguousarray(array).data)
        return digest.digest()

    def run(self, until_ps: int) -> tuple[FluidState, int, bool]:
        """Simulate from 0; return the state, the group and whether it ended by ``until_ps``."""
        state = FluidState(self._capacity, self._ack_share, self.paths, tolerance=self._tolerance)
        group = state.add(self._own, at_ps=0)
        return state, group, _to_the_end(state, until_ps)

    def span(self) -> Span | None:
        """Return what one run takes; None if it never ends."""
        paths, like = self._with_fewer_cables()
        folded = self._folds.fold(self._own, paths, self._capacity, self._ack_share)
        if folded is None:
            state = FluidState(self._capacity, self._ack_share, paths, tolerance=self._tolerance)
            state.add(self._own, at_ps=0)
        else:
            state = FluidState(
                folded.capacity, folded.ack_share, folded.paths, tolerance=self._tolerance
            )
            state.add(folded.graph, at_ps=0)
        state.close()
        ended = _to_the_end(state, FOREVER - 1)
        contended = state.contended if folded is None else state.contended[folded.link_class]
        if like is not None:
            contended = contended.reshape(-1, 2)[like].reshape(-1)
        return Span(state.now_ps, np.flatnonzero(contended)) if ended else None

    def _with_fewer_cables(self) -> tuple[SolvePaths, NDArray[np.int32] | None]:
        """Return paths without cables that others are like, and which cable each is like."""
        paths = self.paths
        like = alike_cables(paths.routes, paths.hops, self._capacity, self._ack_share)
        if like is None:
            return paths, None
        routes, hops = without(paths.routes, paths.hops, like)
        longest = int((routes.hops_end - routes.hops).max())
        return FoldedPaths(routes, hops, longest), like

    def moved(self, after_ps: int) -> Usage:
        """Return what one run has put on each path ``after_ps`` after its start.

        Whoever asks for later and later times goes through the run once.
        """
        if self._watched is None or self._watched[2] > after_ps:
            state, group, _ = self.run(after_ps)
        else:
            state, group, _ = self._watched
            _to_the_end(state, after_ps)
        self._watched = (state, group, after_ps)
        return state.moved(group, self.bound, now_ps=after_ps)

    def resume(self, whole: FluidState, *, start_ps: int, now_ps: int) -> int:
        """Continue a run that began at ``start_ps`` inside ``whole``; return its group there."""
        if now_ps == start_ps:
            return whole.add(self.bound.graph, at_ps=now_ps)
        state, group, _ = self.run(now_ps - start_ps)
        whole.reach(now_ps)  # what changed before must not be solved for with these flows
        return adopt(
            whole, state, group, self.bound.graph, links=self.links,
            paths=self.bound.usage.path, own=self.bound.links, offset_ps=start_ps,
        )  # fmt: skip
