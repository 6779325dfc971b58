# SPDX-License-Identifier: Apache-2.0
"""Routes that change during a run: what routing has noticed of failures, and who moves.

A link that goes down stops whoever crosses it at once; switches notice later, by carrier loss or by
hellos that stay away, and then choose among what is left. The detection delay stands for all of
that. A link that is back sooner is never missed, as hold timers and BFD (RFC 5880, section 6.8.4:
detection time = multiplier x interval) have it.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.fabric.binding import Binder
from railweave.fabric.routing import Routing
from railweave.fabric.usage import expand_spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.fabric.paths import PathTable
    from railweave.fabric.routing import PathSet

__all__ = ["Detector", "ReroutingBinder"]


class Detector:
    """Which links routing takes for usable.

    Parameters
    ----------
    up
        bool (links,): states at time 0, which routing knows.
    delay_ps
        How long a link must have been up or down until routing knows.
    """

    def __init__(self, up: NDArray[np.bool_], delay_ps: int) -> None:
        self.delay_ps = delay_ps
        self.known: NDArray[np.bool_] = up.copy()
        self._state: NDArray[np.bool_] = up.copy()
        self._since = np.zeros(len(up), np.int64)

    def note(self, link: int, *, up: bool, now_ps: int) -> bool:
        """Take note of a link's state; return whether it is another than before."""
        if self._state[link] == up:
            return False
        self._state[link] = up
        self._since[link] = now_ps
        return True

    def look(self, now_ps: int) -> bool:
        """Let routing know what has been so for the delay; return whether that is news."""
        news = (self.known != self._state) & (self._since <= now_ps - self.delay_ps)
        self.known = np.where(news, self._state, self.known)
        return bool(news.any())


class ReroutingBinder(Binder):
    """A binder whose routes can be made anew, and which lets pairs without a route wait."""

    def __init__(self, table: PathTable, routing: Routing, *, qps: int, split: bool) -> None:
        super().__init__(table, routing, qps=qps, split=split)
        self._ends = np.empty((0, 3), np.int32)  # source, destination, queue pair of each path
        self._former = np.empty(0, np.int32)  # the path that each was before, or -1
        self._current = np.empty(0, np.bool_)  # routed here, and not moved away since
        self._parked = np.empty(0, np.bool_)

    @cached_property
    def whole(self) -> Routing:
        """Routes over the fabric with nothing down."""
        fabric = self.routing.fabric
        everything = fabric.with_links(up=np.ones(fabric.n_links, np.bool_))
        return Routing(everything, policy=self.routing.policy, seed=self.routing.seed)

    @property
    def waiting(self) -> int:
        """Number of pairs (and queue pairs) without a route."""
        return int((self._parked & self._current).sum())

    def parked(self, path: int) -> bool:
        """Whether a path is one on which nothing moves, for want of a route."""
        return bool(self._parked[path])

    def ends_of(self, path: int) -> tuple[int, int]:
        """Return the devices that a routed path joins."""
        return int(self._ends[path, 0]), int(self._ends[path, 1])

    def _note(self, paths: NDArray[np.int32], ends: NDArray[np.int32]) -> None:
        """Remember which pairs new paths are for."""
        room = max(len(self.table), int(paths.max(initial=-1)) + 1)
        if room > len(self._current):
            room = max(room, 2 * len(self._current))
            self._ends = _longer(self._ends, room, -1)
            self._former = _longer(self._former, room, -1)
            self._current = _longer(self._current, room, False)
            self._parked = _longer(self._parked, room, False)
        made = paths >= 0
        self._ends[paths[made]] = ends[made]
        self._current[paths[made]] = True

    def _route(
        self, src: NDArray[np.int32], dst: NDArray[np.int32], qp: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        joined = self.routing.reachable(src, dst, qp)
        numbers = np.full(len(src), -1, np.int32)
        routes = self.routing.routes(src[joined], dst[joined], qp[joined])
        numbers[joined] = self.table.intern(routes)
        apart = np.flatnonzero(~joined)
        if len(apart):
            would = self.table.intern(self.whole.routes(src[apart], dst[apart], qp[apart]))
            numbers[apart] = self.table.park(would)
        self._note(numbers, np.stack((src, dst, qp), axis=1))
        self._parked[numbers[apart]] = True
        return numbers

    def reroute(self, routing: Routing) -> NDArray[np.int32] | None:
        """Make all routes anew; return the path that each path has become.

        Returns
        -------
        int32 (paths + 1,): by path number; the last entry, for a path of -1, is -1. None where no
        route changed.
        """
        self.routing = routing
        old = np.flatnonzero(self._current).astype(np.int32)
        src, dst, qp = np.ascontiguousarray(self._ends[old].T)
        joined = routing.reachable(src, dst, qp)
        moved = np.full(len(old), -1, np.int32)
        apart = np.flatnonzero(~joined & ~self._parked[old])
        moved[apart] = self.table.park(old[apart]) if len(apart) else 0
        there = np.flatnonzero(joined)
        found = routing.routes(src[there], dst[there], qp[there])
        stays = same_routes(self.table, old[there], found) & ~self._parked[old[there]]
        former = self._former[old[there]]
        back = np.zeros(len(there), np.bool_)
        known = np.flatnonzero(~stays & (former >= 0))
        back[known] = same_routes(self.table, former[known], _part(found, known))
        back[known] &= ~self._parked[former[known]]
        moved[there[back]] = former[back]
        fresh = np.flatnonzero(~stays & ~back)
        moved[there[fresh]] = self.table.intern(_part(found, fresh))
        changed = np.flatnonzero(moved >= 0)
        if not len(changed):
            return None
        before, after = old[changed], moved[changed]
        self._note(after, self._ends[before])
        self._former[after] = before
        self._current[before] = False
        self._parked[moved[apart]] = True
        remap = np.arange(len(self.table) + 1, dtype=np.int32)
        remap[-1] = -1
        remap[before] = after
        self._single = {key: int(remap[path]) for key, path in self._single.items()}
        self._pairs.change(lambda kept: (kept[0], remap[kept[1]]))
        return remap


def _longer(array: NDArray[Any], rows: int, value: Any) -> NDArray[Any]:
    longer = np.full((rows, *array.shape[1:]), value, array.dtype)
    longer[: len(array)] = array
    return longer


def _part(found: PathSet, flows: NDArray[np.int64]) -> PathSet:
    """Return the paths of some flows."""
    from railweave.fabric.routing import PathSet

    start, end = found.ptr[flows].astype(np.int64), found.ptr[flows + 1].astype(np.int64)
    at = expand_spans(start, end)
    ptr = np.concatenate(([0], np.cumsum(end - start))).astype(np.int32)
    return PathSet(ptr, found.links[at], found.share[at])


def same_routes(table: PathTable, paths: NDArray[np.int32], found: PathSet) -> NDArray[np.bool_]:
    """Return for each of some paths whether a routed path has the same links, bool (paths,)."""
    start, end = table.ptr[paths], table.ptr[paths.astype(np.int64) + 1]
    begin, stop = found.ptr[:-1].astype(np.int64), found.ptr[1:].astype(np.int64)
    same: NDArray[np.bool_] = end - start == stop - begin
    at = np.flatnonzero(same)
    if len(at):
        mine, theirs = expand_spans(start[at], end[at]), expand_spans(begin[at], stop[at])
        differ = (table.link[mine] != found.links[theirs]) | (
            table.share[mine] != found.share[theirs]
        )
        lengths = end[at] - start[at]
        same[at] = np.add.reduceat(differ, np.cumsum(lengths) - lengths) == 0
    return same
