# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from railweave.fabric.graph import DeviceKind
from railweave.topologies import build_topology, load_topology
from railweave.topologies.checks import check, unreachable_pairs
from railweave.topologies.summary import summarise

MIXED = """
schema: 1
name: mixed
kind: custom
nodes:
  h0: host
  h1: host
  g: {type: host, model: dgx-h100}
  s1: switch
  l1: {type: switch, model: tomahawk5, tier: leaf}
  p1: {type: switch, model: tomahawk5, tier: spine}
links:
  - {ends: [h0, s1], rate: 100Gbps, delay: 500ns}
  - {ends: [l1, h1], rate: 100Gbps, delay: 500ns, count: 2}
  - {ends: [g/nic3, "l1:5"], rate: 400Gbps, length: 3m}
  - {ends: [g, l1], rate: 400Gbps, length: 3m}
  - {ends: [s1, l1], rate: 400Gbps, length: 3m}
  - {ends: [l1, p1], rate: 800Gbps, length: 3m, count: 2}
"""


def build(mapping):
    return build_topology(load_topology(mapping))


def pair(*links, **nodes):
    return {"kind": "custom", "nodes": nodes, "links": list(links)}


def cable(*ends, **more):
    return {"ends": list(ends), "rate": "100Gbps", "delay": "1us"} | more


@pytest.fixture
def mixed(tmp_path):
    path = tmp_path / "mixed.yaml"
    path.write_text(MIXED)
    return build_topology(load_topology(path))


def test_cables_take_the_ends_that_were_named(mixed):
    network = [i for i in range(0, mixed.n_links, 2) if mixed.link_network[i]]
    assert [mixed.cable_name(i) for i in network] == [
        "h0/nic0:0-s1:0",
        "l1:0-h1/nic0:0",
        "l1:1-h1/nic1:0",
        "g/nic3:0-l1:5",
        "g/nic0:0-l1:2",
        "s1:1-l1:3",
        "l1:4-p1:0",
        "l1:6-p1:1",
    ]
    tiers = [mixed.link_tier[i] for i in network]
    assert tiers == [*["host-leaf"] * 5, "link", "leaf-spine", "leaf-spine"]
    assert mixed.link_delay_ps[network[0]] == 500_000
    assert mixed.link_delay_ps[network[3]] == 115_000


def test_bare_hosts(mixed):
    assert mixed.device_names[:5] == ("h0/gpu0", "h0/nic0", "h1/gpu0", "h1/nic0", "h1/nic1")
    assert mixed.endpoint("h0") == mixed.device("h0/nic0")
    assert mixed.gpu_nic[mixed.device("h1/gpu0")] == mixed.device("h1/nic0")
    assert len(mixed.parts("g", DeviceKind.NIC)) == 8
    lonely = mixed.link_tier.index("pcie")
    assert mixed.link_delay_ps[lonely] == 0
    assert mixed.link_rate_bps[lonely] == 8 * 10**12


def test_summary_counts_what_stands_outside_the_tiers(mixed):
    found = summarise(mixed)
    assert found["switches"] == {"leaf": 1, "spine": 1, "core": 0, "other": 1}
    assert found["cables"] == {"host-leaf": 5, "leaf-spine": 2, "spine-core": 0, "link": 1}
    assert found["gpus"] == 10


def test_gpus_whose_nic_has_no_cable_are_found(mixed):
    # six of the DGX's eight GPUs sit behind NICs without cables: 6 x 2 pairs, both ways
    assert unreachable_pairs(mixed) == (24, ("h0/gpu0", "g/gpu1"))
    (found,) = check(mixed)
    assert (found.level, found.rule) == ("error", "missing-nic")
    assert found.message == "g: no cable in nic1, nic2, nic4, nic5, nic6, nic7"
    assert found.consequences == (
        "reachability: 24 pairs of GPUs cannot reach each other, h0/gpu0 and g/gpu1 first",
    )


def test_hosts_cabled_to_each_other():
    fabric = build(pair(cable("a", "b"), a="host", b="host"))
    assert fabric.cable_name(4) == "a/nic0:0-b/nic0:0"
    assert unreachable_pairs(fabric) == (0, None)
    chain = build(pair(cable("a", "b"), cable("b", "c"), a="host", b="host", c="host"))
    # hosts do not forward: a and c cannot talk, and b's GPU uses the NIC towards a
    assert unreachable_pairs(chain)[0] == 4


def test_paths_never_climb_again_after_descending():
    tiers = {
        "l0": {"type": "switch", "tier": "leaf"},
        "l1": {"type": "switch", "tier": "leaf"},
        "l2": {"type": "switch", "tier": "leaf"},
        "s0": {"type": "switch", "tier": "spine"},
        "s1": {"type": "switch", "tier": "spine"},
    }
    hosts = [cable(f"h{i}", f"l{i}") for i in range(3)]
    up = [cable("l0", "s0"), cable("l1", "s0"), cable("l1", "s1"), cable("l2", "s1")]
    nodes = {f"h{i}": "host" for i in range(3)} | tiers
    assert unreachable_pairs(build(pair(*hosts, *up, **nodes))) == (2, ("h0/gpu0", "h2/gpu0"))
    for node in ("l0", "l1", "l2", "s0", "s1"):
        nodes[node] = "switch"  # without tiers any path will do
    assert unreachable_pairs(build(pair(*hosts, *up, **nodes))) == (0, None)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_three_sizes_of_dumbbell(count):
    nodes = {f"h{i}": "host" for i in range(2 * count)} | {"s0": "switch", "s1": "switch"}
    ends = [cable(f"h{i}", f"s{i % 2}") for i in range(2 * count)]
    fabric = build(pair(*ends, cable("s0", "s1", rate="400Gbps", count=count), **nodes))
    # a GPU and its PCIe cable per host
    assert fabric.n_links == 2 * (2 * count + 2 * count + count)
    used = set(zip(fabric.link_src.tolist(), fabric.link_src_port.tolist(), strict=True))
    assert len(used) == fabric.n_links
    assert check(fabric) == []


def test_protocols_are_checked():
    nodes = {"h0": "host", "g": {"type": "host", "model": "single-nic-400g"}}
    nodes["q"] = {"type": "switch", "model": "quantum-2"}
    fabric = build(pair(cable("h0", "q"), cable("g", "q"), **nodes))
    found = check(fabric)
    assert [(f.level, f.rule) for f in found] == [("error", "protocol")]
    assert "2 cables are roce-lossless, but quantum-2 speaks infiniband only" in found[0].message
    nodes["r"] = nodes["q"]
    found = check(
        build(pair(cable("h0", "q"), cable("g", "r"), cable("q", "r", count=3), **nodes))
    )  # both ends are wrong
    (only,) = [f.message for f in found if f.rule == "protocol"]
    assert only.startswith("5 cables are roce-lossless")
    nodes.pop("r")
    nodes["q"] = {"type": "switch", "model": "spectrum-4"}
    ib = {"model": "infiniband"}
    found = check(build(pair(cable("h0", "q", **ib), cable("g", "q", **ib), **nodes)))
    assert [f.rule for f in found] == ["protocol"]


def test_an_idle_switch_is_mentioned():
    fabric = build(pair(cable("a", "b"), a="host", b="host", spare="switch"))
    assert [(f.level, f.rule) for f in check(fabric)] == [("warning", "unused-switch")]


def test_port_collisions_are_found_on_any_fabric(mixed):
    from dataclasses import replace

    ports = mixed.link_src_port.copy()
    where = np.flatnonzero(mixed.link_src == mixed.device("l1"))
    ports[where[1]] = ports[where[0]]
    found = [f for f in check(replace(mixed, link_src_port=ports)) if f.rule == "port-once"]
    assert [f.message for f in found] == ["2 cables use port l1:0"]
