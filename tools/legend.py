# SPDX-License-Identifier: Apache-2.0
"""The panel right of a drawing: what colours, shapes and widths mean, and the hottest links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.graph import DeviceKind
from railweave.tools.palette import DOWN, MUTED, RAMP, rail_colour, ramp, ramp_place
from railweave.tools.scene import Box, Cable, Label, Scene, text_width

if TYPE_CHECKING:
    from railweave.tools.layout import Layout
    from railweave.tools.overlay import LinkLoads

__all__ = ["add_panel"]

_WIDTH: Final = 248.0
_TICKS: Final = (0, 5, 25, 50, 100)  # per cent
_HOTTEST: Final = 12
_RAILS_SHOWN: Final = 16


def add_panel(scene: Scene, layout: Layout, loads: LinkLoads | None) -> None:
    """Add the legends, and grow the scene if they are taller than the drawing."""
    panel = Scene()
    x, y = 0.0, 100.0
    if loads is not None:
        y = _utilisation(panel, x, y)
        y = _hottest(panel, layout, loads, x, y)
    y = _rails(panel, layout, loads, x, y)
    y = _shapes(panel, layout, loads, x, y)
    scene.add(panel, x=layout.right, scale=layout.scale)
    scene.height = max(scene.height, (y + 10) * layout.scale)


def _title(scene: Scene, x: float, y: float, text: str) -> float:
    scene.labels.append(Label(x=x, y=y, text=text, size=12, anchor="start", bold=True))
    return y + 14


def _utilisation(scene: Scene, x: float, y: float) -> float:
    y = _title(scene, x, y, "Link utilisation")
    bar = Box(x=x, y=y, width=_WIDTH, height=12, fill="none", radius=2)
    scene.ramps.append((bar, RAMP))
    for tick in _TICKS:
        place = x + ramp_place(tick / 100) * _WIDTH
        text = f"{tick} %" if tick == 100 else str(tick)
        anchor = {0: "start", 100: "end"}.get(tick, "middle")
        scene.boxes.append(Box(x=place - 0.4, y=y + 12, width=0.8, height=4, fill=MUTED))
        scene.labels.append(
            Label(x=place, y=y + 28, text=text, size=10.5, anchor=anchor, colour=MUTED)
        )
    for text in (
        "colour and width: the busiest direction of the",
        "busiest cable of a line, mean over the run",
    ):
        scene.labels.append(
            Label(x=x, y=y + 45, text=text, size=10.5, anchor="start", colour=MUTED)
        )
        y += 14
    return y + 58


def _hottest(scene: Scene, layout: Layout, loads: LinkLoads, x: float, y: float) -> float:
    links = loads.hottest(_HOTTEST)
    y = _title(scene, x, y, "Hottest links")
    if not links:
        scene.labels.append(
            Label(x=x, y=y + 4, text="nothing was sent", size=11, anchor="start", colour=MUTED)
        )
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
        text = f"{100 * load:.1f} %" if load >= 0.001 else "<0.1 %"
        scene.labels.append(Label(x=x + _WIDTH, y=y + 3, text=text, size=size, anchor="end"))
        y += 22
    return y + 20


def _rails(scene: Scene, layout: Layout, loads: LinkLoads | None, x: float, y: float) -> float:
    fabric = layout.tiers.fabric
    leaves = {int(fabric.rail[s]) for s in fabric.switches if fabric.rail[s] >= 0}
    rails = sorted(leaves)[:_RAILS_SHOWN]
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


def _shapes(scene: Scene, layout: Layout, loads: LinkLoads | None, x: float, y: float) -> float:
    tiers, fabric = layout.tiers, layout.tiers.fabric
    lines: list[tuple[str, str]] = []
    if layout.host.stacked:
        lines.append(("stack", "a row per host, hosts of one set of leaves"))
    else:
        kinds = {kind for found in tiers.parts for kind in found}
        if DeviceKind.NIC in kinds:
            lines.append(
                ("nic", "upper row: NICs" + ", by rail" * (loads is None and tiers.railed))
            )
        if DeviceKind.GPU in kinds:
            lines.append(("gpu", "lower row: GPUs, each below its NIC"))
        if DeviceKind.NVSWITCH in kinds:
            lines.append(("nvs", "bar: NVSwitches, joining the GPUs"))
    if not np.all(fabric.link_up):
        lines.append(("down", "cable that is down"))
    if not lines:
        return y
    y = _title(scene, x, y, "In a host" if not layout.host.stacked else "Hosts")
    for kind, text in lines:
        if kind == "down":
            scene.cables.append(
                Cable(
                    x1=x,
                    y1=y + 4,
                    x2=x + 24,
                    y2=y + 4,
                    colour=DOWN,
                    width=1.6,
                    opacity=0.9,
                    dashed=True,
                )
            )
        else:
            height = 5 if kind == "nvs" else 11
            nic = rail_colour(0 if tiers.railed else -1)
            fill = {"nic": nic, "gpu": "#8b98a7", "nvs": "#c3cbd4", "stack": "#8b98a7"}[kind]
            if loads is not None:
                fill = RAMP[0]
            scene.boxes.append(
                Box(
                    x=x,
                    y=y + 4 - height / 2,
                    width=24 if kind == "nvs" else 13,
                    height=height,
                    fill=fill,
                    radius=2,
                )
            )
        scene.labels.append(Label(x=x + 32, y=y + 8, text=text, size=11, anchor="start"))
        y += 19
    return y + 8
