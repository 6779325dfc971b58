# SPDX-License-Identifier: Apache-2.0
"""Static checks of a fabric: that all is joined, within budget and as declared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.topologies.reach import pieces, unreachable_pairs
from railweave.topologies.review import (
    alignment,
    cable_reach,
    capacity,
    deadlock,
    growth,
    hash_load,
    hosts,
    lossless,
    paths,
    wiring,
)
from railweave.topologies.review.case import Case
from railweave.topologies.review.findings import (
    CHECKS,
    Check,
    Fact,
    Finding,
    Found,
    Report,
    check_named,
    run_checks,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from railweave.fabric.graph import Fabric
    from railweave.topologies.spec import TopologySpec

__all__ = [
    "CHECKS",
    "Check",
    "Fact",
    "Finding",
    "Report",
    "check",
    "inspect",
    "pieces",
    "protocol_findings",
    "unreachable_pairs",
]

THEMES = (
    wiring,
    alignment,
    capacity,
    paths,
    hosts,
    lossless,
    deadlock,
    cable_reach,
    growth,
    hash_load,
)
"""The modules whose checks there are, in their order."""


@check_named(
    "source",
    about="The file says where the design comes from.",
    why="A reader cannot tell a published design from a sketch.",
    mend="add a line `source: ...`",
    part="effect",
)
def source(case: Case) -> Iterator[Found | Fact]:
    """Ask a file for its source."""
    if case.spec is not None and case.spec.model.source is None:
        yield Found(level="info", message="the file does not say its source")


def check(fabric: Fabric, spec: TopologySpec | None = None) -> list[Finding]:
    """Run every check on a fabric and return what they found, errors first.

    Parameters
    ----------
    fabric
        The fabric, perhaps with faults applied.
    spec
        The topology it was built from, if its file is to be checked too.
    """
    return list(run_checks(Case(fabric=fabric, spec=spec), figures=False).findings)


def inspect(
    fabric: Fabric,
    spec: TopologySpec | None = None,
    *,
    rows: Mapping[int, tuple[str, int]] | None = None,
    rules: Iterable[str] | None = None,
) -> Report:
    """Run every check, also those that give figures only.

    Parameters
    ----------
    fabric, spec
        As for `check`.
    rows
        Cable (link // 2) -> file and line, where the fabric was built from a cabling plan.
    rules
        Names of the checks to run (default: all of `CHECKS`).
    """
    case = Case(fabric=fabric, spec=spec, rows=rows or {})
    return run_checks(case, figures=True, rules=rules)


def protocol_findings(fabric: Fabric) -> Iterator[Finding]:
    """Say which devices end links of a protocol that they do not speak, once per device model."""
    yield from run_checks(Case(fabric=fabric), figures=False, rules=["protocol"]).findings
