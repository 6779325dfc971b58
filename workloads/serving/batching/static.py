# SPDX-License-Identifier: Apache-2.0
"""Static batching: a batch is formed once, and the next one when all of it has ended.

As in FasterTransformer: room for the whole batch is set aside at its start, and a sequence that has
ended keeps its seat until the last has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.workloads.serving.batching import Batching, Step, batching

if TYPE_CHECKING:
    from railweave.workloads.serving.sequence import Sequence

__all__ = ["Static"]


@batching("static")
class Static(Batching):
    """See the module."""

    def join(self, sequence: Sequence) -> None:
        """Keep a sequence whose cache is there for the next batch."""
        self.ready.append(sequence)

    def plan(self) -> Step:
        """Return the next step of the batch, or the first of a new one."""
        if not self.running:
            self.running += self.ready
            self.ready.clear()
            self.short = False
            while self.waiting and len(self.running) + self.reserved < self.max_num_seqs:
                if not self.memory.admit(self.waiting[0], self.waiting[0].most):
                    self.short = True
                    break
                self.running.append(self.waiting.popleft())
        return [
            (sequence, sequence.need)
            for sequence in self.running
            if sequence.need and not sequence.in_flight
        ]
