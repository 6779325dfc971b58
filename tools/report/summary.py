# SPDX-License-Identifier: Apache-2.0
"""The head and the foot of a report: key figures beside their bounds, warnings, provenance."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from railweave.tools.charts.axes import size_text, time_text

if TYPE_CHECKING:
    from railweave.tools.report.run_data import Run

__all__ = ["cards", "notes", "provenance"]


def cards(run: Run) -> str:
    """Return the key figures as a list of terms."""
    figures = [*_times(run), *_serving(run.result.get("serving") or {}), *_network(run)]
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}"
        + (f"<small>{escape(beside)}</small>" if beside else "")
        + "</dd></div>"
        for name, value, beside in figures
    )
    return f'<dl class="cards">{items}</dl>'


def _times(run: Run) -> list[tuple[str, str, str]]:
    result, flows = run.result, run.result["flows"]
    bound, span = int(result["bound_ps"]), run.span_ps
    beside = f"bound {time_text(bound)}" if bound else ""
    if bound and not result.get("serving"):
        beside += f", {span / bound:.3f} times it"
    found = [("simulated time", time_text(span), beside)]
    if flows.get("count"):
        ended = flows.get("ended", flows["count"])
        count = f"{ended:,} of {flows['count']:,} ended" if ended != flows["count"] else "all ended"
        found.append(("flows", f"{flows['count']:,}", f"{size_text(flows['bytes'])}, {count}"))
    for key, name in (("fct_p50_ps", "flow time p50"), ("fct_p99_ps", "flow time p99")):
        if flows.get(key) is not None:
            least = flows.get(key.replace("fct", "bound"))
            found.append(
                (name, time_text(flows[key]), f"bound {time_text(least)}" if least else "")
            )
    steps = result.get("steps") or ()
    if steps:
        slowest = max(steps, key=lambda row: row["step_ps"])
        name = "step" if len(steps) == 1 else f"slowest of {len(steps):,} steps"
        least = f"bound {time_text(slowest['bound_ps'])}"
        found.append((name, time_text(slowest["step_ps"]), least))
        if slowest.get("exposed_ps") is not None:
            compute = f"compute {time_text(slowest.get('compute_ps') or 0)}"
            found.append(("exposed in it", time_text(slowest["exposed_ps"]), compute))
    rows = result.get("collectives") or ()
    if rows:
        best = max(rows, key=lambda row: row["busbw_GBps"])
        found.append(("collectives", f"{len(rows):,}", ""))
        found.append(
            (
                "best bus bandwidth",
                f"{best['busbw_GBps']:.1f} GB/s",
                f"{best['op']}, {size_text(best['size_bytes'])}",
            )
        )
    return found


def _serving(serving: dict[str, Any]) -> list[tuple[str, str, str]]:
    if "requests" not in serving:
        return [
            (f"{name}: {key}", value, beside)
            for name, one in serving.items()
            if isinstance(one, dict)
            for key, value, beside in _serving(one)
        ]
    requests = serving["requests"]
    found = [
        ("requests", f"{requests['completed']:,} of {requests['count']:,}", "completed"),
    ]
    for key, name in (
        ("ttft_ps", "TTFT p99"),
        ("tpot_ps", "TPOT p99"),
        ("kv_transfer_ps", "KV p99"),
    ):
        stats = serving.get(key) or {}
        if stats.get("p99") is not None:
            least = stats.get("bound_p99")
            found.append(
                (name, time_text(stats["p99"]), f"bound {time_text(least)}" if least else "")
            )
    return found


def _network(run: Run) -> list[tuple[str, str, str]]:
    network = run.result.get("network", {})
    found = []
    if network.get("hottest"):
        top = network["hottest"][0]
        found.append(("busiest network link", f"{100 * top['utilisation']:.1f} %", top["link"]))
    if "paused_ps_total" in network:
        frames = f"{network['pause_frames']:,} pause frames"
        found.append(("paused, all links", time_text(network["paused_ps_total"]), frames))
        found.append(("ECN marks", f"{network['ecn_marked']:,}", f"{network['cnps']:,} CNPs"))
        drops = network.get("drops", {})
        said = ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in drops.items() if n)
        found.append(("drops", f"{sum(drops.values()):,}", said))
    faults = len(network.get("faults", ()))
    if faults:
        stood = network.get("stalls", {}).get("longest_ps", 0)
        found.append(
            ("faults", f"{faults:,}", f"longest stall {time_text(stood)}" if stood else "")
        )
    return found


def notes(run: Run) -> str:
    """Return the warnings and, if the run did not complete, why."""
    items = [f"<li>{escape(str(text))}</li>" for text in run.result.get("warnings", ())]
    if run.result.get("error"):
        items.insert(0, f'<li class="error">{escape(str(run.result["error"]))}</li>')
    return f'<ul class="notes">{"".join(items)}</ul>' if items else ""


def provenance(run: Run) -> str:
    """Return what the run came from, and what its bounds mean."""
    given = run.result["provenance"]
    rows = [
        ("run", run.name),
        ("engine", run.result["engine"]),
        ("railweave", given.get("version", "")),
        ("seed", given.get("seed", "")),
        ("topology SHA-256", given.get("topology_sha256", "")),
        ("scenario SHA-256", given.get("scenario_sha256", "")),
    ]
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(str(text))}</dd>" for name, text in rows)
    return (
        f'<dl class="source">{items}</dl><p class="about">The bound of a flow, a collective or a '
        "request is its time alone on an empty fabric; that of the run takes the moments at which "
        "they started as given. Nothing can be faster. The scenario is in scenario.yaml, with "
        "every default spelled out: the same scenario, seed and version give the same run.</p>"
    )
