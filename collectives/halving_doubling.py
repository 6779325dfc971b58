# SPDX-License-Identifier: Apache-2.0
"""Recursive halving and doubling all_reduce, for any number of ranks.

Among a power of two of ranks, step ``s`` of the first half exchanges with the rank whose number
differs in bit ``s``: each of the two sends the half of what it still sums that the other keeps.
After all steps every rank has the sum of one chunk; the same steps backwards gather the chunks.
The largest messages go to the nearest ranks. Of ``n = 2**k + r`` ranks the first ``2 * r`` form
pairs, whose first rank hands its buffer to the second before and gets the result back afterwards.

Time: ``2 * k * alpha + 2 * (2**k - 1) / 2**k * S / B``, with folding ``2 * (alpha + S / B)`` more.

Source: R. Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; folding as
in Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
IJHPCA 19 (2005).
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from railweave.collectives.algorithm import Links, Shape, algorithm
from railweave.collectives.structure import Structure, StructureBuilder

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["halving_doubling_all_reduce"]


def _halving_doubling_ps(shape: Shape, size_bytes: int, links: Links) -> Fraction:
    steps = shape.ranks.bit_length() - 1
    core = 1 << steps
    total = 2 * steps * Fraction(links.alpha_ps)
    total += links.message_ps(Fraction(2 * (core - 1) * size_bytes, core)) - links.alpha_ps
    if core < shape.ranks:
        total += 2 * links.message_ps(Fraction(size_bytes))
    return total


@algorithm("barrier", "halving_doubling", closed_form=_halving_doubling_ps)
@algorithm("all_reduce", "halving_doubling", closed_form=_halving_doubling_ps)
def halving_doubling_all_reduce(shape: Shape) -> Structure:
    """Build the exchanges; chunk ``c`` is summed by the rank whose number is ``c`` mirrored."""
    steps = shape.ranks.bit_length() - 1
    core = 1 << steps
    pairs = shape.ranks - core
    build = StructureBuilder(n_ranks=shape.ranks, n_chunks=core)
    taking_part = np.concatenate(
        (np.arange(1, 2 * pairs, 2), np.arange(2 * pairs, shape.ranks))
    ).astype(np.int32)
    idle = np.arange(0, 2 * pairs, 2, dtype=np.int32)
    waits: list[NDArray[np.int32]] = []  # what each who takes part has to wait for
    if pairs:
        folded = build.transfers(src=idle, dst=idle + np.int32(1), chunk=0, span=core, combine=True)
    number = np.arange(core, dtype=np.int32)
    first = np.zeros(core, np.int32)  # of the chunks that a rank still sums, or already has
    shift = 1 if pairs else 0
    halves = []
    for step in range(steps):
        half = core >> (step + 1)
        mine = first + (number >> step & 1) * np.int32(half)
        halves.append((number ^ (1 << step), first, mine, half))
        first = mine
    for step, (peer, before, mine, half) in enumerate(halves):
        node = build.transfers(
            src=taking_part,
            dst=taking_part[peer],
            chunk=2 * before + half - mine,  # the other half
            span=half,
            phase=shift + step,
            combine=True,
        )
        if pairs and not step:
            build.depend(before=folded, after=node[:pairs])
            build.depend(before=folded, after=node[peer[:pairs]])
        waits = _exchanged(build, node, peer, waits)
    for step, (peer, _, mine, half) in enumerate(reversed(halves)):
        node = build.transfers(
            src=taking_part,
            dst=taking_part[peer],
            chunk=mine,
            span=half,
            phase=shift + steps + step,
        )
        waits = _exchanged(build, node, peer, waits)
    if pairs:
        unfolded = build.transfers(
            src=idle + np.int32(1), dst=idle, phase=shift + 2 * steps, chunk=0, span=core
        )
        for before in waits:
            build.depend(before=before[:pairs], after=unfolded)
    return build.finish()


def _exchanged(
    build: StructureBuilder,
    node: NDArray[np.int32],
    peer: NDArray[np.int32],
    waits: list[NDArray[np.int32]],
) -> list[NDArray[np.int32]]:
    """Let a step wait for the one before it; return what the next one has to wait for.

    A rank goes on when both its message has arrived and its peer's: only its own tells that what
    came in earlier steps is there. And it sends only to a peer that has come as far, or the
    message would take from what that one still has to receive.
    """
    for before in waits:
        build.depend(before=before, after=node)
        build.depend(before=before[peer], after=node)
    return [node, node[peer]]
