# SPDX-License-Identifier: Apache-2.0
"""Graphviz's sheet: where things lie on it, captions at its left, legends at its right."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from railweave.tools.box_text import box_text
from railweave.tools.captions import add_captions
from railweave.tools.legend import add_panel
from railweave.tools.palette import between
from railweave.tools.scene import Scene, text_width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.tools.layout import Layout
    from railweave.tools.overlay import LinkLoads
    from railweave.tools.ranks import RankMap
    from railweave.tools.scene import Label

__all__ = ["Sheet", "add_legend", "add_margin", "text_pixels", "words_of"]

_POINTS: Final = 0.75  # of a 1/96 inch pixel
_GLYPH: Final = 6.6  # pixels: width of a letter
_GROW_MAX: Final = 4.0
_RAMP_STEPS: Final = 40


@dataclass(frozen=True)
class Sheet:
    """A layout on Graphviz's sheet, ``grow`` times as large so that narrow boxes hold their words.

    Graphviz cannot turn text upright, and a PNG has no tooltips.
    """

    layout: Layout
    grow: float

    @classmethod
    def of(cls, layout: Layout) -> Sheet:
        """Choose how large the sheet of a layout is."""
        tiers = layout.tiers
        needed = [
            text_pixels(words_of(box_text(tiers, number))) / layout.places[number].width
            for number, node in enumerate(tiers.nodes)
            if node.collapsed
        ]
        return cls(layout, min(_GROW_MAX, max(1.0, *needed, 1.0)))

    def inches(self, pixels: float) -> str:
        """Return a length in inches."""
        return f"{pixels * self.grow / 96:.3f}"

    def at(self, x: float, y: float) -> str:
        """Return a position in points with the origin at the bottom, as Graphviz counts."""
        points = _POINTS * self.grow
        return f"{x * points:.2f},{(self.layout.height - y) * points:.2f}!"


def add_margin(graph: Any, sheet: Sheet) -> None:
    """Write what each tier and each class of cables is in the left margin, as the SVG does."""
    margin = Scene()
    add_captions(margin, sheet.layout)
    blocks: list[list[Label]] = []
    for label in margin.labels:  # the name of a caption is larger than its other lines
        if not blocks or label.size > blocks[-1][-1].size:
            blocks.append([])
        blocks[-1].append(label)
    with graph.subgraph(name="captions") as part:
        for number, block in enumerate(blocks):
            last = block[-1]
            width = 1.25 * max(text_width(label.text, last.size) for label in block)
            middle = (block[0].y + last.y) / 2 - last.size * 0.3
            part.node(
                f"caption {number}",
                label="".join(f"{label.text}\\l" for label in block),
                shape="plaintext",
                style="",
                fontsize=f"{last.size * _POINTS * sheet.grow:.1f}",
                fontcolor=last.colour,
                width=sheet.inches(width),
                height=sheet.inches(last.size * 1.4 * len(block)),
                pos=sheet.at(last.x + width / 2, middle),
            )


def add_legend(graph: Any, sheet: Sheet, loads: LinkLoads | None, ranks: RankMap | None) -> None:
    """Put the legends beside it, as the SVG has them; boxes of hosts are plain here."""
    panel = Scene()
    add_panel(panel, sheet.layout, loads, ranks, shapes=False)
    boxes = list(panel.boxes)
    for box, stops in panel.ramps:  # a strip of boxes: Graphviz knows no more than two stops
        step = box.width / _RAMP_STEPS
        for i in range(_RAMP_STEPS):
            at = (i + 0.5) / _RAMP_STEPS * (len(stops) - 1)
            low = min(int(at), len(stops) - 2)
            fill = between(stops[low], stops[low + 1], at - low)
            boxes.append(replace(box, x=box.x + i * step, width=step, fill=fill, radius=0))
    with graph.subgraph(name="legend") as part:
        for number, box in enumerate(boxes):
            part.node(
                f"swatch {number}",
                label="",
                style="filled",
                fillcolor=box.fill,
                color="none" if box.stroke == "none" else box.stroke,
                width=sheet.inches(box.width),
                height=sheet.inches(box.height),
                pos=sheet.at(box.x + box.width / 2, box.y + box.height / 2),
            )
        for number, label in enumerate(panel.labels):
            left, top, right, bottom = label.bounds
            just = {"start": "\\l", "end": "\\r"}.get(label.anchor, "")
            part.node(
                f"legend {number}",
                label=_plain(label.text) + just,
                shape="plaintext",
                style="",
                fontsize=f"{label.size * _POINTS * sheet.grow:.1f}",
                fontcolor=label.colour,
                width=sheet.inches(right - left),
                height=sheet.inches(bottom - top),
                pos=sheet.at((left + right) / 2, (top + bottom) / 2),
            )


def _plain(text: str) -> str:
    """Return text as Graphviz shows it word by word: no escape in it means anything."""
    return text.replace("\\", "\\\\")


def text_pixels(lines: Sequence[str]) -> float:
    """Return how many pixels the longest of lines needs."""
    return max(map(len, lines)) * _GLYPH


def words_of(lines: Sequence[str]) -> list[str]:
    """Return the words of lines, one by one."""
    return [word for line in lines for word in line.split()]
