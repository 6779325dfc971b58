# SPDX-License-Identifier: Apache-2.0
"""What rates alone do not show of a lossless network: pauses, their victims, and deadlock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.dependency import LOSSLESS_PRIORITY, first_cycle
from railweave.fabric.graph import LinkModel
from railweave.fabric.words import listed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric
    from railweave.fabric.in_use import PathsInUse
    from railweave.fabric.paths import PathTable

__all__ = ["lossless_cautions"]


def lossless_cautions(
    table: PathTable, in_use: PathsInUse, contended: NDArray[np.int32]
) -> list[str]:
    """Return a sentence for each effect of a lossless network that a fluid run left out.

    Parameters
    ----------
    table
        The paths in use.
    in_use
        Which priority each carries.
    contended
        int32 (links,): 1 where several flows were held back together.
    """
    fabric = table.fabric
    lossless = np.isin(fabric.link_model, (LinkModel.ROCE_LOSSLESS, LinkModel.INFINIBAND))
    return _incast(table, lossless & (contended == 1)) + _circle(fabric, in_use)


def _incast(table: PathTable, full: NDArray[np.bool_]) -> list[str]:
    """Name links at which several flows met faster than they could leave."""
    fabric = table.fabric
    ends = int(table.ptr[len(table)])
    link = table.link[:ends]
    before = np.concatenate((link[:1], link[:-1])).astype(np.int64)
    joined = full[link] & (table.share[:ends] == 1.0)
    joined[table.ptr[: len(table)]] = False  # a first hop has none before it
    arrivals = np.unique(np.stack((link[joined], before[joined])), axis=1)
    into, first, ways = np.unique(arrivals[0], return_index=True, return_counts=True)
    # One way in that is no faster than the way out cannot fill a queue before it.
    rate = fabric.link_rate_bps
    into = into[(ways > 1) | (rate[arrivals[1][first]] > rate[into])]
    if not len(into):
        return []
    name = fabric.link_name(int(into[0]))
    links, them = f"link {name}", "it"
    if len(into) > 1:
        links, them = f"{len(into)} lossless links ({name} first)", "them"
    return [
        f"several flows met at {links} and filled {them}: a lossless network pauses whoever "
        "sends there, and slows others behind them; a fluid run shows neither"
    ]


def _circle(fabric: Fabric, in_use: PathsInUse) -> list[str]:
    """Name a circle of links that can wait for each other; routes up and down have none."""
    if not in_use.pinned and not np.any(fabric.tier[fabric.switches] < 0):
        return []
    found = first_cycle(fabric, in_use.by_priority(LOSSLESS_PRIORITY))
    if not found:
        return []
    names = listed([fabric.link_name(link) for link, _ in found])
    return [
        f"the lossless links {names} can wait for each other in a circle: the deadlock that may "
        "come of it is not in a fluid run"
    ]
