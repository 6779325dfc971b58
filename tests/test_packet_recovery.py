# SPDX-License-Identifier: Apache-2.0
"""Lost packets: what each recovery sends again, by hand; and that nothing is ever missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.errors import LivelockError, RailweaveError
from railweave.fabric.flow import Flow
from railweave.fabric.graph import DeviceKind, FabricBuilder, LinkModel
from railweave.fabric.jit import as_python
from railweave.fabric.network import NetworkSettings
from railweave.fabric.packet.engine import PacketEngine
from railweave.fabric.packet.layout import CONTROL, KIND_ACK
from railweave.fabric.packet.ports import chance
from railweave.fabric.packet.settings import PacketSettings
from railweave.fabric.routing import Routing

G = 10**9
US = 10**6


def direct(
    model: LinkModel = LinkModel.ROCE_LOSSY, *, ack_every: int = 1, **packet: Any
) -> tuple[PacketEngine, Flow]:
    """Two NICs on one cable of 100 Gb/s and 2 us, and a flow of 100 frames."""
    build = FabricBuilder("pair")
    a, b = (
        build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}"))
        for i in range(2)
    )
    build.add_cable(a, b, rate_bps=100 * G, delay_ps=2 * US, model=model)
    fabric = build.finish()
    network = NetworkSettings(  # every full frame is 4178 B
        ack_every=ack_every, host_latency_ps=0, switch_latency_ps=0, frame_overhead_bytes=82
    )
    settings = PacketSettings(ecn=False, **{"loss_rate": 1e-300, **packet})
    engine = PacketEngine(
        FabricEnvironment(), fabric, Routing(fabric), network, packet=settings, tracing=True
    )
    return engine, Flow(id="f", src=a, dst=b, size_bytes=100 * 4096)


# ------------------------------------------------------------------ G9
@pytest.mark.parametrize(
    ("recovery", "lose", "frames", "ns"),
    [
        ("go-back-n", 10, 114, 40_103.36),
        ("selective-repeat", 10, 101, 35_758.24),
        ("go-back-n", -1, 100, 35_424.00),
    ],
)
def test_one_lost_packet(recovery: str, lose: int, frames: int, ns: float) -> None:
    engine, flow = direct(recovery=recovery)
    engine.send(flow)
    engine.state.qps.lose[0] = lose
    engine.env.run()
    assert engine.state.egress.frames[0 * 2] == frames
    assert engine.records()[0].end_ps == ns * 1000
    assert engine.network()["retransmitted_bytes"] == (frames - 100) * 4178
    assert engine.network()["timeouts"] == 0


@pytest.mark.parametrize("recovery", ["go-back-n", "selective-repeat"])
@pytest.mark.parametrize("rate", [1e-3, 1e-2])
def test_random_loss_ends_and_costs_what_theory_says(recovery: str, rate: float) -> None:
    """Goodput (1 - p) / (1 - p + p W) of go-back-N and 1 - p of selective repeat, losses of both
    directions counted (a lost acknowledgement costs nothing here: the next one makes up for it)."""
    engine, _ = direct(recovery=recovery, loss_rate=rate, rto_ps=20 * US)
    fabric = engine.fabric
    n = 20_000
    a, b = fabric.nics
    engine.send(Flow(id="long", src=int(a), dst=int(b), size_bytes=n * 4096))
    engine.env.run()
    took = engine.records()[0].fct_ps
    share = n * 4178 * 80 / took
    window = (2 * 2_000_000 + 334_240 + 6880) / 334_240  # frames between a loss and its news
    if recovery == "go-back-n":
        expected = (1 - rate) / (1 - rate + rate * (window + 1))
    else:
        expected = 1 - rate
    assert share == pytest.approx(expected, rel=0.05)
    totals = engine.network()
    assert totals["drops"]["random"] > 0
    sent = int(engine.state.qps.sent[0])
    assert sent - totals["retransmitted_bytes"] == n * 4178


@pytest.mark.parametrize("every", [1, 4, 16])
def test_selective_repeat_keeps_the_line_full_whatever_an_ack_answers(every: int) -> None:
    """Its cap leaves room for frames that have arrived and whose ACK waits for more of them."""
    ends = {}
    for recovery in ("go-back-n", "selective-repeat"):
        engine, flow = direct(recovery=recovery, loss_rate=0.0, ack_every=every)
        engine.send(flow)
        engine.env.run()
        ends[recovery] = engine.records()[0].end_ps
    assert ends["selective-repeat"] == ends["go-back-n"] == (100 * 334_240 + 2 * US)


def test_a_lost_last_packet_waits_for_the_timer() -> None:
    engine, flow = direct(rto_ps=500 * US)
    engine.send(flow)
    engine.state.qps.lose[0] = 99
    engine.env.run()
    assert engine.network()["timeouts"] == 1
    assert 500 * US < engine.records()[0].fct_ps < 600 * US


def test_go_back_0_never_ends_where_every_message_loses_a_packet() -> None:
    """The published livelock: one packet in 256 lost, messages of 1,000 packets and more."""
    engine, _ = direct(recovery="go-back-0", loss_rate=1 / 64, retries=10**6, livelock_packets=0)
    a, b = engine.fabric.nics
    engine.send(Flow(id="f", src=int(a), dst=int(b), size_bytes=4096 * 4096))
    engine.env.run(until=50_000 * US)
    assert engine.records()[0].end_ps < 0
    assert engine.state.ports.data_bytes[0] > 0.5 * 50e-3 * 100e9 / 8  # and yet the link is busy


def test_a_livelock_ends_a_run_and_says_who_waits_for_what() -> None:
    engine, _ = direct(recovery="go-back-0", loss_rate=1 / 64, livelock_packets=20_000)
    a, b = engine.fabric.nics
    engine.send(Flow(id="f", src=int(a), dst=int(b), size_bytes=4096 * 4096))
    with pytest.raises(LivelockError, match=r"20000 packets .* flow 'f' \(h0/nic0 -> h1/nic0\) w"):
        engine.env.run()
    (stuck,) = engine.network()["livelock"]
    assert stuck["packets"] == 4096
    assert 0 < stuck["acknowledged"] < 4096
    assert engine.records()[0].end_ps < 0


def test_draws_do_not_repeat_after_65536_packets() -> None:
    """A message begun anew for the 65,536th time and more is lost at other places."""
    engine, _ = direct(recovery="go-back-0", loss_rate=1 / 16, livelock_packets=0)
    a, b = engine.fabric.nics
    engine.send(Flow(id="f", src=int(a), dst=int(b), size_bytes=4096 * 4096))
    engine.env.run(until=1)
    state = engine.state
    qp, packet = state.qps[0], state.packets[0]
    packet.flag, packet.psn = 0, 5
    draws, acks = set(), set()
    with np.errstate(over="ignore"):
        for sent in range(5, 4 << 16, 61):
            qp.tx, packet.again = sent + 1, (sent - 5) & 65535
            draws.add(as_python(chance, np.uint64(1), qp, packet))
        packet.flag = CONTROL | KIND_ACK
        for sent in range(5, 4 << 16, 61):
            qp.answers, packet.again = sent + 3, (sent - 5) & 65535
            acks.add(as_python(chance, np.uint64(1), qp, packet))
    assert len(draws) == len(acks) == len(range(5, 4 << 16, 61))
    assert not draws & acks


def test_a_queue_pair_gives_up() -> None:
    engine, flow = direct(loss_rate=1.0, retries=3, rto_ps=10 * US)
    event = engine.send(flow)
    with pytest.raises(RailweaveError, match=r"flow 'f' .* gave up after 3 retries"):
        engine.env.run(until=event)


@pytest.mark.parametrize("recovery", ["go-back-n", "selective-repeat"])
def test_buffers_too_small_drop_and_all_bytes_arrive(recovery: str) -> None:
    build = FabricBuilder("star")
    nics = [
        build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}"))
        for i in range(9)
    ]
    switch = build.add_device("s", DeviceKind.SWITCH)
    for nic in nics:
        build.add_cable(nic, switch, rate_bps=100 * G, delay_ps=US, model=LinkModel.ROCE_LOSSY)
    fabric = build.finish()
    engine = PacketEngine(
        FabricEnvironment(), fabric, Routing(fabric), NetworkSettings(host_latency_ps=0),
        packet=PacketSettings(ecn=False, recovery=recovery, retries=1000),
        buffers=np.array([200_000]), tracing=True,
    )  # fmt: skip
    for i in range(8):
        engine.send(Flow(id=f"f{i}", src=nics[i], dst=nics[8], size_bytes=300_000))
    engine.env.run()
    totals = engine.network()
    assert totals["drops"]["buffer"] > 0
    assert totals["drops"]["lossless_violation"] == 0
    assert all(record.end_ps > 0 for record in engine.records())
    least = 8 * engine.settings.wire_bytes(300_000) * 80
    assert max(record.end_ps for record in engine.records()) >= least
    # Every copy of every packet was delivered or dropped: nothing is under way or held any more.
    state = engine.state
    state.advance(2**61)
    assert state.qps.inflight.sum() == 0
    assert state.switches.shared[0] == state.switches.lazy[0] * 0 + _lazily_held(state)


def _lazily_held(state: Any) -> int:
    """Bytes of frames whose end had no event."""
    lazy = state.ports.lazy == 1
    return int(state.ports.svc_bytes[lazy].sum())
