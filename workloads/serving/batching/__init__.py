# SPDX-License-Identifier: Apache-2.0
"""What a replica computes in its next step. A new way to choose is one module of this package."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Final

from railweave.fabric.registry import Registry

if TYPE_CHECKING:
    from railweave.workloads.serving.memory import KvMemory
    from railweave.workloads.serving.sequence import Sequence

__all__ = ["BATCHINGS", "Batching", "Step", "batching"]

Step = list[tuple["Sequence", int]]
"""Sequences, and the tokens of each that a step computes."""


class Batching(ABC):
    """Chooses the sequences of each step of one replica.

    Parameters
    ----------
    memory
        The replica's blocks.
    max_num_seqs
        Most sequences at once.
    max_tokens
        Most tokens of a step.
    chunked
        Whether a prompt may be divided over steps.

    Attributes
    ----------
    waiting, running
        Sequences that have not begun, in order, and those that have.
    reserved
        Seats that are taken by sequences on their way here.
    ready
        Sequences that may join and have not.
    short
        Whether a sequence is kept waiting for blocks.
    preempted
        Sequences that the last step took the blocks of.
    """

    def __init__(
        self,
        memory: KvMemory,
        *,
        max_num_seqs: int,
        max_tokens: int,
        chunked: bool = True,
    ) -> None:
        self.memory = memory
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.max_num_seqs, self.max_tokens, self.chunked = max_num_seqs, max_tokens, chunked
        self.reserved = 0
        self.short = False
        self.ready: list[Sequence] = []
        self.preempted: list[Sequence] = []

    @abstractmethod
    def plan(self) -> Step:
        """Return the next step; empty when there is nothing to do."""

    def join(self, sequence: Sequence) -> None:
        """Let a sequence begin whose blocks and cache are there already."""
        self.running.append(sequence)

    def clear(self) -> None:
        """Drop all sequences."""
        self.waiting.clear()
        self.running.clear()
        self.ready.clear()
        self.reserved = 0
        self.short = False

    def _admit(self, step: Step, budget: int) -> None:
        """Let waiting sequences begin, in order, while there are tokens, seats and blocks."""
        self.short = False
        while self.waiting and len(self.running) + self.reserved < self.max_num_seqs:
            sequence = self.waiting[0]
            found = self.memory.match(sequence)
            tokens = sequence.length - found
            if tokens > budget:
                if not self.chunked and step:
                    return
                tokens = budget if self.chunked else tokens  # what is too long goes alone
            if not tokens:
                return
            if not self.memory.admit(sequence, found + tokens):
                self.short = True
                return
            self.waiting.popleft()
            self.running.append(sequence)
            step.append((sequence, tokens))
            budget = max(budget - tokens, 0)

    def _preempt(self, sequence: Sequence) -> None:
        """Take the blocks of a running sequence: what was computed is to be computed again."""
        self.running.remove(sequence)
        self.memory.release(sequence)
        sequence.computed = sequence.scheduled = 0
        sequence.preempted += 1
        self.waiting.appendleft(sequence)
        self.preempted.append(sequence)


BATCHINGS: Final[Registry[type[Batching]]] = Registry(
    "batching", package="railweave.workloads.serving.batching"
)
batching = BATCHINGS
"""The decorator that registers a way to choose: ``@batching("name")``."""
