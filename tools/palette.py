# SPDX-License-Identifier: Apache-2.0
"""Colours of a drawing: categorical for rails, a lightness-ordered ramp for utilisation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = [
    "DOWN",
    "FAINT",
    "INK",
    "MUTED",
    "PLANE_FILLS",
    "RAMP",
    "SWITCH",
    "between",
    "class_colours",
    "heat_class",
    "heat_rules",
    "line_colour",
    "rail_colour",
    "ramp",
    "ramp_place",
]

INK: Final = "#1f2933"
MUTED: Final = "#5f6c7b"
SWITCH: Final = "#52667a"
DOWN: Final = "#c0143c"
FAINT: Final = "#b4bfca"

# Grounds behind the boxes of a plane: light, and of different hue and lightness.
PLANE_FILLS: Final = ("#e9f1fb", "#fbf0dc", "#e6f4ec", "#f6e8f2")
_PLANE_LINES: Final = ("#3f6fa8", "#b07d22", "#3c8c66", "#9a5a8c")

# Okabe & Ito, "Color Universal Design" (2008); yellow darkened, black softened for thin lines.
_RAILS: Final = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#d55e00",
    "#cc79a7",
    "#56b4e9",
    "#8a7d00",
    "#4d4d4d",
)

# Light to dark in even steps of lightness (CIE L* 86 to 24), so that it reads in greyscale and with
# any colour vision; equal steps are steps of the square root, so that light traffic shows too.
RAMP: Final = ("#dbe2ea", "#f6c66b", "#ef8f3a", "#d7492c", "#a31538", "#5c0d3f")


_HEAT_STEPS: Final = 8  # between two stops of the ramp
_UNCLASSED: Final = "#7d8a97"


def class_colours(tags: Collection[str]) -> dict[str, str]:
    """Return the colour of each class of traffic, the same in every chart of a run.

    Examples
    --------
    >>> class_colours(["tp", "", "kv"])
    {'kv': '#0072b2', 'tp': '#e69f00', '': '#7d8a97'}
    """
    named = sorted({tag for tag in tags if tag})
    colours = {tag: rail_colour(i) for i, tag in enumerate(named)}
    return colours | ({"": _UNCLASSED} if "" in set(tags) else {})


def heat_class(utilisation: float) -> str:
    """Return the class of a shape that is coloured by a utilisation of 0 to 1.

    Examples
    --------
    >>> heat_class(0.0), heat_class(1.0)
    ('heat-0', 'heat-40')
    """
    return f"heat-{round(ramp_place(utilisation) * (len(RAMP) - 1) * _HEAT_STEPS)}"


def heat_rules() -> str:
    """Return the style rules that give these classes the colours of a page's own ramp.

    The page has the stops as ``--r0`` and on, of which a dark one has others.
    """
    rules = []
    for step in range((len(RAMP) - 1) * _HEAT_STEPS + 1):
        low = min(step // _HEAT_STEPS, len(RAMP) - 2)
        share = 100 * (step - low * _HEAT_STEPS) / _HEAT_STEPS
        mixed = f"color-mix(in srgb, var(--r{low + 1}) {share:g}%, var(--r{low}))"
        rules.append(f"svg.chart .heat-{step} {{ fill: {mixed}; }}\n")
    return "".join(rules)


def rail_colour(rail: int) -> str:
    """Return the colour of a rail; a switch or NIC without one is slate."""
    return _RAILS[rail % len(_RAILS)] if rail >= 0 else SWITCH


def line_colour(rail: int, plane: int) -> str:
    """Return the colour of cables: that of their rail, else of their plane, else slate."""
    if rail < 0 <= plane:
        return _PLANE_LINES[plane % len(_PLANE_LINES)]
    return rail_colour(rail)


def ramp_place(utilisation: float) -> float:
    """Return where on the ramp (0 to 1) a utilisation of 0 to 1 lies."""
    return math.sqrt(min(1.0, max(0.0, utilisation)))


def ramp(utilisation: float) -> str:
    """Return the colour of a utilisation of 0 to 1.

    Examples
    --------
    >>> ramp(0.0), ramp(1.0)
    ('#dbe2ea', '#5c0d3f')
    """
    place = ramp_place(utilisation) * (len(RAMP) - 1)
    low = min(int(place), len(RAMP) - 2)
    return between(RAMP[low], RAMP[low + 1], place - low)


def between(first: str, last: str, share: float) -> str:
    """Return the colour a share of the way from one to another.

    Examples
    --------
    >>> between("#000000", "#ff8000", 0.5)
    '#804000'
    """
    below, above = int(first[1:], 16), int(last[1:], 16)
    mixed = 0
    for shift in (16, 8, 0):
        a, b = below >> shift & 255, above >> shift & 255
        mixed |= round(a + (b - a) * share) << shift
    return f"#{mixed:06x}"
