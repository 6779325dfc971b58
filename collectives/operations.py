# SPDX-License-Identifier: Apache-2.0
"""The operations themselves: names, bandwidth factors and what each must leave behind.

Names are those of ``torch.distributed``; those of nccl-tests and of the NCCL API are accepted. The
size of an operation is always its full logical buffer: what each rank holds (all_reduce, reduce),
the gathered result (all_gather, gather), the input before scattering (reduce_scatter, scatter), all
that one rank holds for all its peers (all_to_all), the message (broadcast, send).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from railweave.fabric.errors import InputError, nearest_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["OPERATIONS", "Operation", "canonical_op", "operation", "plain_name"]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation.

    Parameters
    ----------
    name
        Canonical name.
    aliases
        Other accepted names, without separators and in lower case.
    bus_factor
        Rank count -> bus bandwidth over algorithm bandwidth.
    """

    name: str
    aliases: tuple[str, ...]
    bus_factor: Callable[[int], Fraction]


def _twice_shared(ranks: int) -> Fraction:
    return Fraction(2 * (ranks - 1), ranks)


def _shared(ranks: int) -> Fraction:
    return Fraction(ranks - 1, ranks)


def _whole(ranks: int) -> Fraction:
    return Fraction(1)


def _table(*operations: Operation) -> Mapping[str, Operation]:
    return MappingProxyType({op.name: op for op in operations})


# Factors: nccl-tests doc/PERFORMANCE.md, "Bus bandwidth"; gather and scatter: src/gather.cu and
# src/scatter.cu. The barrier moves no data: factor 1.
OPERATIONS: Final = _table(
    Operation(name="all_reduce", aliases=("allreduce",), bus_factor=_twice_shared),
    Operation(
        name="all_gather",
        aliases=("allgather", "allgatherintotensor", "allgatherbase"),
        bus_factor=_shared,
    ),
    Operation(
        name="reduce_scatter",
        aliases=("reducescatter", "reducescattertensor", "reducescatterbase"),
        bus_factor=_shared,
    ),
    Operation(name="all_to_all", aliases=("alltoall", "alltoallsingle"), bus_factor=_shared),
    Operation(name="broadcast", aliases=("broadcast", "bcast"), bus_factor=_whole),
    Operation(name="reduce", aliases=("reduce",), bus_factor=_whole),
    Operation(name="gather", aliases=("gather",), bus_factor=_shared),
    Operation(name="scatter", aliases=("scatter",), bus_factor=_shared),
    Operation(name="send", aliases=("send", "isend", "sendrecv"), bus_factor=_whole),
    Operation(name="recv", aliases=("recv", "irecv"), bus_factor=_whole),
    Operation(name="barrier", aliases=("barrier",), bus_factor=_whole),
)

_BY_ALIAS: Final = {alias: op.name for op in OPERATIONS.values() for alias in op.aliases}
_BY_NAME: Final = {**{name: name for name in OPERATIONS}, **_BY_ALIAS}


def plain_name(name: str) -> str:
    """Return a name in lower case without separators and without the ending ``_perf``."""
    return name.lower().removesuffix("_perf").replace("_", "").replace("-", "")


def canonical_op(name: str) -> str:
    """Return the ``torch.distributed`` name of an operation.

    Case, underscores and hyphens do not matter, nor does nccl-tests' ending ``_perf``.

    Examples
    --------
    >>> canonical_op("alltoall"), canonical_op("AllReduce"), canonical_op("sendrecv_perf")
    ('all_to_all', 'all_reduce', 'send')

    Raises
    ------
    InputError
        The name is unknown.
    """
    found = _BY_NAME.get(name) if isinstance(name, str) else None
    if found is not None:
        return found
    plain = plain_name(str(name))
    if plain in _BY_ALIAS:
        return _BY_ALIAS[plain]
    raise InputError(
        f"'{name}' is not a collective operation",
        expected=f"one of {', '.join(OPERATIONS)}",
        nearest=nearest_name(str(name).lower(), _BY_NAME),
    )


def operation(name: str) -> Operation:
    """Return an operation by any of its names (see `canonical_op`)."""
    return OPERATIONS[canonical_op(name)]
