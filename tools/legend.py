# SPDX-License-Identifier: Apache-2.0
"""The panel right of a drawing: what colours, shapes and widths mean, and the hottest links."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.graph import DeviceKind
from railweave.fabric.words import plural
from railweave.tools.palette import (
    DOWN,
    MUTED,
    PLANE_FILLS,
    RAMP,
    SWITCH,
    rail_colour,
    ramp,
    ramp_place,
)
from railweave.tools.scene import Box, Cable, Label, Scene, text_width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.tools.layout import Layout
    from railweave.tools.overlay import LinkLoads
    from railweave.tools.ranks import RankMap

__all__ = ["add_panel"]

_WIDTH: Final = 248.0
_TICKS: Final = (0, 5, 25, 50, 100)  # per cent
_HOTTEST: Final = 12
_RAILS_SHOWN: Final = 16


def add_panel(
    scene: Scene,
    layout: Layout,
    loads: LinkLoads | None,
    ranks: RankMap | None = None,
    *,
    shapes: bool = True,
) -> None:
    """Add the legends, and grow the scene if they are taller than the drawing.

    Without ``shapes`` nothing is said of what boxes look like: for pictures that have others.
    """
    panel = Scene()
    x, y = 0.0, 100.0
    if loads is not None:
        y = _utilisation(panel, loads, x, y, means=layout.tiers.collapsed)
        y = _hottest(panel, layout, loads, x, y)
    if ranks is not None:
        y = _placement(panel, ranks, x, y, numbered=shapes)
    if shapes or not layout.tiers.collapsed:
        y = _rails(panel, layout, loads, x, y)
    y = _planes(panel, layout, x, y)
    if shapes:
        y = _shapes(panel, layout, loads, x, y)
    scene.add(panel, x=layout.right, scale=layout.scale)
    scene.height = max(scene.height, (y + 10) * layout.scale)


def _title(scene: Scene, x: float, y: float, text: str) -> float:
    scene.labels.append(Label(x=x, y=y, text=text, size=12, anchor="start", bold=True))
    return y + 14


def _placement(scene: Scene, ranks: RankMap, x: float, y: float, *, numbered: bool) -> float:
    """Say which colour stands for which workload or pool, and how many GPUs it has."""
    y = _title(scene, x, y, "Placed on GPUs")
    counts = np.bincount(ranks.label_of[ranks.label_of >= 0], minlength=len(ranks.labels))
    entries = [
        (f"{name}: {plural(int(n), 'GPU')}", ranks.colour(i))
        for i, (name, n) in enumerate(zip(ranks.labels, counts, strict=True))
    ]
    for text, colour in [*entries[:_RAILS_SHOWN], ("nothing", ranks.colour(-1))]:
        scene.boxes.append(Box(x=x, y=y - 1, width=13, height=11, fill=colour, radius=2))
        scene.labels.append(Label(x=x + 20, y=y + 8.5, text=text, size=11, anchor="start"))
        y += 19
    if not numbered:
        return y + 14
    told = "number in a GPU: its rank"
    scene.labels.append(Label(x=x, y=y + 10, text=told, size=10.5, anchor="start", colour=MUTED))
    return y + 34


def _utilisation(scene: Scene, loads: LinkLoads, x: float, y: float, *, means: bool) -> float:
    y = _title(scene, x, y, loads.measure.title)
    bar = Box(x=x, y=y, width=_WIDTH, height=12, fill="none", radius=2)
    scene.ramps.append((bar, RAMP))
    for tick in _TICKS:
        place = x + ramp_place(tick / 100) * _WIDTH
        text = f"{tick} %" if tick == 100 else str(tick)
        if not loads.measure.share:
            text = loads.say(tick / 100)
        anchor = {0: "start", 100: "end"}.get(tick, "middle")
        scene.boxes.append(Box(x=place - 0.4, y=y + 12, width=0.8, height=4, fill=MUTED))
        scene.labels.append(
            Label(x=place, y=y + 28, text=text, size=10.5, anchor=anchor, colour=MUTED)
        )
    texts = ["colour and width: the busiest direction of the"]
    if means:
        texts = ["colour of a line: the busiest direction of its"]
    whole = "mean over the run" if loads.measure.share else "all of the run"
    texts.append(f"busiest cable, {whole}")
    if means:
        texts.append("thin line on it: the mean of all its cables")
    for text in texts:
        scene.labels.append(
            Label(x=x, y=y + 45, text=text, size=10.5, anchor="start", colour=MUTED)
        )
        y += 14
    return y + 58


def _hottest(scene: Scene, layout: Layout, loads: LinkLoads, x: float, y: float) -> float:
    links = list(loads.path) if loads.path else loads.hottest(_HOTTEST)
    y = _title(scene, x, y, "Its path, in order" if loads.path else loads.measure.hottest)
    if not links:
        text = "nothing was sent" if loads.measure.key == "utilisation" else "none"
        scene.labels.append(Label(x=x, y=y + 4, text=text, size=11, anchor="start", colour=MUTED))
    for link in links:
        load = float(loads.utilisation[link])
        name, size = layout.tiers.fabric.link_name(link), 11.0
        while text_width(name, size) > _WIDTH - 58 and len(name) > 8:
            name = name.rstrip("\N{HORIZONTAL ELLIPSIS}")[:-1] + "\N{HORIZONTAL ELLIPSIS}"
        scene.boxes.append(Box(x=x, y=y + 7, width=_WIDTH, height=3, fill="#edf0f3", radius=1.5))
        scene.boxes.append(
            Box(x=x, y=y + 7, width=max(1.5, _WIDTH * load), height=3, fill=ramp(load), radius=1.5)
        )
        scene.labels.append(Label(x=x, y=y + 3, text=name, size=size, anchor="start"))
        text = loads.say(load, digits=1)
        if loads.measure.share and 0 < load < 0.001:
            text = "<0.1 %"
        scene.labels.append(Label(x=x + _WIDTH, y=y + 3, text=text, size=size, anchor="end"))
        y += 22
    return y + 20


def _rails(scene: Scene, layout: Layout, loads: LinkLoads | None, x: float, y: float) -> float:
    fabric = layout.tiers.fabric
    found = fabric.rail[fabric.switches].tolist()
    if loads is not None:  # then only outlines of boxes show rails
        found = [node.rail for node in layout.tiers.nodes]
    rails = sorted({rail for rail in found if rail >= 0})[:_RAILS_SHOWN]
    if not rails:
        return y
    y = _title(scene, x, y, "Rails" if loads is None else "Rails (outline of leaf switches)")
    for place, rail in enumerate(rails):
        column, line = place % 4, place // 4
        left = x + column * 62
        top = y + line * 19
        scene.boxes.append(
            Box(x=left, y=top - 1, width=13, height=11, fill=rail_colour(rail), radius=2)
        )
        scene.labels.append(
            Label(x=left + 18, y=top + 8.5, text=f"r{rail}", size=11, anchor="start")
        )
    return y + 19 * ((len(rails) + 3) // 4) + 22


def _planes(scene: Scene, layout: Layout, x: float, y: float) -> float:
    planes = sorted({node.plane for node in layout.tiers.nodes if node.plane >= 0})
    if len(planes) < 2:
        return y
    y = _title(scene, x, y, "Planes (ground of switches)")
    for place, plane in enumerate(planes[:_RAILS_SHOWN]):
        left, top = x + place % 4 * 62, y + place // 4 * 19
        scene.boxes.append(
            Box(
                x=left,
                y=top - 1,
                width=13,
                height=11,
                fill=PLANE_FILLS[plane % len(PLANE_FILLS)],
                stroke=MUTED,
                stroke_width=0.6,
                radius=2,
            )
        )
        scene.labels.append(
            Label(x=left + 18, y=top + 8.5, text=f"p{plane}", size=11, anchor="start")
        )
    return y + 19 * ((min(len(planes), _RAILS_SHOWN) + 3) // 4) + 22


def _in_hosts(layout: Layout, loads: LinkLoads | None) -> list[tuple[str, str]]:
    """Return what is drawn of hosts: the swatch and the words of each line of the legend."""
    tiers = layout.tiers
    kinds = {kind for found in tiers.parts.values() for kind in found}
    lines: list[tuple[str, str]] = []
    if layout.host.stacked:
        return [("stack", "a row per host, hosts of one set of leaves")]
    if DeviceKind.NIC in kinds:
        lines.append(("nic", "upper row: NICs" + ", by rail" * (loads is None and tiers.railed)))
    if DeviceKind.GPU in kinds:
        nics = DeviceKind.NIC in kinds
        lines.append(("gpu", "lower row: GPUs, each below its NIC" if nics else "row: GPUs"))
    if DeviceKind.NVSWITCH in kinds:
        lines.append(("nvs", "bar: NVSwitches, joining the GPUs"))
    shown = [tiers.nodes[n].members[0] for n in layout.named]
    if any(tiers.racks[host] >= 0 for host in shown):
        lines.append(("nvs", "bar below: NVSwitches of a rack"))
    return lines


def _collapsed(layout: Layout, loads: LinkLoads | None) -> list[tuple[str, str]]:
    tiers = layout.tiers
    if not tiers.collapsed:
        return []
    each = "a column per group" if all(column.title for column in tiers.columns) else "a column"
    if any(not column.groups for column in tiers.columns):
        each = "a column per set of leaves"
    most = max(column.count for column in tiers.columns)
    if most > 1:
        each = f"a column for up to {most} of them in a row"
        each = each.replace("of them", "groups" if tiers.columns[0].groups else "sets of leaves")
    lines = [("", each), ("box", "box: all hosts, or all switches of a tier")]
    lines.append(("line", "line: all cables between two boxes"))
    if loads is not None:
        lines.append(("strip", "strip: load of its members, busiest first"))
    elif tiers.railed:
        lines.append(("rails", "strip: the rails of its switches"))
    return lines


def _shapes(scene: Scene, layout: Layout, loads: LinkLoads | None, x: float, y: float) -> float:
    y = _entries(scene, layout, "Collapsed", _collapsed(layout, loads), x, y, loads)
    lines = _in_hosts(layout, loads)
    title = "Hosts" if layout.host.stacked else "In a host"
    if not np.all(layout.tiers.fabric.link_up):
        lines.append(("down", "cable that is down"))
        title = title if len(lines) > 1 else "Cables"
    return _entries(scene, layout, title, lines, x, y, loads)


def _entries(
    scene: Scene,
    layout: Layout,
    title: str,
    lines: Sequence[tuple[str, str]],
    x: float,
    y: float,
    loads: LinkLoads | None,
) -> float:
    """Add a list of swatches and words under a title."""
    if not lines:
        return y
    y = _title(scene, x, y, title)
    for kind, text in lines:
        _swatch(scene, layout, kind, x, y + 4, loads)
        scene.labels.append(
            Label(x=x + 32 * (kind != ""), y=y + 8, text=text, size=11, anchor="start")
        )
        y += 19
    return y + 22


def _swatch(
    scene: Scene, layout: Layout, kind: str, x: float, y: float, loads: LinkLoads | None
) -> None:
    """Draw the sample of a line of the legend; ``y`` is its middle."""
    if kind in ("down", "line"):
        line = Cable(x1=x, y1=y, x2=x + 24, y2=y, colour=SWITCH, width=1.8, opacity=0.8)
        if kind == "down":
            line = replace(line, colour=DOWN, opacity=0.9, dashed=True)
        scene.cables.append(line)
    elif kind in ("rails", "strip"):
        colours = [rail_colour(i) for i in range(4)] if kind == "rails" else RAMP[4:0:-1]
        for i, colour in enumerate(colours):
            scene.boxes.append(Box(x=x + 6 * i, y=y - 3, width=6, height=6, fill=colour))
    elif kind == "box":
        box = Box(x=x, y=y - 5, width=19, height=11, fill="#ffffff", stroke=SWITCH, radius=2)
        scene.boxes += [replace(box, x=x + 2.5, y=y - 7.5, opacity=0.55), box]
    elif kind:
        height = 5 if kind == "nvs" else 11
        nic = rail_colour(0 if layout.tiers.railed else -1)
        fill = {"nic": nic, "gpu": "#8b98a7", "nvs": "#c3cbd4", "stack": "#8b98a7"}[kind]
        scene.boxes.append(
            Box(
                x=x,
                y=y - height / 2,
                width=24 if kind == "nvs" else 13,
                height=height,
                fill=fill if loads is None else RAMP[0],
                radius=2,
            )
        )
