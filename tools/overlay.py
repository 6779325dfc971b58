# SPDX-License-Identifier: Apache-2.0
"""What a run did to the links of a fabric, read from its folder, to be drawn over its topology."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.errors import InputError, nearest_name
from railweave.fabric.graph import DeviceKind

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric

__all__ = ["MEASURES", "LinkLoads", "Measure", "links_by_name", "measure_of", "read_link_loads"]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Something of each link that can be drawn as colour.

    Parameters
    ----------
    key
        What the command line calls it.
    column
        Of ``links.csv``.
    title, subtitle
        Of its legend, and of the drawing.
    hottest
        Title of the list of links with most of it.
    share
        It is a share of 0 to 1; else a count, drawn relative to the link with most.
    """

    key: str
    column: str
    title: str
    subtitle: str
    hottest: str
    share: bool = True


MEASURES: Final = (
    Measure(
        key="utilisation",
        column="utilisation",
        title="Link utilisation",
        subtitle="link load",
        hottest="Hottest links",
    ),
    Measure(
        key="pause",
        column="paused_ps",
        title="Time paused",
        subtitle="pause time",
        hottest="Links paused longest",
    ),
    Measure(
        key="drops",
        column="dropped",
        title="Frames dropped",
        subtitle="drops",
        hottest="Links with most drops",
        share=False,
    ),
    Measure(
        key="ecn",
        column="ecn_marked",
        title="Frames marked (ECN)",
        subtitle="ECN marks",
        hottest="Links with most marks",
        share=False,
    ),
)


def measure_of(key: str) -> Measure:
    """Return the measure of that name, or raise `InputError` with the nearest."""
    for measure in MEASURES:
        if measure.key == key:
            return measure
    known = [measure.key for measure in MEASURES]
    raise InputError(
        f"'{key}' is not something of links that can be drawn",
        field="--overlay",
        expected=" | ".join(known),
        nearest=nearest_name(key, known),
    )


@dataclass(frozen=True, eq=False)
class LinkLoads:
    """A measure of each link of a fabric, arrays of shape (links,).

    Parameters
    ----------
    run
        Name of the run.
    utilisation
        The measure as a share of 0 to 1 of what it can be, or of what ``most`` is.
    wire_bytes
        What each link carried.
    measure
        What it is.
    most
        Of a count: its highest value, which is drawn as 1.
    path, path_of
        Links that are to stand out, in order, and the flow whose path that is.
    """

    run: str
    utilisation: NDArray[np.float64]
    wire_bytes: NDArray[np.int64]
    measure: Measure = MEASURES[0]
    most: float = 1.0
    path: tuple[int, ...] = ()
    path_of: str = ""

    @property
    def trail(self) -> frozenset[int]:
        """Links that stand out from all others, both directions of each cable."""
        return frozenset(link for one in self.path for link in (one, one ^ 1))

    @property
    def subtitle(self) -> str:
        """What is drawn, in words."""
        said = f"{self.measure.subtitle} of run {self.run}"
        return f"{said}, path of flow {self.path_of}" if self.path_of else said

    def say(self, share: float, *, digits: int = 2) -> str:
        """Write a value: a share in per cent, a count as what it counts."""
        if self.measure.share:
            return f"{100 * share:.{digits}f} %"
        return f"{round(share * self.most):,}"

    def along(self, flow: str, path: tuple[int, ...]) -> LinkLoads:
        """Return the same with the path of a flow standing out."""
        return replace(self, path=path, path_of=flow)

    def hottest(self, n: int) -> list[int]:
        """Return the links of the ``n`` highest values, those without any left out."""
        order = np.lexsort((np.arange(len(self.utilisation)), -self.utilisation))
        return [int(link) for link in order[:n] if self.utilisation[link] > 0]

    def of_devices(self, fabric: Fabric) -> NDArray[np.float64]:
        """float64 (devices,): highest value at each; at a NIC, of its network links."""
        peak = np.zeros(fabric.n_devices)
        for ends in (fabric.link_src, fabric.link_dst):
            nic = fabric.kind[ends] == DeviceKind.NIC
            counted = np.where(nic & ~fabric.link_network, 0.0, self.utilisation)
            np.maximum.at(peak, ends, counted)
        return peak

    def of_hosts(self, fabric: Fabric) -> NDArray[np.float64]:
        """float64 (hosts,): highest value of the network links of each host."""
        peak = np.zeros(len(fabric.host_names))
        nics = fabric.nics[fabric.host[fabric.nics] >= 0]
        np.maximum.at(peak, fabric.host[nics], self.of_devices(fabric)[nics])
        return peak


def read_link_loads(run: Path, fabric: Fabric, measure: Measure = MEASURES[0]) -> LinkLoads:
    """Read ``links.csv`` of a run folder.

    Raises
    ------
    InputError
        No such file, a missing column, a number that is none, or a link that ``fabric`` has not:
        the run was of another topology.
    """
    path = run / "links.csv"
    number = links_by_name(fabric)
    values = np.zeros(fabric.n_links)
    wire_bytes = np.zeros(fabric.n_links, np.int64)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            _check_columns(path, rows.fieldnames or (), measure)
            for row in rows:
                _read_row(row, str(path), rows.line_num, number, measure, values, wire_bytes)
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}",
            file=str(path),
            expected="a folder that `run` wrote",
        ) from None
    except (UnicodeDecodeError, csv.Error):
        raise InputError("is not CSV text", file=str(path)) from None
    if measure.column.endswith("_ps"):
        return LinkLoads(run.name, np.minimum(values / _span_ps(run), 1.0), wire_bytes, measure)
    most = float(values.max(initial=0.0)) or 1.0 if not measure.share else 1.0
    return LinkLoads(run.name, values / most, wire_bytes, measure, most)


def _check_columns(path: Path, columns: object, measure: Measure) -> None:
    names = set(columns) if isinstance(columns, list | tuple) else set()
    missing = {"link", "utilisation", "wire_bytes"} - names
    if missing:
        raise InputError(
            f"has no column {', '.join(sorted(missing))}",
            file=str(path),
            line=1,
            expected="links.csv of a railweave run",
        )
    if measure.column not in names:
        raise InputError(
            f"has no column {measure.column}: only the packet engine shows {measure.subtitle}",
            file=str(path),
            line=1,
            expected="a run with engine: packet",
        )


def _span_ps(run: Path) -> int:
    path = run / "result.json"
    try:
        span_ps = json.loads(path.read_text("utf-8"))["sim_time_ps"]
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=str(path)) from None
    except (ValueError, KeyError, TypeError):
        raise InputError("is not the result of a railweave run", file=str(path)) from None
    if not isinstance(span_ps, int) or span_ps < 0:
        raise InputError("holds a time that no run gives", file=str(path), field="sim_time_ps")
    return max(span_ps, 1)


def links_by_name(fabric: Fabric) -> dict[str, int]:
    """Return the number of each link by its name; as `Fabric.link_name`, but all at once."""
    names = fabric.device_names
    ends = (fabric.link_src, fabric.link_src_port, fabric.link_dst, fabric.link_dst_port)
    rows = zip(*(column.tolist() for column in ends), strict=True)
    return {f"{names[a]}:{p}>{names[b]}:{q}": link for link, (a, p, b, q) in enumerate(rows)}


def _read_row(
    row: dict[str, str],
    file: str,
    line: int,
    number: dict[str, int],
    measure: Measure,
    values: NDArray[np.float64],
    wire_bytes: NDArray[np.int64],
) -> None:
    link = number.get(row["link"])
    if link is None:
        raise InputError(
            f"'{row['link']}' is not a link of this topology",
            file=file,
            line=line,
            field="link",
            expected="a run of the topology that is drawn",
            nearest=nearest_name(row["link"] or "", number) if len(number) < 20_000 else None,
        )
    try:
        value, carried = float(row[measure.column]), int(row["wire_bytes"])
    except (TypeError, ValueError):
        raise InputError(
            "holds something that is not a number", file=file, line=line, expected="numbers"
        ) from None
    if not 0 <= value < float("inf") or not 0 <= carried < 2**63:
        raise InputError(
            "holds a number that no run gives", file=file, line=line, expected="0 or more"
        )
    values[link], wire_bytes[link] = value, carried
