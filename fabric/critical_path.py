# SPDX-License-Identifier: Apache-2.0
"""The longest chain of a dependency graph: what it takes when nothing contends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.jit import jit

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["longest_path_ps"]


@jit("i8(i8[::1], i4[::1], i4[::1], i4[::1])")
def _longest(duration, waits, succ_ptr, succ):  # type: ignore[no-untyped-def]
    n = len(duration)
    ready = np.zeros(n, np.int64)
    stack = np.empty(n, np.int32)
    top = 0
    for node in range(n):
        if waits[node] == 0:
            stack[top] = node
            top += 1
    longest = np.int64(0)
    while top > 0:
        top -= 1
        node = stack[top]
        end = ready[node] + duration[node]
        longest = max(longest, end)
        for e in range(succ_ptr[node], succ_ptr[node + 1]):
            after = succ[e]
            ready[after] = max(ready[after], end)
            waits[after] -= 1
            if waits[after] == 0:
                stack[top] = after
                top += 1
    return longest


def longest_path_ps(
    duration_ps: NDArray[np.int64],
    n_deps: NDArray[np.int32],
    succ_ptr: NDArray[np.int32],
    succ: NDArray[np.int32],
) -> int:
    """Return the longest sum of durations along a chain of dependencies.

    Parameters
    ----------
    duration_ps
        int64 (nodes,).
    n_deps
        int32 (nodes,): predecessors; overwritten.
    succ_ptr, succ
        int32 (nodes + 1,), (edges,): successors in CSR form.

    Examples
    --------
    >>> durations = np.array([5, 7, 1], np.int64)
    >>> longest_path_ps(durations, np.array([0, 0, 2], np.int32),
    ...                 np.array([0, 1, 2, 2], np.int32), np.array([2, 2], np.int32))
    8
    """
    return int(_longest(duration_ps, n_deps, succ_ptr, succ))
