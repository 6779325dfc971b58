# SPDX-License-Identifier: Apache-2.0
"""Summaries of many times, all in whole picoseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["nearest_rank", "time_stats"]


def nearest_rank(ordered: Sequence[int], percent: int) -> int:
    """Return the nearest-rank percentile: the smallest value that ``percent`` % do not exceed.

    Parameters
    ----------
    ordered
        Values in ascending order, at least one.
    percent
        1 to 100.

    Examples
    --------
    >>> [nearest_rank([10, 20, 30, 40], p) for p in (25, 50, 51, 99, 100)]
    [10, 20, 30, 40, 40]
    """
    return ordered[-(-percent * len(ordered) // 100) - 1]


def time_stats(times_ps: Sequence[int], bounds_ps: Sequence[int] = ()) -> dict[str, int]:
    """Return count, mean (rounded down), nearest-rank percentiles and maximum of times in ps.

    Parameters
    ----------
    times_ps
        What was seen; none gives ``{"count": 0}``.
    bounds_ps
        The least each of them can be, for ``bound_mean_ps``, ``bound_p50_ps`` and so on; or none.

    Examples
    --------
    >>> time_stats([30, 10, 21], [9, 9, 9])["mean_ps"]
    20
    """
    if not times_ps:
        return {"count": 0}
    ordered = sorted(times_ps)
    stats = {
        "count": len(ordered),
        "mean_ps": sum(ordered) // len(ordered),
        "p50_ps": nearest_rank(ordered, 50),
        "p99_ps": nearest_rank(ordered, 99),
        "max_ps": ordered[-1],
    }
    if bounds_ps:
        bounds = sorted(bounds_ps)
        stats["bound_mean_ps"] = sum(bounds) // len(bounds)
        stats["bound_p50_ps"] = nearest_rank(bounds, 50)
        stats["bound_p99_ps"] = nearest_rank(bounds, 99)
        stats["bound_max_ps"] = bounds[-1]
    return stats
