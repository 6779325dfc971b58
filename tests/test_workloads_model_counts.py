# SPDX-License-Identifier: Apache-2.0
"""Exact parameter counts, weight bytes and cache bytes of every shipped model.

Parameters equal those of the classes of ``huggingface/transformers`` 5.24.0 built from the same
fields (parameters and ``e_score_correction_bias`` buffers; next-token modules and vision towers
left out). Weight bytes are of the published checkpoint.
"""

from __future__ import annotations

import pytest

from railweave.workloads.shapes import (
    active_parameters,
    kv_bytes,
    kv_bytes_below_window,
    kv_bytes_per_token,
    kv_constant_bytes,
    load_shape,
    parameters,
    shipped_models,
    state_bytes,
    weight_bytes,
)

# name, parameters, those that a token meets, weight bytes;
# cache bytes of a token in a short and in a long sequence, bytes that do not grow
TABLE = [
    ("llama-2-7b", 6_738_415_616, 6_738_415_616, 13_476_831_232,
     524_288, 524_288, 0),
    ("llama-2-13b", 13_015_864_320, 13_015_864_320, 26_031_728_640,
     819_200, 819_200, 0),
    ("llama-2-70b", 68_976_648_192, 68_976_648_192, 137_953_296_384,
     327_680, 327_680, 0),
    ("llama-3.1-8b", 8_030_261_248, 8_030_261_248, 16_060_522_496,
     131_072, 131_072, 0),
    ("llama-3.1-70b", 70_553_706_496, 70_553_706_496, 141_107_412_992,
     327_680, 327_680, 0),
    ("llama-3.1-405b", 405_853_388_800, 405_853_388_800, 811_706_777_600,
     516_096, 516_096, 0),
    ("llama-3.2-1b", 1_235_814_400, 1_235_814_400, 2_471_628_800,
     32_768, 32_768, 0),
    ("llama-3.2-3b", 3_212_749_824, 3_212_749_824, 6_425_499_648,
     114_688, 114_688, 0),
    ("mistral-7b-v0.1", 7_241_732_096, 7_241_732_096, 14_483_464_192,
     131_072, 0, 536_870_912),
    ("mistral-7b-v0.3", 7_248_023_552, 7_248_023_552, 14_496_047_104,
     131_072, 131_072, 0),
    ("qwen2.5-7b", 7_615_616_512, 7_615_616_512, 15_231_233_024,
     57_344, 57_344, 0),
    ("qwen2.5-14b", 14_770_033_664, 14_770_033_664, 29_540_067_328,
     196_608, 196_608, 0),
    ("qwen2.5-32b", 32_763_876_352, 32_763_876_352, 65_527_752_704,
     262_144, 262_144, 0),
    ("qwen2.5-72b", 72_706_203_648, 72_706_203_648, 145_412_407_296,
     327_680, 327_680, 0),
    ("qwen3-8b", 8_190_735_360, 8_190_735_360, 16_381_470_720,
     147_456, 147_456, 0),
    ("qwen3-14b", 14_768_307_200, 14_768_307_200, 29_536_614_400,
     163_840, 163_840, 0),
    ("qwen3-32b", 32_762_123_264, 32_762_123_264, 65_524_246_528,
     262_144, 262_144, 0),
    ("phi-3.5-mini", 3_821_079_552, 3_821_079_552, 7_642_159_104,
     393_216, 393_216, 0),
    ("phi-4-mini", 3_836_021_760, 3_836_021_760, 7_672_043_520,
     131_072, 131_072, 0),
    ("phi-4", 14_659_507_200, 14_659_507_200, 29_319_014_400,
     204_800, 204_800, 0),
    ("phi-2", 2_779_683_840, 2_779_683_840, 5_559_367_680,
     327_680, 327_680, 0),
    ("gpt-j-6b", 6_050_882_784, 6_050_882_784, 12_101_765_568,
     458_752, 458_752, 0),
    ("falcon-7b", 6_921_720_704, 6_921_720_704, 13_843_441_408,
     8_192, 8_192, 0),
    ("falcon-40b", 41_303_293_952, 41_303_293_952, 82_606_587_904,
     122_880, 122_880, 0),
    ("santacoder", 1_124_886_528, 1_124_886_528, 2_249_773_056,
     12_288, 12_288, 0),
    ("starcoder2-7b", 7_173_923_840, 7_173_923_840, 14_347_847_680,
     65_536, 0, 268_435_456),
    ("gemma-2-2b", 2_614_341_888, 2_614_341_888, 5_228_683_776,
     106_496, 53_248, 218_103_808),
    ("gemma-2-9b", 9_241_705_984, 9_241_705_984, 18_483_411_968,
     344_064, 172_032, 704_643_072),
    ("gemma-2-27b", 27_227_128_320, 27_227_128_320, 54_454_256_640,
     376_832, 188_416, 771_751_936),
    ("gemma-3-1b", 999_885_952, 999_885_952, 1_999_771_904,
     26_624, 4_096, 11_534_336),
    ("gemma-3-4b", 3_880_263_168, 3_880_263_168, 7_760_526_336,
     139_264, 20_480, 121_634_816),
    ("gemma-3-27b", 27_009_346_304, 27_009_346_304, 54_018_692_608,
     507_904, 81_920, 436_207_616),
    ("mixtral-8x7b", 46_702_792_704, 12_879_925_248, 93_405_585_408,
     131_072, 131_072, 0),
    ("mixtral-8x22b", 140_620_634_112, 39_152_031_744, 281_241_268_224,
     229_376, 229_376, 0),
    ("phi-mini-moe", 7_647_632_704, 2_362_809_664, 15_295_265_408,
     131_072, 0, 268_304_384),
    ("qwen2-57b-a14b", 57_408_658_944, 14_249_270_784, 114_817_317_888,
     57_344, 57_344, 0),
    ("qwen3-30b-a3b", 30_532_122_624, 3_353_032_704, 61_064_245_248,
     98_304, 98_304, 0),
    ("gpt-oss-20b", 20_914_757_184, 4_187_440_704, 13_761_264_768,
     49_152, 24_576, 3_145_728),
    ("llama-4-scout", 107_769_861_120, 17_172_894_720, 215_539_722_240,
     196_608, 49_152, 1_207_959_552),
    ("llama-4-maverick", 400_711_848_960, 17_184_691_200, 801_423_697_920,
     196_608, 49_152, 1_207_959_552),
    ("glm-4.5-air", 106_852_251_264, 13_424_129_664, 213_704_514_048,
     188_416, 188_416, 0),
    ("glm-4.5", 352_797_829_024, 33_632_266_144, 705_595_686_528,
     376_832, 376_832, 0),
    ("minimax-m2.5", 228_689_764_864, 11_030_553_088, 230_024_113_152,
     253_952, 253_952, 0),
    ("deepseek-v2-lite", 15_706_484_224, 2_661_150_208, 31_412_968_448,
     31_104, 31_104, 0),
    ("deepseek-v3", 671_026_419_200, 37_552_297_472, 673_150_611_808,
     70_272, 70_272, 0),
    ("nemotron-3-nano-30b-a3b", 31_577_940_288, 3_580_076_352, 63_155_886_464,
     6_144, 6_144, 49_082_368),
    ("jamba-1.5-mini", 51_570_323_328, 12_110_311_296, 103_140_646_656,
     16_384, 16_384, 16_056_320),
    ("falcon-h1-0.5b", 521_411_104, 521_411_104, 1_042_822_208,
     18_432, 18_432, 28_698_624),
    ("qwen3.5-27b", 26_895_998_464, 26_895_998_464, 53_791_996_928,
     65_536, 65_536, 153_944_064),
    ("qwen3.5-35b-a3b", 34_660_610_688, 3_454_988_928, 69_321_221_376,
     20_480, 20_480, 64_389_120),
    # with the indexer of 61 layers: 13,959,424 parameters and 132 cache bytes each
    ("deepseek-v3.2", 671_877_944_064, 38_403_822_336, 674_030_337_216,
     78_324, 78_324, 0),
]  # fmt: skip

# Published counts, exact: keras-team/keras-hub presets (71453d0), Hugging Face pages.
PUBLISHED = {
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-8b": 8_030_261_248,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "phi-3.5-mini": 3_821_079_552,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
    "gpt-oss-20b": 20_914_757_184,
}


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0])
def test_counts_of_shipped_models(row: tuple[str, int, int, int, int, int, int]) -> None:
    name, count, active, weights, below, growth, constant = row
    shape = load_shape(name)
    assert parameters(shape) == count
    assert active_parameters(shape) == active
    assert weight_bytes(shape) == weights
    assert kv_bytes_below_window(shape) == below
    assert kv_bytes_per_token(shape) == growth
    assert kv_constant_bytes(shape) == constant
    assert kv_bytes(shape, 1) == below + state_bytes(shape)
    assert shape.source.startswith("https://huggingface.co/")
    assert count == PUBLISHED.get(name, count)


def test_every_shipped_model_is_in_the_table() -> None:
    assert [row[0] for row in TABLE if row[0] not in shipped_models()] == []
    assert set(shipped_models()) == {row[0] for row in TABLE}
    assert len(TABLE) >= 50


def test_active_parameters_without_the_input_table() -> None:
    # How cards of gpt-oss (3.61 B) and Nemotron-3-Nano (3.2 B) count; Mixtral's 12.9 B has it.
    found = {
        name: active_parameters(load_shape(name), embedding=False)
        for name in ("gpt-oss-20b", "nemotron-3-nano-30b-a3b", "mixtral-8x7b", "deepseek-v3",
                     "santacoder", "llama-3.1-70b")
    }  # fmt: skip
    assert found == {
        "gpt-oss-20b": 3_608_307_264,
        "nemotron-3-nano-30b-a3b": 3_227_754_816,
        "mixtral-8x7b": 12_748_853_248,
        "deepseek-v3": 36_625_618_432,
        "santacoder": 1_120_692_224,  # its head is the input table; learned positions go
        "llama-3.1-70b": 69_503_033_344,
    }


@pytest.mark.parametrize(
    ("name", "window", "growing", "constant"),
    [
        ("gpt-oss-20b", 128, 24_576, 3_145_728),
        ("gemma-2-9b", 4096, 172_032, 704_643_072),
        ("gemma-3-27b", 1024, 81_920, 436_207_616),
        ("mistral-7b-v0.1", 4096, 0, 536_870_912),
    ],
)
def test_windows_fill_and_stop(name: str, window: int, growing: int, constant: int) -> None:
    shape = load_shape(name)
    below = kv_bytes_below_window(shape)
    assert kv_bytes(shape, window - 1) == (window - 1) * below
    assert kv_bytes(shape, window) == window * below
    assert kv_bytes(shape, window + 1) == (window + 1) * growing + constant


def test_chunks_start_over() -> None:
    shape = load_shape("llama-4-scout")
    assert kv_bytes(shape, 8192) == 8192 * 196_608
    assert kv_bytes(shape, 8193) == 8193 * 49_152 + 36 * 4096
    assert kv_bytes(shape, 3 * 8192) == 3 * 8192 * 49_152 + 1_207_959_552


def test_states_do_not_grow() -> None:
    for name, size in (
        ("nemotron-3-nano-30b-a3b", 49_082_368),
        ("jamba-1.5-mini", 16_056_320),
        ("falcon-h1-0.5b", 28_698_624),
        ("qwen3.5-27b", 153_944_064),
        ("qwen3.5-35b-a3b", 64_389_120),
    ):
        shape = load_shape(name)
        assert state_bytes(shape) == size
        assert kv_bytes(shape, 5000) == 5000 * kv_bytes_per_token(shape) + size
        assert kv_bytes(shape, 0) == 0


def test_worked_cache_of_qwen() -> None:
    assert kv_bytes(load_shape("qwen2.5-7b"), 2150) == 123_289_600
    assert kv_bytes(load_shape("qwen2.5-7b"), 50, block=16) // (16 * 57_344) == -(-50 // 16)
