# SPDX-License-Identifier: Apache-2.0
"""One piece for each sequence, as long as the longest that may be asked for.

What serving systems did before pages, as FasterTransformer and Orca (Yu et al., OSDI 2022): a
sequence's cache has to lie in one piece, so room for the longest is set aside when it starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.workloads.serving.memory import KvMemory, memory

if TYPE_CHECKING:
    from railweave.workloads.serving.sequence import Sequence

__all__ = ["ContiguousMemory"]


@memory("contiguous")
class ContiguousMemory(KvMemory):
    """See the module."""

    def least(self, tokens: int) -> int:
        """Return the blocks of the longest sequence, or of a longer one."""
        return self.blocks_of(max(tokens, self.longest))

    def wanted(self, sequence: Sequence, tokens: int) -> int:
        """Return the blocks of a whole piece for a sequence that has none."""
        del tokens
        return 0 if sequence.blocks else self.blocks_of(self.longest)

    def admit(self, sequence: Sequence, tokens: int) -> bool:
        """Set a whole piece aside."""
        return self.grow(sequence, tokens)

    def grow(self, sequence: Sequence, tokens: int, *, at_ps: int | None = None) -> bool:
        """Set a whole piece aside for a sequence that has none."""
        lacking = self.wanted(sequence, tokens)
        if lacking > self.free_blocks:
            return False
        self.give(lacking, at_ps=at_ps)
        sequence.blocks += lacking
        return True
