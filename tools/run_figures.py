# SPDX-License-Identifier: Apache-2.0
"""What a run's folder says of it: times, bytes by tier and class, counters, busiest links."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.fabric.errors import InputError
from railweave.run_folder import CLASSES_FILE
from railweave.tools.report.run_data import read_class_rows, read_flows, read_link_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from railweave.result import Result

__all__ = ["ClassFigures", "RunFigures", "read_run_figures", "result_figures"]


@dataclass(frozen=True, kw_only=True)
class ClassFigures:
    """What the flows of one traffic class had; times in ps, by nearest rank, of those that ended.

    Parameters
    ----------
    flows, ended
        How many there were, and how many ended.
    wire_bytes
        Bytes on the wire, each flow's once.
    p99_ps, bound_p99_ps
        Of flow times, and of their bounds; None where none ended.
    """

    flows: int
    ended: int
    wire_bytes: int
    p99_ps: int | None
    bound_p99_ps: int | None


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    """The figures of a run that are compared.

    Parameters
    ----------
    name, engine, status
        As ``result.json`` has them.
    time_ps, bound_ps
        Simulated time, and the run's lower bound.
    p99_ps
        Of the times of all flows.
    tiers, collectives, serving, steps, network
        As ``result.json`` has them.
    classes
        Figures of the flows of each class; ``""`` for those without.
    busiest
        The network link with the highest mean load, and that load; None where nothing was sent.
    on_links
        Bytes that links carried of each class of traffic, over all links, replicas together: of
        serving workloads.
    busiest_class
        The class that the busiest link carried most of, as far as it is told.
    """

    name: str
    engine: str
    status: str
    time_ps: int
    bound_ps: int
    p99_ps: int | None
    tiers: Mapping[str, Mapping[str, Any]]
    collectives: tuple[Mapping[str, Any], ...]
    serving: Mapping[str, Any]
    steps: tuple[Mapping[str, Any], ...] = ()
    network: Mapping[str, Any] = field(default_factory=dict)
    classes: Mapping[str, ClassFigures] = field(default_factory=dict)
    busiest: tuple[str, float] | None = None
    on_links: Mapping[str, int] = field(default_factory=dict)
    busiest_class: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return {
            **{name: value for name, value in vars(self).items() if name != "classes"},
            "classes": {name: vars(one) for name, one in self.classes.items()},
        }


def read_run_figures(folder: Path) -> RunFigures:
    """Read ``result.json``, and where they are there the flows and links, of a run's folder.

    Raises
    ------
    InputError
        There is no run in it, or a file is not that of a run.
    """
    path = folder / "result.json"
    try:
        data = json.loads(path.read_text("utf-8"))
        found = _figures(
            data, classes=_classes(folder / "flows.csv"), busiest=_busiest(folder / "links.csv")
        )
        path = folder / CLASSES_FILE
        return _with_classes(found, read_class_rows(path)) if path.exists() else found
    except FileNotFoundError:
        raise InputError(
            "there is no run in this folder", file=str(folder), expected="a folder with result.json"
        ) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=str(path)) from None
    except KeyError as error:
        raise InputError(
            f"this is not the result of a run: it has no {error}",
            file=str(path),
            expected="the folder of a run",
        ) from None
    except (ValueError, TypeError, AttributeError):
        raise InputError(
            "this is not the result of a run", file=str(path), expected="the folder of a run"
        ) from None


def result_figures(result: Result) -> RunFigures:
    """Return the figures of a run that has just ended."""
    hottest = result.links.hottest(1)
    flows = (
        (
            record.flow.tag,
            record.wire_bytes,
            record.fct_ps if record.end_ps >= 0 else None,
            record.bound_ps,
        )
        for record in result.records
    )
    busiest = (str(hottest[0]["link"]), float(hottest[0]["utilisation"])) if hottest else None
    found = _figures(result.to_dict(), classes=_by_class(flows), busiest=busiest)
    return _with_classes(
        found,
        (
            (result.fabric.link_name(link), name, int(counters.wire_bytes[link]))
            for name, counters in result.classes.items()
            for link in np.flatnonzero(counters.wire_bytes).tolist()
        ),
    )


def _with_classes(found: RunFigures, rows: Iterable[tuple[str, str, int]]) -> RunFigures:
    """Add what links carried of each class, from link, class and bytes: ``decode3`` is decode."""
    total: dict[str, int] = defaultdict(int)
    hottest: dict[str, int] = defaultdict(int)
    for link, name, carried in rows:
        group = name.rstrip("0123456789") or name
        total[group] += carried
        if found.busiest is not None and link == found.busiest[0]:
            hottest[group] += carried
    most = max(hottest, key=lambda name: hottest[name], default="")
    return replace(found, on_links=dict(sorted(total.items())), busiest_class=most)


def _figures(
    data: Mapping[str, Any],
    *,
    classes: Mapping[str, ClassFigures],
    busiest: tuple[str, float] | None,
) -> RunFigures:
    name, network = str(data["name"]), data["network"]
    return RunFigures(
        name=name,
        engine=str(data["engine"]),
        status=str(data["status"]),
        time_ps=int(data["sim_time_ps"]),
        bound_ps=int(data["bound_ps"]),
        p99_ps=data["flows"].get("fct_p99_ps"),
        tiers=network.get("tiers", {}),
        collectives=tuple(data.get("collectives", ())),
        serving=data.get("serving", {}),
        steps=tuple(data.get("steps", ())),
        network=network,
        classes=classes,
        busiest=busiest,
    )


def nearest_rank(values: list[int], percent: int) -> int | None:
    """Return a percentile by nearest rank, None of none.

    Examples
    --------
    >>> nearest_rank([30, 10, 20], 50), nearest_rank([], 99)
    (20, None)
    """
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else None


def _classes(path: Path) -> dict[str, ClassFigures]:
    if not path.exists():
        return {}
    return _by_class(
        (
            flow.tag,
            flow.wire_bytes,
            flow.end_ps - flow.start_ps if flow.end_ps >= 0 else None,
            flow.bound_ps,
        )
        for flow in read_flows(path)
    )


def _by_class(flows: Iterable[tuple[str, int, int | None, int]]) -> dict[str, ClassFigures]:
    """Return the figures of each class from tag, bytes, time (None: not ended) and bound."""
    times: dict[str, list[int]] = defaultdict(list)
    bounds: dict[str, list[int]] = defaultdict(list)
    count: dict[str, int] = defaultdict(int)
    carried: dict[str, int] = defaultdict(int)
    for tag, wire_bytes, time_ps, bound_ps in flows:
        count[tag] += 1
        carried[tag] += wire_bytes
        if time_ps is not None:
            times[tag].append(time_ps)
            bounds[tag].append(bound_ps)
    return {
        tag: ClassFigures(
            flows=count[tag],
            ended=len(times[tag]),
            wire_bytes=carried[tag],
            p99_ps=nearest_rank(times[tag], 99),
            bound_p99_ps=nearest_rank(bounds[tag], 99),
        )
        for tag in sorted(count)
    }


def _busiest(path: Path) -> tuple[str, float] | None:
    """Return the network link with the highest mean load: its ends are not in one host."""
    found: tuple[str, float] | None = None
    if not path.exists():
        return None
    for row in read_link_rows(path):
        src, dst = row["src"].partition("/"), row["dst"].partition("/")
        inside = bool(src[1] and dst[1]) and src[0] == dst[0]
        if not inside and (found is None or float(row["utilisation"]) > found[1]):
            found = row["link"], float(row["utilisation"])
    return found if found and found[1] > 0 else None
