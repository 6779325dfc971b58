# SPDX-License-Identifier: Apache-2.0
"""What failures cost, against an independent calculation on made-up designs (networkx)."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.fabric.errors import InputError
from railweave.fabric.failover import on_nics_left
from railweave.fabric.faults import Fault, apply_faults
from railweave.fabric.graph import DeviceKind, LinkModel
from railweave.tools.blast import blast_radius
from railweave.topologies import build_topology, load_topology
from railweave.topologies.apart import apart_groups, lost_within
from railweave.topologies.name_ranges import name_ranges
from railweave.topologies.reach import list_unreachable

RATE = "400Gbps"


@st.composite
def designs(draw):
    kind = draw(
        st.sampled_from(["rail-optimized", "fat-tree", "rail-only", "multi-plane", "leaf-spine"])
    )
    hosts = {"count": draw(st.integers(2, 6)), "model": "dgx-h100"}
    link = {"rate": RATE, "length": "10m"}
    file = {
        "kind": kind,
        "hosts": hosts,
        "leaf": {"switch": "spectrum-4"},
        "links": {"host-leaf": link, "leaf-spine": link},
    }
    taper = draw(st.sampled_from(["1:1", "2:1", "3:1", "1:2"]))
    file["spine"] = {"switch": "spectrum-4", "oversubscription": taper}
    if kind == "fat-tree":
        file |= {"tiers": 2, "leaf": {"switch": "spectrum-4", "hosts": draw(st.integers(1, 3))}}
    elif kind == "rail-only":
        del file["spine"], file["links"]["leaf-spine"]
    elif kind == "multi-plane":
        hosts["model"] = "hgx-h100-2x200g"
        file["links"] = {"host-leaf": link | {"rate": "200Gbps"}, "leaf-spine": link}
        file["planes"] = 2
    elif draw(st.booleans()):
        file["group"] = draw(st.integers(1, 3))
    return file, draw(st.lists(st.integers(0, 10**6), max_size=3))


def fabric_of(file, lost):
    """Build a design and take out some of its cables; None where it cannot be built."""
    try:
        fabric = build_topology(load_topology(file))
    except InputError:
        return None
    cables = np.flatnonzero(fabric.link_network[::2])
    up = fabric.link_up.copy()
    for number in lost:
        k = 2 * int(cables[number % len(cables)])
        up[[k, k + 1]] = False
    return fabric.with_links(up=up)


def ways(fabric):
    """Return the graph of what a packet may do: climb, then descend; and of what joins a host."""
    network, inside = nx.DiGraph(), nx.DiGraph()
    for k in np.flatnonzero(fabric.link_up).tolist():
        a, b = int(fabric.link_src[k]), int(fabric.link_dst[k])
        if not fabric.link_network[k]:
            inside.add_edge(a, b, nvlink=fabric.link_model[k] == LinkModel.NVLINK)
            continue
        rise = int(fabric.tier[b]) - int(fabric.tier[a])
        if fabric.kind[a] == DeviceKind.NIC:
            network.add_edge((a, "out"), (b, "up"))  # a NIC passes nothing on
        elif fabric.kind[b] == DeviceKind.NIC:
            network.add_edge((a, "up"), b)
            network.add_edge((a, "down"), b)
        elif rise > 0:
            network.add_edge((a, "up"), (b, "up"))
        else:
            network.add_edge((a, "up"), (b, "down"))
            network.add_edge((a, "down"), (b, "down"))
    return network, inside


def lost_pairs(fabric):
    """Return the ordered pairs of GPUs without NVLink and without a way between their NICs."""
    network, inside = ways(fabric)
    nvlink = nx.Graph((a, b) for a, b, data in inside.edges(data=True) if data["nvlink"])
    piece = {}
    for number, members in enumerate(nx.connected_components(nvlink)):
        piece |= dict.fromkeys(members, number)
    reached = {}
    for gpu in fabric.gpus.tolist():
        nic = int(fabric.gpu_nic[gpu])
        wired = network.has_node((nic, "out")) and inside.has_node(nic)
        wired = wired and nx.has_path(inside, gpu, nic)
        reached[gpu] = (nic, nx.descendants(network, (nic, "out")) if wired else set())
    lost = set()
    for a, (_, far) in reached.items():
        for b, (nic, back) in reached.items():
            joined = a in piece and piece[a] == piece.get(b)
            if a != b and not joined and not (nic in far and back):
                lost.add((fabric.device_names[a], fabric.device_names[b]))
    return lost


def bandwidth(fabric):
    """Return the rate of the cables in service of each host, in bit/s."""
    total = dict.fromkeys(fabric.host_names, 0)
    for k in np.flatnonzero(fabric.link_network & fabric.link_up).tolist():
        device = int(fabric.link_src[k])
        if fabric.kind[device] == DeviceKind.NIC:
            total[fabric.host_names[fabric.host[device]]] += int(fabric.link_rate_bps[k])
    return total


def bisection(fabric):
    """Return the maximum flow from the first half of the hosts to the second."""
    graph = nx.DiGraph()
    graph.add_nodes_from(("source", "sink"))
    half = len(fabric.host_names) // 2
    for k in np.flatnonzero(fabric.link_network & fabric.link_up).tolist():
        a, b = int(fabric.link_src[k]), int(fabric.link_dst[k])
        if fabric.kind[a] == DeviceKind.NIC:
            a = "source" if fabric.host[a] < half else "beyond"
        if fabric.kind[b] == DeviceKind.NIC:
            b = "sink" if fabric.host[b] >= half else "beyond"
        if "beyond" in (a, b):
            continue
        had = graph.get_edge_data(a, b, {"capacity": 0})["capacity"]
        graph.add_edge(a, b, capacity=had + int(fabric.link_rate_bps[k]))
    return nx.maximum_flow_value(graph, "source", "sink")


@settings(derandomize=True, deadline=None, max_examples=20)
@given(case=designs())
def test_damage_is_that_of_networkx(case):
    fabric = fabric_of(*case)
    if fabric is None:
        return
    before, whole, cut = lost_pairs(fabric), bandwidth(fabric), bisection(fabric)
    for one in blast_radius(fabric).damages:
        broken = apply_faults(fabric, one.failure.faults)
        left = bandwidth(broken)
        shares = {host: left[host] / rate if rate else 1.0 for host, rate in whole.items()}
        assert one.least_share == min(shares.values()), one.failure
        assert one.hosts_hit == sum(share < 1 for share in shares.values())
        assert one.hosts_lost == sum(share == 0 for share in shares.values())
        assert one.lost_pairs == len(lost_pairs(broken)) - len(before)
        if cut:
            assert one.bisection_share == pytest.approx(bisection(broken) / cut, rel=1e-12)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(case=designs())
def test_groups_that_are_apart_hold_every_lost_pair_once(case):
    fabric = fabric_of(*case)
    if fabric is None:
        return
    lost = lost_pairs(fabric)
    assert lost == set(list_unreachable(fabric))
    named = [
        {
            pair
            for a in group.one
            for b in group.other
            for pair in ((a, b), (b, a))
            if a != b and pair in lost
        }
        for group in apart_groups(fabric)
    ]
    assert [len(pairs) for pairs in named] == [group.pairs for group in apart_groups(fabric)]
    assert sum(map(len, named)) == len(lost)
    assert set().union(*named) == lost
    draws = np.random.default_rng(len(lost))
    some = draws.choice(fabric.gpus, size=5, replace=False).tolist()
    names = {fabric.device_names[gpu] for gpu in some}
    assert lost_within(fabric, [some]) == [sum({a, b} <= names for a, b in lost)]


@given(
    rows=st.lists(
        st.tuples(st.sampled_from("hab"), st.integers(0, 12), st.integers(0, 12)), unique=True
    )
)
def test_ranges_stand_for_exactly_the_names(rows):
    names = [f"{letter}{i}/gpu{k}" for letter, i, k in rows]
    found = []
    for word in name_ranges(names).split():
        parts = word.replace("]", "[").split("[")
        texts, spans = parts[::2], parts[1::2]
        grown = [texts[0]]
        for span, text in zip(spans, texts[1:], strict=True):
            numbers = []
            for piece in span.split(","):
                low, _, high = piece.partition("-")
                numbers += range(int(low), int(high or low) + 1)
            grown = [f"{one}{number}{text}" for one in grown for number in numbers]
        found += grown
    assert sorted(found) == sorted(names)


# -- other NICs -------------------------------------------------------------------------------


def test_gpus_move_to_the_nearest_nic_that_is_left():
    fabric = build_topology(load_topology("h100-rail-8"))
    assert on_nics_left(fabric) is fabric
    broken = apply_faults(fabric, [Fault(node="leaf0.r2"), Fault(node="h0/nic3")])
    moved = on_nics_left(broken)
    names = {
        gpu: fabric.device_names[moved.gpu_nic[fabric.device(gpu)]]
        for gpu in ("h0/gpu1", "h0/gpu2", "h0/gpu3", "h1/gpu2", "h1/gpu3")
    }
    assert names == {
        "h0/gpu1": "h0/nic1",
        "h0/gpu2": "h0/nic0",  # the next in number of the two left on its socket
        "h0/gpu3": "h0/nic1",  # nic0 serves two by now
        "h1/gpu2": "h1/nic3",
        "h1/gpu3": "h1/nic3",
    }
    last = on_nics_left(apply_faults(fabric, [Fault(node="leaf0.r3")]))
    assert fabric.device_names[last.gpu_nic[fabric.device("h0/gpu3")]] == "h0/nic0"  # not nic4
    alone = apply_faults(fabric, [Fault(node="h0")])
    assert on_nics_left(alone).gpu_nic.tolist() == fabric.gpu_nic.tolist()
