# SPDX-License-Identifier: Apache-2.0
"""How long a training step of 16,384 GPUs takes to emulate, and what lockstep adds to its time.

``python benchmarks/training.py`` prints a table. Every row is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from measure import HEADER, cpu_of, cpu_of_command, machine, reference, row

from railweave.runner import run_scenario

__all__ = ["LARGE", "main", "shrunk", "step_of"]

LARGE = Path(__file__).resolve().parent.parent / "examples" / "large" / "llama-405b-16k.yaml"
LIMIT_S = 60.0


def step_of(scenario: Any) -> dict[str, Any]:
    """Run a scenario and return its first step, with its warnings."""
    result = run_scenario(scenario).raise_for_status()
    return {**result.steps[0], "warnings": list(result.warnings)}


def shrunk(scenario: dict[str, Any], dp: int, **workload: Any) -> dict[str, Any]:
    """Return the same job with fewer replicas, on a fabric for as many."""
    own = {**scenario["workload"], "dp": dp, "check_memory": False, **workload}
    topology = dict(scenario["topology"])
    ranks = own["tp"] * own["pp"] * dp
    topology["hosts"] = {**topology["hosts"], "count": ranks // 8}
    return {**scenario, "topology": topology, "workload": own}


def main(*, repeats: int = 3, dp: int = 8, limit: float = LIMIT_S) -> None:
    """Print the table.

    Parameters
    ----------
    repeats
        Runs of each row.
    dp
        Replicas of the smaller job, whose replicas run in lockstep and each by itself.
    limit
        CPU seconds that the large step may take.
    """
    import yaml

    large = yaml.safe_load(LARGE.read_text("utf-8"))
    print(machine())
    print(HEADER)
    print(row("reference: a loop of a million additions in Python", cpu_of(reference)))
    for policy in ("ecmp", "rail"):
        scenario = {**large, "routing": {"policy": policy}}
        cpu = cpu_of_command(_command(scenario), repeats=repeats)
        print(row(f"{_ranks(large):,} GPUs, routing {policy}", cpu, limit=limit))
    times = {}
    for how in ("lockstep", "each"):
        scenario = shrunk(large, dp, replicas=how)
        cpu = cpu_of_command(_command(scenario), repeats=repeats)
        times[how] = step_of(scenario)["step_ps"]
        what = f"{_ranks(scenario['workload']):,} GPUs, routing ecmp, replicas: {how}"
        print(row(what, cpu) + f"  step {times[how] / 1e12:.4f} s")
    longer = times["lockstep"] / times["each"] - 1
    print(
        f"lockstep makes the step of {dp} replicas {100 * longer:.2f} % longer than each by itself"
    )


def _ranks(scenario: dict[str, Any]) -> int:
    own = scenario.get("workload", scenario)
    return int(own["tp"] * own["pp"] * own["dp"])


def _command(scenario: dict[str, Any]) -> list[str]:
    return [sys.executable, __file__, "--measure", json.dumps(scenario)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="CPU seconds of large training steps")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each row")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(step_of(json.loads(given.measure)), default=int))
    else:
        main(repeats=given.repeats)
