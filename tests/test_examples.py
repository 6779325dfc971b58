# SPDX-License-Identifier: Apache-2.0
"""Every script under examples/ runs and says something."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import railweave

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("script", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_an_example_runs(script: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / script)],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    expected = (EXAMPLES / script).with_suffix(".out")
    assert done.stdout == expected.read_text("utf-8")


@pytest.mark.parametrize("scenario", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_an_example_scenario_completes(scenario: str) -> None:
    result = railweave.run_scenario(EXAMPLES / scenario)
    assert result.status == "completed"
    assert result.sim_time_ps >= result.bound_ps > 0
