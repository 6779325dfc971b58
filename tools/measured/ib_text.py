# SPDX-License-Identifier: Apache-2.0
"""Reads the text of ``ib_write_bw`` and its siblings (linux-rdma/perftest).

``MB/sec`` are 2**20 bytes there and ``Gb/sec`` 1e9 bits (perftest src/perftest_parameters.h). The
time of a row is what one message takes at the average rate.
"""

from __future__ import annotations

import re
from typing import Final

from railweave.fabric.errors import InputError
from railweave.tools.measured.data import DataSet, Row, Skips, merge_repeats

__all__ = ["looks_like_ib_text", "read_ib_text"]

_TABLE: Final = re.compile(r"#bytes\s+#iterations\s+BW peak\[(?P<unit>[^\]]+)\]\s+BW average")
_LATENCY: Final = re.compile(r"#bytes\s+#iterations\s+t_")
_FACT: Final = re.compile(
    r"^\s*([A-Z][\w #-]*?)\s*:\s*(\S.*?)\s*(?:([A-Z][\w ]*?)\s*:\s*(\S+))?\s*$"
)
_UNITS: Final = {"MB/sec": 2**20, "Gb/sec": 1e9 / 8, "MiB/sec": 2**20, "GB/sec": 1e9}


def looks_like_ib_text(text: str) -> bool:
    """Tell whether a text holds a table of perftest."""
    return bool(_TABLE.search(text) or _LATENCY.search(text))


def read_ib_text(text: str, *, name: str) -> list[DataSet]:
    """Read the output of a bandwidth test.

    Raises
    ------
    InputError
        It is a latency test, or has no row.
    """
    rate, width = 0.0, 4
    facts: dict[str, str] = {}
    skips, rows = Skips(), []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip("\r ")
        table = _TABLE.search(line)
        if table:
            unit = table["unit"]
            if unit not in _UNITS:
                raise InputError(
                    f"bandwidth in '{unit}'", file=name, line=number, expected=" or ".join(_UNITS)
                )
            rate, width = _UNITS[unit], 5 if "MsgRate" in line else 4
        elif _LATENCY.search(line):
            skips.add(number, "a table of latencies: only bandwidths are read")
            rate = 0.0
        elif re.match(r"\d", line):
            cells = line.split()
            if not rate:
                skips.add(number, "a row before any table of bandwidths")
            elif len(cells) < width or not all(
                re.fullmatch(r"\d+(?:\.\d+)?", c) for c in cells[:4]
            ):
                skips.add(number, "a cut line")
            elif float(cells[3]) <= 0 or not int(float(cells[0])):
                skips.add(number, "no bandwidth")
            else:
                size = int(cells[0])
                took = size / (float(cells[3]) * rate) * 1e6
                rows.append(Row(op="rdma_write", size_bytes=size, time_us=took, line=number))
        else:
            fact = _FACT.match(line)
            if fact:
                facts[fact[1].strip().lower()] = fact[2]
                if fact[3]:
                    facts[fact[3].strip().lower()] = fact[4]
    if not rows:
        why = next((skip.why for skip in skips.list()), "its table is empty")
        raise InputError(
            f"no bandwidth can be read: {why}", file=name, expected="rows of a *_bw test"
        )
    kept, findings = merge_repeats(name, rows)
    ethernet = facts.get("link type", "").lower() == "ethernet"
    return [
        DataSet(
            name=name,
            hardware=facts.get("device", ""),
            link="RoCEv2" if ethernet else facts.get("link type", ""),
            nodes=2,
            gpus_per_node=1,
            backend="verbs",
            rows=kept,
            skipped=skips.list(),
            findings=findings,
            facts=facts,
        )
    ]
