# SPDX-License-Identifier: Apache-2.0
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.fabric.graph import DeviceKind
from railweave.topologies import build_topology, load_topology, shipped_designs
from railweave.topologies.checks import check
from railweave.topologies.summary import bisection_bps, oversubscription, summarise

GBPS = 10**9


def links(rate="400Gbps", model="roce-lossless", **more):
    cable = {"rate": rate, "length": "10m", "model": model}
    tiers = {tier: dict(cable) for tier in ("host-leaf", "leaf-spine")}
    for tier, extra in more.items():
        tiers[tier.replace("_", "-")] = cable | extra
    return tiers


def links_for(switch, **more):
    return links(model="infiniband" if switch == "quantum-2" else "roce-lossless", **more)


def rail(hosts, group=None, *, leaf="spectrum-4", over="1:1", host="dgx-h100", **more):
    mapping = {
        "kind": "rail-optimized",
        "hosts": {"count": hosts, "model": host},
        "leaf": {"switch": leaf},
        "spine": {"switch": leaf, "oversubscription": over},
        "links": links_for(leaf),
    }
    return mapping | ({"group": group} if group else {}) | more


def fat(hosts, *, tiers=2, leaf="spectrum-4", over="1:1", host="dgx-h100", **more):
    mapping = {
        "kind": "fat-tree",
        "tiers": tiers,
        "hosts": {"count": hosts, "model": host},
        "leaf": {"switch": leaf},
        "spine": {"switch": leaf, "oversubscription": over},
        "links": links_for(leaf),
    }
    if tiers == 3:
        mapping["core"] = {"switch": leaf}
        mapping["links"] = links_for(leaf, spine_core={})
    return mapping | more


def kary(k, tiers=3, host="single-nic-400g"):
    return {
        "kind": "fat-tree",
        "k": k,
        "tiers": tiers,
        "hosts": {"model": host},
        "links": {"host-leaf": {"rate": "400Gbps", "length": "3m"}},
    }


def core(*, over="1:1", switch="quantum-2"):
    return {
        "core": {"switch": switch, "oversubscription": over},
        "links": links_for(switch, spine_core={}),
    }


def build(mapping):
    return build_topology(load_topology(mapping))


def switches(fabric):
    return tuple(summarise(fabric)["switches"].values())


def cables(fabric):
    return tuple(summarise(fabric)["cables"].values())


# Counts of published reference designs (NVIDIA DGX SuperPOD H100 and B200): leaf, spine, core,
# with as many cables in every tier as GPUs.
@pytest.mark.parametrize(
    ("hosts", "with_core", "expected"),
    [
        (32, False, (8, 4, 0)),
        (64, False, (16, 8, 0)),
        (128, False, (32, 16, 0)),
        (256, False, (64, 32, 0)),
        (512, True, (128, 128, 64)),
        (1024, True, (256, 256, 128)),
    ],
)
def test_superpod_counts(hosts, with_core, expected):
    more = core() if with_core else {}
    fabric = build(rail(hosts, 32, leaf="quantum-2", **more))
    assert switches(fabric) == expected
    gpus = 8 * hosts
    assert cables(fabric) == (gpus, gpus, gpus if with_core else 0)
    assert bisection_bps(fabric) == gpus // 2 * 400 * GBPS


def test_superpod_with_a_place_left_for_the_fabric_manager():
    # 127 hosts: 2,040 cables in all and 48 switches, as in the bill of the H100 SuperPOD
    fabric = build(rail(127, 32, leaf="quantum-2"))
    assert cables(fabric) == (1016, 1024, 0)
    assert switches(fabric) == (32, 16, 0)
    assert check(fabric) == []


def test_k16_counts():
    fabric = build_topology(load_topology("fat-tree-k16"))
    assert summarise(fabric) == {
        "name": "fat-tree-k16",
        "kind": "fat-tree",
        "gpus": 1024,
        "hosts": 1024,
        "nics": 1024,
        "switches": {"leaf": 128, "spine": 128, "core": 64},
        "cables": {"host-leaf": 1024, "leaf-spine": 1024, "spine-core": 1024},
        "oversubscription": {"leaf": 1.0, "spine": 1.0},
        "bisection_bps": 512 * 400 * GBPS,
    }


SIZES = {
    "rail-8": rail(8),
    "rail-48-in-3": rail(48, 16, over="2:1"),
    "rail-64-core": rail(64, 16, leaf="quantum-2", **core()),
    "tor-8": fat(8),
    "tor-33": fat(33, over="3:1"),
    "tor-96-core": fat(96, tiers=3, leaf="quantum-2", group=16),
    "k4": kary(4),
    "k6": kary(6),
    "k8-two-tiers": kary(8, tiers=2),
}


@pytest.mark.parametrize("name", SIZES)
def test_every_port_is_used_once_and_cables_join_what_they_should(name):
    fabric = build(SIZES[name])
    ends = Counter(zip(fabric.link_src.tolist(), fabric.link_src_port.tolist(), strict=True))
    assert set(ends.values()) == {1}
    # ports are numbered without gaps from 0 on every full switch
    for device in fabric.switches.tolist():
        ports = sorted(port for d, port in ends if d == device)
        if fabric.tier[device] > 1 and name != "tor-33":
            assert ports == list(range(len(ports)))
    levels = {"host-leaf": (0, 1), "leaf-spine": (1, 2), "spine-core": (2, 3)}
    for link in range(0, fabric.n_links, 2):
        if fabric.link_tier[link] in levels:
            tiers = (fabric.tier[fabric.link_src[link]], fabric.tier[fabric.link_dst[link]])
            assert tiers == levels[fabric.link_tier[link]]
    assert [f for f in check(fabric) if f.level == "error"] == []


@pytest.mark.parametrize("name", SIZES)
def test_upper_tiers_are_wired_evenly(name):
    """Every leaf reaches each spine of its pod by equally many cables; each spine its cores."""
    fabric = build(SIZES[name])
    for tier in ("leaf-spine", "spine-core"):
        chosen = [i for i in range(0, fabric.n_links, 2) if fabric.link_tier[i] == tier]
        pairs = Counter((int(fabric.link_src[i]), int(fabric.link_dst[i])) for i in chosen)
        assert len(set(pairs.values())) <= 1
        fan_out = Counter(src for src, _ in pairs)
        assert len(set(fan_out.values())) <= 1


@pytest.mark.parametrize("name", SIZES)
def test_bisection_is_the_minimum_cut(name):
    fabric = build(SIZES[name])
    graph = nx.DiGraph()
    for link in np.flatnonzero(fabric.link_network):
        a, b = int(fabric.link_src[link]), int(fabric.link_dst[link])
        held = graph.get_edge_data(a, b, {"capacity": 0})["capacity"]
        graph.add_edge(a, b, capacity=held + int(fabric.link_rate_bps[link]))
    half = len(fabric.host_names) // 2
    for nic in fabric.nics.tolist():
        if fabric.host[nic] < half:
            graph.add_edge("s", nic)
        else:
            graph.add_edge(nic, "t")
    assert bisection_bps(fabric) == nx.minimum_cut_value(graph, "s", "t")


@settings(derandomize=True, deadline=None, max_examples=25)
@given(
    hosts=st.integers(2, 24),
    group=st.integers(1, 24),
    over=st.sampled_from(["1:1", "2:1", "3:2", "7:1"]),
    rails=st.booleans(),
    tall=st.booleans(),
)
def test_summed_bisection_equals_the_maximum_flow(hosts, group, over, rails, tall):
    make = rail if rails else fat
    more = core(over="2:1") if tall else {}
    if not rails and tall:
        more["tiers"] = 3
    fabric = build(make(hosts, leaf="quantum-2", over=over, **more) | {"group": min(group, hosts)})
    untold = replace(fabric, meta={})  # as if it were a custom fabric
    assert bisection_bps(fabric) == bisection_bps(untold)


@pytest.mark.parametrize(
    ("mapping", "leaf", "spine"),
    [
        (rail(32), 1, None),
        (rail(32, over="2:1"), 2, None),
        (rail(32, over="8:1"), 8, None),
        (rail(32, over="1:2"), Fraction(1, 2), None),
        (rail(64, 32, leaf="quantum-2", **core(over="4:1")), 1, 4),
        (fat(16, over="4:1"), 4, None),
    ],
)
def test_declared_oversubscription_is_built(mapping, leaf, spine):
    fabric = build(mapping)
    assert oversubscription(fabric) == {"leaf": leaf, "spine": spine}
    # the cut above one leaf says the same
    device = int(np.flatnonzero(fabric.tier == 1)[0])
    rates = Counter()
    for link in np.flatnonzero(fabric.link_src == device):
        rates[fabric.link_tier[link]] += int(fabric.link_rate_bps[link])
    assert Fraction(rates["host-leaf"], rates["leaf-spine"]) == leaf


def test_uplinks_that_do_not_divide_are_rounded_up():
    fabric = build(rail(10, over="3:1"))  # 10 / 3 -> 4 uplinks
    assert oversubscription(fabric)["leaf"] == Fraction(10, 4)
    # ... and so few that one spine carries them all
    assert [(f.level, f.rule) for f in check(fabric)] == [
        ("info", "oversubscription"),
        ("info", "path-diversity"),
    ]


def test_faster_uplinks_need_fewer_cables():
    fabric = build(rail(32, links=links(leaf_spine={"rate": "800Gbps"})))
    assert cables(fabric) == (256, 128, 0)
    assert oversubscription(fabric)["leaf"] == 1


def test_spines_are_the_fewest_or_as_many_as_asked():
    assert switches(build(rail(32, leaf="quantum-2")))[1] == 4  # 256 uplinks / 64 ports
    spine = {"switch": "quantum-2", "count": 16}
    fabric = build(rail(32, leaf="quantum-2", spine=spine))
    assert switches(fabric)[1] == 16
    assert cables(fabric) == (256, 256, 0)


def test_parallel_cables_count_each():
    one = build(rail(16, links=links(leaf_spine={"count": 1})))
    four = build(rail(16, links=links(leaf_spine={"count": 4})))
    assert (switches(one)[1], switches(four)[1]) == (16, 4)
    assert cables(one) == cables(four) == (128, 128, 0)
    assert bisection_bps(one) == bisection_bps(four)

    def custom(count):
        cable = {"rate": "100Gbps", "delay": "500ns"}
        return build(
            {
                "kind": "custom",
                "nodes": {"h0": "host", "h1": "host", "s1": "switch", "s2": "switch"},
                "links": [
                    {"ends": ["h0", "s1"], **cable, "rate": "1Tbps"},
                    {"ends": ["s1", "s2"], **cable, "count": count},
                    {"ends": ["h1", "s2"], **cable, "rate": "1Tbps"},
                ],
            }
        )

    for count in (1, 3, 7):
        assert summarise(custom(count))["cables"]["link"] == count
        assert bisection_bps(custom(count)) == count * 100 * GBPS


def test_names_and_ports_of_the_demo_fabric():
    fabric = build_topology(load_topology("h100-rail-1su"))
    names = {fabric.cable_name(link) for link in range(0, fabric.n_links, 2)}
    assert "leaf0.r0:33-spine1:0" in names
    assert "leaf0.r3:32-spine0:48" in names
    assert "h5/nic3:0-leaf0.r3:5" in names
    assert {"h3/gpu5", "h3/nic5", "h3/nvs0", "h3/pcie2"} <= set(fabric.device_names)
    nic = fabric.device("h3/nic5")
    assert fabric.gpu_nic[fabric.device("h3/gpu5")] == nic
    assert fabric.rail[nic] == 5
    leaf = fabric.device("leaf0.r5")
    assert (fabric.tier[leaf], fabric.rail[leaf], fabric.model[leaf]) == (1, 5, "spectrum-4")


def test_inside_a_dgx():
    fabric = build(rail(1))
    graph = fabric.graph
    nvlink = graph.get_edge_data("h0/gpu3", "h0/nvs0")["h0/gpu3:0>h0/nvs0:3"]
    assert (nvlink["rate_bps"], nvlink["delay_ps"]) == (2_966_400_000_000, 350_000)
    assert nx.shortest_path(graph, "h0/gpu6", "leaf0.r6") == [
        *("h0/gpu6", "h0/pcie6", "h0/nic6", "leaf0.r6"),
    ]
    tiers = Counter(tier for tier in fabric.link_tier[::2])
    # 8 GPUs and 8 NICs on their PCIe switches, those on two CPU roots, and the socket link
    assert tiers == {"nvlink": 8, "pcie": 16 + 8 + 1, "host-leaf": 8, "leaf-spine": 8}


def test_tor_local_keeps_a_host_on_one_leaf():
    fabric = build_topology(load_topology("h100-tor-1su"))
    for nic in fabric.parts("h9", DeviceKind.NIC):
        link = np.flatnonzero((fabric.link_src == nic) & fabric.link_network)
        assert fabric.device_names[int(fabric.link_dst[link[0]])] == "leaf2"


def test_what_the_file_says_changes_the_fabric():
    base = build(rail(32))
    slower = build(rail(32, links=links("200Gbps")))
    assert bisection_bps(slower) * 2 == bisection_bps(base)
    assert build(rail(31)).n_links < base.n_links
    longer = build(rail(32, links=links(leaf_spine={"length": "50m"})))
    network = base.link_delay_ps[base.link_network]
    assert set(network) == {150_000}  # 10 m at 5 ns/m and 100 ns
    assert set(longer.link_delay_ps[longer.link_network]) == {150_000, 350_000}
    infiniband = build(rail(32, leaf="quantum-2", links=links(model="infiniband")))
    assert set(infiniband.link_model[infiniband.link_network]) == {5}
    older = build(rail(32, host="dgx-a100", links=links("200Gbps")))
    assert older.link_rate_bps.max() < base.link_rate_bps.max()


def test_phy_latency_comes_from_the_scenario_then_the_topology():
    from railweave.fabric.network_model import NetworkModel

    spec = load_topology(rail(2, network={"phy_latency": "40ns"}))
    fabric = build_topology(spec)
    assert set(fabric.link_delay_ps[fabric.link_network]) == {90_000}
    fabric = build_topology(spec, network=NetworkModel(phy_latency="0ns"))
    assert set(fabric.link_delay_ps[fabric.link_network]) == {50_000}


def test_digest_follows_content_not_spelling(tmp_path):
    text = shipped_designs()["h100-rail-1su"].read_text()
    same = tmp_path / "a.yaml"
    same.write_text(text.replace("400Gbps", "0.4Tbps").replace("group: 32\n", "group:   32  # x\n"))
    other = tmp_path / "b.yaml"
    other.write_text(text.replace("length: 30m", "length: 31m"))
    digest = load_topology("h100-rail-1su").sha256
    assert load_topology(same).sha256 == digest
    assert load_topology(other).sha256 != digest


def test_a_thousand_gpus():
    fabric = build_topology(load_topology(rail(128, 32)))
    assert len(fabric.gpus) == 1024
