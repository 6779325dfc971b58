# SPDX-License-Identifier: Apache-2.0
"""Hosts of a drawing: a box each with its NICs, GPUs and NVSwitches, or stacks of many hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.graph import DeviceKind
from railweave.tools.layout import part_cells, unit_name
from railweave.tools.palette import rail_colour, ramp
from railweave.tools.scene import Box, Label
from railweave.tools.words import plural

if TYPE_CHECKING:
    from railweave.fabric.graph import Fabric
    from railweave.tools.layout import Layout
    from railweave.tools.overlay import LinkLoads
    from railweave.tools.scene import Scene

__all__ = ["add_hosts"]

_CELL_TEXT: Final = 9.0


def add_hosts(scene: Scene, layout: Layout, loads: LinkLoads | None) -> None:
    """Draw every host; with a run, parts take the colour of their busiest link."""
    tiers, style = layout.tiers, layout.host
    peak = _peaks(tiers.fabric, loads)
    for number, unit in enumerate(tiers.units):
        x = layout.unit_x[number]
        scene.boxes.append(
            Box(
                x=x,
                y=layout.host_y,
                width=style.width,
                height=style.height,
                fill="#ffffff",
                stroke="#9aa7b4",
                stroke_width=0.9,
                radius=3 if style.width > 30 else 1.5,
                tip=unit_name(tiers, unit),
            )
        )
        if style.stacked:
            _stack(scene, layout, number, peak)
        else:
            _parts(scene, layout, x, unit.hosts[0], peak)
        if number not in layout.named:
            continue
        y = layout.host_y + style.height + (6 if style.upright else 4 + style.text)
        scene.labels.append(
            Label(
                x=x + style.width / 2 + (style.text * 0.36 if style.upright else 0),
                y=y,
                text=unit_name(tiers, unit),
                size=style.text,
                anchor="end" if style.upright else "middle",
                upright=style.upright,
            )
        )


def _peaks(fabric: Fabric, loads: LinkLoads | None) -> list[float] | None:
    """Highest utilisation among the links of each device; of a NIC or host, its network links."""
    if loads is None:
        return None
    peak = np.zeros(fabric.n_devices)
    network = fabric.link_network
    for ends in (fabric.link_src, fabric.link_dst):
        nic = fabric.kind[ends] == DeviceKind.NIC
        counted = np.where(nic & ~network, 0.0, loads.utilisation)
        np.maximum.at(peak, ends, counted)
    return [float(value) for value in peak]


def _parts(scene: Scene, layout: Layout, x: float, host: int, peak: list[float] | None) -> None:
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
            if peak is not None:
                tip += f", {100 * peak[device]:.2f} %"
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
            if cell >= 11:
                light = "#ffffff" if peak is None or peak[device] > 0.25 else "#1f2933"
                scene.labels.append(
                    Label(
                        x=left + cell / 2,
                        y=y + row / 2 + 3.3,
                        text=str(int(fabric.index[device])),
                        size=_CELL_TEXT,
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


def _stack(scene: Scene, layout: Layout, number: int, peak: list[float] | None) -> None:
    """Draw a row per host of a stack, coloured by its busiest network link."""
    tiers, style = layout.tiers, layout.host
    for place, host in enumerate(tiers.units[number].hosts):
        nics = tiers.parts[host].get(DeviceKind.NIC, [])
        name = tiers.fabric.host_names[host]
        fill, tip = "#8b98a7", name
        if peak is not None:
            load = max((peak[nic] for nic in nics), default=0.0)
            fill, tip = ramp(load), f"{name}: {100 * load:.2f} %"
        gap = 0.5 if style.row >= 4 else 0.2
        scene.boxes.append(
            Box(
                x=layout.unit_x[number] + 2,
                y=layout.host_y + 3 + place * style.row,
                width=style.width - 4,
                height=style.row - 2 * gap,
                fill=fill,
                tip=tip,
            )
        )
