# SPDX-License-Identifier: Apache-2.0
"""Packet times against bounds and against the fluid engine, on scenarios made up by hypothesis."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from railweave.fabric.analytic import AnalyticEngine
from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.flow import Flow
from railweave.fabric.fluid import FluidEngine
from railweave.fabric.graph import DeviceKind, Fabric, FabricBuilder, LinkModel
from railweave.fabric.network import NetworkSettings
from railweave.fabric.packet.engine import PacketEngine
from railweave.fabric.packet.settings import PacketSettings, cc_profile
from railweave.fabric.routing import Routing

G = 10**9
FRAME = 4178 + 16


def leaf_spine(
    model: LinkModel, *, leaves: int = 2, hosts: int = 3, spines: int = 2, rate: int = 100
) -> Fabric:
    build = FabricBuilder("clos")
    nics = [
        build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}"))
        for i in range(leaves * hosts)
    ]
    low = [build.add_device(f"l{i}", DeviceKind.SWITCH, tier=1) for i in range(leaves)]
    high = [build.add_device(f"s{i}", DeviceKind.SWITCH, tier=2) for i in range(spines)]
    cable: dict[str, Any] = {"rate_bps": rate * G, "delay_ps": 300_000, "model": model}
    for i, nic in enumerate(nics):
        build.add_cable(nic, low[i // hosts], **cable)
    for leaf in low:
        for spine in high:
            build.add_cable(leaf, spine, **cable)
    return build.finish()


FLOWS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 5), st.integers(0, 200_000), st.integers(0, 20)),
    min_size=1,
    max_size=8,
)


def run(engine: Any, flows: list[tuple[int, int, int, int]]) -> Any:
    """Send flows (source, steps to the destination, bytes, start in us), and end them all."""
    nics, env = engine.fabric.nics, engine.env

    def one(number: int, src: int, steps: int, size: int, at_us: int) -> Any:
        yield env.timeout(at_us * 10**6)
        dst = (src + steps) % 6
        yield engine.send(
            Flow(id=f"f{number}", src=int(nics[src]), dst=int(nics[dst]), size_bytes=size)
        )

    for number, flow in enumerate(flows):
        env.process(one(number, *flow))
    env.run()
    return {record.flow.id: record for record in engine.records()}


@settings(max_examples=25, deadline=None)
@given(
    flows=FLOWS,
    mode=st.sampled_from(["pfc", "dcqcn", "go-back-n", "selective-repeat", "trim"]),
    loss=st.sampled_from([0.0, 0.01]),
    seed=st.integers(0, 1000),
)
@example(flows=[(0, 1, 0, 0), (0, 2, 0, 0), (0, 3, 4097, 1)], mode="trim", loss=0.0, seed=0)
def test_no_flow_beats_its_bound_and_no_byte_is_lost(
    flows: list[tuple[int, int, int, int]], mode: str, loss: float, seed: int
) -> None:
    lossless = mode in ("pfc", "dcqcn")
    model = LinkModel.ROCE_LOSSLESS if lossless else LinkModel.ROCE_LOSSY
    fabric, network = leaf_spine(model), NetworkSettings()
    keys: dict[str, Any] = {"seed": seed, "retries": 10**6, "rto_ps": 50 * 10**6}
    if mode == "dcqcn":
        keys |= {"cc": cc_profile("scaled"), "kmin_bytes": 20_000, "kmax_bytes": 80_000}
    if lossless:
        keys |= {"xoff_bytes": 40_000, "xon_bytes": 30_000}
    else:
        keys |= {"recovery": mode, "loss_rate": loss}
    routing = Routing(fabric, policy="spray" if mode == "trim" else "ecmp", seed=seed)
    if mode == "trim":
        keys |= {"spread": "spray"}
    engine = PacketEngine(
        FabricEnvironment(), fabric, routing, network, packet=PacketSettings(**keys),
        buffers=np.full(4, 4_000_000 if lossless else 300_000), tracing=True,
    )  # fmt: skip
    packets = run(engine, flows)
    bound = run(AnalyticEngine(FabricEnvironment(), fabric, routing, network), flows)
    for name, record in packets.items():
        assert record.end_ps >= 0
        # The bound of packets lies at most two frames below the analytic engine's: where later
        # links are faster, only the last frame is stored there.
        assert record.fct_ps >= record.bound_ps
        assert record.fct_ps >= bound[name].fct_ps - 2 * FRAME * 80
    engine.state.advance(2**61)
    state, totals = engine.state, engine.network()
    qps = state.qps[: state.n_qps]
    assert totals["drops"]["lossless_violation"] == 0
    assert not lossless or sum(totals["drops"].values()) == 0
    assert (qps.expected == qps.posted).all()  # each packet once, none missing
    wire = sum(record.wire_bytes for record in packets.values())
    sent = int(state.ports.data_bytes[0:12:2].sum())  # by the NICs
    assert sent - totals["retransmitted_bytes"] == wire
    assert state.run.pk_left == len(state.packets)
    assert qps.inflight.sum() == 0


@settings(max_examples=15, deadline=None)
@given(
    senders=st.integers(2, 5),
    packets=st.lists(st.integers(800, 1600), min_size=5, max_size=5),
)
def test_packets_and_fluid_agree_within_a_frame_for_each_other_flow(
    senders: int, packets: list[int]
) -> None:
    """One bottleneck, no loss, no pause, fair turns: (N - 1) frames, the longest with its RETH.

    Each flow has 100 bandwidth-delay products (2.6 us at 100 Gb/s: 8 frames) or more.
    """
    fabric = leaf_spine(LinkModel.ROCE_LOSSLESS, hosts=6, leaves=1, spines=0)
    network = NetworkSettings(ack_every=0, host_latency_ps=0, switch_latency_ps=0)
    routing = Routing(fabric)
    flows = [(i, 5 - i, packets[i] * 4096, 0) for i in range(senders)]
    exact = PacketEngine(
        FabricEnvironment(), fabric, routing, network,
        packet=PacketSettings(xoff_bytes=10**9, headroom_bytes=0, ecn=False),
        buffers=np.full(1, 10**12),
    )  # fmt: skip
    packet = run(exact, flows)
    fluid = run(FluidEngine(FabricEnvironment(), fabric, routing, network), flows)
    assert exact.network()["pause_frames"] == 0
    for name, record in packet.items():
        assert abs(record.fct_ps - fluid[name].fct_ps) <= (senders - 1) * FRAME * 80
