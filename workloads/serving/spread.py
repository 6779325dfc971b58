# SPDX-License-Identifier: Apache-2.0
"""Distributions of times in whole picoseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from railweave.workloads.stats import nearest_rank

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from railweave.workloads.serving.ledger import Ledger

__all__ = ["Counted", "counted", "distribution"]


def distribution(values: Sequence[int], bounds: Sequence[int] = ()) -> dict[str, int]:
    """Return count, mean (rounded down), nearest-rank percentiles and maximum, beside the bounds'.

    Examples
    --------
    >>> distribution([30, 10, 21], [9, 8, 7])["bound_mean"]
    8
    """
    if not values:
        return {"count": 0}
    ordered, least = sorted(values), sorted(bounds)
    found = {
        "count": len(ordered),
        "mean": sum(ordered) // len(ordered),
        "p50": nearest_rank(ordered, 50),
        "p90": nearest_rank(ordered, 90),
        "p99": nearest_rank(ordered, 99),
        "max": ordered[-1],
    }
    if least:
        found["bound_mean"] = sum(least) // len(least)
        found["bound_p50"] = nearest_rank(least, 50)
        found["bound_p99"] = nearest_rank(least, 99)
    return found


class Counted:
    """Values that were each seen so many times.

    Parameters
    ----------
    values, counts
        int64 (n,) each.
    """

    def __init__(self, values: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        order = np.argsort(values, kind="stable")
        self.values, self.counts = values[order], counts[order]
        self._up_to = np.cumsum(self.counts)
        self.count = int(self.counts.sum())

    def percentile(self, percent: int) -> int:
        """Return the nearest-rank percentile."""
        rank = -(-percent * self.count // 100)
        return int(self.values[np.searchsorted(self._up_to, rank)])

    @property
    def mean(self) -> int:
        """Mean, rounded down."""
        pairs = zip(self.values.tolist(), self.counts.tolist(), strict=True)
        total: int = sum(value * count for value, count in pairs)
        return total // self.count

    def deviation(self) -> float:
        """Return the standard deviation."""
        mean = self.mean
        return float(np.sqrt(np.average((self.values - mean) ** 2.0, weights=self.counts)))

    def distribution(self) -> dict[str, int]:
        """Return what `distribution` would of the values one by one."""
        if not self.count:
            return {"count": 0}
        return {
            "count": self.count,
            "mean": self.mean,
            "p50": self.percentile(50),
            "p90": self.percentile(90),
            "p99": self.percentile(99),
            "max": int(self.values[-1]),
        }


def counted(ledgers: Iterable[Ledger]) -> Counted:
    """Return the gaps between tokens of several replicas."""
    pairs = [
        (np.array(ledger.gap_ps, np.int64), np.array(ledger.gap_count, np.int64))
        for ledger in ledgers
    ]
    return Counted(
        np.concatenate([values for values, _ in pairs]),
        np.concatenate([counts for _, counts in pairs]),
    )
