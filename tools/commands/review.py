# SPDX-License-Identifier: Apache-2.0
"""``railweave review``: the design review of a topology."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from railweave.tools.output import aligned, emit, emit_json, note, paint, write_output

if TYPE_CHECKING:
    from railweave.tools.blast import Damage, JobTime
    from railweave.tools.review import Review

__all__ = ["review"]

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
    digest of its resolved scenario, faults included.
    """
    import json as text_json

    from railweave.fabric.errors import InputError
    from railweave.fabric.network_model import phy_latency_ps
    from railweave.tools.prices import load_prices
    from railweave.tools.review import review_html, review_topology
    from railweave.topologies.cabling import plan_cables, to_csv, to_ptm
    from railweave.topologies.racks import place

    scenarios = {path.stem: path for path in workload or ()}
    if len(scenarios) < len(workload or ()):
        raise InputError("two workloads have one name", field="--workload")
    table = load_prices(prices) if prices is not None else None
    names = ("review.html", "review.json", "cabling.csv", "topology.dot")
    if output is not None:
        for name in names:
            if (output / name).exists() and not force:
                raise InputError(
                    "exists already",
                    file=str(output / name),
                    expected="another folder, or --force to replace it",
                )
    found = review_topology(source, scenarios=scenarios, prices=table)
    sections = _sections(found)
    if output is not None:
        try:
            output.mkdir(parents=True, exist_ok=True)
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
    from railweave.tools.commands.bom import shown_money, shown_power
    from railweave.tools.commands.run import shown_time

    bill = found.bill
    lines = [
        (
            line.group,
            line.item,
            line.used_for,
            f"{line.count:,}",
            shown_money(None if line.cents is None else line.cents * line.count, bill.currency),
            shown_power(None if line.power_mw is None else line.power_mw * line.count),
        )
        for line in bill.lines
    ]
    lines.append(
        (
            "fabric",
            "",
            "",
            "",
            shown_money(bill.cost_cents, bill.currency),
            shown_power(bill.power_mw),
        )
    )
    jobs = [
        (name, shown_time(job.time_ps), shown_time(job.bound_ps), job.run)
        for name, job in found.workloads.items()
    ]
    checks = [
        (fact.rule, fact.text if fact.checked else f"not checked: {fact.text}")
        for fact in found.report.facts
    ]
    verdicts = [(one.grade, one.text, one.basis) for one in found.verdicts]
    clean = [("clean", "nothing was found", "")]
    return [
        ("Figures of the checks", [("check", "figure"), *checks]),
        ("Bill of materials", [("", "item", "for", "count", "cost", "power"), *lines]),
        ("Workloads", [("workload", "time", "bound", "run"), *jobs]),
        (
            "What a failure costs, worst first",
            [
                ("part", "of", "example", "worst host keeps", "hosts hit", "lost",
                 "pairs lost", "bisection", *found.workloads),
                *(_damage_row(one, list(found.workloads.values())) for one in found.damages),
            ],
        ),
        ("Verdict", [("", "what", "from"), *(verdicts or clean)]),
    ]  # fmt: skip


def _damage_row(one: "Damage", healthy: "list[JobTime]") -> tuple[str, ...]:
    cells = []
    for job, whole in zip(one.jobs, healthy, strict=True):
        if job.time_ps is None or not whole.time_ps:
            cells.append("stops")
        else:
            ratio = job.time_ps / whole.time_ps
            bound = job.time_ps / job.bound_ps if job.bound_ps else 1.0
            cells.append(f"x{ratio:.3f} ({bound:.3f} of its bound)")
    return (
        one.failure.part,
        f"{one.failure.count:,}",
        one.failure.example,
        f"{one.least_share:.4g}",
        f"{one.hosts_hit:,}",
        f"{one.hosts_lost:,}",
        f"{one.lost_pairs:,}",
        f"{one.bisection_share:.4g}",
        *cells,
    )
