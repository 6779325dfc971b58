# SPDX-License-Identifier: Apache-2.0
"""Reads JSON: of the probe, whole or cut, and of nccl-tests (``-J FILE``, file version 3)."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from railweave.collectives import canonical_op
from railweave.fabric.errors import InputError
from railweave.tools.measured.data import DataSet, Finding, Row, Skips, checked_time, merge_repeats
from railweave.tools.measured.nccl_text import ELEMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["looks_like_json", "read_json"]

_PROBE: Final = "railweave-probe"


def looks_like_json(text: str) -> bool:
    """Tell whether a text begins as a JSON object."""
    return text.lstrip("\ufeff\r\n\t ").startswith("{")


def read_json(text: str, *, name: str, op: str | None = None) -> list[DataSet]:
    """Read a JSON file.

    Raises
    ------
    InputError
        It is neither the probe's nor that of nccl-tests, or is cut before its first row.
    """
    text = text.lstrip("\ufeff")
    skips = Skips()
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        data = _salvaged(text, skips)
        if data is None:
            raise InputError(
                f"this is not JSON: {error.msg}", file=name, line=error.lineno
            ) from None
    if not isinstance(data, dict):
        raise InputError("this is no JSON object", file=name)
    try:
        if data.get("kind") == _PROBE:
            lined = _salvaged(text, Skips())
            if lined is not None and len(lined["rows"]) == len(data["rows"]):
                data = lined  # the same, with the lines of its rows
            return [_probe(data, name, skips)]
        if "results" in data:
            return [_nccl(data, name, op, skips)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"this JSON is not as it should be: {type(error).__name__} {error}", file=name
        ) from None
    raise InputError(
        "this JSON is of another program", file=name, expected="the probe's, or that of nccl-tests"
    )


def _salvaged(text: str, skips: Skips) -> dict[str, Any] | None:
    """Return what a cut file of the probe still holds: its head and the whole rows."""
    head, mark, tail = text.partition('"rows": [')
    if not mark or _PROBE not in head:
        return None
    try:
        data: dict[str, Any] = json.loads(f"{head}{mark}]}}")
    except json.JSONDecodeError:
        return None
    first = head.count("\n") + 1
    for number, line in enumerate(tail.splitlines()):
        piece = line.strip().rstrip(",")
        if not piece.startswith("{"):
            continue
        try:
            data["rows"].append({**json.loads(piece), "line": first + number})
        except json.JSONDecodeError:
            skips.add(first + number, "a cut line")
    return data


def _probe(data: Mapping[str, Any], name: str, skips: Skips) -> DataSet:
    nccl = data["backend"] == "nccl"
    widths = {int(width) for width in data["ranks_per_node"]}
    if len(widths) != 1:
        raise InputError("hosts with unlike numbers of ranks cannot be judged yet", file=name)
    if data.get("status") not in ("complete", "running"):
        told = data.get("message") or "see below"
        skips.add(0, f"the probe ended early ({data.get('status')}): {told}")
    for skip in data.get("skipped", ()):
        skips.add(0, f"the probe did not measure {skip['what']}: {skip['why']}")
    rows: list[Row] = []
    findings: list[Finding] = []
    for entry in data["rows"]:
        if not isinstance(entry, dict) or "part" not in entry:
            skips.add(0, "not a row")
            continue
        if entry["part"] != "collectives":
            continue
        line = int(entry.get("line", 0))
        try:
            rows += _probe_forms(entry, line, name, skips, findings)
        except InputError as error:
            skips.add(line, error.message)
        except (KeyError, TypeError, ValueError):
            skips.add(line, "a row without what rows have")
    kept, doubled = merge_repeats(name, rows)
    facts = {
        key: data.get(key) for key in ("hosts", "software", "options", "status", "device", "ranks")
    }
    facts["rows"] = [
        entry
        for entry in data["rows"]
        if isinstance(entry, dict) and entry.get("part") in ("rails", "pairs", "sweeps", "overlap")
    ]
    return DataSet(
        name=name,
        hardware=f"{min(widths)}x{data['device']}",
        link=_link(data) if nccl else "loopback" if data["nodes"] == 1 else "gloo",
        nodes=int(data["nodes"]),
        gpus_per_node=min(widths),
        backend=str(data["backend"]),
        rows=kept,
        skipped=skips.list(),
        findings=(*findings, *doubled),
        facts=facts,
    )


def _probe_forms(
    entry: Mapping[str, Any], line: int, name: str, skips: Skips, findings: list[Finding]
) -> list[Row]:
    """Return the forms of one row of the probe that are sound."""
    found = []
    for place, key in enumerate(("out_of_place", "in_place")):
        figures = entry[key]
        if figures is None:
            continue
        if figures.get("wrong"):
            what = f"{figures['wrong']} wrong elements in {entry['op']}, {entry['size_bytes']} B"
            findings.append(Finding(dataset=name, kind="wrong-data", line=line, what=what))
            skips.add(line, "wrong data")
            continue
        row = Row(
            op=canonical_op(entry["op"]),
            size_bytes=int(entry["size_bytes"]),
            time_us=checked_time(figures["time_us"]),
            launch="torch-eager",
            line=line,
            in_place=bool(place),
        )
        if row.size_bytes < 1:
            raise InputError(f"a size of {row.size_bytes} B")
        found.append(row)
    return found


def _link(data: Mapping[str, Any]) -> str:
    """Return the NICs of a host as ``InfiniBand-8x400G``; empty for one host."""
    hosts = data.get("hosts") or [{}]
    ports = [nic for nic in hosts[0].get("nics", ()) if nic.get("link_layer")]
    rates = [int(found[1]) for nic in ports if (found := re.match(r"(\d+)\s*Gb", nic["rate"]))]
    if data["nodes"] == 1 or not rates:
        return ""
    top = max(rates)  # a slow port beside them is for management
    layer = "RoCEv2" if ports[0]["link_layer"].lower() == "ethernet" else "InfiniBand"
    return f"{layer}-{rates.count(top)}x{top}G"


def _nccl(data: Mapping[str, Any], name: str, asked: str | None, skips: Skips) -> DataSet:
    """Read nccl-tests' JSON (src/util.cu): sizes in bytes, times in us."""
    devices = data.get("devices", [])
    hosts = {device["hostname"] for device in devices}
    ranks = len(devices)
    found = asked or _operation(data)
    if not found:
        raise InputError(
            "the file does not say which operation it is", file=name, expected="--op all_reduce"
        )
    op = canonical_op(found)
    launch = (
        "cuda-graph" if int((data.get("config") or {}).get("cudagraph", 0) or 0) else "nccl-tests"
    )
    rows: list[Row] = []
    findings: list[Finding] = []
    for number, entry in enumerate(data["results"], 1):
        try:
            rows += _nccl_forms(entry, number, (op, launch, name), skips, findings)
        except InputError as error:
            skips.add(0, f"result {number}: {error.message}")
        except (KeyError, TypeError, ValueError, AttributeError):
            skips.add(0, f"result {number} has not what results have")
    if not rows:
        raise InputError("this file of nccl-tests has no result", file=name)
    kept, doubled = merge_repeats(name, rows)
    gpu = str(devices[0].get("device_info", "")) if devices else ""
    return DataSet(
        name=name,
        hardware=f"{ranks // max(1, len(hosts))}x{gpu}" if gpu else "",
        nodes=len(hosts),
        gpus_per_node=ranks // max(1, len(hosts)),
        rows=kept,
        skipped=skips.list(),
        findings=(*findings, *doubled),
        facts={"variables": data.get("env", {}), "version": data.get("nccl_version", "")},
    )


def _nccl_forms(
    entry: Mapping[str, Any],
    number: int,
    about: tuple[str, str, str],
    skips: Skips,
    findings: list[Finding],
) -> list[Row]:
    """Return the forms of one result that are sound; ``about`` is operation, launch and set."""
    op, launch, name = about
    found: list[Row] = []
    size, count = int(entry["size"]), int(entry.get("count", 0))
    element = ELEMENT_BYTES.get(str(entry.get("type")), 1)
    if size == count and element > 1:
        what = f"size {size} is the count of elements of {element} B: taken times {element}"
        findings.append(Finding(dataset=name, kind="unit", line=0, what=what))
        size *= element
    for place, key in enumerate(("out_of_place", "in_place")):
        figures = entry.get(key)
        if not figures or size < 1 or figures.get("time") in (None, "N/A", 0):
            continue
        wrong = figures.get("nwrong")
        if wrong not in (None, "N/A", "0") and float(wrong) > 0:
            what = f"{wrong} wrong elements in result {number}: it is left out"
            findings.append(Finding(dataset=name, kind="wrong-data", line=0, what=what))
            skips.add(0, "wrong data")
            continue
        time_us = checked_time(figures["time"])
        found.append(
            Row(op=op, size_bytes=size, time_us=time_us, launch=launch, in_place=bool(place))
        )
    return found


def _operation(data: Mapping[str, Any]) -> str:
    words = data.get("args") or []
    text = " ".join(map(str, words)) if isinstance(words, list) else str(words)
    match = re.search(r"(\w+?)_perf\b", text)
    config = data.get("config") or {}
    return match[1] if match else str(config.get("collective", config.get("test", "")))
