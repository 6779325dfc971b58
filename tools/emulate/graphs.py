# SPDX-License-Identifier: Apache-2.0
"""Runs graphs of messages: each is sent when those before it have arrived."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from railweave.tools.emulate.spaces import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from railweave.tools.emulate.loop import Loop
    from railweave.tools.emulate.wires import Wires

__all__ = ["Graphs"]

_NO_WIRE: Final = -1

Node = tuple[int, int, int, int, int]
"""Connection (or -1), bytes, delay after the last dependency in ns, wait in ns, lane (or -1)."""


@dataclass(eq=False)
class _Job:
    """A graph under way, run ``repeat`` times."""

    number: int
    nodes: Sequence[Node]
    n_deps: Sequence[int]
    succ_ptr: Sequence[int]
    succ: Sequence[int]
    repeat: int
    waits: int = 0  # for the ends of so many others
    started_ns: int = 0
    left: int = 0
    missing: list[int] = field(default_factory=list)
    gap_ns: int = 0
    gap_began_ns: int = 0


class Graphs:
    """The graphs under way.

    Parameters
    ----------
    loop, wires
        Where timers wait and messages travel.
    tell
        Called with ``{"event": "done", ...}`` when a graph has ended.
    """

    def __init__(self, loop: Loop, wires: Wires, tell: Callable[[dict[str, Any]], None]) -> None:
        self._loop = loop
        self._wires = wires
        self._tell = tell
        self._jobs: dict[int, _Job] = {}
        self._after: dict[int, list[_Job]] = {}  # job -> those that wait for its end
        self._lanes: dict[int, int] = {}  # lane -> until when it is taken, ns

    def start(self, graphs: Sequence[dict[str, Any]], not_before_ns: int) -> None:
        """Start graphs, not before a time of the monotonic clock.

        Each has a number (``job``), ``nodes``, their dependencies (``n_deps``, ``succ_ptr``,
        ``succ`` as in a schedule), ``repeat``, and may have numbers of graphs that must have ended
        before (``after``; those that are not known have). A node with a connection sends its bytes
        there ``delay`` ns after its last dependency has ended; one without waits ``wait`` ns, one
        after another where they share a lane.
        """
        free = []
        for graph in graphs:
            unknown = {one[0] for one in graph["nodes"] if one[0] not in self._wires} - {_NO_WIRE}
            if unknown:
                raise Refused(f"there is no connection {min(unknown)}")
            made = _Job(
                graph["job"],
                graph["nodes"],
                graph["n_deps"],
                graph["succ_ptr"],
                graph["succ"],
                graph["repeat"],
            )
            self._jobs[made.number] = made
            for before in {number for number in graph.get("after", ()) if number in self._jobs}:
                made.waits += 1
                self._after.setdefault(before, []).append(made)
            if not made.waits:
                free.append(made)

        def begin() -> None:
            for made in free:
                self._begin(made)

        if not_before_ns > time.monotonic_ns():
            self._loop.at(not_before_ns, begin)
        else:
            begin()

    def waiting(self) -> list[int]:
        """Return the numbers of the graphs that have not ended."""
        return sorted(self._jobs)

    def _begin(self, job: _Job) -> None:
        job.started_ns = time.monotonic_ns()
        self._round(job)

    def _round(self, job: _Job) -> None:
        job.left, job.missing = len(job.nodes), list(job.n_deps)
        for node, missing in enumerate(job.n_deps):
            if not missing:
                self._ready(job, node)

    def _ready(self, job: _Job, node: int) -> None:
        delay = job.nodes[node][2]
        if delay:
            self._loop.at(time.monotonic_ns() + delay, lambda: self._go(job, node))
        else:
            self._go(job, node)

    def _go(self, job: _Job, node: int) -> None:
        wire, size, _, wait, lane = job.nodes[node]
        if wire != _NO_WIRE and size:
            self._wires.send(
                wire, size, lambda now, gap, began: self._arrived(job, node, now, gap, began)
            )
            return
        until = now = time.monotonic_ns()
        if lane >= 0:
            until = max(now, self._lanes.get(lane, 0))
        until += wait
        if lane >= 0:
            self._lanes[lane] = until
        # A timer also where nothing is awaited: long chains must not nest their calls.
        self._loop.at(until, lambda: self._ended(job, node, time.monotonic_ns()))

    def _arrived(self, job: _Job, node: int, now: int, gap: int, began: int) -> None:
        if gap > job.gap_ns:
            job.gap_ns, job.gap_began_ns = gap, began
        self._ended(job, node, now)

    def _ended(self, job: _Job, node: int, now: int) -> None:
        job.left -= 1
        for at in range(job.succ_ptr[node], job.succ_ptr[node + 1]):
            after = job.succ[at]
            job.missing[after] -= 1
            if not job.missing[after]:
                self._ready(job, after)
        if job.left:
            return
        job.repeat -= 1
        if job.repeat:
            self._round(job)
            return
        del self._jobs[job.number]
        for other in self._after.pop(job.number, ()):
            other.waits -= 1
            if not other.waits:
                self._begin(other)
        self._tell(
            {
                "event": "done",
                "job": job.number,
                "start": job.started_ns,
                "end": now,
                "gap": job.gap_ns,
                "gap_began": job.gap_began_ns,
            }
        )
