# SPDX-License-Identifier: Apache-2.0
"""What one step of a model computes: new tokens, and the cache that they attend to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["StepLoad"]

_ALL: Final = 2**62


@dataclass(frozen=True)
class StepLoad:
    """What one step computes.

    Parameters
    ----------
    sequences
        For each sequence in the step: new tokens, and tokens that its cache already holds.
    rows
        Sequences that need logits; default every sequence.
    """

    sequences: tuple[tuple[int, int], ...]
    rows: int | None = None

    @classmethod
    def prefill(cls, tokens: int, *, cached: int = 0) -> StepLoad:
        """Return the load of one prompt."""
        return cls(((tokens, cached),))

    @classmethod
    def decode(cls, contexts: Iterable[int]) -> StepLoad:
        """Return the load of one new token for each sequence, given its cached tokens."""
        return cls(tuple((1, context) for context in contexts))

    @cached_property
    def tokens(self) -> int:
        """New tokens of the step."""
        return sum(new for new, _ in self.sequences)

    @property
    def logits_rows(self) -> int:
        """Sequences that need logits."""
        return len(self.sequences) if self.rows is None else self.rows

    def attended(
        self, window: int | None, *, single: bool | None = None, chunked: bool = False
    ) -> int:
        """Return the (new token, attended position) pairs under causal attention.

        Parameters
        ----------
        window
            Width of a sliding window or of a chunk in tokens, or None.
        single
            Count only sequences with one new token (True), with several (False), or all (None).
        chunked
            Whether the window is a fixed chunk of which a token sees what came before it.
        """
        sequences = [pair for pair in self.sequences if single is None or single == (pair[0] == 1)]
        if chunked and window is not None:
            return sum(
                _within_chunks(new + cached, window) - _within_chunks(cached, window)
                for new, cached in sequences
            )
        width = _ALL if window is None else window
        return sum(_pairs(new, cached, width) for new, cached in sequences)

    def cached(self, window: int | None, *, single: bool = False, chunked: bool = False) -> int:
        """Return the positions whose cache is read or written, each once.

        Parameters
        ----------
        window
            Width of a sliding window or of a chunk in tokens, or None.
        single
            Let the window bound sequences with one new token only: several tokens together
            attend to all positions, each to others (sparse attention).
        chunked
            Whether the window is a fixed chunk.
        """
        if window is None:
            return sum(new + cached for new, cached in self.sequences)
        if chunked:
            return sum(new + cached % window for new, cached in self.sequences)
        return sum(
            new + (cached if single and new > 1 else min(cached, window))
            for new, cached in self.sequences
        )


def _pairs(new: int, cached: int, width: int) -> int:
    """Sum ``min(cached + i, width)`` over the new tokens i = 1..new."""
    growing = min(max(width - cached, 0), new)
    return growing * cached + growing * (growing + 1) // 2 + (new - growing) * width


def _within_chunks(tokens: int, length: int) -> int:
    """Sum ``p mod length + 1`` over the positions p = 0..tokens-1."""
    whole, rest = divmod(tokens, length)
    return whole * (length * (length + 1) // 2) + rest * (rest + 1) // 2
