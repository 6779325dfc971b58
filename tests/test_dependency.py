# SPDX-License-Identifier: Apache-2.0
"""Cyclic buffer dependencies, counted by hand and against networkx."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.fabric.dependency import buffer_dependencies, cycles
from railweave.fabric.graph import DeviceKind, Fabric, FabricBuilder, LinkModel
from railweave.fabric.routing import Routing


def custom(
    switches: int,
    cables: list[tuple[int, int]],
    *,
    hosts: int = 1,
    tiers: list[int] | None = None,
    model: LinkModel = LinkModel.ROCE_LOSSLESS,
    homes: int | None = None,
) -> Fabric:
    """Build switches S0.. with ``hosts`` NICs on each of the first ``homes``."""
    build = FabricBuilder("custom")
    wire = {"rate_bps": 10**11, "delay_ps": 500_000, "model": model}
    nodes = [
        build.add_device(f"S{i}", DeviceKind.SWITCH, tier=tiers[i] if tiers else -1)
        for i in range(switches)
    ]
    for i in range((switches if homes is None else homes) * hosts):
        host = build.add_host(f"h{i}")
        nic = build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=host)
        build.add_cable(nic, nodes[i // hosts], **wire)
    for a, b in cables:
        build.add_cable(nodes[a], nodes[b], **wire)
    return build.finish()


def through(fabric: Fabric, *names: str) -> list[int]:
    links = []
    for a, b in pairwise(names):
        ends = (fabric.link_src == fabric.device(a)) & (fabric.link_dst == fabric.device(b))
        links.append(int(np.flatnonzero(ends)[0]))
    return links


TRIANGLE = [(0, 1), (1, 2), (2, 0)]
TURNS = [
    ("h0/nic0", "S0", "S1", "S2", "h2/nic0"),
    ("h1/nic0", "S1", "S2", "S0", "h0/nic0"),
    ("h2/nic0", "S2", "S0", "S1", "h1/nic0"),
]


def test_three_flows_round_a_triangle_make_one_cycle():
    fabric = custom(3, TRIANGLE)
    flows = [through(fabric, *turn) for turn in TURNS]
    found = cycles(fabric, flows)
    assert [[fabric.link_name(link).replace(":", " ") for link, _ in cycle] for cycle in found] == [
        [fabric.link_name(through(fabric, a, b)[0]).replace(":", " ") for a, b in pairs]
        for pairs in [[("S0", "S1"), ("S1", "S2"), ("S2", "S0")]]
    ]
    assert {priority for _, priority in found[0]} == {3}


def test_no_cycle_with_one_hop_between_switches():
    fabric = custom(3, TRIANGLE)
    pairs = [(a, b) for a in fabric.nics for b in fabric.nics if a != b]
    src, dst = np.array(pairs).T
    paths = Routing(fabric).routes(src, dst)
    assert np.diff(paths.ptr).tolist() == [3] * 6
    assert cycles(fabric, paths) == []


def test_no_cycle_in_three_priorities():
    fabric = custom(3, TRIANGLE)
    flows = [through(fabric, *turn) for turn in TURNS]
    assert cycles(fabric, flows, priorities=[3, 4, 5]) == []
    assert len(cycles(fabric, flows, priorities=[4, 4, 4])) == 1


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (LinkModel.ROCE_LOSSLESS, 1),
        (LinkModel.INFINIBAND, 1),
        (LinkModel.ROCE_LOSSY, 0),
        (LinkModel.TRIMMING, 0),
    ],
)
def test_only_links_that_wait_can_deadlock(model, count):
    fabric = custom(3, TRIANGLE, model=model)
    assert len(cycles(fabric, [through(fabric, *turn) for turn in TURNS])) == count


@pytest.mark.parametrize("policy", ["ecmp", "rail", "spray"])
def test_up_down_clos_has_no_cycle(policy):
    """Four leaves, four spines, four NICs a leaf, every pair."""
    fabric = custom(
        8,
        [(leaf, 4 + spine) for leaf in range(4) for spine in range(4)],
        hosts=4,
        tiers=[1] * 4 + [2] * 4,
        homes=4,
    )
    src, dst = (side.ravel() for side in np.meshgrid(fabric.nics, fabric.nics))
    apart = src != dst
    paths = Routing(fabric, policy=policy).routes(src[apart], dst[apart])
    assert len(paths) == 240
    graph = buffer_dependencies(fabric, paths)
    assert graph.edges > 0
    if policy == "spray":
        # host up (16 x 4 spines), over each spine (4 x 12), down (16 x 4), and 16 x 3 on the leaf
        assert graph.edges == 16 * 4 + 4 * 12 + 16 * 4 + 16 * 3
    assert cycles(fabric, paths) == []


def test_one_bounce_closes_a_cycle():
    """Two spines, two leaves: two flows that each descend and climb again wait for each other."""
    fabric = custom(4, [(0, 2), (0, 3), (1, 2), (1, 3)], tiers=[1, 1, 2, 2], homes=2)
    flows = [
        through(fabric, "S0", "S2", "S1", "S3"),
        through(fabric, "S1", "S3", "S0", "S2"),
    ]
    assert [len(cycle) for cycle in cycles(fabric, flows)] == [4]
    assert cycles(fabric, flows[:1]) == []


def test_plain_shortest_paths_round_a_ring_of_five_can_deadlock():
    fabric = custom(5, [(i, (i + 1) % 5) for i in range(5)])
    pairs = [(a, b) for a in fabric.nics for b in fabric.nics if a != b]
    src, dst = np.array(pairs).T
    found = cycles(fabric, Routing(fabric).routes(src, dst))
    assert [len(cycle) for cycle in found] == [5, 5]  # one each way round


def test_the_number_of_cycles_is_capped():
    fabric = custom(6, [(a, b) for a in range(6) for b in range(a)])
    flows = [
        through(fabric, f"S{a}", f"S{b}", f"S{c}")
        for a in range(6)
        for b in range(6)
        for c in range(6)
        if len({a, b, c}) == 3
    ]
    assert len(cycles(fabric, flows, limit=7)) == 7


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.sets(st.permutations(range(4)).map(lambda order: tuple(order[:3])), max_size=9))
def test_cycles_are_those_that_networkx_finds(turns):
    fabric = custom(4, [(a, b) for a in range(4) for b in range(a)], hosts=0)
    flows = [through(fabric, *(f"S{i}" for i in turn)) for turn in sorted(turns)]
    graph = nx.DiGraph([(flow[0], flow[1]) for flow in flows])

    def canonical(cycle: list[int]) -> tuple[int, ...]:
        at = cycle.index(min(cycle))
        return (*cycle[at:], *cycle[:at])

    expected = sorted(canonical(cycle) for cycle in nx.simple_cycles(graph))
    found = cycles(fabric, flows, limit=10_000)
    assert sorted(tuple(link for link, _ in cycle) for cycle in found) == expected
