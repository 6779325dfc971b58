# SPDX-License-Identifier: Apache-2.0
"""A laid-out fabric becomes a scene: bands, boxes with their parts, cables, captions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.fabric.words import plural
from railweave.tools.captions import add_captions, add_head
from railweave.tools.draw_boxes import add_boxes
from railweave.tools.draw_cables import add_cables
from railweave.tools.draw_hosts import add_hosts
from railweave.tools.layout import lay_out
from railweave.tools.legend import add_panel
from railweave.tools.palette import MUTED, PLANE_FILLS
from railweave.tools.scene import Box, Label, Scene, text_width
from railweave.tools.tiers import arrange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.fabric.graph import Fabric
    from railweave.tools.columns import Column
    from railweave.tools.layout import Layout
    from railweave.tools.overlay import LinkLoads
    from railweave.tools.ranks import RankMap

__all__ = ["compose"]


def compose(
    fabric: Fabric,
    loads: LinkLoads | None = None,
    *,
    expand: Sequence[str] | None = None,
    plane: int | None = None,
    ranks: RankMap | None = None,
) -> Scene:
    """Compose the drawing of a fabric.

    Parameters
    ----------
    fabric
        What to draw.
    loads
        Load of each link by a run, drawn as colour, or None.
    expand
        Groups to draw host by host, ``all`` or ``none``; by default all up to 1,024 GPUs.
    plane
        The only plane whose switches and cables are drawn, or None.
    ranks
        What was placed on the GPUs, drawn as their colour, or None.
    """
    tiers = arrange(fabric, expand=expand, plane=plane)
    layout = lay_out(tiers, loaded=loads is not None or ranks is not None)
    scene = Scene(width=layout.width, height=layout.height, title=fabric.name)
    add_head(scene, layout, loads, ranks)
    _blocks(scene, layout)
    _planes(scene, layout)
    add_captions(scene, layout)
    add_cables(scene, layout, loads)
    add_boxes(scene, layout, loads, ranks)
    add_hosts(scene, layout, loads, ranks)
    add_panel(scene, layout, loads, ranks)
    return scene


def _blocks(scene: Scene, layout: Layout) -> None:
    """Tint the block of each named column behind its leaves and hosts, and name it."""
    tiers = layout.tiers
    if not any(column.title for column in tiers.columns):
        return
    top = layout.host_y - 14
    for level, row in layout.rows.items():
        if all(tiers.nodes[n].column >= 0 for n in tiers.levels[level]):
            top = min(top, row.y - 14)
    bottom = layout.height - 40
    size = 11 * layout.scale
    spill = 7.0 if layout.gap >= 14 else layout.gap * 0.3
    widths = [block.width + layout.gap - 3 for block in layout.blocks]
    labels = [text_width(column.label, size) for column in tiers.columns]
    upright = any(label > width for label, width in zip(labels, widths, strict=True))
    alike = max(
        (
            _fitting(layout, column, width)
            for column, width in zip(tiers.columns, widths, strict=True)
            if column.collapsed
        ),
        default=0,
    )
    bare = [column for column in tiers.columns if column.collapsed and column.groups]
    if bare and (upright or alike == len(_names(layout, bare[0])) - 1):
        scene.labels.append(
            Label(
                x=28 * layout.scale,
                y=bottom - 9,
                text="group",
                size=size,
                anchor="start",
                colour=MUTED,
            )
        )
    for block, column, width in zip(layout.blocks, tiers.columns, widths, strict=True):
        if not column.title:
            continue
        scene.bands.append(
            Box(
                x=block.x - spill,
                y=top,
                width=block.width + 2 * spill,
                height=bottom - top,
                fill="#f4f6f9",
                stroke="#e3e8ee",
                radius=min(8.0, spill * 2),
            )
        )
        middle = block.x + block.width / 2
        form = alike if column.collapsed else _fitting(layout, column, width)
        text = column.label if upright else _names(layout, column)[form]
        shown = min(size, (width + 3) / 1.25) if upright else size
        scene.labels.append(
            Label(
                x=middle + (shown * 0.36 if upright else 0),
                y=bottom - 9,
                text=text,
                size=shown,
                anchor="start" if upright else "middle",
                colour=MUTED,
                upright=upright,
            )
        )


def _fitting(layout: Layout, column: Column, width: float) -> int:
    """Return which of the names of a column is the first that fits, or the last."""
    names = _names(layout, column)
    size = 11 * layout.scale
    return next(
        (i for i, text in enumerate(names) if text_width(text, size) < width), len(names) - 1
    )


def _names(layout: Layout, column: Column) -> tuple[str, ...]:
    """Return what a column may be called, the fullest first."""
    hosts = layout.tiers.fabric.host_names
    span = f"{hosts[column.hosts[0]]}\N{EN DASH}{hosts[column.hosts[-1]]}"
    whole = f"{column.title}  \N{MIDDLE DOT}  {plural(len(column.hosts), 'host')}, {span}"
    return whole, column.title, column.label


def _planes(scene: Scene, layout: Layout) -> None:
    """Tint the planes of a level that lie side by side above all columns, and name them."""
    for level, planes in layout.planes.items():
        row = layout.rows[level]
        for plane, x, width in planes:
            scene.bands.append(
                Box(
                    x=x - 4,
                    y=row.y - 24 * layout.scale,
                    width=width + 8,
                    height=row.height + 32 * layout.scale,
                    fill=PLANE_FILLS[plane % len(PLANE_FILLS)],
                    radius=8,
                )
            )
            scene.labels.append(
                Label(
                    x=x + 4,
                    y=row.y - 9 * layout.scale,
                    text=f"plane {plane}",
                    size=11 * layout.scale,
                    anchor="start",
                    colour=MUTED,
                )
            )
