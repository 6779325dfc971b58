# SPDX-License-Identifier: Apache-2.0
"""The serving benchmark runs, at small sizes, and writes its tables; no figures are judged here."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
NAMES = (
    "serving_base",
    "serving_users",
    "serving_routers",
    "serving_crossover",
    "serving_fabrics",
    "serving_packets",
    "serving_failures",
    "serving_speed",
    "serving",
)


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield {name: importlib.import_module(name) for name in NAMES}
    for name in NAMES:
        sys.modules.pop(name, None)


def test_every_section_has_its_place_in_the_document(modules: dict[str, Any]) -> None:
    text = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    for name in modules["serving_base"].SECTIONS:
        new = modules["serving"].replaced(text, name, ["| new |"])
        assert f"<!-- {name}: begin -->\n\n| new |\n\n<!-- {name}: end -->" in new
    with pytest.raises(SystemExit, match="the document has no marks"):
        modules["serving"].replaced("nothing", "users", [])


def test_a_table_sets_numbers_flush_right(modules: dict[str, Any]) -> None:
    table = modules["serving_base"].table
    assert table(("a", "b", "c"), [("400G for all", "1,000", "+0.1%"), ("x", "-", "7 x")]) == [
        "| a | b | c |",
        "| --- | ---: | ---: |",
        "| 400G for all | 1,000 | +0.1% |",
        "| x | - | 7 x |",
    ]


def test_the_command_writes_one_table(
    modules: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- failures: begin -->old<!-- failures: end -->\nafter\n")
    modules["serving"].main(["--only", "failures", "--seeds", "2", "--write", str(page)])
    text = page.read_text()
    assert text.startswith("before\n<!-- failures: begin -->\n\n| what fails |")
    assert text.endswith("<!-- failures: end -->\nafter\n")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 2
    for cells in rows:  # one run each (for ever or not): ended, nothing lost, nothing doubled
        assert [cells[1], *cells[3:6]] == ["1", "1", "0", "0"]
    assert capsys.readouterr().out.startswith("## failures")


def test_routers_over_the_shipped_traces(modules: dict[str, Any]) -> None:
    asked = modules["serving_base"].Asked(rows=12)
    for trace in ("mooncake", "azure"):
        found = modules["serving_routers"].served(asked, trace, 4.0, "least-connections")
        cells = modules["serving_routers"].row(found, "4 x", "least-connections")
        assert len(cells) == len(modules["serving_routers"].HEADER)
        assert found.serving["requests"]["completed"] == 12
