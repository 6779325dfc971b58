# SPDX-License-Identifier: Apache-2.0
"""The check of cables: their lengths against the reach of what carries their rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.cables import cable_model, cables_for
from railweave.fabric.catalogue import catalogue_names
from railweave.fabric.network_model import phy_latency_ps
from railweave.fabric.units import format_length, format_rate
from railweave.fabric.words import plural
from railweave.topologies.review.findings import Fact, Found, check_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric
    from railweave.topologies.review.case import Case

__all__ = ["cable_lengths_mm"]

_PS_PER_MM: Final = 5
_OPTICAL: Final = ("active-optical", "multimode", "single-mode")


def cable_lengths_mm(fabric: Fabric, phy_ps: int) -> NDArray[np.int64]:
    """int64 (links,): length that a cable's delay stands for, in mm; -1 below the PHY constant."""
    rest = fabric.link_delay_ps - phy_ps
    return np.where(rest >= 0, rest // _PS_PER_MM, -1)


@check_named(
    "cable-reach",
    about="A cable or optic of the catalogue carries each link's rate over its length.",
    why="The link does not come up, or runs with errors.",
    mend="place the two ends nearer to each other, or use a medium that reaches",
    part="effect",
)
def cable_reach(case: Case) -> Iterator[Found | Fact]:
    """Compare lengths with the reach of what the catalogue has for the rate."""
    fabric = case.fabric
    phy = phy_latency_ps(case.spec.network if case.spec else None)
    lengths = cable_lengths_mm(fabric, phy)
    cables = np.flatnonzero(fabric.link_network[::2]) * 2
    kinds: dict[tuple[str, int, int], list[int]] = {}
    for k in cables.tolist():
        key = fabric.link_tier[k], int(fabric.link_rate_bps[k]), int(lengths[k])
        kinds.setdefault(key, []).append(k)
    models = [cable_model(name) for name in catalogue_names("cables")]
    for (tier, rate, length), links in kinds.items():
        if length < 0:
            yield Fact(rule="cable-reach", text=f"{tier}: no length, only a delay", checked=False)
            continue
        of_rate = [model for model in models if model.link_bps == rate]
        fitting = cables_for(rate, length)
        said = plural(len(links), f"{tier} cable")
        said += f" of {format_rate(rate)} over {format_length(length)}"
        if fitting:
            best = fitting[0]
            yield Fact(
                rule="cable-reach",
                text=f"{said}: {best.name}, which reaches {format_length(best.reach_mm)}",
                values={"cables": len(links), "length_mm": length, "part": best.name},
            )
        elif any(model.medium in _OPTICAL for model in of_rate):
            reach = max(model.reach_mm for model in of_rate)
            yield Found(
                level="error",
                message=f"{said}: nothing of that rate reaches further than {format_length(reach)}",
                where=(fabric.cable_name(links[0]),),
                at=~links[0],
            )
        else:
            yield Fact(
                rule="cable-reach",
                text=f"{said}: the catalogue has no optic of that rate",
                checked=False,
            )
