# SPDX-License-Identifier: Apache-2.0
"""No packet run beats physics: bounds, agreement with fair rates, and the same with any split."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.engines import make_engine
from railweave.fabric.flow import Flow
from railweave.fabric.graph import DeviceKind, FabricBuilder, LinkModel
from railweave.fabric.network import NetworkSettings
from railweave.fabric.packet.settings import PacketSettings, cc_profile
from railweave.fabric.routing import Routing

G = 10**9


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    """A leaf-spine of random rates, delays and framing, and flows over it."""
    leaves, spines = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    hosts = draw(st.integers(2, 5))
    rate = st.sampled_from([3 * G, 25 * G, 100 * G, 400 * G])
    build = FabricBuilder("drawn")
    nics = [
        build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}"))
        for i in range(hosts)
    ]
    leaf = [build.add_device(f"leaf{i}", DeviceKind.SWITCH, tier=1) for i in range(leaves)]
    spine = [build.add_device(f"spine{i}", DeviceKind.SWITCH, tier=2) for i in range(spines)]
    model = draw(st.sampled_from([LinkModel.ROCE_LOSSLESS, LinkModel.INFINIBAND]))
    cable = {"delay_ps": draw(st.integers(0, 2_000_000)), "model": model}
    for i, nic in enumerate(nics):
        build.add_cable(nic, leaf[i % leaves], rate_bps=draw(rate), **cable)
    for a in leaf:
        for b in spine:
            build.add_cable(a, b, rate_bps=draw(rate), **cable)
    network = NetworkSettings(
        mtu_bytes=draw(st.sampled_from([1000, 4096])),
        cut_through=draw(st.booleans()),
        ack_every=draw(st.sampled_from([0, 1, 4])),
        switch_latency_ps=draw(st.sampled_from([0, 600_000])),
        host_latency_ps=draw(st.sampled_from([0, 500_000])),
    )
    pair = st.tuples(st.sampled_from(nics), st.sampled_from(nics)).filter(lambda p: p[0] != p[1])
    flows = [
        Flow(id=f"f{i}", src=src, dst=dst, size_bytes=draw(st.integers(0, 200_000)))
        for i, (src, dst) in enumerate(draw(st.lists(pair, min_size=1, max_size=8)))
    ]
    cc = draw(st.sampled_from([None, "paper", "nic", "scaled"]))
    return {"fabric": build.finish(), "network": network, "flows": flows, "cc": cc}


def times(case: dict[str, Any], kind: str, **options: Any) -> Any:
    fabric = case["fabric"]
    engine = make_engine(
        kind, FabricEnvironment(), fabric, Routing(fabric), case["network"], **options
    )
    for flow in case["flows"]:
        engine.send(flow)
    engine.env.run()
    return engine


@settings(max_examples=60, deadline=None)
@given(scenarios())
def test_no_flow_beats_its_bound_and_nothing_is_lost(case: dict[str, Any]) -> None:
    packet = PacketSettings(cc=None if case["cc"] is None else cc_profile(case["cc"]))
    least = times(case, "analytic").records()
    engine = times(case, "packet", packet=packet)
    rate = case["fabric"].link_rate_bps
    for one, other in zip(engine.records(), least, strict=True):
        assert one.fct_ps >= one.bound_ps - len(one.path)  # each hop ends at a whole ps
        narrowing = (np.diff(rate[list(one.path)]) <= 0).all()  # else its last packet is faster
        if narrowing and not case["network"].cut_through:
            assert one.fct_ps >= other.fct_ps - 2 - len(one.path)
    assert engine.network()["drops"]["lossless_violation"] == 0
    sent = sum(record.wire_bytes * len(record.path) for record in engine.records())
    assert engine.counters().wire_bytes.sum() == sent


@settings(max_examples=25, deadline=None)
@given(scenarios(), st.integers(1, 10**6))
def test_wheel_and_heap_agree_on_drawn_scenarios(case: dict[str, Any], seed: int) -> None:
    cc = None if case["cc"] is None else cc_profile(case["cc"])
    ends = [
        [r.end_ps for r in times(
            case, "packet", packet=PacketSettings(cc=cc, seed=seed, use_wheel=wheel)
        ).records()]
        for wheel in (True, False)
    ]  # fmt: skip
    assert ends[0] == ends[1]


def test_long_flows_agree_with_fair_rates() -> None:
    """No loss, no pause, one queue in common: within (N - 1) frames of max-min shares."""
    build = FabricBuilder("star")
    nics = [
        build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}"))
        for i in range(6)
    ]
    switch = build.add_device("s", DeviceKind.SWITCH)
    for nic in nics:
        build.add_cable(
            nic, switch, rate_bps=100 * G, delay_ps=500_000, model=LinkModel.ROCE_LOSSLESS
        )
    sizes = np.array([3, 5, 8, 13, 21]) * 2**20
    case = {
        "fabric": build.finish(),
        "network": NetworkSettings(ack_every=0, host_latency_ps=0),
        "flows": [
            Flow(id=f"f{i}", src=nics[i], dst=nics[5], size_bytes=int(size))
            for i, size in enumerate(sizes)
        ],
    }
    packet = PacketSettings(ecn=False, buffer_bytes=10**9, alpha=8.0)
    exact = times(case, "packet", packet=packet).records()
    fair = times(case, "fluid").records()
    for one, other in zip(exact, fair, strict=True):
        assert abs(one.end_ps - other.end_ps) <= (len(sizes) - 1) * 4194 * 80
