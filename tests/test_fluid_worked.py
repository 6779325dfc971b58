# SPDX-License-Identifier: Apache-2.0
"""The fluid engine against numbers worked by hand: shares, completion times, rings of transfers."""

from __future__ import annotations

import math

import pytest

from railweave.collectives import plan
from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.engines import make_engine
from railweave.fabric.errors import RailweaveError
from railweave.fabric.flow import Flow
from railweave.fabric.fluid import FluidEngine
from railweave.fabric.graph import DeviceKind, Fabric, FabricBuilder, LinkModel
from railweave.fabric.network import NetworkSettings
from railweave.fabric.routing import Routing

G = 10**9
MS = 10**9  # ps
RAW = NetworkSettings(
    frame_overhead_bytes=0, ack_every=0, switch_latency_ps=0, host_latency_ps=0, cut_through=True
)
FRAMED = NetworkSettings(ack_every=0, switch_latency_ps=0, host_latency_ps=0)


class Net:
    """Switches in a line, each with hosts on it: names to numbers."""

    def __init__(self, trunks: list[int], *, delay_ps: int = 0) -> None:
        self.build = FabricBuilder("line")
        self.delay_ps = delay_ps
        self.switch = [
            self.build.add_device(f"s{i}", DeviceKind.SWITCH) for i in range(len(trunks) + 1)
        ]
        self.trunk = [
            self._cable(self.switch[i], self.switch[i + 1], rate) for i, rate in enumerate(trunks)
        ]
        self.nic: dict[str, int] = {}
        self.uplink: dict[str, int] = {}

    def _cable(self, a: int, b: int, rate_bps: int) -> int:
        return self.build.add_cable(
            a, b, rate_bps=rate_bps, delay_ps=self.delay_ps, model=LinkModel.ROCE_LOSSLESS
        )

    def host(self, name: str, switch: int, rate_bps: int) -> None:
        host = self.build.add_host(name)
        self.nic[name] = self.build.add_device(f"{name}/nic0", DeviceKind.NIC, host=host)
        self.uplink[name] = self._cable(self.nic[name], self.switch[switch], rate_bps)


def engine_on(fabric: Fabric, settings: NetworkSettings) -> FluidEngine:
    engine = make_engine("fluid", FabricEnvironment(), fabric, Routing(fabric), settings)
    assert isinstance(engine, FluidEngine)
    return engine


def rates_gbps(engine: FluidEngine) -> dict[str, float]:
    """Rate of every active flow of one queue pair, by flow."""
    found = {}
    for group, job in engine._jobs.items():
        assert job.flow is not None
        (slot,) = engine.state.slots_of(group)
        found[job.flow.id] = float(engine.state.slots[slot].rate) / G
    return found


def three_links() -> tuple[Net, list[Flow]]:
    """A = 100, B = 400, C = 200 Gb/s in a row; f1 over A and B, f2 over B and C, f3 C, f4 A."""
    net = Net([100 * G, 400 * G, 200 * G])
    ends = {"f1": (0, 2), "f2": (1, 3), "f3": (2, 3), "f4": (0, 1)}
    for name, (first, last) in ends.items():
        net.host(f"{name}src", first, 4000 * G)
        net.host(f"{name}dst", last, 4000 * G)
    flows = [
        Flow(
            id=name, src=net.nic[f"{name}src"], dst=net.nic[f"{name}dst"], size_bytes=10**9,
            cap_bps=20 * G if name == "f4" else None,
            path=(net.uplink[f"{name}src"], *net.trunk[first:last], net.uplink[f"{name}dst"] ^ 1),
        )
        for name, (first, last) in ends.items()
    ]  # fmt: skip
    return net, flows


# ------------------------------------------------------------------ shares of three links
def test_three_links_rates_and_ends() -> None:
    net, flows = three_links()
    engine = engine_on(net.build.finish(), RAW)
    for flow in flows:
        engine.send(flow)
    engine.env.run(until=1)
    assert rates_gbps(engine) == {"f1": 80.0, "f2": 100.0, "f3": 100.0, "f4": 20.0}
    engine.env.run()
    # The narrowest link's last bit leaves at 80 ms; each of the wider links read one 128 B header.
    ends = {r.flow.id: r.end_ps for r in engine.records()}
    header = {"f1": 128 * (2 * 2 + 20), "f2": 128 * (2 * 2 + 20), "f3": 128 * 4, "f4": 128 * 4}
    fluid = {name: end - header[name] for name, end in ends.items()}
    assert fluid == {"f1": 100 * MS, "f2": 80 * MS, "f3": 80 * MS, "f4": 400 * MS}


def test_three_links_without_f1_resolves_nothing_else() -> None:
    net, flows = three_links()
    engine = engine_on(net.build.finish(), RAW)
    events = [engine.send(flow) for flow in flows]
    events[0].defused = True
    engine.env.run(until=10 * MS)
    state = engine.state
    solves, solved = state.solves
    watched = ("rate", "stamp", "updated", "remaining", "finish", "bottleneck")
    slots = {
        job.flow.id: state.slots_of(group)[0] for group, job in engine._jobs.items() if job.flow
    }
    before = {name: [state.slots[s][w] for w in watched] for name, s in slots.items()}
    engine.cancel(flows[0])
    engine.env.run(until=11 * MS)
    assert rates_gbps(engine) == {"f2": 100.0, "f3": 100.0, "f4": 20.0}
    for name in ("f2", "f3"):
        assert [state.slots[slots[name]][w] for w in watched] == before[name]
    assert state.solves[0] - solves <= 1
    assert state.solves[1] - solved <= 1  # f4 at the most
    engine.env.run()
    ends = {r.flow.id: r.end_ps // MS for r in engine.records()}
    assert ends == {"f1": -1, "f2": 80, "f3": 80, "f4": 400}
    assert isinstance(events[0].value, RailweaveError)


def test_three_links_without_f3_lets_f2_take_its_place() -> None:
    net, flows = three_links()
    engine = engine_on(net.build.finish(), RAW)
    events = [engine.send(flow) for flow in flows]
    events[2].defused = True
    engine.env.run(until=10 * MS)
    engine.cancel(flows[2])
    engine.env.run(until=10 * MS + 1)
    assert rates_gbps(engine) == {"f1": 80.0, "f2": 200.0, "f4": 20.0}
    engine.env.run()
    # f2 had 7/8 left at 10 ms: 35 ms at 200 Gb/s.
    assert engine.records()[1].end_ps - 128 * 24 == 45 * MS


# ------------------------------------------------------------------ messages of several sizes
def test_four_senders_one_receiver_to_the_picosecond() -> None:
    net = Net([], delay_ps=500_000)
    for name in ("a", "b", "c", "d", "sink"):
        net.host(name, 0, 100 * G)
    engine = engine_on(net.build.finish(), FRAMED)
    for i, name in enumerate("abcd", start=1):
        engine.send(Flow(id=name, src=net.nic[name], dst=net.nic["sink"], size_bytes=i * 2**20))
    engine.env.run()
    records = engine.records()
    wire = [1_069_584, 2_139_152, 3_208_720, 4_278_288]
    assert [r.wire_bytes for r in records] == wire
    t0 = 1_000_000 + 4194 * 80
    assert t0 == 1_335_520
    fluid = [342_266_880, 598_963_200, 770_094_080, 855_659_520]
    assert fluid[0] == 4 * wire[0] * 80
    assert fluid[3] == sum(wire) * 80
    assert [r.end_ps - t0 for r in records] == fluid


@pytest.mark.parametrize(("cut_through", "expected"), [(False, 23_459_440), (True, 23_296_800)])
def test_one_message_over_two_switches(cut_through: bool, expected: int) -> None:
    # 1 MiB at 400 Gb/s over 100, 500 and 100 ns with two switches of 600 ns; the wider links
    # store the first packet (4194 B) or read 128 B each.
    net = Net([400 * G])
    net.delay_ps = 100_000
    net.host("a", 0, 400 * G)
    net.host("b", 1, 400 * G)
    fabric = net.build.finish()
    fabric.link_delay_ps[:2] = 500_000
    settings = NetworkSettings(
        ack_every=0, switch_latency_ps=600_000, host_latency_ps=0, cut_through=cut_through
    )
    engine = engine_on(fabric, settings)
    engine.send(Flow(id="m", src=net.nic["a"], dst=net.nic["b"], size_bytes=2**20))
    engine.env.run()
    assert engine.records()[0].end_ps == expected
    assert 21_391_680 + 2 * (128 if cut_through else 4194) * 20 + 1_900_000 == expected


# ------------------------------------------------------------------ congestion tree without pauses
def test_the_victim_of_pauses_gets_its_full_rate() -> None:
    net = Net([400 * G], delay_ps=100_000)
    for name in ("a1", "a2", "a3"):
        net.host(name, 0, 100 * G)
    for name in ("r1", "r2"):
        net.host(name, 1, 100 * G)
    engine = engine_on(net.build.finish(), FRAMED)
    for name, to in (("a1", "r1"), ("a2", "r1"), ("a3", "r2")):
        engine.send(Flow(id=name, src=net.nic[name], dst=net.nic[to], size_bytes=10**9))
    for at in (1, MS, 4 * MS):
        engine.env.run(until=at)
        assert rates_gbps(engine) == {"a1": 50.0, "a2": 50.0, "a3": 100.0}


# ------------------------------------------------------------------ rings as dependent transfers
def nvlink_plane(gpus: int, rate_bps: int, alpha_ps: int) -> tuple[Fabric, list[int]]:
    build = FabricBuilder("plane")
    host = build.add_host("h0")
    nvs = build.add_device("h0/nvs0", DeviceKind.NVSWITCH, host=host)
    ranks = []
    for i in range(gpus):
        gpu = build.add_device(f"h0/gpu{i}", DeviceKind.GPU, host=host, index=i)
        build.add_cable(
            gpu, nvs, rate_bps=rate_bps, delay_ps=alpha_ps // 2, model=LinkModel.NVLINK,
            tier="nvlink",
        )  # fmt: skip
        ranks.append(gpu)
    return build.finish(), ranks


@pytest.mark.parametrize("memo", [True, False])
@pytest.mark.parametrize(
    ("n", "size", "rate_bps", "alpha_ps", "published_us"),
    [
        (8, 2**30, 2_966_400_000_000, 3_400_000, 5115.15),
        (64, 2**20, 392_148_800_000, 5_000_000, 672.11),
    ],
)
def test_ring_all_reduce_takes_its_closed_form(
    n: int, size: int, rate_bps: int, alpha_ps: int, published_us: float, memo: bool
) -> None:
    fabric, ranks = nvlink_plane(n, rate_bps, alpha_ps)
    env = FabricEnvironment()
    engine = make_engine("fluid", env, fabric, Routing(fabric), FRAMED, memo=memo)
    engine.execute(plan("all_reduce", ranks=n, size_bytes=size, algorithm="ring"), ranks)
    env.run()
    (record,) = engine.collectives()
    assert record.transfers == 2 * (n - 1) * n
    step = alpha_ps + math.ceil(size // n * 8 * 10**12 / rate_bps)
    assert record.end_ps == 2 * (n - 1) * step
    assert record.end_ps / 1e6 == pytest.approx(published_us, abs=0.01)
    if n == 8:
        assert 1.75 * size / (record.end_ps / 1e12) / 1e9 == pytest.approx(367.35, abs=0.01)


def test_ring_over_ethernet_frames_is_within_two_percent() -> None:
    # 64 hosts of 400 Gb/s: payload at 49.0186 GB/s, and 5 us a step less the stored first packet.
    net = Net([], delay_ps=(5_000_000 - 4194 * 20) // 2)
    for i in range(64):
        net.host(f"h{i}", 0, 400 * G)
    engine = engine_on(net.build.finish(), FRAMED)
    schedule = plan("all_reduce", ranks=64, size_bytes=2**20, algorithm="ring")
    engine.execute(schedule, [net.nic[f"h{i}"] for i in range(64)])
    engine.env.run()
    (record,) = engine.collectives()
    assert record.end_ps / 1e6 == pytest.approx(672.11, rel=0.02)
    # Exactly: 126 messages of four packets, one of them with the longer first header.
    assert record.end_ps == 126 * (5_000_000 + (16_384 + 4 * 82 + 16) * 20)


def test_ring_without_chunks_for_everybody_still_takes_its_steps() -> None:
    fabric, ranks = nvlink_plane(8, 2_966_400_000_000, 3_400_000)
    engine = engine_on(fabric, FRAMED)
    engine.execute(plan("all_reduce", ranks=8, size_bytes=0, algorithm="ring"), ranks)
    engine.env.run()
    assert engine.collectives()[0].end_ps == 14 * 3_400_000
