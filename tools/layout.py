# SPDX-License-Identifier: Apache-2.0
"""Where everything of a drawing goes: tiers as bands from top to bottom, blocks from left to right.

Coordinates follow from structure alone (Graphviz needs minutes beyond a thousand nodes): each block
of hosts gets a column as wide as its widest tier, and switches spread over the column they serve.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from railweave.fabric.graph import DeviceKind
from railweave.tools.scene import text_width

if TYPE_CHECKING:
    from railweave.tools.tiers import Tiers, Unit

__all__ = ["Block", "HostStyle", "Layout", "SwitchRow", "lay_out", "part_cells", "unit_name"]

PAGE: Final = 1600.0  # pixels: the width that text sizes are meant for
_LEFT, _RIGHT, _TOP, _BOTTOM = 168.0, 300.0, 92.0, 36.0  # margins, at scale 1
_PITCH_MIN, _PITCH_MAX = 14.0, 170.0
_SWITCH_PITCH_MIN, _SWITCH_WIDTH_MAX = 15.0, 116.0
_SCALE_MAX = 4.0
_BLOCK_GAP: Final = 20.0
LABEL_SIZE: Final = 11.0
_ARCH_ROOM: Final = 46.0


@dataclass(frozen=True)
class Block:
    """A column of the drawing: the units of one group."""

    group: int
    units: tuple[int, ...]
    x: float
    width: float


@dataclass(frozen=True)
class SwitchRow:
    """The switches of one level: box size and label direction are common to the row."""

    level: int
    y: float
    height: float
    width: float
    upright: bool
    text: float  # size of its labels


@dataclass(frozen=True)
class HostStyle:
    """How units are drawn: all alike, so that they compare."""

    width: float
    height: float
    upright: bool
    stacked: bool
    row: float  # height of a row of parts, or of a host in a stack
    text: float  # size of its labels


@dataclass
class Layout:
    """The computed places, in pixels.

    A drawing wider than the page is shown smaller, so ``scale`` enlarges its captions.
    """

    tiers: Tiers
    scale: float = 1.0
    left: float = 0.0
    width: float = 0.0
    height: float = 0.0
    blocks: list[Block] = field(default_factory=list)
    rows: dict[int, SwitchRow] = field(default_factory=dict)
    switch_x: dict[int, float] = field(default_factory=dict)  # centre of a switch's box
    unit_x: list[float] = field(default_factory=list)  # left edge of a unit's box
    named: set[int] = field(default_factory=set)  # units whose name there is room for
    host_y: float = 0.0
    host: HostStyle = field(default_factory=lambda: HostStyle(0, 0, False, False, 0, 0))

    @property
    def right(self) -> float:
        """Where the panel of legends begins."""
        return self.width - (_RIGHT - 24) * self.scale


def unit_name(tiers: Tiers, unit: Unit) -> str:
    """Return ``h3`` or, for a stack of consecutive hosts, ``h0-h7``."""
    names = [tiers.fabric.host_names[host] for host in unit.hosts]
    return names[0] if len(names) == 1 else f"{names[0]}\N{EN DASH}{names[-1]}"


def lay_out(tiers: Tiers) -> Layout:
    """Compute the layout of a fabric at any size."""
    out = Layout(tiers)
    area = _columns(out)
    for level in range(tiers.top, 0, -1):
        _spread(out, level, area)
    _stack_bands(out, area)
    return out


def _columns(out: Layout) -> tuple[float, float]:
    """Place blocks and units; return left edge and width of the drawing area."""
    tiers = out.tiers
    groups: dict[int, list[int]] = {}
    for number, unit in enumerate(tiers.units):
        groups.setdefault(unit.group, []).append(number)
    gaps = _BLOCK_GAP * max(0, len(groups) - 1)
    room = PAGE - _LEFT - _RIGHT
    pitch = min(_PITCH_MAX, max(_PITCH_MIN, (room - gaps) / max(1, len(tiers.units))))
    need = {group: len(units) * pitch for group, units in groups.items()}
    wide = 0.0
    for level in range(1, tiers.top + 1):
        count = dict.fromkeys(groups, 0)
        switches = tiers.switches(level)
        for switch in switches:
            if (group := int(tiers.fabric.group[switch])) in count:
                count[group] += 1
        for group, found in count.items():
            need[group] = max(need[group], found * _SWITCH_PITCH_MIN)
        wide = max(wide, len(switches) * _SWITCH_PITCH_MIN)
    used = max(sum(need.values()) + gaps, wide)
    area = max(room, used)
    out.scale = min(_SCALE_MAX, area / room)
    out.left = _LEFT * out.scale
    x = out.left + (area - (sum(need.values()) + gaps)) / 2
    out.unit_x = [0.0] * len(tiers.units)
    steps = [need[group] / len(units) for group, units in groups.items()]
    pitch = min(_PITCH_MAX, min(steps, default=pitch))
    for group, units in groups.items():
        out.blocks.append(Block(group, tuple(units), x, need[group]))
        step = need[group] / len(units)
        for place, number in enumerate(units):
            out.unit_x[number] = x + (place + 0.5) * step - pitch * 0.43
        x += need[group] + _BLOCK_GAP
    names = [unit_name(tiers, unit) for unit in tiers.units]
    longest = max((text_width(name, LABEL_SIZE) for name in names), default=0)
    stacked = any(len(unit.hosts) > 1 for unit in tiers.units)
    deepest = max((len(unit.hosts) for unit in tiers.units), default=0)
    row = min(9.0, max(3.0, 160 / deepest)) if stacked else (15.0 if pitch > 60 else 12.0)
    joined = any(DeviceKind.NVSWITCH in parts for parts in tiers.parts)
    body = deepest * row + 6 if stacked else 2 * row + (21 if joined else 13)
    upright = longest > pitch - 3
    text = LABEL_SIZE * out.scale
    if not upright and longest:
        text = min(text, LABEL_SIZE * (pitch - 3) / longest)
    every = math.ceil(text * 1.15 / pitch) if upright else 1
    out.named = {number for units in groups.values() for number in units[::every]}
    out.host = HostStyle(pitch * 0.86, body, upright, stacked, row, text)
    out.width = area + (_LEFT + _RIGHT) * out.scale
    return out.left, area


def _spread(out: Layout, level: int, area: tuple[float, float]) -> None:
    """Spread the switches of a level, each cluster evenly over the column it serves."""
    tiers = out.tiers
    switches = tiers.switches(level)
    if not switches:
        return
    columns = {block.group: (block.x, block.width) for block in out.blocks}
    weight = _barycentres(out, level)
    clusters: dict[int, list[int]] = {}
    for switch in switches:
        group = int(tiers.fabric.group[switch])
        clusters.setdefault(group if group in columns else -1, []).append(switch)
    if -1 in clusters and len(clusters) > 1:  # some switches serve no column: one row for all
        clusters = {-1: switches}
    step = float("inf")
    for group, members in clusters.items():
        x, width = columns.get(group, area) if group >= 0 else area
        members.sort(key=lambda s: (weight[s], int(tiers.fabric.rail[s]), s))
        step = min(step, width / len(members))
        for place, switch in enumerate(members):
            out.switch_x[switch] = x + (place + 0.5) * width / len(members)
    box = min(_SWITCH_WIDTH_MAX, step * (0.8 if step > 40 else 0.86))
    names = [tiers.fabric.device_names[switch] for switch in switches]
    em = max(text_width(name, 1.0) for name in names)
    text = LABEL_SIZE * out.scale
    upright = em * LABEL_SIZE + 8 > box
    text = min(text, box / 1.35) if upright else min(text, (box - 8) / em)
    height = em * text + 16 if upright else 19 + text
    out.rows[level] = SwitchRow(level, 0, height, box, upright, text)


def _barycentres(out: Layout, level: int) -> dict[int, float]:
    """Mean place of the hosts that hang below each switch, directly; 0 where none do."""
    tiers = out.tiers
    total: dict[int, float] = dict.fromkeys(tiers.switches(level), 0.0)
    number = dict.fromkeys(total, 0)
    for bundle in tiers.bundles:
        host = int(tiers.fabric.host[bundle.lower])
        if host >= 0 and bundle.upper in total:
            total[bundle.upper] += out.unit_x[tiers.unit_of_host[host]] * len(bundle.cables)
            number[bundle.upper] += len(bundle.cables)
    return {s: round(x / number[s], 3) if number[s] else 0.0 for s, x in total.items()}


def _stack_bands(out: Layout, area: tuple[float, float]) -> None:
    """Give each band its height, from the top down."""
    tiers = out.tiers
    arched = {
        tiers.level[b.upper] for b in tiers.bundles if tiers.level[b.lower] == tiers.level[b.upper]
    }
    gap = min(230.0 * out.scale, max(120.0, area[1] * 0.15))
    y = _TOP * out.scale
    for level in range(tiers.top, 0, -1):
        row = out.rows.get(level)
        if row is None:
            continue
        y += _ARCH_ROOM if level in arched else 0
        out.rows[level] = replace(row, y=y)
        y += row.height + gap
    out.host_y = y + (_ARCH_ROOM if 0 in arched else 0)
    names = [unit_name(tiers, unit) for unit in tiers.units]
    longest = max((text_width(name, LABEL_SIZE) for name in names), default=0)
    longest *= out.host.text / LABEL_SIZE
    labels = longest + 12 if out.host.upright else out.host.text + 9
    out.height = out.host_y + out.host.height + labels + (18 + 16 * out.scale) + _BOTTOM


def part_cells(layout: Layout, count: int, host: int) -> tuple[float, float]:
    """Return the width of a cell in a host's box, and the offset of the first of ``count``."""
    found = layout.tiers.parts[host]
    widest = max(len(found.get(DeviceKind.NIC, ())), len(found.get(DeviceKind.GPU, ())), 1)
    inset = 4.0 if layout.host.width > 30 else 1.0
    cell = min(30.0, (layout.host.width - 2 * inset) / widest)
    return cell, (layout.host.width - cell * count) / 2
