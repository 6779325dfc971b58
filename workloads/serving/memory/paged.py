# SPDX-License-Identifier: Apache-2.0
"""Pages: a sequence has the blocks that its tokens fill, and takes another when it needs one.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
SOSP 2023.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.workloads.serving.memory import KvMemory, memory

if TYPE_CHECKING:
    from railweave.workloads.serving.sequence import Sequence

__all__ = ["PagedMemory"]


@memory("paged")
class PagedMemory(KvMemory):
    """See the module."""

    def wanted(self, sequence: Sequence, tokens: int) -> int:
        """Return the blocks that a sequence lacks for so many tokens."""
        shared = 0 if self.cache is None else self.cache.blocks_held(sequence)
        return max(self.blocks_of(tokens) - sequence.blocks - shared, 0)

    def admit(self, sequence: Sequence, tokens: int) -> bool:
        """Give a new sequence the blocks that were found, and others for the rest."""
        if self.cache is None:
            sequence.found = 0
            return self.grow(sequence, tokens)
        found = self.cache.found(sequence)
        self.cache.hold(sequence, found, self)
        if not self.grow(sequence, tokens):
            self.cache.drop(sequence, self)
            return False
        sequence.found = sequence.computed = sequence.scheduled = found
        return True

    def grow(self, sequence: Sequence, tokens: int, *, at_ps: int | None = None) -> bool:
        """Give a sequence blocks until it has them for so many tokens, or nothing."""
        lacking = self.wanted(sequence, tokens)
        if lacking > self.free_blocks:
            return False
        if lacking:
            self.give(lacking, at_ps=at_ps)
            sequence.blocks += lacking
            if self.cache is not None:
                self.cache.make_room(self)
        return True
