# SPDX-License-Identifier: Apache-2.0
"""The prefill side writes after each of its steps what that step completed, as SGLang does.

Whole blocks go as soon as a chunk of the prompt is computed (RDMA WRITE), so that only the last
chunk's are left when the prefill is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from railweave.workloads.serving.handoff import Handoff, handoff

if TYPE_CHECKING:
    from collections.abc import Generator

    import simpy

    from railweave.workloads.serving.sequence import Sequence

__all__ = ["Push"]


@handoff("push")
class Push(Handoff):
    """See the module."""

    early = True

    def _watch(self) -> None:
        self.sequence.ended_step = self._chunk

    def _whole(self, computed: int) -> int:
        """Return how many of the tokens that move fill whole blocks."""
        block = self.mover.block
        return max(min(computed - self.skip, self.tokens) // block * block, 0)

    def _chunk(self, sequence: Sequence) -> None:
        self._send(self._whole(sequence.computed))

    def finish(self) -> Generator[simpy.Event, Any, None]:
        """Send the last, partial block and wait."""
        self._send(self.tokens)
        yield self.arrival()
