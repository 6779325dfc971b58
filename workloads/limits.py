# SPDX-License-Identifier: Apache-2.0
"""The largest counts that steps are worked out for.

They lie above what anybody runs and below what would take minutes or gigabytes, or would no longer
be counted exactly in 64 bits.
"""

from __future__ import annotations

from typing import Final

from railweave.fabric.errors import InputError

__all__ = [
    "MOST_DRAWN", "MOST_PASSES", "MOST_RANKS", "MOST_REQUESTS", "MOST_STEP_TOKENS",
    "MOST_TOKENS", "check_range",
]  # fmt: skip

MOST_RANKS: Final = 2**17
"""Ranks of a job: each is listed."""

MOST_TOKENS: Final = 2**24
"""Tokens of a sequence, and of a step of a replica: the bytes of all layers stay below 2^63."""

MOST_STEP_TOKENS: Final = 2**33
"""Tokens of a training step of a replica: what a rank sends in all layers stays below 2^63."""

MOST_REQUESTS: Final = 2**18
"""Requests of a step over all replicas: what each computes is added up."""

MOST_PASSES: Final = 2**17
"""Micro-batches x stages x chunks of a training step: each is a task of its own."""

MOST_DRAWN: Final = 2**28
"""Tokens of an expert-parallel group x experts: each token ranks each expert."""


def check_range(value: int, field: str, most: int, *, least: int = 0, what: str = "") -> None:
    """Raise `InputError` for a count that is out of range.

    Parameters
    ----------
    value, field
        The count and what it is called.
    least, most
        The range, both ends of it included.
    what
        What is counted.

    Examples
    --------
    >>> check_range(3, "tp", 8)
    >>> check_range(10**20, "tokens", 8, what="tokens")
    Traceback (most recent call last):
    railweave.fabric.errors.InputError: tokens: 100,000,000,000,000,000,000 is out of range; \
expected 0 to 8 tokens
    """
    if not least <= value <= most:
        raise InputError(
            f"{value:,} is out of range",
            field=field,
            expected=f"{least:,} to {most:,} {what}".rstrip(),
        )
