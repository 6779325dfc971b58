# SPDX-License-Identifier: Apache-2.0
"""The bound of a schedule: what comes before a link's first byte, its bytes, and what follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from railweave.collectives import plan
from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.engines import make_engine
from railweave.fabric.failover import on_nics_left
from railweave.fabric.faults import Fault, apply_faults
from railweave.fabric.graph import DeviceKind, Fabric, FabricBuilder, LinkModel
from railweave.fabric.network import NetworkSettings
from railweave.fabric.packet.settings import PacketSettings
from railweave.fabric.routing import Routing
from railweave.fabric.schedule import Schedule, ScheduleBuilder
from railweave.topologies import build_topology, load_topology

if TYPE_CHECKING:
    from railweave.fabric.engine import CollectiveRecord

G = 10**9
US = 10**6
PHASES = [Phase.explicit, Phase.generate]


def two_leaves(
    *delays_ps: int, rate_bps: int = 100 * G, trunk_bps: int = 100 * G, trunks: int = 1
) -> tuple[Fabric, list[int]]:
    """NICs on two leaves in turn, on cables with these delays, and cables between the leaves."""
    build = FabricBuilder("two leaves")
    leaves = [build.add_device(f"leaf{i}", DeviceKind.SWITCH, tier=1) for i in range(2)]
    nics = []
    for i, delay in enumerate(delays_ps):
        nics.append(build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}")))
        build.add_cable(
            nics[-1], leaves[i % 2], rate_bps=rate_bps, delay_ps=delay,
            model=LinkModel.ROCE_LOSSLESS,
        )  # fmt: skip
    for _ in range(trunks):
        build.add_cable(*leaves, rate_bps=trunk_bps, delay_ps=0, model=LinkModel.ROCE_LOSSLESS)
    return build.finish(), nics


def ran(
    kind: str, fabric: Fabric, schedule: Schedule, ranks: list[int], *,
    policy: str = "ecmp", net: NetworkSettings | None = None,
) -> CollectiveRecord:  # fmt: skip
    """Run a schedule alone; its engine raises if it beats its bound."""
    options: dict[str, Any] = {}
    if kind == "packet":
        spread: Any = "none" if policy == "ecmp" else "spray"
        options["packet"] = PacketSettings(ecn=False, buffer_bytes=10**9, alpha=8.0, spread=spread)
    engine = make_engine(
        kind, FabricEnvironment(), fabric, Routing(fabric, policy=policy),
        net or NetworkSettings(ack_every=0), **options,
    )  # fmt: skip
    engine.execute(schedule, ranks)
    engine.env.run()
    (record,) = engine.collectives()
    assert record.bound_ps <= record.end_ps + 2
    return record


def test_what_comes_before_and_after_a_link_adds_to_its_bytes() -> None:
    """Three pairs compute, send over one trunk, compute: it idles before and after."""
    fabric, nics = two_leaves(*[0] * 6)
    build = ScheduleBuilder(n_ranks=6)
    for pair, (before, after) in enumerate([(70, 50), (90, 30), (80, 40)]):
        first = build.work(2 * pair, before * US)
        sent = build.transfer(2 * pair, 2 * pair + 1, 10**6, after=[first])
        build.work(2 * pair + 1, after * US, after=[sent])
    net = NetworkSettings(ack_every=0, switch_latency_ps=0, host_latency_ps=0)
    found = ran("fluid", fabric, build.finish(), nics, net=net)
    wire = 10**6 + 245 * 82 + 16
    frame = 4096 + 82 + 16  # the first packet is stored at the NIC
    assert 0 <= (70 + 30) * US + (3 * wire + frame) * 80 - found.bound_ps <= 1  # rounded down
    assert found.bound_ps < found.end_ps < 1.12 * found.bound_ps


def test_the_ways_to_and_from_a_link_may_be_those_of_different_messages() -> None:
    """The near source keeps the trunk busy at once, and the last byte goes to the near target."""
    fabric, nics = two_leaves(0, 0, 2 * US, 2 * US)
    build = ScheduleBuilder(n_ranks=4)
    build.transfer(0, 3, 10**6)
    build.transfer(2, 1, 10**6)
    plan_ = build.finish()
    packet = ran("packet", fabric, plan_, nics)
    fluid = ran("fluid", fabric, plan_, nics)
    assert fluid.end_ps - packet.end_ps > 2 * US - 80 * 2 * 4178
    assert packet.bound_ps <= packet.end_ps < 1.003 * packet.bound_ps
    assert fluid.bound_ps == ran("analytic", fabric, plan_, nics).end_ps <= packet.end_ps


def test_sprayed_links_hold_up_fluid_shares_and_no_packets() -> None:
    fabric, nics = two_leaves(0, 0, 0, 0, rate_bps=400 * G, trunks=2)
    build = ScheduleBuilder(n_ranks=4)
    build.transfer(0, 1, 10**7)
    build.transfer(2, 3, 10**7)
    plan_ = build.finish()
    fluid = ran("fluid", fabric, plan_, nics, policy="spray")
    assert fluid.end_ps < 1.003 * fluid.bound_ps  # each trunk carries half of both
    alone = ran("fluid", fabric, plan("send", ranks=2, size_bytes=10**7), nics[:2], policy="spray")
    assert fluid.bound_ps > 1.98 * alone.bound_ps


@pytest.mark.parametrize(("lost", "most"), [("h0/nic0", 1.01), ("leaf0.r0", 1.04)])
def test_rails_on_one_nic_come_one_after_the_other(lost: str, most: float) -> None:
    """A hierarchical all_reduce whose rails share a NIC: rings inside, both rails, rings inside."""
    fabric = build_topology(load_topology("h100-rail-8"))
    whole = ran("fluid", fabric, hierarchical(fabric), fabric.gpus.tolist())
    left = on_nics_left(apply_faults(fabric, [Fault(node=lost)]))
    found = ran("fluid", left, hierarchical(left), left.gpus.tolist())
    assert found.end_ps > 1.3 * whole.end_ps
    assert found.end_ps < most * found.bound_ps


def hierarchical(fabric: Fabric) -> Schedule:
    hosts = fabric.host[fabric.gpus].tolist()
    return plan(
        "all_reduce", ranks=len(hosts), size_bytes=2**30, algorithm="hierarchical", hosts=hosts
    )


# ------------------------------------------------------------------ never beaten
@st.composite
def cases(draw: st.DrawFn, *, most: int) -> dict[str, Any]:
    """A fabric and a graph of transfers and work over it."""
    delays = draw(st.lists(st.sampled_from([0, 1, 700_000, 2 * US]), min_size=2, max_size=5))
    rate = st.sampled_from([25 * G, 100 * G, 400 * G])
    fabric, nics = two_leaves(
        *delays, rate_bps=draw(rate), trunk_bps=draw(rate), trunks=draw(st.integers(1, 3))
    )
    build = ScheduleBuilder(n_ranks=len(nics))
    for node in range(draw(st.integers(1, 12))):
        after = draw(st.lists(st.integers(0, node - 1), max_size=3, unique=True)) if node else []
        src, dst = draw(st.permutations(range(len(nics))))[:2]
        delay = draw(st.sampled_from([0, 0, 1, 3 * US]))
        if draw(st.integers(0, 4)) == 0:
            build.work(src, delay, after=after)
        else:
            build.transfer(src, dst, draw(st.integers(0, most)), after=after, delay_ps=delay)
    net = NetworkSettings(
        ack_every=draw(st.sampled_from([0, 4])), cut_through=draw(st.booleans()),
        switch_latency_ps=draw(st.sampled_from([0, 600_000])),
        host_latency_ps=draw(st.sampled_from([0, 500_000])),
    )  # fmt: skip
    policy = draw(st.sampled_from(["ecmp", "spray"]))
    return {"fabric": fabric, "schedule": build.finish(), "ranks": nics, "net": net,
            "policy": policy}  # fmt: skip


@settings(derandomize=True, deadline=None, max_examples=150, phases=PHASES)
@given(cases(most=10**7))
def test_no_shares_of_links_beat_the_bound(case: dict[str, Any]) -> None:
    fluid, least = ran("fluid", **case), ran("analytic", **case)
    assert least.end_ps == fluid.bound_ps


@settings(derandomize=True, deadline=None, max_examples=60, phases=PHASES)
@given(cases(most=200_000))
def test_no_packets_beat_the_bound(case: dict[str, Any]) -> None:
    ran("packet", **case)
