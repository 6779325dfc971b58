# SPDX-License-Identifier: Apache-2.0
"""What a replica did: steps, tokens, the gaps between tokens, and how full its memory was."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from railweave.workloads.serving.batching import Step
    from railweave.workloads.serving.replica import Replica
    from railweave.workloads.serving.replica_plan import ReplicaPlan
    from railweave.workloads.serving.sequence import Sequence

__all__ = ["Ledger", "Span"]

_MOST_SPANS: Final = 100_000


@dataclass(frozen=True)
class Span:
    """Steps of one kind in a row: what they did, when, in how many steps, for how many."""

    what: str
    start_ps: int
    end_ps: int
    steps: int
    sequences: int
    tokens: int
    kv_blocks: int


class Ledger:
    """The books of one replica.

    Attributes
    ----------
    busy_ps
        Time of steps, summed over pipeline stages.
    steps, tokens, prompt_tokens
        Steps, tokens generated, tokens of prompts computed (again, after a preemption).
    sequence_steps
        Sequences of all steps.
    flops
        Floating-point operations of a rank, summed over stages.
    gap_ps, gap_count
        Times between successive tokens of a sequence, and how often each was seen.
    preemptions, repeated
        How often a sequence lost its blocks, and how often one did that had made no token since
        the time before.
    short_ps
        Time in which a sequence waited for KV blocks.
    spans
        Steps for a timeline, `Span`; at most 100,000.
    """

    def __init__(self, plan: ReplicaPlan) -> None:
        self.plan = plan
        self.busy_ps = self.steps = self.tokens = self.prompt_tokens = self.sequence_steps = 0
        self.flops = 0
        self.gap_ps, self.gap_count = array("q"), array("q")
        self.preemptions = self.repeated = 0
        self.short_ps = 0
        self.spans: list[Span] = []
        self._since: dict[Sequence, int] = {}
        self._seen = (0, False)  # time, whether somebody waits for blocks

    def plan_made(self, replica: Replica) -> None:
        """Note the state at the beginning of a step."""
        for sequence in replica.batching.preempted:
            self.preemptions += 1
            sequence.request.preemptions += 1
            self.repeated += self._since.get(sequence) == sequence.made
            self._since[sequence] = sequence.made
        self.look(replica)

    def look(self, replica: Replica) -> None:
        """Note whether a sequence waits for blocks from now on."""
        now = int(replica.env.now)
        then, short = self._seen
        self.short_ps += (now - then) * short
        self._seen = (now, replica.short)

    def step(self, replica: Replica, step: Step, begun_ps: int, ended_ps: int, flops: int) -> None:
        """Note a step that has ended."""
        prompt = sum(n for s, n in step if s.computed < s.prompt - 1 or not s.target)
        self.steps += 1
        self.sequence_steps += len(step)
        self.prompt_tokens += prompt
        self.flops += flops
        self._span(
            Span(
                "prefill" if prompt == sum(n for _, n in step) else "mixed" if prompt else "decode",
                begun_ps,
                ended_ps,
                1,
                len(step),
                sum(n for _, n in step),
                replica.memory.held,
            )
        )

    def iterations(
        self, replica: Replica, count: int, begun_ps: int, ended_ps: int, runs: int, flops: int
    ) -> None:
        """Note decode iterations of ``count`` sequences that have ended."""
        self.steps += runs
        self.sequence_steps += count * runs
        self.busy_ps += ended_ps - begun_ps
        self.flops += flops
        held = replica.memory.held
        self._span(Span("decode", begun_ps, ended_ps, runs, count, count * runs, held))

    def _span(self, span: Span) -> None:
        if len(self.spans) < _MOST_SPANS:
            self.spans.append(span)

    def token(self, sequence: Sequence, now_ps: int) -> None:
        """Note a token, and the gap to the one before of its request."""
        self.tokens += 1
        before = sequence.request.last_token_ps
        if before >= 0:
            self.gap_ps.append(now_ps - before)
            self.gap_count.append(1)

    def further(self, ends_ps: Many[int], count: int) -> None:
        """Note the tokens of ``count`` sequences at each of these times but the first."""
        self.tokens += count * (len(ends_ps) - 1)
        for before, after in pairwise(ends_ps):
            self.gap_ps.append(after - before)
            self.gap_count.append(count)
