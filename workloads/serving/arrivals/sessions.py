# SPDX-License-Identifier: Apache-2.0
"""Conversations: each turn reads all that was said before, and comes when the last was answered.

Sessions begin as a Poisson process of ``rate_per_s``. Listed requests are divided into sessions by
their ``session``, each of which begins with its first request at that request's time.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count as counter
from typing import TYPE_CHECKING, Any

from railweave.workloads.serving.arrivals import arrivals
from railweave.workloads.serving.arrivals.poisson import Poisson

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    import simpy

    from railweave.fabric.engine import FabricEnvironment
    from railweave.workloads.serving.request import Request
    from railweave.workloads.traces import TraceRequest

__all__ = ["Sessions"]


@arrivals("sessions")
class Sessions(Poisson):
    """``count`` sessions of ``turns`` each; ``prompt`` is what a turn adds to the conversation."""

    needs = ("turns",)

    @classmethod
    def optional(cls) -> tuple[str, ...]:
        """Return keys that it can do without."""
        return ("think", "rate_per_s", "block")

    def requests(self, listed: Sequence[TraceRequest] | None) -> list[TraceRequest]:
        """Return all turns of all sessions, the first of each at its time."""
        if listed is not None:
            return sorted(listed, key=lambda one: one.at_ps)
        sessions, turns = self.keys.count or 0, self.keys.turns or 0
        begins = self.times(sessions) if self.keys.rate_per_s else [0] * sessions
        drawn = iter(self.lengths(sessions * turns))
        found, ids = [], counter(1)
        for number in range(sessions):
            said = 0
            shared: list[int] = []
            for _ in range(turns):
                one = next(drawn)
                prompt = said + one.prompt_tokens
                while len(shared) * self.keys.block < prompt:
                    shared.append(next(ids))
                found.append(
                    replace(
                        one,
                        at_ps=begins[number],
                        prompt_tokens=prompt,
                        hash_ids=tuple(shared),
                        hash_block=self.keys.block,
                        session=f"s{number}",
                    )
                )
                said = prompt + one.output_tokens
                del shared[prompt // self.keys.block :]  # a partial block will be another
        return sorted(found, key=lambda one: one.at_ps)

    def drive(
        self, requests: Sequence[Request], submit: Any, env: FabricEnvironment
    ) -> Generator[simpy.Event, Any, None]:
        """Let every session take its turns."""
        sessions: dict[str, list[Request]] = {}
        for request in requests:
            sessions.setdefault(request.session or request.name, []).append(request)
        turns = [env.process(self._session(own, submit, env)) for own in sessions.values()]
        yield env.all_of(turns)

    def _session(
        self, turns: Sequence[Request], submit: Any, env: FabricEnvironment
    ) -> Generator[simpy.Event, Any, None]:
        yield env.timeout(max(turns[0].arrival_ps - int(env.now), 0))
        for number, request in enumerate(turns):
            if number and self.keys.think:
                yield env.timeout(self.keys.think)
            request.arrival_ps = int(env.now)
            yield submit(request)
