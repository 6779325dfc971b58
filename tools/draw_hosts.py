# SPDX-License-Identifier: Apache-2.0
"""Hosts of a drawing: a box each with its NICs, GPUs and NVSwitches, or stacks of many hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from railweave.fabric.graph import DeviceKind
from railweave.fabric.words import plural
from railweave.tools.layout import part_cells
from railweave.tools.palette import rail_colour, ramp
from railweave.tools.ranks import gpus_by_host
from railweave.tools.scene import Box, Label, text_width

if TYPE_CHECKING:
    from railweave.tools.layout import Layout
    from railweave.tools.overlay import LinkLoads
    from railweave.tools.ranks import RankMap
    from railweave.tools.scene import Scene
    from railweave.tools.tiers import Node

__all__ = ["add_hosts"]

_CELL_TEXT: Final = 9.0
_CELL_TEXT_LEAST: Final = 5.0


def add_hosts(
    scene: Scene, layout: Layout, loads: LinkLoads | None, ranks: RankMap | None = None
) -> None:
    """Draw every host that is not collapsed.

    With a run, in the colour of its busiest links; GPUs in the colour of what was placed on them.
    """
    tiers, style = layout.tiers, layout.host
    peak = None if loads is None else loads.of_devices(tiers.fabric).tolist()
    hosts = [] if loads is None else loads.of_hosts(tiers.fabric).tolist()
    for number in tiers.levels.get(0, ()):
        node, place = tiers.nodes[number], layout.places[number]
        if node.collapsed:
            continue
        x = place.x - style.width / 2
        scene.boxes.append(
            Box(
                x=x,
                y=layout.host_y,
                width=style.width,
                height=style.body,
                fill="#ffffff",
                stroke="#9aa7b4",
                stroke_width=0.9,
                radius=3 if style.width > 30 else 1.5,
                tip=node.name,
            )
        )
        if style.stacked:
            _stack(scene, layout, node, x, loads, hosts, ranks)
        else:
            _parts(scene, layout, x, node.members[0], loads, peak, ranks)
        if number not in layout.named:
            continue
        y = layout.host_y + style.body + (6 if style.upright else 4 + style.text)
        scene.labels.append(
            Label(
                x=place.x + (style.text * 0.36 if style.upright else 0),
                y=y,
                text=node.name,
                size=style.text,
                anchor="end" if style.upright else "middle",
                upright=style.upright,
            )
        )
    _racks(scene, layout, loads, peak)


def _racks(scene: Scene, layout: Layout, loads: LinkLoads | None, peak: list[float] | None) -> None:
    """Draw a bar under the hosts of each rack: the NVSwitches that join their GPUs."""
    tiers, style = layout.tiers, layout.host
    members: dict[int, list[float]] = {}
    for number in tiers.levels.get(0, ()):
        node = tiers.nodes[number]
        rack = int(tiers.racks[node.members[0]])
        if not node.collapsed and rack >= 0:
            members.setdefault(rack, []).append(layout.places[number].x)
    names = [tiers.nodes[n].name for n in layout.named]
    longest = max((text_width(name, style.text) for name in names), default=0.0)
    y = layout.host_y + style.body + (longest + 12 if style.upright else style.text + 9)
    for rack, middles in members.items():
        name = tiers.fabric.device_names[rack]
        left, right = min(middles) - style.width / 2, max(middles) + style.width / 2
        tip = f"{name}: NVSwitches of the rack"
        if loads is not None and peak is not None:
            tip += f", {loads.say(peak[rack])}"
        scene.boxes.append(
            Box(
                x=left,
                y=y,
                width=right - left,
                height=6,
                fill="#c3cbd4" if peak is None else ramp(peak[rack]),
                radius=1.5,
                tip=tip,
            )
        )
        text, size = name.partition("/")[0], 10 * layout.scale
        if text_width(text, size) < right - left:
            middle = (left + right) / 2
            scene.labels.append(Label(x=middle, y=y + 8 + size, text=text, size=size))


def _parts(
    scene: Scene,
    layout: Layout,
    x: float,
    host: int,
    loads: LinkLoads | None,
    peak: list[float] | None,
    ranks: RankMap | None,
) -> None:
    """Draw NICs over the GPUs that they serve, over the NVSwitch that joins the GPUs."""
    fabric, found, row = layout.tiers.fabric, layout.tiers.parts[host], layout.host.row
    y = layout.host_y + 5
    kinds = ((DeviceKind.NIC, "NIC"), (DeviceKind.GPU, "GPU"))
    for kind, word in kinds:
        devices = found.get(kind, [])
        cell, first = part_cells(layout, len(devices), host)
        thin = 0.5 if cell > 4 else 0.0
        for place, device in enumerate(devices):
            fill = "#8b98a7"
            if kind == DeviceKind.NIC:
                fill = rail_colour(int(fabric.rail[device]) if layout.tiers.railed else -1)
            if peak is not None:
                fill = ramp(peak[device])
            tip = f"{fabric.device_names[device]}: {fabric.model[device] or word}"
            if loads is not None and peak is not None:
                tip += f", {loads.say(peak[device])}"
            shown = str(int(fabric.index[device]))
            if ranks is not None and kind == DeviceKind.GPU:
                fill = ranks.colour(int(ranks.label_of[device]))
                if said := ranks.say(device):
                    tip += f", {said}"
                shown = str(int(ranks.rank_of[device])) if said else ""
            left = x + first + place * cell
            scene.boxes.append(
                Box(
                    x=left + thin,
                    y=y,
                    width=cell - 2 * thin,
                    height=row,
                    fill=fill,
                    radius=1.2 * (thin > 0),
                    tip=tip,
                )
            )
            size = min(_CELL_TEXT, (cell - 2) / max(1.0, text_width(shown, 1.0)))
            if shown and cell >= 11 and size >= _CELL_TEXT_LEAST:
                light = "#ffffff" if peak is None or peak[device] > 0.25 else "#1f2933"
                scene.labels.append(
                    Label(
                        x=left + cell / 2,
                        y=y + row / 2 + 3.3,
                        text=shown,
                        size=size,
                        colour=light,
                    )
                )
        y += row + 3
    joined = found.get(DeviceKind.NVSWITCH, [])
    if joined:
        cell, first = part_cells(layout, len(found.get(DeviceKind.GPU, [])), host)
        width = cell * len(found.get(DeviceKind.GPU, []))
        load = max(peak[device] for device in joined) if peak is not None else 0.0
        fill = "#c3cbd4" if peak is None else ramp(load)
        scene.boxes.append(
            Box(
                x=x + first,
                y=y,
                width=width,
                height=5,
                fill=fill,
                radius=1.5,
                tip=f"{plural(len(joined), 'NVSwitch')}",
            )
        )


def _stack(
    scene: Scene,
    layout: Layout,
    node: Node,
    x: float,
    loads: LinkLoads | None,
    peak: list[float],
    ranks: RankMap | None,
) -> None:
    """Draw a row per host of a stack, coloured by its busiest network link, or what it runs."""
    style = layout.host
    gpus = gpus_by_host(layout.tiers.fabric) if ranks is not None else []
    for place, host in enumerate(node.members):
        name = layout.tiers.fabric.host_names[host]
        fill, tip = "#8b98a7", name
        if loads is not None:
            fill, tip = ramp(peak[host]), f"{name}: {loads.say(peak[host])}"
        if ranks is not None:
            label = ranks.of_host(gpus[host])
            fill = ranks.colour(label)
            tip = f"{name}: {ranks.labels[label]}" if label >= 0 else name
        gap = 0.5 if style.row >= 4 else 0.2
        scene.boxes.append(
            Box(
                x=x + 2,
                y=layout.host_y + 3 + place * style.row,
                width=style.width - 4,
                height=style.row - 2 * gap,
                fill=fill,
                tip=tip,
            )
        )
