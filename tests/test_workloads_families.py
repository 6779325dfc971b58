# SPDX-License-Identifier: Apache-2.0
"""Field-name traps: what a reader of config files takes for something that it is not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.fabric.errors import InputError
from railweave.workloads.memory import memory_fit
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.shapes import (
    kv_bytes_per_token,
    kv_constant_bytes,
    load_shape,
    parameters,
    shipped_models,
    weight_bytes,
)
from railweave.workloads.shapes_families import shape_from_fields
from railweave.workloads.shapes_fields import Fields

MODELS = Path(__file__).parent.parent / "workloads" / "models"


def shipped(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((MODELS / f"{name}.json").read_text())
    return found


def changed(config: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {key: value for key, value in {**config, **fields}.items() if value != "ABSENT"}


def read(folder: Path, config: dict[str, Any]) -> Any:
    path = folder / "config.json"
    path.write_text(json.dumps(config, indent=1))
    return load_shape(path)


def kinds(shape: Any) -> list[str]:
    return [layer.attention.kind if layer.attention else "-" for layer in shape.layers]


def test_a_kv_width_is_not_the_number_of_heads_in_latent_attention() -> None:
    # the file says num_key_value_heads 128; the cache has 512 + 64 elements per token and layer
    assert shipped("deepseek-v3")["num_key_value_heads"] == 128
    assert kv_bytes_per_token(load_shape("deepseek-v3")) == 61 * 576 * 2
    assert kv_bytes_per_token(load_shape("deepseek-v3"), kv_dtype="fp8") == 35_136


def test_head_width_is_not_hidden_size_over_heads() -> None:
    for name in ("qwen3-32b", "qwen3-30b-a3b", "gpt-oss-20b", "gemma-2-2b", "gemma-3-27b",
                 "glm-4.5", "minimax-m2.5", "nemotron-3-nano-30b-a3b", "qwen3.5-27b",
                 "falcon-h1-0.5b"):  # fmt: skip
        shape = load_shape(name)
        attention = next(layer.attention for layer in shape.layers if layer.attention)
        assert attention.head_dim != shape.hidden_size // attention.heads


def test_one_key_value_head_of_multi_query(tmp_path: Path) -> None:
    for name in ("falcon-7b", "santacoder"):
        assert load_shape(name).layers[0].attention.kv_heads == 1
    many = read(tmp_path, changed(shipped("falcon-7b"), multi_query=False))
    assert many.layers[0].attention.kv_heads == 71
    # in the newer architecture num_kv_heads counts, multi_query does not
    assert load_shape("falcon-40b").layers[0].attention.kv_heads == 8
    assert shipped("falcon-40b")["multi_query"] is True


def test_windows_that_are_set_and_off() -> None:
    for name in ("qwen2.5-7b", "qwen2.5-32b"):  # use_sliding_window false
        assert shipped(name)["sliding_window"] == 131072
        assert set(kinds(load_shape(name))) == {"full"}
    for name in ("phi-3.5-mini", "phi-4-mini"):  # longer than any sequence
        assert shipped(name)["sliding_window"] > shipped(name)["max_position_embeddings"]
        assert kv_constant_bytes(load_shape(name)) == 0
    for name in ("mistral-7b-v0.1", "starcoder2-7b", "phi-mini-moe"):
        assert set(kinds(load_shape(name))) == {"sliding"}


def test_windows_that_the_class_lays_out() -> None:
    # not in Gemma-2's file: even layers slide; Gemma-3: every sixth is full; Llama-4: every fourth
    assert kinds(load_shape("gemma-2-9b"))[:4] == ["sliding", "full"] * 2
    assert kinds(load_shape("gemma-3-27b"))[:6] == ["sliding"] * 5 + ["full"]
    assert kinds(load_shape("gemma-3-27b")).count("full") == 10
    assert kinds(load_shape("llama-4-maverick"))[:4] == ["chunked"] * 3 + ["full"]


def test_patterns_of_layers() -> None:
    nano = load_shape("nemotron-3-nano-30b-a3b")
    assert kinds(nano).count("full") == 6
    assert [layer.feed_forward is not None for layer in nano.layers].count(True) == 23
    assert [layer.mixer is not None for layer in nano.layers].count(True) == 23
    assert [i for i, kind in enumerate(kinds(nano)) if kind == "full"] == [5, 12, 19, 26, 33, 42]
    jamba = load_shape("jamba-1.5-mini")
    assert [i for i, kind in enumerate(kinds(jamba)) if kind == "full"] == [4, 12, 20, 28]
    assert [i for i, x in enumerate(jamba.layers) if x.feed_forward.kind == "moe"] == [
        *range(1, 32, 2)
    ]
    gated = load_shape("qwen3.5-27b")
    assert kinds(gated)[:4] == ["-", "-", "-", "full"]
    both = load_shape("falcon-h1-0.5b").layers[0]
    assert both.attention is not None
    assert both.mixer is not None
    assert both.reductions == 3


def test_layer_types_say_the_same_as_intervals(tmp_path: Path) -> None:
    config = shipped("qwen3.5-27b")
    inner = config["text_config"]
    listed = (["linear_attention"] * 3 + ["full_attention"]) * 16
    spelled = read(
        tmp_path,
        changed(
            config, text_config=changed(inner, full_attention_interval="ABSENT", layer_types=listed)
        ),
    )
    assert spelled.layers == load_shape("qwen3.5-27b").layers
    config = shipped("llama-4-scout")
    inner = config["text_config"]
    listed = [int((i + 1) % 4 != 0) for i in range(48)]
    marked = read(tmp_path, changed(config, text_config=changed(inner, no_rope_layers=listed)))
    assert marked.layers == load_shape("llama-4-scout").layers


def test_experts_under_every_spelling() -> None:
    for name, experts, top_k, shared in (
        ("mixtral-8x7b", 8, 2, 0),
        ("qwen3-30b-a3b", 128, 8, 0),
        ("qwen2-57b-a14b", 64, 8, 20480),
        ("glm-4.5", 160, 8, 1536),
        ("deepseek-v2-lite", 64, 6, 2 * 1408),
        ("llama-4-scout", 16, 1, 8192),
        ("minimax-m2.5", 256, 8, 0),
        ("nemotron-3-nano-30b-a3b", 128, 6, 3712),
    ):
        block = next(
            layer.feed_forward
            for layer in load_shape(name).layers
            if layer.feed_forward and layer.feed_forward.kind == "moe"
        )
        assert (block.experts, block.top_k, block.shared_size) == (experts, top_k, shared)
    v3 = load_shape("deepseek-v3").layers[60].feed_forward
    assert (v3.node_groups, v3.top_groups) == (8, 4)


def test_first_dense_layers_and_interleaved_experts() -> None:
    for name, dense in (("glm-4.5", 3), ("glm-4.5-air", 1), ("deepseek-v3", 3)):
        found = [layer.feed_forward.kind for layer in load_shape(name).layers]
        assert found == ["dense"] * dense + ["moe"] * (len(found) - dense)
    maverick = load_shape("llama-4-maverick")
    assert [layer.feed_forward.kind for layer in maverick.layers] == ["dense", "moe"] * 24
    assert maverick.layers[0].feed_forward.size == 16384  # intermediate_size_mlp


def test_heads_are_tied_where_the_class_says_so() -> None:
    for name in ("gemma-2-2b", "gemma-3-4b", "falcon-7b", "santacoder", "starcoder2-7b"):
        config = shipped(name)
        assert "tie_word_embeddings" not in {**config, **config.get("text_config", {})}
        assert load_shape(name).tied
    assert not load_shape("deepseek-v2-lite").tied
    assert not load_shape("llama-4-scout").tied


def test_parallel_blocks_are_summed_once() -> None:
    for name in ("phi-2", "gpt-j-6b", "falcon-7b", "falcon-40b"):
        shape = load_shape(name)
        assert shape.reductions == shape.n_layers
    assert load_shape("llama-3.1-70b").reductions == 160


def test_text_config_defaults_of_gemma3(tmp_path: Path) -> None:
    # The published 4B file has no more than this in its text_config.
    shape = read(
        tmp_path,
        {
            "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text",
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "num_hidden_layers": 34,
                "sliding_window": 1024,
            },
        },
    )
    assert parameters(shape) == parameters(load_shape("gemma-3-4b")) == 3_880_263_168
    assert shape.layers == load_shape("gemma-3-4b").layers


def nemotron_super() -> dict[str, Any]:
    """Nemotron-Super-49B: its counts of each kind of layer (their order does not count)."""
    multiples = [(2816, 6), (5632, 8), (7168, 10), (14336, 6), (17920, 1), (28672, 49)]
    sizes = [size for size, count in multiples for _ in range(count)]
    blocks = [
        {
            "attention": {"n_heads_in_group": 8 if i >= 31 else None, "no_op": i < 31},
            "ffn": {"ffn_mult": size * 3 / 2 / 8192, "no_op": False},
        }
        for i, size in enumerate(sizes)
    ]
    return {
        "model_type": "nemotron-nas",
        "hidden_size": 8192,
        "intermediate_size": None,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": None,
        "vocab_size": 128256,
        "block_configs": blocks,
        "torch_dtype": "bfloat16",
    }


def test_layers_without_attention(tmp_path: Path) -> None:
    shape = read(tmp_path, nemotron_super())
    assert parameters(shape) == 49_867_145_216
    assert kv_bytes_per_token(shape) == 200_704
    assert weight_bytes(shape) == 99_734_290_432
    assert kinds(shape).count("-") == 31
    assert shape.heads == 64
    assert shape.reductions == 80 + 49


FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}


@pytest.mark.parametrize(
    ("name", "quantised", "weights", "kv"),
    [
        ("qwen3-32b", FP8, 34_326_243_328, 262_144),
        ("qwen3-30b-a3b", {**FP8, "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"]},
         31_174_545_408, 98_304),
        ("llama-3.1-70b", {**MODELOPT, "ignore": ["lm_head"]}, 72_656_376_192, 163_840),
        ("qwen3-32b", MODELOPT, 34_318_628_352, 131_072),
        ("qwen3-32b", {**MODELOPT, "kv_cache_quant_algo": "ABSENT",
                       "kv_cache_scheme": {"num_bits": 8, "type": "float"}},
         34_318_628_352, 131_072),
    ],
)  # fmt: skip
def test_quantised_checkpoints(
    name: str, quantised: dict[str, Any], weights: int, kv: int, tmp_path: Path
) -> None:
    shape = read(tmp_path, changed(shipped(name), quantization_config=changed(quantised)))
    assert weight_bytes(shape) == weights
    assert kv_bytes_per_token(shape) == kv


def test_blocks_that_a_checkpoint_keeps(tmp_path: Path) -> None:
    # NVFP4 Nemotron-3-Nano: bf16 in all attention layers, 6 of 23 mamba layers, conv1d, lm_head
    attention, kept = [5, 12, 19, 26, 33, 42], [4, 11, 18, 25, 32, 41]
    ignore = [f"backbone.layers.{i}.mixer.{m}_proj" for i in attention for m in "qkvo"]
    ignore += [f"backbone.layers.{i}.mixer.{m}_proj" for i in kept for m in ("in", "out")]
    ignore += ["lm_head", "backbone.layers.0.mixer.conv1d"]
    quantised = {**MODELOPT, "quant_algo": "NVFP4", "ignore": ignore}
    config = changed(shipped("nemotron-3-nano-30b-a3b"), quantization_config=quantised)
    shape = read(tmp_path, config)
    assert [i for i, layer in enumerate(shape.layers) if layer.plain == ("attention",)] == attention
    assert [i for i, layer in enumerate(shape.layers) if layer.plain == ("mixer",)] == kept
    assert kv_bytes_per_token(shape) == 3_072
    assert weight_bytes(shape) == 19_323_954_688


@pytest.mark.parametrize(
    ("quantised", "message"),
    [
        (
            {**FP8, "modules_to_not_convert": ["model.layers.3.self_attn.k_proj"]},
            "keeps only k_proj",
        ),
        ({**FP8, "modules_to_not_convert": ["model.decoder"]}, "'model.decoder' is not understood"),
        ({**FP8, "modules_to_not_convert": "lm_head"}, "a list of strings"),
        ({**FP8, "weight_block_size": [128]}, "is not a block"),
        ({"quant_method": "awq"}, "quantization_config.bits: is missing"),
        ({**MODELOPT, "kv_cache_quant_algo": "INT2"}, "'INT2' is not understood"),
    ],
)
def test_quantisation_that_is_not_understood(
    quantised: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, changed(shipped("qwen3-32b"), quantization_config=quantised))


def test_int4_checkpoints(tmp_path: Path) -> None:
    for method in ("awq", "gptq"):
        quantised = {"quant_method": method, "bits": 4, "group_size": 128}
        shape = read(tmp_path, changed(shipped("llama-3.1-8b"), quantization_config=quantised))
        # half a byte per weight of a layer; per 128 inputs and output 2 bytes and half a byte
        linear = 32 * (41_943_040 + 176_160_768)
        rest = 8_030_261_248 - linear
        assert weight_bytes(shape) == linear // 2 + linear // 128 * 5 // 2 + 2 * rest
    three = {"quant_method": "gptq", "bits": 3, "group_size": 128}
    shape = read(tmp_path, changed(shipped("llama-3.1-8b"), quantization_config=three))
    with pytest.raises(InputError, match="'gptq of 3 bits'"):
        weight_bytes(shape)


@pytest.mark.parametrize(
    ("name", "fields", "field", "message"),
    [
        ("nemotron-3-nano-30b-a3b", {"hybrid_override_pattern": "ABSENT"},
         "hybrid_override_pattern", "is missing"),
        ("nemotron-3-nano-30b-a3b", {"hybrid_override_pattern": "MX" * 26},
         "hybrid_override_pattern", "52 of M"),
        ("nemotron-3-nano-30b-a3b", {"mamba_num_heads": "64"}, "mamba_num_heads", "whole number"),
        ("nemotron-3-nano-30b-a3b", {"moe_latent_size": 1024}, "moe_latent_size", "not understood"),
        ("jamba-1.5-mini", {"attn_layer_offset": 8}, "attn_layer_offset", "out of range"),
        ("jamba-1.5-mini", {"mamba_dt_rank": "auto"}, "mamba_dt_rank", "not a whole number"),
        ("falcon-h1-0.5b", {"mamba_d_ssm": 1000}, "mamba_d_ssm", "not 24 heads of 64"),
        ("glm-4.5", {"n_shared_experts": "ABSENT"}, "n_shared_experts", "is missing"),
        ("glm-4.5", {"topk_group": 2}, "topk_group", "more than 1 groups"),
        ("minimax-m2.5", {"shared_intermediate_size": 64}, "shared_intermediate_size",
         "not understood"),
        ("minimax-m2.5", {"attn_type_list": [0] * 62}, "attn_type_list", "not understood"),
        ("deepseek-v3.2", {"index_topk": "ABSENT"}, "index_topk", "is missing"),
        ("deepseek-v3", {"index_topk": 2048}, "index_topk", "not understood for model_type"),
        ("deepseek-v3", {"num_experts_per_tok": 300}, "num_experts_per_tok", "more than 256"),
        ("phi-2", {"qk_layernorm": True}, "qk_layernorm", "not understood"),
        ("gemma-2-2b", {"head_dim": "ABSENT"}, "head_dim", "is missing"),
        ("llama-3.1-8b", {"v_head_dim": 64}, "v_head_dim", "not understood"),
        ("llama-3.1-8b", {"swa_num_key_value_heads": 4}, "swa_num_key_value_heads",
         "not understood"),
        ("santacoder", {"n_head": 0}, "n_head", "out of range"),
        ("gpt-j-6b", {"n_embd": "ABSENT"}, "hidden_size", "is missing"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(
    name: str, fields: dict[str, Any], field: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path, changed(shipped(name), **fields))
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


def test_a_huge_file_is_refused_after_its_first_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as stream:
        stream.write(b"{")
        stream.seek(500 * 10**6)  # sparse: takes no room
        stream.write(b"}")
    assert path.stat().st_size > 500 * 10**6
    before = os.times()
    with pytest.raises(InputError, match=r"config\.json: is larger than 4 MiB"):
        load_shape(path)
    after = os.times()
    assert after.user + after.system - before.user - before.system < 1


JUNK = ["x", 0, -1, None, [], {}, True, 1.5, 10**30, [1], ["a"], {"a": 1}, 1, 3, "ME*-"]


@st.composite
def spoiled(draw: st.DrawFn) -> tuple[str, dict[str, Any], str]:
    """Draw a shipped config with one of its values, at any depth, replaced by junk."""
    name = draw(st.sampled_from(shipped_models()))
    config = place = shipped(name)
    while True:
        key = draw(st.sampled_from(sorted(place.keys() - {"source", "architectures"})))
        if not isinstance(place[key], dict) or draw(st.booleans()):
            break
        place = place[key]
    place[key] = draw(st.sampled_from(JUNK))
    return name, config, key


@settings(derandomize=True, deadline=None, max_examples=400)
@given(case=spoiled())
def test_a_spoiled_config_is_a_shape_or_one_clear_line(
    case: tuple[str, dict[str, Any], str],
) -> None:
    _, config, _ = case
    text = json.dumps(config, indent=1)
    refused: InputError | None = None
    try:
        shape = shape_from_fields(Fields(config, file="c.json", text=text), name="c", source="")
        assert parameters(shape) > 0
        assert kv_bytes_per_token(shape) + kv_constant_bytes(shape) > 0
        assert weight_bytes(shape) > 0
        memory_fit(shape, ParallelismPlan(), memory_bytes=10**12, tokens=10)
    except InputError as error:
        refused = error
    if refused is not None:
        assert "\n" not in str(refused)
        assert refused.field
        assert len(str(refused)) < 1200


def mimo_v2_flash() -> dict[str, Any]:
    """MiMo-V2-Flash, as its public file has it (quantisation left out)."""
    return {
        "model_type": "mimo_v2_flash",
        "hidden_size": 4096,
        "intermediate_size": 16384,
        "num_hidden_layers": 48,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 192,
        "v_head_dim": 128,
        "swa_num_attention_heads": 64,
        "swa_num_key_value_heads": 8,
        "swa_head_dim": 192,
        "swa_v_head_dim": 128,
        "sliding_window": 128,
        "sliding_window_size": 128,
        "hybrid_layer_pattern": [int(not (i == 0 or (i + 1) % 6 == 0)) for i in range(48)],
        "moe_layer_freq": [int(i != 0) for i in range(48)],
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "vocab_size": 152576,
        "torch_dtype": "bfloat16",
    }


def test_single_matrices_of_attention_that_a_checkpoint_keeps(tmp_path: Path) -> None:
    # as MiMo-V2-Flash's fp8 checkpoint, whose output projections stay in bf16
    ignored = [f"model.layers.{i}.self_attn.o_proj" for i in range(48)]
    quantised = {**FP8, "ignored_layers": ignored}
    kept = read(tmp_path, changed(mimo_v2_flash(), quantization_config=quantised))
    every = read(tmp_path, changed(mimo_v2_flash(), quantization_config=FP8))
    output = 64 * 128 * 4096
    assert weight_bytes(kept) - weight_bytes(every) == 48 * (output - 4 * output // 128**2)
    both = [f"model.layers.0.self_attn.{name}_proj" for name in "kv"]
    llama = shipped("llama-3.1-8b")
    quantised = {**FP8, "modules_to_not_convert": both}
    kept = read(tmp_path, changed(llama, quantization_config=quantised))
    every = read(tmp_path, changed(llama, quantization_config=FP8))
    pair = 2 * 4096 * 1024
    assert weight_bytes(kept) - weight_bytes(every) == pair - 4 * pair // 128**2


def test_an_unknown_quantisation_can_be_replaced_whatever_it_keeps(tmp_path: Path) -> None:
    quantised = {"quant_method": "compressed-tensors", "ignore": ["re:.*self_attn", "lm_head"]}
    shape = read(tmp_path, changed(shipped("llama-3.1-8b"), quantization_config=quantised))
    with pytest.raises(InputError, match="'compressed-tensors'"):
        weight_bytes(shape)
    assert weight_bytes(shape, dtype="bf16") == 16_060_522_496


def test_different_widths_of_keys_and_values(tmp_path: Path) -> None:
    shape = read(tmp_path, mimo_v2_flash())
    full = 4096 * (64 * 192 + 4 * (192 + 128)) + 64 * 128 * 4096
    sliding = full + 4096 * 4 * (192 + 128) + 64  # 8 heads, and one sink per query head
    experts = 256 * 3 * 4096 * 2048 + 256 * 4096 + 256
    assert parameters(shape) == (
        2 * 152576 * 4096 + 9 * full + 39 * sliding + 3 * 4096 * 16384 + 47 * experts
        + 97 * 4096
    )  # fmt: skip
    assert parameters(shape) == pytest.approx(309e9, rel=2e-3)  # as its card says
    # keys of 192 and values of 128 in 4 heads of 9 layers; windows of 128 in 8 heads of 39
    assert kv_bytes_per_token(shape) == 9 * 4 * 320 * 2
    assert kv_constant_bytes(shape) == 39 * 128 * 8 * 320 * 2
    assert kinds(shape)[:6] == ["full"] + ["sliding"] * 4 + ["full"]
    for fields, field in (
        ({"hybrid_layer_pattern": "ABSENT"}, "hybrid_layer_pattern"),
        ({"hybrid_layer_pattern": [0, 2] * 24}, "hybrid_layer_pattern"),
        ({"moe_layer_freq": [1]}, "moe_layer_freq"),
        ({"v_head_dim": "ABSENT"}, "v_head_dim"),
        ({"n_shared_experts": 1}, "n_shared_experts"),
    ):
        with pytest.raises(InputError) as caught:
            read(tmp_path, changed(mimo_v2_flash(), **fields))
        assert caught.value.field == field
