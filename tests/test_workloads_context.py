# SPDX-License-Identifier: Apache-2.0
"""What context parallelism and sequence parallelism exchange."""

from __future__ import annotations

import pytest

from railweave.fabric.errors import InputError
from railweave.workloads.inference import StepStyle, TrafficOp, step_ops
from railweave.workloads.ops import total_wire_bytes
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.shapes import load_shape

LLAMA = load_shape("llama-3.1-70b")  # 80 layers, 64 heads, 8 KV heads of 128
TOKENS = 8192


def prefill(plan: ParallelismPlan, tokens: int = TOKENS, **style: object) -> list[TrafficOp]:
    return step_ops(LLAMA, plan, phase="prefill", tokens=tokens, rows=0, style=StepStyle(**style))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["ring", "all_gather"])
def test_keys_and_values_pass_every_rank(kind: str) -> None:
    plan = ParallelismPlan(tp=4, cp=4)
    (op,) = (op for op in prefill(plan, context=kind) if op.axis == "cp")
    part = 2 * (TOKENS // 4) * (8 // 4) * 128 * 2
    assert op.count == 80
    assert op.wire_bytes_per_rank == 80 * 3 * part
    assert op.messages == 80 * 3
    assert op.size_bytes == 4 * part


def test_heads_beyond_the_kv_heads_are_copies() -> None:
    plan = ParallelismPlan(tp=16, cp=2)
    (op,) = (op for op in prefill(plan) if op.axis == "cp")
    assert op.size_bytes == 2 * TOKENS * 1 * 128 * 2  # one head on each rank


def test_ulysses_trades_sequence_for_heads() -> None:
    plan = ParallelismPlan(tp=2, cp=4)
    ops = [op for op in prefill(plan, context="ulysses") if op.axis == "cp"]
    local = TOKENS // 4 * 128 * 2
    assert [(op.op, op.count, op.size_bytes, op.what) for op in ops] == [
        ("all_to_all", 80, 32 * local, "queries"),
        ("all_to_all", 80, 2 * 4 * local, "keys and values"),
        ("all_to_all", 80, 32 * local, "attention outputs"),
    ]
    assert ops[0].wire_bytes_per_rank == 80 * 32 * local * 3 // 4
    with pytest.raises(InputError, match="cp: 16 does not divide the 8 heads of a rank"):
        prefill(ParallelismPlan(tp=8, cp=16), context="ulysses")


def test_a_latent_is_whole_on_every_rank() -> None:
    shape = load_shape("deepseek-v3")
    plan = ParallelismPlan(tp=8, cp=2)
    ops = step_ops(shape, plan, phase="prefill", tokens=100)
    (op,) = (op for op in ops if op.axis == "cp")
    assert (op.count, op.size_bytes) == (61, 100 * 576 * 2)


def test_decode_has_no_context_parallelism() -> None:
    with pytest.raises(InputError, match="cp: a decode step has one token"):
        step_ops(LLAMA, ParallelismPlan(cp=2), phase="decode", tokens=1)
    with pytest.raises(InputError, match="context: 'rings' is no way"):
        prefill(ParallelismPlan(cp=2), context="rings")


def test_sequence_parallel_moves_the_same_bytes_in_more_messages() -> None:
    plan = ParallelismPlan(tp=8)
    plain, scattered = (prefill(plan, sequence_parallel=on) for on in (False, True))
    assert [(op.op, op.count) for op in scattered] == [
        ("reduce_scatter", 161),
        ("all_gather", 161),
    ]
    assert sum(total_wire_bytes(op, plan) for op in plain) == sum(
        total_wire_bytes(op, plan) for op in scattered
    )
    assert len(scattered) == 2 * len(plain)


def test_tokens_that_tp_does_not_divide_are_summed_after_all() -> None:
    plan = ParallelismPlan(tp=8)
    assert [op.op for op in prefill(plan, 8191, sequence_parallel=True)] == ["all_reduce"]


def test_scattered_boundaries_need_no_gather() -> None:
    ops = prefill(ParallelismPlan(tp=8, pp=2), sequence_parallel=True)
    assert [(op.stage, op.op, op.count) for op in ops] == [
        (0, "reduce_scatter", 81),
        (0, "all_gather", 81),
        (0, "send", 2),
        (1, "reduce_scatter", 80),
        (1, "all_gather", 80),
    ]


def test_blocks_side_by_side_are_summed_once() -> None:
    (op,) = prefill(ParallelismPlan(tp=8), parallel_blocks=True)
    assert op.count == 81
