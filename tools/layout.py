# SPDX-License-Identifier: Apache-2.0
"""Where everything of a drawing goes: tiers as bands from top to bottom, blocks from left to right.

Coordinates follow from structure alone (Graphviz needs minutes beyond a thousand nodes): each
column gets a block as wide as its widest tier, and switches spread over the block they serve.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from railweave.fabric.graph import DeviceKind
from railweave.tools.box_text import LABEL_SIZE, BoxText, box_text, fit
from railweave.tools.scene import text_width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.tools.tiers import Tiers

__all__ = [
    "RACK_ROOM",
    "Block",
    "HostStyle",
    "Layout",
    "Place",
    "SwitchRow",
    "lay_out",
    "part_cells",
]

PAGE: Final = 1600.0  # pixels: the width that text sizes are meant for
_LEFT, _RIGHT, _TOP, _BOTTOM = 168.0, 300.0, 92.0, 36.0  # margins, at scale 1
_PITCH_MIN, _PITCH_MAX = 14.0, 170.0
_COLLAPSED_MIN: Final = 18.0  # pitch of boxes that have a line of text in them
_SWITCH_PITCH_MIN, _SWITCH_WIDTH_MAX = 15.0, 116.0
_SCALE_MAX = 4.0
_GAP_MAX: Final = 20.0
_ARCH_ROOM: Final = 46.0
_PLANE_GAP: Final = 34.0
_PLANE_ROOM: Final = 18.0  # above switches, for the name of their plane
RACK_ROOM: Final = 20.0  # below the hosts, for the bar that joins those of a rack


@dataclass(frozen=True)
class Block:
    """The place of a column: left edge and width."""

    column: int
    x: float
    width: float


@dataclass(frozen=True)
class Place:
    """The place of a box along its row: centre and width."""

    x: float
    width: float


@dataclass(frozen=True)
class SwitchRow:
    """The switches of one level; text is common to the boxes of a row."""

    level: int
    y: float
    height: float
    single: BoxText  # how boxes of one switch are labelled
    collapsed: BoxText  # how boxes of many are


@dataclass(frozen=True)
class HostStyle:
    """How hosts are drawn: all alike, so that they compare."""

    width: float
    body: float  # height of a box that is not collapsed
    height: float  # of the highest box
    upright: bool
    stacked: bool
    row: float  # height of a row of parts, or of a host in a stack
    text: float  # size of its labels
    collapsed: BoxText


@dataclass
class Layout:
    """The computed places, in pixels.

    A drawing wider than the page is shown smaller, so ``scale`` enlarges its captions.
    """

    tiers: Tiers
    loaded: bool = False
    scale: float = 1.0
    left: float = 0.0
    area: float = 0.0  # width of what lies between the margins
    width: float = 0.0
    height: float = 0.0
    gap: float = _GAP_MAX  # between blocks
    blocks: list[Block] = field(default_factory=list)
    rows: dict[int, SwitchRow] = field(default_factory=dict)
    places: dict[int, Place] = field(default_factory=dict)  # of each node
    planes: dict[int, list[tuple[int, float, float]]] = field(default_factory=dict)
    named: set[int] = field(default_factory=set)  # hosts' boxes whose name there is room for
    host_y: float = 0.0
    host: HostStyle = field(
        default_factory=lambda: HostStyle(0, 0, 0, False, False, 0, 0, BoxText(0, 0))
    )

    @property
    def right(self) -> float:
        """Where the panel of legends begins."""
        return self.width - (_RIGHT - 24) * self.scale


def lay_out(tiers: Tiers, *, loaded: bool = False) -> Layout:
    """Compute the layout of a fabric at any size.

    Parameters
    ----------
    tiers
        What is drawn.
    loaded
        Whether the load of a run is drawn, so that collapsed boxes need room for it.
    """
    out = Layout(tiers, loaded=loaded)
    pitch = _columns(out)
    out.host = _host_style(out, pitch)
    for level in range(1, tiers.top + 1):
        _spread(out, level)
    _stack_bands(out)
    return out


def _columns(out: Layout) -> float:
    """Place blocks and the boxes of hosts; return the pitch of the latter."""
    tiers = out.tiers
    units: list[list[int]] = [[] for _ in tiers.columns]
    for number in tiers.levels.get(0, ()):
        units[tiers.nodes[number].column].append(number)
    total = sum(map(len, units))
    room = PAGE - _LEFT - _RIGHT
    gaps = max(0, len(units) - 1)
    out.gap = min(_GAP_MAX, 0.14 * room / max(1, gaps)) if tiers.collapsed else _GAP_MAX
    least = _COLLAPSED_MIN if tiers.collapsed else _PITCH_MIN
    pitch = min(_PITCH_MAX, max(least, (room - gaps * out.gap) / max(1, total)))
    need = [len(found) * pitch for found in units]
    wide = 0.0
    for level in range(1, tiers.top + 1):
        count = [0] * len(units)
        numbers = tiers.levels.get(level, ())
        for number in numbers:
            if (column := tiers.nodes[number].column) >= 0:
                count[column] += 1
        need = [max(a, n * _SWITCH_PITCH_MIN) for a, n in zip(need, count, strict=True)]
        wide = max(wide, len(numbers) * _SWITCH_PITCH_MIN)
    used = sum(need) + gaps * out.gap
    out.area = max(room, used, wide)
    out.scale = min(_SCALE_MAX, out.area / room)
    out.left = _LEFT * out.scale
    out.width = out.area + (_LEFT + _RIGHT) * out.scale
    x = out.left + (out.area - used) / 2
    steps = [width / len(found) for width, found in zip(need, units, strict=True) if found]
    pitch = min(_PITCH_MAX, min(steps, default=pitch))
    for column, (found, width) in enumerate(zip(units, need, strict=True)):
        out.blocks.append(Block(column, x, width))
        for place, number in enumerate(found):
            step = width / len(found)
            box = min(step, _PITCH_MAX) if tiers.nodes[number].collapsed else pitch
            out.places[number] = Place(x + (place + 0.5) * step, box * 0.86)
        x += width + out.gap
    return pitch


def _host_style(out: Layout, pitch: float) -> HostStyle:
    """Choose how hosts are drawn, and which names there is room for."""
    tiers = out.tiers
    numbers = tiers.levels.get(0, ())
    single = [number for number in numbers if not tiers.nodes[number].collapsed]
    closed = [number for number in numbers if tiers.nodes[number].collapsed]
    deepest = max((len(tiers.nodes[number].members) for number in single), default=0)
    stacked = deepest > 1
    row = min(9.0, max(3.0, 160 / deepest)) if stacked else (15.0 if pitch > 60 else 12.0)
    joined = any(DeviceKind.NVSWITCH in parts for parts in tiers.parts.values())
    body = deepest * row + 6 if stacked else 2 * row + (21 if joined else 13)
    longest = max((text_width(tiers.nodes[n].name, LABEL_SIZE) for n in single), default=0)
    upright = longest > pitch - 3
    text = LABEL_SIZE * out.scale
    if not upright and longest:
        text = min(text, LABEL_SIZE * (pitch - 3) / longest)
    every = math.ceil(text * 1.15 / pitch) if upright else 1
    by_column: dict[int, list[int]] = {}
    for number in single:
        by_column.setdefault(tiers.nodes[number].column, []).append(number)
    out.named = {number for found in by_column.values() for number in found[::every]}
    written = fit(
        [box_text(tiers, number) for number in closed],
        width=min((out.places[number].width for number in closed), default=0.0),
        scale=out.scale,
        strip=out.loaded,
    )
    height = max(body if single else 0.0, written.height)
    return HostStyle(pitch * 0.86, body, height, upright, stacked, row, text, written)


def _spread(out: Layout, level: int) -> None:
    """Spread the boxes of a level, each cluster evenly over the block that it serves."""
    tiers = out.tiers
    numbers = tiers.levels.get(level, ())
    if not numbers:
        return
    weight = _barycentres(out, numbers)
    clusters: dict[int, list[int]] = {}
    for number in numbers:
        clusters.setdefault(tiers.nodes[number].column, []).append(number)
    if -1 in clusters and len(clusters) > 1:  # some switches serve no column: one row for all
        clusters = {-1: list(numbers)}
    step = float("inf")
    for column, members in clusters.items():
        x, width = out.left, out.area
        if column >= 0:
            x, width = out.blocks[column].x, out.blocks[column].width
        for at, part, room in _by_plane(out, column, members, x, width):
            part.sort(key=lambda n: (weight[n], tiers.nodes[n].rail, n))
            if not all(tiers.nodes[number].collapsed for number in part):
                step = min(step, room / len(part))
            for place, number in enumerate(part):
                out.places[number] = Place(at + (place + 0.5) * room / len(part), room / len(part))
    single = [n for n in numbers if not tiers.nodes[n].collapsed]
    for number in numbers:
        x, own = out.places[number].x, out.places[number].width
        if not tiers.nodes[number].collapsed:
            own = min(_SWITCH_WIDTH_MAX, step * (0.8 if step > 40 else 0.86))
        elif tiers.nodes[number].column >= 0:
            own = min(_PITCH_MAX, own) * 0.86
        else:
            own *= 0.62
        out.places[number] = Place(x, own)
    texts: list[BoxText] = []
    for members in (single, [n for n in numbers if tiers.nodes[n].collapsed]):
        strip = members is not single and (out.loaded or _railed(tiers, members))
        width = min((out.places[number].width for number in members), default=0.0)
        lines = [box_text(tiers, number) for number in members]
        texts.append(fit(lines, width=width, scale=out.scale, strip=strip))
    height = max(text.height for text in texts)
    out.rows[level] = SwitchRow(level, 0, height, *texts)


def _railed(tiers: Tiers, numbers: Sequence[int]) -> bool:
    """Tell whether any switch in these boxes belongs to a rail."""
    members = [switch for number in numbers for switch in tiers.nodes[number].members]
    return bool((tiers.fabric.rail[members] >= 0).any())


def _by_plane(
    out: Layout, column: int, members: list[int], x: float, width: float
) -> list[tuple[float, list[int], float]]:
    """Divide the room of a cluster among its planes, if it has several: x, boxes and width of each.

    Above all columns planes also lie apart, and are remembered to be tinted.
    """
    tiers = out.tiers
    parts: dict[int, list[int]] = {}
    for number in members:
        parts.setdefault(tiers.nodes[number].plane, []).append(number)
    if len(parts) == 1 or min(parts) < 0:
        return [(x, members, width)]
    gap = min(_PLANE_GAP * out.scale, 0.1 * width / len(parts)) if column < 0 else 0.0
    each = (width - gap * (len(parts) - 1)) / len(members)
    found = []
    for plane, part in sorted(parts.items()):
        room = each * len(part)
        found.append((x, part, room))
        if column < 0:
            level = tiers.nodes[part[0]].level
            out.planes.setdefault(level, []).append((plane, x, room))
        x += room + gap
    return found


def _barycentres(out: Layout, numbers: Sequence[int]) -> dict[int, float]:
    """Mean place of the boxes of lower levels that each box is cabled to; 0 where none are."""
    tiers = out.tiers
    total = dict.fromkeys(numbers, 0.0)
    count = dict.fromkeys(numbers, 0)
    for bundle in tiers.bundles:
        lower, upper = tiers.nodes[bundle.lower], tiers.nodes[bundle.upper]
        if bundle.upper in total and lower.level < upper.level:
            total[bundle.upper] += out.places[bundle.lower].x * len(bundle.cables)
            count[bundle.upper] += len(bundle.cables)
    return {n: round(x / count[n], 1) if count[n] else 0.0 for n, x in total.items()}


def _stack_bands(out: Layout) -> None:
    """Give each band its height, from the top down."""
    tiers = out.tiers
    arched = {lower for lower, upper in tiers.bands if lower == upper}
    gap = min(230.0 * out.scale, max(120.0, out.area * 0.15))
    if tiers.collapsed:
        gap = min(gap, 150.0 * out.scale)
    y = _TOP * out.scale
    for level in range(tiers.top, 0, -1):
        row = out.rows.get(level)
        if row is None:
            continue
        y += _ARCH_ROOM if level in arched else 0
        y += _PLANE_ROOM * out.scale if level in out.planes else 0
        out.rows[level] = replace(row, y=y)
        y += row.height + gap
    out.host_y = y + (_ARCH_ROOM if 0 in arched else 0)
    single = [tiers.nodes[n].name for n in tiers.levels.get(0, ()) if not tiers.nodes[n].collapsed]
    longest = max((text_width(name, out.host.text) for name in single), default=0)
    labels = longest + 12 if out.host.upright else out.host.text + 9
    if tiers.parts and (tiers.racks >= 0).any():
        labels += RACK_ROOM * out.scale
    below = max(out.host.height, out.host.body + labels if single else 0.0)
    captions = [text_width(column.label, LABEL_SIZE * out.scale) for column in tiers.columns]
    widest = max(captions, default=0.0)
    upright = any(w > block.width + out.gap for w, block in zip(captions, out.blocks, strict=True))
    room = widest + 12 if upright else 16 * out.scale
    out.height = out.host_y + below + 18 + room + _BOTTOM


def part_cells(layout: Layout, count: int, host: int) -> tuple[float, float]:
    """Return the width of a cell in a host's box, and the offset of the first of ``count``."""
    found = layout.tiers.parts[host]
    widest = max(len(found.get(DeviceKind.NIC, ())), len(found.get(DeviceKind.GPU, ())), 1)
    inset = 4.0 if layout.host.width > 30 else 1.0
    cell = min(30.0, (layout.host.width - 2 * inset) / widest)
    return cell, (layout.host.width - cell * count) / 2
