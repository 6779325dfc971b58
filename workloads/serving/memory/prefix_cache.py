# SPDX-License-Identifier: Apache-2.0
"""Prefixes that prompts have in common, found by the chained hashes of their blocks.

As in vLLM: only whole blocks are remembered, the last token of a prompt is always computed, a
block that nobody holds stays until its room is needed, and the one that was dropped longest ago
goes first, the end of a prefix before its beginning. Two sequences that compute the same block at
the same time each keep their own.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from railweave.workloads.serving.memory import KvMemory
    from railweave.workloads.serving.sequence import Sequence

__all__ = ["PrefixCache"]


class PrefixCache:
    """The remembered blocks of one replica.

    Parameters
    ----------
    hash_tokens
        Tokens that one id stands for.
    per_id
        KV blocks of so many tokens.
    bounded
        Whether what is remembered takes room of the KV memory. If not, nothing is ever forgotten,
        and a sequence takes its own blocks for what it finds: the most that a cache can give.

    Attributes
    ----------
    evicted
        Ids that had to be forgotten.
    """

    def __init__(self, hash_tokens: int, per_id: int, *, bounded: bool = True) -> None:
        self.hash_tokens = hash_tokens
        self.per_id = per_id
        self.bounded = bounded
        self.evicted = 0
        self._holders: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def ids(self) -> Iterable[int]:
        """Return the ids that are remembered."""
        return self._holders

    def leading(self, hash_ids: tuple[int, ...], prompt: int) -> int:
        """Return how many tokens of a prompt with these ids could be found here."""
        known = sum(1 for _ in takewhile(self._holders.__contains__, hash_ids))
        return min(known, (prompt - 1) // self.hash_tokens) * self.hash_tokens

    def found(self, sequence: Sequence) -> int:
        """Return how many tokens of a sequence's prompt can be found here."""
        request = sequence.request
        return self.leading(request.hash_ids, request.prompt_tokens)

    def blocks_held(self, sequence: Sequence) -> int:
        """Return the KV blocks that a sequence shares here."""
        return len(sequence.nodes) * self.per_id if self.bounded else 0

    def hold(self, sequence: Sequence, tokens: int, memory: KvMemory) -> None:
        """Let a sequence hold the ids of its first so many tokens."""
        sequence.noted = tokens // self.hash_tokens
        if not self.bounded:
            return
        for one in sequence.request.hash_ids[: tokens // self.hash_tokens]:
            if not self._holders[one]:
                del self._idle[one]
                memory.give(self.per_id)
            self._holders[one] += 1
            sequence.nodes.append(one)

    def note(self, sequence: Sequence) -> None:
        """Remember the whole blocks of a prompt that have been computed."""
        request = sequence.request
        whole = min(sequence.computed, request.prompt_tokens) // self.hash_tokens
        for one in request.hash_ids[sequence.noted : whole]:
            if one in self._holders:
                continue  # somebody else was faster, and this sequence keeps its own
            self._holders[one] = 1
            if self.bounded:
                sequence.nodes.append(one)
                sequence.blocks -= self.per_id
        sequence.noted = max(sequence.noted, whole)

    def drop(self, sequence: Sequence, memory: KvMemory) -> None:
        """Let a sequence hold nothing more; what nobody holds is remembered while there is room."""
        for one in reversed(sequence.nodes):
            self._holders[one] -= 1
            if not self._holders[one]:
                self._idle[one] = None
                memory.give(-self.per_id)
        sequence.nodes.clear()
        sequence.noted = 0

    def make_room(self, memory: KvMemory) -> None:
        """Forget until what is remembered and what is held fit together."""
        while self._idle and memory.held + len(self._idle) * self.per_id > memory.blocks:
            one, _ = self._idle.popitem(last=False)
            del self._holders[one]
            self.evicted += 1

    def clear(self) -> None:
        """Forget everything; nobody may hold anything."""
        self._holders.clear()
        self._idle.clear()
