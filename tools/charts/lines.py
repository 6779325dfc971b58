# SPDX-License-Identifier: Apache-2.0
"""Charts of lines: bus bandwidth over size, and the distribution of times."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from railweave.tools.charts.axes import Frame, Scale, legend, size_text, time_text
from railweave.tools.charts.canvas import Canvas
from railweave.tools.palette import MUTED, rail_colour

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

__all__ = ["busbw_chart", "cdf_chart"]

_WIDTH, _HEIGHT = 620.0, 340.0
_LEFT, _RIGHT, _BOTTOM = 70.0, 24.0, 48.0
_POINTS: Final = 240
_SHOWN: Final = 8


def busbw_chart(
    series: Mapping[str, Sequence[Mapping[str, Any]]], *, title: str = "Bus bandwidth"
) -> Canvas | None:
    """Draw bus bandwidth over size, a line for each series, and its bound as a dashed one.

    Bus bandwidth as nccl-tests defines it (doc/PERFORMANCE.md of github.com/NVIDIA/nccl-tests);
    the bound is that of the lower bound of the time.

    Parameters
    ----------
    series
        Name -> rows with ``size_bytes``, ``busbw_GBps``, ``time_ps``, ``bound_ps``; None if there
        is nothing to draw.
    """
    drawn = {name: _by_size(rows) for name, rows in series.items()}
    drawn = {name: points for name, points in list(drawn.items())[:_SHOWN] if points}
    if not drawn:
        return None
    sizes = sorted({size for points in drawn.values() for size, _, _ in points})
    high = max(max(bw, bound) for points in drawn.values() for _, bw, bound in points)
    canvas = Canvas(_WIDTH, _HEIGHT, title=title)
    canvas.text(14, 22, title, size=14, bold=True)
    entries = [(name, rail_colour(i)) for i, name in enumerate(drawn)]
    top = legend(canvas, [*entries, ("dashed: bound", MUTED)], x=14, y=44, right=_WIDTH - 14) + 16
    wide = sizes[0] < sizes[-1]
    x = Scale(
        low=sizes[0] if wide else sizes[0] / 2,
        high=sizes[-1] if wide else sizes[0] * 2,
        start=_LEFT,
        end=_WIDTH - _RIGHT,
        log=True,
    )
    y = Scale(low=0, high=high * 1.06 or 1, start=_HEIGHT - _BOTTOM, end=top)
    frame = Frame(canvas, x, y)
    frame.x_axis("size", lambda value: size_text(int(value)), sizes)
    frame.y_axis("GB/s", lambda value: f"{value:g}")
    for i, (name, points) in enumerate(drawn.items()):
        colour = rail_colour(i)
        bounds = [(x.at(size), y.at(bound)) for size, _, bound in points]
        canvas.line(bounds, colour=colour, dashed=True)
        canvas.line([(x.at(size), y.at(bw)) for size, bw, _ in points], colour=colour, width=2)
        for size, bw, bound in points:
            tip = f"{name}, {size_text(size)}: {bw:.2f} GB/s, at most {bound:.2f}"
            canvas.dot(x.at(size), y.at(bw), colour=colour, tip=tip)
    return canvas


def _by_size(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, float, float]]:
    """Return size, bus bandwidth and its bound of each row, by size."""
    points = []
    for row in rows:
        size, bw = int(row["size_bytes"]), float(row["busbw_GBps"])
        if size > 0 and row["bound_ps"]:
            points.append((size, bw, bw * row["time_ps"] / row["bound_ps"]))
    return sorted(points)


def cdf_chart(
    series: Mapping[str, Sequence[int]],
    *,
    title: str = "Flow completion times",
    bounds: Mapping[str, Sequence[int]] | None = None,
    colours: Mapping[str, str] | None = None,
) -> Canvas | None:
    """Draw the share of times up to each time, a line per series, on a logarithmic axis.

    Parameters
    ----------
    series
        Name -> times in ps; those of 0 are left out; None if there is nothing to draw.
    bounds
        Name -> lower bounds in ps of the same things, drawn dashed.
    colours
        Name -> colour; others take those of rails, in their order.
    """
    drawn = {name: sorted(t for t in times if t > 0) for name, times in series.items()}
    drawn = {name: times for name, times in list(drawn.items())[:_SHOWN] if times}
    if not drawn:
        return None
    least = {name: sorted(t for t in (bounds or {}).get(name, ()) if t > 0) for name in drawn}
    every = [t for times in (*drawn.values(), *least.values()) for t in (times[:1] + times[-1:])]
    low, high = float(min(every)), float(max(every))
    if high < 1.5 * low:
        low, high = low / 1.3, high * 1.3
    canvas = Canvas(_WIDTH, _HEIGHT, title=title)
    canvas.text(14, 22, title, size=14, bold=True)
    of = {name: (colours or {}).get(name, rail_colour(i)) for i, name in enumerate(drawn)}
    entries = [(f"{name} ({len(drawn[name]):,})", of[name]) for name in drawn]
    if any(least.values()):
        entries.append(("dashed: lower bound of each", MUTED))
    top = legend(canvas, entries, x=14, y=44, right=_WIDTH - 14) + 16
    x = Scale(low=low, high=high, start=_LEFT, end=_WIDTH - _RIGHT, log=True)
    y = Scale(low=0, high=1, start=_HEIGHT - _BOTTOM, end=top)
    frame = Frame(canvas, x, y)
    frame.x_axis("time", time_text)
    frame.y_axis("share", lambda value: f"{100 * value:.0f} %")
    for name in drawn:
        if least[name]:
            canvas.line(_steps(least[name], x, y), colour=of[name], dashed=True)
        canvas.line(_steps(drawn[name], x, y), colour=of[name], width=2)
    return canvas


def _steps(times: Sequence[int], x: Scale, y: Scale) -> list[tuple[float, float]]:
    """Return the corners of a distribution: a step up at each time, at most `_POINTS` of them."""
    count = len(times)
    ranks = sorted(
        {math.ceil((i + 1) * count / _POINTS) for i in range(min(_POINTS, count))}
        if count > _POINTS
        else set(range(1, count + 1))
    )
    points = [(x.at(times[0]), y.at(0))]
    for rank in ranks:
        at = x.at(times[rank - 1])
        points += [(at, points[-1][1]), (at, y.at(rank / count))]
    return points
