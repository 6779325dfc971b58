# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any

import pytest

from railweave import run_scenario
from railweave.run_folder import RunFolder, Stopwatch

if TYPE_CHECKING:
    from pathlib import Path

SCENARIO: dict[str, Any] = {
    "schema": 1,
    "topology": "h100-rail-8",
    "workload": {
        "kind": "flows",
        "flows": [
            {"id": f"f{i}", "src": f"h{i}/gpu0", "dst": "h7/gpu0", "size": "3MB"} for i in range(4)
        ],
    },
}


def written(folder: Path) -> Path:
    return RunFolder(folder, name="x").write(run_scenario(SCENARIO), Stopwatch())


def test_tables_are_parquet_too(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="Parquet needs the data extra (duckdb)")
    first, second = written(tmp_path / "a"), written(tmp_path / "b")
    for table in ("flows", "links"):
        path = first / f"{table}.parquet"
        assert path.read_bytes() == (second / f"{table}.parquet").read_bytes()
        found = duckdb.sql(f"SELECT * FROM read_parquet('{path}')")
        with (first / f"{table}.csv").open(newline="") as stream:
            header, *rows = csv.reader(stream)
        assert found.columns == header
        wire = header.index("wire_bytes")
        assert found.types[wire] == "BIGINT"
        assert [row[wire] for row in found.fetchall()] == [int(row[wire]) for row in rows]


def test_without_duckdb_there_is_no_parquet(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    folder = written(tmp_path / "run")
    assert not list(folder.glob("*.parquet"))
    assert (folder / "flows.csv").exists()
