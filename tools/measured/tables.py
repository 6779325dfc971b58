# SPDX-License-Identifier: Apache-2.0
"""Reads tables of published measurements in CSV.

Columns: ``dataset, hardware, nodes, gpus_per_node, link, collective, algorithm, protocol,
size_bytes, time_us, algbw_GBps, busbw_GBps, source``; sizes in bytes, GB of 1e9 bytes, empty where
nothing was published. Rows of one data set with unlike machines become several sets.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from railweave.collectives import canonical_op
from railweave.fabric.errors import InputError
from railweave.tools.measured.data import DataSet, Finding, Row, Skips, checked_time, merge_repeats

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["looks_like_table", "read_table"]

_NEEDED: Final = ("dataset", "nodes", "gpus_per_node", "collective", "size_bytes", "time_us")
_NCCL: Final = {
    "ring": "Ring", "tree": "Tree", "nvls": "NVLS", "nvlstree": "NVLSTree", "pat": "PAT",
    "collnetdirect": "CollNetDirect", "collnetchain": "CollNetChain",
}  # fmt: skip
_CLOSE: Final = 0.02  # published bandwidths agree with time within 1.5 %


def looks_like_table(text: str) -> bool:
    """Tell whether a text begins with the header of such a table."""
    head = text.lstrip("\ufeff\r\n ").split("\n", 1)[0].lower()
    return head.count(",") >= len(_NEEDED) - 1 and "size_bytes" in head


@dataclass
class _Group:
    rows: list[Row] = field(default_factory=list)
    skips: Skips = field(default_factory=Skips)
    findings: list[Finding] = field(default_factory=list)


def read_table(text: str, *, name: str) -> list[DataSet]:
    """Read a table.

    Raises
    ------
    InputError
        A column is missing, or there is no row.
    """
    lines = csv.reader(text.lstrip("\ufeff").splitlines())
    header = [cell.strip().lower() for cell in next(lines, [])]
    missing = [column for column in _NEEDED if column not in header]
    if missing:
        raise InputError(
            f"there is no column '{missing[0]}'", file=name, line=1, expected=", ".join(_NEEDED)
        )
    groups: dict[tuple[str, str, str, int, int], _Group] = defaultdict(_Group)
    lost = Skips()
    for cells in lines:
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            lost.add(lines.line_num, f"{len(cells)} of {len(header)} columns: a cut line")
            continue
        row = dict(zip(header, (cell.strip() for cell in cells), strict=True))
        try:
            counts = tuple(_count(row[key], key) for key in ("nodes", "gpus_per_node"))
        except InputError as error:
            lost.add(lines.line_num, error.message)
            continue
        key = (row["dataset"], row.get("hardware", ""), row.get("link", ""), *counts)
        group = groups[key]  # type: ignore[index]
        try:
            group.rows.append(_row(row, lines.line_num, group.findings))
        except InputError as error:
            group.skips.add(lines.line_num, error.message)
    if not groups:
        raise InputError("the table has no row", file=name)
    found: list[DataSet] = []
    for (dataset, hardware, link, nodes, gpus), group in groups.items():
        kept, doubled = merge_repeats(dataset, group.rows)
        found.append(
            DataSet(
                name=dataset,
                hardware=hardware,
                link=link,
                nodes=nodes,
                gpus_per_node=gpus,
                rows=kept,
                skipped=(*group.skips.list(), *(lost.list() if not found else ())),
                findings=(*group.findings, *doubled),
            )
        )
    return found


def _count(text: str, key: str) -> int:
    if not re.fullmatch(r"\d{1,6}", text) or not int(text):
        raise InputError(f"{key} '{text[:20]}' is not a count")
    return int(text)


def _row(row: Mapping[str, str], line: int, findings: list[Finding]) -> Row:
    """Return a row of the table; `InputError` says why it cannot be used."""
    collective = row["collective"]
    if collective == "rdma_write":
        op = collective
    else:
        try:
            op = canonical_op(collective)
        except InputError:
            raise InputError(f"{collective} is no collective of NCCL") from None
    size = row["size_bytes"]
    if not size:
        raise InputError("no size is given")
    if not re.fullmatch(r"\d+(?:\.0*)?", size) or not float(size):
        raise InputError(f"size '{size[:20]}' is not a number of bytes")
    printed = row.get("algbw_gbps", "")
    if not row["time_us"]:
        if op != "rdma_write" or not printed:
            raise InputError("no time is given")
        took = float(size) / checked_time(printed, what="bandwidth") / 1e3
    else:
        took = checked_time(row["time_us"])
        took *= _slip(row["dataset"], float(size), took, printed, line, findings)
    algorithm, launch = _algorithm(row.get("algorithm", ""), row.get("protocol", ""))
    return Row(
        op=op,
        size_bytes=int(float(size)),
        time_us=took,
        algorithm=algorithm,
        protocol=row.get("protocol", "") if op == "rdma_write" else "auto",
        launch=launch,
        line=line,
    )


def _slip(
    dataset: str, size: float, took: float, printed: str, line: int, findings: list[Finding]
) -> float:
    """Return what to multiply the time by, after a look at the bandwidth beside it."""
    try:
        rate = float(printed or "nan")
    except ValueError:
        return 1.0
    ratio = rate / (size / took / 1e3)
    if not ratio > 0 or abs(ratio - 1) <= _CLOSE:
        return 1.0

    def note(kind: str, what: str, factor: float) -> float:
        findings.append(Finding(dataset=dataset, kind=kind, line=line, what=what))
        return factor

    for factor, unit in ((1e3, "ms"), (1e-3, "ns")):
        if abs(ratio * factor - 1) <= _CLOSE:
            words = f"the time is in {unit}, not us, by the bandwidth beside it: times {factor:g}"
            return note("unit", words, factor)
    for elements in (2, 4, 8):
        if abs(ratio / elements - 1) <= _CLOSE:
            words = f"algbw is {elements} times size over time: are sizes elements of {elements} B?"
            return note("unit", words, 1.0)
    if abs(ratio * 2**30 / 1e9 - 1) <= _CLOSE / 4:
        return note("unit", "the bandwidth is in GiB/s, not GB/s; the time is taken", 1.0)
    words = f"algbw is {ratio:.3g} times size over time; the time is taken"
    return note("inconsistent", words, 1.0)


def _algorithm(algorithm: str, protocol: str) -> tuple[str, str]:
    """Return NCCL's name of an algorithm (or auto) and the launch mode."""
    plain, how = algorithm.lower(), protocol.lower()
    if "custom" in plain or plain == "trtllm":
        return "auto", "torch-eager" if "eager" in f"{plain} {how}" else "custom"
    launch = "nccl-tests"
    if "torch" in how:
        launch = "torch-eager"
    elif "cuda-graph" in how:
        launch = "cuda-graph"
    word = re.split(r"[-( ]", plain, maxsplit=1)[0]
    if word in ("nccl", "ib_write_bw", "", "auto"):
        return "auto", launch
    if word in _NCCL and "mscclpp" not in plain:
        return _NCCL[word], launch
    raise InputError(f"'{algorithm}' is not NCCL")
