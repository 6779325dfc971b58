# SPDX-License-Identifier: Apache-2.0
"""Dependencies of a schedule: from blocks of edges to lists of successors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from railweave.fabric.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Edges", "check_nodes", "successor_lists"]

_MAX_NODES: Final = 2**31 - 1

Edges: TypeAlias = "tuple[NDArray[np.int32], NDArray[np.int32]]"
"""A block of edges: nodes, and the node that waits for each."""


def check_nodes(count: int) -> int:
    """Return a node count, or refuse what int32 node numbers cannot count."""
    if count > _MAX_NODES:
        raise InputError(
            f"the schedule would have {count} transfers", expected=f"at most {_MAX_NODES}"
        )
    return count


def successor_lists(
    n_nodes: int, edges: list[Edges]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Return ``(n_deps, succ_ptr, succ)`` of blocks of edges, equal sources in order of blocks.

    As `dependency_csr`, without sorting those blocks that are sorted already: nearly all are, and
    the sort would take most of the time of a large schedule.
    """
    n_deps = np.zeros(n_nodes, np.int32)
    ptr = np.zeros(n_nodes + 1, np.int32)
    for before, after in edges:
        n_deps += np.bincount(after, minlength=n_nodes)
        ptr[1:] += np.bincount(before, minlength=n_nodes)
    succ = np.empty(check_nodes(sum(len(before) for before, _ in edges)), np.int32)
    np.cumsum(ptr, out=ptr)
    free = ptr[:-1].copy()  # where the next successor of each node goes
    for before, after in edges:
        if not len(before):
            continue
        step = np.diff(before)
        if (step > 0).all():
            one_each: Any = before
            if before[-1] - before[0] == len(step):  # nodes in a row
                one_each = slice(before[0], before[-1] + 1)
            succ[free[one_each]] = after
            free[one_each] += 1
            continue
        if (step < 0).any():
            by = np.argsort(before, kind="stable")
            before, after = before[by], after[by]
            step = np.diff(before)
        run = np.concatenate(([0], np.flatnonzero(step) + 1))
        lengths = np.diff(np.append(run, len(before))).astype(np.int32)
        start = free[before[run]] - run.astype(np.int32)
        succ[np.arange(len(before), dtype=np.int32) + np.repeat(start, lengths)] = after
        free[before[run]] += lengths
    return n_deps, ptr, succ
