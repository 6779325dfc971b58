# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/serving.md, by one command.

    python benchmarks/serving.py [--mooncake FILE] [--azure FILE] [--rows N] [--only NAME ...]
                                 [--write docs/serving.md]

Without files the synthetic traces of examples/traces are served; the tables of the document are of
the public ones, which it says how to get.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

import serving_base
from serving_base import SECTIONS, Asked

for _name in (
    "serving_users",
    "serving_routers",
    "serving_crossover",
    "serving_fabrics",
    "serving_packets",
    "serving_failures",
    "serving_speed",
):
    importlib.import_module(_name)


def replaced(document: str, name: str, lines: list[str]) -> str:
    """Return a document with what stands between the marks of a section replaced."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if document.count(begin) != 1 or document.count(end) != 1:
        raise SystemExit(f"the document has no marks {begin} and {end}")
    head, rest = document.split(begin)
    _, tail = rest.split(end)
    body = "\n".join(lines)
    return f"{head}{begin}\n\n{body}\n\n{end}{tail}"


def main(arguments: list[str] | None = None) -> None:
    """Make the tables, print them, and put them into the document."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mooncake", type=Path, default=Asked.mooncake)
    parser.add_argument("--azure", type=Path, default=Asked.azure)
    parser.add_argument("--rows", type=int, default=Asked.rows, help="requests of a trace at most")
    parser.add_argument("--seeds", type=int, default=Asked.seeds, help="runs with failures")
    parser.add_argument("--only", nargs="+", choices=sorted(SECTIONS), default=sorted(SECTIONS))
    parser.add_argument("--write", type=Path, help="the document whose tables are replaced")
    given = parser.parse_args(arguments)
    asked = serving_base.Asked(given.mooncake, given.azure, given.rows, given.seeds)
    for name in given.only:
        print(f"{name}:", file=sys.stderr, flush=True)
        lines = SECTIONS[name](asked)
        print(f"## {name}\n\n" + "\n".join(lines) + "\n", flush=True)
        if given.write is not None:
            document = given.write.read_text(encoding="utf-8")
            given.write.write_text(replaced(document, name, lines), encoding="utf-8")


if __name__ == "__main__":
    main()
