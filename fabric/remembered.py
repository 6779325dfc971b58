# SPDX-License-Identifier: Apache-2.0
"""Jobs whose ends are known as long as nobody else touches their links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.iterations import Iterations

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from railweave.fabric.binding import BoundSchedule
    from railweave.fabric.engine import FabricEnvironment
    from railweave.fabric.jobs import Job
    from railweave.fabric.memo import Isolated
    from railweave.fabric.usage import Usage

__all__ = ["Iterated", "Known", "Part", "Remembered"]


class Remembered:
    """One job.

    Parameters
    ----------
    job
        What was started.
    isolated
        Its schedule, cut out of the fabric.
    span_ps
        What one run takes undisturbed.
    """

    def __init__(self, job: Job, isolated: Isolated, span_ps: int) -> None:
        self.job = job
        self.isolated = isolated
        self.span_ps = span_ps

    @property
    def tag(self) -> str:
        """The class of traffic that it is of."""
        return self.job.tag

    @property
    def end_ps(self) -> int:
        """When the last run ends."""
        return self.job.start_ps + self.span_ps * self.job.repeat

    @property
    def links(self) -> NDArray[np.int32]:
        """Links that it may use."""
        return self.job.bound.links

    @property
    def paths(self) -> list[NDArray[np.int32]]:
        """Paths that it takes."""
        return [self.job.bound.usage.path]

    def runs(self, now_ps: int) -> int:
        """Return the runs that have ended by now."""
        return (now_ps - self.job.start_ps) // self.span_ps if self.span_ps else 0

    def moved(self, now_ps: int) -> list[tuple[Usage, int]]:
        """Return what it has put on its paths by now, each so many times."""
        runs = self.runs(now_ps)
        since = self.job.start_ps + runs * self.span_ps
        return [(self.job.bound.usage, runs), (self.isolated.moved(now_ps - since), 1)]


@dataclass(frozen=True, eq=False)
class Part:
    """A schedule of an iteration: bound, cut out, what a run takes in ps, and runs in a row."""

    bound: BoundSchedule
    isolated: Isolated
    span_ps: int
    repeat: int


class Iterated:
    """Iterations of several schedules, each followed by a pause.

    Parameters
    ----------
    env
        The clock.
    parts
        The schedules, all over the same ranks.
    devices
        Device index of each rank.
    pauses_ps
        Pause that ends each iteration, in ps.
    tag
        What it is called.
    number
        Unique among those of an engine.
    ended
        Called with the number of iterations when they have ended undisturbed.
    """

    def __init__(
        self,
        env: FabricEnvironment,
        parts: Sequence[Part],
        devices: Sequence[int],
        pauses_ps: Sequence[int],
        *,
        tag: str,
        number: int,
        ended: Callable[[int], None],
    ) -> None:
        self.parts = parts
        self.devices = devices
        self.tag = tag
        self.number = number
        span_ps = sum(part.span_ps * part.repeat for part in parts)
        self.iterations = Iterations(env, span_ps, pauses_ps, ended)
        self.links = np.unique(np.concatenate([part.bound.links for part in parts]))

    @property
    def paths(self) -> list[NDArray[np.int32]]:
        """Paths that it takes."""
        return [part.bound.usage.path for part in self.parts]

    def moved(self, now_ps: int) -> list[tuple[Usage, int]]:
        """Return what it has put on its paths by now, each so many times."""
        runs = self.iterations.done(now_ps)
        at = self.iterations.ends_ps[runs - 1] if runs else self.iterations.start_ps
        found = [(part.bound.usage, runs * part.repeat) for part in self.parts]
        for part in self.parts if runs < len(self.iterations.ends_ps) else ():
            again = min((now_ps - at) // part.span_ps, part.repeat) if part.span_ps else part.repeat
            found.append((part.bound.usage, again))
            if again < part.repeat:
                found.append((part.isolated.moved(now_ps - at - again * part.span_ps), 1))
                break
            at += part.span_ps * part.repeat
        return found


Known = Remembered | Iterated
"""Anything that goes on undisturbed."""
