# SPDX-License-Identifier: Apache-2.0
"""What the command prints of an emulation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from railweave.fabric.words import plural
from railweave.tools.emulate.compare import percentile
from railweave.tools.output import aligned
from railweave.tools.words import shown_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.tools.emulate.compare import Comparison, Row
    from railweave.tools.emulate.headroom import Headroom
    from railweave.tools.emulate.session import Emulation

__all__ = ["comparison_text", "emulation_head"]

_MOST_ROWS: Final = 24


def shown_error(error: float) -> str:
    """Write a relative error: ``+0.31 %``."""
    return f"{100 * error:+.2f} %"


def emulation_head(emulation: Emulation) -> str:
    """Return the lines that say how slowly and how freely the emulation ran."""
    options, fabric = emulation.options, emulation.measured.fabric
    rate = int(fabric.link_rate_bps[fabric.link_network].max())
    rows = [
        (
            "emulated",
            f"{plural(len(fabric.host_names), 'host')} and "
            f"{plural(len(fabric.switches), 'switch')} as namespaces, "
            f"{rate / 1e9:g} Gbit/s as {rate / options.scale / 1e6:g} Mbit/s "
            f"(scale {options.scale}), {options.mode} cables",
        ),
        ("traffic", f"{emulation.wall_s:.2f} s here, TCP {emulation.congestion}"),
    ]
    if emulation.headroom is not None:
        rows.append(("CPUs", _cpus(emulation.headroom)))
    if emulation.drops:
        rows.append(("dropped", f"{emulation.drops} packets"))
    return aligned(rows)


def _cpus(headroom: Headroom) -> str:
    busy = f"{100 * headroom.busy:.0f} % busy"
    if headroom.moving is None or headroom.packets is None:
        return busy
    return (
        f"{busy}; at most {100 * headroom.moving:.0f} % of one for moving bytes, "
        f"{100 * headroom.packets:.0f} % for packets"
    )


def _table(title: str, rows: Sequence[Row]) -> str:
    """Lay the rows out, where there are many those furthest off."""
    shown = list(rows)
    more = ""
    if len(shown) > _MOST_ROWS:
        shown = sorted(shown, key=lambda row: -abs(row.error))[:_MOST_ROWS]
        more = f"\n  and {len(rows) - _MOST_ROWS} that are nearer"
    lines = [
        (
            row.name,
            row.what,
            row.size_bytes,
            shown_time(row.predicted_ps),
            shown_time(row.measured_ps),
            shown_error(row.error),
        )
        for row in shown
    ]
    header = (title, "", "bytes", "predicted", "measured", "error")
    return aligned(lines, header=header, right=(2, 3, 4, 5)) + more


def comparison_text(comparison: Comparison) -> str:
    """Return predicted against measured, per flow, collective and link."""
    parts = []
    if comparison.flows:
        parts.append(_table("flow", comparison.flows))
        errors = [abs(row.error) for row in comparison.flows]
        median, p90 = percentile(errors, 50), percentile(errors, 90)
        parts.append(
            f"|error| of {len(errors)} flows  median {100 * median:.2f} %  "
            f"p90 {100 * p90:.2f} %  max {100 * max(errors):.2f} %"
        )
    if comparison.collectives:
        parts.append(_table("collective", comparison.collectives))
    whole = comparison.makespan
    parts.append(
        f"makespan  predicted {shown_time(whole.predicted_ps)}, measured "
        f"{shown_time(whole.measured_ps)} ({shown_error(whole.error)})"
    )
    if comparison.links:
        worst = max(comparison.links, key=lambda row: abs(row.error))
        confirmed = "as foretold" if comparison.paths_confirmed() else "NOT as foretold"
        parts.append(
            f"paths  {confirmed}: {len(comparison.links)} links counted, worst {worst.name} with "
            f"{worst.counted_bytes} B for {worst.expected_bytes} B ({shown_error(worst.error)})"
        )
    return "\n\n".join(parts)
