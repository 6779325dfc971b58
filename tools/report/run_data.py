# SPDX-License-Identifier: Apache-2.0
"""A run folder, read back: its scenario, fabric, result, flows, links, requests and timeline."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from railweave.fabric.errors import InputError
from railweave.run_folder import REQUESTS_FILE, TIMELINE_FILE
from railweave.tools.overlay import links_by_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric
    from railweave.scenario import Scenario

__all__ = [
    "COUNTERS",
    "FlowRow",
    "Run",
    "Span",
    "TimelineData",
    "read_class_rows",
    "read_flows",
    "read_link_rows",
    "read_run",
]

COUNTERS: Final = (
    *("pause_frames_sent", "pause_frames_received", "paused_ps"),
    *("ecn_marked", "dropped", "peak_queue_bytes", "peak_ingress_bytes"),
)
"""Columns of ``links.csv`` that only some engines write."""
_NEEDED_OF_LINKS: Final = ("link", "wire_bytes", "ack_bytes", "utilisation")
_NEEDED_OF_FLOWS: Final = (
    *("id", "src", "dst", "size_bytes", "start_ps", "end_ps", "bound_ps", "tag", "wire_bytes"),
)


@dataclass(frozen=True, kw_only=True)
class FlowRow:
    """A flow of ``flows.csv``; times in ps, ``end_ps`` -1 if it had not ended.

    ``path`` names its links where the engine wrote them; ``counters`` are the engine's own columns.
    """

    id: str
    src: str
    dst: str
    size_bytes: int
    start_ps: int
    end_ps: int
    bound_ps: int
    tag: str
    wire_bytes: int
    path: tuple[str, ...] = ()
    counters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Span:
    """A stretch of work in ``trace.json``, such as ``forward 0 stage 1``; times in ps."""

    name: str
    start_ps: int
    end_ps: int


@dataclass(frozen=True, eq=False, kw_only=True)
class TimelineData:
    """``timeline.json``: int64 (n,) links, (k + 1,) edges in ps, and values (n, k) by name."""

    edges_ps: NDArray[np.int64]
    links: NDArray[np.int64]
    values: Mapping[str, NDArray[np.int64]]

    def coarser(self, intervals: int) -> TimelineData:
        """Return the same in at most so many intervals, neighbours joined; totals stay."""
        count = len(self.edges_ps) - 1
        starts = np.arange(0, count, -(-count // max(1, intervals)))
        return TimelineData(
            edges_ps=np.append(self.edges_ps[starts], self.edges_ps[-1]),
            links=self.links,
            values={
                name: np.add.reduceat(rows, starts, axis=1) if len(rows) else rows[:, starts]
                for name, rows in self.values.items()
            },
        )

    def load(self, fabric: Fabric) -> NDArray[np.float64]:
        """float64 (n, k): share of the rate of each link that it carried in each interval."""
        offered = np.outer(fabric.link_rate_bps[self.links], np.diff(self.edges_ps) / 1e12)
        share: NDArray[np.float64] = np.zeros(self.values["bytes"].shape)
        np.divide(self.values["bytes"] * 8.0, offered, out=share, where=offered > 0)
        return share

    def paused(self) -> NDArray[np.float64] | None:
        """float64 (n, k): share of each interval that a link stood paused, if it was recorded."""
        if "paused_ps" not in self.values:
            return None
        share: NDArray[np.float64] = self.values["paused_ps"] / np.diff(self.edges_ps)
        return np.minimum(share, 1.0)


@dataclass(frozen=True, eq=False, kw_only=True)
class Run:
    """A run as its folder tells it.

    Parameters
    ----------
    name
        Of the folder.
    scenario, fabric
        What was run; the fabric is that of the run's beginning.
    result
        The object of ``result.json``.
    flows
        In order of start.
    wire_bytes, ack_bytes, utilisation
        (links,) of ``links.csv``.
    counters
        Further columns of ``links.csv`` by name, int64 (links,).
    requests
        Rows of ``requests.csv``.
    timeline
        Of a run that recorded one, else None.
    spans
        What the steps of a job did when, from ``trace.json``; only of a run with steps.
    """

    name: str
    scenario: Scenario | None
    fabric: Fabric
    result: Mapping[str, Any]
    flows: tuple[FlowRow, ...]
    wire_bytes: NDArray[np.int64]
    ack_bytes: NDArray[np.int64]
    utilisation: NDArray[np.float64]
    counters: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    requests: tuple[Mapping[str, str], ...] = ()
    timeline: TimelineData | None = None
    spans: tuple[Span, ...] = ()

    @property
    def span_ps(self) -> int:
        """Simulated time."""
        return int(self.result["sim_time_ps"])


def read_run(folder: Path) -> Run:
    """Read a run folder and build its fabric again.

    Raises
    ------
    InputError
        The folder or one of its files cannot be read, or is not what `run` writes.
    """
    from railweave.runner import faulted_fabric
    from railweave.scenario import load_scenario

    if not folder.is_dir():
        raise InputError("is not a folder", file=str(folder), expected="a folder that `run` wrote")
    result = _read_json(folder / "result.json")
    lacking = {"sim_time_ps", "bound_ps", "status", "engine", "flows", "provenance"} - set(result)
    if lacking:
        raise InputError(
            f"has no key {', '.join(sorted(lacking))}",
            file=str(folder / "result.json"),
            expected="the result of a railweave run",
        )
    scenario = load_scenario(folder / "scenario.yaml")
    fabric = faulted_fabric(scenario)
    numbers = links_by_name(fabric)
    columns = _read_links(folder / "links.csv", numbers)
    return Run(
        name=folder.resolve().name,
        scenario=scenario,
        fabric=fabric,
        result=result,
        flows=tuple(read_flows(folder / "flows.csv")),
        wire_bytes=columns.pop("wire_bytes").astype(np.int64),
        ack_bytes=columns.pop("ack_bytes").astype(np.int64),
        utilisation=columns.pop("utilisation"),
        counters={name: column.astype(np.int64) for name, column in columns.items()},
        requests=tuple(row for _, row in _rows(folder / REQUESTS_FILE, ("id",)))
        if (folder / REQUESTS_FILE).exists()
        else (),
        timeline=_read_timeline(folder / TIMELINE_FILE, numbers),
        spans=_read_spans(folder / "trace.json") if result.get("steps") else (),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}",
            file=str(path),
            expected="a folder that `run` wrote",
        ) from None
    except ValueError:
        raise InputError("is not JSON", file=str(path)) from None
    if not isinstance(data, dict):
        raise InputError("is not a JSON object", file=str(path))
    return data


def _rows(path: Path, needed: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line number and cells of each row of a table."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in needed if name not in (reader.fieldnames or ())]
            if missing:
                raise InputError(
                    f"has no column {', '.join(missing)}",
                    file=str(path),
                    line=1,
                    expected="a table of a railweave run",
                )
            for row in reader:
                if None in row or None in row.values():
                    raise InputError(
                        "has more or fewer cells than columns", file=str(path), line=reader.line_num
                    )
                yield reader.line_num, row
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}",
            file=str(path),
            expected="a folder that `run` wrote",
        ) from None
    except (UnicodeDecodeError, csv.Error):
        raise InputError("is not CSV text", file=str(path)) from None


def _number(path: Path, line: int, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise InputError(
            f"'{text}' is not a number of 0 or more", file=str(path), line=line, field=name
        )
    return value


def _read_links(path: Path, numbers: Mapping[str, int]) -> dict[str, NDArray[np.float64]]:
    columns: dict[str, NDArray[np.float64]] = {}
    wanted = (*_NEEDED_OF_LINKS[1:], *COUNTERS)
    for line, row in _rows(path, _NEEDED_OF_LINKS):
        if not columns:
            columns = {name: np.zeros(len(numbers)) for name in wanted if name in row}
        link = numbers.get(row["link"])
        if link is None:
            raise InputError(
                f"'{row['link']}' is not a link of the topology in scenario.yaml",
                file=str(path),
                line=line,
                field="link",
            )
        for name, column in columns.items():
            column[link] = _number(path, line, name, row[name])
    return columns or {name: np.zeros(len(numbers)) for name in _NEEDED_OF_LINKS[1:]}


def read_link_rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a ``links.csv`` as its text has them, their utilisation a number.

    Raises
    ------
    InputError
        It is not the table of a run.
    """
    for line, row in _rows(path, (*_NEEDED_OF_LINKS, "src", "dst")):
        _number(path, line, "utilisation", row["utilisation"])
        yield row


def read_class_rows(path: Path) -> Iterator[tuple[str, str, int]]:
    """Yield link, class and bytes of the rows of a ``classes.csv``.

    Raises
    ------
    InputError
        It is not the table of a run.
    """
    for line, row in _rows(path, ("link", "class", "wire_bytes")):
        yield row["link"], row["class"], int(_number(path, line, "wire_bytes", row["wire_bytes"]))


def read_flows(path: Path) -> Iterator[FlowRow]:
    """Yield the flows of a ``flows.csv``.

    Raises
    ------
    InputError
        It is not the table of a run.
    """
    known = {*_NEEDED_OF_FLOWS, "fct_ps", "path"}
    for line, row in _rows(path, _NEEDED_OF_FLOWS):

        def whole(name: str, row: Mapping[str, str] = row, line: int = line) -> int:
            return int(_number(path, line, name, row[name]))

        yield FlowRow(
            id=row["id"],
            src=row["src"],
            dst=row["dst"],
            size_bytes=whole("size_bytes"),
            start_ps=whole("start_ps"),
            end_ps=whole("end_ps") if row["end_ps"] else -1,
            bound_ps=whole("bound_ps"),
            tag=row["tag"],
            wire_bytes=whole("wire_bytes"),
            path=tuple((row.get("path") or "").split()),
            counters={name: value for name, value in row.items() if name not in known},
        )


def _read_spans(path: Path) -> tuple[Span, ...]:
    """Return the collectives of a timeline in Trace Event Format, by start."""
    wrong = InputError("is not the timeline of a railweave run", file=str(path))
    begun: dict[str, tuple[str, float]] = {}
    found: list[Span] = []
    try:
        for event in _read_json(path)["traceEvents"]:
            if event.get("cat") != "collective":
                continue
            if event["ph"] == "b":
                begun[event["id"]] = event["name"], event["ts"]
            elif event["ph"] == "e":
                name, start_us = begun[event["id"]]
                span = round(start_us * 10**6), round(event["ts"] * 10**6)
                found.append(Span(name=name, start_ps=span[0], end_ps=span[1]))
    except (KeyError, TypeError, AttributeError):
        raise wrong from None
    return tuple(sorted(found, key=lambda span: (span.start_ps, span.end_ps, span.name)))


def _read_timeline(path: Path, numbers: Mapping[str, int]) -> TimelineData | None:
    if not path.exists():
        return None
    data = _read_json(path)
    wrong = InputError("is not the timeline of this run", file=str(path))
    try:
        edges = np.array(data["edges_ps"], np.int64)
        links = np.array([numbers[name] for name in data["links"]], np.int64)
        shape = (len(links), len(edges) - 1)
        values = {
            name: np.array(rows, np.int64).reshape(shape)
            for name, rows in data.items()
            if name in ("bytes", "paused_ps", "ecn_marked", "dropped")
        }
    except (KeyError, ValueError, TypeError, OverflowError):
        raise wrong from None
    if "bytes" not in values or len(edges) < 2 or (np.diff(edges) < 0).any():
        raise wrong
    return TimelineData(edges_ps=edges, links=links, values=values)
