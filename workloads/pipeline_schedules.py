# SPDX-License-Identifier: Apache-2.0
"""The order in which pipeline stages work through micro-batches.

``1f1b``: PipeDream-flush (Narayanan et al., arXiv 2104.04473, section 2.2.1): stage s runs
``p - s - 1`` forward passes ahead, then one forward and one backward in turn. ``interleaved``
(section 2.2.2): each stage has several chunks of layers, and micro-batches pass all stages once for
each chunk; the order is Megatron-LM's (``megatron/core/pipeline_parallel/schedules.py``).
``zero-bubble``: ZB-H1 (Qi et al., arXiv 2401.10241): the backward pass is divided into the gradient
of the input, which the stage before waits for, and that of the weights, which fills the gaps.
``gpipe``: all forward passes, then all backward ones (Huang et al., arXiv 1811.06965).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from railweave.fabric.errors import InputError, nearest_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "PIPELINE_SCHEDULES",
    "Pass",
    "bubble_fraction",
    "makespan",
    "pipeline_order",
    "previous_pass",
]

Kind = Literal["forward", "backward", "weights"]


@dataclass(frozen=True)
class Pass:
    """One pass of a micro-batch through one chunk of a stage.

    ``backward`` includes the gradient of the weights unless a pass of kind ``weights`` follows.
    """

    kind: Kind
    micro_batch: int
    chunk: int = 0


def _counts(stages: int, micro_batches: int, chunks: int) -> None:
    for name, value in (
        ("pp", stages),
        ("micro_batches", micro_batches),
        ("chunks", chunks),
    ):
        if value < 1:
            raise InputError(f"{value} is too few", field=name, expected="at least 1")


def _gpipe(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Pass]:
    del stage, stages, chunks
    every = range(micro_batches)
    return [Pass("forward", m) for m in every] + [Pass("backward", m) for m in every]


def _one_f_one_b(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Pass]:
    del chunks
    ahead = min(stages - stage - 1, micro_batches)
    order = [Pass("forward", m) for m in range(ahead)]
    for m in range(ahead, micro_batches):
        order += [Pass("forward", m), Pass("backward", m - ahead)]
    return order + [Pass("backward", m) for m in range(micro_batches - ahead, micro_batches)]


def _interleaved(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Pass]:
    if micro_batches % stages:
        raise InputError(
            f"{micro_batches} micro-batches are no whole rounds of {stages} stages",
            field="micro_batches",
            expected=f"a multiple of {stages}",
        )
    total = micro_batches * chunks
    # Megatron-LM: get_model_chunk_id, and the warm-up passes of the interleaved schedule
    block = stages * chunks

    def nth(i: int, *, forward: bool) -> Pass:
        chunk = i % block // stages
        micro_batch = i // block * stages + i % stages
        if forward:
            return Pass("forward", micro_batch, chunk)
        return Pass("backward", micro_batch, chunks - 1 - chunk)

    ahead = 2 * (stages - stage - 1) + (chunks - 1) * stages
    ahead = total if micro_batches == stages else min(ahead, total)
    order = [nth(i, forward=True) for i in range(ahead)]
    for i in range(ahead, total):
        order += [nth(i, forward=True), nth(i - ahead, forward=False)]
    return order + [nth(i, forward=False) for i in range(total - ahead, total)]


def _zero_bubble(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Pass]:
    """Put the weight gradients off as far as 1F1B's memory allows: stage s by s of them."""
    del chunks
    order, owed, done = [], 0, 0
    for step in _one_f_one_b(stage, stages, micro_batches, 1):
        order.append(step)
        if step.kind == "backward":
            owed += 1
            if owed > stage:
                order.append(Pass("weights", done))
                owed, done = owed - 1, done + 1
    return order + [Pass("weights", m) for m in range(done, micro_batches)]


_ORDERS: Final[dict[str, Callable[[int, int, int, int], list[Pass]]]] = {
    "1f1b": _one_f_one_b,
    "gpipe": _gpipe,
    "interleaved": _interleaved,
    "zero-bubble": _zero_bubble,
}
PIPELINE_SCHEDULES: Final = tuple(_ORDERS)


def pipeline_order(
    name: str, *, stages: int, micro_batches: int, chunks: int = 1
) -> list[list[Pass]]:
    """Return the passes of each stage in their order.

    Parameters
    ----------
    name
        One of `PIPELINE_SCHEDULES`.
    stages, micro_batches
        How many there are.
    chunks
        Chunks of layers on each stage; more than one with ``interleaved`` alone.

    Raises
    ------
    InputError
        The name is unknown, or the numbers do not go together.

    Examples
    --------
    >>> [(p.kind[0], p.micro_batch) for p in pipeline_order("1f1b", stages=2, micro_batches=2)[0]]
    [('f', 0), ('f', 1), ('b', 0), ('b', 1)]
    """
    if name not in _ORDERS:
        raise InputError(
            f"'{name}' is no pipeline schedule",
            field="schedule",
            expected=" | ".join(PIPELINE_SCHEDULES),
            nearest=nearest_name(name, PIPELINE_SCHEDULES),
        )
    _counts(stages, micro_batches, chunks)
    if chunks > 1 and name != "interleaved":
        raise InputError(
            f"{name} has one chunk of layers on a stage",
            field="chunks",
            expected="1, or schedule: interleaved",
        )
    return [_ORDERS[name](stage, stages, micro_batches, chunks) for stage in range(stages)]


def previous_pass(stage: int, step: Pass, *, stages: int, chunks: int) -> tuple[int, Pass] | None:
    """Return the stage and the pass whose output a pass needs, None where it begins.

    The backward pass of the last chunk needs the forward pass of the same stage.

    Parameters
    ----------
    stage, step
        The pass.
    stages, chunks
        Of the pipeline.
    """
    m, chunk = step.micro_batch, step.chunk
    if step.kind == "weights":
        return stage, Pass("backward", m, chunk)
    if step.kind == "forward":
        if stage:
            return stage - 1, Pass("forward", m, chunk)
        return (stages - 1, Pass("forward", m, chunk - 1)) if chunk else None
    if stage < stages - 1:
        return stage + 1, Pass("backward", m, chunk)
    if chunk < chunks - 1:
        return 0, Pass("backward", m, chunk + 1)
    return stage, Pass("forward", m, chunk)


def makespan(
    order: Sequence[Sequence[Pass]], duration: Callable[[int, Pass], int], *, chunks: int = 1
) -> int:
    """Return how long a schedule takes where messages take no time.

    Parameters
    ----------
    order
        What `pipeline_order` returned.
    duration
        Stage and pass -> how long it takes, in any unit.
    chunks
        As for `pipeline_order`.

    Raises
    ------
    InputError
        The order waits for itself.

    Examples
    --------
    >>> order = pipeline_order("1f1b", stages=4, micro_batches=8)
    >>> makespan(order, lambda _, p: 1 if p.kind == "forward" else 2)  # (8 + 3) * 3
    33
    """
    stages = len(order)
    ends: dict[tuple[int, Pass], int] = {}
    at, free = [0] * stages, [0] * stages
    left = sum(map(len, order))
    while left:
        before = left
        for stage in range(stages):
            while at[stage] < len(order[stage]):
                step = order[stage][at[stage]]
                needs = previous_pass(stage, step, stages=stages, chunks=chunks)
                if needs is not None and needs not in ends:
                    break
                begin = max(free[stage], ends[needs] if needs else 0)
                free[stage] = ends[stage, step] = begin + duration(stage, step)
                at[stage] += 1
                left -= 1
        if left == before:
            raise InputError("the pipeline schedule waits for itself", field="schedule")
    return max(free)


def bubble_fraction(stages: int, micro_batches: int, chunks: int = 1) -> tuple[int, int]:
    """Return the bubble of 1F1B over the time of all micro-batches, as numerator and denominator.

    ``(p - 1) / (m v)`` (Narayanan et al., arXiv 2104.04473, section 2.2): equal stages, no
    communication.

    Examples
    --------
    >>> bubble_fraction(16, 32)
    (15, 32)
    """
    return stages - 1, micro_batches * chunks
