# SPDX-License-Identifier: Apache-2.0
"""Does it fit: shares of weights and cache per rank, and the room that is left."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from railweave.fabric.errors import InputError
from railweave.workloads.memory import (
    kv_bytes_per_rank,
    kv_bytes_per_token_per_rank,
    kv_capacity_tokens,
    memory_fit,
    weight_bytes_per_rank,
)
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.shapes import load_shape, parameters, shipped_models, weight_bytes
from railweave.workloads.shapes_weights import (
    Split,
    embedding_weights,
    head_weights,
    layer_weights,
)

LLAMA = load_shape("llama-3.1-70b")
H100 = 80 * 10**9


def test_70b_over_eight_h100() -> None:
    fit = memory_fit(LLAMA, ParallelismPlan(tp=8), memory_bytes=H100)
    norms = (2 * 80 + 1) * 8192
    weights = 2 * ((70_553_706_496 - norms) // 8 + norms)
    assert fit.weight_bytes_per_rank == weights == 17_640_734_720
    assert fit.kv_bytes_per_token_per_rank == 40_960
    assert fit.kv_capacity_tokens == (72 * 10**9 - weights) // 40_960 == 1_327_130
    assert fit.fits


def test_70b_does_not_fit_one_gpu() -> None:
    fit = memory_fit(LLAMA, ParallelismPlan(), memory_bytes=H100)
    assert (fit.kv_capacity_tokens, fit.fits) == (0, False)


def test_a_sequence_must_fit_beside_the_weights() -> None:
    plan, model = ParallelismPlan(), load_shape("llama-3.1-8b")
    room = kv_capacity_tokens(model, plan, memory_bytes=H100)
    assert room == (72 * 10**9 - 16_060_522_496) // 131_072
    assert memory_fit(model, plan, memory_bytes=H100, tokens=room).fits
    assert not memory_fit(model, plan, memory_bytes=H100, tokens=room + 1).fits


def test_replicated_kv_heads_cost_weights_and_cache() -> None:
    eight, sixteen = (weight_bytes_per_rank(LLAMA, ParallelismPlan(tp=t), stage=0) for t in (8, 16))
    kv_matrices = 2 * 80 * 2 * 8192 * 128  # one whole head of K and V per layer, bf16
    norms = 2 * (2 * 80 + 1) * 8192
    assert (eight - kv_matrices - norms) == 2 * (sixteen - kv_matrices - norms)
    assert kv_bytes_per_token_per_rank(LLAMA, ParallelismPlan(tp=16), stage=0) == 40_960


def test_a_latent_cache_is_whole_on_every_rank() -> None:
    shape = load_shape("deepseek-v3")
    for tp in (1, 8):
        assert kv_bytes_per_token_per_rank(shape, ParallelismPlan(tp=tp), stage=0) == 70_272


def test_stages_hold_their_layers_and_tables() -> None:
    plan = ParallelismPlan(pp=2)
    parts = [weight_bytes_per_rank(LLAMA, plan, stage=s) for s in (0, 1)]
    assert sum(parts) == weight_bytes(LLAMA)
    assert parts[1] - parts[0] == 2 * 8192  # the final norm; both tables are equal
    fit = memory_fit(LLAMA, plan, memory_bytes=H100)
    assert fit.weight_bytes_per_rank == parts[1]
    assert fit.kv_bytes_per_token_per_rank == 163_840


def test_windows_are_bounded_per_rank() -> None:
    shape, plan = load_shape("gpt-oss-20b"), ParallelismPlan(tp=2)
    assert kv_bytes_per_token_per_rank(shape, plan, stage=0) == 12_288
    assert kv_bytes_per_rank(shape, plan, 1000, stage=0) == 1000 * 12_288 + 1_572_864


@pytest.mark.parametrize("fraction", [0, 1.5, -0.1, float("nan"), "most"])
def test_the_fraction_is_a_share(fraction: float) -> None:
    with pytest.raises(InputError, match="memory_fraction"):
        memory_fit(LLAMA, ParallelismPlan(tp=8), memory_bytes=H100, fraction=fraction)


def test_the_fraction_is_exact() -> None:
    plan = ParallelismPlan(tp=8)
    full = kv_capacity_tokens(LLAMA, plan, memory_bytes=H100, fraction=1)
    assert full == (H100 - 17_640_734_720) // 40_960
    same = kv_capacity_tokens(LLAMA, plan, memory_bytes=H100, fraction=0.9)
    assert same == kv_capacity_tokens(LLAMA, plan, memory_bytes=H100) == 1_327_130


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    model=st.sampled_from(shipped_models()),
    tp=st.sampled_from([1, 2, 4]),
    pp=st.integers(1, 5),
)
def test_ranks_together_hold_the_model_and_what_they_replicate(
    model: str, tp: int, pp: int
) -> None:
    shape, plan = load_shape(model), ParallelismPlan(tp=tp, pp=pp)
    try:
        plan.check(shape)
    except InputError:
        assume(False)
    held = tp * sum(weight_bytes_per_rank(shape, plan, stage=s, dtype="bf16") for s in range(pp))
    table = sum(2 * weight.parameters for weight in embedding_weights(shape))
    whole = weight_bytes(shape, dtype="bf16") + (table if shape.tied and pp > 1 else 0)
    layers = [layer_weights(layer, shape.hidden_size) for layer in shape.layers]
    parts = [*embedding_weights(shape), *embedding_weights(shape), *head_weights(shape)]
    replicated = 2 * sum(
        weight.parameters
        for weight in (*parts, *(weight for layer in layers for weight in layer))
        if weight.split in (Split.NONE, Split.KV)
    )
    padding = 4 * tp * len(shape.layers) * 64  # columns that do not divide are rounded up
    assert whole <= held <= whole + (tp - 1) * 2 * replicated + padding
    if tp == 1:
        assert held == whole
        assert whole >= 2 * parameters(shape)


def test_recurrent_states_are_divided_and_do_not_grow() -> None:
    shape = load_shape("qwen3.5-27b")
    one, two = (kv_bytes_per_rank(shape, ParallelismPlan(tp=tp), 1000, stage=0) for tp in (1, 2))
    assert one == 1000 * 65_536 + 153_944_064
    assert two == one // 2
    assert kv_bytes_per_token_per_rank(shape, ParallelismPlan(), stage=0) == 65_536
    fit = memory_fit(shape, ParallelismPlan(), memory_bytes=H100, tokens=1000)
    free = 72 * 10**9 - fit.weight_bytes_per_rank
    assert fit.kv_capacity_tokens == free // 65_536
    assert fit.sequences == free // one


def test_room_is_kept_for_a_whole_chunk() -> None:
    shape, plan = load_shape("llama-4-scout"), ParallelismPlan()
    now = kv_bytes_per_rank(shape, plan, 8193, stage=0)
    most = kv_bytes_per_rank(shape, plan, 8193, stage=0, most=True)
    assert now == 8193 * 49_152 + 36 * 1 * 4096  # a new chunk has one token
    assert most == 8193 * 49_152 + 1_207_959_552


def test_a_stage_without_attention_limits_no_tokens() -> None:
    # the first of 13 stages of Nemotron-3-Nano is MEME: states, but no cache per token
    shape, plan = load_shape("nemotron-3-nano-30b-a3b"), ParallelismPlan(pp=13)
    assert kv_bytes_per_token_per_rank(shape, plan, stage=0) == 0
    assert memory_fit(shape, plan, memory_bytes=H100).kv_capacity_tokens > 0


def test_experts_are_divided_whole() -> None:
    shape = load_shape("deepseek-v3")
    over_ranks, over_replicas = ParallelismPlan(tp=8, ep=8), ParallelismPlan(dp=8, ep=8)
    experts = 58 * 256 * 44_040_192
    for plan in (over_ranks, over_replicas):
        rank = weight_bytes_per_rank(shape, plan, stage=0, dtype="bf16")
        common = weight_bytes_per_rank(shape, plan, stage=0, dtype="bf16") - 2 * experts // 8
        assert common > 0
        assert rank * 8 >= weight_bytes(shape, dtype="bf16")
    # replicas each have all of attention; tensor-parallel ranks an eighth of its large matrices
    alone = weight_bytes_per_rank(shape, over_replicas, stage=0, dtype="bf16")
    assert alone == weight_bytes(shape, dtype="bf16") - 2 * experts * 7 // 8
