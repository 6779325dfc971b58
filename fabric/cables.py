# SPDX-License-Identifier: Apache-2.0
"""Cables and optics of the catalogue: how far they reach, what they take and cost.

The numbers lie in ``catalog/cables.yaml``, each with its source; prices are assumptions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Literal

from railweave.fabric.catalogue import (
    Figure,
    Footprint,
    catalogue_names,
    figures_of,
    find_entry,
    footprint_of,
)
from railweave.fabric.units import parse_length_mm, parse_rate_bps

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CableModel", "Medium", "cable_model", "cables_for"]

Medium = Literal["copper", "active-optical", "multimode", "single-mode"]


@dataclass(frozen=True, kw_only=True)
class CableModel:
    """A cable, or the optic at each end of a fibre.

    Parameters
    ----------
    medium
        ``copper`` and ``active-optical`` come in one piece; ``multimode`` and ``single-mode`` are
        optics, one at each end.
    rate_bps, links
        Rate of its cage in bit/s, and how many links share it.
    reach_mm
        Longest length in millimetres.
    footprint
        Power of one end; price of the piece, or of the optic at one end.
    """

    name: str
    title: str
    medium: Medium
    rate_bps: int
    links: int
    reach_mm: int
    footprint: Footprint
    figures: Mapping[str, Figure] = field(repr=False)

    @property
    def link_bps(self) -> int:
        """Rate of each of its links in bit/s."""
        return self.rate_bps // self.links

    @property
    def pieces(self) -> int:
        """How many must be bought to join two cages: 1 cable, or 2 optics."""
        return 1 if self.medium in ("copper", "active-optical") else 2


@cache
def cable_model(name: str) -> CableModel:
    """Return a cable or optic of the catalogue.

    Examples
    --------
    >>> cable_model("2xDR4-800G").reach_mm
    500000

    Raises
    ------
    InputError
        Not in the catalogue; the nearest name is given.
    """
    name, entry = find_entry("cables", "cable", name)
    return CableModel(
        name=name,
        title=entry["title"],
        medium=entry["medium"],
        rate_bps=parse_rate_bps(entry["rate"]["value"]),
        links=entry["links"]["value"],
        reach_mm=parse_length_mm(entry["reach"]["value"]),
        footprint=footprint_of(entry),
        figures=figures_of(entry),
    )


def cables_for(link_bps: int, length_mm: int) -> list[CableModel]:
    """Return what carries links of a rate over a length, the shortest reach first.

    Parameters
    ----------
    link_bps
        Rate of the link in bit/s; its cable may hold several such links.
    length_mm
        Length in millimetres.

    Examples
    --------
    >>> [cable.name for cable in cables_for(400 * 10**9, 40_000)][:2]
    ['2xsr4-800g', 'sr4-400g']
    """
    found = [cable_model(name) for name in catalogue_names("cables")]
    fitting = [
        cable for cable in found if cable.link_bps == link_bps and cable.reach_mm >= length_mm
    ]
    return sorted(fitting, key=lambda cable: cable.reach_mm)
