# SPDX-License-Identifier: Apache-2.0
"""Pipeline schedules: their orders, and their bubbles in closed form."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.fabric.errors import InputError
from railweave.workloads.pipeline_schedules import (
    PIPELINE_SCHEDULES,
    Pass,
    makespan,
    pipeline_order,
)

TIMES = {"forward": 10, "backward": 20, "weights": 10}


def took(name: str, stages: int, micro_batches: int, chunks: int = 1) -> int:
    split = name == "zero-bubble"  # its backward pass is the gradient of the input alone

    def duration(_: int, step: Pass) -> int:
        return (10 if split else TIMES[step.kind]) if step.kind == "backward" else 10

    order = pipeline_order(name, stages=stages, micro_batches=micro_batches, chunks=chunks)
    return makespan(order, duration, chunks=chunks)


def letters(order: list[Pass]) -> str:
    return " ".join(f"{p.kind[0]}{p.micro_batch}" for p in order)


def test_1f1b_of_four_stages() -> None:
    order = pipeline_order("1f1b", stages=4, micro_batches=5)
    assert letters(order[0]) == "f0 f1 f2 f3 b0 f4 b1 b2 b3 b4"
    assert letters(order[3]) == "f0 b0 f1 b1 f2 b2 f3 b3 f4 b4"


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (4, 8), (16, 32), (8, 3)])
def test_bubbles_in_closed_form(stages: int, micro_batches: int) -> None:
    # (m + p - 1) (tf + tb) for both orders; they differ in memory
    for name in ("1f1b", "gpipe"):
        assert took(name, stages, micro_batches) == (micro_batches + stages - 1) * 30


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_interleaving_divides_the_bubble_by_the_chunks(chunks: int) -> None:
    # passes are of one chunk: m v + p - 1 of them in a row
    assert took("interleaved", 4, 8, chunks) == (8 * chunks + 3) * 30


def test_zero_bubble_fills_the_gaps_with_weight_gradients() -> None:
    # ZB-H1: m (tf + tb + tw) + (p - 1) (tf + tb - tw)
    for stages, micro_batches in ((4, 8), (8, 16)):
        expected = micro_batches * 30 + (stages - 1) * 10
        assert took("zero-bubble", stages, micro_batches) == expected


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    name=st.sampled_from(PIPELINE_SCHEDULES),
    stages=st.integers(1, 6),
    rounds=st.integers(1, 4),
    chunks=st.integers(1, 3),
)
def test_every_pass_runs_once_and_none_waits_for_ever(
    name: str, stages: int, rounds: int, chunks: int
) -> None:
    chunks = chunks if name == "interleaved" else 1
    m = stages * rounds
    order = pipeline_order(name, stages=stages, micro_batches=m, chunks=chunks)
    kinds = ["forward", "backward", *(["weights"] if name == "zero-bubble" else [])]
    every = {Pass(k, i, c) for k in kinds for i in range(m) for c in range(chunks)}  # type: ignore[arg-type]
    for own in order:
        assert len(own) == len(every)
        assert set(own) == every
    assert took(name, stages, m, chunks) >= m * chunks * 30


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "1f1c"}, "schedule: '1f1c' is no pipeline schedule"),
        ({"name": "interleaved", "micro_batches": 6}, "micro_batches: 6 micro-batches are no"),
        ({"name": "1f1b", "chunks": 2}, "chunks: 1f1b has one chunk"),
        ({"name": "1f1b", "micro_batches": 0}, "micro_batches: 0 is too few"),
    ],
)
def test_what_cannot_be(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        pipeline_order(**{"stages": 4, "micro_batches": 8, **arguments})  # type: ignore[arg-type]
