# SPDX-License-Identifier: Apache-2.0
"""The tables of a run as Parquet too, where DuckDB is installed (the ``data`` extra)."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PARQUET_FILES", "write_parquet"]

_TABLES: Final = ("flows", "links", "requests", "ports")
PARQUET_FILES: Final = tuple(f"{table}.parquet" for table in _TABLES)


def write_parquet(folder: Path) -> None:
    """Write each CSV table of a run's folder as Parquet beside it; nothing without DuckDB.

    Columns named ``..._ps`` and ``..._bytes`` are 64-bit integers; a field that is empty in the
    CSV file is null.
    """
    if importlib.util.find_spec("duckdb") is None:
        return
    import duckdb

    with duckdb.connect(config={"threads": 1}) as base:
        for table in _TABLES:
            source = folder / f"{table}.csv"
            if not source.exists():
                continue
            header = source.read_text(encoding="utf-8").partition("\n")[0].split(",")
            types = {name: "BIGINT" for name in header if name.endswith(("_ps", "_bytes"))}
            found = base.read_csv(str(source), header=True, dtype=types)
            found.write_parquet(str(source.with_suffix(".parquet")), compression="zstd")
