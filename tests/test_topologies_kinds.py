# SPDX-License-Identifier: Apache-2.0
"""Every tiered kind at three sizes: ports, cables, cuts, reach and routes against closed forms."""

import itertools
from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from math import ceil

import networkx as nx
import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from railweave.fabric.devices import host_model, nic_model, rack_model, switch_model
from railweave.fabric.errors import InputError, UnreachableError
from railweave.fabric.graph import DeviceKind
from railweave.fabric.routing import POLICIES, Routing
from railweave.topologies import build_topology, load_topology
from railweave.topologies.checks import check
from railweave.topologies.reach import list_unreachable, unreachable_pairs
from railweave.topologies.spec import topology
from railweave.topologies.summary import bisection_bps, oversubscription, summarise

GBPS = 10**9
WIRE = {"rate": "400Gbps", "length": "10m"}
SWITCH = {"switch": "spectrum-4"}


@dataclass(frozen=True)
class Case:
    """A file, and what it must amount to by hand.

    ``leaf`` and ``spine`` are bandwidth down to up; ``hosts`` and ``cables`` say how many of each,
    ``leaves`` how many switches the hosts end on.
    """

    file: dict
    hosts: int
    leaves: int
    leaf: Fraction | None = Fraction(1)
    spine: Fraction | None = None
    cables: tuple[int, int, int] = (0, 0, 0)
    sections: int = 1


def tiered(kind, over="1:1", core=None, rate="400Gbps", **more):
    """Return a file of a kind."""
    links = {"host-leaf": {**WIRE, "rate": rate}, "leaf-spine": WIRE}
    file = {"kind": kind, "leaf": SWITCH, "spine": {**SWITCH, "oversubscription": over}}
    if core:
        links["spine-core"] = WIRE
        file["core"] = {**SWITCH, "oversubscription": core}
    return file | {"links": links} | more


def rail_only(hosts, **more):
    return {
        "kind": "rail-only",
        "hosts": hosts,
        "leaf": SWITCH,
        "links": {"host-leaf": WIRE},
    } | more


DGX = "dgx-h100"
TWO = "hgx-h100-2x200g"

# Cables by hand: hosts x NICs x ports; leaves x uplinks; spines x uplinks.
CASES = {
    "rail-optimized-4": Case(
        tiered("rail-optimized", hosts={"count": 4, "model": DGX}), 4, 8, cables=(32, 32, 0)
    ),
    "rail-optimized-uneven": Case(  # 3 groups of 6, the last of 5: its leaves have all uplinks
        tiered("rail-optimized", "2:1", hosts={"count": 17, "model": DGX}, group=6),
        17,
        24,
        Fraction(2),
        cables=(17 * 8, 24 * 3, 0),
    ),
    "rail-optimized-pods": Case(  # 2 pods of 2 groups of 4; 16 leaves a pod, 2 up each
        tiered("rail-optimized", "2:1", "4:1", hosts={"count": 16, "model": DGX}, group=4, pod=8),
        16,
        32,
        Fraction(2),
        Fraction(4),
        cables=(128, 64, 2 * 8),
    ),
    "leaf-spine-3": Case(
        tiered("leaf-spine", hosts={"count": 3, "model": DGX}, leaf={**SWITCH, "hosts": 1}),
        3,
        3,
        cables=(24, 24, 0),
    ),
    "leaf-spine-uneven": Case(
        tiered("leaf-spine", "3:1", hosts={"count": 10, "model": DGX}, leaf={**SWITCH, "hosts": 3}),
        10,
        4,
        Fraction(3),
        cables=(80, 4 * 8, 0),
    ),
    "leaf-spine-16": Case(
        tiered("leaf-spine", "1:2", hosts={"count": 16, "model": DGX}, leaf={**SWITCH, "hosts": 2}),
        16,
        8,
        Fraction(1, 2),
        cables=(128, 8 * 32, 0),
    ),
    "fat-tree-2": Case(
        tiered(
            "fat-tree",
            "2:1",
            tiers=2,
            hosts={"count": 8, "model": DGX},
            leaf={**SWITCH, "hosts": 2},
        ),
        8,
        4,
        Fraction(2),
        cables=(64, 32, 0),
    ),
    "fat-tree-3": Case(
        tiered(
            "fat-tree",
            "1:1",
            "7:1",
            tiers=3,
            group=7,
            hosts={"count": 14, "model": DGX},
            leaf={**SWITCH, "hosts": 1},
        ),
        14,
        14,
        Fraction(1),
        Fraction(7),
        cables=(112, 112, 16),
    ),
    "fat-tree-k4": Case(
        {
            "kind": "fat-tree",
            "k": 4,
            "hosts": {"model": "single-nic-400g"},
            "links": {"host-leaf": WIRE},
        },
        16,
        8,
        Fraction(1),
        Fraction(1),
        cables=(16, 16, 16),
    ),
    "rail-only-2": Case(
        rail_only({"count": 2, "model": DGX}), 2, 8, None, cables=(16, 0, 0), sections=8
    ),
    "rail-only-5": Case(
        rail_only({"count": 5, "model": DGX}), 5, 8, None, cables=(40, 0, 0), sections=8
    ),
    "rail-only-groups": Case(  # each rail a Clos of its own over 3 groups
        tiered("rail-only", "2:1", hosts={"count": 12, "model": DGX}, group=4),
        12,
        24,
        Fraction(2),
        cables=(96, 24 * 2, 0),
        sections=8,
    ),
    "multi-plane-3": Case(
        tiered("multi-plane", rate="200Gbps", hosts={"count": 3, "model": TWO}, rails=1),
        3,
        2,
        cables=(48, 2 * 12, 0),
        sections=2,
    ),
    "multi-plane-uneven": Case(  # 8 x 200G down, 3 x 400G up
        tiered("multi-plane", "4:3", rate="200Gbps", hosts={"count": 14, "model": TWO}, group=8),
        14,
        32,
        Fraction(4, 3),
        cables=(14 * 16, 32 * 3, 0),
        sections=2,
    ),
    "multi-plane-core": Case(
        tiered(
            "multi-plane", "1:1", "2:1", rate="200Gbps", hosts={"count": 8, "model": TWO}, group=4
        ),
        8,
        32,
        Fraction(1),
        Fraction(2),
        cables=(128, 64, 32),
        sections=2,
    ),
    "nvl-domain-1": Case(
        tiered("nvl-domain", racks={"count": 1, "model": "gb200-nvl72"}), 18, 4, cables=(72, 72, 0)
    ),
    "nvl-domain-uneven": Case(
        tiered("nvl-domain", "2:1", racks={"count": 3, "model": "gb200-nvl72"}, group=2),
        54,
        8,
        Fraction(2),
        cables=(216, 8 * 18, 0),
    ),
    "nvl-domain-core": Case(
        tiered("nvl-domain", "9:1", "2:1", racks={"count": 2, "model": "gb200-nvl72"}, group=1),
        36,
        8,
        Fraction(9),
        Fraction(2),
        cables=(144, 8 * 2, 2 * 4),
    ),
}

CORNERS = {
    "fewer NICs than GPUs": tiered(
        "leaf-spine", hosts={"count": 3, "model": "l40s-8"}, rate="200Gbps"
    ),
    "one NIC for 8 GPUs": tiered(
        "rail-optimized", hosts={"count": 3, "model": "t4-8"}, rate="100Gbps"
    ),
    "more NICs than GPUs": tiered(
        "rail-optimized", hosts={"count": 3, "model": "aws-p5en"}, rate="200Gbps"
    ),
    "two NICs a rail": tiered("rail-optimized", hosts={"count": 3, "model": DGX}, rails=4),
    "two models": tiered(
        "leaf-spine",
        leaf={**SWITCH, "hosts": 2},
        hosts=[{"count": 3, "model": DGX}, {"count": 4, "model": "t4-8", "rate": "100Gbps"}],
    ),
    "models of other NIC numbers": tiered(
        "rail-optimized",
        rails=4,
        group=3,
        hosts=[{"count": 2, "model": DGX}, {"count": 2, "model": "l40s-8", "rate": "200Gbps"}],
    ),
    "spare places": tiered(
        "rail-optimized",
        group=3,
        hosts=[{"count": 2, "model": DGX, "spare": 1}, {"count": 3, "model": DGX}],
    ),
    "two cables a NIC": tiered(
        "rail-optimized",
        rate="200Gbps",
        hosts={"count": 3, "model": DGX, "nic": "connectx-7-2x200g"},
    ),
}


@cache
def built(name):
    return build_topology(load_topology(CASES[name].file if name in CASES else CORNERS[name]))


@pytest.mark.parametrize("ranks", [1, 4, 64])
def test_ranks_on_one_host_are_places_at_its_memory(ranks):
    """A cable from each rank to the memory of the host, and no network: a star of one host."""
    fabric = build_topology(
        load_topology(
            {
                "kind": "loopback-host",
                "ranks": ranks,
                "loopback": {"rate": "80Gbps", "delay": "10us"},
            }
        )
    )
    assert len(fabric.gpus) == ranks
    assert fabric.host_names == ("h0",)
    assert fabric.device_names == (*(f"h0/gpu{i}" for i in range(ranks)), "h0/cpu0")
    assert fabric.n_links == 2 * ranks
    assert not fabric.link_network.any()
    assert set(fabric.link_rate_bps.tolist()) == {80 * 10**9}
    assert set(fabric.link_delay_ps.tolist()) == {10 * 10**6}
    ends = fabric.link_src[::2], fabric.link_dst[::2]
    assert ends[0].tolist() == fabric.gpus.tolist()
    assert ends[1].tolist() == [ranks] * ranks
    assert [one for one in check(fabric) if one.level != "info"] == []


def test_every_kind_has_three_sizes():
    sizes = Counter(case.file["kind"] for case in CASES.values())
    assert sizes == dict.fromkeys(set(topology.names()) - {"custom", "loopback-host"}, 3)


@pytest.mark.parametrize("name", [*CASES, *CORNERS])
def test_ports_are_used_once_and_exist(name):
    fabric = built(name)
    ends = Counter(zip(fabric.link_src.tolist(), fabric.link_src_port.tolist(), strict=True))
    assert set(ends.values()) == {1}
    network = fabric.link_network
    for device, port in zip(
        fabric.link_src[network].tolist(), fabric.link_src_port[network].tolist(), strict=True
    ):
        model = fabric.model[device]
        if fabric.kind[device] == DeviceKind.NIC:
            assert port < nic_model(model).ports
        elif model:
            assert port < max(switch_model(model).ports.values())
    assert [f for f in check(fabric) if f.level == "error"] == []


@pytest.mark.parametrize("name", CASES)
def test_counts_and_declared_oversubscription(name):
    case, fabric = CASES[name], built(name)
    found = summarise(fabric)
    assert (found["hosts"], found["switches"]["leaf"]) == (case.hosts, case.leaves)
    assert tuple(found["cables"].values()) == case.cables
    assert oversubscription(fabric) == {"leaf": case.leaf, "spine": case.spine}


def network_graph(fabric):
    graph = nx.DiGraph()
    for link in np.flatnonzero(fabric.link_network):
        a, b = int(fabric.link_src[link]), int(fabric.link_dst[link])
        held = graph.get_edge_data(a, b, {"capacity": 0})["capacity"]
        graph.add_edge(a, b, capacity=held + int(fabric.link_rate_bps[link]))
    return graph


@pytest.mark.parametrize("name", CASES)
def test_declared_oversubscription_is_the_cut_above_leaves_and_pods(name):
    """Leaf: its hosts' bandwidth to the maximum flow up; pod: that of its spines to the cores."""
    case, fabric = CASES[name], built(name)
    graph = network_graph(fabric)
    leaf = int(np.flatnonzero(fabric.tier == 1)[0])  # of the first group, which is full
    down = sum(
        data["capacity"] for a, _, data in graph.in_edges(leaf, data=True) if fabric.tier[a] == 0
    )
    graph.remove_nodes_from(fabric.nics.tolist())  # which pass nothing on
    spines = np.flatnonzero(fabric.tier == 2).tolist()
    if case.leaf is None:
        assert spines == []
        return
    for spine in spines:
        graph.add_edge(spine, "top")
    assert Fraction(down, nx.maximum_flow_value(graph, leaf, "top")) == case.leaf
    cores = np.flatnonzero(fabric.tier == 3).tolist()
    if not cores:
        assert case.spine is None
        return
    graph.remove_node("top")
    pod = {a for a in graph.successors(leaf) if fabric.tier[a] == 2}
    below = sum(
        data["capacity"] for s in pod for a, _, data in graph.in_edges(s, data=True)
        if fabric.tier[a] == 1
    )  # fmt: skip
    for core in cores:
        graph.add_edge(core, "top")
    for spine in pod:
        graph.add_edge("pod", spine)
    # What goes down again inside the pod and up by another of its spines is no way out of it.
    graph.remove_nodes_from(np.flatnonzero(fabric.tier == 1).tolist())
    assert Fraction(below, nx.maximum_flow_value(graph, "pod", "top")) == case.spine


@pytest.mark.parametrize("name", [*CASES, *CORNERS])
def test_bisection_is_the_minimum_cut(name):
    fabric = built(name)
    graph = network_graph(fabric)
    half = len(fabric.host_names) // 2
    for nic in fabric.nics.tolist():
        graph.add_edge("s", nic) if fabric.host[nic] < half else graph.add_edge(nic, "t")
    assert bisection_bps(fabric) == nx.maximum_flow_value(graph, "s", "t")


@pytest.mark.parametrize("name", CASES)
def test_sections_share_no_switch(name):
    case, fabric = CASES[name], built(name)
    graph = nx.Graph()
    switches = fabric.switches.tolist()
    graph.add_nodes_from(switches)
    for a, b in zip(fabric.link_src.tolist(), fabric.link_dst.tolist(), strict=True):
        if fabric.tier[a] > 0 and fabric.tier[b] > 0:
            graph.add_edge(a, b)
    parts = list(nx.connected_components(graph))
    assert len(parts) == case.sections
    ending = {"rail-only": ".r", "multi-plane": ".p"}.get(case.file["kind"])
    if ending and summarise(fabric)["switches"]["spine"]:
        for part in parts:
            names = {fabric.device_names[s].rpartition(ending)[2] for s in part}
            assert len(names) == 1


def by_networkx(fabric, src, dst):
    """All shortest paths from GPU to GPU by their own NICs, in the graph of these and switches."""
    names = fabric.device_names
    inner = (DeviceKind.PCIE_SWITCH, DeviceKind.CPU)
    keep = {src, dst, int(fabric.gpu_nic[src]), int(fabric.gpu_nic[dst]), *fabric.switches.tolist()}
    for end in (src, dst):
        mine = fabric.host == fabric.host[end]
        keep |= set(np.flatnonzero(mine & np.isin(fabric.kind, inner)).tolist())
    graph = nx.DiGraph(fabric.graph.subgraph(names[i] for i in keep))
    found = set()
    for path in nx.all_shortest_paths(graph, names[src], names[dst]):
        choices = [()]
        for a, b in itertools.pairwise(path):
            links = [data["link"] for data in fabric.graph[a][b].values()]
            choices = [(*done, link) for done in choices for link in links]
        found.update(choices)
    return found


def sample_of_pairs(fabric):
    """The first GPU with others of its host, beside it, far away and last; and the way back."""
    gpus = fabric.gpus.tolist()
    others = {1, 7, 8, len(gpus) // 2, len(gpus) // 2 + 3, len(gpus) - 1} & set(range(len(gpus)))
    return [pair for i in sorted(others) for pair in ((gpus[0], gpus[i]), (gpus[i], gpus[0]))]


@pytest.mark.parametrize("name", [*CASES, *CORNERS])
def test_route_sets_are_all_shortest_paths(name):
    fabric = built(name)
    routing = Routing(fabric)
    nvlink = fabric.link_model == 0
    crossed = 0
    for src, dst in sample_of_pairs(fabric):
        if src == dst:
            continue
        try:
            found = routing.equal_cost_paths(src, dst)
        except UnreachableError:
            with pytest.raises(nx.NetworkXNoPath):
                by_networkx(fabric, src, dst)
            continue
        if nvlink[found[0][0]] or fabric.host[src] == fabric.host[dst]:
            assert len(found) == 1  # inside a host or a rack there is one way
            continue
        crossed += 1
        assert len(set(found)) == len(found)
        assert set(found) == by_networkx(fabric, src, dst)
    assert crossed or name == "nvl-domain-1"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", [*CASES, *CORNERS])
def test_every_policy_keeps_to_the_route_sets(name, policy):
    fabric = built(name)
    routing = Routing(fabric, policy=policy, seed=7)
    for src, dst in sample_of_pairs(fabric):
        try:
            allowed = routing.equal_cost_paths(src, dst)
        except UnreachableError:
            continue
        found = routing.routes([src], [dst])
        if policy == "spray":
            assert set(found.path(0)) == {link for path in allowed for link in path}
        else:
            assert found.path(0) in allowed


@pytest.mark.parametrize("name", [*CASES, *CORNERS])
def test_every_pair_is_reachable_or_rightly_listed(name):
    fabric = built(name)
    missing, first = unreachable_pairs(fabric)
    listed = list(list_unreachable(fabric))
    assert missing == len(listed) == len(set(listed))
    assert summarise(fabric).get("unreachable_pairs", 0) == missing
    if fabric.meta["kind"] != "rail-only":
        assert (missing, first) == (0, None)
        src, dst = np.repeat(fabric.gpus, 4), np.resize(fabric.gpus[::-7], 4 * len(fabric.gpus))
        assert len(Routing(fabric).routes(src[src != dst], dst[src != dst]))
        return
    hosts, rails = len(fabric.host_names), 8
    assert missing == hosts * (hosts - 1) * rails * (rails - 1)
    assert first == listed[0] == ("h0/gpu0", "h1/gpu1")
    expected = {
        (f"h{a}/gpu{r}", f"h{b}/gpu{s}")
        for a, b in itertools.permutations(range(hosts), 2)
        for r, s in itertools.permutations(range(rails), 2)
    }
    assert set(listed) == expected
    routing = Routing(fabric)
    for a, b in (listed[0], listed[len(listed) // 2], listed[-1]):
        with pytest.raises(UnreachableError, match=f"from '{a}' to '{b}'"):
            routing.routes([fabric.device(a)], [fabric.device(b)])
    joined = [
        pair for pair in itertools.permutations(fabric.gpus.tolist(), 2)
        if tuple(fabric.device_names[gpu] for gpu in pair) not in expected
    ]  # fmt: skip
    src, dst = np.array(joined).T
    assert len(routing.routes(src, dst)) == len(joined)


def test_a_rail_only_fabric_that_lost_a_leaf_has_an_error_beside_its_design():
    from railweave.fabric.faults import Fault, apply_faults

    fabric = apply_faults(built("rail-only-2"), [Fault(node="leaf0.r3")])
    rules = {f.rule: (f.level, f.message) for f in check(fabric)}
    assert rules["rails-apart"][1].startswith(f"{2 * 8 * 7} ordered pairs")
    assert rules["reachability"] == (
        "error",
        "2 pairs of GPUs cannot reach each other, h0/gpu3 and h1/gpu3 first",
    )


def test_names_of_planes_and_rails():
    names = set(built("multi-plane-core").device_names)
    assert {"leaf1.r7.p0", "leaf1.r7.p1", "spine0.p0", "spine1.p1", "core0.p1"} <= names
    fabric = built("multi-plane-core")
    cables = {fabric.cable_name(link) for link in range(0, fabric.n_links, 2)}
    assert {"h5/nic3:0-leaf1.r3.p0:1", "h5/nic3:1-leaf1.r3.p1:1"} <= cables
    assert "spine0.r3" in built("rail-only-groups").device_names
    assert "leaf2.r3" in built("rail-only-groups").device_names


def test_losing_a_plane_halves_the_rate_and_cuts_nobody_off():
    from railweave.fabric.faults import Fault, apply_faults

    whole = built("multi-plane-core")
    spines = [name for name in whole.device_names if name.startswith("spine") and ".p1" in name]
    fabric = apply_faults(whole, [Fault(node=name) for name in spines])
    assert unreachable_pairs(fabric)[0] == 0
    assert bisection_bps(whole) == 2 * bisection_bps(fabric)


def test_a_rack_is_one_nvlink_domain_of_its_trays():
    fabric, rack = built("nvl-domain-uneven"), rack_model("gb200-nvl72")
    assert rack.hosts == 18
    gpus = fabric.gpus.reshape(3, 72)
    nvlinks = np.flatnonzero(fabric.link_model == 0)
    planes = {int(fabric.link_dst[i]) for i in nvlinks if fabric.kind[fabric.link_src[i]] == 0}
    assert sorted(fabric.device_names[p] for p in planes) == [f"rack{i}/nvs0" for i in range(3)]
    routing = Routing(fabric)
    inside = routing.equal_cost_paths(int(gpus[1, 0]), int(gpus[1, 71]))
    assert [len(path) for path in inside] == [2]
    between = routing.equal_cost_paths(int(gpus[0, 0]), int(gpus[1, 0]))
    assert {fabric.link_model[link] for path in between for link in path} == {1, 2}
    # NIC r of every tray of the 2 racks of a group is on one leaf
    nic = fabric.device("h19/nic2")
    link = int(np.flatnonzero((fabric.link_src == nic) & fabric.link_network)[0])
    assert fabric.link_name(link) == "h19/nic2:0>leaf0.r2:19"


def test_hosts_of_two_models_keep_their_own_rates_and_ports():
    fabric = built("models of other NIC numbers")
    # rails: 4; group 0 is 2 DGX of 8 NICs, 2 to a leaf, then an L40S box of 4, one to a leaf
    rates = [
        (int(fabric.link_dst_port[i]), int(fabric.link_rate_bps[i]) // GBPS)
        for i in np.flatnonzero(fabric.link_dst == fabric.device("leaf0.r1"))
        if fabric.link_tier[i] == "host-leaf"
    ]
    assert rates == [(0, 400), (1, 400), (2, 400), (3, 400), (4, 200)]
    # the last box is alone in group 1, whose leaves could take 2 more of its kind
    last = np.flatnonzero(fabric.link_dst == fabric.device("leaf1.r1"))
    assert sum(fabric.link_tier[i] == "host-leaf" for i in last) == 1
    nics = np.flatnonzero((fabric.host == 0) & (fabric.kind == DeviceKind.NIC))
    assert fabric.rail[nics].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    leaf_up = sum(tier == "leaf-spine" for tier in fabric.link_tier[::2]) // 8
    assert leaf_up == ceil((4 * 400 + 200) / 400)


def test_spare_places_keep_their_ports_but_have_no_host():
    fabric = built("spare places")
    assert len(fabric.host_names) == 5
    leaf = np.flatnonzero(fabric.link_src == fabric.device("leaf0.r0"))
    ports = sorted(fabric.link_src_port[leaf].tolist())
    assert ports == [0, 1, 3, 4, 5]  # port 2 is free, uplinks begin at 3
    nic = fabric.device("h2/nic0")
    link = int(np.flatnonzero((fabric.link_src == nic) & fabric.link_network)[0])
    assert fabric.link_name(link) == "h2/nic0:0>leaf1.r0:0"


def test_parallel_cables_of_a_nic_end_on_one_leaf():
    fabric = built("two cables a NIC")
    nic = fabric.device("h1/nic6")
    links = np.flatnonzero((fabric.link_src == nic) & fabric.link_network).tolist()
    assert [fabric.link_name(i) for i in links] == ["h1/nic6:0>leaf0.r6:2", "h1/nic6:1>leaf0.r6:3"]
    one = build_topology(
        load_topology(
            CORNERS["two cables a NIC"]
            | {"links": {"host-leaf": WIRE | {"rate": "200Gbps", "count": 1}, "leaf-spine": WIRE}}
        )
    )
    assert summarise(one)["cables"]["host-leaf"] == 3 * 8
    assert host_model(DGX).nics == 8


# Published designs that no shipped file holds, and variants of those that are shipped.
def test_the_core_of_hpn_joins_pods_at_15_to_1():
    """Qian et al., SIGCOMM 2024: an aggregation has 120 ports down and 8 up."""
    file = tiered(
        "multi-plane", "16:15", "15:1", rate="200Gbps",
        hosts={"count": 2 * 1920, "model": TWO}, group=128, pod=1920,
        leaf={"switch": "tomahawk-5"},
    )  # fmt: skip
    for tier in ("spine", "core"):
        file[tier] |= {"switch": "tomahawk-5"}
    fabric = build_topology(load_topology(file))
    found = summarise(fabric)
    assert found["switches"]["leaf"] == 2 * 240
    assert found["switches"]["spine"] == 2 * 120
    assert found["cables"]["spine-core"] == 240 * 8
    assert oversubscription(fabric) == {"leaf": Fraction(16, 15), "spine": 15}
    up = np.flatnonzero(fabric.link_src == fabric.device("spine0.p0")).tolist()
    assert Counter(fabric.link_tier[i] for i in up) == {"leaf-spine": 120, "spine-core": 8}


def test_leaf_spine_is_a_fat_tree_of_two_tiers():
    hosts = {"count": 9, "model": DGX}
    one = build_topology(load_topology(tiered("leaf-spine", "2:1", hosts=hosts)))
    two = build_topology(load_topology(tiered("fat-tree", "2:1", hosts=hosts, tiers=2)))
    assert one.device_names == two.device_names
    for name in ("link_src", "link_dst", "link_src_port", "link_dst_port", "link_rate_bps"):
        assert np.array_equal(getattr(one, name), getattr(two, name))


@st.composite
def files(draw):
    """A file of any tiered kind, of any numbers that may or may not go together."""
    kind = draw(st.sampled_from(sorted(set(topology.names()) - {"custom", "loopback-host"})))
    over, core = (draw(st.sampled_from(["1:1", "1:2", "2:1", "3:2", "7:1"])) for _ in range(2))
    tall = kind not in ("leaf-spine",) and draw(st.booleans())
    model = TWO if kind == "multi-plane" else draw(st.sampled_from([DGX, "l40s-8", "t4-8"]))
    count = draw(st.integers(1, 3 if kind == "nvl-domain" else 14))
    entries = [{"count": count, "model": "gb200-nvl72" if kind == "nvl-domain" else model}]
    if draw(st.booleans()):
        entries[0]["spare"] = draw(st.integers(1, 3))
        entries.append({"count": draw(st.integers(1, 3)), "model": entries[0]["model"]})
    file = tiered(kind, over, core if tall else None, "100Gbps")
    file["racks" if kind == "nvl-domain" else "hosts"] = (
        entries if len(entries) > 1 or draw(st.booleans()) else entries[0]
    )
    if kind == "fat-tree":
        file["tiers"] = 3 if tall else 2
    if kind != "leaf-spine" and draw(st.booleans()):
        file["group"] = draw(st.integers(1, 6))
    if kind not in ("leaf-spine", "fat-tree"):
        if tall and "group" in file and draw(st.booleans()):
            file["pod"] = file["group"] * draw(st.integers(1, 3))
        if draw(st.booleans()):
            file["rails"] = draw(st.sampled_from([1, 2, 4]))
    elif draw(st.booleans()):
        file["leaf"] = {**SWITCH, "hosts": draw(st.integers(1, 3))}
    return file


@settings(derandomize=True, deadline=None, max_examples=120)
@given(file=files())
def test_whatever_builds_is_wired_as_it_should(file):
    try:
        fabric = build_topology(load_topology(file))
    except InputError as error:
        event(f"refused {error.field}")
        return
    event(f"built {file['kind']}")
    assert [f for f in check(fabric) if f.level == "error"] == []
    untold = replace(fabric, meta={})  # as if it were a custom fabric: the flow is computed
    assert bisection_bps(fabric) == bisection_bps(untold)
    between = [i for i in range(0, fabric.n_links, 2) if fabric.tier[fabric.link_src[i]] > 0]
    below = Counter(int(fabric.link_src[i]) for i in between)
    pairs = Counter((int(fabric.link_src[i]), int(fabric.link_dst[i])) for i in between)
    for tier in (1, 2):  # as many uplinks and as many cables to each neighbour in a whole tier
        assert len({n for s, n in below.items() if fabric.tier[s] == tier}) <= 1
        assert len({n for (s, _), n in pairs.items() if fabric.tier[s] == tier}) <= 1
    ratios = oversubscription(fabric)
    for name, declared in fabric.meta["oversubscription"].items():
        assert ratios[name] is None or ratios[name] <= declared
