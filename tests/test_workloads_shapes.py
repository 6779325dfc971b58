# SPDX-License-Identifier: Apache-2.0
"""Model shapes: exact counts of shipped models, and what a config must not be guessed from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.fabric.errors import InputError
from railweave.workloads.shapes import (
    kv_bytes,
    kv_bytes_below_window,
    kv_bytes_per_token,
    kv_constant_bytes,
    load_shape,
    parameters,
    weight_bytes,
)
from railweave.workloads.shapes_fields import MAX_CONFIG_BYTES

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "torch_dtype": "bfloat16",
}


def shipped(name: str) -> dict[str, Any]:
    folder = Path(__file__).parent.parent / "workloads" / "models"
    return json.loads((folder / f"{name}.json").read_text())


def write(folder: Path, config: object) -> Path:
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config, indent=1))
    return path


def read(folder: Path, config: object) -> Any:
    return load_shape(write(folder, config))


def changed(config: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {k: v for k, v in {**config, **fields}.items() if v != "ABSENT"}


def test_sliding_windows_stop_growing() -> None:
    shape = load_shape("gpt-oss-20b")
    assert kv_bytes_below_window(shape) == 49_152
    assert kv_constant_bytes(shape) == 3_145_728
    assert kv_bytes(shape, 100) == 100 * 49_152
    assert kv_bytes(shape, 128) == 128 * 49_152
    assert kv_bytes(shape, 1_000) == 1_000 * 24_576 + 3_145_728
    assert kv_bytes(shape, 129, block=16) == 144 * 24_576 + 3_145_728


def test_cache_and_weight_formats_can_be_overridden() -> None:
    deepseek = load_shape("deepseek-v3")
    assert kv_bytes_per_token(deepseek, kv_dtype="fp8") == 35_136
    # bf16, but the 256 fp32 correction biases of 58 layers
    assert weight_bytes(deepseek, dtype="bf16") == 2 * 671_026_419_200 + 2 * 58 * 256
    # Qwen's published FP8 checkpoints use the same 128x128 blocks
    assert weight_bytes(load_shape("qwen3-32b"), dtype="fp8") == 34_326_243_328
    assert weight_bytes(load_shape("qwen3-30b-a3b"), dtype="fp8") == 31_174_545_408
    assert weight_bytes(load_shape("llama-3.1-8b"), dtype="float32") == 4 * 8_030_261_248
    with pytest.raises(InputError, match="experts only"):
        weight_bytes(load_shape("llama-3.1-8b"), dtype="mxfp4")
    with pytest.raises(InputError, match="did you mean 'bfloat16'"):
        weight_bytes(deepseek, dtype="bfloat1")


def test_missing_kv_heads_mean_one_per_query_head(tmp_path: Path) -> None:
    for absent in ("ABSENT", None):
        shape = read(tmp_path, changed(LLAMA, num_key_value_heads=absent))
        assert shape.layers[0].attention.kv_heads == 8


def test_null_head_dim_is_hidden_over_heads(tmp_path: Path) -> None:
    for absent in ("ABSENT", None):
        assert read(tmp_path, changed(LLAMA, head_dim=absent)).layers[0].attention.head_dim == 8
    assert read(tmp_path, changed(LLAMA, head_dim=16)).layers[0].attention.head_dim == 16
    with pytest.raises(InputError, match=r"head_dim: is missing and hidden_size 65"):
        read(tmp_path, changed(LLAMA, hidden_size=65))


def test_qwen3_head_dim_is_never_hidden_over_heads(tmp_path: Path) -> None:
    assert load_shape("qwen3-32b").layers[0].attention.head_dim == 128
    with pytest.raises(InputError, match="head_dim: is missing"):
        read(tmp_path, changed(shipped("qwen3-32b"), head_dim="ABSENT"))


def test_text_model_inside_a_wrapper(tmp_path: Path) -> None:
    inner = read(tmp_path, LLAMA)
    shape = read(tmp_path, {"model_type": "llava", "text_config": LLAMA, "vision_config": {}})
    assert shape.layers == inner.layers
    assert shape.text_only
    assert not inner.text_only
    with pytest.raises(InputError) as caught:
        read(tmp_path, {"text_config": changed(LLAMA, num_attention_heads=0)})
    assert caught.value.field == "text_config.num_attention_heads"
    assert caught.value.line == 7


def test_window_that_is_switched_off_is_none(tmp_path: Path) -> None:
    config = shipped("qwen2.5-7b")
    assert config["sliding_window"] == 131072
    assert config["use_sliding_window"] is False
    assert kv_constant_bytes(load_shape("qwen2.5-7b")) == 0
    # ... and on, it holds from layer max_window_layers upwards
    on = changed(config, use_sliding_window=True, sliding_window=4096, max_window_layers=20)
    shape = read(tmp_path, on)
    assert [layer.attention.window for layer in shape.layers] == [None] * 20 + [4096] * 8
    with pytest.raises(InputError, match="layer_types: is missing"):
        read(tmp_path, changed(on, max_window_layers="ABSENT"))


def test_layer_types_decide_and_must_fit(tmp_path: Path) -> None:
    config = shipped("gpt-oss-20b")
    kinds = [layer.attention.kind for layer in load_shape("gpt-oss-20b").layers]
    assert kinds == ["sliding", "full"] * 12
    for wrong, message in (
        (config["layer_types"][:-1], "has 23 entries"),
        (["sliding_attention"] * 23 + ["linear_attention"], "'linear_attention'"),
        ("ABSENT", "is missing"),
        ([1] * 24, "a list of strings"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            read(tmp_path, changed(config, layer_types=wrong))
        assert caught.value.field == "layer_types"
    with pytest.raises(InputError, match="no sliding_window is in use"):
        read(tmp_path, changed(config, sliding_window=None))


def test_expert_counts_under_every_key(tmp_path: Path) -> None:
    config = shipped("deepseek-v3")
    renamed = changed(
        config,
        n_routed_experts="ABSENT",
        num_routed_experts=256,
        n_shared_experts="ABSENT",
        num_shared_experts=1,
    )
    assert parameters(read(tmp_path, renamed)) == 671_026_419_200
    with pytest.raises(InputError, match="contradicts num_experts"):
        read(tmp_path, changed(shipped("qwen3-30b-a3b"), num_local_experts=64))


def test_moe_layers_may_be_sparse(tmp_path: Path) -> None:
    config = changed(shipped("qwen3-30b-a3b"), decoder_sparse_step=2, mlp_only_layers=[3])
    kinds = [layer.feed_forward.kind for layer in read(tmp_path, config).layers[:6]]
    assert kinds == ["dense", "moe", "dense", "dense", "dense", "moe"]


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"model_type": "lama"}, "model_type", "nearest: 'llama'"),
        ({"model_type": "mamba"}, "model_type", "'mamba' is not an architecture"),
        ({"model_type": "ABSENT"}, "model_type", "is missing"),
        ({"model_type": 7}, "model_type", "7 is not a string"),
        ({"num_attention_heads": 0}, "num_attention_heads", "0 is out of range"),
        ({"num_key_value_heads": 0}, "num_key_value_heads", "0 is out of range"),
        ({"num_key_value_heads": 3}, "num_key_value_heads", "does not divide"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers", "out of range"),
        ({"num_hidden_layers": -1}, "num_hidden_layers", "-1 is out of range"),
        ({"hidden_size": "64"}, "hidden_size", '"64" is not a whole number'),
        ({"hidden_size": 64.0}, "hidden_size", "64.0 is not a whole number"),
        ({"hidden_size": True}, "hidden_size", "true is not a whole number"),
        ({"hidden_size": [64]}, "hidden_size", "not a whole number"),
        ({"vocab_size": "ABSENT"}, "vocab_size", "is missing"),
        ({"vocab_size": None}, "vocab_size", "is null"),
        ({"intermediate_size": "ABSENT"}, "intermediate_size", "is missing"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings", "not true or false"),
        ({"torch_dtype": "float12"}, "torch_dtype", "not a known number format"),
        ({"quantization_config": 4}, "quantization_config", "not an object"),
        ({"quantization_config": {}}, "quantization_config.quant_method", "is missing"),
        ({"num_local_experts": 8}, "num_local_experts", "not understood for model_type 'llama'"),
        ({"sliding_window": 4096}, "sliding_window", "not understood"),
        ({"kv_lora_rank": 512}, "kv_lora_rank", "not understood"),
        ({"block_configs": [{}]}, "block_configs", "not understood"),
        ({"attention_chunk_size": 8192}, "attention_chunk_size", "not understood"),
    ],
)
def test_a_bad_field_is_one_error_with_its_place(
    fields: dict[str, Any], field: str, message: str, tmp_path: Path
) -> None:
    path = write(tmp_path, changed(LLAMA, **fields))
    with pytest.raises(InputError, match=message) as caught:
        load_shape(path)
    assert caught.value.field == field
    assert caught.value.file == str(path)
    if field in path.read_text():
        line = path.read_text().splitlines()[(caught.value.line or 0) - 1]
        assert f'"{field}"' in line
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ('{\n "hidden_size" 64\n}', "is not JSON", 2),
        ("", "is not JSON", 1),
        ("[1, 2]", "holds a JSON array", 1),
        ('"llama"', "holds a JSON string", 1),
        ("[" * 100_000, "is not JSON that can be read", None),
        ('{"hidden_size": ' + "9" * 5000 + "}", "is not JSON that can be read", None),
        ('{"vocab_size": 1,\n "vocab_size": 2}', "is written twice", 1),
        (" " * (MAX_CONFIG_BYTES + 1), "is larger than 4 MiB", None),
    ],
    ids=["colon", "empty", "array", "string", "deep", "digits", "twice", "huge"],
)
def test_a_file_that_is_no_config(
    text: str, message: str, line: int | None, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path, text)
    assert caught.value.file == str(tmp_path / "config.json")
    assert caught.value.line == line


def test_binary_and_absent_files(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(range(256)))
    with pytest.raises(InputError, match="is not UTF-8 text"):
        load_shape(tmp_path / "weights.bin")
    with pytest.raises(InputError, match=r"config\.json: cannot be read: No such file"):
        load_shape(tmp_path)
    for name in ("x" * 5000, "a\0b", ""):
        with pytest.raises(InputError):
            load_shape(name)


def test_names_and_folders(tmp_path: Path) -> None:
    assert load_shape("LLaMA-3.1-8B") == load_shape("llama-3.1-8b")
    folder = tmp_path / "My-Model"
    folder.mkdir()
    write(folder, LLAMA)
    assert load_shape(folder).name == "My-Model"
    assert load_shape(str(folder / "config.json")).name == "My-Model"
    with pytest.raises(InputError, match=r"did you mean 'llama-3\.1-70b'"):
        load_shape("llama-3.1-7b0")


def test_unknown_quantisation_needs_an_override(tmp_path: Path) -> None:
    shape = read(tmp_path, changed(LLAMA, quantization_config={"quant_method": "quip"}))
    with pytest.raises(InputError, match="'quip'"):
        weight_bytes(shape)
    assert weight_bytes(shape, dtype="bf16") == 2 * parameters(shape)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    config=st.fixed_dictionaries(
        {},
        optional={
            name: st.one_of(
                st.none(), st.booleans(), st.integers(-2, 300), st.floats(), st.text(max_size=3)
            )
            for name in LLAMA
            if name != "model_type"
        },
    )
)
def test_any_config_gives_a_shape_or_one_input_error(
    config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("config")
    refused: InputError | None = None
    try:
        shape = read(folder, {**LLAMA, **config})
    except InputError as error:
        refused = error
    if refused is None:
        assert parameters(shape) > 0
        assert kv_bytes_per_token(shape) > 0
    else:
        # a head width that cannot be derived is the fault of one of its two parts
        named = (
            {refused.field}
            if refused.field != "head_dim"
            else {"hidden_size", "num_attention_heads"}
        )
        assert named & config.keys()
