# SPDX-License-Identifier: Apache-2.0
"""The cabling plan of a fabric: one row per cable, as CSV and back, and as PTM's topology.dot.

A plan holds everything about a cable that the fabric knows, so that the fabric can be rebuilt from
it: the same devices, with the cables of the plan, in its order.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.cables import cables_for
from railweave.fabric.errors import InputError, nearest_name
from railweave.fabric.graph import LinkModel
from railweave.fabric.network_model import PHY_LATENCY_PS
from railweave.fabric.units import (
    format_rate,
    format_time,
    parse_rate_bps,
    parse_time_ps,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from railweave.fabric.graph import Fabric
    from railweave.topologies.racks import Racks

__all__ = [
    "Cable",
    "plan_cables",
    "read_cabling",
    "rewire",
    "to_csv",
    "to_ptm",
]

_PS_PER_MM: Final = 5
_MOST_BYTES: Final = 256 * 2**20


@dataclass(frozen=True, kw_only=True)
class Cable:
    """A row of the plan.

    Parameters
    ----------
    label
        Printed on both ends: number of the cable within its tier, ``HL-00017``.
    tier, model
        Tier class and link model, as in the fabric.
    from_device, from_port, to_device, to_port
        Both ends.
    rate, delay
        With their units; the delay is the whole propagation, PHY included.
    length_m
        Length that the delay stands for, in metres; empty where it stands for none.
    placed_m
        Length by the rule of the racks, in whole metres.
    medium, part
        What carries the rate over the length, the shortest reach first; empty where the catalogue
        has nothing.
    from_rack, from_unit, to_rack, to_unit
        Where the ends stand.
    """

    label: str
    tier: str
    from_device: str
    from_port: int
    to_device: str
    to_port: int
    rate: str
    delay: str
    model: str
    length_m: str
    placed_m: str
    medium: str
    part: str
    from_rack: str
    from_unit: str
    to_rack: str
    to_unit: str


_LETTERS: Final = {"host-leaf": "HL", "leaf-spine": "LS", "spine-core": "SC", "link": "LK"}
COLUMNS: Final = tuple(field.name for field in fields(Cable))


def plan_cables(
    fabric: Fabric, racks: Racks | None = None, *, phy_ps: int = PHY_LATENCY_PS
) -> list[Cable]:
    """Return a row for each network cable, in the fabric's order.

    Parameters
    ----------
    fabric
        The fabric; cables that are down are left out.
    racks
        Where its devices stand, for placed lengths.
    phy_ps
        Part of each delay that is not the cable's length.
    """
    numbers: dict[str, int] = {}
    parts: dict[tuple[int, int], tuple[str, str]] = {}
    found = []
    names = fabric.device_names
    for k in (np.flatnonzero(fabric.link_network[::2] & fabric.link_up[::2]) * 2).tolist():
        a, b = int(fabric.link_src[k]), int(fabric.link_dst[k])
        tier = fabric.link_tier[k]
        numbers[tier] = numbers.get(tier, -1) + 1
        rate, delay = int(fabric.link_rate_bps[k]), int(fabric.link_delay_ps[k])
        nodes = tuple(
            fabric.host_names[fabric.host[d]] if fabric.host[d] >= 0 else names[d] for d in (a, b)
        )
        length = (delay - phy_ps) // _PS_PER_MM if delay >= phy_ps else None
        placed = racks.length_mm(*nodes) if racks is not None else None
        bought = length if length is not None else placed
        medium = part = ""
        if bought is not None:
            if (rate, bought) not in parts:
                fitting = cables_for(rate, bought)
                parts[rate, bought] = (fitting[0].medium, fitting[0].name) if fitting else ("", "")
            medium, part = parts[rate, bought]
        at = [racks.at[node] for node in nodes] if racks is not None else []
        found.append(
            Cable(
                label=f"{_LETTERS.get(tier, 'LK')}-{numbers[tier]:05d}",
                tier=tier,
                from_device=names[a],
                from_port=int(fabric.link_src_port[k]),
                to_device=names[b],
                to_port=int(fabric.link_dst_port[k]),
                rate=format_rate(rate),
                delay=format_time(delay),
                model=LinkModel(int(fabric.link_model[k])).label,
                length_m=_metres(length),
                placed_m=_metres(placed),
                medium=medium,
                part=part,
                from_rack=racks.names[at[0].rack] if racks is not None else "",
                from_unit=str(at[0].unit) if at else "",
                to_rack=racks.names[at[1].rack] if racks is not None else "",
                to_unit=str(at[1].unit) if at else "",
            )
        )
    return found


def _metres(length_mm: int | None) -> str:
    return "" if length_mm is None else f"{length_mm / 1000:g}"


def to_csv(cables: Iterable[Cable]) -> str:
    """Write a plan as CSV (RFC 4180, lines ending in LF)."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([getattr(cable, column) for column in COLUMNS] for cable in cables)
    return out.getvalue()


def to_ptm(cables: Iterable[Cable]) -> str:
    """Write a plan as ``topology.dot`` of the Prescriptive Topology Manager.

    Graphviz's syntax with one line ``"device":"port" -- "device":"port"`` per cable
    (https://docs.nvidia.com/networking-ethernet-software, Prescriptive Topology Manager). Ports of
    switches are called ``swp`` and their number from 1 on, those of NICs ``nic3p0``, on their host.
    """

    def end(device: str, port: int) -> str:
        host, _, part = device.partition("/")
        name = f"{part}p{port}" if part else f"swp{port + 1}"
        return f'"{host}":"{name}"'

    lines = [
        f"    {end(c.from_device, c.from_port)} -- {end(c.to_device, c.to_port)};" for c in cables
    ]
    return "\n".join(("graph G {", *lines, "}", ""))


def read_cabling(path: Path | str) -> list[Cable]:
    """Read a plan from CSV.

    Only the ends, the rate, the delay and the model are needed; what else a plan has may be left
    out, and is empty.

    Raises
    ------
    InputError
        The file cannot be read, or a row says something wrong; with its line and column.
    """
    file = str(path)
    try:
        if Path(path).stat().st_size > _MOST_BYTES:
            raise InputError("the file is too large", file=file, expected="at most 256MiB of CSV")
        text = Path(path).read_text("utf-8-sig")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"the file cannot be read ({reason})", file=file) from None
    except UnicodeDecodeError:
        raise InputError("the file is not text", file=file, expected="CSV in UTF-8") from None
    rows = list(csv.reader(io.StringIO(text)))
    needed = ("from_device", "from_port", "to_device", "to_port", "rate", "delay", "model")
    head = rows[0] if rows else []
    for column in head:
        if column not in COLUMNS:
            raise InputError(
                f"there is no column '{column}'",
                file=file,
                line=1,
                expected=", ".join(COLUMNS),
                nearest=nearest_name(column, COLUMNS),
            )
    for column in needed:
        if column not in head:
            raise InputError(f"column '{column}' is missing", file=file, line=1)
    return [
        _row(dict(zip(head, row, strict=False)), file, line)
        for line, row in enumerate(rows[1:], start=2)
        if row
    ]


def _row(cells: dict[str, str], file: str, line: int) -> Cable:
    def number(column: str) -> int:
        text = cells.get(column, "")
        if not (text.isascii() and text.isdigit() and len(text) < 6):
            raise InputError(
                f"'{text}' is not a port", file=file, line=line, field=column, expected="0 to 65535"
            )
        return int(text)

    for column, parse in (("rate", parse_rate_bps), ("delay", parse_time_ps)):
        try:
            parse(cells.get(column, ""))
        except InputError as error:
            raise error.located(file=file, line=line, field=column) from None
    try:
        LinkModel.from_label(cells.get("model", ""))
    except (InputError, KeyError, ValueError, StopIteration):
        raise InputError(
            f"'{cells.get('model', '')}' is not a link model",
            file=file,
            line=line,
            field="model",
            expected=" | ".join(model.label for model in LinkModel),
        ) from None
    known: dict[str, str] = {column: cells.get(column, "") for column in COLUMNS}
    ports = {column: number(column) for column in ("from_port", "to_port")}
    return Cable(**{**known, **ports})  # type: ignore[arg-type]


def rewire(fabric: Fabric, cables: Sequence[Cable], *, file: str | None = None) -> Fabric:
    """Return the fabric with the cables of a plan in place of its own.

    Parameters
    ----------
    fabric
        The devices, and the links inside hosts.
    cables
        The plan. Ports may be taken twice: that is for a check to find.
    file
        Where the plan was read, for messages.

    Raises
    ------
    InputError
        A device that the fabric has not, or that no network cable can end on.
    """
    inner = np.flatnonzero(~fabric.link_network)
    ends: list[tuple[int, int]] = []
    for line, cable in enumerate(cables, start=2):
        pair = []
        for field, name in (("from_device", cable.from_device), ("to_device", cable.to_device)):
            device = fabric.device_index.get(name)
            if device is None:
                raise InputError(
                    f"'{name}' is not a device of {fabric.name}",
                    file=file,
                    line=line,
                    field=field,
                    nearest=nearest_name(name, fabric.device_names),
                )
            pair.append(device)
        ends.append((pair[0], pair[1]))
    a = np.array([one for one, _ in ends], np.int64)
    b = np.array([other for _, other in ends], np.int64)
    a_port = np.array([cable.from_port for cable in cables], np.int64)
    b_port = np.array([cable.to_port for cable in cables], np.int64)
    rates = {text: parse_rate_bps(text) for text in {cable.rate for cable in cables}}
    delays = {text: parse_time_ps(text) for text in {cable.delay for cable in cables}}
    models = {text: int(LinkModel.from_label(text)) for text in {c.model for c in cables}}

    def both(old: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        new = np.stack((one, other), axis=1).reshape(-1)
        return np.concatenate((old[inner], new)).astype(old.dtype)

    rate = np.array([rates[cable.rate] for cable in cables], np.int64)
    delay = np.array([delays[cable.delay] for cable in cables], np.int64)
    model = np.array([models[cable.model] for cable in cables], np.int64)
    tiers = [_tier_of(fabric, pair) for pair in ends]
    return replace(
        fabric,
        link_src=both(fabric.link_src, a, b),
        link_dst=both(fabric.link_dst, b, a),
        link_src_port=both(fabric.link_src_port, a_port, b_port),
        link_dst_port=both(fabric.link_dst_port, b_port, a_port),
        link_rate_bps=both(fabric.link_rate_bps, rate, rate),
        link_delay_ps=both(fabric.link_delay_ps, delay, delay),
        link_model=both(fabric.link_model, model, model),
        link_up=np.ones(len(inner) + 2 * len(cables), np.bool_),
        link_tier=(
            *(fabric.link_tier[k] for k in inner.tolist()),
            *(tier for tier in tiers for _ in range(2)),
        ),
    )


def _tier_of(fabric: Fabric, ends: tuple[int, int]) -> str:
    """Return the tier class of a cable between two devices, as builders give it."""
    low, high = sorted(int(fabric.tier[device]) for device in ends)
    both_inside = all(int(fabric.host[device]) >= 0 for device in ends)
    if both_inside:
        return "link"
    if (low, high) in ((0, 1), (-1, 0)):
        return "host-leaf"
    return {(1, 2): "leaf-spine", (2, 3): "spine-core"}.get((low, high), "link")
