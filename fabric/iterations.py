# SPDX-License-Identifier: Apache-2.0
"""The same work over and over: runs of some schedules, each followed by a pause of its own.

A model that generates runs the same collectives in every iteration, and only what it computes in
between grows. An engine that knows what the collectives take while nobody else uses their links
need not be asked again for each of them: all iterations up to the next change are one event.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    import simpy

    from railweave.fabric.engine import Engine, FabricEnvironment
    from railweave.fabric.schedule import Schedule

__all__ = ["Iterations", "single"]

_NOT_KNOWN: Final = 1 << 62  # later than any time


class Iterations:
    """Iterations under way whose ends are known in advance, as long as nothing disturbs them.

    Parameters
    ----------
    env
        The clock.
    span_ps
        What the schedules of one iteration take, in ps.
    pauses_ps
        The pause that ends each iteration, in ps; at least one.
    ended
        Called with the number of iterations when the last has ended.

    Attributes
    ----------
    event
        Fires at the end; its value is the number of iterations, which may be less than asked for.
    ends_ps
        When each iteration ends, in ps; that of one whose end is not known is later than any time.
    """

    def __init__(
        self,
        env: FabricEnvironment,
        span_ps: int,
        pauses_ps: Sequence[int],
        ended: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._env = env
        self.event: simpy.Event = env.event()
        self.start_ps = int(env.now)
        self.span_ps = span_ps
        self.pauses_ps = pauses_ps
        self.ends_ps = list(accumulate((span_ps + p for p in pauses_ps), initial=self.start_ps))[1:]
        self._ended = ended
        self._timer: simpy.Event | None = None
        self._set()

    def done(self, now_ps: int) -> int:
        """Return how many iterations have ended by a time, the present one not included.

        What ends at this very instant has ended, as far as others can tell.
        """
        return bisect_right(self.ends_ps, now_ps)

    def curtail(self) -> None:
        """End after the iteration that is under way; without one, at once."""
        if self.event.triggered or self._timer is None:
            return
        now = int(self._env.now)
        keep = self.done(now)
        began = self.ends_ps[keep - 1] if keep else self.start_ps
        if began < now or not keep:
            keep += 1
        if keep < len(self.ends_ps):
            del self.ends_ps[keep:]
            self._set()

    def leave(self) -> int:
        """Let the clock go: somebody else sees to the end of the iteration under way.

        Return the iterations that have ended; one that ends at this very instant and is the last
        has not, so that there is an end to see to.
        """
        self._timer = None
        ended = min(self.done(int(self._env.now)), len(self.ends_ps) - 1)
        self.ends_ps = [*self.ends_ps[:ended], _NOT_KNOWN]
        return ended

    def end(self) -> None:
        """Say that the iteration whose end was not known ends now, and is the last."""
        self.ends_ps[-1] = int(self._env.now)
        self.event.succeed(len(self.ends_ps))

    def _set(self) -> None:
        timer = self._env.timeout(self.ends_ps[-1] - int(self._env.now))
        self._timer = timer
        assert timer.callbacks is not None
        timer.callbacks.append(self._rung)

    def _rung(self, timer: simpy.Event) -> None:
        if timer is self._timer:
            self._timer = None
            self._ended(len(self.ends_ps))
            self.event.succeed(len(self.ends_ps))


class _Single(Iterations):
    """One iteration whose end is not known."""

    def __init__(self, env: FabricEnvironment) -> None:
        self._env = env
        self.event = env.event()
        self.start_ps = int(env.now)
        self.ends_ps = [_NOT_KNOWN]
        self._timer = None


def single(
    engine: Engine,
    parts: Sequence[tuple[Schedule, int]],
    ranks: Sequence[int],
    pause_ps: int,
    *,
    tag: str,
) -> Iterations:
    """Start one iteration whose collectives are run by an engine; see `Engine.iterate`."""
    env = engine.env
    iterations = _Single(env)

    def run() -> Generator[simpy.Event, Any, None]:
        for schedule, repeat in parts:
            yield engine.execute(schedule, ranks, tag=tag, repeat=repeat)
        if pause_ps:
            yield env.timeout(pause_ps)
        iterations.end()

    env.process(run())
    return iterations
