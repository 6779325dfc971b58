# SPDX-License-Identifier: Apache-2.0
"""Designs with their figures, under each way to route, and those that no other beats.

How flows choose among equal paths costs nothing and is no part of a topology, so every design is
run with each: hashed over one queue pair or several, pinned to its rail, or sprayed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, get_args

from railweave.fabric.errors import InputError, nearest_name
from railweave.tools.comparing import job_on, look_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from railweave.tools.comparing import Job
    from railweave.tools.designing import Candidate
    from railweave.tools.prices import PriceList

__all__ = ["Choice", "evaluate", "pareto", "parse_routing", "unpriced"]

_MOST_QPS: Final = 4096


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A design and a way to route on it.

    Parameters
    ----------
    candidate
        The design; with its figures, if it can be built.
    routing
        As it was asked for, such as ``ecmp:8``; empty where each workload has its own.
    jobs
        Each workload's run, by name.
    """

    candidate: Candidate
    routing: str
    jobs: Mapping[str, Job]

    @property
    def times_ps(self) -> tuple[int | None, ...]:
        """Time of each workload in ps, None where it cannot run."""
        return tuple(job.time.time_ps for job in self.jobs.values())

    def goals(self) -> tuple[int, ...] | None:
        """Return cost in cents, power in mW and job times in ps, None where one cannot run."""
        design = self.candidate.design
        times = [time for time in self.times_ps if time is not None]
        if design is None or len(times) < len(self.jobs):
            return None
        return design.bill.cost_cents, design.bill.power_mw, *times


def parse_routing(text: str) -> dict[str, Any]:
    """Return the keys of a scenario for a way to route: a policy, and after a colon queue pairs.

    Raises
    ------
    InputError
        There is no such policy, or no such number of queue pairs.

    Examples
    --------
    >>> parse_routing("ecmp:8")
    {'routing.policy': 'ecmp', 'routing.qps': 8}
    """
    from railweave.scenario import RoutingModel

    policies = get_args(RoutingModel.model_fields["policy"].annotation)
    policy, colon, qps = text.partition(":")
    if policy not in policies:
        raise InputError(
            f"'{policy}' is not a way to route",
            field="--routing",
            expected=" | ".join(policies),
            nearest=nearest_name(policy, policies),
        )
    keys: dict[str, Any] = {"routing.policy": policy}
    if colon:
        if not (qps.isascii() and qps.isdigit() and 1 <= int(qps) <= _MOST_QPS):
            raise InputError(
                f"'{qps}' is not a number of queue pairs",
                field="--routing",
                expected=f"1 to {_MOST_QPS}, such as {policy}:8",
            )
        keys["routing.qps"] = int(qps)
    return keys


def evaluate(
    one: Candidate,
    path: Path,
    workloads: Mapping[str, Path],
    prices: PriceList | None,
    routings: Mapping[str, Mapping[str, Any]],
) -> list[Choice]:
    """Return a candidate with its figures under each way to route.

    Parameters
    ----------
    one, path
        The candidate, and the file it was written to.
    workloads
        Scenario files by name.
    prices
        In place of the catalogue's.
    routings
        Keys of a scenario by the name of the way; ``{"": {}}`` leaves each workload its own.
    """
    if one.refused:
        return [Choice(candidate=one, routing="", jobs={})]
    source = str(path.resolve())
    design = look_at(source, workloads={}, failures=False, prices=prices)
    found = []
    for routing, keys in routings.items():
        jobs = {name: job_on(file, source, dict(keys)) for name, file in workloads.items()}
        with_jobs = replace(one, design=replace(design, jobs=jobs))
        found.append(Choice(candidate=with_jobs, routing=routing, jobs=jobs))
    return found


def pareto(found: Sequence[Choice]) -> list[Choice]:
    """Return the choices that no other beats in cost, power and all times at once.

    One that cannot run a workload, or whose parts lack a price, is not among them: nothing can be
    said of it.
    """
    able = [
        (one, goals)
        for one in found
        if (goals := one.goals()) is not None and not unpriced(one.candidate)
    ]
    return [
        one
        for one, goals in able
        if not any(
            other != goals and all(a <= b for a, b in zip(other, goals, strict=True))
            for _, other in able
        )
    ]


def unpriced(one: Candidate) -> list[str]:
    """Return the parts of a candidate, but fibres, that have no price."""
    if one.design is None:
        return []
    missing = one.design.bill.missing("cents")
    return [item for item in dict.fromkeys(missing) if item != "fibre"]
