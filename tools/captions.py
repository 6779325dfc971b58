# SPDX-License-Identifier: Apache-2.0
"""The words around a drawing: its title, and what each tier and each class of cables is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.words import plural
from railweave.tools.palette import INK, MUTED
from railweave.tools.scene import Label
from railweave.tools.words import shown_rate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from railweave.fabric.graph import Fabric
    from railweave.tools.layout import Layout
    from railweave.tools.overlay import LinkLoads
    from railweave.tools.ranks import RankMap
    from railweave.tools.scene import Scene
    from railweave.tools.tiers import Bundle

__all__ = ["add_captions", "add_head"]


def add_head(
    scene: Scene, layout: Layout, loads: LinkLoads | None, ranks: RankMap | None = None
) -> None:
    """Write the name of the fabric and what it amounts to."""
    fabric, tiers, scale = layout.tiers.fabric, layout.tiers, layout.scale
    counts = [plural(len(fabric.gpus), "GPU"), plural(len(fabric.host_names), "host")]
    racks = len(np.unique(tiers.racks[tiers.racks >= 0]))
    if racks:
        counts.append(plural(racks, "rack"))
    if tiers.declared:
        counts += [
            plural(tiers.count(level), f"{tiers.level_name(level)} switch") for level in layout.rows
        ]
    else:
        counts.append(plural(len(fabric.switches), "switch"))
    counts.append(plural(tiers.n_cables, "network cable"))
    subtitle = "  \N{MIDDLE DOT}  ".join(counts)
    if loads is not None:
        subtitle += f"  \N{MIDDLE DOT}  {loads.subtitle}"
    if ranks is not None:
        subtitle += f"  \N{MIDDLE DOT}  placement of run {ranks.run}"
    if tiers.plane is not None:
        subtitle += f"  \N{MIDDLE DOT}  plane {tiers.plane} only"
    head = Label(x=28, y=38, text=fabric.name, size=21, anchor="start", bold=True)
    below = Label(x=28, y=61, text=subtitle, size=13, anchor="start", colour=MUTED)
    for label in (head, below):
        scene.labels.append(label.grown(scale))


def add_captions(scene: Scene, layout: Layout) -> None:
    """Name each tier and each class of cables in the left margin."""
    tiers, fabric, scale = layout.tiers, layout.tiers.fabric, layout.scale
    for level, row in layout.rows.items():
        numbers = tiers.levels[level]
        members = [switch for number in numbers for switch in tiers.nodes[number].members]
        models = {fabric.model[s] for s in members}
        kind = max(models) if len(models) == 1 else f"{len(models)} models"
        count = f"{len(members):,} \N{MULTIPLICATION SIGN} {kind}"
        lines = [count if kind else plural(len(members), "switch"), *_each_box(layout, numbers)]
        _caption(scene, scale, row.y + row.height / 2 - 2, tiers.level_name(level), lines)
    sizes = sorted(set(tiers.gpus_of_hosts.tolist()))
    lines = [plural(len(fabric.host_names), "host")]
    if sizes:
        lines.append(f"{_span(sizes)} GPU{'s' * (sizes != [1])} in each")
    lines += _each_box(layout, tiers.levels.get(0, ()))
    _caption(scene, scale, layout.host_y + 14, "hosts", lines)
    for (lower, upper), bundles in tiers.bands.items():
        top = layout.rows[upper].y + layout.rows[upper].height if upper else layout.host_y
        bottom = layout.rows[lower].y if lower else layout.host_y
        if lower == upper or upper - lower > 1:
            continue
        name, lines = _describe(fabric, bundles)
        _caption(scene, scale, (top + bottom) / 2 - 22, name, lines, quiet=True)


def _span(sizes: Iterable[int]) -> str:
    """Return ``8`` or ``7-8`` (with an en dash)."""
    low, high = min(sizes), max(sizes)
    return f"{low:,}" if low == high else f"{low:,}\N{EN DASH}{high:,}"


def _each_box(layout: Layout, numbers: Iterable[int]) -> list[str]:
    """Say how many switches or hosts the collapsed boxes of a level stand for."""
    nodes = [layout.tiers.nodes[number] for number in numbers]
    sizes = {len(node.members) for node in nodes if node.collapsed}
    return [f"{_span(sizes)} in each box"] if sizes and len(nodes) > 1 else []


def _caption(
    scene: Scene, scale: float, y: float, name: str, lines: Sequence[str], *, quiet: bool = False
) -> None:
    x = 28 * scale
    scene.labels.append(
        Label(
            x=x,
            y=y,
            text=name,
            size=(12 if quiet else 14) * scale,
            anchor="start",
            bold=not quiet,
            colour=MUTED if quiet else INK,
        )
    )
    for i, line in enumerate(lines):
        below = y + (16 + 15 * i) * scale
        scene.labels.append(
            Label(x=x, y=below, text=line, size=11 * scale, anchor="start", colour=MUTED)
        )


def _describe(fabric: Fabric, bundles: Sequence[Bundle]) -> tuple[str, list[str]]:
    names = sorted({bundle.tier for bundle in bundles})
    name = names[0].replace("-", " \N{EN DASH} ") if len(names) == 1 else "links"
    cables = np.concatenate([bundle.cables for bundle in bundles])
    rates = np.unique(fabric.link_rate_bps[cables]).tolist()
    counts = {len(bundle.cables) for bundle in bundles}
    lines = [plural(len(cables), "cable")]
    lines.append(
        f"{shown_rate(rates[0])} each"
        if len(rates) == 1
        else f"{shown_rate(rates[0])} to {shown_rate(rates[-1])}"
    )
    if max(counts) > 1:
        lines.append(f"each line: {_span(counts)} cable{'s' * (max(counts) > 1)}")
    totals = {int(fabric.link_rate_bps[bundle.cables].sum()) for bundle in bundles}
    if max(counts) > 1 and len(totals) == 1:
        lines.append(f"= {shown_rate(totals.pop())}")
    return name, lines
