# SPDX-License-Identifier: Apache-2.0
"""The front-end network: prompts come in and tokens go out, apart from the fabric of the GPUs.

A client, the gateway, and a link from there to every server (the host of a replica's first rank).
A prompt waits for the links before it; a token is so small that it only takes its time. The trip
of a request's tokens adds to what its user sees, not to what servers are busy with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from railweave.fabric.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Generator

    import simpy

    from railweave.workloads.serving.fleet import Fleet
    from railweave.workloads.serving.model import ServingModel
    from railweave.workloads.serving.request import Request
    from railweave.workloads.workload import WorkloadContext

__all__ = ["Frontend"]


class Frontend:
    """The network of a service; without keys, one that takes no time.

    Parameters
    ----------
    workload, context, fleet
        What is served, on what.

    Attributes
    ----------
    in_bytes, out_bytes
        What crossed the gateway's link in each direction.
    """

    def __init__(self, workload: ServingModel, context: WorkloadContext, fleet: Fleet) -> None:
        del fleet
        self._keys = workload.frontend
        self._env = context.env
        self._free_ps = 0  # when the gateway's link has nothing more to bring in
        self.in_bytes = self.out_bytes = 0

    def prompt_in(self, request: Request) -> Generator[simpy.Event, Any, None]:
        """Bring a prompt to the gateway, after those before it."""
        if self._keys is None:
            return
        size = request.prompt_tokens * self._keys.bytes_per_token
        self.in_bytes += size
        now = int(self._env.now)
        begins = max(now, self._free_ps)
        self._free_ps = begins - (-size * 8 * PS_PER_S // self._keys.rate)
        request.doing = "the front-end network"
        yield self._env.timeout(self._free_ps + self._keys.delay - now)

    def tokens_out(self, request: Request) -> Generator[simpy.Event, Any, None]:
        """Bring the last token to the client."""
        if self._keys is None:
            return
        self.out_bytes += request.output_tokens * self._keys.bytes_per_token
        yield self._env.timeout(self._keys.delay)
