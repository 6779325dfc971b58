# SPDX-License-Identifier: Apache-2.0
"""Reads the text of nccl-tests, of any version, out of logs that hold other things too.

Columns (NVIDIA/nccl-tests src/common.cu): size, count, type, then ``redop`` and ``root`` where the
operation has them (always, since 2.11), then time in us, algbw, busbw in GB/s (1e9) and ``#wrong``
(``error`` before 2.13), out of place and in place. Old versions leave out ``root``, or print
blanks in place of ``redop``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from railweave.collectives import busbw_factor, canonical_op
from railweave.fabric.errors import InputError
from railweave.tools.measured.data import DataSet, Finding, Row, Skips, merge_repeats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["ELEMENT_BYTES", "looks_like_nccl_text", "read_nccl_text"]

ELEMENT_BYTES: Final = {
    "int8": 1, "uint8": 1, "char": 1, "fp8": 1, "f8e4m3": 1, "f8e5m2": 1,
    "half": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "int": 4, "float": 4, "float32": 4,
    "int64": 8, "uint64": 8, "double": 8, "float64": 8,
}  # fmt: skip
_REDUCTIONS: Final = ("sum", "prod", "max", "min", "avg", "mulsum", "none")
_PREFIX: Final = re.compile(
    r"^\s*(?:\[\d+,\d+\]<std(?:out|err)>:|<std(?:out|err)>:|\d+:(?=\s)|\[(?:rank)?\d+\]:?(?=\s))\s?"
)
_NOISE: Final = re.compile(r"NCCL (?:INFO|WARN|TRACE|ABORT|VERSION)|NCCL version ")
_DEVICE: Final = re.compile(
    r"#\s*Rank\s+(?P<rank>\d+)(?:\s+Group\s+\d+)?\s+Pid\s+\d+\s+on\s+(?P<host>\S+)\s+device\s+"
    r"\d+\s+\[[^\]]*\]\s+(?P<gpu>.+)"
)
_OP: Final = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|alltoall|broadcast|sendrecv|scatter|gather|reduce)"
    r"_perf\b"
)
_START: Final = re.compile(r"#\s*nThread\s+\d+\s+nGpus\s+(\d+)")
_GRAPH: Final = re.compile(r"\bgraph:\s*(\d+)")
_HEADER: Final = re.compile(r"#\s*size\s+count\s+type\b")
_NUMBER: Final = re.compile(r"[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?$", re.IGNORECASE)
_CLOSE: Final = 0.02  # relative, of printed bandwidths; small ones are rounded to 0.01


def looks_like_nccl_text(text: str) -> bool:
    """Tell whether a text holds something of nccl-tests."""
    return bool(
        re.search(
            r"^.{0,60}#\s*(?:nThread\s+\d|size\s+count\s+type|Rank\s+\d+.*\bPid\b)", text, re.M
        )
    )


@dataclass
class _Table:
    """One test of a log while it is read."""

    line: int
    op: str = ""
    gpus: dict[int, tuple[str, str]] = field(default_factory=dict)
    rows: list[tuple[_Printed, int]] = field(default_factory=list)
    launch: str = "nccl-tests"
    skips: Skips = field(default_factory=Skips)


@dataclass(frozen=True)
class _Printed:
    """One printed row: bytes, elements, type, and (time us, algbw, busbw, wrong) per form."""

    size: int
    count: int
    kind: str
    redop: str
    forms: tuple[tuple[str, str, str, str], ...]


def read_nccl_text(text: str, *, name: str, op: str | None = None) -> list[DataSet]:
    """Read a log.

    Parameters
    ----------
    text
        The whole of it.
    name
        What to call the data sets.
    op
        Operation, where the log does not name it and its bandwidths do not tell.

    Raises
    ------
    InputError
        It holds no row that can be used.
    """
    tables = list(_tables(text.splitlines()))
    if not any(table.rows for table in tables):
        why = next((s.why for table in tables for s in table.skips.list()), "")
        raise InputError(
            f"this log of nccl-tests has no whole row{': ' + why if why else ''}",
            file=name,
            expected="rows of size, count, type, ..., time, algbw, busbw",
        )
    several = sum(bool(table.rows) for table in tables) > 1
    found = []
    for number, table in enumerate(t for t in tables if t.rows):
        found.append(_data_set(table, f"{name}#{number + 1}" if several else name, op))
    return found


def _tables(lines: Sequence[str]) -> Iterator[_Table]:
    table = _Table(1)
    width = 0
    told = ""
    for number, raw in enumerate(lines, 1):
        line = raw.rstrip("\r\x00 ")
        while (match := _PREFIX.match(line)) is not None:
            line = line[match.end() :]
        if not line.strip():
            continue
        named = _OP.search(line)
        if named and not line.lstrip()[:1].isdigit():
            told = named[1]
        start = _START.search(line)
        if start:
            if table.rows or table.gpus:
                yield table
            table = _Table(number)
        if not table.op:
            table.op = told
        if line.lstrip().startswith("#"):
            width = _comment(line, table, width)
        elif _NOISE.search(line):
            mixed = re.match(r"\s*\d+\s+\d+\s+[a-z]\w+\s", line)
            table.skips.add(
                number, "a row with NCCL's messages in it" if mixed else "NCCL messages"
            )
        elif re.match(r"\s*\d", line):
            try:
                table.rows.append((_printed(line.split(), width), number))
            except InputError as error:
                table.skips.add(number, error.message)
        else:
            table.skips.add(number, "not of nccl-tests")
        if start and named:
            table.op = named[1]
    yield table


def _comment(line: str, table: _Table, width: int) -> int:
    """Take what a line of comment tells; return the columns of a row."""
    device = _DEVICE.search(line)
    if device:
        table.gpus[int(device["rank"])] = (device["host"], device["gpu"].strip())
    graph = _GRAPH.search(line)
    if graph and int(graph[1]):
        table.launch = "cuda-graph"
    if _HEADER.search(line):
        return len(line.lstrip("# ").split())
    return width


def _printed(cells: Sequence[str], width: int) -> _Printed:
    """Read the cells of a row; `InputError` if it is not whole."""
    if len(cells) < 6 or not cells[1].isdigit() or not cells[0].isdigit():
        raise InputError("a cut line" if len(cells) < 9 else "two lines in one")
    kind = cells[2]
    if kind not in ELEMENT_BYTES:
        raise InputError(f"'{kind[:20]}' is not a data type")
    rest = list(cells[3:])
    if not _cell(rest[0]):
        redop = rest.pop(0)
        if redop not in _REDUCTIONS:
            raise InputError(f"'{redop[:20]}' is neither a reduction nor a number")
    else:
        redop = "none"
    whole = not width or len(cells) >= width
    if rest and (len(rest) in (5, 9) or rest[0] in ("-1", "0") or (whole and len(rest) > 9)):
        rest.pop(0)  # the root
    if not all(_cell(cell) for cell in rest):
        raise InputError("two lines in one" if len(cells) > (width or 13) else "a cut line")
    if len(rest) > 8 and len(cells) == width:
        rest = rest[:8]  # columns that later versions add at the end
    if len(rest) > 8:
        raise InputError("two lines in one")
    if len(rest) not in (4, 8) or (len(rest) == 4 and width > 10):
        raise InputError("a cut line")
    forms = tuple((rest[k], rest[k + 1], rest[k + 2], rest[k + 3]) for k in range(0, len(rest), 4))
    return _Printed(int(cells[0]), int(cells[1]), kind, redop, forms)


def _cell(text: str) -> bool:
    return text == "N/A" or bool(_NUMBER.match(text))


def _data_set(table: _Table, name: str, asked: str | None) -> DataSet:
    ranks = len(table.gpus)
    hosts = {host for host, _ in table.gpus.values()}
    gpu = next((gpu for _, gpu in table.gpus.values()), "")
    findings: list[Finding] = []
    if ranks and ranks % len(hosts):
        findings.append(
            Finding(
                dataset=name,
                kind="inconsistent",
                line=table.line,
                what=f"{ranks} ranks on {len(hosts)} hosts: not as many on each",
            )
        )
    op = canonical_op(asked or table.op or _guess(table, ranks, name))
    rows: list[Row] = []
    for printed, line in table.rows:
        for place, form in enumerate(printed.forms):
            row = _row(printed, form, op, ranks, place, line, table, findings, name)
            if row is not None:
                rows.append(row)
    kept, doubled = merge_repeats(name, rows)
    per_host = ranks // max(1, len(hosts))
    return DataSet(
        name=name,
        hardware=f"{per_host}x{gpu}" if gpu else "",
        nodes=len(hosts),
        gpus_per_node=per_host,
        rows=kept,
        skipped=table.skips.list(),
        findings=(*findings, *doubled),
    )


def _row(
    printed: _Printed,
    form: tuple[str, str, str, str],
    op: str,
    ranks: int,
    place: int,
    line: int,
    table: _Table,
    findings: list[Finding],
    name: str,
) -> Row | None:
    """Return one form of a printed row, with its slips of units noted; None if not measured."""
    time, algbw, _, wrong = form
    where = "in place" if place else "out of place"
    if time == "N/A" or float(time) <= 0:
        if printed.size:
            table.skips.add(line, f"no time {where}")
        return None
    if wrong not in ("N/A", "0") and float(wrong) > (1e-2 if "e" in wrong.lower() else 0):
        what = f"{wrong} wrong elements {where} at {printed.size} B: the row is left out"
        findings.append(Finding(dataset=name, kind="wrong-data", line=line, what=what))
        table.skips.add(line, "wrong data")
        return None
    size, took = printed.size, float(time)
    if size == 0:
        table.skips.add(line, "a size of 0 B")
        return None
    element = ELEMENT_BYTES[printed.kind]
    if printed.count == size and element > 1:
        what = f"size {size} is the count of elements of {element} B: taken times {element}"
        findings.append(Finding(dataset=name, kind="unit", line=line, what=what))
        size *= element
    slip = _slip(size, took, algbw)
    if slip:
        factor, what = slip
        findings.append(
            Finding(dataset=name, kind="unit" if factor else "inconsistent", line=line, what=what)
        )
        took *= factor or 1
    return Row(
        op=op,
        size_bytes=size,
        time_us=took,
        launch=table.launch,
        line=line,
        in_place=bool(place),
    )


def _slip(size: int, time_us: float, algbw: str) -> tuple[float, str] | None:
    """Compare a printed bandwidth with size over time: factor to correct the time, and words."""
    if algbw == "N/A" or float(algbw) < 0.25:  # printed with two decimals
        return None
    ratio = float(algbw) / (size / time_us / 1e3)
    if abs(ratio - 1) <= _CLOSE:
        return None
    for factor, what in (
        (1e3, "the time is in ms, not us, by the bandwidth beside it"),
        (1e-3, "the time is in ns, not us, by the bandwidth beside it"),
    ):
        if abs(ratio * factor - 1) <= _CLOSE:
            return factor, f"{what}: taken times {factor:g}"
    if abs(ratio * 2**30 / 1e9 - 1) <= _CLOSE / 4:
        return 1.0, "the bandwidth is in GiB/s, not GB/s; the time is taken"
    return 0.0, f"algbw {algbw} is {ratio:.3g} times size over time; the time is taken"


def _guess(table: _Table, ranks: int, name: str) -> str:
    """Return the operation that busbw over algbw tells."""
    for printed, _ in reversed(table.rows):
        for time, algbw, busbw, _ in printed.forms:
            if time == "N/A" or algbw == "N/A" or float(algbw) < 1:
                continue
            ratio = float(busbw) / float(algbw)
            if ranks > 2 and abs(ratio - busbw_factor("all_reduce", ranks)) < 0.01 * ratio:
                return "all_reduce"
            if printed.redop != "none" and ranks and abs(ratio - (ranks - 1) / ranks) < 0.01:
                return "reduce_scatter" if ranks > 2 else "all_reduce"
            if printed.redop != "none" and not ranks and ratio > 1.01:
                return "all_reduce"
            break
    raise InputError(
        "the log does not say which operation it is, and its bandwidths do not tell",
        file=name,
        expected="--op all_gather, for example",
    )
