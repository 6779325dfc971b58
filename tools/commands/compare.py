# SPDX-License-Identifier: Apache-2.0
"""``railweave compare``: designs or runs side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from railweave.fabric.words import plural
from railweave.tools.output import aligned, check_free, emit, emit_json, note, write_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.tools.comparing import Design

__all__ = ["compare", "markdown_table"]

_PARTS = ("host", "leaf", "spine", "core", "plane", "optic", "nic", "host-leaf cable",
          "leaf-spine cable", "spine-core cable")  # fmt: skip


def compare(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="A B ...",
            help="Topology files or shipped designs, or folders of runs.",
            show_default=False,
        ),
    ],
    workload: Annotated[
        list[Path] | None,
        typer.Option(
            help="A scenario to run on every design, its topology replaced; may be repeated.",
            show_default=False,
        ),
    ] = None,
    prices: Annotated[
        Path | None, typer.Option(help="A file of prices that replace the catalogue's.")
    ] = None,
    failures: Annotated[
        bool, typer.Option(help="Fail one part of each class of every design.")
    ] = True,
    jobs_fail: Annotated[
        bool,
        typer.Option("--jobs-fail", help="Run the workloads under each of these failures too."),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write the page there, as Markdown."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Compare designs under the same workloads, or runs: one table, and differences in words."""
    from railweave.fabric.errors import InputError
    from railweave.tools.comparing import compare_words, look_at
    from railweave.tools.comparing_runs import run_rows, run_words
    from railweave.tools.prices import load_prices
    from railweave.tools.run_figures import read_run_figures

    if len(sources) < 2:
        raise InputError("there is nothing to compare it with", expected="two or more")
    check_free(output, force=force)
    runs = [Path(source).is_dir() for source in sources]
    if any(runs) and not all(runs):
        raise InputError(
            "designs and runs do not compare", expected="topologies only, or folders of runs only"
        )
    if all(runs):
        figures = [read_run_figures(Path(source)) for source in sources]
        rows, words = run_rows(figures), run_words(figures)
        names = [f"{one.name} ({source})" for one, source in zip(figures, sources, strict=True)]
        data: dict[str, Any] = {"runs": [one.to_dict() for one in figures], "words": words}
    else:
        table = load_prices(prices) if prices is not None else None
        workloads = {path.stem: path for path in workload or ()}
        if len(workloads) < len(workload or ()):
            raise InputError("two workloads have one name", field="--workload")
        designs = [
            look_at(
                source,
                workloads=workloads,
                failures=failures,
                jobs_fail=jobs_fail,
                prices=table,
            )
            for source in sources
        ]
        rows, words = _design_rows(designs), compare_words(designs)
        names = [one.name for one in designs]
        data = {"designs": [one.to_dict() for one in designs], "words": words}
    if output is not None:
        page = f"{markdown_table(names, rows)}\n\n" + "\n".join(f"- {word}." for word in words)
        write_output(output, page + "\n", force=force)
        note(f"wrote {output}")
    if json:
        emit_json(data)
        return
    emit(aligned(rows, header=("", *names), right=tuple(range(1, len(names) + 1))))
    for word in words:
        emit(f"- {word}")


def markdown_table(names: "Sequence[str]", rows: "Sequence[Sequence[str]]") -> str:
    """Write a table in Markdown, a column per design.

    Examples
    --------
    >>> print(markdown_table(["a"], [("hosts", "8")]))
    |  | a |
    |---|---:|
    | hosts | 8 |
    """

    def cell(text: str) -> str:
        return text.replace("|", "\\|")

    lines = [f"|  | {' | '.join(map(cell, names))} |", f"|---|{'---:|' * len(names)}"]
    lines += [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return "\n".join(lines)


def _design_rows(designs: "Sequence[Design]") -> list[tuple[str, ...]]:
    from railweave.tools.commands.bom import shown_money, shown_power
    from railweave.tools.comparing import rate_text
    from railweave.tools.comparing_runs import figure_rows

    def row(title: str, cells: list[str]) -> None:
        if any(cell not in ("-", "0") for cell in cells):
            rows.append((title, *cells))

    rows: list[tuple[str, ...]] = []
    for key in ("gpus", "hosts"):
        row("GPUs" if key == "gpus" else key, [f"{one.summary[key]:,}" for one in designs])
    for tier in ("leaf", "spine", "core"):
        row(f"{tier} switches", [f"{one.summary['switches'][tier]:,}" for one in designs])
    for tier in ("host-leaf", "leaf-spine", "spine-core"):
        row(f"{tier} cables", [f"{one.bill.cables.get(tier, 0):,}" for one in designs])
    for group, title in (("optic", "optics"), ("cable", "copper and AOC"), ("nic", "NICs")):
        row(title, [f"{one.bill.number(group):,}" for one in designs])
    row("cost of the fabric", [shown_money(o.bill.cost_cents, o.bill.currency) for o in designs])
    row(
        "unpriced, and not in it",
        [", ".join(dict.fromkeys(o.bill.missing("cents"))) or "-" for o in designs],
    )
    row(
        "of which without NICs",
        [
            shown_money(
                sum(
                    line.count * line.cents
                    for line in one.bill.network
                    if line.cents is not None and line.group != "nic"
                ),
                one.bill.currency,
            )
            for one in designs
        ],
    )
    row("power of switches and optics", [shown_power(one.bill.power_mw) for one in designs])
    row("bisection", [rate_text(one.bisection_bps) for one in designs])
    row(
        "oversubscription",
        [
            ", ".join(
                f"{tier} {value:g}:1"
                for tier, value in one.summary["oversubscription"].items()
                if value is not None
            )
            or "-"
            for one in designs
        ],
    )
    row("ports left", [_ports(one) for one in designs])
    row("pairs without a way", [f"{one.summary.get('unreachable_pairs', 0):,}" for one in designs])
    for name in designs[0].jobs:
        row(f"{name}: time", [_time(one, name) for one in designs])
        row(f"{name}: bound", [_bound(one, name) for one in designs])
        rows += [
            (f"{name}: {title}", *cells)
            for title, *cells in figure_rows([one.jobs[name].figures for one in designs])
        ]
        for tier in ("nvlink", "host-leaf", "leaf-spine", "spine-core"):
            row(f"{name}: bytes on {tier}", [_bytes(one, name, tier) for one in designs])
    for part in _PARTS:
        row(f"one {part} lost", [_lost(one, part) for one in designs])
    for name in designs[0].jobs:
        for part in _PARTS:
            row(f"{name}, one {part} lost", [_job_lost(one, name, part) for one in designs])
    return rows


def _job_lost(one: "Design", name: str, part: str) -> str:
    """Write a job's time under the failure of a part over its healthy one, and over its bound."""
    found = one.damage(part)
    whole = one.jobs[name].time
    if found is None or not found.jobs or not whole.time_ps:
        return "-"
    job = found.jobs[list(one.jobs).index(name)]
    left = job.after_all
    if left.time_ps is None:
        return "stops"
    bound = left.time_ps / left.bound_ps if left.bound_ps else 1.0
    figures = f"x{left.time_ps / whole.time_ps:.3f} ({bound:.3f})"
    return figures if job.time_ps is not None else f"stops, then {figures}"


def _ports(one: "Design") -> str:
    return ", ".join(f"{tier} {free}" for tier, (free, _) in one.ports.items()) or "-"


def _time(one: "Design", name: str) -> str:
    from railweave.tools.words import shown_time

    job = one.jobs[name].time
    return "cannot run" if job.time_ps is None else shown_time(job.time_ps)


def _bound(one: "Design", name: str) -> str:
    from railweave.tools.words import shown_time

    return shown_time(one.jobs[name].time.bound_ps)


def _bytes(one: "Design", name: str, tier: str) -> str:
    found = one.jobs[name].tiers.get(tier)
    return "-" if not found else f"{found['wire_bytes'] / 1e9:.4g} GB"


def _lost(one: "Design", part: str) -> str:
    found = one.damage(part)
    if found is None:
        return "-"
    if found.hosts_lost:
        return f"{plural(found.hosts_lost, 'host')} lost"
    if not found.hosts_hit:
        return f"bisection {found.bisection_share:.4g}"
    verb = "keeps" if found.hosts_hit == 1 else "keep"
    return f"{plural(found.hosts_hit, 'host')} {verb} {found.least_share:.4g}"
