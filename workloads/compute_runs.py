# SPDX-License-Identifier: Apache-2.0
"""Compute time of many decode iterations in a row, exact, without making each of them.

From one iteration to the next every sequence attends to one position more. Where nothing bounds
what it attends to, the work of a block is an affine function of the iteration; other blocks are
worked out iteration by iteration.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from railweave.workloads.compute_blocks import BlockWork
from railweave.workloads.step_load import StepLoad

if TYPE_CHECKING:
    from collections.abc import Iterator

    from railweave.workloads.compute import StageTimer
    from railweave.workloads.shapes_model import LayerShape

__all__ = ["decode_flops", "decode_times", "later"]


def later(load: StepLoad, iterations: int) -> StepLoad:
    """Return a load so many iterations later.

    Examples
    --------
    >>> later(StepLoad.decode([7, 9]), 2).sequences
    ((1, 9), (1, 11))
    """
    return replace(load, sequences=tuple((new, at + iterations) for new, at in load.sequences))


def _affine(layer: LayerShape) -> bool:
    attention = layer.attention
    if attention is None:
        return True
    return not getattr(attention, "window", None) and not getattr(attention, "index_topk", 0)


def _works(timer: StageTimer, load: StepLoad, iterations: int) -> list[list[BlockWork]]:
    """Return, for each kind of layer, what its growing part does in each iteration."""
    found = []
    for kind, blocks in zip(timer.kinds, timer.blocks, strict=True):
        first = blocks.mixing(load)
        if first is None:
            found.append([])
        elif iterations > 2 and _affine(kind):
            second = blocks.mixing(later(load, 1))
            assert second is not None
            flops, moved = second.flops - first.flops, second.moved_bytes - first.moved_bytes
            found.append(
                [
                    replace(
                        first,
                        flops=first.flops + i * flops,
                        moved_bytes=first.moved_bytes + i * moved,
                    )
                    for i in range(iterations)
                ]
            )
        else:
            made = (blocks.mixing(later(load, i)) for i in range(iterations))
            found.append([work for work in made if work is not None])
    return found


def decode_times(timer: StageTimer, load: StepLoad, iterations: int) -> list[int]:
    """Return the compute time of each iteration in ps.

    Parameters
    ----------
    timer
        Of a stage.
    load
        The first iteration: one new token for each sequence.
    iterations
        How many.
    """
    counts = Counter(timer.order)
    fixed = timer.time(timer.head(load))
    totals = [0] * iterations
    for number, works in enumerate(_works(timer, load, iterations)):
        fixed += counts[number] * timer.time(timer.blocks[number].feeding(load.tokens))
        for i, work in enumerate(works):
            totals[i] += counts[number] * timer.time(work)
    return [total + fixed for total in totals]


def decode_flops(timer: StageTimer, load: StepLoad, iterations: int = 1) -> int:
    """Return the floating-point operations of a rank in so many iterations from a load on."""
    counts = Counter(timer.order)
    total = sum(work.flops for work in _some(timer.head(load))) * iterations
    for number, works in enumerate(_works(timer, load, iterations)):
        feeding = sum(work.flops for work in _some(timer.blocks[number].feeding(load.tokens)))
        total += counts[number] * (feeding * iterations + sum(work.flops for work in works))
    return total


def _some(work: BlockWork | None) -> Iterator[BlockWork]:
    if work is not None:
        yield work
