# SPDX-License-Identifier: Apache-2.0
"""A schedule in the form in which the fluid engine runs it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FluidGraph"]


@dataclass(frozen=True, eq=False, kw_only=True)
class FluidGraph:
    """Nodes over paths, with what releases what.

    Parameters
    ----------
    path
        int32 (nodes,): path of each node, -1 where it crosses no link.
    wire_bytes
        int64 (nodes,): of one message, the shorter one where they differ.
    delay_ps
        int64 (nodes,): before a run of the node begins.
    n_deps
        int32 (nodes,): predecessors of its first run.
    succ_ptr, succ
        int32 (nodes + 1,) and (edges,): successors in CSR form, ``~s`` instead of ``s`` where each
        run releases the next one (see `railweave.fabric.loops`).
    looped, loop_rows
        int64 (looped,): the nodes that run more than once, and their LOOP records of
        `_fluid_layout` before their first run.
    n_runs
        Number of runs of all nodes.
    """

    path: NDArray[np.int32]
    wire_bytes: NDArray[np.int64]
    delay_ps: NDArray[np.int64]
    n_deps: NDArray[np.int32]
    succ_ptr: NDArray[np.int32]
    succ: NDArray[np.int32]
    looped: NDArray[np.int64]
    loop_rows: NDArray[np.void]
    n_runs: int

    def __len__(self) -> int:
        return len(self.path)

    @cached_property
    def roots(self) -> NDArray[np.int64]:
        """Nodes that wait for nothing, int64."""
        return np.flatnonzero(self.n_deps == 0)

    @cached_property
    def has_delays(self) -> bool:
        """Whether any node has a delay."""
        return bool(self.delay_ps.any())

    def columns(self) -> list[tuple[str, NDArray[Any]]]:
        """Return all arrays by name: what a simulation of it depends on, beside its paths."""
        names = (field.name for field in fields(self) if field.name != "n_runs")
        return [(name, getattr(self, name)) for name in names]
