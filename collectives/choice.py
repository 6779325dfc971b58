# SPDX-License-Identifier: Apache-2.0
"""Which algorithm and protocol NCCL takes: the least of its own estimates, unless told otherwise.

NCCL's names are accepted in any case and with or without dashes; ``NCCL_ALGO`` and ``NCCL_PROTO``
work alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from railweave.collectives.nccl_model import ALGORITHMS, candidates, estimate_us
from railweave.collectives.operations import canonical_op
from railweave.fabric.errors import InputError, nearest_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.collectives.nccl_model import Box

__all__ = ["P2P_LL_BYTES", "Choice", "choose", "nccl_name"]

P2P_LL_BYTES: Final = 16384
"""Bytes per peer up to which grouped sends use LL (NCCL src/enqueue.cc, ``P2P_LL_THRESHOLD``)."""

_GROUPED: Final = ("all_to_all", "gather", "scatter", "send", "recv")
_PROTOCOLS: Final = ("LL", "LL128", "Simple")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """An algorithm and a protocol, as NCCL names them."""

    algorithm: str
    protocol: str


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def nccl_name(name: str, known: Sequence[str], *, field: str) -> str:
    """Return a name as NCCL writes it.

    Examples
    --------
    >>> nccl_name("nvls-tree", ("Ring", "NVLSTree"), field="algorithm")
    'NVLSTree'

    Raises
    ------
    InputError
        It is not among the known ones.
    """
    for one in known:
        if _plain(one) == _plain(name):
            return one
    raise InputError(
        f"'{name}' is not possible here",
        field=field,
        expected=" | ".join(("auto", *known)),
        nearest=nearest_name(name, known),
    )


def choose(
    op: str, *, size_bytes: int, box: Box, algorithm: str = "auto", protocol: str = "auto"
) -> Choice:
    """Return what NCCL takes for an operation of a size.

    Parameters
    ----------
    op, size_bytes
        Operation and its full logical buffer.
    box
        What NCCL knows of the machines.
    algorithm, protocol
        ``auto``, or the only ones allowed, as ``NCCL_ALGO`` and ``NCCL_PROTO`` do.

    Raises
    ------
    InputError
        A name is unknown, or NCCL could not take it here; what is possible is named.

    Examples
    --------
    >>> from railweave.collectives.nccl_model import Box
    >>> box = Box(architecture="hopper", interconnect="nvlink", nodes=1, gpus_per_node=8,
    ...           link_GBps=370.8, nvls=True)
    >>> [choose("all_reduce", size_bytes=size, box=box) for size in (2**20, 2**21)]
    ... # doctest: +NORMALIZE_WHITESPACE
    [Choice(algorithm='Ring', protocol='LL'), Choice(algorithm='NVLS', protocol='Simple')]
    """
    return _chosen(canonical_op(op), size_bytes, box, algorithm, protocol)


@lru_cache(maxsize=4096)
def _only(
    possible: tuple[tuple[str, str], ...], part: int, named: str, what: str
) -> tuple[tuple[str, str], ...]:
    """Return the pairs of algorithm and protocol whose part 0 or 1 is the one that was named."""
    kept = tuple(one for one in possible if one[part] == named)
    if not kept:
        names = dict.fromkeys(one[part] for one in possible)
        raise InputError(
            f"NCCL does not run {what} here",
            field=("algorithm", "protocol")[part],
            expected=" | ".join(("auto", *names)),
        )
    return kept


def _chosen(op: str, size_bytes: int, box: Box, algorithm: str, protocol: str) -> Choice:
    if op in _GROUPED:
        peers = 1 if op in ("send", "recv") else box.ranks
        small = size_bytes <= P2P_LL_BYTES * peers
        auto = "LL" if small else "Simple"
        if protocol != "auto":
            auto = nccl_name(protocol, ("LL", "Simple"), field="protocol")
        if algorithm != "auto":
            nccl_name(algorithm, ("P2P",), field="algorithm")
        return Choice(algorithm="P2P", protocol=auto)
    possible = candidates("all_reduce" if op == "barrier" else op, box)
    if algorithm != "auto":
        named = nccl_name(algorithm, ALGORITHMS, field="algorithm")
        possible = _only(possible, 0, named, f"{op} by {named}")
    if protocol != "auto":
        named = nccl_name(protocol, _PROTOCOLS, field="protocol")
        possible = _only(possible, 1, named, f"{op} by {possible[0][0]} with {named}")
    best = min(possible, key=lambda one: estimate_us(op, *one, size_bytes=size_bytes, box=box))
    return Choice(algorithm=best[0], protocol=best[1])
