# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of plans and of large steps run, at small sizes."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.syspath_prepend(str(FOLDER))
    names = ("plan_rows", "training")
    yield {name: importlib.import_module(name) for name in names}
    for name in names:
        sys.modules.pop(name, None)


def test_rows_of_a_mixture_of_experts_run_alike_by_themselves(
    modules: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("--topology", "h100-rail-8", "--gpus", "4", "--top", "2", "--tokens", "64")
    assert modules["plan_rows"].main(models=("mixtral-8x7b",), options=small) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert lines[3].startswith("mixtral-8x7b train: 2 rows in")
    assert lines[3].endswith("none fits in memory")
    assert [line.endswith("same figures") for line in lines] == [False, True, True] * 2


def test_a_row_that_differs_is_told(modules: dict[str, Any]) -> None:
    plan_rows = modules["plan_rows"]
    small = ("--topology", "h100-rail-8", "--gpus", "2", "--top", "1", "--tokens", "64")
    (row,) = plan_rows.ranked("llama-3.1-8b", "decode", *small)["rows"]
    assert plan_rows.again(row)[0] == []
    assert plan_rows.again({**row, "step_ps": row["step_ps"] + 1})[0] == ["step_ps"]


def test_the_large_step_is_the_one_of_the_table_and_shrinks(modules: dict[str, Any]) -> None:
    training = modules["training"]
    large = yaml.safe_load(training.LARGE.read_text("utf-8"))
    assert training._ranks(large) == 16_384 == 8 * large["topology"]["hosts"]["count"]
    step = training.step_of(training.shrunk(large, 1, micro_batches=1))
    assert step["ranks"] == 128
    # hidden states and their gradients, 15 boundaries each way
    assert step["wire_bytes"]["by_axis"]["pp"] == 2 * 15 * 8192 * 16384 * 2
