# SPDX-License-Identifier: Apache-2.0
"""Cables of a drawing: one line for all parallel cables between two boxes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.graph import DeviceKind
from railweave.fabric.words import plural
from railweave.tools.layout import part_cells
from railweave.tools.palette import DOWN, FAINT, MUTED, line_colour, ramp
from railweave.tools.scene import CURVE_LIFT, Box, Cable, Label
from railweave.tools.words import shown_rate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from railweave.tools.layout import Layout
    from railweave.tools.overlay import LinkLoads
    from railweave.tools.scene import Scene
    from railweave.tools.tiers import Bundle

__all__ = ["Curve", "add_cables", "curves", "describe"]

_FEW: Final = 16  # bundles in a band: each says how many cables it is
_FEW_GATHERED: Final = 10  # of whole groups, which also say the rate
_COUNTED_BELOW: Final = 40  # as many do so where they differ; more would leave no room
_CORE: Final = 0.42  # width of the inner line of a collapsed bundle, as a share of the outer


@dataclass(frozen=True)
class _Look:
    """How the line of a bundle looks, and where in the order of drawing it comes.

    ``mean`` is the colour of an inner line, or empty.
    """

    load: float
    colour: str
    width: float
    opacity: float
    tip: str
    dashed: bool = False
    mean: str = ""


@dataclass(frozen=True)
class Curve:
    """Where the line of a bundle runs: its ends, lower box first, and the height of its arch."""

    bundle: Bundle
    x1: float
    y1: float
    x2: float
    y2: float
    arch: float


def curves(layout: Layout) -> Iterator[list[Curve]]:
    """Yield the lines of each band of bundles, band by band."""
    for (lower, upper), bundles in layout.tiers.bands.items():
        low, high = _anchors(layout, bundles)
        found = []
        for i, bundle in enumerate(bundles):
            y1 = layout.rows[lower].y if lower else layout.host_y
            y2 = layout.rows[upper].y + layout.rows[upper].height if upper else layout.host_y
            arch = 0.0
            if lower == upper:
                y2 = y1
                arch = min(40.0, 14 + abs(high[i] - low[i]) * 0.06)
            elif upper and lower > upper:
                y1, y2 = y2, y1
            found.append(Curve(bundle, low[i], y1, high[i], y2, arch))
        yield found


def add_cables(scene: Scene, layout: Layout, loads: LinkLoads | None) -> None:
    """Draw every bundle of cables as one line."""
    hot: list[tuple[float, Cable]] = []
    for band in curves(layout):
        dense = max(0.0, math.log2(max(1, len(band)) / 32))
        counts = {len(curve.bundle.cables) for curve in band}
        most = _FEW_GATHERED if layout.tiers.collapsed else _FEW
        few = len(band) <= most or (len(band) <= _COUNTED_BELOW and len(counts) > 1)
        for curve in band:
            bundle = curve.bundle
            look = _look(layout, bundle, loads, dense)
            cable = Cable(
                x1=curve.x1,
                y1=curve.y1,
                x2=curve.x2,
                y2=curve.y2,
                arch=curve.arch,
                colour=look.colour,
                width=look.width,
                opacity=look.opacity,
                dashed=look.dashed,
                tip=look.tip,
            )
            hot.append((look.load, cable))
            if look.mean:
                inner = replace(cable, colour=look.mean, width=look.width * _CORE, opacity=1.0)
                hot.append((look.load, inner))
            if few and len(bundle.cables) > 1:
                _count(scene, layout, cable, bundle, rated=len(band) <= _FEW_GATHERED)
    hot.sort(key=lambda pair: pair[0])  # the busiest is drawn last, on top
    scene.cables.extend(cable for _, cable in hot)


def describe(layout: Layout, bundle: Bundle, loads: LinkLoads | None = None) -> str:
    """Say what the line of a bundle stands for, for whoever points at it."""
    fabric, tiers = layout.tiers.fabric, layout.tiers
    ends = [
        fabric.device_names[nic] if nic >= 0 else tiers.nodes[node].name
        for node, nic in zip((bundle.lower, bundle.upper), bundle.nics, strict=True)
    ]
    rates = np.unique(fabric.link_rate_bps[bundle.cables]).tolist()
    tip = f"{ends[0]} \N{EN DASH} {ends[1]}: {plural(len(bundle.cables), 'cable')} of "
    tip += " and ".join(shown_rate(rate) for rate in rates)
    down = int(np.count_nonzero(~fabric.link_up[bundle.links]))
    if down:
        return tip + (
            f", {down // 2} down" if down % 2 == 0 else f", {plural(down, 'direction')} down"
        )
    if loads is not None and (load := loads.utilisation[bundle.links]).any():
        busiest = bundle.links[int(np.argmax(load))]
        tip += f"; busiest {fabric.link_name(int(busiest))} {loads.say(load.max())}"
        if len(bundle.cables) > 1:
            tip += f", mean {loads.say(load.mean())}"
    return tip


def _look(layout: Layout, bundle: Bundle, loads: LinkLoads | None, dense: float) -> _Look:
    """Choose the look of a bundle; ``dense`` grows with the number of lines beside it."""
    tiers, count = layout.tiers, len(bundle.cables)
    tip = describe(layout, bundle, loads)
    gathered = tiers.nodes[bundle.lower].collapsed or tiers.nodes[bundle.upper].collapsed
    down = ~tiers.fabric.link_up[bundle.links]
    if down.any() and (down.all() or not gathered):
        return _Look(2.0, DOWN, 1.6, 0.9, tip, dashed=True)
    width = (0.9 + 0.45 * math.log2(count)) / (1 + 0.10 * dense)
    if loads is None:
        opacity = max(0.07, 0.62 - 0.075 * dense)
        colour = line_colour(tiers.rail_of(bundle), tiers.plane_of(bundle))
        colour = DOWN if down.any() else colour
        return _Look(0.0, colour, width, opacity, tip)
    used = loads.utilisation[bundle.links]
    load = float(used.max())
    if loads.trail:
        if not loads.trail.isdisjoint(bundle.links.tolist()):
            return _Look(load + 1, ramp(load), max(3.4, width), 1.0, tip)
        return _Look(0.0, FAINT, 0.8 / (1 + 0.10 * dense), 0.35, tip)
    if gathered:
        width = max(5.0 / (1 + 0.10 * dense), width)
        opacity = 0.5 if load <= 0 else 0.95
        return _Look(load, ramp(load), width, opacity, tip, mean=ramp(float(used.mean())))
    width = 0.6 + 3.2 * load**0.5 / (1 + 0.16 * dense)
    opacity = 0.4 if load <= 0 else min(0.95, 0.5 + 0.6 * load**0.5)
    return _Look(load, ramp(load), width, opacity, tip)


def _count(scene: Scene, layout: Layout, cable: Cable, bundle: Bundle, *, rated: bool) -> None:
    """Write the number of parallel cables on their line, where it hits no other label.

    With ``rated``, the lines of whole groups also say the rate.
    """
    times = f"\N{MULTIPLICATION SIGN}{len(bundle.cables)}"
    rates = np.unique(layout.tiers.fabric.link_rate_bps[bundle.cables]).tolist()
    nodes = layout.tiers.nodes
    gathered = nodes[bundle.lower].collapsed or nodes[bundle.upper].collapsed
    texts = [times]
    if rated and gathered and len(rates) == 1:
        texts.insert(0, f"{len(bundle.cables):,} \N{MULTIPLICATION SIGN} {shown_rate(rates[0])}")
    for text in texts:
        for along in (0.18, 0.82, 0.3, 0.5, 0.7):  # near an end first, where lines lie apart
            back = 1 - along
            x = cable.x1 + (cable.x2 - cable.x1) * along * along * (3 - 2 * along)
            rise = 3 * along * back * (CURVE_LIFT * back + (1 - CURVE_LIFT) * along) + along**3
            y = cable.y1 + (cable.y2 - cable.y1) * rise - cable.arch * 4 * along * back
            if _written(scene, Label(x=x, y=y + 4, text=text, size=10, colour=MUTED)):
                return


def _written(scene: Scene, label: Label) -> bool:
    """Write a label on a white ground unless another is in its way."""
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
    return clear


def _anchors(
    layout: Layout, bundles: Sequence[Bundle]
) -> tuple[dict[int, float], dict[int, float]]:
    """Spread the ends of a band's bundles along the edge of each box, in the order of the others.

    Returns x at the lower end and x at the upper end by position in ``bundles``.
    """
    low: dict[int, float] = {}
    high: dict[int, float] = {}
    where = [
        [_extent(layout, *end) for end in zip((b.lower, b.upper), b.nics, strict=True)]
        for b in bundles
    ]
    for ends, own, other in ((low, 0, 1), (high, 1, 0)):
        meet: dict[tuple[int, int], list[int]] = {}
        for i, bundle in enumerate(bundles):
            meet.setdefault(((bundle.lower, bundle.upper)[own], bundle.nics[own]), []).append(i)
        for members in meet.values():
            x, width = where[members[0]][own]
            members.sort(key=lambda i: (where[i][other][0], i))
            for place, i in enumerate(members):
                ends[i] = x + ((place + 0.5) / len(members) - 0.5) * width * 0.8
    return low, high


def _extent(layout: Layout, number: int, nic: int) -> tuple[float, float]:
    """Return centre and width of whatever stands for a box, or its NIC, where cables arrive."""
    tiers, place = layout.tiers, layout.places[number]
    if nic < 0:
        return place.x, place.width
    host = int(tiers.fabric.host[nic])
    nics = tiers.parts[host].get(DeviceKind.NIC, [])
    if nic not in nics:
        return place.x, place.width
    cell, first = part_cells(layout, len(nics), host)
    return place.x - layout.host.width / 2 + first + (nics.index(nic) + 0.5) * cell, cell
