# SPDX-License-Identifier: Apache-2.0
"""Colours of a drawing: categorical for rails, a lightness-ordered ramp for utilisation."""

from __future__ import annotations

import math
from typing import Final

__all__ = [
    "DOWN",
    "FAINT",
    "INK",
    "MUTED",
    "PLANE_FILLS",
    "RAMP",
    "SWITCH",
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
    share = place - low
    below, above = (int(stop[1:], 16) for stop in RAMP[low : low + 2])
    mixed = 0
    for shift in (16, 8, 0):
        a, b = below >> shift & 255, above >> shift & 255
        mixed |= round(a + (b - a) * share) << shift
    return f"#{mixed:06x}"
