# SPDX-License-Identifier: Apache-2.0
"""Elision: the same results to the picosecond with and without packets of undisturbed messages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.collectives.planner import plan
from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.flow import Flow
from railweave.fabric.graph import DeviceKind, FabricBuilder, LinkModel
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
