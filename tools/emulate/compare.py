# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured: every flow, collective and link of an emulation."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.fabric.engine import CollectiveRecord
    from railweave.tools.emulate.session import Emulation

__all__ = ["Comparison", "LinkRow", "Row", "compare", "percentile"]

LINK_TOLERANCE: Final = 0.01
"""Counters further than this from sizes and headers mean that bytes took another way."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A flow or a collective: times in ps of the fabric's clock."""

    name: str
    what: str
    size_bytes: int
    predicted_ps: int
    measured_ps: int

    @property
    def error(self) -> float:
        """Measured over predicted, less 1."""
        return self.measured_ps / self.predicted_ps - 1 if self.predicted_ps else 0.0


@dataclass(frozen=True, kw_only=True)
class LinkRow:
    """A link: bytes of data by sizes and paths, and by its shaper's counter, headers included."""

    name: str
    expected_bytes: int
    counted_bytes: int

    @property
    def error(self) -> float:
        """Counted over expected, less 1; 1 where something came that nothing foretold."""
        if not self.expected_bytes:
            return float(self.counted_bytes > 0)
        return self.counted_bytes / self.expected_bytes - 1


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All of an emulation's figures beside each other.

    Parameters
    ----------
    flows, collectives
        A `Row` each, in order of start.
    makespan
        The whole run; starts are the workload's, so that only what came after counts.
    links
        All links of the network.
    """

    flows: tuple[Row, ...]
    collectives: tuple[Row, ...]
    makespan: Row
    links: tuple[LinkRow, ...]

    def worst(self) -> float:
        """Return the largest error of a flow, a collective or the whole, without its sign."""
        rows = (*self.flows, *self.collectives, self.makespan)
        return max(abs(row.error) for row in rows)

    def paths_confirmed(self) -> bool:
        """Whether every counter agrees with the paths that were foretold."""
        return all(abs(row.error) <= LINK_TOLERANCE for row in self.links)

    def to_dict(self) -> dict[str, Any]:
        """Return the object of ``comparison.json``."""

        def rows(several: Sequence[Row | LinkRow]) -> list[dict[str, Any]]:
            return [{**asdict(row), "error": round(row.error, 6)} for row in several]

        errors = [abs(row.error) for row in self.flows]
        return {
            "flows": rows(self.flows),
            "collectives": rows(self.collectives),
            "makespan": rows([self.makespan])[0],
            "links": rows(self.links),
            "flow_error": {
                "median": round(percentile(errors, 50), 6),
                "p90": round(percentile(errors, 90), 6),
                "max": round(max(errors), 6),
            }
            if errors
            else None,
            "paths_confirmed": self.paths_confirmed(),
        }


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile by nearest rank.

    Examples
    --------
    >>> percentile([3.0, 1.0, 2.0, 4.0], 50), percentile([3.0, 1.0, 2.0, 4.0], 90)
    (2.0, 4.0)
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def compare(emulation: Emulation) -> Comparison:
    """Put predicted and measured side by side.

    What did not end is left out, and what stayed inside hosts and was not emulated.
    """
    predicted, measured = emulation.predicted, emulation.measured
    names = measured.fabric.device_names
    foretold = {one.flow.id: one for one in predicted.records if one.end_ps >= 0}
    flows = [
        Row(
            name=there.flow.id,
            what=f"{names[there.flow.src]} -> {names[there.flow.dst]}",
            size_bytes=there.flow.size_bytes,
            predicted_ps=foretold[there.flow.id].fct_ps,
            measured_ps=there.fct_ps,
        )
        for there in measured.records
        if there.end_ps >= 0
        and there.flow.id in foretold
        and any(measured.fabric.link_network[link] for link in there.path)
    ]
    collectives = [
        Row(
            name=one.tag,
            what=f"{one.ranks} ranks",
            size_bytes=one.size_bytes,
            predicted_ps=here.end_ps - here.start_ps,
            measured_ps=one.end_ps - one.start_ps,
        )
        for here, one in _paired(predicted.executed, measured.executed)
        if (one.tag, one.start_ps) not in emulation.inside
    ]
    counted = measured.links.wire_bytes
    fabric = measured.fabric
    expected = emulation.expected
    compared = (
        []
        if expected is None or measured.error is not None
        else np.flatnonzero(fabric.link_network).tolist()
    )
    total = counted if expected is None else expected.wire_bytes
    return Comparison(
        flows=tuple(flows),
        collectives=tuple(collectives),
        makespan=Row(
            name="makespan",
            what="all",
            size_bytes=sum(row.size_bytes for row in flows),
            predicted_ps=predicted.sim_time_ps,
            measured_ps=measured.sim_time_ps,
        ),
        links=tuple(
            LinkRow(
                name=fabric.link_name(link),
                expected_bytes=int(total[link]),
                counted_bytes=int(counted[link]),
            )
            for link in compared
        ),
    )


def _paired(
    predicted: Sequence[CollectiveRecord], measured: Sequence[CollectiveRecord]
) -> list[tuple[CollectiveRecord, CollectiveRecord]]:
    """Pair the collectives of each tag in the order of their starts."""
    waiting: dict[str, list[CollectiveRecord]] = {}
    for one in sorted(predicted, key=lambda one: one.start_ps):
        waiting.setdefault(one.tag, []).append(one)
    pairs = []
    for one in sorted(measured, key=lambda one: one.start_ps):
        here = waiting.get(one.tag)
        if here:
            pairs.append((here.pop(0), one))
    return pairs
