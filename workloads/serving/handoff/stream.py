# SPDX-License-Identifier: Apache-2.0
"""Layer by layer: the cache of a layer leaves while the next layers are computed (Mooncake).

A step's tokens are divided by layers into groups, each of which is sent when its layers are done:
at its share of the time that the step takes undisturbed, the last when the step has ended. Each
group may prolong the step (``sync_cost``): the CPU that launches its kernels waits for them and
hands the group to the transfer (Patel et al., "Splitwise", ISCA 2024, section IV-C, which for that
reason moves prompts below 512 tokens in one piece after the prefill).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from railweave.workloads.serving.handoff import handoff
from railweave.workloads.serving.handoff.push import Push

if TYPE_CHECKING:
    from collections.abc import Generator

    import simpy

    from railweave.workloads.serving.handoff.mover import Piece
    from railweave.workloads.serving.sequence import Sequence

__all__ = ["Stream"]


@handoff("stream")
class Stream(Push):
    """See the module."""

    early = True

    def _watch(self) -> None:
        self.sequence.began_step = self._begin
        self.sequence.ended_step = self._chunk
        self._open: list[list[Piece]] = []  # groups of the step under way that are not sent

    def _begin(self, sequence: Sequence, takes_ps: int) -> int:
        end = self._whole(sequence.scheduled)
        if self.aborted or end <= self.sent or self._open:
            return 0
        groups, cost_ps = self.keys.stream_groups, self.keys.sync_cost
        pieces = self.mover.between(self.sent, end)
        parts = [[piece.part(g, groups) for piece in pieces] for g in range(groups)]
        self._open = [[piece for piece in part if piece.size_bytes] for part in parts]
        self.sent = end
        self.env.process(self._layers(self._open, takes_ps + groups * cost_ps))
        return groups * cost_ps

    def _layers(self, parts: list[list[Piece]], takes_ps: int) -> Generator[simpy.Event, Any, None]:
        began, groups = int(self.env.now), len(parts)
        for number in range(1, groups):
            yield self.env.timeout(began + takes_ps * number // groups - int(self.env.now))
            if self.aborted or self._open is not parts:
                return
            self._release(1)

    def _release(self, count: int) -> None:
        for _ in range(count):
            self._start(self._open.pop(0))

    def _chunk(self, sequence: Sequence) -> None:
        if not self.aborted:
            self._release(len(self._open))
        self._open = []
        super()._chunk(sequence)
