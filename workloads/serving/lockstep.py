# SPDX-License-Identifier: Apache-2.0
"""Attention replicas that share experts, step by step together.

Each plans its own step, from its own queue and KV memory; then all compute at once, those that have
nothing to do a token for nobody (vLLM's ``execute_dummy_batch``), and nobody begins the next step
before the last has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from railweave.workloads.serving.stepping import Processes
from railweave.workloads.step_load import StepLoad
from railweave.workloads.works import Work, bound_ps, perform

if TYPE_CHECKING:
    from collections.abc import Generator

    import simpy

    from railweave.fabric.engine import Engine, FabricEnvironment
    from railweave.workloads.serving.replica import Replica
    from railweave.workloads.serving.wide import WideStage

__all__ = ["Lockstep"]


class Lockstep:
    """Computes the steps of attention replicas that share experts.

    Parameters
    ----------
    stage
        What a step of them is.
    env, engine
        The clock and the fabric.
    tag
        What its collectives are called.
    """

    def __init__(
        self, stage: WideStage, env: FabricEnvironment, engine: Engine, *, tag: str
    ) -> None:
        self._stage, self._env, self._engine, self._tag = stage, env, engine, tag
        self._members: list[Replica] = []
        self._processes = Processes(env)
        self._running = False
        self._wake = env.event()

    def add(self, replica: Replica) -> None:
        """Take an attention replica in; they come in order of rank."""
        self._members.append(replica)

    def start(self) -> None:
        """Begin, or begin again, if all of them are up."""
        ready = len(self._members) == self._stage.members and all(one.up for one in self._members)
        if ready and not self._running:
            self._running = True
            self._processes.begin(self._run())

    def stop(self) -> None:
        """Leave the step that is under way."""
        self._processes.end()
        self._running = False

    def wake(self) -> None:
        """See whether there is something to do."""
        if not self._wake.triggered:
            self._wake.succeed()

    def sync(self) -> None:
        """Do nothing: every step is done singly."""

    def curtail(self) -> None:
        """Do nothing: every step is done singly."""

    def bound_ps(self, load: StepLoad) -> int:
        """Return the least that a step with this load of one of them takes, in ps."""
        return self._stage.least_ps(load)

    def _run(self) -> Generator[simpy.Event, Any, None]:
        members, stage = self._members, self._stage
        while True:
            steps = [one.plan_step() for one in members]
            if not any(steps):
                for one in members:
                    one.grant()
                self._wake = self._env.event()
                yield self._wake
                continue
            for one, step in zip(members, steps, strict=True):
                one.begin(step)
            loads = [
                one.load(step) if step else StepLoad(())
                for one, step in zip(members, steps, strict=True)
            ]
            works = stage.works(loads)
            begun_ps = int(self._env.now)
            expected_ps = bound_ps(self._engine, works)
            added_ps = max(
                one.announce(step, expected_ps) for one, step in zip(members, steps, strict=True)
            )
            yield from perform(
                self._env, self._engine, [*works, Work(wait_ps=added_ps)], tag=self._tag
            )
            for one, step, load in zip(members, steps, loads, strict=True):
                one.ledger.busy_ps += int(self._env.now) - begun_ps
                if step:
                    one.finish(step, begun_ps, stage.flops(load))
