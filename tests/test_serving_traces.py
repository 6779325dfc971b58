# SPDX-License-Identifier: Apache-2.0
"""Runs of odd traces: what is refused, what is left out or put in order, and what is said of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from railweave.fabric.errors import InputError
from railweave.runner import run_scenario

if TYPE_CHECKING:
    from pathlib import Path

    from railweave.result import Result


def row(at: int, prompt: int, output: int = 2, first: int = 0) -> str:
    ids = list(range(first, first + -(-prompt // 512)))
    return json.dumps(
        {"timestamp": at, "input_length": prompt, "output_length": output, "hash_ids": ids}
    )


def run(path: Path, *lines: str, **keys: Any) -> Result:
    path.write_text("\n".join(lines))
    workload = {
        "kind": "serving", "model": "llama-3.1-8b", "colocated": {}, "trace": str(path), **keys,
    }  # fmt: skip
    scenario = {"schema": 1, "engine": "analytic", "topology": "h100-rail-8", "workload": workload}
    return run_scenario(scenario).raise_for_status()


def test_rows_out_of_order_and_of_one_instant_are_warned_of(tmp_path: Path) -> None:
    result = run(tmp_path / "t.jsonl", row(5, 60), row(1, 70), row(1, 80))
    assert [r["prompt_tokens"] for r in result.requests] == [70, 80, 60]
    assert list(result.warnings)[-2:] == [
        "1 request earlier than the row before: sorted by time (line 2)",
        "1 request at the instant of the one before: kept in order (line 3)",
    ]


def test_a_request_beyond_the_window_is_rejected_by_its_row(tmp_path: Path) -> None:
    result = run(tmp_path / "t.jsonl", row(0, 60), row(1, 200_000, first=1))
    assert result.serving["requests"] == {"count": 2, "completed": 1, "rejected": 1}
    assert any("(row 2 of " in said and "has 200002 tokens, more than the 131072" in said
               for said in result.warnings)  # fmt: skip


def test_failed_requests_of_burstgpt_are_left_out_or_refused(tmp_path: Path) -> None:
    rows = [
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
        "5,GPT-4,10,5,15,API log",
        "6,GPT-4,10,0,10,API log",
    ]
    result = run(tmp_path / "b.csv", *rows)
    assert result.serving["requests"]["count"] == 1
    assert "1 request without output left out (line 3)" in result.warnings
    with pytest.raises(InputError, match=r"b\.csv:3: Response tokens: 0 tokens"):
        run(tmp_path / "b.csv", *rows, empty_output="refuse")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([row(0, 600).replace("600", "-600")], r"t\.csv:1: input_length: '-600' is not a number"),
        ([row(0, 60), row(0, 600).replace("[0, 1]", "[0]")], r"t\.csv:2: hash_ids: 1 ids do not"),
        (["TIMESTAMP,ContextTokens", "2023-11-16 18:00:00,5"], r"t\.csv:1: the trace has no colum"),
        (["a,b", "1,2"], r"t\.csv: is in no known format"),
    ],
)
def test_malformed_traces_are_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(tmp_path / "t.csv", *lines)
