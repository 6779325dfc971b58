# SPDX-License-Identifier: Apache-2.0
"""A fixed number of users, each of whom asks again when the answer has come."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from railweave.workloads.serving.arrivals import Arrivals, arrivals

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    import simpy

    from railweave.fabric.engine import FabricEnvironment
    from railweave.workloads.serving.request import Request

__all__ = ["ClosedLoop"]


@arrivals("closed-loop")
class ClosedLoop(Arrivals):
    """``users`` at once, each ``think`` after its last answer; requests are taken in order."""

    needs = ("users",)

    @classmethod
    def optional(cls) -> tuple[str, ...]:
        """Return keys that it can do without."""
        return ("think",)

    def times(self, count: int) -> list[int]:
        """Return nothing: a request comes when its user is ready."""
        return [0] * count

    def drive(
        self, requests: Sequence[Request], submit: Any, env: FabricEnvironment
    ) -> Generator[simpy.Event, Any, None]:
        """Let every user ask until no request is left."""
        start_ps = requests[0].arrival_ps if requests else 0
        left = deque(requests)
        users = [
            env.process(self._user(left, start_ps, submit, env))
            for _ in range(min(self.keys.users or 0, len(requests)))  # more find none
        ]
        yield env.all_of(users)

    def _user(
        self, left: deque[Request], start_ps: int, submit: Any, env: FabricEnvironment
    ) -> Generator[simpy.Event, Any, None]:
        yield env.timeout(max(start_ps - int(env.now), 0))
        while left:
            request = left.popleft()
            request.arrival_ps = int(env.now)
            yield submit(request)
            if self.keys.think:
                yield env.timeout(self.keys.think)
