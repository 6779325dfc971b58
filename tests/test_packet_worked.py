# SPDX-License-Identifier: Apache-2.0
"""The packet engine against numbers worked by hand: frames, latency, incast, buffers, pauses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.flow import Flow
from railweave.fabric.graph import DeviceKind, FabricBuilder, LinkModel
from railweave.fabric.network import NetworkSettings
from railweave.fabric.packet import layout as lay
from railweave.fabric.packet.engine import PacketEngine
from railweave.fabric.packet.settings import (
    PacketSettings,
    cc_profile,
    headroom_bytes,
    most_response_ps,
    quantum_ps,
)
from railweave.fabric.routing import Routing

G = 10**9
US = 10**6
FRAME_NS = 334.24  # 4178 B at 100 Gb/s
AMPLE = 1 << 40


@dataclass
class Net:
    """Hosts and switches by name; every cable from host or switch to switch."""

    cables: list[tuple[str, str, int, int]]  # ends, rate, delay
    model: LinkModel = LinkModel.ROCE_LOSSLESS
    nic: dict[str, int] = field(default_factory=dict)
    link: dict[tuple[str, str], int] = field(default_factory=dict)

    def build(self, settings: NetworkSettings, packet: PacketSettings, **options: Any) -> None:
        build = FabricBuilder("net")
        self.nic = {}
        for a, b, rate, delay in self.cables:
            for name in (a, b):
                if name not in self.nic:
                    if name[0] == "s":
                        self.nic[name] = build.add_device(name, DeviceKind.SWITCH)
                    else:
                        host = build.add_host(name)
                        self.nic[name] = build.add_device(f"{name}/nic0", DeviceKind.NIC, host=host)
            link = build.add_cable(
                self.nic[a], self.nic[b], rate_bps=rate, delay_ps=delay, model=self.model
            )
            self.link[a, b], self.link[b, a] = link, link ^ 1
        fabric = build.finish()
        buffers = np.full(len(fabric.switches), options.pop("buffer", AMPLE))
        self.env = FabricEnvironment()
        self.engine = PacketEngine(
            self.env, fabric, Routing(fabric), settings, packet=packet, buffers=buffers, **options
        )

    def send(self, src: str, dst: str, size: int, **keys: Any) -> Any:
        return self.engine.send(
            Flow(id=f"{src}>{dst}", src=self.nic[src], dst=self.nic[dst], size_bytes=size, **keys)
        )

    def ends_ns(self) -> list[float]:
        return [record.end_ps / 1000 for record in self.engine.records()]


def bare(**keys: Any) -> NetworkSettings:
    """Frames of the standard without latencies of hosts and switches, and without ACKs."""
    return NetworkSettings(**{"ack_every": 0, "host_latency_ps": 0, "switch_latency_ps": 0} | keys)


PLAIN = {"frame_overhead_bytes": 82}  # no RETH: every full frame is 4178 B, in buffers too


# ------------------------------------------------------------------ G1, G2
def test_a_message_takes_its_frames_on_the_wire() -> None:
    net = Net([("a", "s1", 400 * G, 0), ("b", "s1", 400 * G, 0)])
    net.build(bare(), PacketSettings())
    net.send("a", "b", 2**20)
    net.env.run()
    ports = net.engine.state.ports
    assert ports.data_bytes[net.link["a", "s1"]] == 1_069_584
    assert net.engine.state.egress.frames.sum() == 2 * 256
    assert ports.busy[net.link["a", "s1"]] == 21_391_680


LINE = [
    ("a", "s1", 400 * G, 100_000),
    ("s1", "s2", 400 * G, 500_000),
    ("s2", "b", 400 * G, 100_000),
]


@pytest.mark.parametrize(
    ("size", "keys", "ns"),
    [
        (4096, PLAIN, 2150.68),
        (4096, {**PLAIN, "cut_through": True}, 1988.68),
        (2**20, {}, 23_459.44),
    ],
)
def test_latency_of_a_path(size: int, keys: dict[str, Any], ns: float) -> None:
    net = Net(LINE)
    net.build(bare(switch_latency_ps=600_000, **keys), PacketSettings())
    net.send("a", "b", size)
    net.env.run()
    assert net.ends_ns() == [ns]


def test_rates_without_a_whole_time_per_byte_do_not_drift() -> None:
    net = Net([("a", "s1", 3 * G, 0), ("s1", "b", 100 * G, 0)])
    net.build(bare(**PLAIN), PacketSettings())
    net.send("a", "b", 3 * 4096)
    net.env.run()
    assert net.engine.records()[0].end_ps == 3 * 4178 * 8000 // 3 + 4178 * 80


# ------------------------------------------------------------------ G3
def test_incast_of_eight() -> None:
    net = Net([(f"h{i}", "s1", 100 * G, 500_000) for i in range(9)])
    net.build(bare(), PacketSettings(xoff_bytes=AMPLE // 100, headroom_bytes=0))
    for i in range(8):
        net.send(f"h{i}", "h8", 64 * 4096)
    net.engine.state.qps.first[:8] = 0  # plain frames
    net.env.run()
    out = net.link["s1", "h8"]
    assert max(net.ends_ns()) == 172_465.12
    assert net.engine.state.ports.busy[out] / 1000 == 834.24 + 171_130.88
    assert net.engine.state.egress.peak[out * 2] == 1_866_942  # 449 frames of 4158 B


# ------------------------------------------------------------------ G4
@pytest.mark.parametrize(
    ("alpha", "expected"),
    [
        (0.125, {1: 1_777_778, 2: 1_600_000, 4: 1_333_333, 8: 1_000_000}),
        (1.0, {1: 8_000_000, 2: 5_333_333, 4: 3_200_000, 8: 1_777_778}),
    ],
)
def test_dynamic_thresholds_meet_their_fixed_point(alpha: float, expected: dict[int, int]) -> None:
    """Queues that fill in turn against a blocked egress pause at the fixed point."""
    for n, bytes_at_xoff in expected.items():
        names = [f"h{i}" for i in range(n)]
        net = Net([(name, "s1", 100 * G, 0) for name in [*names, "z"]])
        packet = PacketSettings(
            alpha=alpha, reserve_bytes=0, headroom_bytes=500_000, buffer_bytes=16_000_000
            + 500_000 * (n + 1), pfc_expiry=False, response_ps=0,
        )  # fmt: skip
        net.build(bare(mtu_bytes=18, **PLAIN), packet)
        state = net.engine.state
        state.ports.blocked[net.link["s1", "z"]] = 1
        state.run.check_ps = 0
        for name in names:
            net.send(name, "z", 18 * 100_000)
        net.env.run(until=9_000 * US)
        peak = [int(state.ingress.held[net.link[name, "s1"] * 2]) for name in names]
        assert all(state.ingress.off[net.link[name, "s1"] * 2] for name in names)
        assert peak == pytest.approx([bytes_at_xoff] * n, abs=200)


# ------------------------------------------------------------------ G5
def overshoot(headroom: int) -> Net:
    net = Net([("a", "s1", 100 * G, US), ("s1", "b", 100 * G, US)])
    packet = PacketSettings(
        xoff_bytes=100_000, xon_bytes=90_000, headroom_bytes=headroom, reserve_bytes=0,
        response_ps=394 * 5120, pfc_expiry=False,
    )  # fmt: skip
    net.build(bare(), packet, trace_rows=2000)
    state = net.engine.state
    state.ports.blocked[net.link["s1", "b"]] = 1
    state.run.check_ps = 0
    net.send("a", "b", 100 * 4096)
    pair = net.engine.state.qps[0]
    pair.first = 0  # plain frames: 4178 B on the wire, 4158 B in a buffer
    net.env.run(until=100 * US)
    return net


def test_frames_that_follow_a_pause_need_exactly_their_headroom() -> None:
    assert cc_profile("paper").g == 1 / 256
    net = overshoot(54_054)
    state = net.engine.state
    queue = net.link["a", "s1"] * 2
    assert state.egress.frames[queue] == 38
    assert state.ingress.held[queue] + state.ingress.head[queue] == 158_004
    assert state.run.violations == 0
    effective = [row for row in state.trace.tolist() if row[1] >> lay.CLASS_SHIFT == lay.EFFECTIVE]
    assert [row[0] for row in effective] == [12_380_000]
    assert overshoot(54_053).engine.state.run.violations == 1


def test_headroom_formula() -> None:
    least = headroom_bytes(100 * G, US, response_ps=394 * 5120, pipeline_ps=0, frame_bytes=4178)
    assert least - 4178 == 54_478  # nothing ahead of the pause frame on the reverse wire


@pytest.mark.parametrize(
    ("gbps", "meters", "kilobytes"),
    [
        (100, 40, 41.2), (100, 100, 48.7), (200, 40, 52.4), (400, 5, 78.9),
        (400, 40, 96.4), (400, 100, 126.4), (800, 40, 126.4), (800, 300, 386.4),
    ],
)  # fmt: skip
def test_headroom_by_rate_and_length(gbps: int, meters: int, kilobytes: float) -> None:
    rate = gbps * G
    found = headroom_bytes(
        rate, 100_000 + 5000 * meters, response_ps=most_response_ps(rate), pipeline_ps=0,
        frame_bytes=4178,
    )  # fmt: skip
    assert round(found / 1000, 1) == kilobytes


@pytest.mark.parametrize(("gbps", "us"), [(100, 335.54), (200, 167.77), (400, 83.88), (800, 41.94)])
def test_the_longest_pause(gbps: int, us: float) -> None:
    assert round(65_535 * quantum_ps(gbps * G) / US, 2) == us


# ------------------------------------------------------------------ G10
@pytest.mark.parametrize(("response", "peak"), [(0, 108_108), (394 * 5120, 133_056)])
def test_a_victim_shares_the_pause_of_others(response: int, peak: int) -> None:
    cables = [(f"a{i}", "s1", 100 * G, 100_000) for i in (1, 2, 3)]
    cables += [(f"r{i}", "s2", 100 * G, 100_000) for i in (1, 2)]
    net = Net([*cables, ("s1", "s2", 400 * G, 100_000)])
    packet = PacketSettings(
        xoff_bytes=100_000, xon_bytes=90_000, headroom_bytes=10**6, reserve_bytes=0,
        response_ps=response, ecn=False,
    )  # fmt: skip
    net.build(bare(), packet)
    for src, dst in (("a1", "r1"), ("a2", "r1"), ("a3", "r2")):
        net.send(src, dst, 10**8)
    state = net.engine.state
    state.qps.first[:3] = 0
    links = [net.link[f"a{i}", "s1"] for i in (1, 2, 3)]
    net.env.run(until=1000 * US)
    before = state.ports.data_bytes[links].copy()
    net.env.run(until=4000 * US)
    gbps = (state.ports.data_bytes[links] - before) * 8 / 3e-3 / 1e9
    assert gbps == pytest.approx([50, 50, 50], abs=1)
    assert state.run.violations == 0
    assert max(state.ingress.peak[np.array(links) * 2]) == peak


# ------------------------------------------------------------------ G15
def test_four_senders_share_first_come_first_served() -> None:
    net = Net([(f"h{i}", "s1", 100 * G, 500_000) for i in range(5)])
    net.build(bare(), PacketSettings(xoff_bytes=AMPLE // 100, headroom_bytes=0))
    for i in range(4):
        net.send(f"h{i}", "h4", (i + 1) * 2**20)
    net.env.run()
    ends = [record.end_ps for record in net.engine.records()]
    assert ends == [342_599_680, 599_630_240, 771_095_360, 856_995_040]
