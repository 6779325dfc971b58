# SPDX-License-Identifier: Apache-2.0
"""Faults of a scenario: what they make of its fabric, and when they happen in a run."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from railweave.fabric.errors import InputError
from railweave.workloads.workload import locating

if TYPE_CHECKING:
    from railweave.fabric.engine import Engine, FabricEnvironment
    from railweave.fabric.faults import FaultPlan, LinkChange
    from railweave.fabric.graph import Fabric
    from railweave.scenario import Scenario
    from railweave.topologies.front_end import FrontEnd

__all__ = ["fault_plan", "fault_rows", "schedule_faults", "with_front_end"]


def fault_plan(scenario: Scenario) -> FaultPlan:
    """Build the fabric of a scenario, and work out what its faults make of it over time.

    Raises
    ------
    InputError
        The fabric or a fault cannot be as the scenario says.
    """
    from railweave.fabric.failover import on_nics_left
    from railweave.fabric.faults import Fault, plan_faults
    from railweave.topologies.load import build_topology

    fabric = build_topology(scenario.topology, network=scenario.model.network)
    fabric = with_front_end(scenario, fabric)
    faults = [
        Fault(
            at_ps=fault.at,
            link=fault.link,
            node=fault.node,
            do=fault.do,
            rate_bps=fault.rate,
            for_ps=fault.duration,
            priority=fault.priority,
        )
        for fault in scenario.model.faults
    ]
    with locating(scenario.document):
        plan = plan_faults(fabric, faults)
    if scenario.model.routing.failover == "none":
        return plan
    return replace(plan, fabric=on_nics_left(plan.fabric))


def with_front_end(scenario: Scenario, fabric: Fabric) -> Fabric:
    """Return a fabric with the front-end network that workloads of a scenario need beside it.

    Raises
    ------
    InputError
        Workloads want different ones: there is one for all.
    """
    found: FrontEnd | None = None
    for workload in scenario.workloads:
        wanted = workload.model.front_end
        with locating(scenario.document, *workload.loc, "frontend"):
            if found is not None and wanted is not None and wanted != found:
                raise InputError(
                    "it is not the front-end network of the workload before",
                    expected="the same keys: servers have one front-end network",
                )
            if found is None and wanted is not None:
                fabric = wanted.join(fabric)
        found = found or wanted
    return fabric


def schedule_faults(env: FabricEnvironment, engine: Engine, faults: FaultPlan) -> None:
    """Let an engine's links change at their times, before anything else happens then."""
    plan = getattr(engine, "plan_faults", None)
    if plan is not None:
        plan(faults)
        return

    def change(at_ps: int, changes: list[LinkChange]) -> None:
        def apply(_: Any) -> None:
            for one in changes:
                engine.set_link(one.link, up=one.up, rate_bps=one.rate_bps)

        if at_ps == 0:
            apply(None)
            return
        timer = env.timeout(at_ps)
        assert timer.callbacks is not None
        timer.callbacks.append(apply)

    for at_ps, group in groupby(faults.changes, key=lambda one: one.at_ps):
        change(at_ps, list(group))


def fault_rows(faults: FaultPlan, *, until_ps: int) -> dict[str, Any]:
    """Return the faults up to a time and their ends, for ``result.json``; empty without any."""
    rows = [
        {"at_ps": mark.at_ps, "what": mark.what, "did": mark.did, "links": mark.links}
        for mark in faults.marks
        if mark.at_ps <= until_ps
    ]
    return {"faults": rows} if rows else {}
