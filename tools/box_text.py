# SPDX-License-Identifier: Apache-2.0
"""What is written in the boxes of a drawing, and how large, so that all boxes of a row match."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from railweave.fabric.words import plural
from railweave.tools.scene import text_width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.tools.tiers import Tiers

__all__ = ["LABEL_SIZE", "LINE", "SEPARATOR", "STRIP", "BoxText", "box_text", "fit"]

LABEL_SIZE: Final = 11.0  # pixels, where the drawing is as wide as the page
SEPARATOR: Final = " \N{MIDDLE DOT} "  # between the lines of a box whose text is upright
LINE: Final = 1.32  # height of a line of text in em
STRIP: Final = 7.0  # pixels at the foot of a collapsed box, for its rails or its load


@dataclass(frozen=True)
class BoxText:
    """How the boxes of a row are written on, and the height that they need.

    ``size`` is that of the text; ``upright`` text reads upwards; below it may be a ``strip``.
    """

    size: float
    height: float
    upright: bool = False
    strip: bool = False


def box_text(tiers: Tiers, number: int) -> list[str]:
    """Return the lines of a box: the name of a switch, or the counts of what is collapsed in it."""
    node = tiers.nodes[number]
    if not node.collapsed:
        return [node.name]
    if node.level == 0:
        gpus = int(tiers.gpus_of_hosts[list(node.members)].sum())
        racks = len({rack for rack in tiers.racks[list(node.members)].tolist() if rack >= 0})
        lines = [plural(len(node.members), "host"), plural(gpus, "GPU")]
        return [plural(racks, "rack"), *lines] if racks else lines
    noun = tiers.level_name(node.level)
    lines = [plural(len(node.members), "switch" if " " in noun or noun == "switches" else noun)]
    if node.rail >= 0:
        lines.append(f"rail {node.rail}")
    if node.plane >= 0:
        lines.append(f"plane {node.plane}")
    return lines


def fit(
    texts: Sequence[Sequence[str]], *, width: float, scale: float, strip: bool = False
) -> BoxText:
    """Choose how the boxes of a row are written on.

    Parameters
    ----------
    texts
        The lines of each box.
    width
        Width of the narrowest box, in pixels.
    scale
        How much larger than usual text is to be, if there is room.
    strip
        Whether the boxes have a strip of colours at their foot.
    """
    size = LABEL_SIZE * scale
    if not texts:
        return BoxText(size, 0.0)
    foot = STRIP + 3 if strip else 0.0
    widest = max(text_width(line, 1.0) for lines in texts for line in lines)
    if widest * LABEL_SIZE + 8 <= width:
        size = min(size, (width - 8) / widest)
        most = max(len(lines) for lines in texts)
        return BoxText(size, 19 + size * (1 + LINE * (most - 1)) + foot, strip=strip)
    size = min(size, width / 1.35)
    longest = max(text_width(SEPARATOR.join(lines), size) for lines in texts)
    return BoxText(size, longest + 16 + foot, upright=True, strip=strip)
