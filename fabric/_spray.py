# SPDX-License-Identifier: Apache-2.0
"""Spreading a flow over all its shortest paths (places and states as in ``_walk``)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.fabric._walk import HERE, onward
from railweave.fabric.errors import TooLargeError
from railweave.fabric.jit import jit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.fabric._inside import Journeys
    from railweave.fabric._tables import Tables

__all__ = ["sprayed"]

_ROOM = 1024  # links of sprayed flows, at first
_SAMPLE = 256  # flows after which the rest are foreseen
_BYTES = 72
"""Memory of a link of a sprayed flow while a run is prepared (measured: an all_to_all of 1,024)."""


def sprayed(
    trip: Journeys,
    length: NDArray[np.int64],
    row_of_nic: NDArray[np.int32],
    near: NDArray[np.int16],
    tables: Tables,
    n_links: int,
    of: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]:
    """Return ``(ptr, links, share)``: every link of every shortest path with its share of bytes.

    Each device splits what reaches it evenly over its next hops. All shortest paths have one
    length, so going level by level sees each state once, with all that flows into it. ``of`` is how
    many flows there will be, these and others like them.
    """
    ptr = np.zeros(len(trip.source) + 1, np.int32)
    links, share = np.empty(_ROOM, np.int32), np.empty(_ROOM, np.float64)
    states = 2 * (len(tables.ways[0]) - 1)
    ahead = np.empty((2, tables.widest), np.int32)
    now, then = np.empty(states, np.int32), np.empty(states, np.int32)
    amount, on_link = np.zeros(states), np.zeros(n_links)
    touched = np.empty(n_links, np.int32)
    begin = 0
    while True:
        begin = _spray(
            begin, trip.source, trip.target, trip.first, trip.last, length, row_of_nic, near,
            *tables.ways, trip.stretch_ptr, trip.stretch_links, ahead, now, then, amount, on_link,
            touched, ptr, links, share,
        )  # fmt: skip
        used = ptr[begin]
        if begin == len(trip.source):
            return ptr, links[:used].copy(), share[:used].copy()
        _check_memory(int(used), int(begin), of)
        room = 2 * (len(links) + n_links)
        more_links, more_share = np.empty(room, np.int32), np.empty(room, np.float64)
        more_links[:used], more_share[:used] = links[:used], share[:used]
        links, share = more_links, more_share


def _check_memory(used: int, done: int, flows: int) -> None:
    """Refuse flows whose links would not fit, going by those that are done."""
    if done < _SAMPLE:
        return
    links = used * flows // done
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if links * _BYTES > total:
        raise TooLargeError(
            f"{flows:,} flows over all their paths cross {links:,} links, which take "
            f"{links * _BYTES / 2**30:.0f} GiB of {total / 2**30:.0f}",
            expected="fewer pairs of ranks (all_to_all: algorithm pxn), or policy ecmp",
        )


@jit
def _spray(
    begin: Any,
    source: Any,
    target: Any,
    first: Any,
    last: Any,
    length: Any,
    row_of_nic: Any,
    near: Any,
    way_ptr: Any,
    ways: Any,
    inside_ptr: Any,
    inside_link: Any,
    ahead: Any,
    now: Any,
    then: Any,
    amount: Any,
    on_link: Any,
    touched: Any,
    ptr: Any,
    links: Any,
    share: Any,
) -> Any:
    """Spread the flows from ``begin`` on; return the first that ``links`` may have no room for.

    The arrays between ``inside_link`` and ``ptr`` are working room; ``amount`` (by state) and
    ``on_link`` are zeros.
    """
    for i in range(begin, len(source)):
        if ptr[i] + len(touched) > len(links):
            return i
        found = 0
        if first[i] >= 0:
            for k in range(inside_ptr[first[i]], inside_ptr[first[i] + 1]):
                touched[found] = inside_link[k]
                on_link[inside_link[k]] = 1.0
                found += 1
        if source[i] >= 0:
            row = row_of_nic[target[i]]
            now[0] = 2 * (near.shape[2] + np.int64(source[i]))
            amount[now[0]] = 1.0
            waiting = 1
            for left in range(length[i], 0, -1):
                reached = 0
                for k in range(waiting):
                    state = np.int64(now[k])
                    count = onward(
                        state, left, near.shape[2] + target[i], row, near, way_ptr, ways, ahead
                    )  # fmt: skip
                    part = amount[state] / count
                    amount[state] = 0.0
                    for c in range(count):
                        if on_link[ahead[0, c]] == 0.0:
                            touched[found] = ahead[0, c]
                            found += 1
                        on_link[ahead[0, c]] += part
                        after = ahead[1, c]
                        if after != HERE:
                            if amount[after] == 0.0:
                                then[reached] = after
                                reached += 1
                            amount[after] += part
                for k in range(reached):
                    now[k] = then[k]
                waiting = reached
        if last[i] >= 0:
            for k in range(inside_ptr[last[i]], inside_ptr[last[i] + 1]):
                touched[found] = inside_link[k]
                on_link[inside_link[k]] = 1.0
                found += 1
        used = ptr[i]
        for k in range(found):
            links[used] = touched[k]
            share[used] = on_link[touched[k]]
            on_link[touched[k]] = 0.0
            used += 1
        ptr[i + 1] = used
    return len(source)
