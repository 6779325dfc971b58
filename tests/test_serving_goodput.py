# SPDX-License-Identifier: Apache-2.0
"""The sweep that finds the highest rate at which requests meet their limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from railweave.fabric.errors import InputError
from railweave.tools.cli import run_command_line
from railweave.tools.serving_goodput import find_goodput

if TYPE_CHECKING:
    from pathlib import Path

ARRIVALS = "arrivals: {kind: poisson, rate_per_s: 20, count: 120, prompt: 1000, output: 8}"


def scenario(tmp_path: Path, keys: str) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(
        "schema: 1\ntopology: h100-rail-8\n"
        f"workload: {{kind: serving, model: llama-3.1-8b, {keys}}}\n"
    )
    return path


def test_the_rate_found_meets_the_slo_and_the_next_does_not(tmp_path: Path) -> None:
    path = scenario(tmp_path, f"{ARRIVALS}, slo: {{ttft: 150ms, tpot: 50ms}}")
    found = find_goodput(path, tolerance=0.1)
    assert found.best is not None
    assert found.bracketed
    at = found.loads.index(found.best)
    missed = found.loads[at + 1]
    assert found.best.share >= 0.9 > missed.share
    assert missed.rate_scale / found.best.rate_scale <= 1.1
    # At the peak rate of an H100 a prompt takes 15 ms: no replica can prefill 66 each second.
    assert 20 < found.best.rate_per_s < 66
    assert find_goodput(path, tolerance=0.1) == found


def test_a_limit_that_nothing_meets_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = scenario(tmp_path, f"{ARRIVALS}, slo: {{ttft: 1us}}")
    assert run_command_line(["goodput", str(path)]) == 1
    assert "no rate was found at which 90 % of requests meet the SLO" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (ARRIVALS, "workload.slo: there is no limit to meet"),
        (
            "arrivals: {kind: closed-loop, users: 2, count: 4, prompt: 9, output: 1}, "
            "slo: {ttft: 1s}",
            "users who wait for answers have no rate of their own",
        ),
    ],
)
def test_what_has_no_goodput_is_refused(tmp_path: Path, keys: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        find_goodput(scenario(tmp_path, keys))
    assert expected in str(caught.value)
