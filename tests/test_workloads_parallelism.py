# SPDX-License-Identifier: Apache-2.0
"""Plans: order of ranks, layers per stage, what does not fit."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.fabric.errors import InputError
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.shapes import load_shape


def test_tensor_parallelism_is_innermost() -> None:
    plan = ParallelismPlan(tp=4, pp=3)
    assert plan.n_ranks == 12
    assert [plan.rank(stage=s, tp_rank=t) for s in range(3) for t in range(4)] == list(range(12))
    assert list(plan.tp_group(2)) == [8, 9, 10, 11]
    assert [plan.stage_of(rank) for rank in range(12)] == [0] * 4 + [1] * 4 + [2] * 4


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [
        (80, 1, (80,)),
        (80, 4, (20, 20, 20, 20)),
        (61, 4, (15, 15, 16, 15)),
        (62, 4, (15, 16, 16, 15)),
        (63, 4, (16, 16, 16, 15)),
        (61, 2, (31, 30)),
        (5, 5, (1, 1, 1, 1, 1)),
        (7, 5, (1, 1, 2, 2, 1)),
    ],
)
def test_a_remainder_goes_just_before_the_last_stage(
    layers: int, stages: int, expected: tuple[int, ...]
) -> None:
    assert ParallelismPlan(pp=stages).layers_per_stage(layers) == expected


@settings(derandomize=True, deadline=None, max_examples=100)
@given(layers=st.integers(1, 200), stages=st.integers(1, 32))
def test_stages_cover_the_layers_evenly(layers: int, stages: int) -> None:
    plan = ParallelismPlan(pp=stages)
    if stages > layers:
        with pytest.raises(InputError, match="more than"):
            plan.layers_per_stage(layers)
        return
    counts = plan.layers_per_stage(layers)
    assert max(counts) - min(counts) <= 1
    assert counts[-1] == layers // stages
    assert [i for stage in plan.stage_layers(layers) for i in stage] == list(range(layers))


@pytest.mark.parametrize("degree", [0, -1, 2.0, True, "8"])
def test_a_degree_is_a_positive_whole_number(degree: object) -> None:
    with pytest.raises(InputError, match="tp: "):
        ParallelismPlan(tp=degree)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="pp: "):
        ParallelismPlan(pp=degree)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "tp", "message"),
    [
        ("llama-3.1-70b", 3, "3 does not divide the 64 attention heads"),
        ("qwen2.5-7b", 8, "8 does not divide the 28 attention heads"),
        ("qwen2.5-7b", 7, "neither divides the 4 key/value heads"),
        ("qwen3-30b-a3b", 64, "64 does not divide the 32 attention heads"),
    ],
)
def test_a_plan_that_does_not_fit_names_both_numbers(model: str, tp: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ParallelismPlan(tp=tp).check(load_shape(model))


def test_feed_forward_widths_must_divide() -> None:
    shape = load_shape("mixtral-8x7b")
    layer = shape.layers[0]
    narrow = dataclasses.replace(
        layer, feed_forward=dataclasses.replace(layer.feed_forward, size=1001)
    )
    odd = dataclasses.replace(shape, layers=(*shape.layers[:-1], narrow))
    with pytest.raises(InputError, match="8 does not divide the 1001 columns of an expert"):
        ParallelismPlan(tp=8).check(odd)


def test_more_ranks_than_kv_heads_are_fine() -> None:
    ParallelismPlan(tp=16).check(load_shape("llama-3.1-70b"))
    ParallelismPlan(tp=64).check(load_shape("deepseek-v3"))
