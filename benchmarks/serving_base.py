# SPDX-License-Identifier: Apache-2.0
"""What the sections of ``serving.py`` share: fabrics, scenarios, traces and tables."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from railweave.runner import run_scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from railweave.result import Result

__all__ = ["EXAMPLES", "SECTIONS", "Asked", "fleet", "gb", "ms", "rail", "s", "section", "table"]

NUMBER = re.compile(r"-|[-+]?[0-9][0-9.,]*( x|%)?( \(.*\))?")
EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "traces"


@dataclass(frozen=True)
class Asked:
    """What a run of the benchmark was asked for.

    Parameters
    ----------
    mooncake, azure
        Trace files.
    rows
        Requests of each trace at most.
    seeds
        Runs of the section ``failures``.
    """

    mooncake: Path = EXAMPLES / "mooncake-like.jsonl"
    azure: Path = EXAMPLES / "azure-conv-like.csv"
    rows: int = 2000
    seeds: int = 200

    def trace(self, name: str) -> dict[str, Any]:
        """Return the keys that replay a trace: Mooncake's is spread over its grid of 3 s."""
        if name == "mooncake":
            return {"trace": str(self.mooncake.resolve()), "jitter": "3s", "limit": self.rows}
        return {"trace": str(self.azure.resolve()), "limit": self.rows}


SECTIONS: dict[str, Callable[[Asked], list[str]]] = {}


def section(name: str) -> Callable[[Callable[[Asked], list[str]]], Any]:
    """Return the decorator that registers a section: it returns lines of Markdown."""

    def register(make: Callable[[Asked], list[str]]) -> Callable[[Asked], list[str]]:
        SECTIONS[name] = make
        return make

    return register


def rail(hosts: int, oversubscription: str = "1:1") -> dict[str, Any]:
    """Return a rail-optimized fabric of DGX H100 hosts in one group, 400G."""
    link = {"model": "roce-lossless", "rate": "400Gbps"}
    return {
        "kind": "rail-optimized",
        "hosts": {"count": hosts, "model": "dgx-h100"},
        "leaf": {"switch": "spectrum-4"},
        "spine": {"switch": "spectrum-4", "oversubscription": oversubscription},
        "links": {
            "host-leaf": {**link, "length": "10m"},
            "leaf-spine": {**link, "length": "30m"},
        },
    }


def fleet(
    workload: dict[str, Any] | list[dict[str, Any]],
    *,
    topology: Any = None,
    engine: str = "fluid",
    seed: int = 1,
    **scenario: Any,
) -> Result:
    """Serve Llama-3.1-70B, or run a list of workloads; tell on stderr what it took."""
    began = time.process_time()
    if isinstance(workload, dict):
        workload = [{"kind": "serving", "model": "llama-3.1-70b", **workload}]
    asked = {
        "schema": 1,
        "seed": seed,
        "engine": engine,
        "topology": topology or rail(64),
        "workload": workload,
        **scenario,
    }
    result = run_scenario(asked)
    took = time.process_time() - began
    print(f"  {took:6.1f} s CPU  {result.status}", file=sys.stderr, flush=True)
    return result


def ms(time_ps: float) -> str:
    """Write a time in milliseconds."""
    value = time_ps / 1e9
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.3f}"


def s(time_ps: float) -> str:
    """Write a time in seconds."""
    return f"{time_ps / 1e12:,.2f}"


def gb(size_bytes: float) -> str:
    """Write a size in GB."""
    return f"{size_bytes / 1e9:,.1f}"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return a table in Markdown, numbers flush right."""
    cells = [[str(cell) for cell in row] for row in rows]

    def number(column: int) -> bool:
        return all(NUMBER.fullmatch(row[column]) for row in cells)

    marks = ["---:" if number(i) else "---" for i in range(len(header))]
    return [f"| {' | '.join(line)} |" for line in (list(header), marks, *cells)]
