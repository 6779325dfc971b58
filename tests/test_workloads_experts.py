# SPDX-License-Identifier: Apache-2.0
"""What experts exchange, against worked numbers: four backends, draws and byte matrices."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.fabric.errors import InputError
from railweave.workloads.experts import (
    BACKENDS,
    ExpertStyle,
    combine_bytes,
    dispatch_bytes,
)
from railweave.workloads.gates import draw_experts, expected_targets, visited_counts
from railweave.workloads.inference import StepStyle, step_ops
from railweave.workloads.ops import TrafficOp, op_groups, total_wire_bytes
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.shapes import load_shape

DEEPSEEK = load_shape("deepseek-v3")  # 58 MoE layers, 256 experts, top-8, hidden 7168
MIXTRAL = load_shape("mixtral-8x7b")  # 32 MoE layers, 8 experts, top-2, hidden 4096


def ops_of(plan: ParallelismPlan, tokens: object, **style: object) -> list[TrafficOp]:
    shape = DEEPSEEK if plan.ep > 8 else MIXTRAL
    experts = ExpertStyle(**style)  # type: ignore[arg-type]
    return step_ops(
        shape,
        plan,
        phase="decode",
        tokens=tokens,
        style=StepStyle(experts=experts),  # type: ignore[arg-type]
    )


def brief(ops: list[TrafficOp]) -> list[tuple[object, ...]]:
    return [(op.op, op.axis, op.count, op.size_bytes, op.what) for op in ops if op.what != "logits"]


def test_messages_of_deepseek() -> None:
    assert dispatch_bytes(7168, dtype="fp8", mode="low_latency") == 7408
    assert combine_bytes(7168) == 14_336
    fp8, bf16 = (dispatch_bytes(7168, dtype=d, mode="normal") for d in ("fp8", "bf16"))
    assert Fraction(fp8, bf16) == (1 + Fraction(4, 128)) / 2
    with pytest.raises(InputError, match="dispatch_dtype: 'int4'"):
        dispatch_bytes(7168, dtype="int4", mode="normal")


@pytest.mark.parametrize(
    ("groups", "expected"), [(8, 5.29), (16, 6.52), (32, 7.27), (64, 7.68), (2, 1.99), (4, 3.61)]
)
def test_expected_targets(groups: int, expected: float) -> None:
    # ranks; and 2, 4, 8 hosts of 8 ranks each
    assert round(float(expected_targets(256, 8, groups)), 2) == expected


def test_draws_meet_the_expectation() -> None:
    routes = draw_experts(40_000, 256, 8, seed=1)
    for groups in (8, 64):
        at = routes // (256 // groups)
        distinct = 1 + (np.diff(np.sort(at, axis=1)) > 0).sum(axis=1)
        assert distinct.mean() == pytest.approx(float(expected_targets(256, 8, groups)), rel=0.005)


def test_replicated_experts_sum_once() -> None:
    ops = ops_of(ParallelismPlan(tp=8, ep=8), 4)
    assert brief(ops) == [
        ("all_reduce", "tp", 33, 4 * 8192, "embedding, attention"),
        ("all_reduce", "tp", 32, 4 * 8192, "outputs of experts"),
    ]


def test_allgather_reducescatter_pads_to_the_fullest() -> None:
    ops = ops_of(ParallelismPlan(dp=4, ep=4), [5, 0, 1, 2])
    element, most, ranks = 2, 5, 4
    assert brief(ops) == [
        ("all_gather", "ep", 32, ranks * most * (4096 + 8) * element,
         "hidden states and router logits"),
        ("reduce_scatter", "ep", 32, ranks * most * 4096 * element, "outputs of experts"),
    ]  # fmt: skip
    assert {op.member for op in ops} == {None}  # the idle replica runs the step too


def test_allgather_reducescatter_with_tensor_parallel_attention() -> None:
    ops = ops_of(ParallelismPlan(tp=2, dp=2, ep=4), 3)
    # two ranks take two tokens each of a replica's three
    assert brief(ops)[1:] == [
        ("all_gather", "ep", 32, 4 * 2 * 4104 * 2, "hidden states and router logits"),
        ("reduce_scatter", "ep", 32, 4 * 2 * 8192, "outputs of experts"),
        ("all_gather", "tp", 32, 4 * 8192, "outputs of experts"),
    ]


def test_mixed_replaces_the_sum_after_attention() -> None:
    ops = ops_of(ParallelismPlan(tp=2, dp=2, ep=4), 4, backend="mixed")
    size = 4 * 8192
    assert brief(ops) == [
        ("all_reduce", "tp", 1, size, "embedding, attention"),
        ("reduce_scatter", "tp", 32, size, "attention outputs"),
        ("all_gather", "ep", 32, 2 * size, "hidden states"),
        ("reduce_scatter", "ep", 32, 2 * size, "outputs of experts"),
        ("all_gather", "tp", 32, size, "outputs of experts"),
    ]


def test_low_latency_sends_a_message_for_each_expert() -> None:
    plan = ParallelismPlan(dp=16, ep=16)
    dispatch, combine = ops_of(plan, 8, backend="all_to_all", mode="low_latency")
    assert dispatch.matrix is not None
    assert combine.matrix is not None
    # every token of every rank visits 8 experts, those at home included
    assert dispatch.matrix.sum() == 16 * 8 * 8 * 7408
    assert (dispatch.matrix.sum(axis=1) == 8 * 8 * 7408).all()
    assert np.array_equal(combine.matrix * 7408, dispatch.matrix.T * 14_336)
    assert total_wire_bytes(dispatch, plan) == 58 * (
        dispatch.matrix.sum() - dispatch.matrix.trace()
    )


def test_normal_mode_crosses_the_network_once_for_each_host() -> None:
    plan, tokens = ParallelismPlan(dp=32, ep=32), 16
    ops = ops_of(plan, tokens, backend="all_to_all", mode="normal", gpus_per_host=8)
    names = [op.what for op in ops]
    assert names == [
        "dispatch, once for each host",
        "dispatch, within hosts",
        "combine, within hosts",
        "combine, once for each host",
    ]
    across, within = (op.matrix for op in ops[:2])
    assert across is not None
    assert within is not None
    token = 7168 + 4 * 56
    routes = draw_experts(32 * tokens, 256, 8, seed=1)
    hosts, ranks = (np.sort(routes // (256 // n), axis=1) for n in (4, 32))
    visits = [tokens * 32 + (np.diff(at) > 0).sum() for at in (hosts, ranks)]
    assert across.sum() == visits[0] * token  # the host where a token is already counts
    assert within.sum() == visits[1] * token
    # only to the same rail of other hosts, only within hosts
    rank = np.arange(32)
    assert not across[(rank[:, None] - rank) % 8 != 0].any()
    assert not within[rank[:, None] // 8 != rank // 8].any()


def test_node_limited_routing() -> None:
    free = draw_experts(5_000, 256, 8, seed=3)
    capped = draw_experts(5_000, 256, 8, seed=3, groups=8, group_limit=4)
    hosts = [1 + (np.diff(np.sort(r // 32, axis=1)) > 0).sum(axis=1) for r in (free, capped)]
    assert hosts[0].max() > 4
    assert hosts[1].max() == 4
    plan = ParallelismPlan(dp=64, ep=64)
    limited, whole = (
        ops_of(plan, 4, backend="all_to_all", node_limit=limit)[0] for limit in (4, None)
    )
    assert total_wire_bytes(limited, plan) < total_wire_bytes(whole, plan)


def test_skew_makes_hot_ranks_and_a_seed_decides_which() -> None:
    def hottest(**gate: object) -> int:
        return max(visited_counts(draw_experts(2_000, 64, 4, **gate), 64))  # type: ignore[arg-type]

    assert hottest(seed=1) < 1.5 * 2_000 * 4 / 64
    assert hottest(seed=1, skew=1.2) > 4 * 2_000 * 4 / 64
    same, again, other = (draw_experts(50, 64, 4, seed=s, skew=1.2) for s in (1, 1, 2))
    assert np.array_equal(same, again)
    assert not np.array_equal(same, other)


@pytest.mark.parametrize(
    ("plan", "style", "message"),
    [
        ({"dp": 4, "ep": 4}, {"backend": "replicated"}, "ep_backend: the tokens of 4 replicas"),
        ({"dp": 4, "ep": 4}, {"backend": "deepep"}, "ep_backend: 'deepep' is no way"),
        ({"tp": 4, "ep": 2}, {}, "ep: 2 ranks are no whole replicas of tp 4"),
        ({"dp": 3, "ep": 3}, {}, "ep: 3 does not divide the 8 experts"),
    ],
)
def test_what_cannot_be(plan: dict[str, int], style: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ops_of(ParallelismPlan(**plan), 4, **style)


def test_a_dense_model_has_no_experts() -> None:
    with pytest.raises(InputError, match=r"ep: llama-3\.1-8b has no experts"):
        step_ops(load_shape("llama-3.1-8b"), ParallelismPlan(tp=8, ep=8), phase="decode", tokens=1)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    tp=st.sampled_from([1, 2, 4]),
    members=st.lists(st.integers(0, 9), min_size=2, max_size=2),
    backend=st.sampled_from(BACKENDS[1:]),
    mode=st.sampled_from(["normal", "low_latency"]),
    per_host=st.sampled_from([1, 2, 8]),
    skew=st.sampled_from([0.0, 1.2]),
)
def test_every_group_of_a_stage_takes_part(
    tp: int, members: list[int], backend: str, mode: str, per_host: int, skew: float
) -> None:
    plan = ParallelismPlan(tp=tp, dp=2, ep=2 * tp)
    ops = ops_of(plan, members, backend=backend, mode=mode, gpus_per_host=per_host, skew=skew)
    if not any(members):
        assert ops == []
        return
    for op in ops:
        groups = op_groups(op, plan)
        assert total_wire_bytes(op, plan) <= op.wire_bytes_per_rank * sum(map(len, groups))
        assert op.wire_bytes_per_rank > 0
        assert op.messages > 0
    if backend == "all_to_all":
        there = sum(op.size_bytes for op in ops if op.what.startswith("dispatch"))
        assert there > 0 or tp * 2 == 1
