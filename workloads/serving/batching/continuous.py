# SPDX-License-Identifier: Apache-2.0
"""Continuous batching under a token budget, as in vLLM V1: no phases, only tokens to compute.

Running sequences first, in order, each up to what it needs; where blocks run out, the newest is
preempted. Only if nobody was, waiting ones begin, first come first served. A long prompt is
computed in chunks beside the tokens of others (Agrawal et al., "Sarathi-Serve", OSDI 2024).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.workloads.serving.batching import Batching, Step, batching

if TYPE_CHECKING:
    from railweave.workloads.serving.sequence import Sequence

__all__ = ["Continuous"]


@batching("continuous")
class Continuous(Batching):
    """See the module."""

    def plan(self) -> Step:
        """Return the next step."""
        step: Step = []
        budget = self.max_tokens
        self.preempted = []
        at = 0
        while at < len(self.running) and budget:
            sequence = self.running[at]
            tokens = self._tokens(sequence, budget)
            if not tokens or self._make_room(sequence, tokens):
                at += 1
                if tokens:
                    step.append((sequence, tokens))
                    budget = max(budget - tokens, 0)
            elif sequence in self.running:
                at += 1
        if not self.preempted:
            self._admit(step, budget)
        return step

    def _tokens(self, sequence: Sequence, budget: int) -> int:
        """Return how many tokens of a running sequence the next step computes."""
        if sequence.need > budget and not self.chunked:
            return sequence.need if budget == self.max_tokens else 0
        return min(sequence.need, budget)

    def _make_room(self, sequence: Sequence, tokens: int) -> bool:
        """Give a sequence its blocks, preempting the newest, itself at last; False without."""
        while not self.memory.grow(sequence, sequence.scheduled + tokens):
            idle = [one for one in self.running if not one.in_flight]
            if not idle or self.running.index(idle[-1]) < self.running.index(sequence):
                return False
            self._preempt(idle[-1])
            if idle[-1] is sequence:
                return False
        return True
