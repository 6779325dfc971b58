# SPDX-License-Identifier: Apache-2.0
"""The design review of one topology: checks, bill, job times, failures, and a verdict."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from railweave.tools.blast import blast_radius
from railweave.tools.bom import make_bill
from railweave.tools.comparing import damage_dict, topology_reference
from railweave.topologies.checks import inspect
from railweave.topologies.load import build_topology, load_topology
from railweave.topologies.summary import summarise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from railweave.fabric.graph import Fabric
    from railweave.tools.blast import Damage, JobTime
    from railweave.tools.bom import Bill
    from railweave.tools.prices import PriceList
    from railweave.topologies.checks import Report
    from railweave.topologies.spec import TopologySpec

__all__ = ["Review", "Verdict", "review_html", "review_topology"]

Grade = Literal["blocking", "warning", "note"]
_GRADES: Final[Mapping[str, Grade]] = {"error": "blocking", "warning": "warning", "info": "note"}
_SLOW: Final = 1.5
"""A failure that slows a job by more is a warning (assumed)."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One line of the verdict, with the check or the run that it rests on."""

    grade: Grade
    text: str
    basis: str


@dataclass(frozen=True, kw_only=True)
class Review:
    """All that a review found.

    Parameters
    ----------
    fabric, spec, summary
        The design.
    report
        What the checks said.
    bill
        Its bill of materials.
    workloads
        Healthy time of each workload, by name.
    damages
        What one failure of each class does, worst first.
    verdicts
        Blocking first.
    """

    fabric: Fabric
    spec: TopologySpec
    summary: Mapping[str, Any]
    report: Report
    bill: Bill
    workloads: Mapping[str, JobTime]
    damages: tuple[Damage, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def blocked(self) -> bool:
        """Whether anything is blocking."""
        return any(verdict.grade == "blocking" for verdict in self.verdicts)

    def to_dict(self) -> dict[str, Any]:
        """Return the review as plain data."""
        from railweave.tools.commands.topo_check import fact_dict, finding_dict

        return {
            "topology": self.fabric.name,
            "topology_sha256": self.spec.sha256,
            "ok": not self.blocked,
            "summary": dict(self.summary),
            "findings": [finding_dict(one) for one in self.report.findings],
            "facts": [fact_dict(one) for one in self.report.facts],
            "bill": self.bill.to_dict(),
            "workloads": {name: vars(job) for name, job in self.workloads.items()},
            "failures": [damage_dict(one) for one in self.damages],
            "verdict": [vars(one) for one in self.verdicts],
        }


def review_topology(
    source: str, *, scenarios: Mapping[str, Path], prices: PriceList | None = None
) -> Review:
    """Check a topology, price it, run workloads on it, and fail one part of each class.

    Parameters
    ----------
    source
        A topology file or a shipped name.
    scenarios
        Workloads by name; their topology is replaced by this one.
    prices
        In place of the catalogue's.
    """
    spec = load_topology(source)
    fabric = build_topology(spec)
    report = inspect(fabric, spec)
    bill = make_bill(fabric, spec, prices=prices)
    times, damages = blast_radius(fabric, topology=topology_reference(source), scenarios=scenarios)
    workloads = dict(zip(scenarios, times, strict=True))
    verdicts = [
        *_of_checks(report),
        *_of_failures(workloads, damages),
        *_of_bill(bill),
    ]
    order = ("blocking", "warning", "note")
    verdicts.sort(key=lambda verdict: order.index(verdict.grade))
    return Review(
        fabric=fabric,
        spec=spec,
        summary=summarise(fabric),
        report=report,
        bill=bill,
        workloads=workloads,
        damages=tuple(damages),
        verdicts=tuple(verdicts),
    )


def _of_checks(report: Report) -> list[Verdict]:
    found = [
        Verdict(grade=_GRADES[one.level], text=one.message, basis=f"check {one.rule}")
        for one in report.findings
    ]
    found += [
        Verdict(grade="note", text=f"not checked: {fact.text}", basis=f"check {fact.rule}")
        for fact in report.facts
        if not fact.checked and "knows no" in fact.text
    ]
    return found


def _of_failures(workloads: Mapping[str, JobTime], damages: Sequence[Damage]) -> list[Verdict]:
    found = []
    for one in damages:
        failure = one.failure
        said = f"one of {failure.count}: {failure.example}"
        if one.hosts_lost > 1:
            found.append(
                Verdict(
                    grade="warning",
                    text=f"a lost {failure.part} takes {one.hosts_lost} whole hosts ({said})",
                    basis="blast radius",
                )
            )
        for (name, whole), job in zip(workloads.items(), one.jobs, strict=True):
            if whole.time_ps is None or failure.part == "host":
                continue
            if job.time_ps is None:
                grade: Grade = "warning" if "cable" in failure.part else "note"
                text = f"{name} stops when a {failure.part} is lost ({said}): {job.said}"
            elif job.time_ps > _SLOW * whole.time_ps:
                grade = "warning"
                ratio = job.time_ps / whole.time_ps
                text = f"{name} takes {ratio:.3g} times as long with a lost {failure.part} ({said})"
            else:
                continue
            found.append(Verdict(grade=grade, text=text, basis=f"run {job.run}"))
    return found


def _of_bill(bill: Bill) -> list[Verdict]:
    missing = [item for item in dict.fromkeys(bill.missing("cents")) if item != "fibre"]
    if not missing:
        return []
    return [
        Verdict(
            grade="note",
            text=f"the cost lacks {', '.join(missing)}: no price is known",
            basis="bill of materials",
        )
    ]


_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title><style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }}
div {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: .5rem 0 1.5rem; }}
th, td {{ text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #8884; vertical-align: top; }}
.blocking td:first-child {{ color: #c22; font-weight: 600; }}
.warning td:first-child {{ color: #b70; font-weight: 600; }}
@media print {{ body {{ max-width: none; margin: 0; font-size: 10pt; }} }}
</style></head><body><h1>{title}</h1>
{body}</body></html>
"""  # noqa: E501


def review_html(review: Review, sections: Sequence[tuple[str, Sequence[Sequence[str]]]]) -> str:
    """Write a review as one HTML page that loads nothing.

    Parameters
    ----------
    review
        The review.
    sections
        Title and rows of each table, the first row its head; every cell is escaped.
    """
    parts = []
    for title, rows in sections:
        if not rows[1:]:
            continue
        head, *body = rows
        cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        lines = [
            f'<tr class="{html.escape(row[0])}">'
            + "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
            + "</tr>"
            for row in body
        ]
        parts.append(
            f"<h2>{html.escape(title)}</h2><div><table><thead><tr>{cells}</tr></thead><tbody>"
            f"{''.join(lines)}</tbody></table></div>"
        )
    return _PAGE.format(title=html.escape(f"Review of {review.fabric.name}"), body="\n".join(parts))
