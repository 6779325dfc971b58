# SPDX-License-Identifier: Apache-2.0
"""Counts and rates in words, for people."""

from __future__ import annotations

from railweave.fabric.units import format_rate

__all__ = ["plural", "shown_rate"]


def plural(count: int, noun: str) -> str:
    """Return ``1 host`` or ``32 hosts``; ``switch`` takes ``es``."""
    return (
        f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}{'es' * noun.endswith('h') or 's'}"
    )


def shown_rate(rate_bps: int) -> str:
    """Return a rate as a person writes it: ``400 Gbps``."""
    text = format_rate(rate_bps)
    digits = len(text.rstrip("bpskMGTP"))
    return f"{text[:digits]} {text[digits:]}"
