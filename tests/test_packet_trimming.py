# SPDX-License-Identifier: Apache-2.0
"""Trimming, spraying and receiver credit: by hand, and that every copy of a packet is accounted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.errors import InputError
from railweave.fabric.flow import Flow
from railweave.fabric.graph import DeviceKind, FabricBuilder, LinkModel
from railweave.fabric.network import NetworkSettings
from railweave.fabric.packet.engine import PacketEngine
from railweave.fabric.packet.settings import PacketSettings
from railweave.fabric.routing import Routing

G = 10**9
US = 10**6
NS = 1000


def star(
    senders: int, *, model: LinkModel = LinkModel.TRIMMING, network: Any = None, **packet: Any
) -> tuple[PacketEngine, list[int]]:
    """Hosts around one switch, 100 Gb/s and 500 ns each; the last is the receiver."""
    build = FabricBuilder("star")
    nics = [
        build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}"))
        for i in range(senders + 1)
    ]
    switch = build.add_device("s", DeviceKind.SWITCH, tier=1)
    for nic in nics:
        build.add_cable(nic, switch, rate_bps=100 * G, delay_ps=500 * NS, model=model)
    fabric = build.finish()
    keys = {"host_latency_ps": 0, "switch_latency_ps": 0, "frame_overhead_bytes": 82}
    engine = PacketEngine(
        FabricEnvironment(), fabric, Routing(fabric), NetworkSettings(**(keys | (network or {}))),
        packet=PacketSettings(**{"ecn": False, **packet}), tracing=True,
    )  # fmt: skip
    return engine, nics


def incast(senders: int, size: int, **packet: Any) -> PacketEngine:
    engine, nics = star(senders, **packet)
    for i in range(senders):
        engine.send(Flow(id=f"f{i}", src=nics[i], dst=nics[-1], size_bytes=size))
    engine.env.run()
    return engine


def last_ps(engine: PacketEngine) -> int:
    ends = [record.end_ps for record in engine.records()]
    assert min(ends) > 0
    return max(ends)


def accounted(engine: PacketEngine) -> None:
    """Every copy of every data packet was delivered, trimmed or dropped, and nothing is left."""
    engine.state.advance(2**61)
    state = engine.state
    qps = state.qps[: state.n_qps]
    totals = engine.network()
    sent = int(qps.used.sum())
    delivered = int(qps.arrived.sum()) - int(qps.naks.sum())
    lost = totals["drops"]["random"] + totals["drops"]["buffer"]
    if not lost:
        assert delivered + totals["trims"] == sent
        assert int(qps.naks.sum()) == totals["trims"]
    else:
        assert 0 <= sent - delivered - totals["trims"] <= lost
    assert (qps.expected == qps.posted).all()
    assert (qps.una == qps.posted).all()
    assert qps.inflight.sum() == 0
    assert (qps.pulling == 0).all()
    assert state.run.pk_left == len(state.packets)


# ------------------------------------------------------------------ by hand
def test_a_packet_that_is_trimmed_costs_one_trip_there_and_back() -> None:
    """Three senders, one frame each at t = 0, and room for two frames (one of them being sent):
    the second or the third is trimmed to 64 B, on whichever side the coin falls."""
    engine = incast(3, 4096, trim_queue_bytes=2 * 4178)
    totals = engine.network()
    assert totals["trims"] == 1
    assert totals["naks"] == 1
    assert totals["timeouts"] == 0
    assert totals["drops"] == {
        "buffer": 0, "lossless_violation": 0, "random": 0, "link_down": 0, "watchdog": 0
    }  # fmt: skip
    ends = sorted(record.end_ps for record in engine.records())
    frame, hop = 4178 * 80, 500 * NS
    assert ends[0] == 2 * (frame + hop)
    assert ends[1] == ends[0] + 64 * 80 + frame  # headers go first
    # The header (64 B: with frame_overhead there is no preamble) comes while the first frame is
    # being acknowledged (86 B), and is answered next. Its sender has unasked credit left.
    nak = ends[0] + 86 * 80 + 2 * (86 * 80 + hop)
    assert ends[2] == nak + 2 * (frame + hop)
    accounted(engine)


def test_credit_is_paced_by_the_receiver() -> None:
    """One sender of 100 frames with a window of 4: 96 are pulled, four at a time."""
    engine = incast(1, 100 * 4096, unasked_bytes=4 * 4178, network={"ack_every": 4})
    assert engine.network()["pulls"] == 24
    frame, hop = 4178 * 80, 500 * NS
    first = 2 * (frame + hop)  # the first frame arrives and asks for all the others
    step = int(4 * 4178 * 8e12 / (0.98 * 100 * G))
    pull = 2 * (84 * 80 + hop)
    # Each pull lets four frames go when it arrives; the last four of them end the message.
    last = first + 23 * step + pull + 3 * frame + 2 * (frame + hop)
    assert last_ps(engine) == last
    accounted(engine)


def test_a_window_opens_anew_after_silence() -> None:
    engine, nics = star(1, unasked_bytes=8 * 4178, network={"ack_every": 1})
    env = engine.env

    def twice() -> Any:
        for i in range(2):
            yield engine.send(Flow(id=f"f{i}", src=nics[0], dst=nics[1], size_bytes=8 * 4096))
            yield env.timeout(100 * US)

    env.process(twice())
    env.run()
    times = [record.fct_ps for record in engine.records()]
    assert times[0] == times[1] == 9 * 4178 * 80 + 2 * 500 * NS
    assert engine.network()["pulls"] == 0


# ------------------------------------------------------------------ what any correct scheme does
@pytest.mark.parametrize("senders", [2, 8, 32])
def test_incast_ends_near_the_bound_without_a_timer(senders: int) -> None:
    engine = incast(senders, 1_000_000)
    bound = senders * engine.settings.wire_bytes(1_000_000) * 80
    trip = 2 * (2 * 500 * NS) + 2 * (4178 + 86) * 80
    assert bound <= last_ps(engine) <= bound * 1.05 + 2 * trip
    totals = engine.network()
    assert totals["timeouts"] == 0
    assert totals["drops"]["buffer"] == 0
    assert totals["pause_frames"] == 0
    assert totals["retransmitted_bytes"] == sum(
        int(qp.resent) for qp in engine.state.qps[: engine.state.n_qps]
    )
    accounted(engine)


@pytest.mark.parametrize("loss", [1e-2, 5e-2])
def test_random_loss_ends_and_is_accounted(loss: float) -> None:
    engine = incast(4, 400_000, loss_rate=loss, rto_ps=50 * US, retries=50)
    assert engine.network()["drops"]["random"] > 0
    assert engine.network()["timeouts"] > 0
    last_ps(engine)
    accounted(engine)


def test_headers_without_room_are_dropped_and_the_timer_repeats_them() -> None:
    engine = incast(
        16, 100_000, trim_queue_bytes=4178, rto_ps=100 * US, retries=1000, unasked_bytes=200_000
    )
    assert engine.network()["trims"] > 0
    last_ps(engine)
    accounted(engine)


# ------------------------------------------------------------------ spraying
def leaf_spine(spread: str, **packet: Any) -> tuple[PacketEngine, list[int]]:
    """Two leaves of four hosts and four spines."""
    build = FabricBuilder("clos")
    nics = [
        build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}"))
        for i in range(8)
    ]
    leaves = [build.add_device(f"leaf{i}", DeviceKind.SWITCH, tier=1) for i in range(2)]
    spines = [build.add_device(f"spine{i}", DeviceKind.SWITCH, tier=2) for i in range(4)]
    cable = {"rate_bps": 100 * G, "delay_ps": 500 * NS, "model": LinkModel.TRIMMING}
    for i, nic in enumerate(nics):
        build.add_cable(nic, leaves[i // 4], **cable)
    for leaf in leaves:
        for spine in spines:
            build.add_cable(leaf, spine, **cable)
    fabric = build.finish()
    engine = PacketEngine(
        FabricEnvironment(), fabric, Routing(fabric, policy="spray"),
        NetworkSettings(host_latency_ps=0), packet=PacketSettings(spread=spread, **packet),
        tracing=True,
    )  # fmt: skip
    return engine, nics


@pytest.mark.parametrize("spread", ["spray", "random", "rr", "entropy", "adaptive"])
def test_a_sprayed_permutation_uses_all_spines(spread: str) -> None:
    engine, nics = leaf_spine(spread)
    for i in range(4):
        engine.send(Flow(id=f"f{i}", src=nics[i], dst=nics[4 + i], size_bytes=2_000_000))
    engine.env.run()
    alone = engine.settings.wire_bytes(2_000_000) * 80
    assert alone <= last_ps(engine) <= 1.15 * alone
    loads = engine.state.ports.data_bytes[16:32:2]
    used = loads[loads > 0]
    assert len(used) == 4
    assert used.max() < 1.5 * used.min()
    assert engine.network()["timeouts"] == 0
    accounted(engine)


def test_packets_of_one_entropy_value_go_one_way() -> None:
    engine, nics = leaf_spine("entropy", entropies=1)
    engine.send(Flow(id="f", src=nics[0], dst=nics[4], size_bytes=500_000))
    engine.env.run()
    assert np.count_nonzero(engine.state.ports.data_bytes[16:]) == 2  # up and down one spine
    assert engine.network()["out_of_sequence"] == 0


def test_a_value_that_met_a_trim_is_left_out_of_its_next_turn() -> None:
    engine = incast(8, 200_000, spread="entropy", entropies=16)
    state = engine.state
    assert engine.network()["trims"] > 0
    skipped = state.qps.tx[:8] - state.qps.used[:8]
    assert 0 < skipped.sum() <= engine.network()["trims"]


# ------------------------------------------------------------------ refusals
def test_trimming_where_nothing_can_be_lost_is_refused() -> None:
    with pytest.raises(InputError, match="nothing is ever trimmed"):
        incast(2, 4096, model=LinkModel.ROCE_LOSSLESS, recovery="trim")
    incast(2, 4096, model=LinkModel.ROCE_LOSSLESS, recovery="trim", pfc=False)


def test_acknowledgements_in_the_data_class_are_refused() -> None:
    with pytest.raises(InputError, match="go ahead of data"):
        incast(2, 4096, ack_control=False)
