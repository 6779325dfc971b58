# SPDX-License-Identifier: Apache-2.0
"""Jobs as the inside is told of them: graphs of messages on connections, wall clock in ns."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from railweave.fabric.schedule import NodeKind
from railweave.fabric.units import PS_PER_S

if TYPE_CHECKING:
    from railweave.fabric.jobs import Job
    from railweave.fabric.paths import PathTable
    from railweave.tools.emulate.kernel_routing import KernelRouting

__all__ = ["Requests"]

_NO_WIRE: Final = -1


class Requests:
    """Writes jobs as graphs, see `railweave.tools.emulate.graphs`.

    Parameters
    ----------
    kernel, table
        Circuits, and the paths that jobs are bound to.
    scale
        Times of the fabric are multiplied by it.
    """

    def __init__(self, kernel: KernelRouting, table: PathTable, *, scale: int) -> None:
        self._kernel = kernel
        self._table = table
        self._scale = scale

    def graph(self, job: Job) -> dict[str, Any] | None:
        """Return a job's graph; None where all of it stays inside hosts."""
        plan, scale = job.bound.schedule, self._scale
        wires = self._wires(job)
        if all(wire is None for wire in wires.values()):
            return None
        nodes = []
        for node in range(len(plan)):
            delay = int(plan.delay_ps[node]) * scale // 1000
            path = int(job.bound.path[node])
            size = int(plan.size_bytes[node])
            if plan.kind[node] != NodeKind.TRANSFER:
                nodes.append((_NO_WIRE, 0, 0, delay, -1))
                continue
            wire = wires[path]
            if wire is not None:
                nodes.append((wire, size, delay, 0, -1))
            else:
                wait = self._inside_ps(path, size) * scale // 1000
                nodes.append((_NO_WIRE, 0, delay, wait, path))
        return {
            "nodes": nodes,
            "n_deps": plan.n_deps.tolist(),
            "succ_ptr": plan.succ_ptr.tolist(),
            "succ": plan.succ.tolist(),
        }

    def alone(self, job: Job) -> dict[str, Any]:
        """Return a graph that takes a job's time alone: inside hosts nothing is emulated."""
        wait = job.bound.bound_ps * self._scale // 1000
        return {
            "nodes": [(_NO_WIRE, 0, 0, wait, -1)],
            "n_deps": [0],
            "succ_ptr": [0, 0],
            "succ": [],
        }

    def _wires(self, job: Job) -> dict[int, int | None]:
        """Return the connection of each path of a job, None where it stays inside a host.

        Paths over the same links (of several queue pairs or channels) get their circuits in turn.
        """
        if job.flow is not None:
            circuit = self._kernel.circuit_of(job.flow)
            number = None if circuit is None else circuit.number
            return {int(path): number for path in job.bound.path}
        found: dict[int, int | None] = {-1: None}
        turns: Counter[tuple[int, ...]] = Counter()
        for path in np.unique(job.bound.path[job.bound.path >= 0]).tolist():
            links = tuple(self._table.links_of(path).tolist())
            over = self._kernel.circuits_over(links)
            found[path] = over[turns[links] % len(over)].number if over else None
            turns[links] += 1
        return found

    def _inside_ps(self, path: int, size_bytes: int) -> int:
        if path < 0:
            return 0
        rate = int(self._table.fabric.link_rate_bps[self._table.links_of(path)].min())
        return size_bytes * 8 * PS_PER_S // rate
