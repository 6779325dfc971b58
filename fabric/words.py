# SPDX-License-Identifier: Apache-2.0
"""Counts in words, for people."""

from __future__ import annotations

__all__ = ["plural"]


def plural(count: int, noun: str) -> str:
    """Return ``1 host`` or ``32 hosts``; ``switch`` takes ``es``, ``leaf`` becomes ``leaves``.

    Examples
    --------
    >>> plural(1, "leaf"), plural(1024, "leaf"), plural(2, "leaf switch")
    ('1 leaf', '1,024 leaves', '2 leaf switches')
    """
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("leaf"):
        return f"{count:,} {noun[:-1]}ves"
    return f"{count:,} {noun}{'es' if noun.endswith('h') else 's'}"
