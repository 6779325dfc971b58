# SPDX-License-Identifier: Apache-2.0
"""What a drawing consists of, in pixels from the top left: boxes, cables, labels, swatches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

__all__ = ["CURVE_LIFT", "Box", "Cable", "Label", "Scene", "text_width"]

CURVE_LIFT: Final = 0.42  # how far up an S-curve stays upright, as a share of its height

# Mean advance of a sans-serif glyph in em, on the wide side (DejaVu Sans: 0.6; Arial: 0.5).
_ADVANCE_EM: Final = 0.6
_NARROW: Final = frozenset("ijl.,:;'|!()[]/ ft1")
_NARROW_EM: Final = 0.4


def text_width(text: str, size_px: float) -> float:
    """Estimate how many pixels a line of text is wide, on the wide side.

    Examples
    --------
    >>> round(text_width("leaf0", 10), 1)
    26.0
    """
    return sum(_NARROW_EM if c in _NARROW else _ADVANCE_EM for c in text) * size_px


@dataclass(frozen=True, kw_only=True)
class Box:
    """A rectangle; ``tip`` appears when the pointer rests on it."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    stroke: str = "none"
    stroke_width: float = 1.0
    radius: float = 0.0
    opacity: float = 1.0
    tip: str = ""


@dataclass(frozen=True, kw_only=True)
class Cable:
    """A line between two boxes: an S-curve between tiers, an arch within one."""

    x1: float
    y1: float
    x2: float
    y2: float
    colour: str
    width: float
    opacity: float
    arch: float = 0.0  # height of an arch above its ends; 0: no arch
    dashed: bool = False
    tip: str = ""


@dataclass(frozen=True, kw_only=True)
class Label:
    """A line of text whose anchor is at (x, y), on the baseline; upright text reads upwards."""

    x: float
    y: float
    text: str
    size: float
    anchor: str = "middle"  # start | middle | end
    colour: str = "#1f2933"
    bold: bool = False
    upright: bool = False

    def grown(self, scale: float, *, x: float = 0.0) -> Label:
        """Return the label with all its lengths times ``scale``, then moved right by ``x``."""
        return replace(self, x=x + self.x * scale, y=self.y * scale, size=self.size * scale)

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of the text (estimated)."""
        width = text_width(self.text, self.size) * (1.06 if self.bold else 1.0)
        back = {"start": 0.0, "middle": width / 2, "end": width}[self.anchor]
        rise, fall = 0.76 * self.size, 0.22 * self.size
        if self.upright:
            bottom = self.y + back
            return self.x - rise, bottom - width, self.x + fall, bottom
        left = self.x - back
        return left, self.y - rise, left + width, self.y + fall


@dataclass
class Scene:
    """A drawing under construction; cables lie under boxes, boxes under labels."""

    width: float = 0.0
    height: float = 0.0
    title: str = ""
    bands: list[Box] = field(default_factory=list)
    cables: list[Cable] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    ramps: list[tuple[Box, tuple[str, ...]]] = field(default_factory=list)  # colour stops, left on

    def add(self, part: Scene, *, x: float, scale: float) -> None:
        """Put a scene into this one, ``scale`` times as large and moved right by ``x``."""

        def grown(box: Box) -> Box:
            return replace(
                box,
                x=x + box.x * scale,
                y=box.y * scale,
                width=box.width * scale,
                height=box.height * scale,
                radius=box.radius * scale,
            )

        self.bands.extend(grown(box) for box in part.bands)
        self.boxes.extend(grown(box) for box in part.boxes)
        self.ramps.extend((grown(box), stops) for box, stops in part.ramps)
        self.cables.extend(
            replace(
                cable,
                x1=x + cable.x1 * scale,
                x2=x + cable.x2 * scale,
                y1=cable.y1 * scale,
                y2=cable.y2 * scale,
            )
            for cable in part.cables
        )
        self.labels.extend(label.grown(scale, x=x) for label in part.labels)
