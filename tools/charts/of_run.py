# SPDX-License-Identifier: Apache-2.0
"""The charts of a run: what it has the data for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.tools.charts.axes import time_text
from railweave.tools.charts.blocks import Bar, gantt_chart, heat_chart
from railweave.tools.charts.lines import busbw_chart, cdf_chart
from railweave.tools.palette import class_colours, rail_colour

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from railweave.tools.charts.canvas import Canvas
    from railweave.tools.report.run_data import Run

__all__ = ["busbw_of", "cdf_of", "charts_of", "gantt_of", "heat_of"]

_PHASES: Final = (
    ("queued", "arrival_ps", "prefill_start_ps"),
    ("prefill", "prefill_start_ps", "prefill_end_ps"),
    ("KV transfer", "kv_start_ps", "kv_end_ps"),
    ("first decode step", "kv_end_ps", "first_token_ps"),
    ("decode", "first_token_ps", "end_ps"),
)
_PHASE_COLOURS: Final = {
    "queued": "#b8c1cb",
    "prefill": "#0072b2",
    "KV transfer": "#d55e00",
    "first decode step": "#e69f00",
    "decode": "#009e73",
}
_TASK_COLOURS: Final = {
    "forward": "#0072b2",
    "backward": "#009e73",
    "forward, sent": "#56b4e9",
    "backward, sent": "#8ed1b8",
    "gradients": "#d55e00",
    "parameters": "#cc79a7",
}
_STAGE: Final = re.compile(r"(?P<to>to )?stage (?P<stage>\d+)")
_INTERVALS: Final = 128  # of a heat map: each is some pixels wide
_COLLECTIVE: Final = "#4d4d4d"


def busbw_of(runs: Sequence[Run]) -> Canvas | None:
    """Draw the bus bandwidth of the collectives of runs."""
    series: dict[str, list[Mapping[str, object]]] = {}
    for run in runs:
        for row in run.result.get("collectives", ()):
            name = f"{row['op']}, {row['algorithm']}, {row['ranks']} ranks"
            name = f"{run.name}: {name}" if len(runs) > 1 else name
            series.setdefault(name, []).append(row)
    return busbw_chart(series)


def cdf_of(runs: Sequence[Run]) -> Canvas | None:
    """Draw the distribution of flow completion times by class, or of times to first token."""
    series: dict[str, list[int]] = {}
    bounds: dict[str, list[int]] = {}
    for run in runs:
        lead = f"{run.name}: " if len(runs) > 1 else ""
        for flow in run.flows:
            if flow.end_ps >= 0:
                name = lead + (flow.tag or "no class")
                series.setdefault(name, []).append(flow.end_ps - flow.start_ps)
                bounds.setdefault(name, []).append(flow.bound_ps)
    colours = class_colours({flow.tag for run in runs for flow in run.flows})
    named = {tag or "no class": colour for tag, colour in colours.items()}
    return cdf_chart(series, bounds=bounds, colours=named if len(runs) == 1 else None)


def heat_of(run: Run) -> Canvas | None:
    """Draw the load of the busiest links over time, of a run with a timeline."""
    if run.timeline is None:
        return None
    line = run.timeline.coarser(_INTERVALS)
    names = [run.fabric.link_name(link) for link in line.links.tolist()]
    return heat_chart(names, np.minimum(line.load(run.fabric), 1.0), line.edges_ps)


def gantt_of(run: Run) -> Canvas | None:
    """Draw a step of a job, the phases of requests, or else collectives and flows."""
    if run.spans:
        return _step_gantt(run)
    if run.requests:
        return gantt_chart(list(_request_bars(run)), title="Requests", colours=_PHASE_COLOURS)
    bars = [
        Bar(
            lane=f"{row['workload']}: {row['op']}",
            kind="collective",
            start_ps=int(row["start_ps"]),
            end_ps=int(row["start_ps"]) + int(row["time_ps"]) * int(row.get("repeat", 1)),
            tip=f"{row['op']} of {row['size_bytes']:,} B: {time_text(row['time_ps'])}, bound "
            f"{time_text(row['bound_ps'])}",
        )
        for row in run.result.get("collectives", ())
        if "start_ps" in row
    ]
    colours = {"collective": _COLLECTIVE} if bars else {}
    colours |= class_colours({flow.tag for flow in run.flows})
    for flow in run.flows:
        end_ps = flow.end_ps if flow.end_ps >= 0 else run.span_ps
        how = f"{time_text(end_ps - flow.start_ps)}, bound {time_text(flow.bound_ps)}"
        bars.append(
            Bar(
                lane=f"{flow.id}: {flow.src} \N{RIGHTWARDS ARROW} {flow.dst}",
                kind=flow.tag,
                start_ps=flow.start_ps,
                end_ps=end_ps,
                tip=f"{flow.id}: {how}" + ("" if flow.end_ps >= 0 else ", not ended"),
            )
        )
    return gantt_chart(bars, title="Collectives and flows", colours=colours)


def _step_gantt(run: Run) -> Canvas | None:
    """Draw the first step of each job: a lane for what a stage computes, and for what it sends."""
    rows = run.result["steps"]
    end_ps = max(int(row["start_ps"]) + int(row["step_ps"]) for row in rows if not row["step"])
    bars = []
    for span in run.spans:
        if span.start_ps >= end_ps:
            break
        kind, lane = _task(span.name)
        tip = f"{span.name}: {time_text(span.end_ps - span.start_ps)}"
        bars.append(Bar(lane=lane, kind=kind, start_ps=span.start_ps, end_ps=span.end_ps, tip=tip))
    kinds = sorted({bar.kind for bar in bars}, key=lambda kind: (kind not in _TASK_COLOURS, kind))
    colours = {
        kind: _TASK_COLOURS.get(kind, rail_colour(place)) for place, kind in enumerate(kinds)
    }
    title = "First step" if len(rows) > 1 else "Step"
    return gantt_chart(bars, title=title, colours=colours, by_name=True)


def _task(name: str) -> tuple[str, str]:
    """Return the kind and the lane of a task: ``forward 0 stage 1`` runs on stage 1."""
    workload, slash, task = name.rpartition("/")
    kind = task.partition(" ")[0] or "work"
    stage = _STAGE.search(task)
    if stage is None:
        return kind, name
    lane = f"{workload}{slash}stage {int(stage['stage'])}"
    if stage["to"]:
        return f"{kind}, sent", f"{lane} receives"
    return kind, lane if kind in ("forward", "backward", "weight") else f"{lane} {kind}"


def _request_bars(run: Run) -> list[Bar]:
    bars = []
    for row in run.requests:
        for kind, start, end in _PHASES:
            begin, until = row.get(start, ""), row.get(end, "")
            if begin and until and int(until) > int(begin):
                took = time_text(int(until) - int(begin))
                bars.append(
                    Bar(
                        lane=row["id"],
                        kind=kind,
                        start_ps=int(begin),
                        end_ps=int(until),
                        tip=f"{row['id']} {kind}: {took}",
                    )
                )
    return bars


def charts_of(run: Run) -> list[Canvas]:
    """Return every chart that a run has the data for."""
    found = (busbw_of([run]), cdf_of([run]), heat_of(run), gantt_of(run))
    return [chart for chart in found if chart is not None]
