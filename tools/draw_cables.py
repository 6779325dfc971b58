# SPDX-License-Identifier: Apache-2.0
"""Cables of a drawing: one line for all parallel cables between two boxes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.graph import DeviceKind
from railweave.tools.layout import part_cells
from railweave.tools.palette import DOWN, MUTED, rail_colour, ramp
from railweave.tools.scene import CURVE_LIFT, Box, Cable, Label
from railweave.tools.words import plural, shown_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.tools.layout import Layout
    from railweave.tools.overlay import LinkLoads
    from railweave.tools.scene import Scene
    from railweave.tools.tiers import Bundle

__all__ = ["add_cables"]

_FEW: Final = 16  # bundles in a band: each says how many cables it is
_COUNTED_BELOW: Final = 40  # as many do so where they differ; more would leave no room


@dataclass(frozen=True)
class _Look:
    """How the line of a bundle looks, and where in the order of drawing it comes."""

    load: float
    colour: str
    width: float
    opacity: float
    tip: str
    dashed: bool = False


def add_cables(scene: Scene, layout: Layout, loads: LinkLoads | None) -> None:
    """Draw every bundle of cables as one line."""
    hot: list[tuple[float, Cable]] = []
    for (lower, upper), bundles in layout.tiers.bands.items():
        low, high = _anchors(layout, bundles)
        dense = max(0.0, math.log2(max(1, len(bundles)) / 32))
        counts = {len(bundle.cables) for bundle in bundles}
        few = len(bundles) <= _FEW or (len(bundles) <= _COUNTED_BELOW and len(counts) > 1)
        for i, bundle in enumerate(bundles):
            y1 = layout.rows[lower].y if lower else layout.host_y
            y2 = layout.rows[upper].y + layout.rows[upper].height if upper else layout.host_y
            arch = 0.0
            if lower == upper:
                y2 = y1
                arch = min(40.0, 14 + abs(high[i] - low[i]) * 0.06)
            elif upper and lower > upper:
                y1, y2 = y2, y1
            look = _look(layout, bundle, loads, dense)
            cable = Cable(
                x1=low[i],
                y1=y1,
                x2=high[i],
                y2=y2,
                arch=arch,
                colour=look.colour,
                width=look.width,
                opacity=look.opacity,
                dashed=look.dashed,
                tip=look.tip,
            )
            hot.append((look.load, cable))
            if few and len(bundle.cables) > 1:
                _count(scene, cable, len(bundle.cables))
    hot.sort(key=lambda pair: pair[0])  # the busiest is drawn last, on top
    scene.cables.extend(cable for _, cable in hot)


def _look(layout: Layout, bundle: Bundle, loads: LinkLoads | None, dense: float) -> _Look:
    """Choose the look of a bundle; ``dense`` grows with the number of lines beside it."""
    fabric = layout.tiers.fabric
    count = len(bundle.cables)
    links = [link for cable in bundle.cables for link in (cable, cable + 1)]
    down = sum(not fabric.link_up[link] for link in links)
    ends = f"{fabric.device_names[bundle.lower]} \N{EN DASH} {fabric.device_names[bundle.upper]}"
    tip = f"{ends}: {plural(count, 'cable')} of {shown_rate(int(fabric.link_rate_bps[links[0]]))}"
    if down:
        tip += f", {down // 2} down" if down % 2 == 0 else f", {plural(down, 'direction')} down"
        return _Look(2.0, DOWN, 1.6, 0.9, tip, dashed=True)
    if loads is None:
        rail = max(int(fabric.rail[d]) for d in (bundle.lower, bundle.upper))
        width = (0.9 + 0.45 * math.log2(count)) / (1 + 0.10 * dense)
        opacity = max(0.07, 0.62 - 0.075 * dense)
        colour = rail_colour(rail if layout.tiers.railed else -1)
        return _Look(0.0, colour, width, opacity, tip)
    load = float(np.max(loads.utilisation[links]))
    busiest = links[int(np.argmax(loads.utilisation[links]))]
    if load > 0:
        tip += f"; busiest {fabric.link_name(busiest)} {100 * load:.2f} %"
    width = 0.6 + 3.2 * load**0.5 / (1 + 0.16 * dense)
    opacity = 0.4 if load <= 0 else min(0.95, 0.5 + 0.6 * load**0.5)
    return _Look(load, ramp(load), width, opacity, tip)


def _count(scene: Scene, cable: Cable, count: int) -> None:
    """Write the number of parallel cables on their line, where it hits no other label."""
    text = f"\N{MULTIPLICATION SIGN}{count}"
    for along in (0.18, 0.82, 0.3, 0.5, 0.7):  # near an end first, where lines lie apart
        back = 1 - along
        x = cable.x1 + (cable.x2 - cable.x1) * along * along * (3 - 2 * along)
        rise = 3 * along * back * (CURVE_LIFT * back + (1 - CURVE_LIFT) * along) + along**3
        y = cable.y1 + (cable.y2 - cable.y1) * rise - cable.arch * 4 * along * back
        label = Label(x=x, y=y + 4, text=text, size=10, colour=MUTED)
        left, top, right, bottom = label.bounds
        clear = all(
            right + 2 < box[0] or box[2] + 2 < left or bottom + 1 < box[1] or box[3] + 1 < top
            for box in (placed.bounds for placed in scene.labels)
        )
        if clear:
            scene.boxes.append(
                Box(
                    x=left - 2,
                    y=top - 1,
                    width=right - left + 4,
                    height=bottom - top + 2,
                    fill="#ffffff",
                    radius=3,
                )
            )
            scene.labels.append(label)
            return


def _anchors(
    layout: Layout, bundles: Sequence[Bundle]
) -> tuple[dict[int, float], dict[int, float]]:
    """Spread the ends of a band's bundles along the edge of each box, in the order of the others.

    Returns x at the lower end and x at the upper end by position in ``bundles``.
    """
    low: dict[int, float] = {}
    high: dict[int, float] = {}
    for ends, own, other in ((low, 0, 1), (high, 1, 0)):
        meet: dict[int, list[int]] = {}
        for i, bundle in enumerate(bundles):
            meet.setdefault((bundle.lower, bundle.upper)[own], []).append(i)
        for device, members in meet.items():
            x, width = _extent(layout, device)
            members.sort(
                key=lambda i: (_extent(layout, (bundles[i].lower, bundles[i].upper)[other])[0], i)
            )
            for place, i in enumerate(members):
                ends[i] = x + ((place + 0.5) / len(members) - 0.5) * width * 0.8
    return low, high


def _extent(layout: Layout, device: int) -> tuple[float, float]:
    """Return centre and width of whatever stands for a device where its cables arrive."""
    tiers = layout.tiers
    host = int(tiers.fabric.host[device])
    if host < 0:
        return layout.switch_x[device], layout.rows[tiers.level[device]].width
    x = layout.unit_x[tiers.unit_of_host[host]]
    if layout.host.stacked:
        return x + layout.host.width / 2, layout.host.width
    nics = tiers.parts[host].get(DeviceKind.NIC, [])
    if device not in nics:
        return x + layout.host.width / 2, layout.host.width
    cell, first = part_cells(layout, len(nics), host)
    return x + first + (nics.index(device) + 0.5) * cell, cell
