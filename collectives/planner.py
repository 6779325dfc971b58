# SPDX-License-Identifier: Apache-2.0
"""From an operation to a schedule."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from railweave.collectives.algorithm import Shape, find_algorithm
from railweave.collectives.select import select_algorithm
from railweave.collectives.structure import StructureCache
from railweave.fabric.errors import InputError, nearest_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from railweave.collectives.algorithm import Algorithm, Links
    from railweave.fabric.schedule import Schedule

__all__ = ["plan", "resolve", "shape_of"]

_STRUCTURES: Final = StructureCache(max_nodes=8_000_000)
_COUNTS: Final = ("channels", "chunk_bytes", "chunks", "slots")


def _whole_number(value: object, *, field: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(
            f"{value!r} is not possible", field=field, expected=f"a whole number, {least} or more"
        )
    return value


@lru_cache(maxsize=256)
def _shape(ranks: int, hosts: tuple[int, ...] | None) -> Shape:
    if hosts is None:
        return Shape(ranks)
    if len(hosts) != ranks:
        raise InputError(
            f"{len(hosts)} hosts are given for {ranks} ranks",
            field="hosts",
            expected="the host of each rank",
        )
    number = {host: i for i, host in enumerate(dict.fromkeys(hosts))}
    return Shape(ranks, tuple(number[host] for host in hosts))


def shape_of(ranks: int, hosts: Sequence[int] | None = None) -> Shape:
    """Return the checked shape of ``ranks`` ranks on ``hosts`` (host number of each rank)."""
    _whole_number(ranks, field="ranks", least=1)
    return _shape(ranks, None if hosts is None else tuple(hosts))


@lru_cache(maxsize=256)
def _selected(op: str, algorithm: str, shape: Shape) -> Algorithm:
    return find_algorithm(op, select_algorithm(op, shape) if algorithm == "auto" else algorithm)


def resolve(
    op: str,
    algorithm: str,
    shape: Shape,
    size_bytes: int,
    options: Mapping[str, object],
    links: Links | None = None,
) -> tuple[Algorithm, dict[str, int]]:
    """Return the algorithm meant and all its options, those that follow from the size too.

    Options that are None count as not given. ``chunk_bytes`` is turned into ``chunks``.

    Raises
    ------
    InputError
        The operation, the algorithm or an option is unknown, or an option is impossible.
    """
    found = _selected(op, algorithm, shape)
    known = (*found.options, "chunk_bytes") if "chunks" in found.options else found.options
    given: dict[str, int] = {}
    for name, value in options.items():
        if value is None:
            continue
        if name not in known:
            raise InputError(
                f"{found.op} by {found.name} has no option '{name}'",
                field=name,
                expected=" | ".join(known) or "no option",
                nearest=nearest_name(name, known),
            )
        given[name] = _whole_number(value, field=name, least=1 if name in _COUNTS else 0)
    if "chunks" in given and "chunk_bytes" in given:
        raise InputError("both are given", field="chunks", expected="either chunks or chunk_bytes")
    full: dict[str, int] = {}
    if found.sized_options is not None:
        full.update(found.sized_options(shape, size_bytes, links, given))
    full.update(given)
    full.pop("chunk_bytes", None)
    return found, full


def plan(
    op: str,
    *,
    ranks: int,
    size_bytes: int,
    algorithm: str = "auto",
    hosts: Sequence[int] | None = None,
    step_delay_ps: int = 0,
    links: Links | None = None,
    **options: int | None,
) -> Schedule:
    """Return the schedule that realises an operation.

    Parameters
    ----------
    op
        Operation, by any of its names.
    ranks
        Number of ranks; one rank makes an empty schedule.
    size_bytes
        The full logical buffer in bytes: what each rank holds (all_reduce, reduce, all_to_all),
        the gathered result (all_gather, gather), the input (reduce_scatter, scatter), the message.
    algorithm
        One of `algorithms` of the operation, or ``auto`` (see `railweave.collectives.select`).
    hosts
        Host number of each rank, shape (ranks,); numbers serve only to tell hosts apart.
    step_delay_ps
        Start-up latency of each transfer, in ps.
    links
        Latency and rate of the network at hand, by which algorithms choose their number of
        chunks; None: chunks as NCCL makes them.
    **options
        Options of the algorithm; one that is None is not given. ``root`` (broadcast, reduce,
        gather, scatter); ``source`` and ``target`` (send, recv); ``channels``: rings or trees
        side by side, each with a part of the buffer; ``chunks``: pieces that follow each other,
        or ``chunk_bytes``: their size; ``slots``: chunks under way between two ranks at a time.

    Notes
    -----
    Schedules of one shape share every array but sizes and delays, so that planning the same
    operation with another size costs microseconds. The schedule's ``algorithm`` says what was
    chosen.

    Raises
    ------
    InputError
        A name is unknown or a number is impossible.

    Examples
    --------
    >>> ring = plan("all_reduce", ranks=4, size_bytes=4096)
    >>> ring.algorithm, ring.n_runs, ring.bytes_sent_per_rank().tolist()
    ('ring', 24, [6144, 6144, 6144, 6144])
    """
    _whole_number(size_bytes, field="size_bytes", least=0)
    _whole_number(step_delay_ps, field="step_delay_ps", least=0)
    shape = shape_of(ranks, hosts)
    found, full = resolve(op, algorithm, shape, size_bytes, options, links)
    if not found.uses_hosts and full.get("channels", 1) == 1:
        shape = shape_of(ranks)  # channels leave hosts by different NICs, so they look at hosts
    key = (found.op, found.name, shape, tuple(sorted(full.items())))
    try:
        structure = _STRUCTURES.get(key, lambda: found.build(shape, **full))
    except InputError as error:
        raise error.located(field=f"{found.op} by {found.name}") from None
    return structure.fill(
        size_bytes,
        step_delay_ps=step_delay_ps,
        op=found.op,
        algorithm=found.name,
        key=(key, size_bytes, step_delay_ps),
    )
