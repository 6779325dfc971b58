# SPDX-License-Identifier: Apache-2.0
"""The front-end network at work: prompts come in and tokens go out, as flows on the engine.

A prompt crosses from the clients to the gateway, where the endpoint picker sits, and then, whole,
from there to the server of the replica that was chosen (the host of its first rank). Tokens go back
the same way, each passed on as it comes. The first and the last token of an answer are flows of
their own, so that times at the client are exact; those in between are one flow, paced as fast as
the replica could make them at best: what links carry is exact, and a link that is too slow for its
streams makes them late. Classes of traffic are ``prompt`` and ``token``.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import simpy

from railweave.fabric.errors import InputError
from railweave.fabric.flow import Flow
from railweave.fabric.units import PS_PER_S
from railweave.topologies.front_end import CLIENTS, GATEWAY, server_nic
from railweave.workloads.serving.replica import ReplicaLostError

if TYPE_CHECKING:
    from collections.abc import Generator

    from railweave.workloads.serving.keys import FrontendModel
    from railweave.workloads.serving.replica_plan import ReplicaPlan
    from railweave.workloads.serving.request import Request
    from railweave.workloads.serving.sequence import Sequence
    from railweave.workloads.workload import WorkloadContext

__all__ = ["Frontend"]


class Frontend:
    """The network of a service; without keys, one that takes no time.

    Parameters
    ----------
    keys
        Its rates and sizes, or None.
    context
        The fabric that it stands beside.

    Raises
    ------
    InputError
        Whatever the workload runs on has no front-end network.
    """

    def __init__(self, keys: FrontendModel | None, context: WorkloadContext) -> None:
        self._keys, self._context = keys, context
        self._env, self._engine = context.env, context.engine
        self._wire_bits = 8 / context.settings.efficiency()  # per byte
        self._answers: dict[int, simpy.Process] = {}
        if keys is not None:
            index = context.fabric.device_index
            if f"{GATEWAY}/nic0" not in index:
                raise context.error(
                    "what this runs on has no front-end network",
                    at=("frontend",),
                    expected="an engine of `railweave run`, or no frontend",
                )
            self._clients, self._gateway = index[f"{CLIENTS}/nic0"], index[f"{GATEWAY}/nic0"]

    def _server(self, plan: ReplicaPlan) -> int:
        fabric = self._context.fabric
        host = fabric.host_names[int(fabric.host[plan.devices[0]])]
        return fabric.device_index[server_nic(host)]

    @property
    def outside(self) -> list[tuple[int, int]]:
        """The ends between which all requests must get through."""
        return self._both_ways(self._clients, self._gateway) if self._keys is not None else []

    def pairs(self, plan: ReplicaPlan) -> list[tuple[int, int]]:
        """Return the ends between which a replica's requests must get through."""
        return self._both_ways(self._gateway, self._server(plan)) if self._keys is not None else []

    @staticmethod
    def _both_ways(a: int, b: int) -> list[tuple[int, int]]:
        return [(a, b), (b, a)]

    # ------------------------------------------------------------------ prompts
    def arrive(self, request: Request) -> Generator[simpy.Event, Any, None]:
        """Bring a prompt from its client to the gateway."""
        if self._keys is not None:
            request.doing = "its prompt at the gateway"
            yield from self._prompt(request, self._clients, self._gateway, "in")

    def deliver(self, request: Request, plan: ReplicaPlan) -> Generator[simpy.Event, Any, None]:
        """Bring a prompt from the gateway to the server that was chosen."""
        if self._keys is not None:
            request.doing = f"its prompt, from the gateway to {plan.name}"
            name = f"to-{plan.name}"
            yield from self._prompt(request, self._gateway, self._server(plan), name)

    def _prompt(
        self, request: Request, src: int, dst: int, name: str
    ) -> Generator[simpy.Event, Any, None]:
        assert self._keys is not None
        size = request.prompt_tokens * self._keys.bytes_per_token
        yield from self._carry(self._flow(request, name, src, dst, size, "prompt"))

    # ------------------------------------------------------------------ tokens
    def expect(self, request: Request, sequence: Sequence, plan: ReplicaPlan, pace_ps: int) -> None:
        """Carry the tokens of a sequence to the client from its first on.

        Parameters
        ----------
        request, sequence
            Whose tokens.
        plan
            The replica that makes them.
        pace_ps
            The least that the replica takes for each, in ps.
        """
        if self._keys is not None and sequence.target:

            def first() -> None:
                answer = self._answer(request, sequence, self._server(plan), pace_ps)
                self._answers[request.number] = self._env.process(answer)

            sequence.first_token = first

    def answered(self, request: Request) -> Generator[simpy.Event, Any, None]:
        """Wait until the last token has come to the client."""
        if self._keys is not None:
            request.doing = "its last token, on the way to the client"
            yield self._answers.pop(request.number)

    def _answer(
        self, request: Request, sequence: Sequence, server: int, pace_ps: int
    ) -> Generator[simpy.Event, Any, None]:
        """Send the first token, the stream behind it, and at the end the last."""
        assert self._keys is not None
        size, between = self._keys.token_message, sequence.target - 2
        legs = (("out", server, self._gateway), ("back", self._gateway, self._clients))
        streams = []
        if between > 0:
            pace_bps = max(int(size * self._wire_bits * PS_PER_S / max(pace_ps, 1)), 1)
            streams = [
                self._flow(request, f"{leg}.stream", src, dst, between * size, "token", pace_bps)
                for leg, src, dst in legs
            ]
        under_way = [(flow, self._engine.send(flow)) for flow in streams]
        begun = int(self._env.now)
        yield from self._token(request, "first", legs)
        if request.return_ps < 0:
            request.return_ps = int(self._env.now) - begun
        try:
            yield sequence.done
        except ReplicaLostError:  # what else comes out does so elsewhere
            for flow, event in under_way:
                self._stop(flow, event)
            return
        if sequence.target > 1:
            yield from self._token(request, "last", legs)
        yield self._env.all_of([event for _, event in under_way])

    def _token(
        self, request: Request, which: str, legs: tuple[tuple[str, int, int], ...]
    ) -> Generator[simpy.Event, Any, None]:
        assert self._keys is not None
        for leg, src, dst in legs:
            size = self._keys.token_message
            yield from self._carry(self._flow(request, f"{leg}.{which}", src, dst, size, "token"))

    # ------------------------------------------------------------------ flows
    def _flow(
        self,
        request: Request,
        name: str,
        src: int,
        dst: int,
        size_bytes: int,
        tag: str,
        cap_bps: int | None = None,
    ) -> Flow:
        again = f".a{request.attempts}" if request.attempts > 1 else ""
        return Flow(
            id=f"{self._context.prefix}{request.name}{again}.{name}",
            src=src,
            dst=dst,
            size_bytes=size_bytes,
            cap_bps=cap_bps,
            tag=tag,
        )

    def _carry(self, flow: Flow) -> Generator[simpy.Event, Any, None]:
        """Send a flow and wait for it; stop it when nobody wants it any more."""
        event = self._engine.send(flow)
        try:
            yield event
        except simpy.Interrupt:
            self._stop(flow, event)
            raise

    def _stop(self, flow: Flow, event: simpy.Event) -> None:
        if not event.triggered:
            event.defused = True
            with suppress(InputError):  # it ends at this very instant
                self._engine.cancel(flow)
