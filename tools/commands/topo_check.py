# SPDX-License-Identifier: Apache-2.0
"""``railweave topo check``: every static check of a topology."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from railweave.tools.opening import open_topology
from railweave.tools.output import aligned, emit, emit_json, paint

if TYPE_CHECKING:
    from railweave.topologies.checks import Fact, Finding, Report

__all__ = ["check_topology", "fact_dict", "finding_dict"]

_LINE = 200  # characters: longer messages have a line for each part
_COLOUR: Final = {"error": "red", "warning": "yellow", "info": "green"}


def check_topology(
    source: Annotated[
        str,
        typer.Argument(
            metavar="TOPOLOGY",
            help="A topology file, or the name of a shipped design.",
            show_default=False,
        ),
    ],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings fail too.")] = False,
    facts: Annotated[
        bool, typer.Option("--facts", help="Show the figures of every check, and what none tells.")
    ] = False,
    cabling: Annotated[
        Path | None,
        typer.Option(
            help="Check it as cabled: a plan as `bom --cabling` writes it, in place of its cables."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="RULE", help="Run these checks alone.", show_default=False),
    ] = None,
) -> None:
    """Check ports, rails, cuts, hosts, buffers and cables; 1 on an error.

    A fault makes one finding: what else it shows in is told as its consequence.
    """
    from railweave.fabric.errors import InputError, nearest_name
    from railweave.topologies.cabling import read_cabling, rewire
    from railweave.topologies.checks import CHECKS, inspect

    for rule in only or ():
        if rule not in CHECKS:
            raise InputError(
                f"there is no check '{rule}'",
                expected=", ".join(CHECKS),
                nearest=nearest_name(rule, CHECKS),
            )
    spec, fabric = open_topology(source)
    rows: dict[int, tuple[str, int]] = {}
    if cabling is not None:
        inner = int((~fabric.link_network).sum()) // 2
        plan = read_cabling(cabling)
        fabric = rewire(fabric, plan, file=str(cabling))
        rows = {inner + i: (str(cabling), i + 2) for i in range(len(plan))}
    report = inspect(fabric, spec, rows=rows, rules=only)
    errors = sum(finding.level == "error" for finding in report.findings)
    warnings = sum(finding.level == "warning" for finding in report.findings)
    failed = errors + (warnings if strict else 0)
    if json:
        emit_json(
            {
                "topology": fabric.name,
                "ok": failed == 0,
                "strict": strict,
                "findings": [finding_dict(finding) for finding in report.findings],
                "facts": [fact_dict(fact) for fact in report.facts],
            }
        )
    else:
        _show(report, fabric.name, errors, warnings, facts=facts)
    if failed:
        raise typer.Exit(1)


def finding_dict(finding: "Finding") -> dict[str, Any]:
    """Return a finding as plain data."""
    return {
        "level": finding.level,
        "rule": finding.rule,
        "message": finding.message,
        "where": list(finding.where),
        "why": finding.why,
        "mend": finding.mend,
        "file": finding.file,
        "line": finding.line,
        "consequences": list(finding.consequences),
    }


def fact_dict(fact: "Fact") -> dict[str, Any]:
    """Return a fact as plain data."""
    return {
        "rule": fact.rule,
        "text": fact.text,
        "checked": fact.checked,
        "values": dict(fact.values),
    }


def _show(report: "Report", name: str, errors: int, warnings: int, *, facts: bool) -> None:
    for found in report.findings:
        level = paint(f"{found.level:<7}", _COLOUR.get(found.level, "bold"))
        first, *parts = found.message.split("; ") if len(found.message) > _LINE else [found.message]
        emit(f"{level}  {found.rule}: {first}")
        for part in parts:
            emit(f"{' ' * 9}{part}")
        rows = [
            ("at", found.place),
            ("why", found.why),
            ("mend", found.mend),
            *(("hence", told) for told in found.consequences),
        ]
        emit(aligned([row for row in rows if row[1]], indent=" " * 9))
    if facts:
        emit(
            aligned(
                [(fact.rule, ("" if fact.checked else "not checked: ") + fact.text)
                 for fact in report.facts],
                indent="  ",
            )
        )  # fmt: skip
    from railweave.fabric.words import plural

    more = f", {plural(warnings, 'warning')}" if warnings else ""
    emit(f"{name}: {plural(errors, 'error')}{more}")
