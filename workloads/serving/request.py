# SPDX-License-Identifier: Apache-2.0
"""One request on its way: what it asks for, where it is, and when what happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from railweave.workloads.traces import TraceRequest

__all__ = ["Request"]


@dataclass(eq=False, kw_only=True)
class Request:
    """A request and its marks in time, all in ps; -1: not yet.

    Parameters
    ----------
    number
        Its place in order of arrival.
    prompt_tokens, output_tokens
        What it reads and generates.
    arrival_ps
        When it arrives.
    rejected
        Why it was never served, or nothing.
    prefill, decode
        Replica of each pool, -1 before one is chosen.
    prefill_start_ps, prefill_end_ps
        Its prefill step.
    reserved_ps
        When the decode replica had set its KV blocks aside; the transfer begins at once.
    kv_end_ps
        When the cache had arrived.
    first_ps, last_ps
        When its first and its last token came out.
    generated
        Tokens so far.
    kv_bytes, kv_bound_ps
        Bytes of its transfer, and the least that it takes on an empty fabric.
    ttft_bound_ps, tpot_bound_ps
        What it would take alone on an empty system.
    doing
        What it waits for, in words.
    hash_ids, hash_block, session, row
        What its prompt shares with others, as in `railweave.workloads.traces.TraceRequest`.
    found_tokens
        Tokens of its prompt that the replica which prefilled it found in its cache.
    kv_start_ps
        When the first bytes of its cache left.
    last_token_ps
        When its latest token came out.
    preemptions
        How often it lost its blocks.
    attempts
        How often it was sent to replicas: once, and again for each that failed under it.
    local_prefill
        Whether the replica that decodes it computed its prompt too.
    return_ps
        What the first token took from the server to the client; -1: it has not come.
    answered_ps
        When the last token had come to the client.
    """

    number: int
    prompt_tokens: int
    output_tokens: int
    arrival_ps: int
    rejected: str = ""
    prefill: int = -1
    decode: int = -1
    prefill_start_ps: int = -1
    prefill_end_ps: int = -1
    reserved_ps: int = -1
    kv_end_ps: int = -1
    first_ps: int = -1
    last_ps: int = -1
    generated: int = 0
    kv_bytes: int = 0
    kv_bound_ps: int = 0
    ttft_bound_ps: int = 0
    tpot_bound_ps: int = 0
    doing: str = "its arrival"
    hash_ids: tuple[int, ...] = ()
    hash_block: int = 0
    session: str = ""
    row: int = 0
    found_tokens: int = 0
    kv_start_ps: int = -1
    last_token_ps: int = -1
    preemptions: int = 0
    attempts: int = 0
    local_prefill: bool = False
    return_ps: int = -1
    answered_ps: int = -1

    @classmethod
    def of(cls, number: int, asked: TraceRequest, *, start_ps: int) -> Request:
        """Make the request of a trace, whose times count from ``start_ps``."""
        return cls(
            number=number,
            prompt_tokens=asked.prompt_tokens,
            output_tokens=asked.output_tokens,
            arrival_ps=start_ps + asked.at_ps,
            hash_ids=asked.hash_ids,
            hash_block=asked.hash_block,
            session=asked.session,
            row=asked.row,
        )

    @property
    def name(self) -> str:
        """``r17``."""
        return f"r{self.number}"

    @property
    def completed(self) -> bool:
        """Whether its last token came out."""
        return self.last_ps >= 0

    @property
    def ttft_ps(self) -> int:
        """Time to first token: arrival to first token, both at the client."""
        return self.first_ps + max(self.return_ps, 0) - self.arrival_ps

    @property
    def e2e_ps(self) -> int:
        """Arrival to last token, both at the client."""
        return self.answered_ps - self.arrival_ps

    @property
    def tpot_ps(self) -> int | None:
        """Mean time per output token after the first, rounded down; None for a single token."""
        if self.output_tokens < 2:
            return None
        return (self.last_ps - self.first_ps) // (self.output_tokens - 1)

    @property
    def kv_ps(self) -> int:
        """Time of the KV transfer from its first byte to its last."""
        return self.kv_end_ps - self.kv_start_ps

    @property
    def exposed_kv_ps(self) -> int:
        """Time that the transfer added after the prefill and the wait for blocks."""
        return max(self.kv_end_ps - max(self.prefill_end_ps, self.reserved_ps), 0)
