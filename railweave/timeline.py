# SPDX-License-Identifier: Apache-2.0
"""The load of every network link over time, in a bounded number of equal intervals.

The end of a run is not known before it: sampling begins with short intervals, and each time there
are too many of them every other sample is dropped and the interval doubles. Samples are running
totals, so dropping one loses no bytes. Sampling only looks: a run with it has the same result as
one without.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from railweave.fabric.engine import Engine
    from railweave.fabric.graph import Fabric

__all__ = ["MOST_INTERVALS", "Recorder", "RunEnvironment", "Timeline"]

MOST_INTERVALS: Final = 512
_FIRST_INTERVAL_PS: Final = 1_000_000  # a few frames of 4 KiB at 100 Gbps and more
_FEW: Final = 4
_COUNTED: Final = ("paused_ps", "ecn_marked", "dropped")  # columns of links.csv that only grow


@dataclass(frozen=True, eq=False, kw_only=True)
class Timeline:
    """What happened on each network link in each interval.

    Parameters
    ----------
    edges_ps
        int64 (intervals + 1,): where intervals begin and end; all but the last are equally long.
    links
        int64 (n,): the network links on which anything happened.
    values
        ``bytes`` (data and ACKs on the wire) and, of a packet run, ``paused_ps``, ``ecn_marked``
        and ``dropped``: int64 (n, intervals) each.
    """

    edges_ps: NDArray[np.int64]
    links: NDArray[np.int64]
    values: Mapping[str, NDArray[np.int64]]

    def to_dict(self, fabric: Fabric) -> dict[str, Any]:
        """Return the object of ``timeline.json``."""
        return {
            "schema": 1,
            "edges_ps": self.edges_ps.tolist(),
            "links": [fabric.link_name(link) for link in self.links.tolist()],
            **{name: rows.tolist() for name, rows in self.values.items()},
        }


class Recorder:
    """Samples the counters of an engine.

    Parameters
    ----------
    engine
        Whose counters.
    intervals
        At most this many are kept, and once the run is long enough at least half as many.

    Raises
    ------
    InputError
        ``intervals`` is below 4 or above `MOST_INTERVALS`.
    """

    def __init__(self, engine: Engine, intervals: int) -> None:
        if not _FEW <= intervals <= MOST_INTERVALS:
            raise InputError(
                f"a timeline cannot have {intervals} intervals",
                field="timeline",
                expected=f"{_FEW} to {MOST_INTERVALS}",
            )
        self._engine = engine
        self._links = np.flatnonzero(engine.fabric.link_network)
        self._most = intervals
        self._interval_ps = _FIRST_INTERVAL_PS
        self._samples = [self._totals()]
        self._moving = (self._samples, self._interval_ps)  # as they were when anything last moved
        self.unchanged = 0

    @property
    def next_ps(self) -> int:
        """When the next sample is due."""
        return len(self._samples) * self._interval_ps

    @property
    def standing(self) -> bool:
        """Whether nothing has moved for many times as long as the run has lasted until then."""
        return self.unchanged > 8 * self._most

    def take(self, now_ps: int) -> None:
        """Take the samples due up to now, between which nothing can have moved but up to the first.

        Where the engine moves something, call this at `next_ps`.
        """
        if now_ps < self.next_ps:
            return
        totals = self._totals()
        moved = any(
            not np.array_equal(a, b)
            for a, b in zip(totals.values(), self._samples[-1].values(), strict=True)
        )
        if moved:
            self.unchanged = 0
        elif not self.unchanged:
            self._moving = (list(self._samples), self._interval_ps)
        while self.next_ps <= now_ps:
            self._samples.append(totals)
            self.unchanged += not moved
            if len(self._samples) > self._most:
                self._samples = self._samples[::2]
                self._interval_ps *= 2

    def _totals(self) -> dict[str, NDArray[np.int64]]:
        counters = self._engine.counters()
        found = {"bytes": (counters.wire_bytes + counters.ack_bytes)[self._links]}
        if self._engine.capabilities.packets:
            columns = self._engine.link_columns()
            for name in _COUNTED:
                found[name] = np.array(columns[name], np.int64)[self._links]
        return found

    def finish(self, end_ps: int) -> Timeline:
        """Return the timeline of a run that ended at ``end_ps``."""
        taken, interval_ps = self._samples, self._interval_ps
        if self.standing:  # waiting for what never came has made the intervals long
            taken, interval_ps = self._moving
        kept = min(len(taken), max(1, -(-end_ps // interval_ps)))
        samples = [*taken[:kept], self._totals()]
        edges = np.append(np.arange(kept, dtype=np.int64) * interval_ps, end_ps)
        grown = {
            name: np.diff(np.stack([sample[name] for sample in samples], axis=1), axis=1)
            for name in samples[0]
        }
        busy = np.zeros(len(self._links), np.bool_)
        for rows in grown.values():
            busy |= rows.any(axis=1)
        return Timeline(
            edges_ps=edges,
            links=self._links[busy].astype(np.int64),
            values={name: rows[busy] for name, rows in grown.items()},
        )


class RunEnvironment(FabricEnvironment):
    """The clock of a run: something may look after each step, and a recorder at its times."""

    def __init__(self) -> None:
        super().__init__()
        self.after_step: Callable[[], None] = lambda: None
        self.recorder: Recorder | None = None
        self._last_event_ps = 0

    def step(self) -> None:
        """Process the next event, or take the next sample, whichever comes first."""
        if self.recorder is None or not self._sampled(self.recorder):
            super().step()
            self._last_event_ps = int(self._now)
            if self.recorder is not None:
                self.recorder.take(self._last_event_ps)
        self.after_step()

    def _sampled(self, recorder: Recorder) -> bool:
        """Go to the next sample, or to what the engine ends before; False: SimPy is first."""
        engine, at = self._engine, recorder.next_ps
        if engine is None or not engine.busy or self.peek() <= at:
            return False
        if recorder.standing and self.peek() == float("inf"):
            self._now = self._last_event_ps  # as if nobody had looked
            return False
        reached = engine.advance(at)
        if reached is not None:
            self._now = self._last_event_ps = reached
            engine.deliver()
            recorder.take(reached)
            return True
        self._now = at
        recorder.take(at)
        return True
