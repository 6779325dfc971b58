# SPDX-License-Identifier: Apache-2.0
"""Run a scenario: build the fabric, start the workloads, let time pass, gather the result.

A run always ends with a result. One that cannot finish says who waits for whom; one that is
interrupted keeps what it had.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.errors import InputError, InterruptedRunError, RailweaveError, StalledError
from railweave.fabric.faults import plan_faults
from railweave.fault_schedule import fault_plan, fault_rows, schedule_faults
from railweave.result import (
    LinkTable,
    Provenance,
    Result,
    ack_cautions,
    check_bounds,
    flow_stats,
    run_bound_ps,
    version,
)
from railweave.scenario import Scenario, load_scenario, scenario_sha256
from railweave.timeline import Recorder, RunEnvironment
from railweave.topologies.checks import protocol_findings
from railweave.workloads.workload import Findings, WorkloadContext, locating, relocated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType

    from railweave.fabric.document import Document, Key
    from railweave.fabric.engine import Engine
    from railweave.fabric.faults import FaultPlan
    from railweave.fabric.graph import Fabric
    from railweave.fabric.packet.sampling import SampleSettings
    from railweave.fabric.routing import Routing
    from railweave.result import Status
    from railweave.scenario import NamedWorkload, ScenarioSource

__all__ = [
    "Progress",
    "Stage",
    "StageMaker",
    "faulted_fabric",
    "prepare",
    "run_scenario",
    "set_stage",
    "workload_context",
]

_STEPS_BETWEEN_REPORTS: Final = 256
_WAITERS_SHOWN: Final = 12


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run is."""

    time_ps: int
    workloads: int
    ended: int


class _Finished(Exception):
    """All workloads have ended."""


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """Everything a run needs, built and checked, before time begins.

    Parameters
    ----------
    scenario
        What was asked for.
    env, fabric, routing, engine
        The clock, the fabric after its faults, its routes, and the engine on them.
    findings
        What workloads tell beside their flows.
    ends
        Workload name -> event of its end.
    faults
        What breaks when.
    """

    scenario: Scenario
    env: RunEnvironment
    fabric: Fabric
    routing: Routing
    engine: Engine
    findings: Findings
    ends: Mapping[str, Any]
    faults: FaultPlan


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What workloads run over: a fabric, its routes, and an engine on them.

    Parameters
    ----------
    fabric, routing, engine
        As they are when the run begins, after the faults at 0.
    faults
        What breaks when. The run changes the links of an engine that can have them changed;
        another has to see to it. None: nothing breaks during the run.
    """

    fabric: Fabric
    routing: Routing
    engine: Engine
    faults: FaultPlan | None = None


StageMaker = Callable[[FabricEnvironment, Scenario], Stage]
"""Makes the stage of a scenario on a clock, where it is not one of the scenario's own engines."""


def set_stage(env: FabricEnvironment, scenario: Scenario) -> Stage:
    """Build the fabric of a scenario, apply its faults, and make its engine."""
    from railweave.fabric.engines import make_engine
    from railweave.fabric.routing import Routing

    model = scenario.model
    faults = fault_plan(scenario)
    fabric = faults.fabric
    routing = Routing(fabric, policy=scenario.paths_policy, seed=model.seed)
    engine = make_engine(
        model.engine,
        env,
        fabric,
        routing,
        scenario.settings,
        qps=model.routing.qps,
        qp_mode=model.routing.qp_mode,
        tolerance=model.fluid.tolerance,
        packet=scenario.packet,
        samples=_samples(scenario, fabric),
        changing=faults.changing if faults.changes else None,
        detection_delay_ps=model.routing.detection_delay,
    )
    return Stage(fabric=fabric, routing=routing, engine=engine, faults=faults)


def _samples(scenario: Scenario, fabric: Fabric) -> SampleSettings | None:
    """Return what the scenario wants sampled."""
    wanted = scenario.model.telemetry
    if wanted is None:
        return None
    from railweave.fabric.packet.sampling import SampleSettings, port_links

    with locating(scenario.document, "telemetry", "ports"):
        links = port_links(fabric, wanted.ports)
    return SampleSettings(every_ps=wanted.every, ports=links, most=wanted.most)


def faulted_fabric(scenario: Scenario) -> Fabric:
    """Build the fabric of a scenario as it is when its run begins, after the faults at 0."""
    return fault_plan(scenario).fabric


def prepare(
    scenario: Scenario, *, stage: StageMaker = set_stage, timeline: int | None = None
) -> PreparedRun:
    """Build the fabric and the engine of a scenario, and start its workloads at time 0.

    ``timeline``: record the load of links in at most so many intervals.

    Raises
    ------
    InputError
        The fabric, a fault or a workload cannot be as the scenario says.
    """
    env, findings = RunEnvironment(), Findings()
    built = stage(env, scenario)
    fabric, routing, engine = built.fabric, built.routing, built.engine
    faults = built.faults or plan_faults(fabric, ())
    if timeline is not None:
        env.recorder = Recorder(engine, timeline)
    if engine.capabilities.set_link:
        schedule_faults(env, engine, faults)
    if not engine.capabilities.contention:
        findings.warn(
            f"the {engine.name} engine lets no flow slow another: "
            "flow times are lower bounds, not an emulation"
        )
    for found in protocol_findings(fabric):
        findings.warn(found.message)
    if scenario.unheeded:
        keys = ", ".join(f"network.{key}" for key in scenario.unheeded)
        findings.warn(f"only the packet engine heeds {keys}")
    ends = {}
    for workload in scenario.workloads:
        context = workload_context(scenario, workload, env, built, findings)
        try:
            ends[workload.name] = workload.kind.start(workload.model, context)
        except InputError as error:
            raise _placed(error, scenario, workload.loc) from None
    try:
        engine.set_up()
    except InputError as error:
        raise _placed(error, scenario, ("network",)) from None
    return PreparedRun(
        scenario=scenario,
        env=env,
        fabric=fabric,
        routing=routing,
        engine=engine,
        findings=findings,
        ends=ends,
        faults=faults,
    )


def workload_context(
    scenario: Scenario,
    workload: NamedWorkload,
    env: FabricEnvironment,
    stage: Stage,
    findings: Findings,
) -> WorkloadContext:
    """Return what a workload of a scenario is given on a stage."""
    model = scenario.model
    return WorkloadContext(
        env=env,
        engine=stage.engine,
        fabric=stage.fabric,
        routing=stage.routing,
        settings=scenario.settings,
        seed=model.seed,
        name=workload.name,
        prefix=f"{workload.name}/" if len(scenario.workloads) > 1 else "",
        base=scenario.base,
        placement=workload.model.placement or model.placement,
        placement_loc=(
            (*workload.loc, "placement") if workload.model.placement else ("placement",)
        ),
        findings=findings,
        document=scenario.document,
        loc=workload.loc,
        faults=stage.faults or plan_faults(stage.fabric, ()),
        detection_delay_ps=model.routing.detection_delay,
    )


def _placed(error: InputError, scenario: Scenario, loc: tuple[Key, ...]) -> InputError:
    """Return an error with its place: that of the setting that it names, else of a key given.

    A setting may stand in the scenario or in the topology's file; what stands in neither is
    missing in the scenario.
    """
    if error.file or error.line:
        return error
    if not error.field:
        return relocated(error, scenario.document, loc)
    field = tuple(error.field.split("."))
    spec = scenario.topology
    ours, theirs = scenario.document, spec.document
    if _depth(theirs, (*spec.at, *field)) - len(spec.at) > _depth(ours, field):
        return relocated(error, theirs, spec.at)
    return relocated(error, ours, ())


def _depth(document: Document, keys: tuple[Key, ...]) -> int:
    """Return how many keys of a path are there."""
    value = document.data
    for depth, key in enumerate(keys):
        if not isinstance(value, dict) or key not in value:
            return depth
        value = value[key]
    return len(keys)


def run_scenario(
    source: ScenarioSource | Scenario,
    *,
    overrides: Mapping[str, Any] | None = None,
    progress: Callable[[Progress], None] | None = None,
    stage: StageMaker = set_stage,
    timeline: int | None = None,
) -> Result:
    """Run a scenario and return its result.

    A run that stalls, fails or is interrupted (Ctrl-C) returns a partial result with ``error``
    set; `Result.raise_for_status` raises it.

    Parameters
    ----------
    source
        A scenario file, the mapping one would hold, or what `load_scenario` returned.
    overrides
        Dotted key -> value, as in the file: ``{"seed": 2, "routing.qps": 4}``.
    progress
        Called now and then with how far the run is.
    stage
        Makes what the workloads run over; default: what the scenario says.
    timeline
        Record the load of each network link over time, in at most so many intervals (4 to 512).

    Raises
    ------
    InputError
        The scenario is wrong; nothing has run.
    PhysicsError
        A result beat its own lower bound: a defect in railweave.
    """
    scenario = (
        source if isinstance(source, Scenario) else load_scenario(source, overrides=overrides)
    )
    run = prepare(scenario, stage=stage, timeline=timeline)
    status: Status = "completed"
    error: RailweaveError | None = None
    try:
        _drive(run, progress)
    except StalledError as stalled:
        status, error = "deadlocked", stalled
    except KeyboardInterrupt:
        status = "interrupted"
        error = InterruptedRunError("the run was interrupted; what it had is kept")
    except RailweaveError as failure:
        raised = failure.__cause__  # SimPy raises a copy, which has lost its place
        wrong = raised if isinstance(raised, InputError) else failure
        if isinstance(wrong, InputError):
            wrong = _placed(wrong, scenario, ("workload",))
            if not run.env.now and not run.engine.records():
                raise wrong from None  # nothing has run
        status, error = "failed", wrong
    result = _gather(run, status, error)
    return _with_error(result, run, stage) if status == "completed" else result


def _with_error(result: Result, run: PreparedRun, stage: StageMaker) -> Result:
    """Tell how far a run with a quantum is off, from its beginning run once more without."""
    if run.scenario.model.engine != "packet" or run.scenario.model.packet.quantum == 1:
        return result
    from railweave.fabric.packet.engine import PacketEngine
    from railweave.quantum_check import sampled_error

    if not isinstance(run.engine, PacketEngine):
        return result
    scenario = replace(run.scenario, exact=True)
    found = sampled_error(run.engine, lambda: prepare(scenario, stage=stage).engine)
    quantum = {**result.network["quantum"], **found}
    return replace(result, network={**result.network, "quantum": quantum})


def _drive(run: PreparedRun, progress: Callable[[Progress], None] | None) -> None:
    """Let time pass until every workload has ended; raise `StalledError` if that cannot be."""
    env = run.env
    finished = env.all_of(list(run.ends.values()))
    steps = 0
    with _interrupts() as interrupted:

        def after_step() -> None:
            nonlocal steps
            if finished.processed:
                raise _Finished
            if interrupted.is_set():
                raise KeyboardInterrupt
            steps += 1
            if progress is not None and steps % _STEPS_BETWEEN_REPORTS == 0:
                progress(_progress(run))

        env.after_step = after_step
        try:
            env.run()
        except _Finished:
            return
        finally:
            env.after_step = lambda: None
    raise StalledError(_stalled_text(run))


def _progress(run: PreparedRun) -> Progress:
    ended = sum(end.processed for end in run.ends.values())
    return Progress(time_ps=int(run.env.now), workloads=len(run.ends), ended=ended)


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into a flag, so that a run stops between steps, its books in order.

    A second Ctrl-C stops at once. Outside the main thread, or where a program has a handler of its
    own, nothing is changed.
    """
    flag = threading.Event()
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not ours:
        yield flag
        return

    def note(signum: int, frame: FrameType | None) -> None:
        if flag.is_set():
            signal.default_int_handler(signum, frame)
        flag.set()

    signal.signal(signal.SIGINT, note)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _stalled_text(run: PreparedRun) -> str:
    waiting = [line for who in run.findings.waiting for line in who()] + run.engine.waiting()
    if not waiting:
        waiting = [
            f"workload {name} has not ended" for name, end in run.ends.items() if not end.triggered
        ]
    shown = waiting[:_WAITERS_SHOWN]
    if len(waiting) > len(shown):
        shown.append(f"and {len(waiting) - len(shown)} more")
    return f"the run can never finish: at {run.env.now} ps nothing moves and " + "; ".join(shown)


def _gather(run: PreparedRun, status: Status, error: RailweaveError | None) -> Result:
    scenario, engine, findings = run.scenario, run.engine, run.findings
    resolved = scenario.resolved()
    records, executed = tuple(engine.records()), tuple(engine.collectives())
    now = int(run.env.now)
    table = LinkTable.of(run.fabric, engine.counters(), now)
    inexact = engine.rounded_bytes + engine.repeated_bytes  # a bound counts what is sent once
    bound = run_bound_ps(records, executed, table, inexact_bytes=inexact)
    if status == "deadlocked":  # its clock stopped at the last end, before what moved after that
        now = max(now, bound, table.least_span_ps())
        table = LinkTable.of(run.fabric, engine.counters(), now)
    if engine.capabilities.contention:
        check_bounds(engine, table, sim_time_ps=now, bound_ps=bound)
    else:
        now = max(now, bound)  # no contention: the links' own bounds are the better estimate
        table = LinkTable.of(run.fabric, engine.counters(), now)
    serving = {name: summarise() for name, summarise in findings.serving.items()}
    return Result(
        name=scenario.name,
        status=status,
        engine=engine.name,
        sim_time_ps=now,
        bound_ps=bound,
        flows=flow_stats(records),
        collectives=tuple(findings.collectives),
        serving=next(iter(serving.values())) if len(serving) == 1 else serving,
        steps=tuple(findings.steps),
        requests=tuple(row for rows in findings.requests for row in rows()),
        tracks=tuple(span for spans in findings.tracks for span in spans()),
        warnings=(*findings.warnings, *engine.cautions(), *ack_cautions(engine, table)),
        provenance=Provenance(
            version=version(),
            seed=scenario.model.seed,
            topology_sha256=scenario.topology.sha256,
            scenario_sha256=scenario_sha256(resolved),
        ),
        scenario=resolved,
        records=records,
        executed=executed,
        links=table,
        classes=engine.class_counters() if findings.requests else {},
        network={**fault_rows(run.faults, until_ps=now), **engine.network()},
        link_columns=engine.link_columns(),
        flow_columns=engine.flow_columns(),
        port_series=tuple(engine.port_series()),
        error=error,
        timeline=None if run.env.recorder is None else run.env.recorder.finish(now),
    )
