# SPDX-License-Identifier: Apache-2.0
"""Layer by layer: the cache of a layer leaves while the next layers are computed (Mooncake).

A step's tokens are divided by layers into groups, each of which is sent when its layers are done:
at its share of the time that the step takes undisturbed, the last when the step has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from railweave.workloads.kv_transfer import KvFlow
from railweave.workloads.serving.handoff import handoff
from railweave.workloads.serving.handoff.push import Push

if TYPE_CHECKING:
    from collections.abc import Generator

    import simpy

    from railweave.workloads.serving.sequence import Sequence

__all__ = ["Stream"]


@handoff("stream")
class Stream(Push):
    """See the module."""

    early = True

    def _watch(self) -> None:
        self.sequence.began_step = self._begin
        self.sequence.ended_step = self._chunk
        self._open: list[list[KvFlow]] = []  # groups of the step under way that are not sent
        self._groups = 0

    def _begin(self, sequence: Sequence, tokens: int, takes_ps: int) -> None:
        end = self._whole(sequence.scheduled)
        if self.aborted or end <= self.sent or self._open:
            return
        flows = self.mover.between(self.sent, end)
        self._groups = self.groups
        parts = [
            [
                KvFlow(i, j, size * (g + 1) // self.groups - size * g // self.groups)
                for i, j, size in flows
            ]
            for g in range(self.groups)
        ]
        self._open = parts
        self._piece_tokens = end - self.sent
        self.sent = end
        self.env.process(self._layers(parts, takes_ps))

    def _layers(
        self, parts: list[list[KvFlow]], takes_ps: int
    ) -> Generator[simpy.Event, Any, None]:
        began, groups = int(self.env.now), len(parts)
        for number in range(1, groups):
            yield self.env.timeout(began + takes_ps * number // groups - int(self.env.now))
            if self.aborted or self._open is not parts:
                return
            self._release(1)

    def _release(self, count: int) -> None:
        for _ in range(count):
            self._start(self._open.pop(0), -(-self._piece_tokens // self._groups))

    def _chunk(self, sequence: Sequence) -> None:
        if not self.aborted:
            self._release(len(self._open))
        self._open = []
        super()._chunk(sequence)
