# SPDX-License-Identifier: Apache-2.0
"""What replicas of both pools have: GPUs, stages, and KV blocks that requests hold."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from railweave.fabric.errors import RailweaveError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import simpy

    from railweave.fabric.engine import Engine, FabricEnvironment
    from railweave.workloads.serving.request import Request
    from railweave.workloads.serving.steps import Stage

__all__ = ["Replica", "ReplicaPlan"]


@dataclass(frozen=True, kw_only=True)
class ReplicaPlan:
    """A replica before it runs.

    Parameters
    ----------
    name
        ``prefill0``, ``decode3``.
    devices
        Device index of the GPU of every rank.
    stages
        Its pipeline stages.
    blocks
        KV blocks that it has room for.
    block_tokens
        Tokens of a block.
    """

    name: str
    devices: tuple[int, ...]
    stages: tuple[Stage, ...]
    blocks: int
    block_tokens: int

    def blocks_of(self, tokens: int) -> int:
        """Return the blocks that so many tokens take.

        Examples
        --------
        >>> plan = ReplicaPlan(name="d", devices=(), stages=(), blocks=9, block_tokens=16)
        >>> plan.blocks_of(50)
        4
        """
        return -(-tokens // self.block_tokens)


class Replica:
    """A replica at work.

    Parameters
    ----------
    plan
        What it is.
    env, engine
        The clock and the fabric.
    seats
        Most requests that may hold blocks at once, or None.
    """

    def __init__(
        self, plan: ReplicaPlan, env: FabricEnvironment, engine: Engine, *, seats: int | None = None
    ) -> None:
        self.plan = plan
        self.env = env
        self.engine = engine
        self.connections = 0
        self.free_blocks = plan.blocks
        self.busy_ps = 0  # over all stages
        self._seats = seats
        self._held: dict[int, int] = {}
        self._queue: deque[tuple[Request, int, simpy.Event]] = deque()

    def reserve(self, request: Request, tokens: int) -> simpy.Event:
        """Return the event that fires when blocks for ``tokens`` are set aside; first come first.

        The caller has made sure that the replica can ever hold that many.
        """
        event = self.env.event()
        self._queue.append((request, self.plan.blocks_of(tokens), event))
        self._grant()
        return event

    def release(self, request: Request) -> None:
        """Give the blocks of a request back."""
        self.free_blocks += self._held.pop(request.number)
        self._grant()

    def _grant(self) -> None:
        while self._queue and self._fits(self._queue[0][1]):
            request, blocks, event = self._queue.popleft()
            if request.number in self._held:
                raise RailweaveError(f"request {request.name} holds blocks of {self.plan.name}")
            self.free_blocks -= blocks
            self._held[request.number] = blocks
            event.succeed()

    def _fits(self, blocks: int) -> bool:
        seated = self._seats is None or len(self._held) < self._seats
        return seated and blocks <= self.free_blocks

    def waiting(self) -> Iterator[str]:
        """Say who waits for blocks here."""
        holders = ", ".join(f"r{number}" for number in list(self._held)[:4])
        for request, blocks, _ in self._queue:
            yield (
                f"request {request.name} waits for {blocks} KV blocks of {self.plan.name}, where "
                f"{self.free_blocks} of {self.plan.blocks} are free and {holders} hold the rest"
            )
