# SPDX-License-Identifier: Apache-2.0
"""A replica that takes one request at a time is a textbook queue, and behaves like one."""

from __future__ import annotations

from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import pytest

from railweave.fabric.devices import gpu_model
from railweave.runner import run_scenario
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.shapes import load_shape
from railweave.workloads.sizing.times import ReplicaTimes

if TYPE_CHECKING:
    from railweave.result import Result

PROMPT = 1000
TIMES = ReplicaTimes(load_shape("llama-3.1-8b"), ParallelismPlan(), gpu_model("H100"))
SERVICE_PS = TIMES.prefill_ps(PROMPT)


def serve(arrivals: dict[str, Any], **keys: Any) -> Result:
    workload = {
        "kind": "serving", "model": "llama-3.1-8b", "colocated": {}, "arrivals": arrivals,
        "max_num_batched_tokens": PROMPT, **keys,
    }  # fmt: skip
    scenario = {
        "schema": 1, "seed": 3, "engine": "analytic", "topology": "h100-rail-8",
        "workload": workload,
    }  # fmt: skip
    return run_scenario(scenario).raise_for_status()


def waits(result: Result) -> list[int]:
    return [row["prefill_start_ps"] - row["arrival_ps"] for row in result.requests]


def single_server(arrivals: list[int], services: list[int]) -> list[int]:
    """Return when each request begins at a server that takes them in turn, one at a time."""
    free, begins = 0, []
    for arrival, service in zip(arrivals, services, strict=True):
        begin = max(free, arrival)
        begins.append(begin)
        free = begin + service
    return begins


def interval(values: list[float], batches: int = 20) -> tuple[float, float]:
    """Return the mean and the half-width of its 99 % confidence interval, by batch means.

    2.861 is Student's t for 19 degrees of freedom.
    """
    size = len(values) // batches
    means = [mean(values[i * size : (i + 1) * size]) for i in range(batches)]
    return mean(means), 2.861 * stdev(means) / batches**0.5


@pytest.mark.parametrize("load", [0.4, 0.7])
def test_constant_service_is_the_m_d_1_queue(load: float) -> None:
    rate = load / SERVICE_PS * 1e12
    result = serve(
        {"kind": "poisson", "rate_per_s": rate, "count": 8000, "prompt": PROMPT, "output": 1}
    )
    rows = result.requests
    assert {row["end_ps"] - row["prefill_start_ps"] for row in rows} == {SERVICE_PS}
    # to the picosecond what the same arrivals make of any such server ...
    arrivals = [row["arrival_ps"] for row in rows]
    assert [row["prefill_start_ps"] for row in rows] == single_server(arrivals, [SERVICE_PS] * 8000)
    # ... and in the mean what Pollaczek and Khinchine say of Poisson arrivals
    found, half = interval([wait / SERVICE_PS for wait in waits(result)])
    theory = load / (2 * (1 - load))
    assert abs(found - theory) < half < 0.2 * theory
    # the server is busy for as long as work arrives
    span = rows[-1]["end_ps"]
    assert result.serving["colocated"]["utilisation"] == pytest.approx(
        8000 * SERVICE_PS / span, abs=1e-5
    )
    assert 8000 * SERVICE_PS / span == pytest.approx(load, rel=0.03)


def test_little_s_law_holds_for_the_queue() -> None:
    rate = 0.7 / SERVICE_PS * 1e12
    result = serve(
        {"kind": "poisson", "rate_per_s": rate, "count": 4000, "prompt": PROMPT, "output": 1}
    )
    rows = result.requests
    events = sorted(
        [(row["arrival_ps"], 1) for row in rows] + [(row["prefill_start_ps"], -1) for row in rows]
    )
    area = queued = last = 0
    for at, change in events:
        area, queued, last = area + queued * (at - last), queued + change, at
    assert queued == 0
    assert area == sum(waits(result))  # length of the queue over time = all waits together


@pytest.mark.parametrize(
    "arrivals", [{"kind": "gamma", "cv": 3.0}, {"kind": "poisson"}], ids=["gamma", "poisson"]
)
def test_variable_service_is_the_g_g_1_queue(arrivals: dict[str, Any]) -> None:
    result = serve(
        {
            **arrivals, "rate_per_s": 5.0, "count": 1500,
            "prompt": {"least": 200, "most": 1000}, "output": {"least": 1, "most": 30},
        },
        max_num_seqs=1,
    )  # fmt: skip
    rows = result.requests
    steps: dict[int, int] = {}

    def service(prompt: int, output: int) -> int:
        # the prefill yields the first token; each further one attends to all before it
        for cached in range(prompt, prompt + output - 1):
            if cached not in steps:
                steps[cached] = TIMES.decode_ps(1, cached)
        return TIMES.prefill_ps(prompt) + sum(
            steps[cached] for cached in range(prompt, prompt + output - 1)
        )

    services = [service(row["prompt_tokens"], row["output_tokens"]) for row in rows]
    begins = single_server([row["arrival_ps"] for row in rows], services)
    assert [row["prefill_start_ps"] for row in rows] == begins
    ends = [begin + took for begin, took in zip(begins, services, strict=True)]
    assert [row["end_ps"] for row in rows] == ends
    assert max(waits(result)) > 0


def test_bursts_wait_longer_than_poisson_arrivals_and_these_longer_than_a_beat() -> None:
    rate = 0.6 / SERVICE_PS * 1e12
    common = {"rate_per_s": rate, "count": 3000, "prompt": PROMPT, "output": 1}
    found = [
        mean(waits(serve({"kind": "gamma", "cv": cv, **common}))) / SERVICE_PS
        for cv in (0.1, 1.0, 3.0)
    ]
    assert found[0] < 0.1 < found[1] < found[2]
    # gamma gaps with cv 1 are exponential: M/D/1 again
    assert found[1] == pytest.approx(0.6 / (2 * 0.4), rel=0.15)
