# SPDX-License-Identifier: Apache-2.0
"""How long ``railweave run`` takes over the public traces, and how much memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from serving_base import Asked, rail, section, table

CASES = {  # rows and CPU seconds at most, MiB at most
    "mooncake": (1500, 60.0, 1024),
    "azure": (2000, 30.0, 1024),
}


@section("speed")
def speed(asked: Asked) -> list[str]:
    """Return a row for each trace: one run in a process of its own."""
    rows = []
    for trace, (most, seconds, memory) in CASES.items():
        keys = asked.trace(trace)
        keys["limit"] = min(keys["limit"], most) if trace == "mooncake" else most
        scenario = {
            "schema": 1,
            "engine": "fluid",
            "topology": rail(64),
            "workload": {
                "kind": "serving", "model": "llama-3.1-70b",
                "prefill": {"replicas": 4, "tp": 8}, "decode": {"replicas": 4, "tp": 8}, **keys,
            },
        }  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "scenario.yaml"
            file.write_text(json.dumps(scenario), encoding="utf-8")
            out = Path(folder) / "run"
            took, peak = timed(["-m", "railweave", "run", str(file), "-o", str(out), "--json"])
            found = json.loads((out / "result.json").read_text(encoding="utf-8"))
        tokens = found["serving"]["tokens"]["output"]
        rows.append(
            (
                trace, f"{found['serving']['requests']['count']:,}", f"{tokens:,}",
                f"{took:.1f}", f"{seconds:g}", f"{peak:,.0f}", f"{memory:,}",
                "ok" if took <= seconds and peak <= memory else "missed",
            )
        )  # fmt: skip
    header = ("trace", "requests", "output tokens", "CPU s", "limit", "peak MiB", "limit", "")
    return table(header, rows)


def timed(arguments: list[str]) -> tuple[float, float]:
    """Return the CPU seconds and the peak MiB of a command of this Python.

    Raises
    ------
    RuntimeError
        It failed.
    """
    done = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert done.stderr is not None
    said = done.stderr.read()
    _, status, used = os.wait4(done.pid, 0)
    done.returncode = os.waitstatus_to_exitcode(status)
    if done.returncode:
        raise RuntimeError(f"ended with {done.returncode}: {said.decode()}")
    scale = 2**10 if sys.platform != "darwin" else 2**20  # ru_maxrss: KiB, on macOS bytes
    return used.ru_utime + used.ru_stime, used.ru_maxrss / scale
