# SPDX-License-Identifier: Apache-2.0
"""A laid-out fabric becomes a scene: bands, hosts with their parts, cables, captions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.fabric.graph import DeviceKind
from railweave.tools.draw_cables import add_cables
from railweave.tools.draw_hosts import add_hosts
from railweave.tools.layout import lay_out
from railweave.tools.legend import add_panel
from railweave.tools.palette import INK, MUTED, SWITCH, rail_colour
from railweave.tools.scene import Box, Label, Scene, text_width
from railweave.tools.tiers import arrange
from railweave.tools.words import plural, shown_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.fabric.graph import Fabric
    from railweave.tools.layout import Layout
    from railweave.tools.overlay import LinkLoads
    from railweave.tools.tiers import Bundle

__all__ = ["compose"]


def compose(fabric: Fabric, loads: LinkLoads | None = None) -> Scene:
    """Compose the drawing of a fabric, with the load of a run on its links if given."""
    tiers = arrange(fabric)
    layout = lay_out(tiers)
    scene = Scene(width=layout.width, height=layout.height, title=fabric.name)
    _head(scene, layout, loads)
    _blocks(scene, layout)
    _captions(scene, layout)
    add_cables(scene, layout, loads)
    _switches(scene, layout)
    add_hosts(scene, layout, loads)
    add_panel(scene, layout, loads)
    return scene


def _head(scene: Scene, layout: Layout, loads: LinkLoads | None) -> None:
    fabric, tiers, scale = layout.tiers.fabric, layout.tiers, layout.scale
    counts = [plural(len(fabric.gpus), "GPU"), plural(len(fabric.host_names), "host")]
    if tiers.declared:
        for level in layout.rows:
            name = f"{tiers.level_name(level)} switch"
            counts.append(plural(len(tiers.switches(level)), name))
    else:
        counts.append(plural(len(fabric.switches), "switch"))
    cables = sum(len(bundle.cables) for bundle in tiers.bundles)
    counts.append(plural(cables, "network cable"))
    scene.labels.append(
        Label(
            x=28 * scale, y=38 * scale, text=fabric.name, size=21 * scale, anchor="start", bold=True
        )
    )
    subtitle = "  \N{MIDDLE DOT}  ".join(counts)
    if loads is not None:
        subtitle += f"  \N{MIDDLE DOT}  link load of run {loads.run}"
    scene.labels.append(
        Label(
            x=28 * scale, y=61 * scale, text=subtitle, size=13 * scale, anchor="start", colour=MUTED
        )
    )


def _blocks(scene: Scene, layout: Layout) -> None:
    """Tint the column of each group behind its leaves and hosts, and name it."""
    if not any(block.group >= 0 for block in layout.blocks):
        return
    grouped = {block.group for block in layout.blocks}
    top = layout.host_y - 14
    for level, row in layout.rows.items():
        if all(int(layout.tiers.fabric.group[s]) in grouped for s in layout.tiers.switches(level)):
            top = min(top, row.y - 14)
    bottom = layout.height - 40
    hosts = layout.tiers.fabric.host_names
    for block in layout.blocks:
        if block.group < 0:
            continue
        scene.bands.append(
            Box(
                x=block.x - 7,
                y=top,
                width=block.width + 14,
                height=bottom - top,
                fill="#f4f6f9",
                stroke="#e3e8ee",
                radius=8,
            )
        )
        members = [host for unit in block.units for host in layout.tiers.units[unit].hosts]
        span = f"{hosts[members[0]]}\N{EN DASH}{hosts[members[-1]]}"
        whole = f"group {block.group}  \N{MIDDLE DOT}  {plural(len(members), 'host')}, {span}"
        for text in (whole, f"group {block.group}", str(block.group)):
            size = 11 * layout.scale
            if text_width(text, size) < block.width:
                middle = block.x + block.width / 2
                scene.labels.append(
                    Label(x=middle, y=bottom - 9, text=text, size=size, colour=MUTED)
                )
                break


def _captions(scene: Scene, layout: Layout) -> None:
    """Name each tier and each class of cables in the left margin."""
    tiers, fabric = layout.tiers, layout.tiers.fabric
    for level, row in layout.rows.items():
        switches = tiers.switches(level)
        models = sorted({fabric.model[s] for s in switches if fabric.model[s]})
        kind = models[0] if len(models) == 1 else f"{len(models)} models"
        count = f"{len(switches)} \N{MULTIPLICATION SIGN} {kind}"
        name = tiers.level_name(level)
        _caption(
            scene,
            layout.scale,
            row.y + row.height / 2 - 2,
            name,
            [count if models else plural(len(switches), "switch")],
        )
    parts = tiers.parts
    sizes = sorted({len(found.get(DeviceKind.GPU, ())) for found in parts})
    lines = [plural(len(parts), "host")]
    if sizes:
        each = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]}\N{EN DASH}{sizes[-1]}"
        lines.append(f"{each} GPU{'s' * (sizes != [1])} in each")
    _caption(scene, layout.scale, layout.host_y + 14, "hosts", lines)
    for (lower, upper), bundles in tiers.bands.items():
        top = layout.rows[upper].y + layout.rows[upper].height if upper else layout.host_y
        bottom = layout.rows[lower].y if lower else layout.host_y
        if lower == upper or upper - lower > 1:
            continue
        _caption(
            scene, layout.scale, (top + bottom) / 2 - 14, *_describe(fabric, bundles), quiet=True
        )


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
    rates = sorted({int(fabric.link_rate_bps[c]) for b in bundles for c in b.cables})
    counts = sorted({len(bundle.cables) for bundle in bundles})
    total = sum(len(bundle.cables) for bundle in bundles)
    lines = [plural(total, "cable")]
    lines.append(
        f"{shown_rate(rates[0])} each"
        if len(rates) == 1
        else f"{shown_rate(rates[0])} to {shown_rate(rates[-1])}"
    )
    if counts[-1] > 1:
        each = str(counts[0]) if len(counts) == 1 else f"{counts[0]}\N{EN DASH}{counts[-1]}"
        lines.append(f"each line: {each} cables")
    return name, lines


def _switches(scene: Scene, layout: Layout) -> None:
    tiers, fabric = layout.tiers, layout.tiers.fabric
    for level, row in layout.rows.items():
        for switch in tiers.switches(level):
            rail = int(fabric.rail[switch])
            x = layout.switch_x[switch]
            name = fabric.device_names[switch]
            tip = f"{name}: {fabric.model[switch] or 'switch'}"
            scene.boxes.append(
                Box(
                    x=x - row.width / 2,
                    y=row.y,
                    width=row.width,
                    height=row.height,
                    fill="#ffffff",
                    stroke=rail_colour(rail) if rail >= 0 else SWITCH,
                    stroke_width=1.6 if row.width > 24 else 1.0,
                    radius=4 if row.width > 24 else 2.5,
                    tip=tip,
                )
            )
            shift = row.text * 0.36
            scene.labels.append(
                Label(
                    x=x + (shift if row.upright else 0),
                    y=row.y + row.height / 2 + (0 if row.upright else shift),
                    text=name,
                    size=row.text,
                    upright=row.upright,
                )
            )
