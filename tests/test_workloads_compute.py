# SPDX-License-Identifier: Apache-2.0
"""Roofline times against hand-made numbers and bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.fabric.devices import Efficiency, GpuModel, gpu_model
from railweave.fabric.errors import InputError
from railweave.workloads.compute import (
    BLOCK_OVERHEAD_PS,
    StepLoad,
    experts_visited,
    roofline_ps,
    stage_cost,
)
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.shapes import active_parameters, load_shape, shipped_models

LLAMA = load_shape("llama-3.1-70b")
ONE = ParallelismPlan()


def gpu(*, bandwidth: int = 2 * 10**12, flops: int = 10**15, efficiency: float = 1.0) -> GpuModel:
    return GpuModel(
        name="ideal",
        title="ideal",
        memory_bytes=80 * 10**9,
        memory_bandwidth_Bps=bandwidth,
        flops={"bf16": flops, "fp8": 2 * flops},
        efficiency=Efficiency(compute=efficiency, memory=efficiency),
        figures={},
    )


def test_the_longer_side_of_the_roof_counts() -> None:
    assert roofline_ps(flops=10**15, moved_bytes=0, gpu=gpu()) == 10**12
    assert roofline_ps(flops=10**15, moved_bytes=10**12, gpu=gpu()) == 10**12
    assert roofline_ps(flops=10**12, moved_bytes=2 * 10**12, gpu=gpu()) == 10**12
    assert roofline_ps(flops=10**15, moved_bytes=0, gpu=gpu(), dtype="fp8") == 10**12 // 2
    assert roofline_ps(flops=10**15, moved_bytes=0, gpu=gpu(efficiency=0.8)) == 1_250_000_000_000
    assert roofline_ps(flops=1, moved_bytes=0, gpu=gpu()) == 1  # rounded up
    with pytest.raises(InputError, match="no arithmetic rate for fp4"):
        roofline_ps(flops=1, moved_bytes=1, gpu=gpu(), dtype="fp4")


def test_decode_of_70b_reads_its_weights_once() -> None:
    # 2 TB/s: 141.1 GB less the input table, which is looked up: 69.503 ms, 14.39 tokens/s
    cost = stage_cost(LLAMA, ONE, gpu(), StepLoad.decode([0]), block_overhead_ps=0)
    read = 2 * active_parameters(LLAMA, embedding=False) + 327_680
    assert cost.total_ps == pytest.approx(read * 10**12 / (2 * 10**12), abs=200)
    assert len(cost.layers) == 80
    assert 10**12 / cost.total_ps == pytest.approx(14.388, abs=1e-3)


def test_cache_reads_add_to_decode() -> None:
    short, long = (
        stage_cost(LLAMA, ONE, gpu(), StepLoad.decode([context] * 8)) for context in (0, 4000)
    )
    extra = 8 * 4000 * 327_680 * 10**12 // (2 * 10**12)
    assert long.total_ps - short.total_ps == pytest.approx(extra, abs=200)


def test_prefill_is_two_operations_per_weight_and_token() -> None:
    tokens, peak = 2150, 10**15
    cost = stage_cost(LLAMA, ONE, gpu(flops=peak), StepLoad.prefill(tokens), block_overhead_ps=0)
    matrices = 80 * (150_994_944 + 704_643_072)
    scores = 80 * 4 * 64 * 128 * (tokens * (tokens + 1) // 2)
    expected = (2 * matrices * tokens + scores) * 10**12 / peak
    # the head multiplies one row only, and so is bound by reading its table and norm
    head = (1_050_673_152 + 8192) * 2 * 10**12 // (2 * 10**12)
    assert cost.head_ps == head
    assert cost.total_ps - head == pytest.approx(expected, abs=200)


def test_chunks_attend_to_what_is_cached() -> None:
    whole = StepLoad.prefill(1000).attended(None)
    parts = [StepLoad.prefill(400), StepLoad.prefill(600, cached=400)]
    assert sum(part.attended(None) for part in parts) == whole == 500_500


def test_windows_bound_attention() -> None:
    assert StepLoad.decode([1000]).attended(128) == 128
    assert StepLoad.decode([50]).attended(128) == 51
    # tokens 1..4 see 1, 2, 3, 3
    assert StepLoad.prefill(4).attended(3) == 9
    assert StepLoad(((2, 2),)).attended(3) == 6
    assert StepLoad(((2, 9),)).cached(3) == 5


def test_stages_and_ranks_share_the_work() -> None:
    load = StepLoad.decode([100] * 4)
    whole = stage_cost(LLAMA, ONE, gpu(), load)
    stages = [stage_cost(LLAMA, ParallelismPlan(pp=3), gpu(), load, stage=s) for s in range(3)]
    assert [len(stage.layers) for stage in stages] == [27, 27, 26]
    assert [stage.head_ps > 0 for stage in stages] == [False, False, True]
    assert sum(stage.total_ps for stage in stages) == whole.total_ps
    eighth = stage_cost(LLAMA, ParallelismPlan(tp=8), gpu(), load, block_overhead_ps=0)
    full = stage_cost(LLAMA, ONE, gpu(), load, block_overhead_ps=0)
    norms = 161 * 8192 * 2 * 10**12 // (2 * 10**12)  # each rank reads all of them
    assert eighth.total_ps == pytest.approx((full.total_ps - norms) / 8 + norms, abs=200)


def test_overheads_are_counted_per_block_and_step() -> None:
    load = StepLoad.decode([1])
    bare = stage_cost(LLAMA, ONE, gpu(), load, block_overhead_ps=0)
    usual = stage_cost(LLAMA, ONE, gpu(), load, step_overhead_ps=7)
    assert usual.total_ps - bare.total_ps == 161 * BLOCK_OVERHEAD_PS + 7


def test_only_visited_experts_are_read() -> None:
    assert experts_visited(1, 8, 2) == 2
    assert experts_visited(2, 8, 2) == 4  # 3.5 expected
    assert experts_visited(0, 8, 2) == 0
    assert experts_visited(10**6, 256, 8) == 256
    mixtral = load_shape("mixtral-8x7b")
    one, many = (
        stage_cost(mixtral, ONE, gpu(), StepLoad.decode([0] * n), block_overhead_ps=0)
        for n in (1, 1000)
    )
    quarter = 2 * 176_160_768 * 2 * 10**12 / (2 * 10**12)
    assert one.layers[0].feed_forward_ps == pytest.approx(quarter, rel=1e-3)
    assert many.layers[0].feed_forward_ps == pytest.approx(4 * quarter, rel=1e-3)


def test_fp8_arithmetic_where_the_gpu_has_it() -> None:
    deepseek, load = load_shape("deepseek-v3"), StepLoad.prefill(20_000)
    h100, a100 = gpu_model("H100"), gpu_model("A100")
    fast = stage_cost(deepseek, ParallelismPlan(tp=16), h100, load)
    slow = stage_cost(deepseek, ParallelismPlan(tp=16), h100, load, dtype="bf16")
    assert 1.5 < slow.total_ps / fast.total_ps < 2.1
    assert stage_cost(deepseek, ParallelismPlan(tp=16), a100, load).total_ps > slow.total_ps


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    model=st.sampled_from(shipped_models()),
    tp=st.sampled_from([1, 2, 4]),
    contexts=st.lists(st.integers(0, 5000), min_size=1, max_size=20),
)
def test_more_work_never_takes_less_time(model: str, tp: int, contexts: list[int]) -> None:
    shape, plan, device = load_shape(model), ParallelismPlan(tp=tp), gpu()
    less = stage_cost(shape, plan, device, StepLoad.decode(contexts))
    longer = stage_cost(shape, plan, device, StepLoad.decode([c + 1 for c in contexts]))
    more = stage_cost(shape, plan, device, StepLoad.decode([*contexts, 10]))
    assert less.total_ps <= longer.total_ps
    assert less.total_ps <= more.total_ps


def test_chunks_bound_attention() -> None:
    # tokens 1..5 in chunks of 2 see 1, 2, 1, 2, 1
    assert StepLoad.prefill(5).attended(2, chunked=True) == 7
    assert StepLoad(((3, 3),)).attended(2, chunked=True) == 2 + 1 + 2
    assert StepLoad.decode([8192]).attended(8192, chunked=True) == 1
    assert StepLoad.decode([8191]).attended(8192, chunked=True) == 8192
    assert StepLoad.decode([8200]).cached(8192, chunked=True) == 9
    whole = StepLoad.prefill(1000).attended(64, chunked=True)
    parts = [StepLoad.prefill(300), StepLoad.prefill(700, cached=300)]
    assert sum(part.attended(64, chunked=True) for part in parts) == whole


def test_states_are_read_and_written_whatever_the_context() -> None:
    shape = load_shape("nemotron-3-nano-30b-a3b")
    short, long = (
        stage_cost(shape, ONE, gpu(), StepLoad.decode([context] * 32), block_overhead_ps=0)
        for context in (0, 4000)
    )
    mamba = next(i for i, layer in enumerate(shape.layers) if layer.mixer)
    weights = 2 * (38_742_208 + 2688)
    states = 2 * 32 * shape.layers[mamba].mixer.state_bytes()  # type: ignore[union-attr]
    expected = (weights + states) * 10**12 / (2 * 10**12)
    assert short.layers[mamba].attention_ps == pytest.approx(expected, abs=2)
    assert short.layers[mamba].feed_forward_ps == 0
    assert long.layers[mamba] == short.layers[mamba]
    extra = 32 * 4000 * 6_144 * 10**12 // (2 * 10**12)
    assert long.total_ps - short.total_ps == pytest.approx(extra, abs=200)


def test_sparse_attention_reads_what_the_indexer_picks() -> None:
    dense, sparse = load_shape("deepseek-v3"), load_shape("deepseek-v3.2")
    plan, slow = ParallelismPlan(tp=8), gpu(bandwidth=10**9)
    pairs = [
        [
            stage_cost(s, plan, slow, StepLoad.decode([n]), block_overhead_ps=0)
            for n in (9000, 10000)
        ]
        for s in (dense, sparse)
    ]
    growth = [later.total_ps - first.total_ps for first, later in pairs]
    assert growth[0] == pytest.approx(61 * 1000 * 1152 * 1000, abs=100)
    assert growth[1] == pytest.approx(61 * 1000 * 132 * 1000, abs=100)


def test_experts_of_a_rank_are_its_share() -> None:
    mixtral, slow = load_shape("mixtral-8x7b"), gpu(bandwidth=10**12)
    one = 2 * 176_160_768
    plan = ParallelismPlan(tp=1, dp=4, ep=4)
    cost = stage_cost(mixtral, plan, slow, StepLoad.decode([0] * 500), block_overhead_ps=0)
    common = 2 * (4096 + 32_768)
    assert cost.layers[0].feed_forward_ps == 2 * one + common  # ps per byte: 1
    # all four replicas' tokens meet: one token each may visit all eight experts' share
    few = stage_cost(mixtral, plan, slow, StepLoad.decode([0]), block_overhead_ps=0)
    visited = experts_visited(4, 8, 2)
    assert few.layers[0].feed_forward_ps == 2 * one * visited // 8 + common
    whole = ParallelismPlan(tp=4, ep=4)  # tokens replicated: experts whole, attention divided
    cost = stage_cost(mixtral, whole, slow, StepLoad.decode([0] * 500), block_overhead_ps=0)
    assert cost.layers[0].feed_forward_ps == 2 * one + common
    # Megatron-LM divides each expert over the tensor-parallel ranks as well
    divided = ParallelismPlan(tp=2, dp=4, ep=4, order="pp-dp-cp-tp")
    cost = stage_cost(mixtral, divided, slow, StepLoad.decode([0] * 500), block_overhead_ps=0)
    assert cost.layers[0].feed_forward_ps == one + common


def test_different_key_and_value_widths() -> None:
    shape = load_shape("llama-3.1-8b")
    layer = shape.layers[0]
    narrow = replace(layer.attention, v_head_dim=64)  # type: ignore[type-var]
    assert narrow.kv_elements == 8 * (128 + 64)
    small = replace(shape, layers=(replace(layer, attention=narrow),))
    fast = gpu(bandwidth=10**18)
    one, two = (
        stage_cost(small, ONE, fast, StepLoad.prefill(n), block_overhead_ps=0) for n in (1, 2)
    )
    matrices = 4096 * (32 * 128 + 8 * 128 + 8 * 64) + 32 * 64 * 4096
    assert one.layers[0].attention_ps == -(-(2 * matrices + 2 * 32 * 192) // 1000)
    assert two.layers[0].attention_ps == -(-(4 * matrices + 3 * 2 * 32 * 192) // 1000)


def test_a_gpu_without_bf16_computes_in_fp16() -> None:
    cost = stage_cost(LLAMA, ONE, gpu_model("T4"), StepLoad.prefill(4096))
    matrices = 80 * (150_994_944 + 704_643_072)
    assert cost.total_ps > 2 * matrices * 4096 / 65e12 * 1e12
