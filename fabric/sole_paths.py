# SPDX-License-Identifier: Apache-2.0
"""Paths whose links nobody else ever crosses.

In a simulation that is closed (one schedule, and nothing changes on the way) the rate of such a
path is that of its narrowest link, whatever else happens. Its messages need no links, no solving
and no queue: each begins when the one before has left, and takes as long as it always does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.usage import spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.fabric.fluid_state import SolvePaths

__all__ = ["sole_rates"]


def sole_rates(
    paths: SolvePaths, capacity: NDArray[np.float64], ack_share: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the rate of each path that crosses its links alone, 0 for every other one.

    Parameters
    ----------
    paths
        All paths of a closed simulation.
    capacity, ack_share
        float64 (links,): see `railweave.fabric.fluid_state.FluidState`. A link whose room depends
        on the acknowledgements of what goes the other way is shared with it.

    Returns
    -------
    float64 (paths,)
        Wire bit/s.
    """
    rates = np.zeros(len(paths))
    routes = paths.routes[: len(paths)]
    filled = np.flatnonzero(routes.hops_end > routes.hops)
    if not len(filled):
        return rates
    start, end = routes.hops[filled], routes.hops_end[filled]
    hops = paths.hops[spans(start, end)]
    crossed = np.bincount(hops.link, minlength=len(capacity))
    answered = (ack_share > 0) & (crossed[np.arange(len(capacity)) ^ 1] > 0)
    shared = (crossed > 1) | answered
    first = np.cumsum(end - start) - (end - start)
    alone = ~np.logical_or.reduceat(shared[hops.link], first)
    most = np.minimum.reduceat(capacity[hops.link] / hops.share, first)
    rates[filled[alone]] = most[alone]
    return rates
