# SPDX-License-Identifier: Apache-2.0
"""Paths that share no link: which they are, and that they change no picosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.collectives import plan
from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.fluid import FluidEngine
from railweave.fabric.graph import DeviceKind, Fabric, FabricBuilder, LinkModel
from railweave.fabric.memo import Isolated
from railweave.fabric.network import NetworkSettings
from railweave.fabric.routing import Routing
from railweave.fabric.sole_paths import sole_rates

HOSTS = 12


def tapered(*, rates_gbps: list[int]) -> Fabric:
    """Three leaves of four hosts with a NIC each, two spines, one cable from a leaf to each."""
    build = FabricBuilder("tapered")
    model = LinkModel.ROCE_LOSSLESS
    nics = [
        build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}"))
        for i in range(HOSTS)
    ]
    leaves = [build.add_device(f"leaf{i}", DeviceKind.SWITCH, tier=1) for i in range(3)]
    spines = [build.add_device(f"spine{i}", DeviceKind.SWITCH, tier=2) for i in range(2)]
    for i, nic in enumerate(nics):
        rate = rates_gbps[i] * 10**9
        build.add_cable(nic, leaves[i // 4], rate_bps=rate, delay_ps=3_000, model=model)
    for leaf in leaves:
        for spine in spines:
            build.add_cable(leaf, spine, rate_bps=100 * 10**9, delay_ps=7_001, model=model)
    return build.finish()


def engine_on(fabric: Fabric, *, memo: bool, ack_every: int = 0) -> FluidEngine:
    net = NetworkSettings(ack_every=ack_every)
    return FluidEngine(FabricEnvironment(), fabric, Routing(fabric, seed=1), net, memo=memo)


def sole(engine: FluidEngine, size: int, ranks: list[int]) -> np.ndarray:
    """Rates of the paths of a ring all_reduce, float64 (ranks,), 0 where a link is shared."""
    schedule = plan("all_reduce", ranks=len(ranks), size_bytes=size, algorithm="ring")
    bound = engine.binder.bind(schedule, np.array(ranks, np.int32))
    isolated = Isolated(bound, engine.state)
    return sole_rates(isolated.paths, isolated._capacity, isolated._ack_share)


def test_a_ring_in_one_leaf_crosses_every_link_alone() -> None:
    rates = sole(engine_on(tapered(rates_gbps=[100, 50, *[100] * 10]), memo=True), 10**6, [0, 1, 2])
    assert rates.tolist() == [50e9, 50e9, 100e9]  # 0 -> 1, 1 -> 2 over host 1's cable; 2 -> 0


def test_acknowledgements_share_a_link_with_what_goes_the_other_way() -> None:
    fabric = tapered(rates_gbps=[100] * HOSTS)
    assert sole(engine_on(fabric, memo=True, ack_every=1), 10**6, [0, 1, 2]).tolist() == [0, 0, 0]


def test_two_paths_over_one_uplink_are_not_alone() -> None:
    # Six paths leave leaf 0 and leaf 1 by two uplinks each, so at least two meet on one.
    ranks = [0, 4, 1, 5, 2, 6]
    rates = sole(engine_on(tapered(rates_gbps=[100] * HOSTS), memo=True), 10**6, ranks)
    assert 2 <= np.count_nonzero(rates == 0) <= len(ranks)


@settings(max_examples=40, deadline=None)
@given(
    ranks=st.permutations(range(HOSTS)),
    n=st.integers(2, HOSTS),
    size=st.integers(0, 3_000_000),
    rates=st.lists(st.sampled_from([25, 40, 100]), min_size=HOSTS, max_size=HOSTS),
    ack_every=st.sampled_from([0, 1]),
    algorithm=st.sampled_from(["ring", "tree", "halving_doubling"]),
)
def test_the_same_picoseconds_as_link_by_link(
    ranks: list[int], n: int, size: int, rates: list[int], ack_every: int, algorithm: str
) -> None:
    fabric = tapered(rates_gbps=rates)
    schedule = plan("all_reduce", ranks=n, size_bytes=size, algorithm=algorithm)
    ends = []
    for memo in (True, False):
        engine = engine_on(fabric, memo=memo, ack_every=ack_every)
        ends.append(engine.env.run(until=engine.execute(schedule, ranks[:n])).end_ps)
    assert ends[0] == ends[1]
