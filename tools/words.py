# SPDX-License-Identifier: Apache-2.0
"""Rates, times and bytes in words, for people."""

from __future__ import annotations

from typing import Final

from railweave.fabric.units import format_rate

__all__ = ["shown_bytes", "shown_rate", "shown_time"]

_TIMES: Final = (("s", 10**12), ("ms", 10**9), ("us", 10**6), ("ns", 10**3), ("ps", 1))
_BYTES: Final = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3), ("B", 1))


def shown_rate(rate_bps: int) -> str:
    """Return a rate as a person writes it: ``400 Gbps``."""
    text = format_rate(rate_bps)
    digits = len(text.rstrip("bpskMGTP"))
    return f"{text[:digits]} {text[digits:]}"


def shown_time(time_ps: int | None) -> str:
    """Write a time for reading: four digits.

    Examples
    --------
    >>> shown_time(1_761_280_000), shown_time(None)
    ('1.761 ms', '-')
    """
    return "-" if time_ps is None else _scaled(time_ps, _TIMES)


def shown_bytes(size: int) -> str:
    """Write bytes for reading: four digits, in decimal units.

    Examples
    --------
    >>> shown_bytes(2_139_152), shown_bytes(0)
    ('2.139 MB', '0 B')
    """
    return _scaled(size, _BYTES)


def _scaled(value: int, units: tuple[tuple[str, int], ...]) -> str:
    for unit, factor in units:
        if value >= factor:
            number = f"{value / factor:.4g}" if value < 9999 * factor else str(value // factor)
            return f"{number} {unit}"
    return f"0 {units[-1][0]}"
