# SPDX-License-Identifier: Apache-2.0
"""The least time of a schedule over its paths, whatever shares the links give.

Two things hold it up, and the longer one is the bound.

**Its longest chain.** A node starts when all that it waits for has ended, and lasts no less than
alone on an empty fabric. Along any chain of dependencies these times add up.

**Each of its links**, with what comes before and after. Say the messages ``M`` cross link ``l`` at
rate ``C``. Message ``m`` starts no earlier than ``b(m)``, the longest chain that leads to it, and
its first byte reaches ``l`` no sooner than ``u(m)`` later: the latency of the hops before, and the
first packet stored at each. So until ``min b + min u`` nothing crosses. Then the link needs
``P = sum of bytes / C``, since it carries ``C`` at most, in whatever order and however shared.
The last byte is of some message: it has the latency of the hops behind, ``d(m)``, before it, and
the longest chain ``t(m)`` of those that wait for ``m``. The schedule ends no earlier than

    ``min b + min u + P + min (d + t)``.

This is the bound of one machine with heads and tails (Carlier, "The one-machine sequencing
problem", European Journal of Operational Research 11, 1982), which holds for jobs that share the
machine, as preemption does not lower it. Minima are taken one by one: in the fluid model a message
is on all its links from its start, and its whole latency comes last, so that
``u(m) + d(m)`` follows the last byte of ``m``, and ``min u + d(m)`` is no more.

A link of several that a message is sprayed over carries its share where the engine splits evenly;
where packets choose, it holds up nobody. Of the hops that are sprayed over, no latency counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric._accounting import durations, longest_chain
from railweave.fabric._link_floors import link_floors
from railweave.fabric.jit import call_for_work
from railweave.fabric.schedule import dependency_csr

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.fabric.binding import BoundSchedule

__all__ = ["Chains", "chains", "floor_ps", "least_ps"]

_SURE = 1 - 1e-15  # sums of floats may be a little too long


@dataclass(frozen=True, eq=False)
class Chains:
    """What dependencies alone make of a schedule, on an empty fabric.

    Parameters
    ----------
    longest_ps
        Time of the longest chain of nodes.
    begin_ps
        int64 (nodes,): when the first run of each node can start, its delay over.
    after_ps
        int64 (nodes,): what at least passes between the end of its last run and the end of all.
    """

    longest_ps: int
    begin_ps: NDArray[np.int64]
    after_ps: NDArray[np.int64]


def least_ps(bound: BoundSchedule) -> NDArray[np.int64]:
    """Return the time of each node alone on an empty fabric, int64 (nodes,)."""
    return durations(bound.path, bound.wire_bytes, bound.schedule.size_bytes, bound.table.cost)


def chains(bound: BoundSchedule) -> Chains:
    """Follow the dependencies of one run, from its beginning and from its end."""
    plan, lasts = bound.schedule, least_ps(bound)
    if not len(plan.succ):
        nothing = np.broadcast_to(np.int64(0), bound.n_nodes)
        return Chains(int((plan.delay_ps + lasts).max(initial=0)), plan.delay_ps, nothing)
    longest, begin = _swept(
        bound, lasts, n_deps=plan.n_deps, succ_ptr=plan.succ_ptr, succ=bound.graph.succ
    )
    n_deps, ptr, succ = _reversed(bound)
    _, after = _swept(bound, lasts, n_deps=n_deps, succ_ptr=ptr, succ=succ)
    return Chains(longest, begin + plan.delay_ps, after)


def _swept(
    bound: BoundSchedule,
    lasts: NDArray[np.int64],
    *,
    n_deps: NDArray[np.int32],
    succ_ptr: NDArray[np.int32],
    succ: NDArray[np.int32],
) -> tuple[int, NDArray[np.int64]]:
    """Return the longest chain, and when each node can start first, int64."""
    n = bound.n_nodes
    begin = np.zeros(n, np.int64)
    longest = call_for_work(
        4 * bound.n_runs, longest_chain,
        lasts, bound.schedule.delay_ps, n_deps.copy(), bound.runs.copy(),
        np.zeros(n, np.int32), succ_ptr, succ, begin,
        np.empty(2 * n, np.int32), np.empty(2 * n, np.int64),
    )  # fmt: skip
    return int(longest), begin


def _reversed(
    bound: BoundSchedule,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Return the graph with all dependencies turned round: ``n_deps, succ_ptr, succ``.

    A run that releases the next run of another node is, from the end, released by it; and messages
    of one connection, as all runs of a node are, end in the order in which they begin.
    """
    plan, loops = bound.schedule, bound.schedule.loops
    before = np.repeat(np.arange(bound.n_nodes, dtype=np.int32), np.diff(plan.succ_ptr))
    n_deps, ptr, succ = dependency_csr(bound.n_nodes, plan.succ, before)
    if loops is None:
        return n_deps, ptr, succ
    again = loops.again[np.argsort(plan.succ, kind="stable")]
    once = np.bincount(succ[~again], minlength=bound.n_nodes).astype(np.int32)
    return once, ptr, np.where(again, ~succ, succ).astype(np.int32)


def floor_ps(bound: BoundSchedule, found: Chains) -> int:
    """Return the least time that some link makes of a schedule, with what comes before and after.

    Parameters
    ----------
    bound
        The schedule over its paths.
    found
        Its chains.
    """
    usage, (_, row) = bound.usage, bound.used_paths
    if not len(usage.path):
        return 0
    table = bound.table
    floors = np.full((4, table.fabric.n_links), np.inf)
    floors[2] = 0.0
    latency, host_ps = table.hop_latency()
    call_for_work(
        8 * len(usage.path), link_floors,
        usage.path,
        _least_by(row, found.begin_ps, len(usage.path)),
        _least_by(row, found.after_ps, len(usage.path)),
        usage.wire_bytes, usage.payload_bytes,
        bound.wire_bytes.min(where=row >= 0, initial=2**62), table.cost,
        table.ptr, table.link, table.share,
        latency, 8e12 / table.fabric.link_rate_bps, table.fabric.link_network,
        host_ps, table.even, floors,
    )  # fmt: skip
    used = floors[2] > 0
    begin, way, busy, after = floors[:, used]
    least = begin + way + busy * _SURE + after
    return int(np.floor(least.max(initial=0.0)))


def _least_by(row: NDArray[np.int32], times: NDArray[np.int64], rows: int) -> NDArray[np.float64]:
    """Return the smallest time of each row, float64 (rows,); -1: of no row."""
    if not times.any():
        return np.zeros(rows)
    out = np.full(rows + 1, np.inf)
    np.minimum.at(out, row, times.astype(np.float64))
    return out[:rows]
