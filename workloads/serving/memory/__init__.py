# SPDX-License-Identifier: Apache-2.0
"""KV memory of a replica: who holds which blocks. A new way to give them is one module here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from railweave.fabric.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from railweave.workloads.serving.memory.prefix_cache import PrefixCache
    from railweave.workloads.serving.sequence import Sequence

__all__ = ["MEMORIES", "KvMemory", "memory"]


class KvMemory(ABC):
    """The blocks of one replica.

    Parameters
    ----------
    blocks
        How many there are.
    block_tokens
        Tokens of a block.
    longest
        Most tokens of a sequence.
    cache
        Remembers the prefixes of prompts, or None.
    clock
        Returns the time in ps.

    Attributes
    ----------
    held, most
        Blocks of sequences, each counted once, and the most that they were so far.
    taken, returned
        Blocks given to and taken back from sequences so far.
    """

    def __init__(
        self,
        blocks: int,
        block_tokens: int,
        *,
        longest: int,
        cache: PrefixCache | None = None,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.longest = longest
        self.cache = cache
        self.clock = clock
        self.held = self.most = 0
        self.taken = self.returned = 0
        self._given_ps = 0  # blocks given times when, less blocks given back times when

    def blocks_of(self, tokens: int) -> int:
        """Return the blocks that so many tokens take."""
        return -(-tokens // self.block_tokens)

    @property
    def free_blocks(self) -> int:
        """Blocks that a sequence could have: those of nobody, and what is only remembered."""
        return self.blocks - self.held

    def least(self, tokens: int) -> int:
        """Return the blocks that a sequence which grows to so many tokens takes in the end."""
        return self.blocks_of(tokens)

    def match(self, sequence: Sequence) -> int:
        """Return how many tokens of the prompt are in the prefix cache."""
        return 0 if self.cache is None else self.cache.found(sequence)

    @abstractmethod
    def admit(self, sequence: Sequence, tokens: int) -> bool:
        """Give a new sequence blocks for so many tokens, found ones included, or nothing."""

    @abstractmethod
    def grow(self, sequence: Sequence, tokens: int, *, at_ps: int | None = None) -> bool:
        """Give a sequence blocks until it has them for so many tokens, or nothing.

        ``at_ps``: since when it has had them, if not from now on.
        """

    @abstractmethod
    def wanted(self, sequence: Sequence, tokens: int) -> int:
        """Return the blocks that a sequence lacks for so many tokens."""

    def note(self, sequence: Sequence) -> None:
        """Remember the whole blocks of the prompt that have been computed by now."""
        if self.cache is not None:
            self.cache.note(sequence)

    def release(self, sequence: Sequence) -> None:
        """Take the blocks of a sequence back."""
        self.give(-sequence.blocks)
        sequence.blocks = 0
        if self.cache is not None:
            self.cache.drop(sequence, self)

    def give(self, blocks: int, *, at_ps: int | None = None) -> None:
        """Count blocks that sequences get, or give back if negative, now or since ``at_ps``."""
        self.held += blocks
        self.most = max(self.most, self.held)
        self._given_ps += blocks * (self.clock() if at_ps is None else at_ps)
        if blocks > 0:
            self.taken += blocks
        else:
            self.returned -= blocks

    @property
    def held_ps(self) -> int:
        """Blocks held, integrated over time up to now, in block picoseconds."""
        return self.held * self.clock() - self._given_ps

    def forget(self) -> None:
        """Lose what is remembered, as a replica does that goes down."""
        if self.cache is not None:
            self.cache.clear()


MEMORIES: Final[Registry[type[KvMemory]]] = Registry(
    "KV memory", package="railweave.workloads.serving.memory"
)
memory = MEMORIES
"""The decorator that registers a way to give blocks: ``@memory("name")``."""
