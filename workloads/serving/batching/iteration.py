# SPDX-License-Identifier: Apache-2.0
"""Iteration-level batching: who waits may join at every step, whole prompts beside single tokens.

Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models", OSDI 2022:
first come first served, and the room for all that a sequence may ever hold is set aside when it
begins, so that nobody is preempted.
"""

from __future__ import annotations

from railweave.workloads.serving.batching import Batching, Step, batching

__all__ = ["IterationLevel"]


@batching("iteration")
class IterationLevel(Batching):
    """See the module."""

    def plan(self) -> Step:
        """Return the next step."""
        step: Step = [
            (sequence, sequence.need)
            for sequence in self.running
            if sequence.need and not sequence.in_flight
        ]
        self.short = False
        budget = self.max_tokens - sum(tokens for _, tokens in step)
        while self.waiting and len(self.running) + self.reserved < self.max_num_seqs:
            sequence = self.waiting[0]
            if step and sequence.length > budget:
                break
            if not self.memory.admit(sequence, sequence.most):
                self.short = True
                break
            self.waiting.popleft()
            self.running.append(sequence)
            step.append((sequence, sequence.need))
            budget -= sequence.length
        return step
