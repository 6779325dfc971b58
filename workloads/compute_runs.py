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

if TYPE_CHECKING:
    from collections.abc import Iterator

    from railweave.workloads.compute import StageTimer
    from railweave.workloads.shapes_model import LayerShape
    from railweave.workloads.step_load import StepLoad

__all__ = ["decode_times", "later", "step_flops"]


def later(load: StepLoad, iterations: int) -> StepLoad:
    """Return a load so many iterations later.

    Examples
    --------
    >>> from railweave.workloads.step_load import StepLoad
    >>> later(StepLoad.decode([7, 9]), 2).sequences
    ((1, 9), (1, 11))
    """
    return replace(load, sequences=tuple((new, at + iterations) for new, at in load.sequences))


def _affine(layer: LayerShape) -> bool:
    attention = layer.attention
    if attention is None:
        return True
    return not getattr(attention, "window", None) and not getattr(attention, "index_topk", 0)


def _works(timer: StageTimer, load: StepLoad, iterations: int) -> Iterator[Iterator[BlockWork]]:
    """Yield, for each kind of layer, what its growing part does in each iteration."""
    for kind, blocks in zip(timer.kinds, timer.blocks, strict=True):
        first = blocks.mixing(load)
        if first is None:
            yield iter(())
        elif iterations > 2 and _affine(kind):
            second = blocks.mixing(later(load, 1))
            assert second is not None
            yield _steps(first, second, iterations)
        else:
            made = (blocks.mixing(later(load, i)) for i in range(iterations))
            yield (work for work in made if work is not None)


def _steps(first: BlockWork, second: BlockWork, iterations: int) -> Iterator[BlockWork]:
    """Yield the works of equal steps from one to the next."""
    flops, moved, narrow = first.flops, first.moved_bytes, first.narrow
    more_flops, more_moved = second.flops - flops, second.moved_bytes - moved
    for _ in range(iterations):
        yield BlockWork(flops, moved, narrow=narrow)
        flops += more_flops
        moved += more_moved


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
        count = counts[number]
        fixed += count * timer.time(timer.blocks[number].feeding(load.tokens))
        for i, work in enumerate(works):
            totals[i] += count * timer.time(work)
    return [total + fixed for total in totals]


def step_flops(timer: StageTimer, load: StepLoad) -> int:
    """Return the floating-point operations of a rank in one step."""
    counts = Counter(timer.order)
    head = timer.head(load)
    total = 0 if head is None else head.flops
    for number, parts in enumerate(timer.works(load)):
        total += counts[number] * sum(part.flops for part in parts if part is not None)
    return total
