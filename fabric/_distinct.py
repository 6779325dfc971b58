# SPDX-License-Identifier: Apache-2.0
"""Distinct values of long arrays, in order and by sorting.

`numpy.unique` hashes (from NumPy 2.3 on), which takes several times as long where most of a few
hundred thousand values differ, since each look-up then misses the caches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["count_distinct", "distinct"]


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Return the distinct values in rising order.

    Examples
    --------
    >>> distinct(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    ordered = np.sort(values)
    keep = np.ones(len(ordered), np.bool_)
    keep[1:] = ordered[1:] != ordered[:-1]
    return np.asarray(ordered[keep])


def count_distinct(values: NDArray[Any]) -> int:
    """Return how many distinct values there are.

    Examples
    --------
    >>> count_distinct(np.array([3, 1, 3])), count_distinct(np.array([]))
    (2, 0)
    """
    ordered = np.sort(values)
    return int(np.count_nonzero(ordered[1:] != ordered[:-1])) + bool(len(ordered))
