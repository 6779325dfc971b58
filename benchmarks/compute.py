# SPDX-License-Identifier: Apache-2.0
"""The roofline beside measured kernels of two GPUs.

``python benchmarks/compute.py`` prints the table of ``docs/compute.md`` and fails if a judged row
is more than 20 % off. ``compute_measured.csv`` holds rows of the profile tables of
casys-kaist/LLMServingSim, ``profiler/perf/{RTX4090,RTXPRO6000}``: Llama-3.1-8B in bf16, ``tp1``
(``dense.csv`` 856225a and 72c16ba, ``attention.csv`` a09fa56 and 0d3de68), and the experts of
Qwen3-30B-A3B (``moe.csv`` 0d3de68). Attention is decode: so many sequences of one new token each.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from pathlib import Path

from railweave.fabric.devices import gpu_model
from railweave.workloads.compute import roofline_ps
from railweave.workloads.compute_blocks import RankBlocks
from railweave.workloads.shapes import load_shape
from railweave.workloads.shapes_weights import attention_weights, feed_forward_weights
from railweave.workloads.step_load import StepLoad

__all__ = ["TOLERANCE", "Row", "main", "measured", "table"]

TOLERANCE = 0.2
MATRICES = {
    "qkv_proj": ("q", "kv"),
    "o_proj": ("o",),
    "gate_up_proj": ("mlp_gate_up",),
    "down_proj": ("mlp_down",),
}


@dataclass(frozen=True)
class Row:
    """One measured kernel and what the model says of it.

    Parameters
    ----------
    gpu, kernel, tokens, context, experts
        What was measured: new tokens, cached tokens of each, distinct experts that were visited.
    judged
        Whether the row is held to the tolerance.
    measured_us, model_us
        Times in microseconds.
    flops, moved_bytes
        What the kernel does.
    """

    gpu: str
    kernel: str
    tokens: int
    context: int
    experts: int
    judged: bool
    measured_us: float
    model_us: float
    flops: int
    moved_bytes: int

    @property
    def error(self) -> float:
        """Time of the model over the measured one, less one."""
        return self.model_us / self.measured_us - 1

    @property
    def rate(self) -> str:
        """The measured rate: arithmetic where that bounds the model, else memory."""
        if self.tokens >= 1024:
            return f"{self.flops / self.measured_us / 1e6:,.0f} TFLOP/s"
        return f"{self.moved_bytes / self.measured_us / 1e3:,.0f} GB/s"


def measured() -> list[Row]:
    """Read the measured rows and put the model beside each."""
    with Path(__file__).with_name("compute_measured.csv").open(newline="") as stream:
        return [_row(entry) for entry in csv.DictReader(stream)]


def _row(entry: dict[str, str]) -> Row:
    tokens, kernel = int(entry["tokens"]), entry["kernel"]
    context, experts = int(entry["context"] or 0), int(entry["experts"] or 0)
    flops, moved = _work(kernel, tokens, context=context, experts=experts)
    gpu = gpu_model(entry["gpu"])
    return Row(
        gpu=entry["gpu"],
        kernel=kernel,
        tokens=tokens,
        context=context,
        experts=experts,
        judged=entry["judged"] == "yes",
        measured_us=float(entry["time_us"]),
        model_us=roofline_ps(flops=flops, moved_bytes=moved, gpu=gpu) / 1e6,
        flops=flops,
        moved_bytes=moved,
    )


def _work(kernel: str, tokens: int, *, context: int, experts: int) -> tuple[int, int]:
    """Return the operations and bytes of a kernel, by the same functions as the model's."""
    if kernel == "experts":
        shape = load_shape("qwen3-30b-a3b")
        block = shape.layers[0].feed_forward
        parts = feed_forward_weights(block, shape.hidden_size)
        one = sum(w.parameters for w in parts if w.name.startswith("experts")) // block.experts
        return 2 * one * tokens * block.top_k, 2 * one * experts
    shape = load_shape("llama-3.1-8b")
    layer, hidden = shape.layers[0], shape.hidden_size
    parts = [
        *attention_weights(layer.attention, hidden),
        *feed_forward_weights(layer.feed_forward, hidden),
    ]
    if kernel == "attention":
        blocks = RankBlocks(layer, hidden=hidden, tp=1, fmt="bf16", plain=2, kv_element=2)
        whole = blocks.mixing(StepLoad.decode([context] * tokens))
        without = blocks.mixing(StepLoad(((0, 0),)))
        matrices = sum(w.parameters for w in parts if w.name in ("q", "kv", "o"))
        flops = whole.flops - 2 * matrices * tokens
        return flops, whole.moved_bytes - without.moved_bytes
    weights = sum(w.parameters for w in parts if w.name in MATRICES[kernel])
    return 2 * weights * tokens, 2 * weights


def table(rows: list[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| GPU | kernel | measured | | model | off |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        what = f"{row.kernel}, {row.tokens:,} token" + "s" * (row.tokens > 1)
        if row.kernel == "attention":
            what = f"decode attention, {row.tokens} x {row.context:,} tokens"
        elif row.experts:
            what = f"{row.experts} experts, {row.tokens:,} token" + "s" * (row.tokens > 1)
        off = f"{row.error:+.1%}" if row.judged else f"({row.error:+.1%})"
        lines.append(
            f"| {row.gpu} | {what} | {row.measured_us:,.1f} us | {row.rate} "
            f"| {row.model_us:,.1f} us | {off} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Print the table; return 1 if a judged row is off by more than the tolerance."""
    rows = measured()
    print(table(rows))
    worst = max((row for row in rows if row.judged), key=lambda row: abs(row.error))
    print(
        f"\nlargest of the judged rows: {worst.error:+.1%} ({worst.gpu}, {worst.kernel}); "
        f"allowed: {TOLERANCE:.0%}"
    )
    return int(abs(worst.error) > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
