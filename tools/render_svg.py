# SPDX-License-Identifier: Apache-2.0
"""A scene becomes an SVG file: one self-contained document, the same bytes for the same scene."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

from railweave.tools.scene import CURVE_LIFT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from railweave.tools.scene import Box, Cable, Label, Scene

__all__ = ["to_svg"]

_FONT: Final = "Inter, 'Helvetica Neue', Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"


def to_svg(scene: Scene) -> str:
    """Write a scene as SVG 1.1 text."""
    return "\n".join(_lines(scene)) + "\n"


def _n(value: float) -> str:
    """Write a coordinate: hundredths of a pixel at most, no trailing zeros."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _lines(scene: Scene) -> Iterator[str]:
    width, height = _n(scene.width), _n(scene.height)
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="{_FONT}">'
    )
    yield f"<title>{escape(scene.title)}</title>"
    yield f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    yield "<g>"
    for box in scene.bands:
        yield _box(box)
    yield "</g>"
    yield '<g fill="none" stroke-linecap="round">'
    for cable in scene.cables:
        yield _cable(cable)
    yield "</g>"
    yield "<g>"
    for box in scene.boxes:
        yield _box(box)
    for i, (box, stops) in enumerate(scene.ramps):
        yield f'<linearGradient id="ramp{i}">'
        for k, stop in enumerate(stops):
            yield f'<stop offset="{_n(k / (len(stops) - 1))}" stop-color="{stop}"/>'
        yield "</linearGradient>"
        yield _box(box).replace('fill="none"', f'fill="url(#ramp{i})"', 1)
    yield "</g>"
    yield "<g>"
    for label in scene.labels:
        yield _label(label)
    yield "</g>"
    yield "</svg>"


def _close(head: str, name: str, tip: str) -> str:
    return f"{head}><title>{escape(tip)}</title></{name}>" if tip else f"{head}/>"


def _box(box: Box) -> str:
    head = (
        f'<rect x="{_n(box.x)}" y="{_n(box.y)}" width="{_n(box.width)}" '
        f'height="{_n(box.height)}" fill="{box.fill}"'
    )
    if box.radius:
        head += f' rx="{_n(box.radius)}"'
    if box.stroke != "none":
        head += f' stroke="{box.stroke}" stroke-width="{_n(box.stroke_width)}"'
    if box.opacity != 1.0:
        head += f' opacity="{_n(box.opacity)}"'
    return _close(head, "rect", box.tip)


def _cable(cable: Cable) -> str:
    x1, y1, x2, y2 = cable.x1, cable.y1, cable.x2, cable.y2
    if cable.arch:
        rise = min(y1, y2) - cable.arch * 4 / 3
        curve = f"{_n(x1)} {_n(rise)} {_n(x2)} {_n(rise)}"
    else:
        lift = (y1 - y2) * CURVE_LIFT
        curve = f"{_n(x1)} {_n(y1 - lift)} {_n(x2)} {_n(y2 + lift)}"
    head = (
        f'<path d="M{_n(x1)} {_n(y1)}C{curve} {_n(x2)} {_n(y2)}" stroke="{cable.colour}" '
        f'stroke-width="{_n(cable.width)}" stroke-opacity="{_n(cable.opacity)}"'
    )
    if cable.dashed:
        head += ' stroke-dasharray="5 3"'
    return _close(head, "path", cable.tip)


def _label(label: Label) -> str:
    head = f'<text x="{_n(label.x)}" y="{_n(label.y)}" font-size="{_n(label.size)}"'
    if label.anchor != "start":
        head += f' text-anchor="{label.anchor}"'
    head += f' fill="{label.colour}"'
    if label.bold:
        head += ' font-weight="600"'
    if label.upright:
        head += f' transform="rotate(-90 {_n(label.x)} {_n(label.y)})"'
    return f"{head}>{escape(label.text)}</text>"
