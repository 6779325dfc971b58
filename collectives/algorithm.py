# SPDX-License-Identifier: Apache-2.0
"""How an algorithm joins: one module of this package, and a decorator on what builds it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.collectives.operations import OPERATIONS, canonical_op
from railweave.fabric.errors import InputError
from railweave.fabric.registry import Registry
from railweave.fabric.units import PS_PER_S

if TYPE_CHECKING:
    from fractions import Fraction

    from numpy.typing import NDArray

    from railweave.collectives.structure import Structure

__all__ = [
    "Algorithm",
    "Links",
    "Shape",
    "SizedOptions",
    "algorithm",
    "algorithms",
    "find_algorithm",
]


@dataclass(frozen=True)
class Shape:
    """Who takes part.

    Parameters
    ----------
    ranks
        Number of ranks.
    hosts
        Host of each rank, numbered from 0 in order of first appearance; None: not known.
    """

    ranks: int
    hosts: tuple[int, ...] | None = None

    @cached_property
    def host_shares(self) -> tuple[int, ...]:
        """Number of ranks on each host; all ranks on one host when hosts are not known."""
        if self.hosts is None:
            return (self.ranks,)
        shares = [0] * (max(self.hosts) + 1)
        for host in self.hosts:
            shares[host] += 1
        return tuple(shares)

    @cached_property
    def members(self) -> list[NDArray[np.int32]]:
        """Ranks of each host in ascending order, an int32 array per host."""
        host_of = np.zeros(self.ranks, np.int32)
        if self.hosts is not None:
            host_of = np.array(self.hosts, np.int32)
        by_host = np.argsort(host_of, kind="stable").astype(np.int32)
        return np.split(by_host, np.cumsum(self.host_shares)[:-1])

    def check_rank(self, rank: object, *, field: str) -> None:
        """Raise `InputError` unless ``rank`` is one of the ranks."""
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < self.ranks:
            raise InputError(
                f"{rank!r} is not a rank", field=field, expected=f"0 to {self.ranks - 1}"
            )


@dataclass(frozen=True, kw_only=True)
class Links:
    """What closed forms know of a network: one latency and one rate for each of two levels.

    Parameters
    ----------
    alpha_ps, rate_bps
        Latency of a message and the rate at which a rank sends, between hosts.
    local_alpha_ps, local_rate_bps
        The same within a host.

    Notes
    -----
    The model of Hockney, "The communication challenge for MPP", Parallel Computing 20 (1994):
    a message of ``S`` bytes takes ``alpha + S / B``.
    """

    alpha_ps: int
    rate_bps: int
    local_alpha_ps: int
    local_rate_bps: int

    def message_ps(self, size_bytes: Fraction) -> Fraction:
        """Return the exact time of one message between hosts."""
        return self.alpha_ps + size_bytes * 8 * PS_PER_S / self.rate_bps

    def local_message_ps(self, size_bytes: Fraction) -> Fraction:
        """Return the exact time of one message within a host."""
        return self.local_alpha_ps + size_bytes * 8 * PS_PER_S / self.local_rate_bps


SizedOptions = Callable[["Shape", int, "Links | None", Mapping[str, int]], Mapping[str, int]]
"""Shape, size in bytes, links and given options -> options that depend on the size."""


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One way to realise an operation.

    Parameters
    ----------
    op, name
        Canonical operation and the algorithm's name.
    build
        Shape and keyword options -> structure.
    closed_form
        Shape, size in bytes, links and the same options -> exact time in ps on an idle network.
    uses_hosts
        Whether the structure depends on the hosts of the ranks.
    options
        Names of the options that ``build`` takes.
    sized_options
        Shape, size in bytes, links (None: not known) and the options that were given, among them
        perhaps ``chunk_bytes`` -> options that depend on the size, unless the caller gave them.
    """

    op: str
    name: str
    build: Callable[..., Structure]
    closed_form: Callable[..., Fraction]
    uses_hosts: bool
    options: tuple[str, ...]
    sized_options: SizedOptions | None


_ALGORITHMS: Final[Mapping[str, Registry[Algorithm]]] = {
    op: Registry(f"known {op} algorithm", package="railweave.collectives") for op in OPERATIONS
}


def algorithm(
    op: str,
    name: str,
    *,
    closed_form: Callable[..., Fraction],
    uses_hosts: bool = False,
    sized_options: SizedOptions | None = None,
) -> Callable[[Callable[..., Structure]], Callable[..., Structure]]:
    """Register the decorated builder as algorithm ``name`` of operation ``op``.

    A builder takes a `Shape`, then its options by keyword, and returns a `Structure`.
    See `Algorithm` for the other parameters.
    """

    def register(build: Callable[..., Structure]) -> Callable[..., Structure]:
        named = inspect.signature(build).parameters.values()
        options = tuple(p.name for p in named if p.kind is inspect.Parameter.KEYWORD_ONLY)
        made = Algorithm(
            op=canonical_op(op),
            name=name,
            build=build,
            closed_form=closed_form,
            uses_hosts=uses_hosts,
            options=options,
            sized_options=sized_options,
        )
        _ALGORITHMS[made.op].add(name, made)
        return build

    return register


def algorithms(op: str) -> tuple[str, ...]:
    """Return the names of an operation's algorithms.

    Examples
    --------
    >>> algorithms("alltoall")
    ('direct', 'pxn')
    """
    return tuple(_ALGORITHMS[canonical_op(op)].names())


def find_algorithm(op: str, name: str) -> Algorithm:
    """Return an algorithm by its operation (any of its names) and its own name.

    Raises
    ------
    InputError
        The operation or the algorithm is unknown.
    """
    found = _ALGORITHMS[canonical_op(op)]
    try:
        return found.get(name)
    except InputError as error:
        raise error.located(field="algorithm") from None
