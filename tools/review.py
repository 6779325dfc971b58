# SPDX-License-Identifier: Apache-2.0
"""The design review of one topology: checks, bill, job times, failures, and a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from railweave.tools.blast import blast_radius
from railweave.tools.bom import make_bill
from railweave.tools.comparing import apart_dict, damage_dict, topology_reference
from railweave.tools.job_groups import group_losses
from railweave.tools.transports import transport_runs
from railweave.topologies.apart import apart_groups
from railweave.topologies.checks import inspect
from railweave.topologies.load import build_topology, load_topology
from railweave.topologies.summary import summarise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from railweave.fabric.graph import Fabric
    from railweave.tools.blast import Damage
    from railweave.tools.bom import Bill
    from railweave.tools.job_groups import GroupLoss
    from railweave.tools.job_time import JobTime
    from railweave.tools.prices import PriceList
    from railweave.tools.transports import TransportRun
    from railweave.topologies.apart import Apart
    from railweave.topologies.checks import Report
    from railweave.topologies.spec import TopologySpec

__all__ = ["Review", "Verdict", "review_topology"]

Grade = Literal["blocking", "warning", "note"]
_GRADES: Final[Mapping[str, Grade]] = {"error": "blocking", "warning": "warning", "info": "note"}
_SLOW: Final = 1.5
"""A failure that slows a job by more is a warning (assumed)."""
_ALIKE: Final = 1.01
"""Times that differ by less are told as equal."""


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
    apart
        GPUs that the design itself does not join, groups by groups.
    groups
        Process groups of the workloads, and how many of them the network does not join.
    damages
        What one failure of each class does, worst first.
    transports
        The workloads packet by packet under several transports, where that was asked for.
    verdicts
        Blocking first.
    """

    fabric: Fabric
    spec: TopologySpec
    summary: Mapping[str, Any]
    report: Report
    bill: Bill
    workloads: Mapping[str, JobTime]
    apart: tuple[Apart, ...]
    groups: tuple[GroupLoss, ...]
    damages: tuple[Damage, ...]
    transports: tuple[TransportRun, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def blocked(self) -> bool:
        """Whether anything is blocking."""
        return any(verdict.grade == "blocking" for verdict in self.verdicts)

    def runs(self) -> dict[str, Mapping[str, Any]]:
        """Return the resolved scenario of every run that the review rests on, by its id."""
        jobs = [*self.workloads.values(), *(job for one in self.damages for job in one.jobs)]
        jobs += [job.restarted for job in jobs if job.restarted is not None]
        found = {job.run: job.scenario for job in jobs}
        found |= {one.run: one.scenario for one in self.transports if one.run}
        return found

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
            "workloads": {name: job.to_dict() for name, job in self.workloads.items()},
            "apart": [apart_dict(one) for one in self.apart],
            "process_groups": [one.to_dict() for one in self.groups],
            "failures": [damage_dict(one) for one in self.damages],
            "transports": [one.to_dict() for one in self.transports],
            "verdict": [vars(one) for one in self.verdicts],
        }


def review_topology(
    source: str,
    *,
    scenarios: Mapping[str, Path],
    prices: PriceList | None = None,
    transports: bool = False,
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
    transports
        Run the workloads packet by packet under each of `railweave.tools.transports.TRANSPORTS`.
    """
    spec = load_topology(source)
    fabric = build_topology(spec)
    report = inspect(fabric, spec)
    bill = make_bill(fabric, spec, prices=prices)
    reference = topology_reference(source)
    groups = [
        one for name, path in scenarios.items() for one in group_losses(name, path, reference)
    ]
    blast = blast_radius(fabric, topology=reference, scenarios=scenarios)
    workloads = dict(zip(scenarios, blast.healthy, strict=True))
    runs: list[TransportRun] = []
    if transports:
        for (name, path), result in zip(scenarios.items(), blast.results, strict=True):
            runs += transport_runs(name, path, reference, result)
    verdicts = [
        *_of_checks(report),
        *_of_workloads(workloads),
        *_of_groups(groups),
        *_of_failures(workloads, blast.damages),
        *_of_transports(runs),
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
        apart=tuple(apart_groups(fabric)),
        groups=tuple(groups),
        damages=tuple(blast.damages),
        transports=tuple(runs),
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


def _of_workloads(workloads: Mapping[str, JobTime]) -> list[Verdict]:
    return [
        Verdict(grade="blocking", text=f"{name} cannot run: {job.said}", basis=f"run {job.run}")
        for name, job in workloads.items()
        if job.time_ps is None
    ]


def _of_groups(groups: Sequence[GroupLoss]) -> list[Verdict]:
    return [
        Verdict(
            grade="warning",
            text=f"{one.apart} of {one.count} {one.name} groups of {one.workload} have members "
            f"that the network does not join ({one.pairs:,} ordered pairs; {one.example} first): "
            "their bytes must be passed on over NVLink",
            basis="process groups",
        )
        for one in groups
        if one.apart
    ]


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
                    basis=f"failure {failure.example}",
                )
            )
        for (name, whole), job in zip(workloads.items(), one.jobs, strict=True):
            if not whole.time_ps or failure.part == "host":
                continue
            grade: Grade = "note"
            if job.time_ps is None:
                grade = "warning" if "cable" in failure.part else "note"
                text = f"{name} stops when {_a(failure.part)} is lost ({said}): {job.said}"
                left = job.restarted
                if left is not None and left.time_ps is not None:
                    ratio = left.time_ps / whole.time_ps
                    takes = f"{ratio:.3g} times as long" if ratio > _ALIKE else "as long"
                    text += f"; started again on the NICs left (run {left.run}) it takes {takes}"
            elif job.time_ps > _SLOW * whole.time_ps:
                grade = "warning"
                ratio = job.time_ps / whole.time_ps
                text = f"{name} takes {ratio:.3g} times as long with a lost {failure.part} ({said})"
            else:
                continue
            found.append(Verdict(grade=grade, text=text, basis=f"run {job.run}"))
    return found


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _of_transports(runs: Sequence[TransportRun]) -> list[Verdict]:
    found = []
    for workload in dict.fromkeys(one.workload for one in runs):
        mine = [one for one in runs if one.workload == workload]
        ended = [one for one in mine if one.time_ps is not None]
        if not ended:
            found.append(
                Verdict(
                    grade="note",
                    text=f"transports of {workload}: {mine[0].said}",
                    basis=f"run {mine[0].run}" if mine[0].run else "transports",
                )
            )
            continue
        best = min(ended, key=lambda one: one.time_ps or 0)
        worst = max(ended, key=lambda one: one.time_ps or 0)
        assert best.time_ps is not None
        assert worst.time_ps is not None
        ratio = worst.time_ps / best.time_ps
        text = (
            f"{workload} takes {ratio:.3g} times as long with {worst.transport} as with "
            f"{best.transport}"
            if ratio > _ALIKE
            else f"{workload} takes as long with each of {len(ended)} transports"
        )
        short = [one.transport for one in mine if one.time_ps is None]
        text += f"; it does not end with {', '.join(short)}" if short else ""
        found.append(Verdict(grade="note", text=text, basis=f"runs {best.run}, {worst.run}"))
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
