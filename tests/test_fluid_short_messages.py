# SPDX-License-Identifier: Apache-2.0
"""ACKs of messages that are not whole numbers of ``ack_every`` full packets."""

from __future__ import annotations

import pytest

from railweave.collectives import plan
from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.fluid import FluidEngine
from railweave.fabric.graph import DeviceKind, FabricBuilder, LinkModel
from railweave.fabric.network import NetworkSettings
from railweave.fabric.routing import Routing

# Size of each of three messages that a host sends over 8 queue pairs, and what a link carries of
# data and of ACKs, in bytes. 98 bytes of headers; an ACK of 86 bytes per 4 packets, at least one.
CASES = [
    (1024, 24 * (128 + 98), 24 * 86),  # one packet each of 128 bytes
    (4096, 24 * (512 + 98), 24 * 86),
    (5 * 8 * 4096, 24 * (5 * 4178 + 16), 24 * 2 * 86),  # five packets, two ACKs
]


@pytest.mark.parametrize(("size", "wire", "acks"), CASES)
def test_a_link_full_both_ways_carries_data_and_all_acks_in_just_its_time(
    size: int, wire: int, acks: int
) -> None:
    build = FabricBuilder("star")
    switch = build.add_device("s", DeviceKind.SWITCH)
    nics = []
    for i in range(4):
        nics.append(build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}")))
        build.add_cable(
            nics[i], switch, rate_bps=100 * 10**9, delay_ps=0, model=LinkModel.ROCE_LOSSLESS
        )
    fabric, env = build.finish(), FabricEnvironment()
    net = NetworkSettings(host_latency_ps=0, switch_latency_ps=0)
    engine = FluidEngine(env, fabric, Routing(fabric), net, qps=8, memo=False)
    engine.execute(plan("all_to_all", ranks=4, size_bytes=4 * size, algorithm="direct"), nics)
    env.run()
    counters = engine.counters()
    assert counters.wire_bytes.tolist() == [wire] * 8
    assert counters.ack_bytes.tolist() == [acks] * 8
    first = min(wire // 24, 4096 + 98)  # stored by the switch
    assert env.now == pytest.approx(80 * (wire + acks + first), abs=1)
