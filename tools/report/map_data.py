# SPDX-License-Identifier: Apache-2.0
"""The map of a report: boxes and lines of the fabric's own drawing, with what each stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from railweave.fabric.graph import DeviceKind
from railweave.tools.box_text import box_text
from railweave.tools.draw_cables import curves
from railweave.tools.layout import lay_out, part_cells
from railweave.tools.tiers import arrange

if TYPE_CHECKING:
    from railweave.fabric.graph import Fabric
    from railweave.tools.layout import Layout

__all__ = ["MOST_LINES", "map_of"]

MOST_LINES = 12_000
"""Lines up to which a map shows every host; above, a box is a group, as in drawings."""


def map_of(fabric: Fabric) -> dict[str, Any]:
    """Return the map of a fabric as plain lists, in pixels.

    Boxes are ``[level, x, y, width, height, name, rail, plane, text, members]`` with hosts' numbers
    as members at level 0 and devices above; lines are ``[lower, upper, x1, y1, x2, y2, arch, rail,
    plane, cables]`` with the even link of each cable; parts are ``[device, x, y, width, height]``.
    """
    layout = lay_out(arrange(fabric, expand=("all",)), loaded=True)
    if len(layout.tiers.bundles) > MOST_LINES:
        layout = lay_out(arrange(fabric, expand=("none",)), loaded=True)
    tiers = layout.tiers
    boxes = [_box(layout, number) for number in range(len(tiers.nodes))]
    lines = []
    for band in curves(layout):
        for curve in band:
            bundle = curve.bundle
            shape = (curve.x1, curve.y1, curve.x2, curve.y2, curve.arch)
            lines.append(
                [
                    bundle.lower,
                    bundle.upper,
                    *(round(value, 1) for value in shape),
                    tiers.rail_of(bundle),
                    tiers.plane_of(bundle),
                    bundle.cables.tolist(),
                ]
            )
    names = {level: tiers.level_name(level) for level in tiers.levels}
    rows = {level: row.y for level, row in layout.rows.items()} | {0: layout.host_y}
    return {
        "boxes": boxes,
        "lines": lines,
        "parts": _parts(layout),
        "tiers": [
            [names[level], round(y, 1), tiers.count(level)] for level, y in sorted(rows.items())
        ],
        "scale": round(layout.scale, 3),
        "whole": not tiers.collapsed,
    }


def _box(layout: Layout, number: int) -> list[Any]:
    tiers = layout.tiers
    node, place = tiers.nodes[number], layout.places[number]
    if node.level:
        y, height = layout.rows[node.level].y, layout.rows[node.level].height
    else:
        y = layout.host_y
        height = layout.host.height if node.collapsed else layout.host.body
    width = layout.host.width if not node.level and not node.collapsed else place.width
    return [
        node.level,
        round(place.x - width / 2, 1),
        round(y, 1),
        round(width, 1),
        round(height, 1),
        node.name,
        node.rail,
        node.plane,
        box_text(tiers, number),
        list(node.members),
    ]


def _parts(layout: Layout) -> list[list[Any]]:
    """Return the cells of NICs and GPUs in hosts that have a box of their own."""
    found: list[list[Any]] = []
    if layout.host.stacked:
        return found
    tiers, row = layout.tiers, layout.host.row
    for number in tiers.levels.get(0, ()):
        node = tiers.nodes[number]
        if node.collapsed or len(node.members) != 1:
            continue
        host = node.members[0]
        left, y = layout.places[number].x - layout.host.width / 2, layout.host_y + 5
        for kind in (DeviceKind.NIC, DeviceKind.GPU):
            devices = tiers.parts[host].get(kind, [])
            cell, first = part_cells(layout, len(devices), host)
            for place, device in enumerate(devices):
                x = left + first + place * cell
                found.append([device, round(x, 1), round(y, 1), round(cell, 1), row])
            y += row + 3
    return found
