# SPDX-License-Identifier: Apache-2.0
"""A tolerance makes small errors, never more than links can carry, and says so."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import railweave
from railweave.fabric.errors import InputError
from railweave.fabric.flow import Flow

FLOWS = 400


@cache
def bed() -> tuple[Any, Any, Any]:
    fabric = railweave.build_topology(railweave.load_topology("h100-rail-8"))
    return fabric, railweave.Routing(fabric), railweave.NetworkSettings(ack_every=0)


def engine(tolerance: float) -> Any:
    env = railweave.FabricEnvironment()
    return railweave.make_engine("fluid", env, *bed(), tolerance=tolerance)


@cache
def ends(tolerance: float) -> tuple[np.ndarray, int]:
    rng = np.random.default_rng(3)
    gpus = bed()[0].gpus
    src = rng.integers(0, 64, FLOWS)
    dst = (src + rng.integers(1, 64, FLOWS)) % 64
    flows = [
        Flow(id=str(i), src=int(gpus[a]), dst=int(gpus[b]), size_bytes=int(size))
        for i, (a, b, size) in enumerate(
            zip(src, dst, rng.integers(10_000, 3_000_000, FLOWS), strict=True)
        )
    ]
    starts = np.sort(rng.integers(0, 300_000_000, FLOWS)).tolist()
    running = engine(tolerance)
    running.env.run(until=running.send_all(flows, start_ps=starts))
    return np.array([record.end_ps - record.start_ps for record in running.records()]), sum(
        running.state.solves
    )


def test_no_tolerance_is_the_default():
    exact = railweave.make_engine("fluid", railweave.FabricEnvironment(), *bed())
    assert exact.tolerance == 0.0
    assert exact.cautions() == []


@pytest.mark.parametrize(("tolerance", "mean"), [(0.001, 0.001), (0.01, 0.005), (0.05, 0.025)])
def test_errors_are_of_the_order_of_the_tolerance(tolerance, mean):
    error = np.abs(ends(tolerance)[0] / ends(0.0)[0] - 1)
    assert 0 < error.mean() < mean


def test_a_tolerance_saves_work():
    assert ends(0.05)[1] < ends(0.0)[1]


def test_links_carry_no_more_than_they_can():
    """Sixteen flows through one cable: their bytes take no less than the cable needs."""
    fabric = bed()[0]
    gpus = [int(gpu) for gpu in fabric.gpus]
    running = engine(0.1)
    flows = [
        Flow(id=str(i), src=gpus[8 * (1 + i % 7)], dst=gpus[0], size_bytes=10**6 + 10**4 * i)
        for i in range(16)
    ]
    running.env.run(until=running.send_all(flows, start_ps=[0] * 16))
    wire = running.counters().wire_bytes[fabric.link_network].max()
    assert running.env.now * 400e9 / 8e12 > wire * 0.9


def test_a_run_with_a_tolerance_says_so():
    assert any("tolerance of 0.05" in line for line in engine(0.05).cautions())


@pytest.mark.parametrize("tolerance", [-0.1, 0.3, float("nan")])
def test_impossible_tolerances(tolerance):
    with pytest.raises(InputError, match="tolerance"):
        engine(tolerance)


def scenario(engine: str, tolerance: object) -> dict[str, Any]:
    return {
        "schema": 1,
        "engine": engine,
        "fluid": {"tolerance": tolerance},
        "topology": "h100-rail-8",
        "workload": {
            "kind": "flows",
            "flows": [{"src": "h0/gpu0", "dst": "h1/gpu0", "size": "1MiB"}],
        },
    }


def test_scenario_with_a_tolerance():
    result = railweave.run_scenario(railweave.load_scenario(scenario("fluid", 0.01)))
    assert any("tolerance" in line for line in result.warnings)


@pytest.mark.parametrize(
    ("engine", "tolerance", "message"),
    [
        ("analytic", 0.01, "no tolerance"),
        ("fluid", 0.5, "0.2"),
        ("fluid", "1%", "fluid.tolerance"),
        ("fluid", -1, "fluid.tolerance"),
    ],
)
def test_scenario_with_an_impossible_tolerance(engine, tolerance, message):
    with pytest.raises(InputError, match=message):
        railweave.run_scenario(railweave.load_scenario(scenario(engine, tolerance)))
