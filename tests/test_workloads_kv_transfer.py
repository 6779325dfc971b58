# SPDX-License-Identifier: Apache-2.0
"""Who sends which cache bytes to whom: worked numbers, rules and conservation."""

from __future__ import annotations

import dataclasses
from collections import defaultdict

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from railweave.fabric.errors import InputError
from railweave.workloads.kv_transfer import held_heads, kv_matrix, source_heads
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.shapes import kv_bytes, load_shape, shipped_models, state_bytes

LLAMA = load_shape("llama-3.1-70b")
QWEN = load_shape("qwen2.5-7b")  # 28 query heads, 4 key/value heads
DEEPSEEK = load_shape("deepseek-v3")
PER_RANK = 88_064_000  # an eighth of 2,150 tokens of 70B


def test_equal_degrees_go_straight_across() -> None:
    moved = kv_matrix(LLAMA, 8, 8, 2150)
    assert moved.unique_bytes == moved.wire_bytes == 704_512_000
    assert moved.transfers == tuple((i, i, PER_RANK) for i in range(8))


def test_wider_decode_splits_each_prefill_rank() -> None:
    moved = kv_matrix(LLAMA, 4, 8, 2150)
    assert moved.transfers == tuple((j // 2, j, PER_RANK) for j in range(8))
    assert moved.wire_bytes == 704_512_000


def test_narrower_decode_gathers_consecutive_prefill_ranks() -> None:
    moved = kv_matrix(LLAMA, 8, 2, 2150)
    assert moved.transfers == tuple((i, i // 4, PER_RANK) for i in range(8))


def test_replicated_decode_ranks_each_pull_a_copy() -> None:
    moved = kv_matrix(LLAMA, 8, 16, 2150)
    assert moved.unique_bytes == 704_512_000
    assert moved.wire_bytes == 1_409_024_000
    assert moved.transfers == tuple((j // 2, j, PER_RANK) for j in range(16))


def test_replicated_prefill_ranks_are_read_once() -> None:
    moved = kv_matrix(LLAMA, 16, 8, 2150)
    assert moved.wire_bytes == 704_512_000
    assert moved.transfers == tuple((2 * j, j, PER_RANK) for j in range(8))
    narrow = kv_matrix(LLAMA, 16, 4, 2150)
    assert narrow.transfers == tuple((2 * i, i // 2, PER_RANK) for i in range(8))
    # replicated on both sides: rank to rank, every decode rank its own copy
    both = kv_matrix(LLAMA, 16, 16, 2150)
    assert both.transfers == tuple((i, i, PER_RANK) for i in range(16))


def test_latent_cache_goes_whole_to_every_decode_rank() -> None:
    moved = kv_matrix(DEEPSEEK, 8, 8, 2150)
    assert moved.unique_bytes == 151_084_800
    assert moved.wire_bytes == 1_208_678_400
    assert moved.transfers == tuple((j, j, 151_084_800) for j in range(8))
    assert kv_matrix(DEEPSEEK, 8, 2, 2150).transfers == (
        (0, 0, 151_084_800),
        (4, 1, 151_084_800),
    )
    assert [flow.src_rank for flow in kv_matrix(DEEPSEEK, 2, 8, 2150).transfers] == [
        0, 0, 0, 0, 1, 1, 1, 1,
    ]  # fmt: skip
    assert kv_matrix(DEEPSEEK, 8, 1, 2150).wire_bytes == 151_084_800


def test_prefill_stages_send_their_own_layers() -> None:
    moved = kv_matrix(LLAMA, 2, 2, 100, prefill_pp=3)  # 26, 27 and 27 layers... of 80
    layers = ParallelismPlan(pp=3).layers_per_stage(80)
    assert layers == (27, 27, 26)
    per_layer = 100 * 8 * 128 * 2 * 2
    assert moved.transfers == tuple(
        (stage * 2 + i, i, layers[stage] * per_layer // 2) for stage in range(3) for i in range(2)
    )
    assert moved.wire_bytes == moved.unique_bytes == 80 * per_layer


def test_windows_move_no_more_than_they_keep() -> None:
    shape = load_shape("gpt-oss-20b")
    moved = kv_matrix(shape, 2, 2, 1000)
    assert moved.wire_bytes == 1000 * 24_576 + 3_145_728
    assert [flow.size_bytes for flow in moved.transfers] == [13_860_864, 13_860_864]


def test_blocks_round_tokens_up() -> None:
    exact, rounded = kv_matrix(LLAMA, 8, 8, 2150), kv_matrix(LLAMA, 8, 8, 2150, block=16)
    assert rounded.unique_bytes == 2160 * 327_680
    assert exact.unique_bytes == 2150 * 327_680
    assert kv_matrix(LLAMA, 8, 8, 2150, kv_dtype="fp8").unique_bytes == 352_256_000


def test_nothing_moves_for_no_tokens() -> None:
    assert kv_matrix(LLAMA, 8, 8, 0).transfers == ()


@pytest.mark.parametrize(
    ("prefill", "decode", "options", "message"),
    [
        (8, 3, {}, "tp: 3 does not divide the 64 attention heads"),
        (0, 8, {}, "tp: 0 is not a degree"),
        (8, 8, {"block": 0}, "block: 0 is out of range"),
        (8, 8, {"tokens": -1}, "tokens: -1 is out of range"),
        (8, 8, {"prefill_pp": 81}, "pp: 81 stages are more than 80 layers"),
        (8, 8, {"kv_dtype": "int3"}, "kv_dtype: 'int3'"),
    ],
)
def test_bad_transfers_are_refused(
    prefill: int, decode: int, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        kv_matrix(LLAMA, prefill, decode, **{"tokens": 10, **options})  # type: ignore[arg-type]


def test_degrees_must_divide_each_other() -> None:
    layer = QWEN.layers[0]
    wide = dataclasses.replace(
        layer,
        attention=dataclasses.replace(layer.attention, kv_heads=28),
        feed_forward=dataclasses.replace(layer.feed_forward, size=28 * 64),
    )
    shape = dataclasses.replace(QWEN, layers=(wide,))  # 28 heads of each kind
    with pytest.raises(InputError, match="prefill tp 4 and decode tp 14"):
        kv_matrix(shape, 4, 14, 10)
    moved = kv_matrix(shape, 4, 28, 10)
    assert moved.wire_bytes == moved.unique_bytes == 28 * 10 * 2 * 128 * 2


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    model=st.sampled_from(shipped_models()),
    prefill_tp=st.sampled_from([1, 2, 4, 8, 16, 32]),
    decode_tp=st.sampled_from([1, 2, 4, 8, 16, 32]),
    prefill_pp=st.integers(1, 5),
    tokens=st.integers(1, 5000),
    block=st.sampled_from([1, 16, 64]),
)
def test_every_decode_rank_gets_exactly_its_heads(
    model: str, prefill_tp: int, decode_tp: int, prefill_pp: int, tokens: int, block: int
) -> None:
    shape = load_shape(model)
    try:
        ParallelismPlan(prefill_tp, prefill_pp).check(shape)
        ParallelismPlan(decode_tp).check(shape)
    except InputError:
        assume(False)
    moved = kv_matrix(shape, prefill_tp, decode_tp, tokens, block=block, prefill_pp=prefill_pp)
    got: dict[int, int] = defaultdict(int)
    for flow in moved.transfers:
        assert 0 <= flow.src_rank < prefill_tp * prefill_pp
        got[flow.dst_rank] += flow.size_bytes
    unique, states = kv_bytes(shape, tokens, block=block), state_bytes(shape)
    attentions = [layer.attention for layer in shape.layers if layer.attention is not None]
    kv_heads = getattr(attentions[0], "kv_heads", 1)
    assert moved.unique_bytes == unique
    share = (unique - states) // min(kv_heads, decode_tp)
    assert set(got) == set(range(decode_tp))
    for rank in got:
        even = share + states // decode_tp
        assert even <= got[rank] <= even + (shape.n_layers if states else 0)
    assert moved.wire_bytes == sum(got.values()) == share * decode_tp + states


def test_recurrent_states_come_from_every_rank_that_has_a_part() -> None:
    shape = load_shape("nemotron-3-nano-30b-a3b")
    growing, states = 1000 * 6_144, 49_082_368
    # two key/value heads: four prefill ranks hold copies, of which one of each is read
    moved = kv_matrix(shape, 4, 2, 1000)
    assert moved.unique_bytes == moved.wire_bytes == growing + states
    assert moved.transfers == (
        (0, 0, growing // 2 + states // 4),
        (1, 0, states // 4),
        (2, 1, growing // 2 + states // 4),
        (3, 1, states // 4),
    )
    wide = kv_matrix(shape, 2, 4, 1000)
    assert wide.wire_bytes == 2 * growing + states


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    kv_heads=st.sampled_from([1, 2, 4, 8]),
    prefill_tp=st.sampled_from([1, 2, 4, 8, 16, 32]),
    decode_tp=st.sampled_from([1, 2, 4, 8, 16, 32]),
)
def test_sources_hold_what_they_send(kv_heads: int, prefill_tp: int, decode_tp: int) -> None:
    for j in range(decode_tp):
        wanted = held_heads(j, tp=decode_tp, kv_heads=kv_heads)
        taken = source_heads(j, prefill_tp=prefill_tp, decode_tp=decode_tp, kv_heads=kv_heads)
        held = {head for i in taken for head in held_heads(i, tp=prefill_tp, kv_heads=kv_heads)}
        assert sum(taken.values()) == len(wanted)
        assert set(wanted) <= held
        if decode_tp >= prefill_tp:
            assert list(taken) == [j * prefill_tp // decode_tp]


def test_messages_are_blocks_of_layers() -> None:
    # 2,150 tokens are 135 blocks of 16, 80 layers, keys and values
    assert set(kv_matrix(LLAMA, 8, 8, 2150, block=16).messages) == {21_600}
    assert kv_matrix(LLAMA, 8, 8, 2150, block=64).messages[0] == 34 * 160
    # each of two decode stages asks for the layers that it will have
    halves = kv_matrix(LLAMA, 8, 8, 2150, block=16, decode_pp=2)
    assert set(halves.messages) == {10_800}
    assert len(halves.messages) == len(halves.transfers) == 16
    assert kv_matrix(DEEPSEEK, 8, 1, 2150, block=64).messages == (34 * 61,)  # latents: one each
    window = kv_matrix(load_shape("gpt-oss-20b"), 2, 2, 1000, block=16)
    assert window.messages == ((63 + 8) * 12 * 2,) * 2  # half of the layers keep 128 tokens
