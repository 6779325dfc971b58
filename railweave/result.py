# SPDX-License-Identifier: Apache-2.0
"""What a run found: times beside their bounds, what each link carried, and where it came from."""

from __future__ import annotations

import importlib.metadata
import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from railweave.fabric.errors import PhysicsError
from railweave.fabric.units import PS_PER_S
from railweave.workloads.stats import time_stats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from railweave.fabric.engine import CollectiveRecord, Engine, LinkCounters
    from railweave.fabric.errors import RailweaveError
    from railweave.fabric.flow import FlowRecord
    from railweave.fabric.graph import Fabric
    from railweave.timeline import Timeline
    from railweave.workloads.workload import TrackSpan

__all__ = [
    "FlowStats",
    "LinkTable",
    "Provenance",
    "Result",
    "Status",
    "cut_bound_ps",
    "flow_stats",
    "version",
]

SCHEMA: Final = 1
HOTTEST: Final = 5
_ROUNDED_BYTES: Final = 16

Status = Literal["completed", "interrupted", "deadlocked", "failed"]
"""How a run ended; ``deadlocked``: nothing could move any more and something had not ended."""


def version() -> str:
    """Return railweave's version."""
    return importlib.metadata.version("railweave")


@dataclass(frozen=True, kw_only=True)
class FlowStats:
    """Completion times of the flows that ended, in ps; percentiles by nearest rank.

    ``count`` and ``bytes`` count every flow that began, ``ended`` those that ended. Times are None
    when none did; the mean is rounded down. ``bound_*`` are the same figures of the flows' bounds.
    """

    count: int
    ended: int
    bytes: int
    fct_mean_ps: int | None = None
    fct_p50_ps: int | None = None
    fct_p99_ps: int | None = None
    fct_max_ps: int | None = None
    bound_mean_ps: int | None = None
    bound_p50_ps: int | None = None
    bound_p99_ps: int | None = None
    bound_max_ps: int | None = None


def flow_stats(records: Sequence[FlowRecord]) -> FlowStats:
    """Summarise flows."""
    ended = [record for record in records if record.end_ps >= 0]
    stats = time_stats([record.fct_ps for record in ended], [record.bound_ps for record in ended])
    return FlowStats(
        count=len(records),
        ended=stats["count"],
        bytes=sum(record.flow.size_bytes for record in records),
        fct_mean_ps=stats.get("mean_ps"),
        fct_p50_ps=stats.get("p50_ps"),
        fct_p99_ps=stats.get("p99_ps"),
        fct_max_ps=stats.get("max_ps"),
        bound_mean_ps=stats.get("bound_mean_ps"),
        bound_p50_ps=stats.get("bound_p50_ps"),
        bound_p99_ps=stats.get("bound_p99_ps"),
        bound_max_ps=stats.get("bound_max_ps"),
    )


@dataclass(frozen=True, eq=False)
class LinkTable:
    """What each link carried over the run's span.

    Parameters
    ----------
    fabric
        Names, ends and rates of the links (after faults).
    wire_bytes, ack_bytes
        int64 (links,): data with headers, and acknowledgements.
    span_ps
        Simulated time that utilisation refers to.
    """

    fabric: Fabric
    wire_bytes: NDArray[np.int64]
    ack_bytes: NDArray[np.int64]
    span_ps: int

    @classmethod
    def of(cls, fabric: Fabric, counters: LinkCounters, span_ps: int) -> LinkTable:
        """Make the table from an engine's counters."""
        return cls(fabric, counters.wire_bytes, counters.ack_bytes, span_ps)

    @property
    def utilisation(self) -> NDArray[np.float64]:
        """float64 (links,): bits of data and ACKs over rate x span; 0 on an instant's run."""
        used = (self.wire_bytes + self.ack_bytes) * 8.0
        offered = self.fabric.link_rate_bps * (self.span_ps / PS_PER_S)
        shares: NDArray[np.float64] = np.zeros(len(used))
        np.divide(used, offered, out=shares, where=offered > 0)
        return shares

    def least_span_ps(self) -> int:
        """Return the shortest span in which no link carried more than its rate allows, in ps."""
        used = (self.wire_bytes + self.ack_bytes) * 8.0 * PS_PER_S
        return math.ceil(float((used / self.fabric.link_rate_bps).max(initial=0.0)))

    def hottest(self, count: int = HOTTEST, *, network: bool = True) -> list[dict[str, Any]]:
        """Return the most utilised links, most first, ties in link order; idle ones never.

        Parameters
        ----------
        count
            At most this many.
        network
            Leave out NVLink and PCIe.
        """
        utilisation = self.utilisation
        if network:
            utilisation = np.where(self.fabric.link_network, utilisation, 0.0)
        order = np.argsort(-utilisation, kind="stable")[:count]
        return [
            {
                "link": self.fabric.link_name(int(link)),
                "utilisation": round(float(utilisation[link]), 9),
                "wire_bytes": int(self.wire_bytes[link]),
                "ack_bytes": int(self.ack_bytes[link]),
                "rate_bps": int(self.fabric.link_rate_bps[link]),
            }
            for link in order
            if utilisation[link] > 0
        ]

    def by_tier(self) -> dict[str, dict[str, Any]]:
        """Return per tier class: links, bytes carried, mean and largest utilisation."""
        tiers = np.array(self.fabric.link_tier)
        utilisation = self.utilisation
        return {
            tier: {
                "links": int(mask.sum()),
                "wire_bytes": int(self.wire_bytes[mask].sum()),
                "mean_utilisation": round(float(utilisation[mask].mean()), 9),
                "max_utilisation": round(float(utilisation[mask].max()), 9),
            }
            for tier in dict.fromkeys(self.fabric.link_tier)
            if (mask := tiers == tier).any()
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the ``network`` object of ``result.json``."""
        return {
            "wire_bytes": int(self.wire_bytes.sum()),
            "ack_bytes": int(self.ack_bytes.sum()),
            "links_used": int((self.wire_bytes > 0).sum()),
            "tiers": self.by_tier(),
            "hottest": self.hottest(),
        }


def cut_bound_ps(table: LinkTable, first_start_ps: int, *, slack_bytes: int = 0) -> int:
    """Return when the busiest link can have carried its bytes at the earliest, in ps.

    Each link is a cut of its own: its bytes over its rate, counted from the first start.

    Parameters
    ----------
    table
        What the links carried.
    first_start_ps
        Nothing was sent before.
    slack_bytes
        Left out of each link's bytes, where they are rounded or were sent again.
    """
    wire, rates = table.wire_bytes - slack_bytes, table.fabric.link_rate_bps
    longest = max(
        (int(wire[i]) * 8 * PS_PER_S // int(rates[i]) for i in np.flatnonzero(wire > 0)), default=0
    )
    return first_start_ps + longest if longest else 0


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What the result came from."""

    version: str
    seed: int
    topology_sha256: str
    scenario_sha256: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a run, whole or partial.

    Parameters
    ----------
    name
        The scenario's name.
    status
        How the run ended.
    engine
        Name of the engine.
    sim_time_ps
        Simulated time at the end.
    bound_ps
        No run of these flows can end earlier: the largest of the flows' and collectives'
        earliest ends and of the links' own bounds. Counts what was started.
    flows
        Statistics of the flows.
    collectives
        A row per finished collective of a ``collective`` workload.
    serving
        What serving workloads report; empty without one.
    steps
        A row per step of training and inference workloads.
    requests
        A row for each request of serving workloads, for ``requests.csv``.
    tracks
        What workloads did when, on tracks of their own in ``trace.json``.
    classes
        What each link carried of each class of traffic of serving workloads, for ``classes.csv``.
    warnings
        Sentences for the reader.
    provenance
        Version, seed and hashes.
    scenario
        The resolved scenario.
    records, executed
        Every flow and every collective, for the run folder.
    links
        What each link carried.
    network
        What the network did beside, in totals (the packet engine: pauses, marks, drops).
    link_columns, flow_columns
        Further columns of the tables, a value for each link or record.
    port_series
        Rows of ``ports.csv``: time, port, and `railweave.fabric.engine.SERIES`.
    error
        Why the run did not complete, or None.
    timeline
        The load of links over time, or None where none was asked for.
    """

    name: str
    status: Status
    engine: str
    sim_time_ps: int
    bound_ps: int
    flows: FlowStats
    collectives: tuple[Mapping[str, Any], ...]
    serving: Mapping[str, Any]
    warnings: tuple[str, ...]
    provenance: Provenance
    scenario: Mapping[str, Any] = field(repr=False)
    records: tuple[FlowRecord, ...] = field(repr=False)
    executed: tuple[CollectiveRecord, ...] = field(repr=False)
    links: LinkTable = field(repr=False)
    requests: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    tracks: tuple[TrackSpan, ...] = field(default=(), repr=False)
    classes: Mapping[str, LinkCounters] = field(default_factory=dict, repr=False)
    steps: tuple[Mapping[str, Any], ...] = ()
    network: Mapping[str, Any] = field(default_factory=dict, repr=False)
    link_columns: Mapping[str, Sequence[Any]] = field(default_factory=dict, repr=False)
    flow_columns: Mapping[str, Sequence[Any]] = field(default_factory=dict, repr=False)
    port_series: tuple[list[Any], ...] = field(default=(), repr=False)
    error: RailweaveError | None = None
    timeline: Timeline | None = field(default=None, repr=False)

    @property
    def fabric(self) -> Fabric:
        """The fabric of the run, after faults."""
        return self.links.fabric

    @property
    def exit_code(self) -> int:
        """What the command line exits with."""
        return 0 if self.error is None else self.error.exit_code

    def raise_for_status(self) -> Result:
        """Return the result, or raise why the run did not complete."""
        if self.error is not None:
            raise self.error
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the object of ``result.json``."""
        data = {
            "schema": SCHEMA,
            "name": self.name,
            "status": self.status,
            "engine": self.engine,
            "sim_time_ps": self.sim_time_ps,
            "bound_ps": self.bound_ps,
            "flows": asdict(self.flows),
            "collectives": [dict(row) for row in self.collectives],
            **({"steps": [dict(row) for row in self.steps]} if self.steps else {}),
            "serving": dict(self.serving),
            "network": {**self.links.to_dict(), **self.network},
            "warnings": list(self.warnings),
            "provenance": asdict(self.provenance),
        }
        if self.error is not None:
            data["error"] = str(self.error)
        return data


def run_bound_ps(
    records: Sequence[FlowRecord],
    executed: Sequence[CollectiveRecord],
    table: LinkTable,
    *,
    inexact_bytes: int = 0,
) -> int:
    """Return the earliest end of everything that ended (and of every byte carried), in ps.

    ``inexact_bytes``: how many of a link's bytes need not have crossed it, see
    `Engine.rounded_bytes` and `Engine.repeated_bytes`.
    """
    starts = [record.start_ps for record in records] + [record.start_ps for record in executed]
    ends = [record.start_ps + record.bound_ps for record in records if record.end_ps >= 0]
    ends += [record.start_ps + record.bound_ps for record in executed]
    in_flight = sum(record.end_ps < 0 for record in records)
    slack = (
        in_flight + _ROUNDED_BYTES if in_flight else 0
    )  # what a flow has moved so far is rounded
    slack += inexact_bytes
    return max([0, *ends, cut_bound_ps(table, min(starts, default=0), slack_bytes=slack)])


def check_bounds(engine: Engine, table: LinkTable, *, sim_time_ps: int, bound_ps: int) -> None:
    """Raise `PhysicsError` if a run ended before its bound or a link carried more than it can."""
    engine.check_bound("the run", took_ps=sim_time_ps, bound_ps=bound_ps)
    slack = _ROUNDED_BYTES + engine.rounded_bytes + engine.burst_bytes
    unreserved = engine.unreserved_bytes(table.wire_bytes, table.ack_bytes)
    carried = 8.0 * (table.wire_bytes + table.ack_bytes - slack - unreserved)
    over = np.flatnonzero(
        carried > table.fabric.link_rate_bps * (table.span_ps / PS_PER_S) * (1 + 1e-6)
    )
    if len(over):
        link = int(over[0])
        raise PhysicsError(
            f"link {table.fabric.link_name(link)} carried {table.utilisation[link]:.6f} times "
            "what its rate allows"
        )


def ack_cautions(engine: Engine, table: LinkTable) -> list[str]:
    """Say by how much the ACKs of short messages fill a link beyond its rate."""
    if not engine.unreserved_bytes(table.wire_bytes, table.ack_bytes).any():
        return []
    used = table.utilisation
    link = int(used.argmax())
    if used[link] <= 1 + 1e-6:
        return []
    return [
        f"messages of few packets have more acknowledgements than rates leave room for: "
        f"{table.fabric.link_name(link)} carried {used[link]:.4f} times what it can, and times "
        "may be too short by as much"
    ]
