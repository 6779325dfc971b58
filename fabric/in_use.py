# SPDX-License-Identifier: Apache-2.0
"""Which paths carry traffic of which priority."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.fabric.paths import PathTable

__all__ = ["PathsInUse"]


class PathsInUse:
    """The paths that work of one run took, by its 802.1p priority; None stands for the network's.

    Parameters
    ----------
    table
        What the paths are numbers in.
    """

    def __init__(self, table: PathTable) -> None:
        self._table = table
        self.pinned = False  # some are not of routing's choice
        self._taken: dict[int | None, NDArray[np.bool_]] = {}

    def note(
        self, paths: NDArray[np.int32], priority: int | None = None, *, pinned: bool = False
    ) -> None:
        """Note paths that work of a priority takes; -1 stands for none."""
        self.pinned |= pinned
        known = self._taken.get(priority)
        if len(paths) == 1 and known is not None and -1 <= (one := paths[0]) < len(known):
            if one >= 0:
                known[one] = True
            return
        paths = paths[paths >= 0]
        room = int(paths.max(initial=-1)) + 1
        if known is None or len(known) < room:
            more = np.zeros(max(2 * room, len(self._table)), np.bool_)
            if known is not None:
                more[: len(known)] = known
            known = self._taken[priority] = more
        known[paths] = True

    def move(self, remap: NDArray[np.int32]) -> None:
        """Note the paths that have taken the place of others: ``remap[old]`` is the new one."""
        for priority, known in list(self._taken.items()):
            old = np.flatnonzero(known[: len(remap) - 1])
            self.note(remap[old], priority)

    def by_priority(self, default: int) -> dict[int, list[list[int]]]:
        """Return the links of each path taken, by priority; ``default`` is the network's own."""
        found: dict[int, set[int]] = {}
        for priority, known in self._taken.items():
            own = default if priority is None else priority
            found.setdefault(own, set()).update(np.flatnonzero(known).tolist())
        return {
            priority: [self._table.links_of(path).tolist() for path in sorted(found[priority])]
            for priority in sorted(found)
        }
