# SPDX-License-Identifier: Apache-2.0
"""Decode iterations of a replica many at a time, with the same times to the picosecond as singly.

While nobody comes or goes, iterations of a replica that has its links to itself differ only in how
much cache they read. Whoever looks meanwhile sees sequences and blocks as if each were done singly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Generator
    from collections.abc import Sequence as Many

    import simpy

    from railweave.fabric.iterations import Iterations
    from railweave.workloads.serving.batching import Step
    from railweave.workloads.serving.replica import Replica
    from railweave.workloads.serving.sequence import Sequence
    from railweave.workloads.step_load import StepLoad

__all__ = ["Leaps"]

_MOST_ITERATIONS: Final = 4096  # at a time: more than that no change is ever far


@dataclass
class _Leap:
    """Iterations under way: of whom, how many are accounted for, and where their ends begin."""

    iterations: Iterations
    sequences: list[Sequence]
    applied: int = 0


class Leaps:
    """Does iterations of a replica.

    Parameters
    ----------
    replica
        Whose.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._leap: _Leap | None = None

    def possible(self, step: Step) -> int:
        """Return how many iterations like this one can be done at once; 0: only this step."""
        replica = self._replica
        stages = replica.plan.stages
        if len(stages) > 1 or not stages[0].steady:
            return 0
        if not all(tokens == 1 and s.scheduled == s.length and s.target for s, tokens in step):
            return 0
        if len(step) < len(replica.running) or replica.batching.preempted:
            return 0  # the next plan may admit whom this one did not look at
        if any(s.first_token is not None and not s.made for s, _ in step):
            return 0  # somebody waits for it at its very time
        most = min(_MOST_ITERATIONS, *(s.target - s.made for s, _ in step))
        memory = replica.memory
        free = memory.free_blocks
        low, high = 1, most
        while low < high:
            middle = (low + high + 1) // 2
            wanted = sum(memory.wanted(s, s.scheduled + middle - 1) for s, _ in step)
            low, high = (middle, high) if wanted <= free else (low, middle - 1)
        return low

    def iterate(
        self, step: Step, load: StepLoad, count: int, *, tag: str
    ) -> Generator[simpy.Event, Any, None]:
        """Do at most ``count`` iterations."""
        replica = self._replica
        (stage,) = replica.plan.stages
        pauses = stage.times(load, count)
        began = int(replica.env.now)
        iterations = replica.engine.iterate(
            stage.iteration(load), replica.plan.devices, pauses, tag=tag
        )
        leap = self._leap = _Leap(iterations, [s for s, _ in step])
        runs = yield iterations.event
        self._apply(leap, runs)
        self._leap = None
        flops = stage.flops(load, runs)
        now = int(replica.env.now)
        replica.ledger.iterations(replica, len(step), began, now, runs, flops)
        for sequence in leap.sequences:
            sequence.in_flight -= 1
            if sequence.made == sequence.target:
                replica.leave(sequence)
        replica.grant()

    def sync(self) -> None:
        """Bring sequences and blocks to where the iterations under way are now."""
        leap = self._leap
        if leap is None or leap.iterations.event.triggered:
            return
        runs = leap.iterations.done(int(self._replica.env.now))
        self._apply(leap, min(runs, len(leap.iterations.ends_ps) - 1))

    def curtail(self) -> None:
        """Let the iteration under way be the last."""
        if self._leap is not None:
            self._leap.iterations.curtail()

    def forget(self) -> None:
        """Account for nothing more of what is under way."""
        self.curtail()
        self._leap = None

    def _apply(self, leap: _Leap, runs: int) -> None:
        """Account for the iterations up to a number, and the blocks of the one after."""
        replica, ends = self._replica, leap.iterations.ends_ps
        under_way = int(runs < len(ends))
        new = runs - leap.applied
        if new <= 0:
            return
        for sequence in leap.sequences:
            request = sequence.request
            before = sequence.scheduled
            sequence.computed += new
            sequence.made += new
            sequence.scheduled = sequence.computed + under_way
            request.generated += new
            self._grow(sequence, before, ends, leap.applied)
            replica.ledger.token(sequence, ends[leap.applied])
            if request.first_ps < 0:
                request.first_ps = ends[leap.applied]
            sequence.last_ps = request.last_token_ps = ends[runs - 1]
        replica.ledger.further(ends[leap.applied : runs], len(leap.sequences))
        leap.applied = runs

    def _grow(self, sequence: Sequence, before: int, ends_ps: Many[int], first: int) -> None:
        """Give a sequence the blocks of its new tokens, each since its iteration began.

        ``before``: its tokens in the iteration whose end is ``ends_ps[first]``.
        """
        memory = self._replica.memory
        if not memory.wanted(sequence, sequence.scheduled):
            return
        size = memory.block_tokens
        for tokens in range(memory.blocks_of(before) * size + 1, sequence.scheduled + 1, size):
            memory.grow(sequence, tokens, at_ps=ends_ps[first + tokens - before - 1])
