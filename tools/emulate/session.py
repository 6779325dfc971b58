# SPDX-License-Identifier: Apache-2.0
"""Emulate a scenario: build its network, predict, measure, and give both results."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from railweave.fabric.errors import InputError
from railweave.fabric.units import PS_PER_S, format_time
from railweave.runner import Stage, run_scenario
from railweave.scenario import scenario_sha256
from railweave.tools.emulate.choosing import PathChooser
from railweave.tools.emulate.emulated import EmulatedEngine, Stall
from railweave.tools.emulate.faults import deeds
from railweave.tools.emulate.kernel_routing import KernelRouting
from railweave.tools.emulate.lab import Lab
from railweave.tools.emulate.layout import lay_out
from railweave.tools.emulate.predicting import PredictingEngine
from railweave.tools.emulate.priority import before_others
from railweave.tools.emulate.rehearsal import rehearse
from railweave.tools.emulate.rerouting import ReroutingEngine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from railweave.fabric.engine import FabricEnvironment, LinkCounters
    from railweave.fabric.faults import LinkChange
    from railweave.fabric.routing import Routing
    from railweave.result import Result
    from railweave.scenario import Scenario
    from railweave.tools.emulate.faults import Deed
    from railweave.tools.emulate.headroom import Headroom
    from railweave.tools.emulate.layout import Options
    from railweave.tools.emulate.rehearsal import Phase

__all__ = ["Emulation", "emulate", "predict"]


@dataclass(frozen=True, kw_only=True)
class Emulation:
    """What came of it.

    Parameters
    ----------
    options
        How it was done.
    predicted, measured
        The same scenario on the fluid engine and as a network, in the fabric's time.
    headroom
        How busy the CPUs were, or None where no traffic ran.
    expected
        What each link should have carried by sizes and paths; None where faults moved them.
    stalls
        Flow or collective -> its longest silence.
    inside
        Tag and start (ps) of the collectives that stayed inside hosts, and were not emulated.
    drops
        Packets that the shapers dropped.
    wall_s
        How long traffic ran here, in s.
    congestion
        TCP congestion control that was used.
    unprivileged
        Whether it ran in a user namespace.
    """

    options: Options
    predicted: Result
    measured: Result
    headroom: Headroom | None
    expected: LinkCounters | None
    stalls: Mapping[str, Stall]
    inside: frozenset[tuple[str, int]]
    drops: int
    wall_s: float
    congestion: str
    unprivileged: bool


def _without_faults(scenario: Scenario) -> Scenario:
    """Return a scenario whose faults somebody else sees to."""
    return replace(scenario, model=scenario.model.model_copy(update={"faults": ()}))


def emulate(scenario: Scenario, options: Options) -> Emulation:
    """Build a scenario's network, predict what it will do, and measure it.

    Parameters
    ----------
    scenario
        From `load_for_emulation`.
    options
        How.

    Raises
    ------
    InputError
        The scenario cannot be emulated, or would take longer than the limit.
    MissingToolError
        Namespaces are not permitted here, or the kernel lacks something.
    """
    plan, routing, changes = lay_out(scenario, options)
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(plan, mode=options.mode, limit_s=options.limit_s))
        kernel, predicted, phases, plan_deeds = _prepared(scenario, options, lab, routing, changes)
        expected_s = _busy_ps(predicted) * options.scale / PS_PER_S
        last_s = max((phase.wall_ns for phase in phases), default=0) / 1e9
        if expected_s > options.limit_s:
            raise InputError(
                f"the emulation would take {expected_s:.0f} s",
                field="limit",
                expected=f"at most {options.limit_s:g} s: less traffic, a smaller scale, "
                "or a higher --limit",
            )
        if phases:  # the rehearsal has changed it: build it again
            lab.close()
            fresh = Lab(plan, mode=options.mode, limit_s=options.limit_s, circuits=lab.circuits)
            lab = stack.enter_context(fresh)
        lab.expected_s = expected_s + last_s
        lab.deeds = plan_deeds
        measured, engine = _measure(scenario, lab, kernel)
        if phases:
            silences = {name: stall.length_ns for name, stall in engine.stalls.items()}
            predicted = predict(scenario, lab, kernel, phases=phases, stalls_ns=silences)
        return Emulation(
            options=options,
            predicted=predicted,
            measured=_told(measured, scenario, options, lab, hidden=bool(engine.inside)),
            headroom=lab.headroom,
            wall_s=(engine.ended_ns - engine.began_ns) / 1e9 if engine.began_ns else 0.0,
            expected=None if phases else engine.arithmetic(),
            stalls=engine.stalls,
            inside=frozenset(engine.inside),
            drops=lab.drops() if measured.error is None else 0,
            congestion=lab.congestion,
            unprivileged=lab.sandbox.unprivileged,
        )


def _prepared(
    scenario: Scenario,
    options: Options,
    lab: Lab,
    routing: Routing,
    changes: Sequence[LinkChange],
) -> tuple[KernelRouting, Result, list[Phase], list[Deed]]:
    """Find every circuit by a prediction, and rehearse the faults."""
    kernel = KernelRouting(
        lab.plan.fabric,
        policy=routing.policy,
        seed=routing.seed,
        circuits=lab.circuits,
        chooser=PathChooser(routing, options.paths),
    )
    predicted = predict(scenario, lab, kernel)
    predicted.raise_for_status()
    plan_deeds = deeds(
        lab.plan,
        lab.shaping,
        changes,
        policy=routing.policy,
        seed=routing.seed,
        reroute_ns=int(options.reroute_s * 1e9),
    )
    phases = rehearse(lab, plan_deeds)
    if phases:
        predicted = predict(scenario, lab, kernel, phases=phases)
        predicted.raise_for_status()
    return kernel, predicted, phases, plan_deeds


def predict(
    scenario: Scenario,
    lab: Lab,
    kernel: KernelRouting,
    *,
    phases: Sequence[Phase] = (),
    stalls_ns: Mapping[str, int] | None = None,
) -> Result:
    """Run a scenario on the fluid engine over the kernels' paths.

    Parameters
    ----------
    phases
        What faults change, from a rehearsal.
    stalls_ns
        Silences that were measured after them, in ns of the wall clock.
    """

    def stage(env: FabricEnvironment, scenario: Scenario) -> Stage:
        given: dict[str, Any] = {
            "burst_bytes": lab.burst_bytes,
            "credit_ps": lab.credit_ps,
            "qps": scenario.model.routing.qps,
            "qp_mode": scenario.model.routing.qp_mode,
        }
        place = (env, kernel.fabric, kernel, scenario.settings)
        engine = (
            ReroutingEngine(
                *place,
                phases=phases,
                scale=lab.plan.scale,
                stalls_ns=stalls_ns or {},
                **given,
            )
            if phases
            else PredictingEngine(*place, **given)
        )
        return Stage(fabric=kernel.fabric, routing=kernel, engine=engine)

    return run_scenario(_without_faults(scenario), stage=stage)


def _measure(scenario: Scenario, lab: Lab, kernel: KernelRouting) -> tuple[Result, EmulatedEngine]:
    engines: list[EmulatedEngine] = []

    def stage(env: FabricEnvironment, scenario: Scenario) -> Stage:
        engine = EmulatedEngine(
            env,
            kernel.fabric,
            kernel,
            scenario.settings,
            lab=lab,
            qps=scenario.model.routing.qps,
            qp_mode=scenario.model.routing.qp_mode,
        )
        engines.append(engine)
        return Stage(fabric=kernel.fabric, routing=kernel, engine=engine)

    with before_others():
        measured = run_scenario(_without_faults(scenario), stage=stage)
    lab.end()
    return measured, engines[0]


def _told(
    measured: Result, scenario: Scenario, options: Options, lab: Lab, *, hidden: bool
) -> Result:
    """Return the result with what a reader must know of where it comes from."""
    network = measured.fabric.link_network
    inside = any(not any(network[link] for link in one.path) for one in measured.records)
    sentences = [
        f"measured on a Linux network at 1/{options.scale} of the rates ({options.mode} cables, "
        f"TCP {lab.congestion}), times divided by {options.scale}; cables have no length there",
        "bounds know no buckets: each transfer after another may be ahead of them by up to "
        f"{format_time(lab.credit_ps)}",
    ]
    if inside or hidden:
        sentences.append(
            "transfers inside hosts were not emulated: each took its time alone at its "
            "narrowest link"
        )
    resolved = scenario.resolved()
    provenance = replace(measured.provenance, scenario_sha256=scenario_sha256(resolved))
    return replace(
        measured,
        scenario=resolved,
        provenance=provenance,
        warnings=(*sentences, *measured.warnings),
    )


def _busy_ps(result: Result) -> int:
    """Return how long anything was under way: the union of all flows and collectives, in ps."""
    spans = [(one.start_ps, one.end_ps) for one in result.records if one.end_ps >= 0]
    spans += [(one.start_ps, one.end_ps) for one in result.executed]
    return _union(sorted(spans))


def _union(spans: Sequence[tuple[int, int]]) -> int:
    total, reached = 0, 0
    for start, end in spans:
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total
