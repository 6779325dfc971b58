# SPDX-License-Identifier: Apache-2.0
"""How long transfers stood still because a link on their path carried nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.usage import expand_spans

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from railweave.fabric.fluid_state import FluidState

__all__ = ["Stall", "StallBook", "standing"]


@dataclass
class Stall:
    """Stalls of one flow or collective: how many transfers, their sum and the longest, in ps."""

    count: int = 0
    total_ps: int = 0
    longest_ps: int = 0

    def add(self, lasted_ps: int) -> None:
        """Count one more."""
        self.count += 1
        self.total_ps += lasted_ps
        self.longest_ps = max(self.longest_ps, lasted_ps)


def standing(state: FluidState) -> NDArray[np.int64]:
    """Return the slots of flows that have rate 0, in node order."""
    active = np.sort(state.ends.slot[: state.run.active])
    slots = active[state.slots.rate[active] == 0.0]
    return np.asarray(slots[np.argsort(state.slots.node[slots], kind="stable")])


def _can_move(state: FluidState, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether every link on a flow's path carries something, bool (slots,)."""
    routes = state.paths.routes[state.slots.path[slots]]
    at = expand_spans(routes.hops, routes.hops_end)
    stopped = state.links.capacity[state.paths.hops.link[at]] == 0.0
    lengths = routes.hops_end - routes.hops
    return np.asarray(~np.logical_or.reduceat(stopped, np.cumsum(lengths) - lengths))


class StallBook:
    """Stalls that have ended, by whom they held up.

    Only a changed link or a changed path ends one, so it is enough to look after each of those.
    """

    def __init__(self) -> None:
        self.stalls: dict[str, Stall] = {}
        self._told: set[tuple[int, int]] = set()
        self._at_ps = -1

    def look(self, state: FluidState, owner: Callable[[int], str], *, now_ps: int) -> None:
        """Write down the stalls that end now.

        Parameters
        ----------
        state
            The simulation, with the change made but not yet solved for.
        owner
            Node -> name of whom its stalls are written down for.
        now_ps
            Time of the change.
        """
        if now_ps != self._at_ps:
            self._at_ps = now_ps
            self._told.clear()
        slots = standing(state)
        if not len(slots):
            return
        for slot in slots[_can_move(state, slots)].tolist():
            flow = state.slots[slot]
            node, since = int(flow.node), int(flow.updated)
            if since == now_ps or (node, since) in self._told:
                continue
            self._told.add((node, since))
            self.stalls.setdefault(owner(node), Stall()).add(now_ps - since)
