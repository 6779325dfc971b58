# SPDX-License-Identifier: Apache-2.0
"""Routes: equal-cost sets, up/down, hashing, static and sprayed paths, hosts, failures."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.fabric.errors import InputError, UnreachableError
from railweave.fabric.graph import DeviceKind, Fabric, FabricBuilder, LinkModel
from railweave.fabric.hashing import (
    choose,
    connection_id,
    flow_hash,
    nic_address,
    roce_source_port,
    switch_seed,
)
from railweave.fabric.routing import POLICIES, Routing

WIRE = {"rate_bps": 400 * 10**9, "delay_ps": 1000, "model": LinkModel.ROCE_LOSSLESS}
PCIE = {"rate_bps": 400 * 10**9, "delay_ps": 300, "model": LinkModel.PCIE, "tier": "pcie"}
NVLINK = {"rate_bps": 2966 * 10**9, "delay_ps": 350, "model": LinkModel.NVLINK, "tier": "nvlink"}


def add_host(build: FabricBuilder, number: int) -> int:
    """Add a host of one GPU and one NIC and return the NIC."""
    host = build.add_host(f"h{number}")
    gpu = build.add_device(f"h{number}/gpu0", DeviceKind.GPU, host=host)
    nic = build.add_device(f"h{number}/nic0", DeviceKind.NIC, host=host)
    build.add_cable(gpu, nic, **PCIE)
    build.set_affine_nic(gpu, nic)
    return nic


def clos(leaves: int, hosts: int, spines: int, *, cables: int = 1, tiers: bool = True) -> Fabric:
    """Build a leaf-spine with ``hosts`` hosts on each leaf."""
    build = FabricBuilder("clos")
    nics = [add_host(build, i) for i in range(leaves * hosts)]
    low, high = (1, 2) if tiers else (-1, -1)
    leaf = [build.add_device(f"leaf{i}", DeviceKind.SWITCH, tier=low) for i in range(leaves)]
    spine = [build.add_device(f"spine{i}", DeviceKind.SWITCH, tier=high) for i in range(spines)]
    for i, nic in enumerate(nics):
        build.add_cable(nic, leaf[i // hosts], **WIRE)
    for below in leaf:
        for above in spine:
            for _ in range(cables):
                build.add_cable(below, above, **WIRE)
    return build.finish()


def fat_tree(k: int) -> Fabric:
    """Build a 3-tier k-ary fat-tree (Al-Fares et al., SIGCOMM 2008)."""
    half = k // 2
    build = FabricBuilder(f"fat-tree {k}")
    nics = [add_host(build, i) for i in range(k * half * half)]
    leaf = [build.add_device(f"leaf{i}", DeviceKind.SWITCH, tier=1) for i in range(k * half)]
    spine = [build.add_device(f"spine{i}", DeviceKind.SWITCH, tier=2) for i in range(k * half)]
    core = [build.add_device(f"core{i}", DeviceKind.SWITCH, tier=3) for i in range(half * half)]
    for i, nic in enumerate(nics):
        build.add_cable(nic, leaf[i // half], **WIRE)
    for pod in range(k):
        for a in range(half):
            for b in range(half):
                build.add_cable(leaf[pod * half + a], spine[pod * half + b], **WIRE)
        for a in range(half):
            for b in range(half):
                build.add_cable(spine[pod * half + a], core[a * half + b], **WIRE)
    return build.finish()


def without(fabric: Fabric, *cables: tuple[str, str]) -> Fabric:
    """Return the fabric without every cable between pairs of named devices."""
    up = fabric.link_up.copy()
    for a, b in cables:
        ends = {fabric.device(a), fabric.device(b)}
        for link in range(fabric.n_links):
            if {int(fabric.link_src[link]), int(fabric.link_dst[link])} == ends:
                up[link] = False
    return fabric.with_links(up=up)


def hops(fabric: Fabric, path: tuple[int, ...]) -> list[str]:
    """Return the names of the devices along a path, checking that it is one."""
    for before, after in pairwise(path):
        assert fabric.link_dst[before] == fabric.link_src[after]
    assert fabric.link_up[list(path)].all()
    ends = [int(fabric.link_src[path[0]]), *(int(fabric.link_dst[link]) for link in path)]
    return [fabric.device_names[end] for end in ends]


def tiers(fabric: Fabric, path: tuple[int, ...]) -> list[int]:
    return [int(fabric.tier[fabric.device(name)]) for name in hops(fabric, path)]


def by_networkx(fabric: Fabric, src: int, dst: int) -> set[tuple[int, ...]]:
    """All shortest paths between two GPUs, by search in the graph without host parts of others."""
    names = fabric.device_names
    keep = [
        names[i]
        for i in range(fabric.n_devices)
        if fabric.kind[i] == DeviceKind.SWITCH or fabric.host[i] in fabric.host[[src, dst]]
    ]
    graph = nx.DiGraph(fabric.graph.subgraph(keep))
    found = set()
    for path in nx.all_shortest_paths(graph, names[src], names[dst]):
        choices = [()]
        for a, b in pairwise(path):
            links = [data["link"] for data in fabric.graph[a][b].values() if data["up"]]
            choices = [(*done, link) for done in choices for link in links]
        found.update(choices)
    return found


@pytest.mark.parametrize(
    "fabric",
    [clos(3, 2, 3), clos(2, 2, 2, cables=2), clos(3, 1, 2, tiers=False), fat_tree(4)],
    ids=["clos", "parallel", "untiered", "fat-tree"],
)
def test_equal_cost_sets_are_all_shortest_paths(fabric):
    routing = Routing(fabric)
    gpus = fabric.gpus.tolist()
    for src in gpus[:3]:
        for dst in gpus:
            if src != dst:
                found = routing.equal_cost_paths(src, dst)
                assert set(found) == by_networkx(fabric, src, dst)
                assert len(set(found)) == len(found)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_keeps_to_the_equal_cost_set(policy):
    fabric = fat_tree(4)
    routing = Routing(fabric, policy=policy, seed=3)
    src, dst = np.repeat(fabric.gpus, 16), np.tile(fabric.gpus, 16)
    paths = routing.routes(src, dst, 5)
    assert len(paths) == 256
    for i in range(256):
        if src[i] == dst[i]:
            assert paths.path(i) == ()
            continue
        allowed = routing.equal_cost_paths(int(src[i]), int(dst[i]))
        if policy == "spray":
            assert set(paths.path(i)) == {link for path in allowed for link in path}
        else:
            assert paths.path(i) in allowed
            assert (paths.share[paths.ptr[i] : paths.ptr[i + 1]] == 1.0).all()


@pytest.mark.parametrize("polarised", [False, True])
@pytest.mark.parametrize("queue_pair", [0, 1, 7])
def test_ecmp_walk_is_the_hash_at_each_switch(queue_pair, polarised):
    """Rebuild each path from the plain hash and the sorted next hops."""
    fabric = fat_tree(4)
    routing = Routing(fabric, policy="ecmp-polarised" if polarised else "ecmp", seed=42)
    src, dst = fabric.gpus, np.roll(fabric.gpus, 5)
    paths = routing.routes(src, dst, queue_pair)
    switch_id = {int(device): i for i, device in enumerate(fabric.switches)}
    for i in range(len(src)):
        a, b = (
            int(np.flatnonzero(fabric.nics == fabric.gpu_nic[end])[0]) for end in (src[i], dst[i])
        )
        port = roce_source_port(queue_pair, connection_id(a, b))
        path = paths.path(i)
        goal = int(fabric.link_src[path[-2]])
        for link in path[2:-2]:
            at = int(fabric.link_src[link])
            seed = switch_seed(42, 0 if polarised else switch_id[at])
            value = flow_hash(seed, nic_address(a), nic_address(b), port)
            ways = routing.next_hops(at, goal) if fabric.tier[at] < 3 else [link]
            if fabric.tier[fabric.link_dst[link]] < fabric.tier[at]:
                assert link in ways
                continue
            assert link == ways[choose(value, len(ways))]


def test_next_hops_are_sorted_by_peer_and_port():
    build = FabricBuilder("shuffled")
    nic_a, nic_b = add_host(build, 0), add_host(build, 1)
    spine = [build.add_device(f"spine{i}", DeviceKind.SWITCH, tier=2) for i in range(2)]
    leaf = [build.add_device(f"leaf{i}", DeviceKind.SWITCH, tier=1) for i in range(2)]
    build.add_cable(nic_a, leaf[0], **WIRE)
    build.add_cable(nic_b, leaf[1], **WIRE)
    high = build.add_cable(leaf[0], spine[1], a_port=9, **WIRE)
    late = build.add_cable(leaf[0], spine[0], a_port=8, **WIRE)
    early = build.add_cable(leaf[0], spine[0], a_port=5, **WIRE)
    for above in spine:
        build.add_cable(leaf[1], above, **WIRE)
    fabric = build.finish()
    routing = Routing(fabric)
    assert routing.next_hops(leaf[0], leaf[1]) == [early, late, high]
    assert routing.next_hops(leaf[0], leaf[0]) == []
    with pytest.raises(InputError, match="'h0/nic0' is not a switch"):
        routing.next_hops(nic_a, leaf[0])


def test_parallel_cables_count_once_each_in_ecmp():
    """Spine 0 has three cables and spine 1 one: three quarters of the flows take spine 0."""
    fabric = clos(2, 1, 2, cables=3)
    extra = [
        link
        for link in range(fabric.n_links)
        if {"leaf0", "spine1"}
        == {fabric.device_names[end] for end in (fabric.link_src[link], fabric.link_dst[link])}
    ]
    up = fabric.link_up.copy()
    up[extra[2:]] = False
    fabric = fabric.with_links(up=up)
    queue_pairs = np.arange(40_000)
    src, dst = (np.full(40_000, fabric.device(name)) for name in ("h0/gpu0", "h1/gpu0"))
    paths = Routing(fabric).routes(src, dst, queue_pairs)
    uplinks = Counter(paths.links.reshape(40_000, 6)[:, 2].tolist())
    assert len(uplinks) == 4
    shares = np.array(sorted(uplinks.values())) / 40_000
    np.testing.assert_allclose(shares, 0.25, atol=0.015)  # 16,384 source ports: sd 0.0034


def test_polarised_switches_repeat_the_first_choice():
    """With one seed a spine sees only flows whose hash led there, so it picks one core."""
    fabric = fat_tree(8)
    src = np.repeat(fabric.gpus[:4], 2000)
    dst = np.full(8000, fabric.gpus[-1])
    used = {}
    for policy in ("ecmp", "ecmp-polarised"):
        paths = Routing(fabric, policy=policy, seed=1).routes(src, dst, np.tile(np.arange(2000), 4))
        third = paths.links.reshape(8000, 8)[:, 3]
        used[policy] = {int(link) for link in third}
    assert len(used["ecmp"]) == 16
    assert len(used["ecmp-polarised"]) == 4


def test_seed_moves_flows_and_nothing_else_does():
    fabric = fat_tree(4)
    src, dst = fabric.gpus, np.roll(fabric.gpus, 4)
    one = Routing(fabric, seed=1).routes(src, dst)
    again = Routing(fabric, seed=1).routes(src, dst)
    other = Routing(fabric, seed=2).routes(src, dst)
    assert one.links.tolist() == again.links.tolist()
    assert one.links.tolist() != other.links.tolist()
    backwards = Routing(fabric, seed=1).routes(src[::-1], dst[::-1])
    assert [backwards.path(15 - i) for i in range(16)] == [one.path(i) for i in range(16)]


@pytest.mark.parametrize(("size", "expected"), [(16, 0.6439), (32, 0.6379)])
def test_leaf_shift_uses_the_share_of_spines_that_chance_gives(size, expected):
    """Balls in bins: flows of a leaf land on m(1 - (1 - 1/m)^n) of m spines, each up and down.

    Max-min fair, the flows through one spine share its cable, so their mean rate is the share of
    spines in use. 100 samples over all leaves.
    """
    fabric = clos(size, size, size)
    target = np.roll(fabric.gpus.reshape(size, size), -1, axis=0)
    shares = []
    for sample in range(100):
        dst = np.random.default_rng(sample).permuted(target, axis=1).reshape(-1)
        paths = Routing(fabric, seed=sample + 1).routes(fabric.gpus, dst)
        uplinks = paths.links.reshape(-1, 6)[:, 2].reshape(size, size)
        shares.append(np.mean([len(set(row)) / size for row in uplinks.tolist()]))
    assert np.mean(shares) == pytest.approx(expected, rel=0.02)
    assert 1 - (1 - 1 / size) ** size == pytest.approx(expected, abs=5e-5)


def busiest(fabric: Fabric, links: np.ndarray) -> int:
    framed = links[fabric.link_network[links]]
    return int(np.bincount(framed).max())


@pytest.mark.parametrize(
    ("fabric", "on_leaf"),
    [
        (clos(4, 4, 4), 4),
        (clos(4, 8, 4, cables=2), 8),
        (clos(3, 6, 3, cables=2), 6),
        (fat_tree(8), 4),
    ],
    ids=["1:1", "two cables", "three spines", "3 tiers"],
)
def test_rail_policy_never_collides_on_leaf_shifts(fabric, on_leaf):
    routing = Routing(fabric, policy="rail")
    gpus = fabric.gpus
    leaves = len(gpus) // on_leaf
    for shift in range(1, leaves):
        for mixed in range(3):
            order = np.random.default_rng(mixed).permuted(
                np.tile(np.arange(on_leaf), (leaves, 1)), axis=1
            )
            target = np.roll(gpus.reshape(leaves, on_leaf), -shift, axis=0)
            dst = np.take_along_axis(target, order, axis=1).reshape(-1)
            assert busiest(fabric, routing.routes(gpus, dst).links) == 1
    shifted = Routing(fabric, policy="ecmp").routes(gpus, np.roll(gpus, on_leaf))
    assert busiest(fabric, shifted.links) > 1


def test_rail_paths_to_one_nic_meet_in_a_tree():
    """Routing by destination: wherever two flows to a NIC meet, they go on together."""
    fabric = fat_tree(4)
    routing = Routing(fabric, policy="rail")
    for dst in fabric.gpus[[0, 7]]:
        paths = routing.routes(fabric.gpus, np.full(16, dst))
        onward: dict[int, set[int]] = {}
        for link in paths.links[fabric.link_network[paths.links]].tolist():
            onward.setdefault(int(fabric.link_src[link]), set()).add(link)
        assert {len(links) for links in onward.values()} == {1}


@pytest.mark.parametrize(
    "fabric",
    [
        clos(2, 2, 3, cables=2),
        fat_tree(4),
        without(fat_tree(4), ("spine0", "core0"), ("leaf7", "spine6")),
    ],
)
def test_spray_splits_evenly_and_loses_nothing(fabric):
    src, dst = fabric.gpus, np.roll(fabric.gpus, 3)
    paths = Routing(fabric, policy="spray").routes(src, dst)
    for i in range(len(src)):
        span = slice(paths.ptr[i], paths.ptr[i + 1])
        links, share = paths.links[span], paths.share[span]
        assert len(set(links.tolist())) == len(links)
        into = np.bincount(fabric.link_dst[links], share, fabric.n_devices)
        out = np.bincount(fabric.link_src[links], share, fabric.n_devices)
        assert into[dst[i]] == pytest.approx(1, abs=1e-12)
        assert out[src[i]] == pytest.approx(1, abs=1e-12)
        inner = np.setdiff1d(np.arange(fabric.n_devices), [src[i], dst[i]])
        np.testing.assert_allclose(into[inner], out[inner], atol=1e-12)
        for device in np.unique(fabric.link_src[links]):
            own = share[fabric.link_src[links] == device]
            np.testing.assert_allclose(own, own[0], atol=1e-12)


def test_sprayed_shares_across_two_pods():
    fabric = fat_tree(4)
    paths = Routing(fabric, policy="spray").routes(fabric.gpus[:1], fabric.gpus[-1:])
    assert paths.share.tolist() == [1, 1, *[0.5] * 2, *[0.25] * 4, *[0.25] * 4, *[0.5] * 2, 1, 1]


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.sets(st.integers(0, 31), max_size=14), st.sampled_from(POLICIES))
def test_paths_climb_then_descend_whatever_fails(failed, policy):
    """Of the 32 cables between switches any may fail; up/down paths are all that is used."""
    fabric = fat_tree(4)
    between = np.flatnonzero(
        (fabric.tier[fabric.link_src] > 0) & (fabric.tier[fabric.link_dst] > 0)
    )
    up = fabric.link_up.copy()
    for cable in failed:
        up[between[[2 * cable, 2 * cable + 1]]] = False
    fabric = fabric.with_links(up=up)
    routing = Routing(fabric, policy=policy)
    graph = nx.DiGraph()
    for link in np.flatnonzero(up & fabric.link_network):
        a, b = int(fabric.link_src[link]), int(fabric.link_dst[link])
        climbs = fabric.tier[b] > fabric.tier[a]
        if climbs:
            graph.add_edge((a, 0), (b, 0))
        graph.add_edge((a, 0), (b, 1))
        if not climbs:
            graph.add_edge((a, 1), (b, 1))
    for src in fabric.gpus[::5]:
        reach = nx.single_source_shortest_path_length(graph, (int(fabric.gpu_nic[src]), 0))
        for dst in fabric.gpus[::3]:
            if src == dst:
                continue
            nic = int(fabric.gpu_nic[dst])
            expected = min(reach.get((nic, 0), 99), reach.get((nic, 1), 99))
            if expected == 99:
                with pytest.raises(UnreachableError):
                    routing.routes([src], [dst])
                continue
            for path in routing.equal_cost_paths(int(src), int(dst)):
                assert len(path) == expected + 2
                climb = np.sign(np.diff(tiers(fabric, path)[1:-1]))
                assert (np.diff(climb) <= 0).all()
            taken = routing.routes([src], [dst]).path(0)
            if policy != "spray":
                assert taken in routing.equal_cost_paths(int(src), int(dst))


def test_valley_paths_are_refused_and_said_to_be():
    """leaf0 keeps spine0, leaf1 spine1, leaf2 both: leaf0 to leaf1 would bounce at leaf2."""
    fabric = without(clos(3, 1, 2), ("leaf0", "spine1"), ("leaf1", "spine0"))
    routing = Routing(fabric)
    src, dst = fabric.device("h0/gpu0"), fabric.device("h1/gpu0")
    message = "no route from 'h0/gpu0' to 'h1/gpu0': every path left descends and climbs again"
    with pytest.raises(UnreachableError, match=message):
        routing.routes([src, src], [fabric.device("h2/gpu0"), dst])
    with pytest.raises(UnreachableError, match=message):
        routing.equal_cost_paths(src, dst)
    assert routing.next_hops(fabric.device("leaf0"), fabric.device("leaf1")) == []
    apart = without(fabric, ("leaf0", "spine0"))
    with pytest.raises(UnreachableError, match="no cables in service join them"):
        Routing(apart).routes([src], [dst])


def test_a_link_out_of_service_is_out_of_every_path():
    fabric = clos(2, 2, 3)
    broken = without(fabric, ("leaf0", "spine1"))
    src, dst = fabric.device("h0/gpu0"), fabric.device("h3/gpu0")
    through = [hops(fabric, path)[3] for path in Routing(fabric).equal_cost_paths(src, dst)]
    left = [hops(broken, path)[3] for path in Routing(broken).equal_cost_paths(src, dst)]
    assert through == ["spine0", "spine1", "spine2"]
    assert left == ["spine0", "spine2"]
    sprayed = Routing(broken, policy="spray").routes([src], [dst])
    assert sorted(sprayed.share.tolist()) == [0.5] * 4 + [1.0] * 4


def test_one_dead_direction_stops_only_that_direction():
    fabric = clos(2, 1, 1)
    up = fabric.link_up.copy()
    leaf, spine = fabric.device("leaf0"), fabric.device("spine0")
    up[(fabric.link_src == leaf) & (fabric.link_dst == spine)] = False
    routing = Routing(fabric.with_links(up=up))
    a, b = fabric.device("h0/gpu0"), fabric.device("h1/gpu0")
    assert len(routing.routes([b], [a]).path(0)) == 6
    with pytest.raises(UnreachableError):
        routing.routes([a], [b])


def test_switches_of_one_tier_may_be_crossed_once():
    build = FabricBuilder("ring of leaves")
    nics = [add_host(build, i) for i in range(3)]
    leaf = [build.add_device(f"leaf{i}", DeviceKind.SWITCH, tier=1) for i in range(3)]
    for nic, switch in zip(nics, leaf, strict=True):
        build.add_cable(nic, switch, **WIRE)
    build.add_cable(leaf[0], leaf[1], **WIRE)
    build.add_cable(leaf[1], leaf[2], **WIRE)
    routing = Routing(build.finish())
    assert len(routing.equal_cost_paths(nics[0], nics[1])) == 1
    with pytest.raises(UnreachableError, match="could deadlock"):
        routing.routes([nics[0]], [nics[2]])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_path_that_descended_neither_crosses_nor_climbs(policy):
    """The far NIC has homes below, beside and above s1; after a step down only the first counts."""
    build = FabricBuilder("three homes")
    near, far = add_host(build, 0), add_host(build, 1)
    above, middle, below, beside, over = (
        build.add_device(f"s{i}", DeviceKind.SWITCH, tier=tier)
        for i, tier in enumerate((3, 2, 1, 2, 3))
    )
    build.add_cable(near, above, **WIRE)
    build.add_cable(above, middle, **WIRE)
    for home in (below, beside, over):
        build.add_cable(middle, home, **WIRE)
        build.add_cable(home, far, **WIRE)
    fabric = build.finish()
    routing = Routing(fabric, policy=policy)
    paths = routing.routes(np.full(32, near), np.full(32, far), np.arange(32))
    for i in range(32):
        assert hops(fabric, paths.path(i)) == ["h0/nic0", "s0", "s1", "s2", "h1/nic0"]
    assert routing.equal_cost_paths(near, far) == [paths.path(0)]


def dgx(build: FabricBuilder, number: int, gpus: int, *, nvlink: bool, pcie: bool) -> list[int]:
    """Add a host with a NIC per GPU under a PCIe switch of its own and return the NICs."""
    host = build.add_host(f"h{number}")
    name = f"h{number}"
    cards = [build.add_device(f"{name}/gpu{i}", DeviceKind.GPU, host=host) for i in range(gpus)]
    nics = [build.add_device(f"{name}/nic{i}", DeviceKind.NIC, host=host) for i in range(gpus)]
    bridges = [
        build.add_device(f"{name}/pcie{i}", DeviceKind.PCIE_SWITCH, host=host) for i in range(gpus)
    ]
    for gpu, nic, bridge in zip(cards, nics, bridges, strict=True):
        build.add_cable(gpu, bridge, **PCIE)
        build.add_cable(bridge, nic, **PCIE)
        build.set_affine_nic(gpu, nic)
    if pcie:
        cpu = build.add_device(f"{name}/cpu0", DeviceKind.CPU, host=host)
        for bridge in bridges:
            build.add_cable(bridge, cpu, **PCIE)
    if nvlink:
        plane = build.add_device(f"{name}/nvs0", DeviceKind.NVSWITCH, host=host)
        for gpu in cards:
            build.add_cable(gpu, plane, **NVLINK)
    return nics


def pair_of_dgx(*, nvlink: bool = True, pcie: bool = True) -> Fabric:
    build = FabricBuilder("pair")
    nics = dgx(build, 0, 2, nvlink=nvlink, pcie=pcie) + dgx(build, 1, 2, nvlink=nvlink, pcie=pcie)
    switch = build.add_device("leaf0", DeviceKind.SWITCH, tier=1)
    for nic in nics:
        build.add_cable(nic, switch, **WIRE)
    return build.finish()


@pytest.mark.parametrize(
    ("options", "middle"),
    [
        ({}, ["h0/nvs0"]),
        ({"nvlink": False}, ["h0/pcie0", "h0/cpu0", "h0/pcie1"]),
        (
            {"nvlink": False, "pcie": False},
            ["h0/pcie0", "h0/nic0", "leaf0", "h0/nic1", "h0/pcie1"],
        ),
    ],
    ids=["nvlink", "pcie", "network"],
)
def test_gpus_of_one_host_take_the_closest_wires(options, middle):
    fabric = pair_of_dgx(**options)
    routing = Routing(fabric)
    src, dst = fabric.device("h0/gpu0"), fabric.device("h0/gpu1")
    paths = routing.routes([src, dst, src], [dst, src, src])
    assert hops(fabric, paths.path(0)) == ["h0/gpu0", *middle, "h0/gpu1"]
    assert hops(fabric, paths.path(1)) == ["h0/gpu1", *middle[::-1], "h0/gpu0"]
    assert paths.path(2) == ()
    assert routing.equal_cost_paths(src, dst) == [paths.path(0)]


@pytest.mark.parametrize("policy", POLICIES)
def test_gpus_of_two_hosts_go_by_their_own_nics(policy):
    fabric = pair_of_dgx()
    src, dst = fabric.device("h0/gpu1"), fabric.device("h1/gpu0")
    paths = Routing(fabric, policy=policy).routes([src], [dst])
    assert hops(fabric, paths.path(0)) == [
        "h0/gpu1", "h0/pcie1", "h0/nic1", "leaf0", "h1/nic0", "h1/pcie0", "h1/gpu0",
    ]  # fmt: skip


def test_nics_may_be_endpoints():
    fabric = pair_of_dgx()
    nic, far, gpu = (fabric.device(name) for name in ("h0/nic1", "h1/nic0", "h1/gpu0"))
    paths = Routing(fabric).routes([nic, nic, gpu], [far, gpu, nic])
    assert hops(fabric, paths.path(0)) == ["h0/nic1", "leaf0", "h1/nic0"]
    assert hops(fabric, paths.path(1)) == ["h0/nic1", "leaf0", "h1/nic0", "h1/pcie0", "h1/gpu0"]
    assert hops(fabric, paths.path(2)) == ["h1/gpu0", "h1/pcie0", "h1/nic0", "leaf0", "h0/nic1"]


def test_nvlink_spans_hosts_of_one_domain():
    build = FabricBuilder("rack")
    plane = build.add_device("nvs0", DeviceKind.NVSWITCH)
    for i in range(2):
        dgx(build, i, 1, nvlink=False, pcie=False)
        build.add_cable(3 * i + 1, plane, **NVLINK)
    fabric = build.finish()
    path = Routing(fabric).routes([fabric.device("h0/gpu0")], [fabric.device("h1/gpu0")]).path(0)
    assert hops(fabric, path) == ["h0/gpu0", "nvs0", "h1/gpu0"]


@pytest.mark.parametrize(
    ("src", "dst", "message"),
    [
        ("h0/nic0", "h0/gpu1", "a flow from 'h0/nic0' to 'h0/gpu1' does not cross the fabric"),
        ("h0/gpu0", "h0/nic0", "from 'h0/gpu0' to 'h0/nic0' does not cross the fabric"),
        ("h0/nic0", "h0/nic0", "from 'h0/nic0' to 'h0/nic0' does not cross the fabric"),
        ("h0/nvs0", "h0/nic0", "'h0/nvs0' cannot send or receive; expected a GPU or a NIC"),
    ],
)
def test_pairs_that_make_no_sense_are_named(src, dst, message):
    fabric = pair_of_dgx()
    with pytest.raises(InputError, match=message):
        Routing(fabric).routes([fabric.device(src)], [fabric.device(dst)])


def test_a_gpu_cut_off_from_its_nic_is_named():
    fabric = without(pair_of_dgx(nvlink=False), ("h0/gpu0", "h0/pcie0"))
    message = "no route from 'h0/gpu0' to 'h1/gpu1': neither NVLink nor PCIe"
    with pytest.raises(UnreachableError, match=message):
        Routing(fabric).routes([fabric.device("h0/gpu0")], [fabric.device("h1/gpu1")])


def test_unknown_policy_names_the_nearest():
    with pytest.raises(InputError, match="did you mean 'spray'"):
        Routing(clos(1, 1, 1), policy="sprai")


@pytest.mark.parametrize("policy", POLICIES)
def test_two_nics_cabled_to_each_other(policy):
    build = FabricBuilder("back to back")
    a, b = add_host(build, 0), add_host(build, 1)
    cables = {build.add_cable(a, b, **WIRE) for _ in range(2)}
    fabric = build.finish()
    routing = Routing(fabric, policy=policy)
    assert {path[0] for path in routing.equal_cost_paths(a, b)} == cables
    many = routing.routes(np.full(64, a), np.full(64, b), np.arange(64))
    assert set(many.links.tolist()) <= cables
    if policy in ("ecmp", "spray"):
        assert set(many.links.tolist()) == cables


def dual_plane(hosts: int) -> Fabric:
    """Build two planes of one leaf each; every NIC has a cable to both."""
    build = FabricBuilder("planes")
    nics = [add_host(build, i) for i in range(hosts)]
    leaf = [build.add_device(f"leaf0.p{p}", DeviceKind.SWITCH, tier=1) for p in range(2)]
    for nic in nics:
        for plane in leaf:
            build.add_cable(nic, plane, **WIRE)
    return build.finish()


def test_a_nic_with_two_homes_hashes_over_them():
    fabric = dual_plane(4)
    routing = Routing(fabric, seed=42)
    a, b = fabric.device("h0/nic0"), fabric.device("h3/nic0")
    assert [hops(fabric, path)[1] for path in routing.equal_cost_paths(a, b)] == [
        "leaf0.p0",
        "leaf0.p1",
    ]
    paths = routing.routes(np.full(32, a), np.full(32, b), np.arange(32))
    seed = switch_seed(42, 2 + 0)  # two switches, then NIC 0
    for queue_pair in range(32):
        port = roce_source_port(queue_pair, connection_id(0, 3))
        value = flow_hash(seed, nic_address(0), nic_address(3), port)
        plane = choose(value, 2)
        assert hops(fabric, paths.path(queue_pair))[1] == f"leaf0.p{plane}"


def test_a_dead_home_leaves_the_other():
    fabric = without(dual_plane(2), ("h1/nic0", "leaf0.p0"))
    paths = Routing(fabric).routes([fabric.gpus[0]] * 16, [fabric.gpus[1]] * 16, range(16))
    assert {hops(fabric, paths.path(i))[2] for i in range(16)} == {"leaf0.p1"}


def test_uneven_lengths_take_the_shortest_without_tiers():
    build = FabricBuilder("square with a diagonal")
    nics = [add_host(build, i) for i in range(4)]
    switch = [build.add_device(f"s{i}", DeviceKind.SWITCH) for i in range(4)]
    for nic, home in zip(nics, switch, strict=True):
        build.add_cable(nic, home, **WIRE)
    for a, b in ((0, 1), (1, 2), (2, 3), (3, 0), (0, 2)):
        build.add_cable(switch[a], switch[b], **WIRE)
    fabric = build.finish()
    routing = Routing(fabric)
    assert [len(path) for path in routing.equal_cost_paths(nics[0], nics[2])] == [3]
    assert [len(path) for path in routing.equal_cost_paths(nics[1], nics[3])] == [4, 4]


def test_no_flows_have_no_paths():
    paths = Routing(clos(1, 2, 1)).routes([], [])
    assert len(paths) == 0
    assert paths.ptr.tolist() == [0]
