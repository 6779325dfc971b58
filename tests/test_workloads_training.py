# SPDX-License-Identifier: Apache-2.0
"""Bytes of a training step, against worked numbers."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.fabric.errors import InputError
from railweave.workloads.op_schedules import link_bytes, packed
from railweave.workloads.ops import TrafficOp, total_wire_bytes
from railweave.workloads.optimizer import bucket_elements, buckets
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.shapes import load_shape, parameters
from railweave.workloads.shares import stage_parameters
from railweave.workloads.training import TrainingStyle, layer_ops, stage_memory, training_ops

LLAMA8, LLAMA70 = load_shape("llama-3.1-8b"), load_shape("llama-3.1-70b")
MIXTRAL = load_shape("mixtral-8x7b")
STYLE = TrainingStyle(sequence=4096)
M = 4096 * 4096 * 2  # sequence x hidden of 8B x bf16


def megatron(**degrees: int) -> ParallelismPlan:
    return ParallelismPlan(order="pp-dp-cp-tp", **degrees)


def per_layer(phase: str, *, scattered: bool) -> dict[str, int]:
    style = dataclasses.replace(STYLE, sequence_parallel=scattered)
    plan = megatron(tp=8)
    ops = list(layer_ops(LLAMA8.layers[:1], LLAMA8, plan, style, stage=0, phase=phase))
    assert {op.size_bytes for op in ops} == {M}
    return {op.op: op.count for op in ops}


def test_collectives_of_a_layer_without_sequence_parallelism() -> None:
    for phase in ("forward", "recompute", "backward"):
        assert per_layer(phase, scattered=False) == {"all_reduce": 2}


def test_collectives_of_a_layer_with_sequence_parallelism() -> None:
    assert per_layer("forward", scattered=True) == {"all_gather": 2, "reduce_scatter": 2}
    assert per_layer("backward", scattered=True) == {"all_gather": 4, "reduce_scatter": 2}
    assert per_layer("recompute", scattered=True) == {"all_gather": 2, "reduce_scatter": 2}
    # 10 half-units of an all_reduce against 8
    halves = {True: 0, False: 0}
    for scattered in halves:
        for phase in ("forward", "backward"):
            counts = per_layer(phase, scattered=scattered)
            halves[scattered] += sum(
                n * (2 if op == "all_reduce" else 1) for op, n in counts.items()
            )
    assert halves == {True: 10, False: 8}


def test_embedding_output_layer_and_loss() -> None:
    def ends(scattered: bool) -> Counter[tuple[str, str, str]]:
        style = dataclasses.replace(STYLE, sequence_parallel=scattered, micro_batches=3)
        ops = training_ops(LLAMA8, megatron(tp=8), style)
        return Counter({(op.what, op.phase, op.op): op.count for op in ops if "and" not in op.what})

    assert ends(False) == {
        ("embedding", "forward", "all_reduce"): 3,
        ("output layer", "backward", "all_reduce"): 3,
        ("loss", "forward", "all_reduce"): 9,
    }
    assert ends(True) == {
        ("embedding", "forward", "reduce_scatter"): 3,
        ("embedding", "backward", "all_gather"): 3,
        ("output layer", "forward", "all_gather"): 3,
        ("output layer", "backward", "all_gather"): 3,
        ("output layer", "backward", "reduce_scatter"): 3,
        ("loss", "forward", "all_reduce"): 9,
    }
    loss = [op for op in training_ops(LLAMA8, megatron(tp=8), STYLE) if op.what == "loss"]
    assert loss[0].size_bytes == 4096 * 4  # no logits: a value for each token


def boundaries(plan: ParallelismPlan, **style: object) -> list[tuple[object, ...]]:
    ops = training_ops(LLAMA8, plan, dataclasses.replace(STYLE, **style))  # type: ignore[arg-type]
    return [
        (op.phase, op.stage, op.to_stage, op.count, op.size_bytes) for op in ops if op.op == "send"
    ]


def test_pipeline_boundaries() -> None:
    plan = megatron(tp=4, pp=2, cp=2)
    assert boundaries(plan, micro_batches=6) == [
        ("forward", 0, 1, 6, M // 2 // 4),
        ("backward", 1, 0, 6, M // 2 // 4),
    ]
    # without sequence parallelism every rank sends the whole tensor
    whole = boundaries(plan, micro_batches=6, sequence_parallel=False)
    assert [row[-1] for row in whole] == [M // 2, M // 2]


def test_interleaved_boundaries_multiply_by_the_chunks() -> None:
    rows = boundaries(megatron(pp=4), micro_batches=4, schedule="interleaved", chunks=2)
    forward = {(row[1], row[2]): row[3] for row in rows if row[0] == "forward"}
    assert forward == {(0, 1): 8, (1, 2): 8, (2, 3): 8, (3, 0): 4}
    backward = {(row[1], row[2]): row[3] for row in rows if row[0] == "backward"}
    assert backward == {(3, 2): 8, (2, 1): 8, (1, 0): 8, (0, 3): 4}


def exchanged(zero: int, grad: str) -> float:
    style = dataclasses.replace(STYLE, zero=zero, grad_dtype=grad)
    ops = training_ops(LLAMA8, megatron(dp=8), style)
    return round(sum(op.wire_bytes_per_rank for op in ops) / 1e9, 1)


def test_data_parallel_bytes_of_8b_over_eight() -> None:
    assert exchanged(0, "fp32") == 56.2
    assert exchanged(0, "bf16") == 28.1
    assert exchanged(3, "bf16") == 42.2
    # Megatron's distributed optimizer: P (4 + 2) 7/8
    assert exchanged(1, "fp32") == exchanged(2, "fp32") == 42.2


def test_zero_3_repeats_for_each_micro_batch() -> None:
    style = dataclasses.replace(STYLE, zero=3, micro_batches=5, grad_dtype="bf16")
    ops = training_ops(LLAMA8, megatron(dp=8), style)
    assert [(op.op, op.phase, op.count) for op in ops] == [
        ("all_gather", "forward", 5),
        ("all_gather", "backward", 5),
        ("reduce_scatter", "gradients", 5),
    ]


def test_experts_are_summed_over_those_who_hold_them() -> None:
    plan = megatron(tp=2, dp=4, cp=2, ep=4)
    ops = training_ops(MIXTRAL, plan, dataclasses.replace(STYLE, zero=0))
    sums = {op.axis: op for op in ops if op.phase == "gradients"}
    held = stage_parameters(MIXTRAL, plan, 0)
    expert = 3 * 4096 * 14336  # gate, up, down
    assert held.experts == 32 * (8 // 4) * expert // 2
    assert sums["edp"].size_bytes == 4 * held.experts
    assert sums["dp"].size_bytes == 4 * held.dense
    assert sums["edp"].wire_bytes_per_rank == 4 * held.experts  # n = 2: 2 (n - 1) / n
    assert sums["dp"].wire_bytes_per_rank == 2 * 4 * held.dense * 7 // 8
    assert plan.groups("edp", stage=0)[0] == (0, 8)
    assert plan.groups("ep", stage=0)[0] == (0, 2, 4, 6)


def test_experts_are_reached_there_and_back_each_way() -> None:
    plan = megatron(tp=2, dp=4, ep=4)
    ops = [op for op in training_ops(MIXTRAL, plan, STYLE) if "of experts" in op.what]
    tokens = 4096 // 2  # a rank's, under sequence parallelism
    moved = [(op.phase, op.op, op.what.split()[0]) for op in ops if op.axis == "ep"]
    assert moved == [
        ("forward", "all_to_all", "dispatch"),
        ("forward", "all_to_all", "combine"),
        ("backward", "all_to_all", "combine"),
        ("backward", "all_to_all", "dispatch"),
    ]
    assert {op.size_bytes for op in ops if op.axis == "ep"} == {tokens * 2 * 4096 * 2}
    assert {op.count for op in ops} == {32}
    around = [(op.phase, op.op) for op in ops if op.axis == "tp"]
    assert around == [
        ("forward", "all_gather"),
        ("forward", "reduce_scatter"),
        ("backward", "all_gather"),
        ("backward", "reduce_scatter"),
    ]


def test_buckets_of_megatron() -> None:
    assert [bucket_elements(n) for n in (1, 8, 40, 128)] == [40 * 10**6] * 3 + [128 * 10**6]
    sizes = [25, 25, 25, 25, 5]
    assert buckets(sizes, 40) == [(50, 1), (50, 3), (5, 4)]
    assert sum(n for n, _ in buckets(sizes, 1000)) == sum(sizes)
    assert buckets([], 40) == []


def test_memory_of_a_rank() -> None:
    p = parameters(LLAMA8)
    held = [
        stage_memory(LLAMA8, megatron(dp=8), dataclasses.replace(STYLE, zero=zero), 0)
        for zero in range(4)
    ]
    states = [(m.weights, m.gradients, m.optimizer) for m in held]
    # Rajbhandari et al., figure 1, with fp32 gradients: (2 + 4 + 12) P, then / 8 one by one
    assert states == [
        (2 * p, 4 * p, 12 * p),
        (2 * p, 4 * p, 12 * p // 8),
        (2 * p, 4 * p // 8, 12 * p // 8),
        (2 * p // 8, 4 * p // 8, 12 * p // 8),
    ]
    # 34 s h L, Korthikanti et al., equation 2 without the scores
    assert held[0].activations == 34 * 4096 * 4096 * 32
    full = stage_memory(LLAMA8, megatron(tp=8), dataclasses.replace(STYLE, recompute="full"), 0)
    assert full.activations == 4096 * (32 * 2 * 4096 // 8 + 34 * 4096 // 8)


def test_a_tied_table_is_summed_between_the_ends() -> None:
    tied = dataclasses.replace(LLAMA8, tied=True)
    op = training_ops(tied, megatron(tp=2, pp=4), STYLE)[-1]
    assert (op.axis, op.size_bytes) == ("embedding", 128256 * 4096 // 2 * 4)
    assert all(op.axis != "embedding" for op in training_ops(tied, megatron(tp=2), STYLE))


@pytest.mark.parametrize(
    ("plan", "style", "message"),
    [
        ({"tp": 8}, {"sequence": 4097}, "sequence: 8 ranks do not divide"),
        ({"pp": 2}, {"zero": 3}, "zero: ZeRO-3 gathers layers"),
        ({}, {"zero": 4}, "zero: there is no ZeRO-4"),
        ({"pp": 33}, {}, "pp: 33 stages are more than 32 layers"),
        ({"pp": 8}, {"schedule": "interleaved", "chunks": 5, "micro_batches": 8},
         "chunks: 8 stages of 5 chunks are more than 32 layers"),
        ({"dp": 2}, {"zero": 3, "chunks": 2, "schedule": "interleaved"}, "chunks: ZeRO-3 has"),
        ({"dp": 2}, {"micro_batches": 0}, "micro_batches: 0 is out of range"),
    ],
)  # fmt: skip
def test_what_cannot_be(plan: dict[str, int], style: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        training_ops(LLAMA8, megatron(**plan), dataclasses.replace(STYLE, **style))  # type: ignore[arg-type]


def test_stages_that_do_not_divide_the_layers_agree_on_every_boundary() -> None:
    ops = training_ops(
        LLAMA70, megatron(tp=4, pp=7, dp=2), dataclasses.replace(STYLE, sequence=512)
    )
    sends = {(op.phase, op.stage, op.to_stage): op.size_bytes for op in ops if op.op == "send"}
    assert len(sends) == 12
    assert len(set(sends.values())) == 1


@st.composite
def jobs(draw: st.DrawFn) -> tuple[ParallelismPlan, TrainingStyle]:
    tp, pp, cp, dp = (draw(st.sampled_from([1, 2, 4])) for _ in range(4))
    ep = draw(st.sampled_from([e for e in (1, 2, 4, 8) if dp * cp % e == 0]))
    zero = draw(st.sampled_from([0, 1, 2, *([3] if pp == 1 else [])]))
    plan = megatron(tp=tp, pp=pp, cp=cp, dp=dp, ep=ep)
    style = TrainingStyle(
        sequence=64,
        micro_batches=4,
        zero=zero,
        context=draw(st.sampled_from(["ring", "all_gather", "ulysses"])),
        recompute=draw(st.sampled_from(["none", "full"])),
        sequence_parallel=True if ep > 1 else draw(st.booleans()),
    )
    return plan, style


@settings(derandomize=True, deadline=None, max_examples=40)
@given(job=jobs(), per_host=st.sampled_from([1, 3, 4, 8]))
def test_bytes_of_ranks_and_links_are_those_of_the_closed_forms(
    job: tuple[ParallelismPlan, TrainingStyle], per_host: int
) -> None:
    plan, style = job
    ops: list[TrafficOp] = training_ops(MIXTRAL, plan, style)
    found = link_bytes(ops, plan, packed(plan.n_ranks, per_host))
    assert int(found.total.sum()) == sum(total_wire_bytes(op, plan) for op in ops)
