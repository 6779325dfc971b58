# SPDX-License-Identifier: Apache-2.0
"""Axes of charts: scales, ticks at round values, and the frame around a plot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from railweave.tools.charts.canvas import GRID, Canvas
from railweave.tools.palette import MUTED
from railweave.tools.scene import text_width

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Frame", "Scale", "legend", "size_text", "time_text", "time_unit"]

_UNITS: Final = ((10**12, "s"), (10**9, "ms"), (10**6, "us"), (10**3, "ns"), (1, "ps"))
_BINARY: Final = 1024
_ROUND: Final = (1.0, 2.0, 2.5, 5.0, 10.0)


def time_unit(most_ps: float) -> tuple[int, str]:
    """Return the ps in the unit that suits times up to ``most_ps``, and its name.

    Examples
    --------
    >>> time_unit(3_000_000)
    (1000000, 'us')
    """
    return next(((ps, name) for ps, name in _UNITS if most_ps >= ps), _UNITS[-1])


def time_text(time_ps: float) -> str:
    """Write a time with four digits: ``1.761 ms``."""
    ps, name = time_unit(time_ps)
    return f"{time_ps / ps:.4g} {name}"


def size_text(size_bytes: int) -> str:
    """Write a size in the largest binary unit that divides it, if it is short so, else decimal.

    Examples
    --------
    >>> size_text(64 << 20), size_text(1_500_000)
    ('64 MiB', '1.5 MB')
    """
    for power, name in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size_bytes % (1 << power) == 0 and 1 <= size_bytes >> power < _BINARY:
            return f"{size_bytes >> power} {name}"
    for amount, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size_bytes >= amount:
            return f"{size_bytes / amount:.4g} {name}"
    return f"{size_bytes} B"


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Values from ``low`` to ``high`` on pixels from ``start`` to ``end``; ``log`` above 0 only."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, self.low))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Return round values inside the scale, at most about ``most``."""
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.log10(self.high) + 1e-9
            decades = [10.0**power for power in range(first, math.floor(last) + 1)]
            if len(decades) >= 3:
                return decades[:: math.ceil(len(decades) / most)]
            steps = [d * m for d in (*decades, 10.0 ** (first - 1)) for m in (1, 2, 5)]
            found = [value for value in steps if self.low <= value <= self.high * (1 + 1e-9)]
            if len(found) >= 3:
                return sorted(found)
        span = self.high - self.low
        if span <= 0:
            return [self.low]
        power = 10.0 ** math.floor(math.log10(span / most))
        step = power * next(r for r in _ROUND if span / (power * r) <= most)
        first = math.ceil(self.low / step - 1e-9)
        return [step * i for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


class Frame:
    """The plot area of a chart with its two axes.

    Parameters
    ----------
    canvas
        Where it is drawn.
    x, y
        The scales; their pixels are the edges of the area.
    """

    def __init__(self, canvas: Canvas, x: Scale, y: Scale) -> None:
        self.canvas, self.x, self.y = canvas, x, y

    def x_axis(
        self, label: str, write: Callable[[float], str], ticks: Sequence[float] | None = None
    ) -> None:
        """Draw the lower axis with vertical grid lines."""
        canvas, top, bottom = self.canvas, self.y.end, self.y.start
        taken = -math.inf
        for value in self.x.ticks() if ticks is None else ticks:
            at, text = self.x.at(value), write(value)
            canvas.line([(at, top), (at, bottom)], colour=GRID, width=0.7)
            half = text_width(text, 10.5) / 2
            if at - half > taken + 6:
                canvas.text(at, bottom + 15, text, size=10.5, anchor="middle", colour=MUTED)
                taken = at + half
        middle = (self.x.start + self.x.end) / 2
        canvas.text(middle, bottom + 32, label, anchor="middle", colour=MUTED)

    def y_axis(self, label: str, write: Callable[[float], str]) -> None:
        """Draw the left axis with horizontal grid lines."""
        canvas, left, right = self.canvas, self.x.start, self.x.end
        widest = 0.0
        for value in self.y.ticks(5):
            at, text = self.y.at(value), write(value)
            canvas.line([(left, at), (right, at)], colour=GRID, width=0.7)
            canvas.text(left - 7, at + 3.6, text, size=10.5, anchor="end", colour=MUTED)
            widest = max(widest, text_width(text, 10.5))
        middle = (self.y.start + self.y.end) / 2
        canvas.text(left - widest - 18, middle, label, anchor="middle", colour=MUTED, turned=True)


def legend(
    canvas: Canvas, entries: Sequence[tuple[str, str]], *, x: float, y: float, right: float
) -> float:
    """Write names beside their colours from ``x`` to ``right``; return the last baseline."""
    at = x
    for name, colour in entries:
        needed = 16 + text_width(name, 10.5) + 14
        if at + needed > right and at > x:
            at, y = x, y + 16
        canvas.box(at, y - 8, 10, 10, colour=colour, radius=2)
        canvas.text(at + 15, y + 0.8, name, size=10.5)
        at += needed
    return y
