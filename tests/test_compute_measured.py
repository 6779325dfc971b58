# SPDX-License-Identifier: Apache-2.0
"""The roofline beside measurements, and bounds that anybody can work out."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from railweave.fabric.devices import Efficiency, GpuModel, catalogue_names, gpu_model
from railweave.fabric.errors import InputError
from railweave.workloads.compute import StepLoad, arithmetic_formats, roofline_ps, stage_cost
from railweave.workloads.compute_fit import PublishedRates, decode_rate, fit_gpu, prefill_rate
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.shapes import kv_bytes, load_shape, weight_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
QWEN = load_shape("qwen2.5-7b")
PUBLISHED = PublishedRates(2150, 789.0, 256, 29.6)


@pytest.fixture
def compute(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("compute")
    sys.modules.pop("compute", None)


def test_kernels_of_two_gpus_within_a_fifth(compute: Any) -> None:
    judged = [row for row in compute.measured() if row.judged]
    assert {row.gpu for row in judged} == {"rtx-4090", "rtx-pro-6000"}
    assert {row.kernel for row in judged} == {*compute.MATRICES, "attention"}
    assert {row.tokens for row in judged} == {1, 64, 2048}
    for row in judged:
        assert abs(row.error) <= 0.2, row


def test_the_document_has_the_table_that_the_command_prints(compute: Any) -> None:
    text = (ROOT / "docs" / "compute.md").read_text("utf-8")
    assert compute.table(compute.measured()) in text


@pytest.mark.parametrize(
    ("gpu", "memory", "arithmetic", "attention"),
    [
        # GB/s of matrices at one token, TFLOP/s at 2,048, GB/s of decode attention
        ("rtx-4090", (880, 950), (163, 166), None),
        ("rtx-pro-6000", (1307, 1473), (340, 417), 1213),
    ],
)
def test_published_ranges_within_a_fifth(
    gpu: str,
    memory: tuple[int, int],
    arithmetic: tuple[int, int],
    attention: int | None,
) -> None:
    model = gpu_model(gpu)
    bandwidth = 10**12 / roofline_ps(flops=0, moved_bytes=10**9, gpu=model)
    flops = 10**12 / roofline_ps(flops=10**12, moved_bytes=0, gpu=model)
    for found, bounds in ((bandwidth, memory), (flops, arithmetic)):
        assert all(0.8 <= found / bound <= 1.2 for bound in bounds)
    if attention is not None:
        assert 0.8 <= bandwidth / attention <= 1.2


def ideal(bandwidth: int, *, flops: int = 10**18) -> GpuModel:
    return GpuModel(
        name="ideal",
        title="ideal",
        memory_bytes=10**12,
        memory_bandwidth_Bps=bandwidth,
        flops={"bf16": flops, "fp16": flops},
        efficiency=Efficiency(compute=1.0, memory=1.0),
        figures={},
    )


def test_reading_140_gb_takes_seventy_milliseconds() -> None:
    # 70 B parameters in 2 bytes over 2,000 GB/s: 14.3 tokens/s; in half a byte 57.1
    gpu = ideal(2 * 10**12)
    assert roofline_ps(flops=0, moved_bytes=140 * 10**9, gpu=gpu) == 70 * 10**9
    assert 10**12 / roofline_ps(flops=0, moved_bytes=35 * 10**9, gpu=gpu) == pytest.approx(
        57.14, 1e-3
    )
    # no 80 GB GPU holds it, and the exact model is a little larger
    shape = load_shape("llama-3.1-70b")
    exact = roofline_ps(flops=0, moved_bytes=weight_bytes(shape), gpu=gpu)
    assert 10**12 / exact == pytest.approx(14.17, abs=5e-3)


def test_a_device_fitted_to_published_rates_keeps_them() -> None:
    gpu = fit_gpu(QWEN, PUBLISHED, memory_bytes=24 * 10**9)
    assert prefill_rate(QWEN, gpu, 2150) == pytest.approx(789.0, rel=1e-6)
    assert decode_rate(QWEN, gpu, 2150, 256) == pytest.approx(29.6, rel=1e-6)
    # a prompt of 2,150 tokens takes 2.725 s, 256 tokens 8.649 s
    assert 2150 / prefill_rate(QWEN, gpu, 2150) == pytest.approx(2.725, abs=5e-4)
    assert 256 / decode_rate(QWEN, gpu, 2150, 256) == pytest.approx(8.649, abs=5e-4)
    assert kv_bytes(QWEN, 2150) == 123_289_600
    # counting every parameter for every token, which overstates both, gives these:
    assert gpu.memory_bandwidth_Bps < weight_bytes(QWEN) * 29.6 == pytest.approx(450.8e9, rel=1e-4)
    assert gpu.flops["bf16"] < weight_bytes(QWEN) * 789.0 == pytest.approx(12.0e12, rel=2e-3)


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        (PublishedRates(2150, 789.0, 256, 10**6), "faster than the fixed time"),
        (PublishedRates(2150, 10.0, 256, 29.6), "bound by arithmetic"),
    ],
)
def test_rates_that_no_device_gives(rates: PublishedRates, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fit_gpu(QWEN, rates, memory_bytes=24 * 10**9)


@pytest.mark.parametrize("name", catalogue_names("gpus"))
def test_every_gpu_computes_every_format(name: str) -> None:
    gpu, plan = gpu_model(name), ParallelismPlan()
    for model in ("qwen2.5-7b", "deepseek-v3", "gpt-oss-20b", "nemotron-3-nano-30b-a3b"):
        for dtype in (None, "fp8", "nvfp4", "int4"):
            shape = load_shape(model)
            cost = stage_cost(shape, plan, gpu, StepLoad.decode([100]), dtype=dtype)
            assert cost.total_ps > 0
    # what a GPU has no arithmetic for is converted back
    narrow, wide = arithmetic_formats(QWEN, gpu, dtype="nvfp4")
    assert narrow == ("fp4" if "fp4" in gpu.flops else wide)
    assert wide == ("bf16" if "bf16" in gpu.flops else "fp16")


def test_a_kept_block_is_multiplied_in_the_wide_format() -> None:
    from dataclasses import replace

    shape = load_shape("llama-3.1-70b")
    kept = replace(shape, layers=tuple(replace(x, plain=("attention",)) for x in shape.layers))
    load, gpu, plan = StepLoad.prefill(8192), gpu_model("h100"), ParallelismPlan(tp=8)
    whole, part = (stage_cost(s, plan, gpu, load, dtype="fp8").layers[0] for s in (shape, kept))
    assert part.feed_forward_ps == whole.feed_forward_ps
    assert 1.9 < part.attention_ps / whole.attention_ps < 2.1
