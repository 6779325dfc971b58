# SPDX-License-Identifier: Apache-2.0
"""Every row of ``railweave plan``, run again by itself: the same figures, and its CPU time.

``python benchmarks/plan_rows.py`` ranks three models on 64 H100 in decode and in training, runs
each row of each table alone, and ends with 1 if a figure differs or a run takes over 60 CPU
seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import time
from typing import Any

from railweave.runner import run_scenario
from railweave.tools.cli import app

__all__ = ["FIGURES", "MODELS", "again", "main", "ranked"]

MODELS = ("llama-3.1-70b", "mixtral-8x7b", "deepseek-v3")
PHASES = ("decode", "train")
FIGURES = (
    "step_ps", "bound_ps", "compute_ps", "exposed_ps", "overlapped_ps", "bubble_ps",
    "communication_ps", "limit", "wire_bytes", "replicas", "tokens", "plan",
)  # fmt: skip
LIMIT_S = 60.0


def ranked(model: str, phase: str, *options: str) -> dict[str, Any]:
    """Return what ``railweave plan --json`` says; with no plan that fits, of those that do not."""
    asked = ["plan", model, "--phase", phase, "--json", *options]
    found = _plan(asked)
    return found if found["rows"] else _plan([*asked, "--over-memory"])


def _plan(arguments: list[str]) -> dict[str, Any]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        app(arguments, standalone_mode=False)
    answer: dict[str, Any] = json.loads(said.getvalue())
    return answer


def again(row: dict[str, Any]) -> tuple[list[str], float]:
    """Run a row by itself; return the names of figures that differ, and the CPU seconds."""
    started = time.process_time()
    (step,) = run_scenario(row["scenario"]).raise_for_status().steps
    took = time.process_time() - started
    return [name for name in FIGURES if step[name] != row[name]], took


def main(
    *,
    models: tuple[str, ...] = MODELS,
    phases: tuple[str, ...] = PHASES,
    options: tuple[str, ...] = ("--topology", "h100-rail-8"),
    limit: float = LIMIT_S,
) -> int:
    """Print a line for each row, and one for each table; return how much is wrong.

    Parameters
    ----------
    models, phases
        Tables to make.
    options
        Further options of ``railweave plan``.
    limit
        CPU seconds that a table, and a row by itself, may take.
    """
    wrong = 0
    for model in models:
        for phase in phases:
            started = time.process_time()
            table = ranked(model, phase, *options)
            whole = time.process_time() - started
            wrong += whole > limit
            fit = "" if all(row["fits"] for row in table["rows"]) else ", none fits in memory"
            print(f"{model} {phase}: {len(table['rows'])} rows in {whole:.1f} s{fit}")
            for row in table["rows"]:
                differ, took = again(row)
                wrong += bool(differ) + (took > limit)
                degrees = " ".join(f"{name} {n}" for name, n in row["plan"].items())
                said = f"differs in {', '.join(differ)}" if differ else "same figures"
                print(f"  {degrees:<34} {row['step_ps'] / 1e9:12.3f} ms {took:7.2f} s  {said}")
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="rows of plan, each run again by itself")
    parser.add_argument("--model", action="append", choices=MODELS, help="only this one")
    parser.add_argument("--phase", action="append", choices=PHASES, help="only this one")
    given = parser.parse_args()
    raise SystemExit(
        main(models=tuple(given.model or MODELS), phases=tuple(given.phase or PHASES)) > 0
    )
