# SPDX-License-Identifier: Apache-2.0
"""Messages of a schedule between two ranks go one after the other, as on one queue pair."""

from __future__ import annotations

import numpy as np
import pytest

from railweave.collectives import plan
from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.engines import make_engine
from railweave.fabric.flow import Flow
from railweave.fabric.graph import DeviceKind, Fabric, FabricBuilder, LinkModel
from railweave.fabric.network import NetworkSettings
from railweave.fabric.routing import Routing
from railweave.fabric.schedule import Schedule, ScheduleBuilder

QUIET = NetworkSettings(
    ack_every=0, host_latency_ps=0, switch_latency_ps=0, frame_overhead_bytes=0, mtu_bytes=1000
)
G = 10**9


def star(*rates_bps: int) -> Fabric:
    build = FabricBuilder("star")
    nics = [
        build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}"))
        for i in range(len(rates_bps))
    ]
    switch = build.add_device("s", DeviceKind.SWITCH, tier=1)
    for nic, rate in zip(nics, rates_bps, strict=True):
        build.add_cable(
            nic, switch, rate_bps=rate, delay_ps=0, model=LinkModel.ROCE_LOSSLESS, tier="host-leaf"
        )
    return build.finish()


def span_ps(fabric: Fabric, schedule: Schedule, *, memo: bool = False) -> int:
    env = FabricEnvironment()
    engine = make_engine("fluid", env, fabric, Routing(fabric), QUIET, memo=memo)
    end = engine.execute(schedule, range(schedule.n_ranks))
    env.run(until=end)
    return int(end.value.end_ps)


def test_the_first_message_is_not_slowed_by_those_behind_it() -> None:
    # Four messages of 1 MB from rank 0 to rank 1 are ready at once; each is passed on to rank 2.
    build = ScheduleBuilder(n_ranks=3)
    for _ in range(4):
        first = build.transfer(0, 1, 10**6)
        build.transfer(1, 2, 10**6, after=[first])
    # One by one they take 80 us each and are passed on meanwhile; side by side all four would
    # come after 320 us. A message passes two links, and its first packet waits at the switch.
    one, store = 80_000_000, 80_000
    assert span_ps(star(100 * G, 100 * G, 100 * G), build.finish()) == 5 * one + 2 * store


def test_messages_that_are_ready_together_keep_their_order() -> None:
    build = ScheduleBuilder(n_ranks=3)
    sizes = [3 * 10**6, 10**6, 2 * 10**6]
    last = [build.transfer(0, 1, size) for size in sizes][-1]
    build.transfer(1, 2, 10**6, after=[last])
    # The last waits for the 6 MB before and including it.
    expected = 8 * 80_000_000 // 1 - 80_000_000 + 2 * 80_000
    assert span_ps(star(100 * G, 100 * G, 100 * G), build.finish()) == expected


def test_messages_to_different_ranks_share_the_link() -> None:
    build = ScheduleBuilder(n_ranks=3)
    build.transfer(0, 1, 10**6)
    build.transfer(0, 2, 10**6)
    assert span_ps(star(100 * G, 100 * G, 100 * G), build.finish()) == 160_000_000 + 80_000


def test_flows_of_one_pair_are_connections_of_their_own_and_share() -> None:
    fabric = star(100 * G, 100 * G)
    env = FabricEnvironment()
    engine = make_engine("fluid", env, fabric, Routing(fabric), QUIET)
    ends = [engine.send(Flow(id=f"f{i}", src=0, dst=1, size_bytes=10**6)) for i in range(2)]
    env.run(until=env.all_of(ends))
    assert [r.end_ps for r in engine.records()] == [160_080_000] * 2


@pytest.mark.parametrize("memo", [False, True])
def test_one_slow_host_makes_a_ring_no_slower_than_all_slow_hosts(memo: bool) -> None:
    ring = plan("all_reduce", ranks=8, size_bytes=8 * 10**6, algorithm="ring")
    one = span_ps(star(10 * G, *[100 * G] * 7), ring, memo=memo)
    every = span_ps(star(*[10 * G] * 8), ring, memo=memo)
    # The slow host sends 14 chunks of 1 MB; the rest can only add what the first and the last
    # of them need on the way.
    assert 14 * 800_000_000 <= one <= every
    assert one < 14 * 800_000_000 * 1.1


def test_degrading_links_never_makes_a_ring_faster() -> None:
    ring = plan("all_reduce", ranks=6, size_bytes=6 * 10**6, algorithm="ring")
    spans = []
    for slow in range(7):
        rates = np.where(np.arange(6) < slow, 25 * G, 100 * G)
        spans.append(span_ps(star(*rates.tolist()), ring))
    assert spans == sorted(spans)
