# SPDX-License-Identifier: Apache-2.0
"""What a check is, what it is given, and what it may say.

A check yields *findings*, where something is not as it should be, and *facts*, figures that a
reviewer wants to see though nothing is wrong. Checks that look for causes (a cable in the wrong
place) run before those that see effects (a bandwidth that is not as declared); an effect on the
very devices of a cause is told as its consequence, so that one fault makes one finding.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from railweave.topologies.review.case import Case

__all__ = [
    "CHECKS",
    "Check",
    "Fact",
    "Finding",
    "Found",
    "Level",
    "Report",
    "check_named",
    "run_checks",
]

Level = Literal["error", "warning", "info"]
_ORDER: Final = ("error", "warning", "info")
Part = Literal["cause", "effect", "figure"]

Value = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a check found: ``error`` fails the check, the others do not.

    Parameters
    ----------
    level, rule, message
        How bad, which check, and what was found, with its numbers.
    where
        Devices, ports or cables, the first few.
    why, mend
        Why it matters and how to mend it.
    file, line
        Where the file speaks of it.
    consequences
        What other checks saw of the same fault.
    """

    level: Level
    rule: str
    message: str
    where: tuple[str, ...] = ()
    why: str = ""
    mend: str = ""
    file: str | None = None
    line: int | None = None
    consequences: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """File and line, as far as they are known."""
        if self.file is None:
            return "" if self.line is None else f"line {self.line}"
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A figure of a design: the check that gives it, words, and values by name with their unit.

    ``checked`` is False where the check could not be made; the text says why.
    """

    rule: str
    text: str
    values: Mapping[str, object] = field(default_factory=dict)
    checked: bool = True


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a check's code yields for a finding.

    Parameters
    ----------
    devices
        Dense indices of what is at fault (a cause) or of what it shows on (an effect).
    at
        Device or link that the file is to be searched for; links as ``~link``.
    why, mend
        Of this finding, where they are not those of the check.
    """

    level: Level
    message: str
    where: tuple[str, ...] = ()
    devices: frozenset[int] = frozenset()
    at: int | None = None
    why: str = ""
    mend: str = ""


@dataclass(frozen=True, kw_only=True)
class Check:
    """A named check.

    Parameters
    ----------
    rule
        Its name, as findings bear it.
    about
        What it looks at, in a sentence.
    why, mend
        Why a finding matters, and how one is mended.
    part
        ``cause``: its findings explain others; ``effect``: they may be explained; ``figure``: it
        only gives figures, or findings that take long to look for.
    """

    rule: str
    about: str
    why: str
    mend: str
    part: Part
    run: Callable[[Case], Iterable[Found | Fact]]


@dataclass(frozen=True, kw_only=True)
class Report:
    """What all checks said: findings, errors first, and facts in the order of the checks."""

    findings: tuple[Finding, ...]
    facts: tuple[Fact, ...]

    def fact(self, rule: str) -> Fact | None:
        """Return the first fact of a check, or None."""
        return next((fact for fact in self.facts if fact.rule == rule), None)


CHECKS: Final[dict[str, Check]] = {}
"""Every check by name, in the order in which they run."""


def check_named(
    rule: str, *, about: str, why: str, mend: str, part: Part
) -> Callable[[Callable[[Case], Iterator[Found | Fact]]], Callable[[Case], Iterator[Found | Fact]]]:
    """Return the decorator that makes a function a check of that name."""

    def add(
        run: Callable[[Case], Iterator[Found | Fact]],
    ) -> Callable[[Case], Iterator[Found | Fact]]:
        CHECKS[rule] = Check(rule=rule, about=about, why=why, mend=mend, part=part, run=run)
        return run

    return add


def run_checks(case: Case, *, figures: bool, rules: Iterable[str] | None = None) -> Report:
    """Run checks on a case.

    Parameters
    ----------
    case
        The fabric, and what is known of it.
    figures
        Also those that give figures only, or take long.
    rules
        Only these (default: all).
    """
    chosen = [CHECKS[rule] for rule in rules] if rules is not None else list(CHECKS.values())
    order = ("cause", "effect", "figure")
    chosen.sort(key=lambda one: order.index(one.part))
    causes: list[tuple[Finding, frozenset[int]]] = []
    others: list[Finding] = []
    facts: list[Fact] = []
    for one in chosen:
        if one.part == "figure" and not figures and rules is None:
            continue
        for said in one.run(case):
            if isinstance(said, Fact):
                facts.append(said)
                continue
            finding = _finding(one, said, case)
            if one.part == "cause":
                causes.append((finding, said.devices))
                case.causes.update(said.devices)
                continue
            mine = [i for i, (_, devices) in enumerate(causes) if devices & said.devices]
            if one.part == "effect" and mine:
                for i in mine:
                    cause, devices = causes[i]
                    told = (*cause.consequences, f"{finding.rule}: {finding.message}")
                    causes[i] = (replace(cause, consequences=told), devices)
            else:
                others.append(finding)
    found = [*(finding for finding, _ in causes), *others]
    found.sort(key=lambda finding: _ORDER.index(finding.level))
    return Report(findings=tuple(found), facts=tuple(facts))


def _finding(one: Check, said: Found, case: Case) -> Finding:
    file, line = case.locate(said.at)
    return Finding(
        level=said.level,
        rule=one.rule,
        message=said.message,
        where=said.where,
        why=said.why or one.why,
        mend=said.mend or one.mend,
        file=file,
        line=line,
    )
