# SPDX-License-Identifier: Apache-2.0
"""Who waits for what, when nothing moves any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from railweave.workloads.serving.replica import Replica
    from railweave.workloads.serving.request import Request

__all__ = ["waiting_lines"]


def waiting_lines(replicas: Iterable[Replica], requests: Iterable[Request]) -> Iterator[str]:
    """Yield a line for each sequence that waits at a replica, and each request under way."""
    for replica in replicas:
        yield from _at(replica)
    for request in requests:
        if not request.rejected and not request.completed and request.attempts:
            yield f"request {request.name} waits for {request.doing}"


def _at(replica: Replica) -> Iterator[str]:
    replica.sync()
    name, memory = replica.plan.name, replica.memory
    holders = [s.name for s in (*replica.running, *replica.holding)]
    held = ", ".join(holders[:4]) + (" and others" if len(holders) > 4 else "")
    free = f"{memory.free_blocks} of {memory.blocks} are free"
    free += f" and {held} hold the rest" if holders else ""
    for sequence in replica.arriving:
        blocks = memory.wanted(sequence, sequence.prompt)
        yield f"request {sequence.name} waits for {blocks} KV blocks of {name}, where {free}"
    for sequence in replica.waiting:
        blocks = memory.wanted(sequence, sequence.length)
        yield (
            f"request {sequence.name} waits for its turn at {name}, and for {blocks} KV blocks "
            f"there, where {free}"
        )
