# SPDX-License-Identifier: Apache-2.0
"""The folder of a run: the scenario as it was run, the result, and tables of flows and links.

Every file but ``timing.json`` is a function of the scenario alone, byte for byte. A folder appears
whole or not at all, and nothing that railweave did not write is ever removed.
"""

from __future__ import annotations

import csv
import importlib.metadata
import json
import os
import platform
import shutil
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from railweave.fabric.engine import SERIES
from railweave.fabric.errors import InputError
from railweave.parquet import PARQUET_FILES, write_parquet
from railweave.trace_events import trace_events
from railweave.yaml_text import yaml_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from railweave.result import Result

__all__ = ["RUN_FILES", "RunFolder", "Stopwatch", "run_files"]

RUN_FILES: Final = (
    "scenario.yaml",
    "result.json",
    "timing.json",
    "flows.csv",
    "links.csv",
    "trace.json",
)
REQUESTS_FILE: Final = "requests.csv"
"""Only in the folder of a run with a serving workload."""
TIMELINE_FILE: Final = "timeline.json"
"""Only where a timeline was asked for: the load of each network link over time."""
PORTS_FILE: Final = "ports.csv"
"""Only where ports were chosen to be sampled: their queues over time."""
CLASSES_FILE: Final = "classes.csv"
"""Bytes by link and class of traffic; only in the folder of a run with a serving workload."""

OPTIONAL_FILES: Final = (
    REQUESTS_FILE,
    CLASSES_FILE,
    TIMELINE_FILE,
    PORTS_FILE,
    *PARQUET_FILES,
)
DEFAULT_PARENT: Final = "runs"
_LIBRARIES: Final = ("networkx", "numba", "numpy", "pydantic", "pyyaml", "railweave", "simpy")


@dataclass(frozen=True)
class Stopwatch:
    """When a run began, for ``timing.json``; wall-clock and CPU time of this process."""

    started_at: str = field(
        default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds")
    )
    wall_s: float = field(default_factory=time.perf_counter)
    cpu_s: float = field(default_factory=time.process_time)

    def to_dict(self) -> dict[str, Any]:
        """Return the object of ``timing.json``."""
        versions = {name: importlib.metadata.version(name) for name in _LIBRARIES}
        return {
            "schema": 1,
            "started_at": self.started_at,
            "wall_seconds": round(time.perf_counter() - self.wall_s, 3),
            "cpu_seconds": round(time.process_time() - self.cpu_s, 3),
            "host": {
                "name": platform.node(),
                "machine": platform.machine(),
                "system": platform.system(),
                "cpus": os.cpu_count(),
            },
            "versions": {"python": platform.python_version(), **versions},
        }


def _json(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def _flows_csv(result: Result) -> str:
    names = result.fabric.device_names
    header = ("id", "src", "dst", "size_bytes", "start_ps", "end_ps", "fct_ps", "bound_ps", "tag")
    more = result.flow_columns
    return _csv(
        (*header, "wire_bytes", *more),
        (
            (
                record.flow.id,
                names[record.flow.src],
                names[record.flow.dst],
                record.flow.size_bytes,
                record.start_ps,
                record.end_ps if record.end_ps >= 0 else "",
                record.fct_ps if record.end_ps >= 0 else "",
                record.bound_ps,
                record.flow.tag,
                record.wire_bytes,
                *(column[i] for column in more.values()),
            )
            for i, record in enumerate(result.records)
        ),
    )


def _links_csv(result: Result) -> str:
    table, fabric = result.links, result.fabric
    utilisation = table.utilisation
    more = result.link_columns
    return _csv(
        ("link", "src", "dst", "rate_bps", "wire_bytes", "utilisation", "ack_bytes", *more),
        (
            (
                fabric.link_name(link),
                fabric.device_names[fabric.link_src[link]],
                fabric.device_names[fabric.link_dst[link]],
                int(fabric.link_rate_bps[link]),
                int(table.wire_bytes[link]),
                f"{utilisation[link]:.9f}",
                int(table.ack_bytes[link]),
                *(column[link] for column in more.values()),
            )
            for link in range(fabric.n_links)
        ),
    )


def _requests_csv(result: Result) -> str:
    header = tuple(result.requests[0])
    return _csv(
        header,
        (["" if row[name] is None else row[name] for name in header] for row in result.requests),
    )


def _classes_csv(result: Result) -> str:
    return _csv(
        ("link", "class", "wire_bytes", "ack_bytes"),
        (
            (
                result.fabric.link_name(link),
                name,
                int(counters.wire_bytes[link]),
                int(counters.ack_bytes[link]),
            )
            for name, counters in result.classes.items()
            for link in np.flatnonzero(counters.wire_bytes + counters.ack_bytes).tolist()
        ),
    )


def run_files(result: Result, stopwatch: Stopwatch) -> dict[str, str]:
    """Return the text of each file of a run's folder, by name."""
    files = {
        "scenario.yaml": yaml_text(result.scenario),
        "result.json": _json(result.to_dict()),
        "timing.json": _json(stopwatch.to_dict()),
        "flows.csv": _flows_csv(result),
        "links.csv": _links_csv(result),
        "trace.json": json.dumps(trace_events(result), ensure_ascii=False, separators=(",", ":")),
    }
    if result.requests:
        files[REQUESTS_FILE] = _requests_csv(result)
    if result.classes:
        files[CLASSES_FILE] = _classes_csv(result)
    if result.port_series:
        files[PORTS_FILE] = _csv(("time_ps", "port", *SERIES), result.port_series)
    if result.timeline is not None:
        files[TIMELINE_FILE] = json.dumps(
            result.timeline.to_dict(result.fabric), ensure_ascii=False, separators=(",", ":")
        )
    return files


class RunFolder:
    """Where a run will be written.

    Construct it before the run: a place that cannot be used is refused before time is spent.

    Parameters
    ----------
    path
        The folder; None: the first free ``runs/<name>-<n>``.
    name
        The scenario's name.
    force
        Write into an existing run folder, replacing the files that railweave wrote there.

    Raises
    ------
    InputError
        The folder exists (without ``force``), is not a run's, or cannot be written.
    """

    def __init__(self, path: Path | str | None, *, name: str, force: bool = False) -> None:
        self._name = name
        self._chosen = None if path is None else Path(path)
        self._force = force
        if self._chosen is None:
            self._check_writable(Path(DEFAULT_PARENT) / name)
        elif os.path.lexists(self._chosen):
            self._check_existing(self._chosen)
        else:
            self._check_writable(self._chosen)

    def _check_existing(self, path: Path) -> None:
        if not path.is_dir():
            raise _refused(path, "it exists and is not a folder", "a folder that is not there yet")
        if not self._force:
            raise _refused(path, "it exists", "a folder that is not there yet, or --force")
        entries = {entry.name for entry in path.iterdir()}
        if entries and not {"scenario.yaml", "result.json"} <= entries:
            raise _refused(path, "it is not a run's folder", "an empty folder or a run's")
        for name in (*RUN_FILES, *OPTIONAL_FILES):
            if name in entries and not (path / name).is_file():
                raise _refused(path / name, "it is not a file", "a run's folder")
        if not os.access(path, os.W_OK | os.X_OK):
            raise _refused(path, "it cannot be written", "a folder you may write to")

    @staticmethod
    def _check_writable(path: Path) -> None:
        parent = path.absolute().parent
        while not parent.exists():
            parent = parent.parent
        if not parent.is_dir():
            raise _refused(path, f"'{parent}' is not a folder", "a place inside folders")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise _refused(path, f"'{parent}' cannot be written", "a folder you may write to")

    def write(self, result: Result, stopwatch: Stopwatch) -> Path:
        """Write the run and return its folder.

        The files are written aside and moved into place when all are there.
        """
        files = run_files(result, stopwatch)
        near = self._chosen or Path(DEFAULT_PARENT) / self._name
        aside = near.absolute().parent / f".{near.name}.{os.getpid()}.part"
        try:
            aside.mkdir(parents=True)
            for name, text in files.items():
                (aside / name).write_text(text, encoding="utf-8", newline="\n")
            write_parquet(aside)
            return self._place(aside)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise _refused(near, f"the run cannot be written ({reason})", None) from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _place(self, aside: Path) -> Path:
        if self._chosen is None:
            return self._place_numbered(aside)
        chosen = self._chosen
        if self._force and chosen.is_dir():
            for name in (*RUN_FILES, *OPTIONAL_FILES):
                if (aside / name).exists():
                    (aside / name).replace(chosen / name)
                else:  # of the run before, which served requests, had DuckDB or a timeline
                    (chosen / name).unlink(missing_ok=True)
        elif os.path.lexists(chosen):  # someone was faster
            raise _refused(chosen, "it exists", "a folder that is not there yet, or --force")
        else:
            aside.rename(chosen)
        return chosen

    def _place_numbered(self, aside: Path) -> Path:
        number = 1
        while True:
            path = Path(DEFAULT_PARENT) / f"{self._name}-{number}"
            if not os.path.lexists(path):
                try:
                    aside.rename(path)
                except FileExistsError:
                    pass
                except OSError:
                    if not path.exists():
                        raise
                else:
                    return path
            number += 1


def _refused(path: Path, message: str, expected: str | None) -> InputError:
    return InputError(message, file=str(path), field="output", expected=expected)
