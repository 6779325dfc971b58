# SPDX-License-Identifier: Apache-2.0
"""The tables of a report: sortable by the page's script, whole without it."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from railweave.tools.charts.axes import size_text, time_text
from railweave.tools.words import shown_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.tools.report.run_data import FlowRow, Run

__all__ = ["Cell", "table", "tables_of"]

_ROWS: Final = 200
_NUMBERS: Final = ("n", "")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell: its text, the number it sorts by, and what on the map it leads to."""

    text: str
    value: float | None = None
    go: tuple[str, int] | None = None

    def html(self) -> str:
        """Return the ``td`` element."""
        text = escape(self.text)
        if self.go is not None:
            kind, number = self.go
            text = (
                f'<button class="go" type="button" data-go="{kind}" data-id="{number}">'
                f"{text}</button>"
            )
        if self.value is None:
            return f"<td>{text}</td>"
        return f'<td class="n" data-v="{self.value:.12g}">{text}</td>'


def table(
    name: str,
    title: str,
    head: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    total: int | None = None,
    elsewhere: str = "",
    tags: Sequence[str] = (),
) -> str:
    """Return a table with its heading, or nothing without rows.

    Parameters
    ----------
    name
        Its ``id``.
    total, elsewhere
        How many rows there are in all, and the file that has them.
    tags
        Class of traffic of each row, where rows have one.
    """
    if not rows:
        return ""
    numeric = [cell.value is not None for cell in rows[0]]
    more = f"{len(rows):,} of {total:,}, all in {elsewhere}" if total and total > len(rows) else ""
    heads = "".join(
        f'<th scope="col"{" class=n" if right else ""}><button type="button">{escape(text)}'
        "</button></th>"
        for text, right in zip(head, numeric, strict=True)
    )
    lines = []
    for i, row in enumerate(rows):
        mark = f' data-tag="{escape(tags[i])}"' if tags else ""
        lines.append(f"<tr{mark}>{''.join(cell.html() for cell in row)}</tr>")
    return (
        f'<div class="of-{name}"><div class="heading"><h3>{escape(title)}</h3><span>{more}</span>'
        f'<input type="search" data-filter="{name}" placeholder="Filter" '
        f'aria-label="Filter {escape(title)}"></div>'
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(title)}">'
        f'<table class="sortable" id="{name}"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div></div>"
    )


def _time(value: Any) -> Cell:
    if value is None or value == "":
        return Cell(text="-", value=-1)
    return Cell(text=time_text(int(value)), value=int(value))


def _count(value: int) -> Cell:
    return Cell(text=f"{value:,}", value=value)


def _size(value: int) -> Cell:
    return Cell(text=size_text(int(value)), value=value)


def tables_of(run: Run, flows: Sequence[FlowRow]) -> str:
    """Return every table that a run has rows for."""
    parts = (_steps(run), _collectives(run), _links(run), _flows(run, flows), _requests(run))
    return "".join((*parts, _tiers(run), _faults(run)))


def _steps(run: Run) -> str:
    times = (
        ("step_ps", "time"),
        ("bound_ps", "bound"),
        ("compute_ps", "compute"),
        ("exposed_ps", "exposed"),
        ("bubble_ps", "bubble"),
        ("communication_ps", "communication"),
        ("overlapped_ps", "overlapped"),
    )
    rows = [
        [
            Cell(text=f"{row['workload']} {row['step']}"),
            Cell(text=str(row.get("model", ""))),
            _count(int(row.get("tokens", 0))),
            *(_time(row.get(name)) for name, _ in times),
            Cell(text=str(row.get("limit", ""))),
        ]
        for row in run.result.get("steps", ())
    ]
    head = ("step", "model", "tokens", *(text for _, text in times), "limited by")
    return table("steps", "Steps", head, rows[:_ROWS], total=len(rows), elsewhere="result.json")


def _collectives(run: Run) -> str:
    head = ("operation", "workload", "size", "algorithm", "ranks", "time", "bound", "x bound")
    rows = [
        [
            Cell(text=str(row["op"])),
            Cell(text=str(row["workload"])),
            _size(row["size_bytes"]),
            Cell(text=str(row["algorithm"])),
            _count(row["ranks"]),
            _time(row["time_ps"]),
            _time(row["bound_ps"]),
            _ratio(row["time_ps"], row["bound_ps"]),
            Cell(text=f"{row['algbw_GBps']:.2f}", value=row["algbw_GBps"]),
            Cell(text=f"{row['busbw_GBps']:.2f}", value=row["busbw_GBps"]),
        ]
        for row in run.result.get("collectives", ())
    ]
    names = (*head, "algbw GB/s", "busbw GB/s")
    return table(
        "collectives", "Collectives", names, rows[:_ROWS], total=len(rows), elsewhere="result.json"
    )


def _ratio(took: int, bound: int) -> Cell:
    return (
        Cell(text=f"{took / bound:.3f}", value=took / bound) if bound else Cell(text="-", value=0)
    )


def _links(run: Run) -> str:
    fabric = run.fabric
    used = np.flatnonzero((run.wire_bytes > 0) | (run.ack_bytes > 0))
    order = used[np.lexsort((used, -run.utilisation[used], ~fabric.link_network[used]))]
    shown = {
        name: column
        for name, column in run.counters.items()
        if name in ("paused_ps", "ecn_marked", "dropped", "peak_queue_bytes") and column.any()
    }
    write = {"paused_ps": _time, "peak_queue_bytes": _size}
    names = {
        "paused_ps": "paused",
        "ecn_marked": "ECN marked",
        "dropped": "dropped",
        "peak_queue_bytes": "peak queue",
    }
    rows = []
    for link in order[:_ROWS].tolist():
        rate = int(fabric.link_rate_bps[link])
        carried = int(run.wire_bytes[link] + run.ack_bytes[link])
        rows.append(
            [
                Cell(text=fabric.link_name(link), go=("link", link)),
                Cell(text=fabric.link_tier[link]),
                Cell(text=shown_rate(rate), value=rate),
                Cell(text=f"{100 * run.utilisation[link]:.2f} %", value=run.utilisation[link]),
                _size(carried),
                _time(carried * 8 * 10**12 // rate if rate else None),
                *(write.get(name, _count)(int(column[link])) for name, column in shown.items()),
            ]
        )
    head = ("link", "tier", "rate", "utilisation", "carried", "least time for it")
    title = "Links, those of the network first"
    return table(
        "links",
        title,
        (*head, *(names[name] for name in shown)),
        rows,
        total=len(order),
        elsewhere="links.csv",
    )


def _flows(run: Run, flows: Sequence[FlowRow]) -> str:
    span = run.span_ps
    lasted = [(flow.end_ps if flow.end_ps >= 0 else span) - flow.start_ps for flow in flows]
    order = sorted(range(len(flows)), key=lambda i: (-lasted[i], i))[:_ROWS]
    rows = []
    for i in order:
        flow = flows[i]
        ended = flow.end_ps >= 0
        rows.append(
            [
                Cell(text=flow.id, go=("flow", i)),
                Cell(text=flow.src),
                Cell(text=flow.dst),
                Cell(text=flow.tag),
                _size(flow.size_bytes),
                _time(flow.start_ps),
                _time(lasted[i]) if ended else Cell(text="not ended", value=lasted[i]),
                _time(flow.bound_ps),
                _ratio(lasted[i], flow.bound_ps),
            ]
        )
    head = ("flow", "from", "to", "class", "size", "start", "time", "bound", "x bound")
    return table(
        "flows",
        "Flows, the longest first",
        head,
        rows,
        total=len(run.flows),
        elsewhere="flows.csv",
        tags=[flows[i].tag for i in order],
    )


def _requests(run: Run) -> str:
    times = (
        ("arrival_ps", "arrival"),
        ("ttft_ps", "TTFT"),
        ("ttft_bound_ps", "bound"),
        ("tpot_ps", "TPOT"),
        ("tpot_bound_ps", "bound"),
        ("kv_ps", "KV transfer"),
        ("kv_bound_ps", "bound"),
        ("end_ps", "end"),
    )
    rows = [
        [
            Cell(text=row["id"]),
            Cell(text=row.get("status", "")),
            *(_count(int(row.get(name) or 0)) for name in ("prompt_tokens", "output_tokens")),
            *(_time(row.get(name)) for name, _ in times),
        ]
        for row in run.requests
    ]
    head = ("request", "status", "prompt", "output", *(text for _, text in times))
    return table(
        "requests", "Requests", head, rows[:_ROWS], total=len(rows), elsewhere="requests.csv"
    )


def _tiers(run: Run) -> str:
    rows = [
        [
            Cell(text=name),
            _count(row["links"]),
            _size(row["wire_bytes"]),
            Cell(text=f"{100 * row['mean_utilisation']:.2f} %", value=row["mean_utilisation"]),
            Cell(text=f"{100 * row['max_utilisation']:.2f} %", value=row["max_utilisation"]),
        ]
        for name, row in run.result.get("network", {}).get("tiers", {}).items()
    ]
    head = ("tier", "links", "carried", "mean utilisation", "largest")
    return table("tiers", "Tiers", head, rows)


def _faults(run: Run) -> str:
    rows = [
        [_time(row["at_ps"]), Cell(text=str(row["what"])), Cell(text=str(row["did"]))]
        for row in run.result.get("network", {}).get("faults", ())
    ]
    return table("faults", "Faults", ("at", "what", "did"), rows[:_ROWS], total=len(rows))
