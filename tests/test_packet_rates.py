# SPDX-License-Identifier: Apache-2.0
"""Marks, notifications and DCQCN against published arithmetic and a reference's steady states."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.flow import Flow
from railweave.fabric.graph import DeviceKind, FabricBuilder, LinkModel
from railweave.fabric.jit import as_python
from railweave.fabric.network import NetworkSettings
from railweave.fabric.packet import layout as lay
from railweave.fabric.packet.engine import PacketEngine
from railweave.fabric.packet.ports import mark
from railweave.fabric.packet.rates import congested, tick_alpha
from railweave.fabric.packet.settings import (
    CcSettings,
    PacketSettings,
    cc_profile,
    most_dynamic_ecn_bytes,
    most_static_pfc_bytes,
)
from railweave.fabric.routing import Routing

G = 10**9
US = 10**6
AMPLE = 1 << 40


def star(
    hosts: int, *, rate_bps: int, delay_ps: int, network: NetworkSettings, packet: PacketSettings
) -> tuple[PacketEngine, list[int]]:
    """Hosts on one switch, and their NICs."""
    build = FabricBuilder("star")
    nics = [
        build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}"))
        for i in range(hosts)
    ]
    switch = build.add_device("s", DeviceKind.SWITCH)
    for nic in nics:
        build.add_cable(
            nic, switch, rate_bps=rate_bps, delay_ps=delay_ps, model=LinkModel.ROCE_LOSSLESS
        )
    fabric = build.finish()
    engine = PacketEngine(
        FabricEnvironment(), fabric, Routing(fabric), network,
        packet=packet, buffers=np.array([AMPLE]), trace_rows=0,
    )  # fmt: skip
    return engine, nics


def flow(name: str, src: int, dst: int, size: int) -> Flow:
    return Flow(id=name, src=src, dst=dst, size_bytes=size)


QUIET = {"ack_every": 0, "host_latency_ps": 0, "switch_latency_ps": 0}
NO_PAUSE = {"xoff_bytes": AMPLE // 100, "headroom_bytes": 0}


# ------------------------------------------------------------------ G6
def test_marks_follow_the_law_at_a_steady_queue() -> None:
    """One sender at the port's rate, behind what another left there: the queue stands still."""
    frames, n = 241, 100_000
    engine, nics = star(
        3, rate_bps=100 * G, delay_ps=0,
        network=NetworkSettings(**QUIET, frame_overhead_bytes=54, mtu_bytes=4096),
        packet=PacketSettings(**NO_PAUSE, kmin_bytes=400_000, kmax_bytes=1_600_000, pmax=0.2),
    )  # fmt: skip
    engine.send(flow("steady", nics[0], nics[2], 4096 * (n + 2 * frames)))
    engine.send(flow("burst", nics[1], nics[2], 4096 * frames))
    row = engine.state.egress[int(engine.fabric.n_links - 1) * 2]
    frame_ps = 4150 * 80
    engine.env.run(until=(2 * frames + 10) * frame_ps)
    marked, sent = int(row.marked), int(row.frames)
    behind = int(row.bytes) - 4150  # less the frame in service
    engine.env.run(until=(2 * frames + 10 + n - 500) * frame_ps)
    assert int(row.bytes) - 4150 == behind
    odds = 0.2 * (behind - 4150 - 400_000) / 1_200_000
    assert odds == pytest.approx(0.1, abs=0.002)
    count = int(row.frames) - sent
    sigma = (count * odds * (1 - odds)) ** 0.5
    assert int(row.marked) - marked == pytest.approx(count * odds, abs=3.2 * sigma)


def test_no_marks_up_to_kmin_and_all_above_kmax() -> None:
    engine, nics = star(
        3, rate_bps=100 * G, delay_ps=0,
        network=NetworkSettings(**QUIET, frame_overhead_bytes=4, mtu_bytes=996),
        packet=PacketSettings(**NO_PAUSE, kmin_bytes=10_000, kmax_bytes=20_000, pmax=0.0),
    )  # fmt: skip
    for i in range(2):
        engine.send(flow(f"f{i}", nics[i], nics[2], 996 * 100))
    engine.env.run()
    row = engine.state.egress[int(engine.fabric.n_links - 1) * 2]
    # 200 frames come in pairs and leave one by one. An arrival of the same instant comes after the
    # departure, so the k-th leaves k - 2 behind up to k = 100, then 200 - k: 23 to 179 are marked.
    assert row.frames == 200
    assert row.marked == 179 - 23 + 1


# ------------------------------------------------------------------ G7
def test_rates_of_a_slowed_sender_step_by_step() -> None:
    """Two notifications, at 0 and 50 us: recovery, then additive increase (paper's constants)."""
    engine, nics = star(
        2, rate_bps=100 * G, delay_ps=0, network=NetworkSettings(**QUIET),
        packet=PacketSettings(**NO_PAUSE, ecn=False, cc=cc_profile("paper")),
    )  # fmt: skip
    engine.send(flow("f", nics[0], nics[1], 10**8))
    state = engine.state
    pools = (state.runs, state.ev, state.wheel, state.far, state.qps, state.rates, 0)

    def run_to(us: int) -> float:
        state.advance(us * US)
        state.run.now = us * US
        return float(state.qps[0].rate) / 1e9

    run_to(0)
    congested(*pools)
    assert state.qps[0].rate == 50e9
    run_to(50)
    congested(*pools)
    found = [run_to(us) for us in (50, 105, 160, 215, 270, 325, 380, 435)]
    assert found == pytest.approx(
        [25, 37.5, 43.75, 46.875, 48.4375, 49.21875, 49.629375, 49.8546875], rel=1e-12
    )
    assert state.rates[0].target / 1e9 == pytest.approx(50.08)
    tick_alpha(state.run, state.rates[0], 435 * US)
    assert state.rates[0].alpha == pytest.approx((255 / 256) ** 7, rel=1e-12)


def test_a_nic_keeps_its_target_at_the_first_cut() -> None:
    """Ticks of 1 and 4 us from the first notification; the cut comes at a tick, not at once."""
    engine, nics = star(
        2, rate_bps=100 * G, delay_ps=0, network=NetworkSettings(**QUIET),
        packet=PacketSettings(**NO_PAUSE, ecn=False, cc=cc_profile("scaled")),
    )  # fmt: skip
    engine.send(flow("f", nics[0], nics[1], 10**8))
    state = engine.state
    pools = (state.runs, state.ev, state.wheel, state.far, state.qps, state.rates, 0)
    state.advance(10 * US)
    state.run.now = 10 * US
    congested(*pools)
    state.advance(14 * US - 1)
    assert state.qps[0].rate == 100e9
    state.advance(14 * US)
    alpha = (255 / 256) ** 4  # four ticks; the first notification does not feed alpha
    assert state.qps[0].rate == pytest.approx(100e9 * (1 - alpha / 2), rel=1e-12)
    assert state.rates[0].target == 100e9
    state.advance(314 * US)
    assert state.qps[0].rate == pytest.approx(100e9 * (1 - alpha / 4), rel=1e-12)


# ------------------------------------------------------------------ G8
@pytest.mark.parametrize(
    ("n", "window_ms", "queue_kb"), [(2, (100, 200), 24), (4, (100, 200), 55), (8, (50, 100), 116)]
)
def test_dcqcn_converges(n: int, window_ms: tuple[int, int], queue_kb: float) -> None:
    """Fair shares, a full link and the mean queue of a reference over seeds."""
    profile = cc_profile("paper")
    assert isinstance(profile, CcSettings)
    engine, nics = star(
        n + 1, rate_bps=40 * G, delay_ps=2 * US,
        network=NetworkSettings(**QUIET, frame_overhead_bytes=0, mtu_bytes=1000),
        packet=PacketSettings(
            **NO_PAUSE, kmin_bytes=5000, kmax_bytes=200_000, pmax=0.01, cc=replace(profile)
        ),
    )  # fmt: skip

    def begin(i: int):  # type: ignore[no-untyped-def]
        yield engine.env.timeout(i * 100 * US)
        yield engine.send(flow(f"f{i}", nics[i], nics[n], 10**10))

    for i in range(n):
        engine.env.process(begin(i))
    start, end = (ms * 1000 * US for ms in window_ms)
    engine.env.run(until=start)
    state = engine.state
    links = [2 * i for i in range(n)]
    before = state.ports.data_bytes[links].copy()
    queue = []
    for at in range(start, end, 20 * US):
        engine.env.run(until=at + 20 * US)
        queue.append(int(state.egress.bytes[(2 * n + 1) * 2]))
    gbps = (state.ports.data_bytes[links] - before) * 8e3 / (end - start)
    assert gbps.sum() >= 39.5
    assert gbps.sum() ** 2 / (n * (gbps**2).sum()) >= 0.98
    assert np.mean(queue) / 1000 == pytest.approx(queue_kb, rel=0.25)
    fixed_point = {2: 20.2, 4: 41.8, 8: 93.8}[n]  # KB, of the published ODEs
    assert 0.9 * fixed_point <= np.mean(queue) / 1000 <= 1.6 * fixed_point
    assert state.run.violations == 0
    assert state.run.cc == lay.CC_PAPER


# ------------------------------------------------------------------ M/D/1
def test_a_port_under_poisson_arrivals_is_an_m_d_1_queue() -> None:
    """Mean sojourn s (1 + rho / (2 (1 - rho))): 125.34 ns for 4178 B at 400 Gb/s and load 0.5."""
    from railweave.fabric.binding import BoundSchedule
    from railweave.fabric.schedule import NodeKind, Schedule

    n = 300_000
    build = FabricBuilder("port")
    fast = build.add_device("fast", DeviceKind.NIC, host=build.add_host("fast"))
    sink = build.add_device("sink", DeviceKind.NIC, host=build.add_host("sink"))
    switch = build.add_device("s", DeviceKind.SWITCH)
    for nic, rate in ((fast, 8 * 10**12), (sink, 400 * G)):
        build.add_cable(nic, switch, rate_bps=rate, delay_ps=0, model=LinkModel.ROCE_LOSSLESS)
    fabric = build.finish()
    packet = PacketSettings(ecn=False, **NO_PAUSE)
    engine = PacketEngine(
        FabricEnvironment(), fabric, Routing(fabric),
        NetworkSettings(**QUIET, frame_overhead_bytes=82), packet=packet,
        buffers=np.array([AMPLE]), trace_rows=8 * n,
    )  # fmt: skip
    gaps = np.random.default_rng(7).exponential(2 * 83_560, n)
    zeros, ones = np.zeros(n, np.int32), np.ones(n, np.int32)
    plan = Schedule(
        n_ranks=2, kind=np.full(n, NodeKind.TRANSFER, np.int32), src=zeros, dst=ones,
        size_bytes=np.full(n, 4096), delay_ps=np.cumsum(gaps).astype(np.int64), n_deps=zeros,
        succ_ptr=np.zeros(n + 1, np.int32), succ=zeros[:0],
    )  # fmt: skip
    assert isinstance(engine._bind(plan, np.array([fast, sink], np.int32)), BoundSchedule)
    engine.execute(plan, [fast, sink])
    engine.env.run()
    trace = engine.state.trace[: int(engine.state.run.traced)]
    arrivals = trace[(trace[:, 1] >> lay.CLASS_SHIFT) == lay.ARRIVE]
    link = (arrivals[:, 1] & lay.ENTITY_MASK) >> 4
    sojourn = (arrivals[link == 3, 0] - arrivals[link == 0, 0]).mean() / 1000
    assert len(arrivals) == 2 * n
    assert sojourn == pytest.approx(125.34, rel=0.01)


# ------------------------------------------------------------------ G6, published arithmetic
def test_thresholds_below_which_marks_come_before_pauses() -> None:
    """[P15], section 4: a buffer of 12 MB, 32 ports, 22.4 KB of headroom."""
    assert most_static_pfc_bytes(12_000_000, 32, 22_400) == pytest.approx(24_475, abs=0.5)
    assert most_dynamic_ecn_bytes(12_000_000, 32, 22_400, beta=8) == pytest.approx(21_756, abs=0.5)


@pytest.mark.parametrize(
    ("kb", "odds"), [(400.0, 0.0), (1000.0, 0.1), (1600.0, 0.2), (1600.001, 1.0)]
)
def test_the_law_of_marks_at_single_points(kb: float, odds: float) -> None:
    """The kernel's own marking, over many draws: none, one in ten, one in five, all."""
    engine, _ = star(
        3, rate_bps=100 * G, delay_ps=0, network=NetworkSettings(**QUIET),
        packet=PacketSettings(**NO_PAUSE, kmin_bytes=400_000, kmax_bytes=1_600_000, pmax=0.2),
    )  # fmt: skip
    state = engine.state
    state.grow_packets(8)
    packet, row, n = state.packets[0], state.egress[0], 2000
    qp = state.qps[0]
    qp.flow = 7
    marked = 0
    for psn in range(n):
        packet.psn, packet.flag, packet.again, qp.tx = psn, 0, 0, psn + 1
        with np.errstate(over="ignore"):
            as_python(mark, state.ports, row, 0, qp, packet, round(kb * 1000))
        marked += int(packet.flag) != 0
    sigma = (n * odds * (1 - odds)) ** 0.5
    assert marked == pytest.approx(n * odds, abs=3.2 * sigma)
