# SPDX-License-Identifier: Apache-2.0
"""Rates of an unknown GPU from what one model does on it: tokens per second in and out.

The roofline has two unknowns, and a published pair of prefill and decode rates gives both: prefill
of a long prompt is bound by arithmetic, decode of one sequence by memory. The result stands for
the whole system that was measured, engine overheads and all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from railweave.fabric.devices import Efficiency, GpuModel
from railweave.fabric.errors import InputError
from railweave.fabric.units import PS_PER_S
from railweave.workloads.compute import StageTimer
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.step_load import StepLoad

if TYPE_CHECKING:
    from collections.abc import Callable

    from railweave.workloads.shapes_model import ModelShape

__all__ = ["PublishedRates", "decode_rate", "fit_gpu", "prefill_rate"]

_FASTEST: Final = 10**18


@dataclass(frozen=True)
class PublishedRates:
    """What somebody measured of one request on one GPU.

    Parameters
    ----------
    prompt_tokens, prefill_rate
        Tokens of the prompt, and tokens per second of its prefill.
    output_tokens, decode_rate
        Tokens after the prompt, and tokens per second of their decode.
    """

    prompt_tokens: int
    prefill_rate: float
    output_tokens: int
    decode_rate: float


def prefill_rate(shape: ModelShape, gpu: GpuModel, tokens: int) -> float:
    """Return tokens per second of the prefill of one prompt on one GPU."""
    return tokens * PS_PER_S / _step_ps(shape, gpu, [StepLoad.prefill(tokens)])


def decode_rate(shape: ModelShape, gpu: GpuModel, prompt_tokens: int, output_tokens: int) -> float:
    """Return tokens per second of the decode of one sequence on one GPU."""
    loads = [StepLoad.decode([prompt_tokens + i]) for i in range(output_tokens)]
    return output_tokens * PS_PER_S / _step_ps(shape, gpu, loads)


def _step_ps(shape: ModelShape, gpu: GpuModel, loads: list[StepLoad]) -> int:
    timer = StageTimer(shape, ParallelismPlan(), gpu)
    total = 0
    for load in loads:
        blocks, head_ps = timer.times(load)
        total += sum(blocks[kind].total_ps for kind in timer.order) + head_ps
    return total


def fit_gpu(
    shape: ModelShape, published: PublishedRates, *, memory_bytes: int, name: str = "fitted"
) -> GpuModel:
    """Return the GPU whose roofline gives the published rates.

    Parameters
    ----------
    shape
        The model that was measured.
    published
        What was measured.
    memory_bytes
        Memory of the GPU.
    name
        Name of the result.

    Raises
    ------
    InputError
        No GPU gives these rates: they are faster than the fixed time of each block allows, or
        decode is bound by arithmetic.

    Examples
    --------
    >>> from railweave.workloads.shapes import load_shape
    >>> rates = PublishedRates(2150, 789.0, 256, 29.6)
    >>> gpu = fit_gpu(load_shape("qwen2.5-7b"), rates, memory_bytes=24 * 10**9)
    >>> round(gpu.memory_bandwidth_Bps / 1e9), round(gpu.flops["fp16"] / 1e12, 1)
    (425, 10.6)
    """

    def gpu(flops: int, bandwidth: int) -> GpuModel:
        return GpuModel(
            name=name,
            title=f"fitted to {shape.name}",
            memory_bytes=memory_bytes,
            memory_bandwidth_Bps=bandwidth,
            flops=dict.fromkeys(("bf16", "fp16", shape.dtype), flops),
            efficiency=Efficiency(compute=1.0, memory=1.0),
            figures={},
        )

    def out(flops: int, bandwidth: int) -> float:
        made = gpu(flops, bandwidth)
        return decode_rate(shape, made, published.prompt_tokens, published.output_tokens)

    bandwidth = _least(lambda rate: out(_FASTEST, rate) >= published.decode_rate)
    flops = _least(
        lambda rate: (
            prefill_rate(shape, gpu(rate, bandwidth), published.prompt_tokens)
            >= published.prefill_rate
        )
    )
    if out(flops, bandwidth) < published.decode_rate * (1 - 1e-6):
        raise InputError(
            f"decode of {shape.name} would be bound by arithmetic",
            field="decode_rate",
            expected="a prefill rate that is higher beside it",
        )
    return gpu(flops, bandwidth)


def _least(enough: Callable[[int], bool]) -> int:
    """Return the least rate that is enough, to one part in 2**30."""
    low, high = 1, _FASTEST
    if not enough(high):
        raise InputError(
            "is faster than the fixed time of each block allows",
            field="rate",
            expected="fewer tokens per second",
        )
    while high - low > max(1, low >> 30):
        middle = (low * high) ** 0.5 if high > 2 * low else (low + high) / 2
        middle = min(max(int(middle), low + 1), high - 1)
        if enough(middle):
            high = middle
        else:
            low = middle
    return high
