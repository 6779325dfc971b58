# SPDX-License-Identifier: Apache-2.0
"""``railweave plan``: what it ranks, what it drops, and scenarios that give the same figures."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003 - pytest reads it
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from railweave.fabric.errors import InputError
from railweave.runner import run_scenario
from railweave.tools.commands.plan import plan

app = typer.Typer()
app.command()(plan)
SMALL = ("llama-3.1-8b", "--topology", "h100-rail-8", "--gpus", "8")


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout


def run_json(*arguments: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json", code=code))
    return found


@pytest.mark.parametrize("phase", ["decode", "train"])
def test_rows_are_ranked_and_run_alike_by_themselves(phase: str) -> None:
    found = run_json(*SMALL, "--phase", phase, "--top", "3", "--tokens", "512")
    rows = found["rows"]
    assert [row["row"] for row in rows] == [1, 2, 3]
    times = [row["step_ps"] for row in rows]
    assert times == sorted(times)
    for row in rows:
        assert row["at_least_ps"] <= row["step_ps"]
        (step,) = run_scenario(row["scenario"]).raise_for_status().steps
        for key in ("step_ps", "bound_ps", "exposed_ps", "limit", "wire_bytes"):
            assert step[key] == row[key]
    # what was not emulated cannot be among the rows
    assert all(one["at_least_ps"] >= times[-1] for one in found["behind"])


def test_every_plan_is_shown_dropped_or_behind() -> None:
    found = run_json(*SMALL, "--batch", "8", "--top", "100")
    degrees = {tuple(row["plan"][k] for k in ("tp", "pp", "dp")) for row in found["rows"]}
    assert len(degrees) == len(found["rows"]) == 10  # 2^3 as a product of three
    assert found["behind"] == []


def test_what_is_dropped_says_why() -> None:
    found = run_json(*SMALL, "--phase", "train", "--batch", "4", "--tokens", "512")
    reasons = {one["reason"].split(":")[0] for one in found["dropped"]}
    assert reasons == {"dp"}
    one = next(d for d in found["dropped"] if d["dp"] == 8)
    assert one["reason"] == "dp: 8 replicas do not divide 4 sequences"


def test_nothing_fits_is_a_check_that_failed() -> None:
    large = ("llama-3.1-70b", "--topology", "h100-rail-8", "--gpus", "1")
    text = run(*large, code=1)
    assert "No plan fits." in text
    assert "1 do not fit in memory" in text
    over = run_json(*large, "--over-memory")
    assert [row["fits"] for row in over["rows"]] == [False]


def test_a_row_becomes_a_scenario(tmp_path: Path) -> None:
    target = tmp_path / "second.yaml"
    arguments = (*SMALL, "--top", "2", "--tokens", "512")
    found = run_json(*arguments, "--write", "2", "-o", str(target))
    (step,) = run_scenario(target).raise_for_status().steps
    assert step["step_ps"] == found["rows"][1]["step_ps"]
    with pytest.raises(InputError, match="exists already"):
        run(*arguments, "--write", "2", "-o", str(target))
    with pytest.raises(InputError, match="--write: the table has 2 rows, not 9"):
        run(*arguments, "--write", "9", "-o", str(tmp_path / "no.yaml"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--phase", "trains"), "--phase: there is no 'trains'.*did you mean 'train'"),
        (("--dtype", "fp7"), "dtype: 'fp7' is not a known number format.*did you mean 'fp8'"),
        (("--dtype", "fp7", "--phase", "train"), "dtype: 'fp7' is not .*did you mean 'fp8'"),
        (("--batch", "1" + "0" * 20), "batch: 100,000,.* expected 1 to 262,144 requests"),
        (("--batch", "1000000000", "--phase", "train"), "batch: .* expected 1 to 8,388,608 sequ"),
        (("--tokens", "1" + "0" * 20), "tokens: .* expected 1 to 16,777,216 tokens"),
        (("--write", "1"), "--write: both or neither"),
        (("--gpus", "65"), "--gpus: h100-rail-8 has 64 GPUs, not 65"),
    ],
)
def test_bad_arguments(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run("llama-3.1-8b", "--topology", "h100-rail-8", *arguments)
