# SPDX-License-Identifier: Apache-2.0
"""A decode replica: continuous batching, one token for every running sequence per iteration.

Sequences join between iterations (Yu et al., "Orca", OSDI 2022). The first iteration of a sequence
computes the last token of its prompt again and yields its first token, as vLLM's decode side does
after a KV transfer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from railweave.workloads.compute import StepLoad
from railweave.workloads.serving.replica import Replica
from railweave.workloads.serving.steps import bound_ps, perform

if TYPE_CHECKING:
    from collections.abc import Generator

    import simpy

    from railweave.fabric.engine import Engine, FabricEnvironment
    from railweave.workloads.serving.replica import ReplicaPlan
    from railweave.workloads.serving.request import Request

__all__ = ["DecodeReplica"]


class DecodeReplica(Replica):
    """See the module.

    Parameters
    ----------
    plan, env, engine
        As for `Replica`.
    max_num_seqs
        Most sequences, those whose cache is on its way included.
    tag
        What its collectives are called.
    """

    def __init__(
        self,
        plan: ReplicaPlan,
        env: FabricEnvironment,
        engine: Engine,
        *,
        max_num_seqs: int,
        tag: str,
    ) -> None:
        super().__init__(plan, env, engine, seats=max_num_seqs)
        self._tag = tag
        self._joining: list[tuple[Request, simpy.Event]] = []
        self._running: list[tuple[Request, simpy.Event]] = []
        self._wake = env.event()
        self.steps = 0
        self.tokens = 0
        env.process(self._run())

    def decode(self, request: Request) -> simpy.Event:
        """Return the event that fires when the last token of a request is out.

        Its cache is here and its blocks are reserved; they are given back at the end.
        """
        done = self.env.event()
        self._joining.append((request, done))
        if not self._wake.triggered:
            self._wake.succeed()
        return done

    def bound_ps(self, request: Request) -> int:
        """Return the least that an iteration of this request takes on an empty system.

        It is the first one: no later one has less cache to read.
        """
        load = StepLoad.decode([request.prompt_tokens - 1])
        return bound_ps(self.engine, self.plan.stages[0].works(load))

    def _run(self) -> Generator[simpy.Event, Any, None]:
        (stage,) = self.plan.stages
        while True:
            if not self._running and not self._joining:
                self._wake = self.env.event()
                yield self._wake
            self._running += self._joining
            self._joining = []
            load = StepLoad.decode(
                [request.prompt_tokens - 1 + request.generated for request, _ in self._running]
            )
            begun = self.env.now
            yield from perform(self.env, self.engine, stage.works(load), tag=self._tag)
            self.busy_ps += int(self.env.now - begun)
            self.steps += 1
            self._take_tokens()

    def _take_tokens(self) -> None:
        now, going_on = int(self.env.now), []
        for request, done in self._running:
            request.generated += 1
            self.tokens += 1
            if request.generated == 1:
                request.first_ps = now
            if request.generated < request.output_tokens:
                going_on.append((request, done))
                continue
            request.last_ps = now
            self.release(request)
            done.succeed()
        self._running = going_on
