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

    from railweave.collectives.algorithm import Algorithm
    from railweave.fabric.schedule import Schedule

__all__ = ["plan", "resolve", "shape_of"]

_STRUCTURES: Final = StructureCache(max_nodes=8_000_000)


def _whole_number(value: object, *, field: str, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(
            f"{value!r} is not possible", field=field, expected=f"a whole number, {least} or more"
        )


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
    op: str, algorithm: str, shape: Shape, size_bytes: int, options: Mapping[str, object]
) -> tuple[Algorithm, dict[str, object]]:
    """Return the algorithm meant and all its options, those that follow from the size too.

    Raises
    ------
    InputError
        The operation, the algorithm or an option is unknown.
    """
    found = _selected(op, algorithm, shape)
    full: dict[str, object] = {}
    if found.sized_options is not None:
        full.update(found.sized_options(shape, size_bytes))
    for name, value in options.items():
        if name not in found.options:
            raise InputError(
                f"{found.op} by {found.name} has no option '{name}'",
                field=name,
                expected=" | ".join(found.options) or "no option",
                nearest=nearest_name(name, found.options),
            )
        _whole_number(value, field=name, least=0)
        full[name] = value
    return found, full


def plan(
    op: str,
    *,
    ranks: int,
    size_bytes: int,
    algorithm: str = "auto",
    hosts: Sequence[int] | None = None,
    step_delay_ps: int = 0,
    **options: int,
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
        the gathered result (all_gather), the input (reduce_scatter), the message.
    algorithm
        One of `algorithms` of the operation, or ``auto`` (see `railweave.collectives.select`).
    hosts
        Host number of each rank, shape (ranks,); numbers serve only to tell hosts apart.
    step_delay_ps
        Start-up latency of each transfer, in ps.
    **options
        Options of the algorithm: ``root`` and ``chunks`` (broadcast, reduce), ``source`` and
        ``target`` (send, recv).

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
    >>> ring.algorithm, len(ring), ring.bytes_sent_per_rank().tolist()
    ('ring', 24, [6144, 6144, 6144, 6144])
    """
    _whole_number(size_bytes, field="size_bytes", least=0)
    _whole_number(step_delay_ps, field="step_delay_ps", least=0)
    shape = shape_of(ranks, hosts)
    found, full = resolve(op, algorithm, shape, size_bytes, options)
    if not found.uses_hosts:
        shape = shape_of(ranks)
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
