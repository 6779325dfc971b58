# SPDX-License-Identifier: Apache-2.0
"""The front-end network: prompts come in and tokens go out, apart from the fabric of the GPUs.

Clients reach the gateway, where the endpoint picker sits, over one link, and the gateway each
server (the host of a replica's first rank) over another; all of them meet in one switch. Prompts
are stored and forwarded: on each link one waits for those before it. A token is a message so small
that it takes its time and no more than that; what streams carry is counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from railweave.fabric.units import PS_PER_S, format_rate, format_time

if TYPE_CHECKING:
    from collections.abc import Generator

    import simpy

    from railweave.workloads.serving.fleet import Fleet
    from railweave.workloads.serving.keys import FrontendModel
    from railweave.workloads.serving.replica import Replica
    from railweave.workloads.serving.request import Request
    from railweave.workloads.workload import WorkloadContext

__all__ = ["Frontend"]

_CLIENTS, _GATEWAY = "clients", "gateway"


class _Link:
    """One direction of a link, first come first served."""

    def __init__(self, keys: FrontendModel) -> None:
        self._rate, self._delay = keys.rate, keys.delay
        self._free_ps = 0
        self.size_bytes = 0

    def carry(self, size_bytes: int, now_ps: int) -> int:
        """Return when what is sent now has come, after all that was sent before."""
        self.size_bytes += size_bytes
        begins = max(now_ps, self._free_ps)
        self._free_ps = begins - (-size_bytes * 8 * PS_PER_S // self._rate)
        return self._free_ps + self._delay

    def stream(self, size_bytes: int, pieces: int) -> int:
        """Count a stream, and return what one of its pieces takes on an idle link, in ps."""
        self.size_bytes += size_bytes
        return self._delay - (-size_bytes * 8 * PS_PER_S // (self._rate * pieces))


class Frontend:
    """The network of a service; without keys, one that takes no time.

    Parameters
    ----------
    keys
        Its rates and delays, or None.
    context, fleet
        Where the servers are.
    """

    def __init__(self, keys: FrontendModel | None, context: WorkloadContext, fleet: Fleet) -> None:
        self._keys, self._env, self._fabric = keys, context.env, context.fabric
        self._links: dict[tuple[str, str], _Link] = {}
        if keys is not None:
            for server in dict.fromkeys(self._host(replica) for replica in fleet.replicas):
                for ends in ((_GATEWAY, server), (server, _GATEWAY)):
                    self._links[ends] = _Link(keys)
            for ends in ((_CLIENTS, _GATEWAY), (_GATEWAY, _CLIENTS)):
                self._links[ends] = _Link(keys)

    def _host(self, replica: Replica) -> str:
        return str(self._fabric.host_names[int(self._fabric.host[replica.plan.devices[0]])])

    def arrive(self, request: Request) -> Generator[simpy.Event, Any, None]:
        """Bring a prompt from its client to the gateway."""
        if self._keys is not None:
            request.doing = "the gateway"
            yield from self._carry((_CLIENTS, _GATEWAY), request)

    def deliver(self, request: Request, replica: Replica) -> Generator[simpy.Event, Any, None]:
        """Bring a prompt from the gateway to the server that was chosen."""
        if self._keys is not None:
            request.doing = f"the way from the gateway to {replica.plan.name}"
            yield from self._carry((_GATEWAY, self._host(replica)), request)

    def _carry(self, ends: tuple[str, str], request: Request) -> Generator[simpy.Event, Any, None]:
        assert self._keys is not None
        now = int(self._env.now)
        size = request.prompt_tokens * self._keys.bytes_per_token
        yield self._env.timeout(self._links[ends].carry(size, now) - now)

    def stream(self, request: Request, replica: Replica) -> None:
        """Note the tokens that a server streams back, and what each needs to reach the client."""
        if self._keys is not None:
            size = request.output_tokens * self._keys.bytes_per_token
            request.return_ps = sum(
                self._links[ends].stream(size, request.output_tokens)
                for ends in ((self._host(replica), _GATEWAY), (_GATEWAY, _CLIENTS))
            )

    def summary(self) -> dict[str, Any]:
        """Return what each link carried, in bytes, for ``result.json``; empty without keys."""
        return {f"{a}>{b}": link.size_bytes for (a, b), link in self._links.items()}

    def topology(self) -> dict[str, Any]:
        """Return the network as a topology file, which `railweave topo draw` draws."""
        assert self._keys is not None
        ends = list(dict.fromkeys(name for pair in self._links for name in pair))
        own = {"rate": format_rate(self._keys.rate), "delay": format_time(self._keys.delay // 2)}
        return {
            "schema": 1,
            "name": "front-end",
            "kind": "custom",
            "nodes": {
                **dict.fromkeys(ends, "host"),
                "frontend": {"type": "switch", "model": "tomahawk5", "tier": "leaf"},
            },
            "links": [{"ends": [name, "frontend"], "model": "roce-lossy", **own} for name in ends],
        }
