# SPDX-License-Identifier: Apache-2.0
"""Many decode iterations at once take what each of them takes, in every kind of model."""

from __future__ import annotations

import pytest

from railweave.fabric.devices import gpu_model
from railweave.workloads.compute import StageTimer
from railweave.workloads.compute_runs import decode_times, later
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.shapes import load_shape
from railweave.workloads.step_load import StepLoad


@pytest.mark.parametrize(
    "model",
    ["llama-3.1-70b", "gpt-oss-20b", "deepseek-v3", "mixtral-8x7b", "nemotron-3-nano-30b-a3b"],
)
def test_iterations_at_once_take_what_each_takes(model: str) -> None:
    timer = StageTimer(load_shape(model), ParallelismPlan(2), gpu_model("h100"))
    load = StepLoad.decode([100, 121, 4000])  # windows of 128 fill on the way
    times = decode_times(timer, load, 40)
    for number in (0, 1, 6, 7, 8, 27, 28, 39):
        blocks, head_ps = timer.times(later(load, number))
        assert times[number] == sum(blocks[kind].total_ps for kind in timer.order) + head_ps
