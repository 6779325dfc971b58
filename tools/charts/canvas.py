# SPDX-License-Identifier: Apache-2.0
"""A sheet of SVG under a chart: shapes with colours that a page's style sheet may override.

Every shape carries its colour as an attribute, so that a file opens anywhere, and a class, so that
a page can show the same chart on a dark ground.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from railweave.tools.palette import INK, MUTED

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["GRID", "Canvas", "number"]

GRID: Final = "#d9dfe5"
_FONT: Final = "Inter, 'Helvetica Neue', Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
_CLASSES: Final = {INK: "ink", MUTED: "muted", GRID: "grid"}


def number(value: float) -> str:
    """Write a coordinate with hundredths of a pixel at most."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


class Canvas:
    """Shapes in pixels from the top left.

    Parameters
    ----------
    width, height
        Size of the chart in pixels.
    title
        What it shows, for whoever cannot see it.
    """

    def __init__(self, width: float, height: float, *, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self._shapes: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 11.0,
        anchor: str = "start",
        colour: str = INK,
        bold: bool = False,
        turned: bool = False,
    ) -> None:
        """Write a line of text on the baseline ``y``; turned text reads upwards."""
        head = f'<text x="{number(x)}" y="{number(y)}" font-size="{number(size)}"'
        if anchor != "start":
            head += f' text-anchor="{anchor}"'
        if bold:
            head += ' font-weight="600"'
        if turned:
            head += f' transform="rotate(-90 {number(x)} {number(y)})"'
        self._shapes.append(f"{head}{self._fill(colour)}>{escape(text)}</text>")

    def line(
        self,
        points: Sequence[tuple[float, float]],
        *,
        colour: str,
        width: float = 1.0,
        dashed: bool = False,
    ) -> None:
        """Draw a line through points."""
        path = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        known = _CLASSES.get(colour)
        mark = f' class="line-{known}"' if known else ""
        self._shapes.append(
            f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{number(width)}"'
            f' stroke-linejoin="round"{dash}{mark}/>'
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        colour: str,
        tip: str = "",
        radius: float = 0.0,
        mark: str = "",
    ) -> None:
        """Draw a filled rectangle; ``tip`` appears when the pointer rests on it."""
        head = (
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" '
            f'height="{number(height)}"{self._fill(colour, mark)}'
        )
        if radius:
            head += f' rx="{number(radius)}"'
        self._shapes.append(f"{head}><title>{escape(tip)}</title></rect>" if tip else f"{head}/>")

    def dot(self, x: float, y: float, *, colour: str, radius: float = 3.0, tip: str = "") -> None:
        """Draw a dot."""
        head = f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(radius)}"{self._fill(colour)}'
        self._shapes.append(f"{head}><title>{escape(tip)}</title></circle>" if tip else f"{head}/>")

    @staticmethod
    def _fill(colour: str, mark: str = "") -> str:
        known = mark or _CLASSES.get(colour, "")
        return f' fill="{colour}"' + (f' class="{known}"' if known else "")

    def inline(self) -> str:
        """Return the ``svg`` element for a page, whose own ground shows through."""
        return self._svg("", extra=' class="chart" role="img"')

    def document(self) -> str:
        """Return a whole SVG file on a white ground."""
        ground = (
            f'<rect width="{number(self.width)}" height="{number(self.height)}" fill="#ffffff"/>'
        )
        return '<?xml version="1.0" encoding="UTF-8"?>\n' + self._svg(ground) + "\n"

    def _svg(self, ground: str, *, extra: str = "") -> str:
        width, height = number(self.width), number(self.height)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="{_FONT}"{extra}>'
            f"<title>{escape(self.title)}</title>"
        )
        return "\n".join([head + ground, *self._shapes, "</svg>"])
