# SPDX-License-Identifier: Apache-2.0
"""Bytes of one inference step, against worked numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from railweave.fabric.errors import InputError
from railweave.workloads.inference import (
    TrafficOp,
    ring_wire_bytes,
    step_ops,
)
from railweave.workloads.op_schedules import link_bytes, packed
from railweave.workloads.ops import total_wire_bytes
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.shapes import load_shape, shipped_models

LLAMA = load_shape("llama-3.1-70b")
TP8 = ParallelismPlan(tp=8)


def brief(ops: list[TrafficOp]) -> list[tuple[object, ...]]:
    return [(op.stage, op.op, op.axis, op.count, op.size_bytes) for op in ops]


def test_decode_of_70b_over_eight_ranks() -> None:
    reduce, gather = step_ops(LLAMA, TP8, phase="decode", tokens=1)
    assert (reduce.op, reduce.axis, reduce.count, reduce.size_bytes) == (
        "all_reduce",
        "tp",
        161,
        16_384,
    )
    assert reduce.wire_bytes_per_rank == 4_616_192
    assert (gather.op, gather.count, gather.size_bytes) == ("all_gather", 1, 256_512)
    assert gather.wire_bytes_per_rank == 224_448


def test_prefill_of_2150_tokens() -> None:
    reduce, gather = step_ops(LLAMA, TP8, phase="prefill", tokens=2150)
    assert (reduce.count, reduce.size_bytes) == (161, 35_225_600)
    assert reduce.wire_bytes_per_rank == 9_924_812_800
    assert gather.size_bytes == 256_512
    # in chunks of 512 tokens: the same bytes
    chunks = [512, 512, 512, 512, 102]
    parts = [step_ops(LLAMA, TP8, phase="prefill", tokens=n, rows=0) for n in chunks]
    assert [len(part) for part in parts] == [1] * 5
    assert sum(part[0].wire_bytes_per_rank for part in parts) == 9_924_812_800


def test_mixture_of_experts_reduces_like_a_dense_model() -> None:
    ops = step_ops(load_shape("mixtral-8x7b"), TP8, phase="decode", tokens=4)
    assert brief(ops) == [
        (0, "all_reduce", "tp", 65, 4 * 4096 * 2),
        (0, "all_gather", "tp", 1, 4 * 32000 * 2),
    ]


def test_pipeline_boundary_carries_hidden_states_and_residual() -> None:
    ops = step_ops(LLAMA, ParallelismPlan(tp=8, pp=2), phase="prefill", tokens=2150)
    tensor = 2150 * 8192 * 2
    assert brief(ops) == [
        (0, "all_reduce", "tp", 81, tensor),
        (0, "send", "pp", 2, tensor // 8),
        (1, "all_gather", "tp", 2, tensor),
        (1, "all_reduce", "tp", 80, tensor),
        (1, "all_gather", "tp", 1, 256_512),
        (1, "send", "pp", 1, 4),
    ]
    sends = [op for op in ops if op.op == "send"]
    assert [(op.to_stage, op.wire_bytes_per_rank) for op in sends] == [(1, 8_806_400), (0, 4)]
    assert ops[2].wire_bytes_per_rank == 2 * tensor * 7 // 8
    # the slices of all ranks are both tensors once
    assert 8 * sends[0].wire_bytes_per_rank == 2 * tensor


def test_pipeline_without_tensor_parallelism_sends_whole_tensors() -> None:
    ops = step_ops(LLAMA, ParallelismPlan(pp=3), phase="decode", tokens=5)
    assert brief(ops) == [
        (0, "send", "pp", 2, 5 * 16_384),
        (1, "send", "pp", 2, 5 * 16_384),
        (2, "send", "pp", 1, 20),
    ]


def test_a_tensor_that_does_not_slice_is_sent_whole() -> None:
    shape = load_shape("gpt-oss-20b")  # 2880 elements over 64 heads
    ops = step_ops(shape, ParallelismPlan(tp=32, pp=2), phase="decode", tokens=1)
    assert next(op.size_bytes for op in ops if op.axis == "pp") == 2880 * 2 // 32
    odd = ParallelismPlan(tp=64, pp=2)  # 2880 columns over 64 ranks: 45 each
    assert (0, "send", "pp", 2, 90) in brief(step_ops(shape, odd, phase="decode", tokens=1))


def test_one_rank_sends_nothing() -> None:
    assert step_ops(LLAMA, ParallelismPlan(), phase="prefill", tokens=100) == []
    assert step_ops(LLAMA, ParallelismPlan(), phase="decode", tokens=1) == []


def test_an_empty_batch_has_no_step() -> None:
    plan = ParallelismPlan(tp=4, pp=2)
    assert step_ops(LLAMA, plan, phase="decode", tokens=0) == []
    busy = step_ops(LLAMA, ParallelismPlan(tp=4, dp=2), phase="decode", tokens=[0, 3])
    assert {op.member for op in busy} == {1}  # replicas without experts in common are on their own


def test_padding_raises_tokens_but_not_rows() -> None:
    ops = step_ops(LLAMA, TP8, phase="decode", tokens=3, pad_to=8)
    assert [op.size_bytes for op in ops] == [8 * 16_384, 3 * 256_512]


def test_activation_format_scales_sizes() -> None:
    ops = step_ops(LLAMA, TP8, phase="decode", tokens=1, dtype="fp32")
    assert [op.size_bytes for op in ops] == [32_768, 513_024]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": -1}, "tokens: -1 is out of range"),
        ({"rows": 5}, "rows: 5 is out of range"),
        ({"rows": -1}, "rows: -1 is out of range"),
        ({"phase": "train"}, "phase: 'train' is no phase"),
        ({"pad_to": 0}, "pad_to: 0 is out of range"),
    ],
)
def test_bad_steps_are_refused(change: dict[str, object], message: str) -> None:
    step: dict[str, object] = {"phase": "prefill", "tokens": 4, **change}
    with pytest.raises(InputError, match=message):
        step_ops(LLAMA, TP8, **step)  # type: ignore[arg-type]


def test_links_of_a_group_within_and_across_hosts() -> None:
    ops = step_ops(LLAMA, TP8, phase="decode", tokens=1)
    inside = link_bytes(ops, TP8, packed(8, 8))
    assert (inside.nvlink.tolist(), inside.network.sum()) == ([4_616_192 + 224_448] * 8, 0)
    # two hosts of four: each sends a quarter of both buffers' worth to its peer and back
    across = link_bytes(ops, TP8, packed(8, 4))
    assert across.network.tolist() == [161 * 16_384 // 4 + 256_512 // 8] * 8
    assert across.total.tolist() == inside.total.tolist()
    # one GPU per host: everything crosses
    bare = link_bytes(ops, TP8, packed(8, 1))
    assert (bare.nvlink.sum(), bare.network.tolist()) == (0, [4_840_640] * 8)
    with pytest.raises(InputError, match="gpus_per_host: 0 is too few"):
        packed(8, 0)


def test_links_of_pipeline_sends() -> None:
    plan = ParallelismPlan(tp=4, pp=4)
    ops = step_ops(LLAMA, plan, phase="decode", tokens=8)
    found = link_bytes(ops, plan, packed(16, 8))
    sends = 2 * 8 * 16_384 // 4
    # stages 0 and 1 share a host; ids go back from the last to the first
    assert found.network.tolist() == [0] * 4 + [sends] * 4 + [0] * 4 + [8 * 4] * 4


# Models whose layers sum other than twice: blocks side by side, one block, or three.
SUMS = {
    "falcon-7b": 32, "falcon-40b": 60, "gpt-j-6b": 28, "phi-2": 32, "falcon-h1-0.5b": 3 * 36,
    "nemotron-3-nano-30b-a3b": 52,
}  # fmt: skip


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    model=st.sampled_from(shipped_models()),
    tp=st.sampled_from([1, 2, 4]),
    pp=st.integers(1, 6),
    tokens=st.integers(1, 3000),
    gpus_per_host=st.integers(1, 16),
)
def test_stages_share_the_whole_models_reductions(
    model: str, tp: int, pp: int, tokens: int, gpus_per_host: int
) -> None:
    shape, plan = load_shape(model), ParallelismPlan(tp=tp, pp=pp)
    heads = {layer.attention.heads for layer in shape.layers if layer.attention is not None}
    if any(count % tp for count in heads):
        reject()  # such as the 71 heads of falcon-7b
    ops = step_ops(shape, plan, phase="prefill", tokens=tokens)
    reduces = [op for op in ops if op.op == "all_reduce"]
    sums = SUMS.get(model, 2 * shape.n_layers) + 1  # and that of the embedding
    assert sum(op.count for op in reduces) == (sums if tp > 1 else 0)
    for op in reduces:
        once = ring_wire_bytes("all_reduce", op.size_bytes, tp)
        assert op.wire_bytes_per_rank == op.count * once
        assert 0 <= once * tp - 2 * (tp - 1) * op.size_bytes < tp
    found = link_bytes(ops, plan, packed(plan.n_ranks, gpus_per_host))
    assert int(found.total.sum()) == sum(total_wire_bytes(op, plan) for op in ops)
    assert min(found.nvlink.min(), found.network.min()) >= 0
