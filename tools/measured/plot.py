# SPDX-License-Identifier: Apache-2.0
"""Draws measured and predicted bus bandwidth over size, as SVG."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from html import escape
from typing import TYPE_CHECKING, Final

from railweave.collectives import busbw_factor
from railweave.tools.palette import INK, MUTED, rail_colour

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from railweave.tools.measured.judging import Comparison, Judged

__all__ = ["plot_svg"]

_WIDTH: Final = 520
_HEIGHT: Final = 320
_LEFT: Final = 62
_RIGHT: Final = 132
_TOP: Final = 34
_BOTTOM: Final = 40
_COLUMNS: Final = 2
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")
_COLOURS: Final = 8  # of `rail_colour`, before they begin again
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def plot_svg(judged: Sequence[Judged]) -> str:
    """Return a panel per data set: dots are measured, lines predicted, both axes logarithmic."""
    shown = [one for one in judged if one.rows]
    columns = min(_COLUMNS, max(1, len(shown)))
    lines = -(-len(shown) // columns)
    width, height = columns * _WIDTH, max(1, lines) * _HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" font-size="11" '
        f'fill="{INK}">',
        "<title>Bus bandwidth over size: dots measured, lines predicted</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, one in enumerate(shown):
        x, y = number % columns * _WIDTH, number // columns * _HEIGHT
        parts.append(f'<g transform="translate({x} {y})">')
        parts += _panel(one)
        parts.append("</g>")
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _text(words: str) -> str:
    """Return text as XML may hold it: no markup, no control characters."""
    return escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", words), quote=True)


def _panel(one: Judged) -> Iterator[str]:
    curves: dict[str, list[Comparison]] = defaultdict(list)
    for found in one.rows:
        told = "" if found.row.algorithm == "auto" else f" {found.row.algorithm}"
        curves[found.row.op + told].append(found)
    rates = [
        _rate(one, found, time)
        for found in one.rows
        for time in (found.row.time_us, found.predicted_us)
    ]
    sizes = [found.row.size_bytes for found in one.rows]
    across = _scale(min(sizes), max(sizes), _LEFT, _WIDTH - _RIGHT)
    ticks = _ticks(min(rates), max(rates))
    down = _scale(ticks[0], ticks[-1], _HEIGHT - _BOTTOM, _TOP)
    title = f"{one.data.name}  ({one.data.nodes} x {one.data.gpus_per_node}, {one.profile})"
    short = title if len(title) <= 76 else f"{title[:75]}\N{HORIZONTAL ELLIPSIS}"
    yield f'<text x="{_LEFT}" y="18" font-weight="600">{_text(short)}</text>'
    yield from _axes(min(sizes), max(sizes), ticks, across, down)
    for k, (name, curve) in enumerate(sorted(curves.items())):
        colour = rail_colour(k)
        curve.sort(key=lambda found: found.row.size_bytes)
        points = [(across(c.row.size_bytes), down(_rate(one, c, c.predicted_us))) for c in curve]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashes = ' stroke-dasharray="5 3"' if k // _COLOURS % 2 else ""
        stroke = f'fill="none" stroke="{colour}" stroke-width="1.5"{dashes}'
        yield f'<polyline points="{path}" {stroke}/>'
        if len(points) == 1:  # no line to see: a square
            x, y = points[0]
            yield f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" {stroke}/>'
        for c in curve:
            x, y = across(c.row.size_bytes), down(_rate(one, c, c.row.time_us))
            times = f"{c.row.time_us:.4g} us, predicted {c.predicted_us:.4g} us"
            tip = f"{name} {c.row.size_bytes} B: {times}"
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colour}">'
            yield f"<title>{_text(tip)}</title></circle>"
        y = _TOP + 10 + 15 * k
        x = _WIDTH - _RIGHT + 14
        yield f'<circle cx="{x}" cy="{y - 4}" r="3.2" fill="{colour}"/>'
        yield f'<text x="{x + 8}" y="{y}">{_text(name[:20])}</text>'


def _ticks(low: float, high: float) -> list[float]:
    """Return round values that span a range: powers of ten, or 1, 2 and 5 of them if short.

    Examples
    --------
    >>> _ticks(3, 60), _ticks(0.002, 150)
    ([2.0, 5.0, 10.0, 20.0, 50.0, 100.0], [0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0])
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 2)
    steps = (1, 2, 5) if high / low < 200 else (1,)
    every = [float(f"{step}e{power}") for power in powers for step in steps]
    first = max(k for k, tick in enumerate(every) if tick <= low or k == 0)
    last = min(k for k, tick in enumerate(every) if tick >= high)
    return every[first : max(last, first + 1) + 1]


def _rate(one: Judged, found: Comparison, time_us: float) -> float:
    """Return the bus bandwidth in GB/s."""
    ranks = max(2, one.data.ranks)
    factor = 1.0 if found.row.op == "rdma_write" else busbw_factor(found.row.op, ranks)
    return found.row.size_bytes * factor / time_us / 1e3


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Return what places a value on a logarithmic axis."""
    a, b = math.log(low), math.log(high)
    if b - a < 1e-9:
        return lambda _: (start + end) / 2
    return lambda value: start + (math.log(value) - a) / (b - a) * (end - start)


def _axes(
    low: float,
    high: float,
    ticks: Sequence[float],
    across: Callable[[float], float],
    down: Callable[[float], float],
) -> Iterator[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    grid = f'stroke="{MUTED}" stroke-opacity="0.25"'
    powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
    step = max(1, -(-len(powers) // 7))
    for power in list(powers)[::step]:
        x = across(2.0**power)
        label = f"{2 ** (power % 10)} {_UNITS[power // 10]}"
        yield f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}" {grid}/>'
        yield f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{label}</text>'
    for tick in ticks:
        y = down(tick)
        yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" {grid}/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
    middle = (_TOP + bottom) / 2
    yield (
        f'<rect x="{_LEFT}" y="{_TOP}" width="{right - _LEFT}" height="{bottom - _TOP}" '
        f'fill="none" stroke="{MUTED}"/>'
    )
    yield f'<text x="{(_LEFT + right) / 2}" y="{bottom + 30}" text-anchor="middle">size</text>'
    yield (
        f'<text x="16" y="{middle}" text-anchor="middle" transform="rotate(-90 16 {middle})">'
        "busbw GB/s</text>"
    )
