# SPDX-License-Identifier: Apache-2.0
"""Bus bandwidth as nccl-tests reports it, and the closed forms that schedules are held against."""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.collectives.algorithm import Links
from railweave.collectives.operations import operation
from railweave.collectives.planner import resolve, shape_of
from railweave.fabric.errors import InputError
from railweave.fabric.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["algorithm_bandwidth_Bps", "bus_bandwidth_Bps", "busbw_factor", "closed_form_ps"]


def busbw_factor(op: str, ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth of an operation.

    Source: nccl-tests ``doc/PERFORMANCE.md``.

    Examples
    --------
    >>> busbw_factor("all_reduce", 8), busbw_factor("alltoall", 8), busbw_factor("sendrecv", 8)
    (1.75, 0.875, 1.0)
    """
    if ranks < 1:
        raise InputError(f"{ranks} ranks are not possible", field="ranks", expected="1 or more")
    return float(operation(op).bus_factor(ranks))


def algorithm_bandwidth_Bps(size_bytes: int, time_ps: int) -> float:
    """Return size over time, in byte/s; 0 if no time passed."""
    return size_bytes * PS_PER_S / time_ps if time_ps > 0 else 0.0


def bus_bandwidth_Bps(op: str, *, ranks: int, size_bytes: int, time_ps: int) -> float:
    """Return the bus bandwidth in byte/s: what a perfect schedule would put on each link.

    Examples
    --------
    >>> took = 5_115_151_758
    >>> rate = bus_bandwidth_Bps("all_reduce", ranks=8, size_bytes=2**30, time_ps=took)
    >>> round(rate / 1e9, 2)
    367.35
    """
    return algorithm_bandwidth_Bps(size_bytes, time_ps) * busbw_factor(op, ranks)


def closed_form_ps(
    op: str,
    algorithm: str = "auto",
    *,
    ranks: int,
    size_bytes: int,
    alpha_ps: int,
    rate_bps: int,
    hosts: Sequence[int] | None = None,
    local_alpha_ps: int | None = None,
    local_rate_bps: int | None = None,
    **options: int | None,
) -> int:
    """Return the alpha-beta time of an algorithm on an otherwise idle network, rounded down.

    Each rank sends and receives at ``rate_bps``, and each message arrives ``alpha_ps`` after its
    last byte was sent. The value is what the schedule takes when it splits evenly; each
    algorithm's module says where it is a bound only.

    Parameters
    ----------
    op, algorithm, ranks, size_bytes, hosts, **options
        As for `railweave.collectives.plan`.
    alpha_ps, rate_bps
        Latency in ps of a message and rate in bit/s at which a rank sends.
    local_alpha_ps, local_rate_bps
        The same within a host, for algorithms that know hosts; default: no difference.

    Examples
    --------
    >>> closed_form_ps("all_reduce", "ring", ranks=8, size_bytes=2**30,
    ...     alpha_ps=3_400_000, rate_bps=8 * 370_800_000_000)
    5115151758
    """
    shape = shape_of(ranks, hosts)
    links = Links(
        alpha_ps=alpha_ps,
        rate_bps=rate_bps,
        local_alpha_ps=alpha_ps if local_alpha_ps is None else local_alpha_ps,
        local_rate_bps=rate_bps if local_rate_bps is None else local_rate_bps,
    )
    found, full = resolve(op, algorithm, shape, size_bytes, options, links)
    return int(found.closed_form(shape, size_bytes, links, **full))
