# SPDX-License-Identifier: Apache-2.0
"""Rates in words, for people."""

from __future__ import annotations

from railweave.fabric.units import format_rate

__all__ = ["shown_rate"]


def shown_rate(rate_bps: int) -> str:
    """Return a rate as a person writes it: ``400 Gbps``."""
    text = format_rate(rate_bps)
    digits = len(text.rstrip("bpskMGTP"))
    return f"{text[:digits]} {text[digits:]}"
