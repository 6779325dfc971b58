# SPDX-License-Identifier: Apache-2.0
"""``railweave review``: the design review of a topology."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from railweave.tools.output import aligned, emit, emit_json, note, paint, write_output

if TYPE_CHECKING:
    from railweave.tools.blast import Damage
    from railweave.tools.job_time import JobTime
    from railweave.tools.review import Review
    from railweave.tools.transports import TransportRun
    from railweave.topologies.apart import Apart

__all__ = ["review", "shown_job"]

_Section = tuple[str, list[tuple[str, ...]]]


def review(
    source: Annotated[
        str,
        typer.Argument(
            metavar="TOPOLOGY",
            help="A topology file, or the name of a shipped design.",
            show_default=False,
        ),
    ],
    workload: Annotated[
        list[Path] | None,
        typer.Option(
            help="A scenario to run on it, its topology replaced; may be repeated.",
            show_default=False,
        ),
    ] = None,
    transports: Annotated[
        bool,
        typer.Option(
            "--transports",
            help="Run the workloads packet by packet too, lossless and loss-tolerant.",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="Write review.html and .json, cabling.csv, topology.dot."
        ),
    ] = None,
    prices: Annotated[
        Path | None, typer.Option(help="A file of prices that replace the catalogue's.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
) -> None:
    """Check it, price it, run workloads, fail one part of each kind; 1 if anything is blocking.

    Every line of the verdict names the check it rests on, or the run: the first digits of the
    digest of its resolved scenario, faults included, which -o writes to runs/ID.yaml.
    """
    import json as text_json

    from railweave.fabric.errors import InputError
    from railweave.fabric.network_model import phy_latency_ps
    from railweave.tools.prices import load_prices
    from railweave.tools.review import review_topology
    from railweave.tools.review_page import review_html
    from railweave.topologies.cabling import plan_cables, to_csv, to_ptm
    from railweave.topologies.racks import place
    from railweave.yaml_text import yaml_text

    scenarios = {path.stem: path for path in workload or ()}
    if len(scenarios) < len(workload or ()):
        raise InputError("two workloads have one name", field="--workload")
    table = load_prices(prices) if prices is not None else None
    names = ("review.html", "review.json", "cabling.csv", "topology.dot")
    if output is not None:
        for name in (*names, "runs"):
            if (output / name).exists() and not force:
                raise InputError(
                    "exists already",
                    file=str(output / name),
                    expected="another folder, or --force to replace it",
                )
    found = review_topology(source, scenarios=scenarios, prices=table, transports=transports)
    sections = _sections(found)
    if output is not None:
        try:
            (output / "runs" if scenarios else output).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"cannot be made: {error.strerror}", file=str(output), expected="a folder"
            ) from None
        racks = place(found.fabric, found.spec)
        plan = plan_cables(found.fabric, racks, phy_ps=phy_latency_ps(found.spec.network))
        data = text_json.dumps({"schema": 1, **found.to_dict()}, indent=2) + "\n"
        texts = (review_html(found, sections), data, to_csv(plan), to_ptm(plan))
        for name, text in zip(names, texts, strict=True):
            write_output(output / name, text, force=force)
            note(f"wrote {output / name}")
        runs = found.runs()
        for run, scenario in runs.items():
            write_output(output / "runs" / f"{run}.yaml", yaml_text(scenario), force=force)
        if runs:
            note(f"wrote {len(runs)} scenarios to {output / 'runs'}: `railweave run` repeats them")
    if json:
        emit_json(found.to_dict())
    else:
        emit(paint(f"Review of {found.fabric.name}", "bold"))
        for title, rows in sections:
            head, *body = rows
            if not body:
                continue
            emit(f"\n{paint(title, 'bold')}")
            emit(aligned(body, header=head, indent="  "))
    if found.blocked:
        raise typer.Exit(1)


def _sections(found: "Review") -> list[_Section]:
    from railweave.tools.commands.bom import (
        fabric_totals,
        shown_length,
        shown_money,
        shown_power,
    )
    from railweave.tools.words import shown_time

    bill = found.bill
    lines = [
        (
            line.group,
            line.item,
            line.used_for,
            shown_length(line.length_mm),
            f"{line.count:,}",
            shown_money(None if line.cents is None else line.cents * line.count, bill.currency),
            shown_power(None if line.power_mw is None else line.power_mw * line.count),
        )
        for line in bill.lines
    ]
    cost, power = (said.partition(", ") for said in fabric_totals(bill).values())
    without = " and ".join(part for part in dict.fromkeys((cost[2], power[2])) if part)
    lines.append(("fabric", without, "", "", "", cost[0], power[0]))
    jobs = [
        (name, shown_time(job.time_ps), shown_time(job.bound_ps), job.run)
        for name, job in found.workloads.items()
    ]
    checks = [
        (fact.rule, fact.text if fact.checked else f"not checked: {fact.text}")
        for fact in found.report.facts
    ]
    apart = [("as built", *_apart_cells(one)) for one in found.apart]
    apart += [
        (f"{one.failure.part} {one.failure.example} lost", *_apart_cells(group))
        for one in found.damages
        for group in one.lost
    ]
    groups = [
        (
            one.workload,
            one.name,
            f"{one.count:,}",
            f"{one.ranks:,}",
            f"{one.apart:,}",
            one.example or "-",
            f"{one.apart_without_top:,}",
        )
        for one in found.groups
    ]
    transports = [_transport_row(one) for one in found.transports]
    verdicts = [(one.grade, one.text, one.basis) for one in found.verdicts]
    clean = [("clean", "nothing was found", "")]
    return [
        ("Figures of the checks", [("check", "figure"), *checks]),
        ("Bill of materials", [("", "item", "for", "length", "count", "cost", "power"), *lines]),
        ("Workloads", [("workload", "time", "bound", "run"), *jobs]),
        (
            "Process groups",
            [
                ("workload", "group", "count", "ranks", "not joined", "the first", "without the "
                 "top tier"),
                *groups,
            ],
        ),
        (
            "What a failure costs, worst first",
            [
                ("part", "of", "example", "worst host keeps", "hosts hit", "lost",
                 "pairs lost", "bisection", *found.workloads),
                *(_damage_row(one, list(found.workloads.values())) for one in found.damages),
            ],
        ),
        (
            "GPUs that cannot reach each other on the network",
            [("when", "these", "and these", "ordered pairs", ""), *apart],
        ),
        (
            "Transports, packet by packet",
            [
                ("workload", "transport", "time", "p99 of flows", "pauses", "paused", "victims",
                 "drops", "trims", "timeouts", "sent again", "headroom", "run"),
                *transports,
            ],
        ),
        ("Verdict", [("", "what", "from"), *(verdicts or clean)]),
    ]  # fmt: skip


def _apart_cells(one: "Apart") -> tuple[str, ...]:
    from railweave.topologies.name_ranges import name_ranges

    return (
        name_ranges(one.one),
        "each other" if one.one == one.other else name_ranges(one.other),
        f"{one.pairs:,}",
        "but those that NVLink or PCIe joins" if one.joined else "",
    )


def _transport_row(one: "TransportRun") -> tuple[str, ...]:
    from railweave.tools.words import shown_time

    if one.time_ps is None:
        return (one.workload, one.transport, one.said, *[""] * 9, one.run)
    return (
        one.workload,
        one.transport,
        shown_time(one.time_ps),
        "-" if one.p99_ps is None else shown_time(one.p99_ps),
        f"{one.pause_frames:,}",
        shown_time(one.paused_ps),
        f"{one.victims:,}",
        f"{one.drops:,}",
        f"{one.trims:,}",
        f"{one.timeouts:,}",
        f"{one.resent_bytes / 1e6:.4g} MB",
        f"{one.headroom_bytes / 1e6:.4g} MB",
        one.run,
    )


def _damage_row(one: "Damage", healthy: "list[JobTime]") -> tuple[str, ...]:
    return (
        one.failure.part,
        f"{one.failure.count:,}",
        one.failure.example,
        f"{one.least_share:.4g}",
        f"{one.hosts_hit:,}",
        f"{one.hosts_lost:,}",
        f"{one.lost_pairs:,}",
        f"{one.bisection_share:.4g}",
        *(shown_job(job, whole) for job, whole in zip(one.jobs, healthy, strict=True)),
    )


def shown_job(job: "JobTime", whole: "JobTime") -> str:
    """Write a job's time under a failure over its healthy one, and over its own bound."""
    if not whole.time_ps:
        return "cannot run"
    left = job.after_all
    if left.time_ps is None:
        return f"stops (run {job.run})"
    bound = left.time_ps / left.bound_ps if left.bound_ps else 1.0
    figures = f"x{left.time_ps / whole.time_ps:.3f} ({bound:.3f} of its bound, run {left.run})"
    return figures if job.time_ps is not None else f"stops; started again {figures}"
