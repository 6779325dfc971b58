# SPDX-License-Identifier: Apache-2.0
"""Charts of blocks: link load over time as a heat map, and a Gantt chart of what ran when."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.tools.charts.axes import Frame, Scale, legend, time_text, time_unit
from railweave.tools.charts.canvas import GRID, Canvas
from railweave.tools.palette import MUTED, heat_class, ramp, ramp_place
from railweave.tools.scene import text_width

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["Bar", "gantt_chart", "heat_chart"]

_WIDTH: Final = 900.0
_ROW, _RIGHT, _BOTTOM = 14.0, 24.0, 48.0
_LABEL: Final = 250.0
_ROWS: Final = 40
_APART: Final = 0.5  # pixels: shorter bars of one kind are joined with what is as near


def heat_chart(
    names: Sequence[str],
    load: NDArray[np.float64],
    edges_ps: NDArray[np.int64],
    *,
    title: str = "Link load over time",
    rows: int = _ROWS,
) -> Canvas | None:
    """Draw the load of the busiest links over time: a row for all links that were loaded alike.

    Parameters
    ----------
    names
        Of the links.
    load
        float64 (links, intervals), 0 to 1.
    edges_ps
        int64 (intervals + 1,).
    rows
        At most this many rows, those with the highest load in any interval first.
    """
    if not load.size or not load.any():
        return None
    every, alike = _alike(load)
    order = np.lexsort((every, -load[every].mean(axis=1), -load[every].max(axis=1)))[:rows]
    shown = [
        str(names[link]) + (f" and {count - 1:,} alike" if count > 1 else "")
        for link, count in zip(every[order].tolist(), alike[order].tolist(), strict=True)
    ]
    left = _label_room(shown)
    top = 62.0
    height = top + _ROW * len(shown) + _BOTTOM
    canvas = Canvas(_WIDTH, height, title=title)
    canvas.text(14, 22, title, size=14, bold=True)
    drawn = int(alike[order].sum())
    more = f", {drawn:,} of {len(load):,} that carried anything" if drawn < len(load) else ""
    canvas.text(14, 42, f"share of the link's rate{more}", colour=MUTED)
    _ramp_legend(canvas, right=_WIDTH - _RIGHT, y=30)
    x = Scale(low=0, high=float(edges_ps[-1]) or 1, start=left, end=_WIDTH - _RIGHT)
    bottom = top + _ROW * len(shown)
    _time_axis(canvas, x, top=top, bottom=bottom)
    at = [x.at(float(edge)) for edge in edges_ps]
    for place, link in enumerate(every[order].tolist()):
        y = top + place * _ROW
        canvas.text(left - 6, y + 10.5, _fitted(shown[place], left), size=10, anchor="end")
        for first, last, value in _runs(load[link]):
            if value > 0:
                tip = (
                    f"{shown[place]}: {100 * value:.1f} %, {time_text(float(edges_ps[first]))} to "
                )
                tip += time_text(float(edges_ps[last]))
                width = max(at[last] - at[first], 0.4)
                canvas.box(
                    *(at[first], y + 1, width, _ROW - 2),
                    colour=ramp(value),
                    tip=tip,
                    mark=heat_class(value),
                )
    return canvas


def _alike(load: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first link and the size of each set that was loaded alike at all times.

    Alike to half a per cent; both int64 (sets,).
    """
    steps = np.rint(load * 200).astype(np.uint8)
    _, first, count = np.unique(steps, axis=0, return_index=True, return_counts=True)
    return first.astype(np.int64), count.astype(np.int64)


def _runs(values: NDArray[np.float64]) -> list[tuple[int, int, float]]:
    """Return first, last and value of the stretches of (to half a per cent) equal load."""
    steps = np.rint(values * 200)
    starts = [0, *(np.flatnonzero(np.diff(steps)) + 1).tolist(), len(values)]
    return [
        (first, last, float(values[first:last].mean()))
        for first, last in itertools.pairwise(starts)
    ]


def _ramp_legend(canvas: Canvas, *, right: float, y: float) -> None:
    left, width = right - 200, 200 / 40
    for i in range(40):
        share = ((i + 0.5) / 40) ** 2
        canvas.box(
            *(left + i * width, y - 9, width + 0.3, 9), colour=ramp(share), mark=heat_class(share)
        )
    for share in (0.0, 0.25, 0.5, 1.0):
        at = left + 200 * ramp_place(share)
        anchor = {0.0: "start", 1.0: "end"}.get(share, "middle")
        canvas.text(at, y + 12, f"{100 * share:.0f} %", size=10, anchor=anchor, colour=MUTED)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A stretch of time in a lane: its kind chooses the colour."""

    lane: str
    kind: str
    start_ps: int
    end_ps: int
    tip: str = ""


def gantt_chart(
    bars: Sequence[Bar],
    *,
    title: str,
    colours: Mapping[str, str],
    lanes: int = _ROWS,
    by_name: bool = False,
) -> Canvas | None:
    """Draw what ran when: a lane for each thing, a bar for each stretch.

    Parameters
    ----------
    bars
        In any order; lanes stand in the order of their first bars.
    colours
        Colour of each kind of bar.
    lanes
        At most this many; the chart says how many were left out.
    by_name
        Lanes stand in the order of their names instead, numbers by value.
    """
    if not bars:
        return None
    first: dict[str, int] = {}
    for bar in bars:
        first[bar.lane] = min(first.get(bar.lane, bar.start_ps), bar.start_ps)
    order = sorted(first, key=_natural if by_name else lambda lane: first[lane])[:lanes]
    place = {lane: i for i, lane in enumerate(order)}
    shown = [bar for bar in bars if bar.lane in place]
    left = _label_room(order)
    canvas = Canvas(_WIDTH, 0, title=title)
    canvas.text(14, 22, title, size=14, bold=True)
    kinds = [kind for kind in colours if any(bar.kind == kind for bar in shown)]
    entries = [(kind or "no class", colours[kind]) for kind in kinds]
    top = legend(canvas, entries, x=14, y=44, right=_WIDTH - 14) + 14
    bottom = top + _ROW * len(order)
    low, high = min(bar.start_ps for bar in shown), max(bar.end_ps for bar in shown)
    x = Scale(low=min(low, 0), high=max(high, 1), start=left, end=_WIDTH - _RIGHT)
    _time_axis(canvas, x, top=top, bottom=bottom)
    for lane, i in place.items():
        canvas.text(left - 6, top + i * _ROW + 10.5, _fitted(lane, left), size=10, anchor="end")
    for bar in _joined(shown, shortest_ps=(x.high - x.low) / (x.end - x.start) * _APART):
        start = x.at(bar.start_ps)
        width = max(x.at(bar.end_ps) - start, 0.6)
        y = top + place[bar.lane] * _ROW
        tip = bar.tip or f"{bar.lane}, {bar.kind}: {time_text(bar.end_ps - bar.start_ps)}"
        canvas.box(start, y + 2, width, _ROW - 4, colour=colours[bar.kind], tip=tip)
    canvas.height = bottom + _BOTTOM
    if len(first) > len(order):
        left_out = f"{len(first) - len(order):,} more are not drawn"
        canvas.text(_WIDTH - _RIGHT, 22, left_out, anchor="end", colour=MUTED)
    return canvas


def _joined(bars: Sequence[Bar], *, shortest_ps: float) -> list[Bar]:
    """Return bars with those of one kind in a lane joined where nobody could see them apart."""
    found: list[Bar] = []
    joined: dict[tuple[str, str], int] = {}
    for bar in sorted(bars, key=lambda bar: (bar.start_ps, bar.end_ps)):
        at = joined.get((bar.lane, bar.kind))
        last = found[at] if at is not None else None
        brief = bar.end_ps - bar.start_ps < shortest_ps
        if at is not None and last and brief and bar.start_ps - last.end_ps < shortest_ps:
            end_ps = max(last.end_ps, bar.end_ps)
            found[at] = replace(last, end_ps=end_ps, tip=f"{bar.lane}, {bar.kind}: several")
        else:
            joined[bar.lane, bar.kind] = len(found)
            found.append(bar)
    return found


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key by which ``stage 10`` comes after ``stage 9``."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]


def _time_axis(canvas: Canvas, x: Scale, *, top: float, bottom: float) -> None:
    ps, unit = time_unit(x.high)
    frame = Frame(canvas, x, Scale(low=0, high=1, start=bottom, end=top))
    frame.x_axis(f"time ({unit})", lambda value: f"{value / ps:g}")
    canvas.line([(x.start, top), (x.start, bottom)], colour=GRID)


def _label_room(names: Sequence[str]) -> float:
    return min(_LABEL, max(60.0, 26 + max((text_width(n, 10) for n in names), default=0)))


def _fitted(name: str, room: float) -> str:
    """Return a name, its middle left out if it is wider than its room."""
    if text_width(name, 10) <= room - 20:
        return name
    keep = len(name)
    while keep > 6 and text_width(name[:keep], 10) > room - 30:
        keep -= 1
    half = keep // 2
    return name[: keep - half] + "\N{HORIZONTAL ELLIPSIS}" + name[-half:]
