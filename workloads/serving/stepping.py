# SPDX-License-Identifier: Apache-2.0
"""A replica's process: it plans a step, computes it stage by stage, and begins the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import simpy

from railweave.workloads.serving.leaps import Leaps
from railweave.workloads.works import Work, bound_ps, perform

if TYPE_CHECKING:
    from collections.abc import Generator

    from railweave.workloads.serving.batching import Step
    from railweave.workloads.serving.replica import Replica
    from railweave.workloads.step_load import StepLoad

__all__ = ["Processes", "Stepper"]


class Processes:
    """Processes that end together.

    Parameters
    ----------
    env
        The clock.
    """

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._alive: dict[simpy.Process, None] = {}

    def begin(self, what: Generator[simpy.Event, Any, None]) -> None:
        """Begin one more."""

        def guarded() -> Generator[simpy.Event, Any, None]:
            try:
                yield from what
            except simpy.Interrupt:
                return
            finally:
                self._alive.pop(process, None)

        process = self._env.process(guarded())
        self._alive[process] = None

    def end(self) -> None:
        """End all of them, now."""
        for process in self._alive:
            process.interrupt()
        self._alive.clear()


class Stepper:
    """Computes the steps of one replica.

    Parameters
    ----------
    replica
        Whose steps.
    tag
        What its collectives are called.
    """

    def __init__(self, replica: Replica, tag: str) -> None:
        self._replica, self._tag = replica, tag
        self._leaps = Leaps(replica)
        self._processes = Processes(replica.env)
        self._wake = replica.env.event()
        self._rooms: list[simpy.Resource] = []

    def start(self) -> None:
        """Begin, or begin again."""
        self._rooms = [simpy.Resource(self._replica.env) for _ in self._replica.plan.stages]
        self._processes.begin(self._run())

    def stop(self) -> None:
        """Leave every step that is under way."""
        self._processes.end()
        self._leaps.forget()

    def wake(self) -> None:
        """See whether there is something to do."""
        self.curtail()
        if not self._wake.triggered:
            self._wake.succeed()

    def sync(self) -> None:
        """Bring sequences and blocks to where the steps under way are now."""
        self._leaps.sync()

    def curtail(self) -> None:
        """Plan again after the iteration that is under way."""
        self._leaps.curtail()

    def bound_ps(self, load: StepLoad) -> int:
        """Return the least that a step with this load takes on an empty fabric, in ps."""
        replica = self._replica
        return sum(bound_ps(replica.engine, stage.works(load)) for stage in replica.plan.stages)

    def _run(self) -> Generator[simpy.Event, Any, None]:
        replica = self._replica
        while True:
            step = replica.plan_step()
            if not step:
                replica.grant()
                self._wake = replica.env.event()
                yield self._wake
                continue
            replica.begin(step)
            iterations = self._leaps.possible(step)
            if iterations:
                load = replica.load(step)
                yield from self._leaps.iterate(step, load, iterations, tag=self._tag)
            else:
                left_first = replica.env.event()
                self._processes.begin(self._pass(step, left_first))
                yield left_first

    def _pass(self, step: Step, left_first: simpy.Event) -> Generator[simpy.Event, Any, None]:
        """Take one step through all stages."""
        replica, env, engine = self._replica, self._replica.env, self._replica.engine
        stages, load = replica.plan.stages, replica.load(step)
        works = [stage.works(load) for stage in stages]
        begun_ps = int(env.now)
        if any(sequence.began_step is not None for sequence, _ in step):
            added_ps = replica.announce(step, sum(bound_ps(engine, parts) for parts in works))
            for number, parts in enumerate(works):  # evenly over the stages
                share = added_ps * (number + 1) // len(works) - added_ps * number // len(works)
                parts.append(Work(wait_ps=share))
        for number, room in enumerate(self._rooms):
            with room.request() as turn:
                yield turn
                begun = env.now
                yield from perform(env, engine, works[number], tag=self._tag)
                replica.ledger.busy_ps += int(env.now - begun)
            if number == 0:
                left_first.succeed()
        flops = sum(stage.flops(load) for stage in stages)
        replica.finish(step, begun_ps, flops)
