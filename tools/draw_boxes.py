# SPDX-License-Identifier: Apache-2.0
"""Boxes of switches, and boxes that stand for all hosts or switches of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.words import plural
from railweave.tools.box_text import LINE, SEPARATOR, STRIP, BoxText, box_text
from railweave.tools.palette import PLANE_FILLS, SWITCH, rail_colour, ramp
from railweave.tools.ranks import gpus_by_host
from railweave.tools.scene import Box, Label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from railweave.tools.layout import Layout
    from railweave.tools.overlay import LinkLoads
    from railweave.tools.ranks import RankMap
    from railweave.tools.scene import Scene
    from railweave.tools.tiers import Node

__all__ = ["add_boxes"]

_HOSTS: Final = "#9aa7b4"
_CELLS: Final = 32  # of a strip
_LAYERS: Final = 3.0  # pixels by which the box behind a collapsed one peeps out


def add_boxes(
    scene: Scene, layout: Layout, loads: LinkLoads | None, ranks: RankMap | None = None
) -> None:
    """Draw the switches, and every collapsed box; with a run, the load of its members below."""
    nodes, fabric = layout.tiers.nodes, layout.tiers.fabric
    hosts = None if loads is None else loads.of_hosts(fabric)
    devices = None if loads is None else loads.of_devices(fabric)
    gpus = gpus_by_host(fabric) if ranks is not None else []
    for level, row in layout.rows.items():
        for number in layout.tiers.levels[level]:
            closed = nodes[number].collapsed
            style = row.collapsed if closed else row.single
            _box(scene, layout, number, row.y, row.height, style)
            if closed:
                _strip(scene, layout, number, row.y + row.height, devices)
    for number in layout.tiers.levels.get(0, ()):
        if nodes[number].collapsed:
            style, height = layout.host.collapsed, layout.host.height
            _box(scene, layout, number, layout.host_y, height, style)
            if ranks is None:
                _strip(scene, layout, number, layout.host_y + height, hosts)
            else:
                labels = [ranks.of_host(gpus[host]) for host in nodes[number].members]
                shown = np.linspace(0, len(labels) - 1, min(len(labels), _CELLS)).round()
                colours = [ranks.colour(labels[int(i)]) for i in shown]
                _cells(scene, layout, number, layout.host_y + height, colours)


def _box(
    scene: Scene, layout: Layout, number: int, y: float, height: float, style: BoxText
) -> None:
    node, place = layout.tiers.nodes[number], layout.places[number]
    wide = place.width > 24
    stroke = rail_colour(node.rail) if node.rail >= 0 else (SWITCH if node.level else _HOSTS)
    box = Box(
        x=place.x - place.width / 2,
        y=y,
        width=place.width,
        height=height,
        fill=PLANE_FILLS[node.plane % len(PLANE_FILLS)] if node.plane >= 0 else "#ffffff",
        stroke=stroke,
        stroke_width=1.6 if wide else 1.0,
        radius=4 if wide else 2.5,
        tip=_tip(layout, node),
    )
    if node.collapsed and wide:  # a second one behind says that there are several
        scene.boxes.append(
            Box(
                x=box.x + _LAYERS,
                y=y - _LAYERS,
                width=box.width,
                height=height,
                fill=box.fill,
                stroke=stroke,
                radius=box.radius,
                opacity=0.55,
            )
        )
    scene.boxes.append(box)
    lines = box_text(layout.tiers, number)
    size, foot = style.size, STRIP + 3 if style.strip else 0.0
    middle = y + (height - foot) / 2
    if style.upright:
        scene.labels.append(
            Label(
                x=place.x + size * 0.36,
                y=middle,
                text=SEPARATOR.join(lines),
                size=size,
                upright=True,
            )
        )
        return
    first = middle - LINE * size * (len(lines) - 1) / 2 + size * 0.36
    for i, line in enumerate(lines):
        scene.labels.append(Label(x=place.x, y=first + i * LINE * size, text=line, size=size))


def _tip(layout: Layout, node: Node) -> str:
    fabric = layout.tiers.fabric
    if node.level == 0:
        first, last = (fabric.host_names[host] for host in (node.members[0], node.members[-1]))
        return f"{node.name}: {plural(len(node.members), 'host')}, {first}\N{EN DASH}{last}"
    models = sorted({fabric.model[switch] for switch in node.members} - {""})
    if len(node.members) == 1:
        return f"{node.name}: {models[0] if models else 'switch'}"
    what = " and ".join(models) or "switch"
    return f"{node.name}: {len(node.members)} \N{MULTIPLICATION SIGN} {what}"


def _strip(
    scene: Scene,
    layout: Layout,
    number: int,
    bottom: float,
    peaks: NDArray[np.float64] | None,
) -> None:
    """Draw at the foot of a box the rails of its switches, or what a run did to its members.

    ``peaks`` holds the load of the busiest network link of each device or host; members are in
    order of it, the busiest first.
    """
    node = layout.tiers.nodes[number]
    if peaks is None:
        rails = sorted({int(layout.tiers.fabric.rail[s]) for s in node.members if node.level})
        colours = [rail_colour(rail) for rail in rails if rail >= 0]
    else:
        found = np.sort(peaks[list(node.members)])[::-1]
        shown = np.linspace(0, len(found) - 1, min(len(found), _CELLS)).round().astype(int)
        colours = [ramp(load) for load in found[shown].tolist()]
    _cells(scene, layout, number, bottom, colours)


def _cells(
    scene: Scene, layout: Layout, number: int, bottom: float, colours: Sequence[str]
) -> None:
    place = layout.places[number]
    width = (place.width - 4) / max(1, len(colours))
    for i, colour in enumerate(colours):
        scene.boxes.append(
            Box(
                x=place.x - place.width / 2 + 2 + i * width,
                y=bottom - STRIP - 2,
                width=width,
                height=STRIP,
                fill=colour,
            )
        )
