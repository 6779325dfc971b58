# SPDX-License-Identifier: Apache-2.0
"""Designs side by side, or runs: one table, and the differences that matter in words."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from railweave.fabric.units import format_rate
from railweave.fabric.words import plural
from railweave.tools.blast import Damage, blast_radius
from railweave.tools.bom import make_bill
from railweave.tools.comparing_runs import causes
from railweave.tools.job_time import JobTime, result_on
from railweave.tools.run_figures import result_figures
from railweave.topologies.apart import apart_groups
from railweave.topologies.load import build_topology, load_topology
from railweave.topologies.name_ranges import name_ranges
from railweave.topologies.review.capacity import bisection_cut_bps
from railweave.topologies.review.growth import ports_left
from railweave.topologies.summary import summarise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from railweave.result import Result
    from railweave.tools.bom import Bill
    from railweave.tools.prices import PriceList
    from railweave.tools.run_figures import RunFigures
    from railweave.topologies.apart import Apart

__all__ = ["Design", "Job", "compare_words", "job_on", "look_at"]

_TIERS: Final = ("nvlink", "pcie", "host-leaf", "leaf-spine", "spine-core", "link")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One workload on one design: its time, and what each tier of links carried."""

    time: JobTime
    tiers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    hottest: str = ""
    figures: RunFigures | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class Design:
    """The figures of one design.

    Parameters
    ----------
    name
        Its name.
    summary
        As `railweave.topologies.summary.summarise` gives it.
    bill
        Its bill of materials.
    bisection_bps
        Minimum cut between the halves of the hosts.
    ports
        Free ports and all ports per tier.
    jobs
        Each workload's run, by name.
    apart
        GPUs that the design itself does not join, groups by groups.
    damages
        What failures do, worst first; empty where none were looked at.
    """

    name: str
    summary: Mapping[str, Any]
    bill: Bill
    bisection_bps: int
    ports: Mapping[str, tuple[int, int]]
    jobs: Mapping[str, Job]
    apart: tuple[Apart, ...] = ()
    damages: tuple[Damage, ...] = ()

    def damage(self, part: str) -> Damage | None:
        """Return the worst damage of a kind of part."""
        return next((one for one in self.damages if one.failure.part == part), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return {
            "topology": self.name,
            "summary": dict(self.summary),
            "bill": self.bill.to_dict(),
            "bisection_bps": self.bisection_bps,
            "ports": {tier: {"free": f, "ports": p} for tier, (f, p) in self.ports.items()},
            "workloads": {
                name: {
                    **job.time.to_dict(),
                    "tiers": {tier: dict(row) for tier, row in job.tiers.items()},
                    "hottest": job.hottest,
                }
                for name, job in self.jobs.items()
            },
            "apart": [apart_dict(one) for one in self.apart],
            "failures": [damage_dict(one) for one in self.damages],
        }


def damage_dict(one: Damage) -> dict[str, Any]:
    """Return what a failure does as plain data."""
    return {
        "part": one.failure.part,
        "count": one.failure.count,
        "example": one.failure.example,
        "least_host_share": one.least_share,
        "hosts_hit": one.hosts_hit,
        "hosts_lost": one.hosts_lost,
        "lost_pairs": one.lost_pairs,
        "bisection_share": one.bisection_share,
        "lost": [apart_dict(group) for group in one.lost],
        "jobs": [job.to_dict() for job in one.jobs],
    }


def apart_dict(one: Apart) -> dict[str, Any]:
    """Return GPUs that cannot reach each other as plain data."""
    return {
        "one": name_ranges(one.one),
        "other": name_ranges(one.other),
        "pairs": one.pairs,
        "joined_inside": one.joined,
    }


def topology_reference(source: str) -> str:
    """Return a topology as a scenario may name it from any folder.

    Examples
    --------
    >>> topology_reference("h100-rail-8")
    'h100-rail-8'
    """
    path = Path(source)
    return str(path.resolve()) if "/" in source or source.endswith((".yaml", ".yml")) else source


def look_at(
    source: str,
    *,
    workloads: Mapping[str, Path],
    failures: bool,
    jobs_fail: bool = False,
    prices: PriceList | None = None,
) -> Design:
    """Work out the figures of a design, and run the workloads on it.

    Parameters
    ----------
    source
        A topology file or a shipped name.
    workloads
        Scenario files by name; their topology is replaced.
    failures
        Whether to fail one part of each class too.
    jobs_fail
        Whether to run the workloads under each of these failures.
    prices
        In place of the catalogue's.
    """
    spec = load_topology(source)
    fabric = build_topology(spec)
    reference = topology_reference(source)
    under = dict(workloads) if jobs_fail else {}
    blast = blast_radius(fabric, topology=reference, scenarios=under) if failures else None
    if jobs_fail and blast is not None:
        runs = list(zip(blast.healthy, blast.results, strict=True))
    else:
        runs = [result_on(path, reference) for path in workloads.values()]
    return Design(
        name=fabric.name,
        summary=summarise(fabric),
        bill=make_bill(fabric, spec, prices=prices),
        bisection_bps=bisection_cut_bps(fabric),
        ports=ports_left(fabric),
        jobs={name: _job(*run) for name, run in zip(workloads, runs, strict=True)},
        apart=tuple(apart_groups(fabric)),
        damages=tuple(blast.damages) if blast is not None else (),
    )


def job_on(path: Path, topology: str, overrides: dict[str, Any] | None = None) -> Job:
    """Run a workload on a design, other keys of its scenario (dotted) in place of its own."""
    return _job(*result_on(path, topology, overrides=overrides))


def _job(time: JobTime, result: Result | None) -> Job:
    if result is None:
        return Job(time=time)
    hottest = result.links.hottest(1)
    return Job(
        time=time,
        tiers=result.links.by_tier(),
        hottest=str(hottest[0]["link"]) if hottest else "",
        figures=result_figures(result),
    )


def compare_words(designs: Sequence[Design]) -> list[str]:
    """Say what differs, each design against the first."""
    first, *others = designs
    said: list[str] = []
    for other in others:
        said += _money_words(first, other)
        for name, job in other.jobs.items():
            said += _job_words(name, first, other, job)
        said += _failure_words(first, other)
    return said


def _money_words(first: Design, other: Design) -> list[str]:
    if first.bill.cost_cents == 0:
        return []
    cost = other.bill.cost_cents / first.bill.cost_cents - 1
    power = other.bill.power_mw / first.bill.power_mw - 1 if first.bill.power_mw else 0.0
    missing = "" if not _unpriced(other) else f" (without {', '.join(_unpriced(other))})"
    return [
        f"{other.name} costs {cost:+.1%} and draws {power:+.1%} against {first.name}{missing}: "
        f"{other.bill.number('switch')} switches for {first.bill.number('switch')}, "
        f"{other.bill.number('optic')} optics for {first.bill.number('optic')}"
    ]


def _unpriced(design: Design) -> list[str]:
    return list(dict.fromkeys(i for i in design.bill.missing("cents") if i != "fibre"))


def _job_words(name: str, first: Design, other: Design, job: Job) -> list[str]:
    base = first.jobs[name]
    if job.time.time_ps is None:
        return [f"{name} cannot run on {other.name}: {job.time.said}"]
    if base.time.time_ps is None:
        return [f"{name} runs on {other.name}, and not on {first.name}: {base.time.said}"]
    still = [design.name for design, one in ((first, base), (other, job)) if not one.time.time_ps]
    if still:
        return [f"{name} takes no time on {' and '.join(still)}"]
    ratio = job.time.time_ps / base.time.time_ps
    if 0.99 < ratio < 1.01:
        return [f"{name} takes as long on {other.name} as on {first.name}"]
    slow, fast = (job, base) if ratio > 1 else (base, job)
    tier = max(
        (t for t in slow.tiers if t not in ("nvlink", "pcie")),
        key=lambda t: float(slow.tiers[t]["max_utilisation"]),
        default="",
    )
    why = ""
    if tier:
        row, had = slow.tiers[tier], fast.tiers.get(tier)
        carried = f"{row['wire_bytes'] / 1e9:.4g} GB"
        before = f", {had['wire_bytes'] / 1e9:.4g} GB there" if had else ", which the other has not"
        why = (
            f"; its hottest links are {tier} ({slow.hottest} first, "
            f"{float(row['max_utilisation']):.0%} used), which carry {carried}{before}"
        )
    verb = "slower" if ratio > 1 else "faster"
    factor = ratio if ratio > 1 else 1 / ratio
    said = [f"{name} is {factor:.3g} times {verb} on {other.name} than on {first.name}{why}"]
    if base.figures is not None and job.figures is not None:
        said += [f"{name} on {other.name}: {text}" for text in causes(base.figures, job.figures)]
    return said


def _failure_words(first: Design, other: Design) -> list[str]:
    said = []
    for part in ("leaf", "plane"):
        one, two = first.damage(part), other.damage(part)
        if two is None or (one is not None and _shape(one) == _shape(two)):
            continue
        verb = "keeps" if two.hosts_lost == 1 else "keep"
        lost = f", {plural(two.hosts_lost, 'host')} {verb} nothing" if two.hosts_lost else ""
        said.append(
            f"a lost {part} of {other.name} leaves the hosts it hits ({two.hosts_hit}) "
            f"{two.least_share:.4g} of their bandwidth{lost}"
            + (
                f"; of {first.name} {one.least_share:.4g} ({plural(one.hosts_hit, 'host')})"
                if one is not None
                else ""
            )
        )
    pairs = int(other.summary.get("unreachable_pairs", 0))
    if pairs:
        said.append(
            f"{other.name} leaves {pairs:,} ordered pairs of GPUs without a way on the network: "
            + "; ".join(str(group) for group in other.apart)
        )
    return said


def _shape(damage: Damage) -> tuple[float, int, int]:
    return damage.least_share, damage.hosts_hit, damage.hosts_lost


def tier_cells(job: Job) -> dict[str, str]:
    """Return what each tier of links carried, in words."""
    return {
        tier: f"{row['wire_bytes'] / 1e9:.4g} GB"
        for tier, row in sorted(job.tiers.items(), key=lambda item: _TIERS.index(item[0]))
    }


def rate_text(rate_bps: int) -> str:
    """Write a rate; none as a dash."""
    return format_rate(rate_bps) if rate_bps else "-"
