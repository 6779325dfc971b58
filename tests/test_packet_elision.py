# SPDX-License-Identifier: Apache-2.0
"""Elision: the same results to the picosecond with and without packets of undisturbed messages."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.collectives.planner import plan
from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.flow import Flow
from railweave.fabric.graph import DeviceKind, FabricBuilder, LinkModel
from railweave.fabric.loops import expand
from railweave.fabric.network import NetworkSettings
from railweave.fabric.packet.engine import PacketEngine
from railweave.fabric.packet.settings import PacketSettings, cc_profile
from railweave.fabric.routing import Routing

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from railweave.fabric.graph import Fabric

G = 10**9


def clos(
    leaves: int, hosts: int, spines: int, *, host_bps: int, spine_bps: int, delay_ps: int
) -> Fabric:
    """Build leaves of some hosts each, all joined to all spines."""
    build = FabricBuilder("clos")
    nics = [
        build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}"))
        for i in range(leaves * hosts)
    ]
    lower = [build.add_device(f"leaf{i}", DeviceKind.SWITCH, tier=1) for i in range(leaves)]
    upper = [build.add_device(f"spine{i}", DeviceKind.SWITCH, tier=2) for i in range(spines)]
    model = LinkModel.ROCE_LOSSLESS
    for i, nic in enumerate(nics):
        build.add_cable(nic, lower[i // hosts], rate_bps=host_bps, delay_ps=delay_ps, model=model)
    for leaf in lower:
        for spine in upper:
            build.add_cable(leaf, spine, rate_bps=spine_bps, delay_ps=2 * delay_ps, model=model)
    return build.finish()


def engine_of(
    fabric: Fabric, packet: PacketSettings, network: NetworkSettings, *, elide: bool
) -> PacketEngine:
    return PacketEngine(
        FabricEnvironment(), fabric, Routing(fabric), network,
        packet=replace(packet, elide=elide),
    )  # fmt: skip


def outcome(engine: PacketEngine) -> list[Any]:
    """Everything that a run writes: flows, links, totals."""
    counters = engine.counters()
    return [
        [(r.flow.id, r.start_ps, r.end_ps) for r in engine.records()],
        [(c.tag, c.start_ps, c.end_ps) for c in engine.collectives()],
        engine.network(),
        engine.link_columns(),
        engine.flow_columns(),
        counters.wire_bytes.tolist(),
        counters.ack_bytes.tolist(),
        int(engine.state.run.hops),
    ]


def both(
    fabric: Fabric,
    work: Callable[[PacketEngine], Any],
    *,
    packet: PacketSettings | None = None,
    network: NetworkSettings | None = None,
) -> PacketEngine:
    """Run with and without elision, see that all is equal, and return the elided engine."""
    found, engines = [], []
    for elide in (True, False):
        engine = engine_of(
            fabric, packet or PacketSettings(), network or NetworkSettings(ack_every=0),
            elide=elide,
        )  # fmt: skip
        looks = work(engine)
        engine.env.run()
        found.append([outcome(engine), looks])
        engines.append(engine)
    for with_it, without in zip(found[0], found[1], strict=True):
        assert with_it == without
    assert engines[1].state.run.flown == 0
    return engines[0]


def at(engine: PacketEngine, start_ps: int, do: Callable[[], Any]) -> None:
    """Do something at a time."""

    def process() -> Generator[Any, Any, None]:
        yield engine.env.timeout(start_ps)
        do()

    engine.env.process(process())


SIZES = st.one_of(st.integers(0, 9000), st.integers(10_000, 60_000), st.just(4096 * 12))
TIMES = st.one_of(st.just(0), st.integers(0, 3_000_000), st.sampled_from([83_880, 900_000]))


SETTINGS: list[dict[str, Any]] = [
    {},
    {"xoff_bytes": 20_000, "xon_bytes": 10_000},
    {"kmin_bytes": 9000, "kmax_bytes": 30_000},
    {"buffer_bytes": 2_000_000, "headroom_bytes": 100_000, "alpha": 0.02},
    {"xoff_bytes": 6000, "xon_bytes": 3000, "kmin_bytes": 0, "kmax_bytes": 9000},
]


@st.composite
def scenarios(draw: Any) -> dict[str, Any]:
    host_bps = draw(st.sampled_from([100 * G, 400 * G, 3 * G]))
    leaves, hosts = draw(st.integers(1, 3)), draw(st.integers(2, 4))
    n = leaves * hosts
    spines = draw(st.integers(1, 2))
    flows = []
    for _ in range(draw(st.integers(1, 10))):
        src = draw(st.integers(0, n - 1))
        dst = (src + draw(st.integers(1, n - 1))) % n
        flows.append((src, dst, draw(SIZES), draw(TIMES)))
    return {
        "fabric": clos(
            leaves, hosts, spines, host_bps=host_bps,
            spine_bps=host_bps * draw(st.sampled_from([1, 2, 4])),
            delay_ps=draw(st.sampled_from([0, 100_000, 700_000])),
        ),
        "flows": flows,
        "collective": draw(
            st.sampled_from([None, None, "all_reduce", "all_to_all", "all_gather"])
        ),
        "size": draw(st.integers(1, 300_000)),
        "begin": draw(TIMES),
        "look": draw(st.one_of(st.none(), st.integers(0, 6_000_000))),
        "cancel": draw(st.one_of(st.none(), st.integers(0, 4_000_000))),
        "packet": PacketSettings(
            cc=draw(st.sampled_from([None, cc_profile("scaled")])),
            **draw(
                st.sampled_from(SETTINGS)
            ),
        ),
        "network": NetworkSettings(
            ack_every=draw(st.sampled_from([0, 0, 0, 1, 4])),
            host_latency_ps=draw(st.sampled_from([0, 500_000])),
            switch_latency_ps=draw(st.sampled_from([0, 600_000])),
            cut_through=draw(st.booleans()),
        ),
    }  # fmt: skip


@given(scenarios())
@settings(max_examples=60, deadline=None)
def test_runs_are_equal_with_and_without_elision(case: dict[str, Any]) -> None:
    fabric, nics = case["fabric"], [int(nic) for nic in case["fabric"].nics]

    def work(engine: PacketEngine) -> list[Any]:
        looks: list[Any] = []
        for i, (src, dst, size, start) in enumerate(case["flows"]):
            flow = Flow(id=f"f{i}", src=nics[src], dst=nics[dst], size_bytes=size)

            def send(flow: Flow = flow) -> None:
                engine.send(flow).defused = True

            at(engine, start, send)
            if i == 0 and case["cancel"] is not None:

                def stop(flow: Flow = flow) -> None:
                    if any(job.flow is flow for job in engine._jobs.values()):
                        engine.cancel(flow)

                at(engine, case["cancel"], stop)
        if case["collective"]:
            schedule = plan(case["collective"], ranks=len(nics), size_bytes=case["size"])
            at(engine, case["begin"], lambda: engine.execute(schedule, nics))
        if case["look"] is not None:
            at(engine, case["look"], lambda: looks.append(outcome(engine)[2:-1]))
        return looks

    both(fabric, work, packet=case["packet"], network=case["network"])


def star(rate_bps: int = 400 * G) -> tuple[Fabric, list[int]]:
    """Four hosts on a switch, 500 ns."""
    fabric = clos(1, 4, 0, host_bps=rate_bps, spine_bps=rate_bps, delay_ps=500_000)
    return fabric, [int(nic) for nic in fabric.nics]


def test_a_lone_message_takes_its_closed_form_in_two_events() -> None:
    fabric, nics = star()
    flow = Flow(id="a", src=nics[0], dst=nics[1], size_bytes=1 << 20)
    quiet = NetworkSettings(ack_every=0, host_latency_ps=0)
    engine = both(fabric, lambda engine: engine.send(flow) and None, network=quiet)
    wire = (1 << 20) + 256 * 82 + 16
    assert engine.records()[0].end_ps == wire * 20 + 4194 * 20 + 2 * 500_000 + 600_000
    assert int(engine.state.run.events) == 2
    assert engine.state.run.elided_hops == engine.state.run.hops == 2 * 256


def test_a_ring_in_rank_order_needs_no_packets() -> None:
    fabric = clos(4, 4, 4, host_bps=400 * G, spine_bps=400 * G, delay_ps=500_000)
    nics = [int(nic) for nic in fabric.nics]
    schedule = plan("all_reduce", algorithm="ring", ranks=16, size_bytes=1_000_003)
    engine = both(fabric, lambda engine: engine.execute(schedule, nics) and None)
    run = engine.state.run
    assert run.elided_hops == run.hops > 0
    assert int(run.events) <= 2 * 16 * 30 + 16


def test_looped_schedules_run_as_their_expansions_do() -> None:
    fabric, nics = star()
    looped = plan("all_reduce", algorithm="ring", ranks=4, size_bytes=100_001)
    ends = []
    for schedule in (looped, expand(looped)):
        engine = engine_of(fabric, PacketSettings(), NetworkSettings(ack_every=1), elide=False)
        engine.execute(schedule, nics)
        engine.execute(schedule, nics[::-1], repeat=2)
        engine.env.run()
        ends.append([c.end_ps for c in engine.collectives()])
    assert ends[0] == ends[1]


def test_one_incast_grounds_only_what_is_near() -> None:
    fabric = clos(2, 4, 1, host_bps=100 * G, spine_bps=400 * G, delay_ps=500_000)
    nics = [int(nic) for nic in fabric.nics]

    def work(engine: PacketEngine) -> None:
        for i in (0, 1, 2):
            engine.send(Flow(id=f"in{i}", src=nics[i], dst=nics[3], size_bytes=300_000))
        engine.send(Flow(id="far", src=nics[4], dst=nics[5], size_bytes=300_000))

    run = both(fabric, work).state.run
    assert run.elided_hops == 2 * 74
    assert run.hops == 8 * 74


# ------------------------------------------------------------------ quantum
FREE: dict[str, Any] = {"cc": None, "ecn": False, "buffer_bytes": 10**12, "elide": False}


def quantum_run(quantum: int, flows: list[tuple[int, int, int]], **packet: Any) -> PacketEngine:
    fabric, nics = star()
    settings = PacketSettings(**(FREE | packet), quantum=quantum)
    network = NetworkSettings(ack_every=0, host_latency_ps=0)
    engine = PacketEngine(FabricEnvironment(), fabric, Routing(fabric), network, packet=settings)
    for i, (src, dst, size) in enumerate(flows):
        engine.send(Flow(id=f"f{i}", src=nics[src], dst=nics[dst], size_bytes=size))
    engine.env.run()
    return engine


@pytest.mark.parametrize("quantum", [2, 7, 16, 4096])
def test_trains_of_one_sender_are_exact(quantum: int) -> None:
    flows = [(0, 1, 1 << 20)]
    exact, trains = quantum_run(1, flows), quantum_run(quantum, flows)
    assert exact.records()[0].end_ps == trains.records()[0].end_ps
    assert trains.network()["quantum"] == {"packets": quantum, "share": 1.0}
    assert exact.counters().wire_bytes.tolist() == trains.counters().wire_bytes.tolist()
    assert trains.state.run.events < exact.state.run.events


def test_trains_keep_a_shared_link_busy() -> None:
    flows = [(0, 3, 1 << 20), (1, 3, 1 << 20), (2, 3, 1 << 20)]
    exact, trains = quantum_run(1, flows), quantum_run(16, flows)
    last = [max(r.end_ps for r in engine.records()) for engine in (exact, trains)]
    assert last[0] == last[1]
    for a, b in zip(exact.records(), trains.records(), strict=True):
        assert abs(a.end_ps - b.end_ps) <= 3 * 16 * 4178 * 20


def test_where_feedback_can_act_every_packet_goes_by_itself() -> None:
    flows = [(0, 3, 4 << 20), (1, 3, 4 << 20), (2, 3, 4 << 20)]
    changes: list[dict[str, Any]] = [
        {"buffer_bytes": None},  # 64 MB: pauses from some 7 MB under way on
        {"ecn": True},
        {"buffer_bytes": None, "xoff_bytes": 20_000},
    ]
    for change in changes:
        exact, trains = quantum_run(1, flows, **change), quantum_run(16, flows, **change)
        shares = trains.network().pop("quantum")["share"]
        assert shares < 0.5
        assert exact.network()["pause_frames"] + exact.network()["ecn_marked"] > 0 or shares > 0


def sent_before_a_cancel(quantum: int, senders: int) -> int:
    """Bytes of a message of 1 MiB that left its host, if it is cancelled 5 us after its post."""
    fabric, nics = star()
    engine = PacketEngine(
        FabricEnvironment(), fabric, Routing(fabric), NetworkSettings(ack_every=0),
        packet=PacketSettings(**FREE, quantum=quantum),
    )  # fmt: skip
    flows = [Flow(id=f"f{i}", src=nics[i], dst=nics[3], size_bytes=1 << 20) for i in range(senders)]
    for flow in flows:
        engine.send(flow).defused = True
    at(engine, 5_500_000, lambda: engine.cancel(flows[0]))
    engine.env.run()
    engine.state.advance(2**60)
    assert engine.records()[0].end_ps < 0
    assert all(record.end_ps > 0 for record in engine.records()[1:])
    return int(engine.state.ports.data_bytes[0])


@pytest.mark.parametrize("senders", [1, 3])
def test_a_cancelled_message_stops_with_the_train_under_way(senders: int) -> None:
    exact, trains = (sent_before_a_cancel(quantum, senders) for quantum in (1, 16))
    assert exact == 60 * 4178 + 16
    assert exact <= trains <= 64 * 4178 + 16


TINY = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("elision", sys.argv[1])
elision = importlib.util.module_from_spec(spec)
spec.loader.exec_module(elision)
fabric, nics = elision.star()
for elide, quantum in ((True, 1), (False, 1), (False, 4)):
    engine = elision.engine_of(
        fabric, elision.PacketSettings(**elision.FREE, quantum=quantum),
        elision.NetworkSettings(ack_every=0), elide=elide,
    )
    engine.execute(elision.plan("all_reduce", algorithm="ring", ranks=4, size_bytes=60_000), nics)
    elision.at(engine, 4_000_000, lambda: engine.send(
        elision.Flow(id="f", src=nics[0], dst=nics[2], size_bytes=9000)))
    engine.env.run()
    print(elision.outcome(engine), int(engine.state.run.grounded))
"""


def test_tiny_cases_are_the_same_without_compiling() -> None:
    def output(**environment: str) -> str:
        command = [sys.executable, "-c", TINY, __file__]
        env = {**os.environ, **environment}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout

    plain = output(NUMBA_DISABLE_JIT="1")
    assert plain == output()
    lines = plain.splitlines()
    assert lines[0].rsplit(" ", 1)[0] == lines[1].rsplit(" ", 1)[0]
    assert int(lines[0].rsplit(" ", 1)[1]) > 0
