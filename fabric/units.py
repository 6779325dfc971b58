# SPDX-License-Identifier: Apache-2.0
"""Rates, sizes, times and lengths: text in, exact integers out, and back.

Everything inside railweave is an integer: rates in bit/s, sizes in bytes, times in picoseconds,
lengths in millimetres. ``b`` is a bit and ``B`` a byte, always; ``k M G T`` are powers of 1000 and
``Ki Mi Gi Ti`` powers of 1024 (IEC 80000-13). A bare number is refused: it has no unit.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from railweave.fabric.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "PS_PER_S",
    "format_length",
    "format_rate",
    "format_size",
    "format_time",
    "parse_flops",
    "parse_length_mm",
    "parse_power_mw",
    "parse_rate_bps",
    "parse_size_bytes",
    "parse_time_ps",
]

PS_PER_S: Final = 10**12
_INT64_MAX: Final = 2**63 - 1

_DECIMAL: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_PREFIX: Final = {**_DECIMAL, **_BINARY}

_SIZE: Final = {f"{p}B": f for p, f in _PREFIX.items()} | {"KB": 10**3}
_RATE: Final = (
    {f"{p}{u}": f for p, f in _PREFIX.items() for u in ("bps", "b/s", "bit/s")}
    | {f"{p}{u}": 8 * f for p, f in _PREFIX.items() for u in ("Bps", "B/s")}
    | {"Kbps": 10**3}
)
_TIME: Final = {
    "ps": 1,
    "ns": 10**3,
    "us": 10**6,
    "µs": 10**6,
    "μs": 10**6,
    "ms": 10**9,
    "s": 10**12,
    "min": 60 * 10**12,
    "h": 3600 * 10**12,
}
_LENGTH: Final = {"mm": 1, "cm": 10, "m": 1000, "km": 10**6}
_POWER: Final = {"mW": 1, "W": 1000, "kW": 10**6, "MW": 10**9}
_FLOPS: Final = {f"{p}FLOP/s": f for p, f in _DECIMAL.items()}

_QUANTITY: Final = re.compile(r"([+-]?)([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-zµμ/]*)")


def _parse(text: object, units: Mapping[str, int], *, what: str, example: str, base: str) -> int:
    expected = f"a {what} with its unit, such as {example}"
    if not isinstance(text, str):
        raise InputError(f"{text!r} has no unit", expected=expected)
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise InputError(f"'{text}' is not a {what}", expected=expected)
    sign, number, unit = match.groups()
    if sign == "-":
        raise InputError(f"'{text}' is negative", expected=f"a {what} of zero or more")
    if not unit:
        raise InputError(f"'{text}' has no unit", expected=expected)
    if unit not in units:
        near = next((u for u in units if u.lower() == unit.lower()), None)
        raise InputError(f"'{unit}' is not a unit of {what}", expected=expected, nearest=near)
    value = Fraction(number) * units[unit]
    if value.denominator != 1:
        raise InputError(f"'{text}' is not a whole number of {base}", expected=f"whole {base}")
    if value > _INT64_MAX:
        raise InputError(f"'{text}' is too large", expected=f"at most {_INT64_MAX} {base}")
    return int(value)


def parse_rate_bps(text: object) -> int:
    """Parse a rate into bit/s.

    Examples
    --------
    >>> parse_rate_bps("400Gbps"), parse_rate_bps("50GB/s")
    (400000000000, 400000000000)

    Raises
    ------
    InputError
        No unit, an unknown unit, a negative or a fractional number of bit/s.
    """
    return _parse(text, _RATE, what="rate", example="400Gbps or 50GB/s", base="bit/s")


def parse_size_bytes(text: object) -> int:
    """Parse a size into bytes.

    Examples
    --------
    >>> parse_size_bytes("64MiB"), parse_size_bytes("1.5kB")
    (67108864, 1500)

    Raises
    ------
    InputError
        No unit, an unknown unit, a negative or a fractional number of bytes.
    """
    return _parse(text, _SIZE, what="size", example="64MiB or 4096B", base="bytes")


def parse_time_ps(text: object) -> int:
    """Parse a duration into picoseconds.

    Examples
    --------
    >>> parse_time_ps("600ns"), parse_time_ps("1.5us")
    (600000, 1500000)

    Raises
    ------
    InputError
        No unit, an unknown unit, a negative or a fractional number of picoseconds.
    """
    return _parse(text, _TIME, what="time", example="600ns or 2ms", base="picoseconds")


def parse_length_mm(text: object) -> int:
    """Parse a length into millimetres.

    Examples
    --------
    >>> parse_length_mm("30m"), parse_length_mm("0.5m")
    (30000, 500)

    Raises
    ------
    InputError
        No unit, an unknown unit, a negative or a fractional number of millimetres.
    """
    return _parse(text, _LENGTH, what="length", example="30m", base="millimetres")


def parse_power_mw(text: object) -> int:
    """Parse a power into milliwatts.

    Examples
    --------
    >>> parse_power_mw("14.3kW"), parse_power_mw("8.5W")
    (14300000, 8500)

    Raises
    ------
    InputError
        No unit, an unknown unit, a negative or a fractional number of milliwatts.
    """
    return _parse(text, _POWER, what="power", example="940W", base="milliwatts")


def parse_flops(text: object) -> int:
    """Parse a rate of arithmetic into floating-point operations per second.

    Examples
    --------
    >>> parse_flops("989TFLOP/s")
    989000000000000

    Raises
    ------
    InputError
        No unit, an unknown unit, a negative or a fractional number of operations.
    """
    return _parse(text, _FLOPS, what="arithmetic rate", example="989TFLOP/s", base="FLOP/s")


def _format(value: int, units: Mapping[str, int]) -> str:
    """Write ``value`` in the largest unit that shows it exactly in at most three decimals."""
    for unit, factor in sorted(units.items(), key=lambda item: -item[1]):
        if abs(value) >= factor and (value * 1000) % factor == 0:
            whole, rest = divmod(value * 1000 // factor, 1000)
            return f"{whole}.{rest:03d}".rstrip("0").rstrip(".") + unit
    base = next(unit for unit, factor in units.items() if factor == 1)
    return f"{value}{base}"


def format_rate(rate_bps: int) -> str:
    """Write a rate so that `parse_rate_bps` gives it back exactly.

    Examples
    --------
    >>> format_rate(400 * 10**9)
    '400Gbps'
    """
    return _format(rate_bps, {f"{p}bps": f for p, f in _DECIMAL.items()})


def format_size(size_bytes: int) -> str:
    """Write a size so that `parse_size_bytes` gives it back exactly (binary units).

    Examples
    --------
    >>> format_size(64 * 2**20), format_size(1500)
    ('64MiB', '1500B')
    """
    return _format(size_bytes, {"B": 1, **{f"{p}B": f for p, f in _BINARY.items()}})


def format_time(time_ps: int) -> str:
    """Write a duration so that `parse_time_ps` gives it back exactly.

    Examples
    --------
    >>> format_time(1_500_000), format_time(2 * 10**12)
    ('1.5us', '2s')
    """
    return _format(time_ps, {u: f for u, f in _TIME.items() if u in ("ps", "ns", "us", "ms", "s")})


def format_length(length_mm: int) -> str:
    """Write a length so that `parse_length_mm` gives it back exactly.

    Examples
    --------
    >>> format_length(30_000)
    '30m'
    """
    return _format(length_mm, {u: f for u, f in _LENGTH.items() if u != "cm"})
