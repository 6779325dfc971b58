# SPDX-License-Identifier: Apache-2.0
"""A prefill replica: prompts in order of arrival, whole, through its pipeline stages.

A step takes waiting prompts while they fit the token budget and the KV blocks, and at least one.
A step enters a stage when the step before has left it. The blocks of a prompt are held until the
decode side has acknowledged the transfer.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import simpy

from railweave.workloads.compute import StepLoad
from railweave.workloads.serving.replica import Replica
from railweave.workloads.serving.steps import bound_ps, perform

if TYPE_CHECKING:
    from collections.abc import Generator

    from railweave.fabric.engine import Engine, FabricEnvironment
    from railweave.workloads.serving.replica import ReplicaPlan
    from railweave.workloads.serving.request import Request

__all__ = ["PrefillReplica"]


class PrefillReplica(Replica):
    """See the module.

    Parameters
    ----------
    plan, env, engine
        As for `Replica`.
    max_tokens
        Most prompt tokens of a step; a longer prompt goes alone.
    tag
        What its collectives are called.
    """

    def __init__(
        self,
        plan: ReplicaPlan,
        env: FabricEnvironment,
        engine: Engine,
        *,
        max_tokens: int,
        tag: str,
    ) -> None:
        super().__init__(plan, env, engine)
        self._max_tokens = max_tokens
        self._tag = tag
        self._prompts: deque[tuple[Request, simpy.Event]] = deque()
        self._wake = env.event()
        self._rooms = [simpy.Resource(env) for _ in plan.stages]
        self.steps = 0
        env.process(self._run())

    def prefill(self, request: Request) -> simpy.Event:
        """Return the event that fires when the prompt's cache is complete."""
        done = self.env.event()
        self._prompts.append((request, done))
        if not self._wake.triggered:
            self._wake.succeed()
        return done

    def bound_ps(self, request: Request) -> int:
        """Return what the prompt takes alone on an empty system."""
        load = StepLoad.prefill(request.prompt_tokens)
        return sum(bound_ps(self.engine, stage.works(load)) for stage in self.plan.stages)

    def _run(self) -> Generator[simpy.Event, Any, None]:
        while True:
            if not self._prompts:
                self._wake = self.env.event()
                yield self._wake
            batch = [self._prompts.popleft()]
            yield self.reserve(batch[0][0], batch[0][0].prompt_tokens)
            tokens = batch[0][0].prompt_tokens
            while self._prompts:
                request = self._prompts[0][0]
                tokens += request.prompt_tokens
                blocks = self.plan.blocks_of(request.prompt_tokens)
                if tokens > self._max_tokens or blocks > self.free_blocks:
                    break
                yield self.reserve(request, request.prompt_tokens)
                batch.append(self._prompts.popleft())
            for request, _ in batch:
                request.prefill_start_ps = int(self.env.now)
                request.doing = f"its prefill on {self.plan.name}"
            self.steps += 1
            entered_second = self.env.event()
            self.env.process(self._pass(batch, entered_second))
            yield entered_second

    def _pass(
        self, batch: list[tuple[Request, simpy.Event]], left_first: simpy.Event
    ) -> Generator[simpy.Event, Any, None]:
        """Take one step through all stages."""
        load = StepLoad(tuple((request.prompt_tokens, 0) for request, _ in batch))
        for number, (stage, room) in enumerate(zip(self.plan.stages, self._rooms, strict=True)):
            with room.request() as turn:
                yield turn
                begun = self.env.now
                yield from perform(self.env, self.engine, stage.works(load), tag=self._tag)
                self.busy_ps += int(self.env.now - begun)
            if number == 0:
                left_first.succeed()
        for request, done in batch:
            request.prefill_end_ps = int(self.env.now)
            done.succeed()
