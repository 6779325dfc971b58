# SPDX-License-Identifier: Apache-2.0
"""Counts and rates in words, for people."""

from __future__ import annotations

from railweave.fabric.units import format_rate

__all__ = ["plural", "shown_rate"]


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


def shown_rate(rate_bps: int) -> str:
    """Return a rate as a person writes it: ``400 Gbps``."""
    text = format_rate(rate_bps)
    digits = len(text.rstrip("bpskMGTP"))
    return f"{text[:digits]} {text[digits:]}"
