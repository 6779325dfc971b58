# SPDX-License-Identifier: Apache-2.0
"""Cables that are alike to all messages: one of them is enough to simulate.

Messages sprayed over the cables from a leaf to its spines cross all of them, each with the same
share. Then the rates that one of them allows are those that each allows, and a simulation may
leave the others out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.fabric._walk import mix
from railweave.fabric.jit import call_for_work, jit

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["alike_cables", "without"]

_LEAST = 8  # crossings of a path on average; with fewer there is little to leave out


def alike_cables(
    routes: Any, hops: Any, capacity: NDArray[np.float64], ack_share: NDArray[np.float64]
) -> NDArray[np.int32] | None:
    """Return the first cable that each one is like, int32 (cables,); None if few are alike.

    Parameters
    ----------
    routes, hops
        PATH and HOP records: paths over links ``2 * cable`` and ``2 * cable + 1``.
    capacity, ack_share
        float64 (links,), as in `railweave.fabric.fluid_state.FluidState`.
    """
    if not len(hops) or len(hops) < _LEAST * len(routes):
        return None
    marks = np.zeros(len(capacity), np.uint64)
    call_for_work(8 * len(hops), _marked, routes, hops, marks)
    columns = (marks.view(np.int64), capacity, ack_share)
    rows = np.stack([column.view(np.int64).reshape(-1, 2) for column in columns], axis=2)
    _, first, number = np.unique(
        rows.reshape(len(rows), -1), axis=0, return_index=True, return_inverse=True
    )
    like = first[number.reshape(-1)].astype(np.int32)
    sizes = np.bincount(like, minlength=len(like)).astype(np.int32)
    if (sizes[like[hops.link >> 1]] == 1).mean() > 0.5:
        return None
    exact = call_for_work(
        8 * len(hops), _crossed_together, routes, hops, like, sizes,
        np.zeros(len(capacity), np.int32), np.zeros(len(capacity)),
    )  # fmt: skip
    return like if exact else None


def without(routes: Any, hops: Any, like: NDArray[np.int32]) -> tuple[Any, Any]:
    """Return paths that cross only the first of cables that are alike: routes and hops, copies."""
    cable = hops.link >> 1
    kept = like[cable] == cable
    before = np.concatenate(([0], np.cumsum(kept)))
    fewer = routes.copy()
    fewer.hops, fewer.hops_end = before[routes.hops], before[routes.hops_end]
    return fewer, hops[kept]


@jit
def _marked(routes: Any, hops: Any, marks: Any) -> None:
    """Add up, for each link, a random word of each path that crosses it, times its share."""
    for path in range(len(routes)):
        word = mix(np.uint64(path))
        for at in range(routes[path].hops, routes[path].hops_end):
            part = np.uint64(hops[at].share * 9007199254740992.0)
            marks[hops[at].link] += word * (part + np.uint64(1))


@jit
def _crossed_together(routes: Any, hops: Any, like: Any, sizes: Any, seen: Any, part: Any) -> Any:
    """Return 1 if every path crosses all or none of the cables that are alike, equally; else 0.

    ``seen`` int32 and ``part`` float64 (links,): working room, zeros.
    """
    for path in range(len(routes)):
        for at in range(routes[path].hops, routes[path].hops_end):
            first = 2 * np.int64(like[hops[at].link >> 1]) + (hops[at].link & 1)
            if seen[first] > 0 and part[first] != hops[at].share:
                return 0
            seen[first] += 1
            part[first] = hops[at].share
        for at in range(routes[path].hops, routes[path].hops_end):
            first = 2 * np.int64(like[hops[at].link >> 1]) + (hops[at].link & 1)
            if seen[first] != 0 and seen[first] != sizes[first >> 1]:
                return 0
            seen[first] = 0
    return 1
