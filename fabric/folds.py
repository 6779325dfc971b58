# SPDX-License-Identifier: Apache-2.0
"""Folding remembered: schedules of one structure fold alike, whatever their sizes are.

How a schedule folds depends on which of its sizes and delays are equal, not on what they are. So a
table of one operation over many sizes finds the classes once.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from railweave.fabric._distinct import distinct
from railweave.fabric._fluid_layout import HOP, PATH
from railweave.fabric.folding import fold

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.fabric.fluid_graph import FluidGraph
    from railweave.fabric.fluid_state import SolvePaths
    from railweave.fabric.folding import Folded

__all__ = ["Folds"]

_KEPT: Final = 64


class Folds:
    """Folds schedules, and remembers how each structure folds."""

    def __init__(self) -> None:
        self._known: dict[bytes, Folded | None] = {}

    def fold(
        self,
        graph: FluidGraph,
        paths: SolvePaths,
        capacity: NDArray[np.float64],
        ack_share: NDArray[np.float64],
    ) -> Folded | None:
        """Return what `railweave.fabric.folding.fold` does."""
        digest = hashlib.blake2b(digest_size=16)
        for array in (
            _ranks(graph.wire_bytes), _ranks(graph.delay_ps),
            *(array for name, array in graph.columns() if name not in ("wire_bytes", "delay_ps")),
            *(paths.routes[name] for name in PATH.names or ()),
            *(paths.hops[name] for name in HOP.names or ()), capacity, ack_share,
        ):  # fmt: skip
            digest.update(len(array).to_bytes(8, "little"))
            digest.update(np.ascontiguousarray(array).data)
        key = digest.digest()
        if key not in self._known:
            if len(self._known) >= _KEPT:
                del self._known[next(iter(self._known))]
            self._known[key] = fold(graph, paths, capacity, ack_share)
            return self._known[key]
        found = self._known[key]
        return None if found is None else found.resized(graph)


def _ranks(values: NDArray[Any]) -> NDArray[np.int32]:
    """Return the rank of each value among the distinct ones: equal where values are equal."""
    return np.searchsorted(distinct(values), values).astype(np.int32)
