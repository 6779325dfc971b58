# SPDX-License-Identifier: Apache-2.0
"""The plan of an emulated network: names, addresses, routes, shapers; nothing is built here."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from railweave.fabric.errors import InputError
from railweave.fabric.routing import Routing
from railweave.tools.emulate.batches import route_changes, setup_request
from railweave.tools.emulate.choosing import PathChooser, choice_of, steered
from railweave.tools.emulate.plan import NetworkPlan, make_plan
from railweave.tools.emulate.routes import next_hops
from railweave.tools.emulate.shaping import CLASSES, Shaping
from railweave.topologies.load import build_topology, load_topology


def leaf_spine(leaves: int = 2, hosts: int = 2, spines: int = 2, cables: int = 1) -> dict[str, Any]:
    nodes: dict[str, Any] = {f"h{i}": "host" for i in range(leaves * hosts)}
    nodes |= {f"leaf{i}": {"type": "switch", "tier": "leaf"} for i in range(leaves)}
    nodes |= {f"spine{i}": {"type": "switch", "tier": "spine"} for i in range(spines)}
    links = [
        {"ends": [f"h{i}", f"leaf{i // hosts}"], "rate": "400Gbps", "delay": "0s"}
        for i in range(leaves * hosts)
    ]
    links += [
        {"ends": [f"leaf{a}", f"spine{b}"], "rate": "800Gbps", "delay": "0s", "count": cables}
        for a, b in itertools.product(range(leaves), range(spines))
    ]
    return {"schema": 1, "name": "small", "kind": "custom", "nodes": nodes, "links": links}


def planned(topology: Any, policy: str = "ecmp", scale: int = 2000) -> NetworkPlan:
    fabric = build_topology(load_topology(topology))
    return make_plan(fabric, Routing(fabric, policy=policy), scale=scale)


def link_named(plan: NetworkPlan, name: str) -> int:
    return [plan.fabric.link_name(link) for link in range(plan.fabric.n_links)].index(name)


def test_hosts_and_switches_become_namespaces_and_cables_pairs_of_interfaces() -> None:
    plan = planned(leaf_spine())
    assert plan.namespaces == ("h0", "h1", "h2", "h3", "leaf0", "leaf1", "spine0", "spine1")
    cable = link_named(plan, "h0/nic0:0>leaf0:0")
    first, other = plan.interfaces[cable], plan.interfaces[cable + 1]
    assert (first.namespace, first.name) == ("h0", "nic0")
    assert (first.address, first.mac) == (f"10.128.0.{cable}", f"02:00:00:00:00:{cable:02x}")
    assert first.rate_bps == 200_000_000
    assert (other.namespace, other.name, other.address) == (
        *("leaf0", "p0"),
        f"10.128.0.{cable + 1}",
    )
    assert [plan.address(nic) for nic in plan.fabric.nics] == [f"10.0.0.{k}" for k in range(4)]
    assert plan.slowest_bps == 200_000_000
    assert {one.rate_bps for one in plan.interfaces.values()} == {200_000_000, 400_000_000}


def test_names_and_addresses_are_unique() -> None:
    plan = planned("h100-rail-8")
    ends = list(plan.interfaces.values())
    assert len({(one.namespace, one.name) for one in ends}) == len(ends)
    assert len({one.mac for one in ends} | {one.address for one in ends}) == 2 * len(ends)
    assert all(len(one.name) <= 15 for one in ends)
    assert {one.name for one in ends if one.namespace == "h3"} == {f"nic{i}" for i in range(8)}


def test_names_of_hosts_and_nics_resolve() -> None:
    lines = planned("h100-rail-8").hosts_file().splitlines()
    assert lines[:3] == ["127.0.0.1 localhost", "10.0.0.0 h0-nic0 h0", "10.0.0.1 h0-nic1"]
    assert len(lines) == 1 + 64


@pytest.mark.parametrize(
    "topology",
    [leaf_spine(), leaf_spine(leaves=3, spines=3, cables=2), "h100-rail-8"],
    ids=["leaf-spine", "parallel", "rail"],
)
def test_walking_the_next_hops_yields_the_fabrics_paths(topology: Any) -> None:
    fabric = build_topology(load_topology(topology))
    routing = Routing(fabric)
    hops = next_hops(fabric, routing)

    def walks(here: int, target: int) -> list[tuple[int, ...]]:
        if here == target:
            return [()]
        return [
            (link, *rest)
            for link in hops[here][target]
            for rest in walks(int(fabric.link_dst[link]), target)
        ]

    nics = fabric.nics.tolist()
    for source, target in itertools.product(nics[:9], nics):
        if fabric.host[source] != fabric.host[target]:
            assert sorted(walks(source, target)) == sorted(routing.equal_cost_paths(source, target))


def test_rail_routing_is_one_next_hop_by_destination() -> None:
    plan = planned(leaf_spine(leaves=2, hosts=4, spines=2), policy="rail")
    fabric, routing = plan.fabric, Routing(plan.fabric, policy="rail")
    for source, target in itertools.permutations(fabric.nics.tolist(), 2):
        here, path = source, []
        while here != target:
            (link,) = plan.hops[here][target]
            path.append(link)
            here = int(fabric.link_dst[link])
        assert tuple(path) == routing.routes([source], [target]).path(0)


def test_spraying_is_no_kernels_routing() -> None:
    with pytest.raises(InputError, match="a Linux network cannot route by 'spray'"):
        planned(leaf_spine(), policy="spray")


def test_a_scale_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="leaves 400 bit/s of the slowest cable"):
        planned(leaf_spine(), scale=10**9)


def test_switches_hash_by_seeds_of_their_own_unless_polarised() -> None:
    own = planned(leaf_spine())
    assert len({own.hash_seed(switch) for switch in own.switches}) == 4
    same = planned(leaf_spine(), policy="ecmp-polarised")
    assert len({same.hash_seed(switch) for switch in same.switches}) == 1


def test_the_request_routes_over_every_equal_cost_cable() -> None:
    plan = planned(leaf_spine())
    request = setup_request(plan, Shaping.of(plan, "fifo", acks_first=False))
    ways = [link_named(plan, f"leaf0:{2 + k}>spine{k}:0") + 1 for k in range(2)]
    assert (
        f"route add 10.0.0.2/32 nexthop via 10.128.0.{ways[0]} dev p2 "
        f"nexthop via 10.128.0.{ways[1]} dev p3" in request["then"]["leaf0"]
    )
    assert request["tc"]["h0"] == [
        "qdisc add dev nic0 root handle 1: tbf rate 200000000bit burst 24000 limit 4mb"
    ]
    assert request["sysctls"]["leaf0"]["net/ipv4/ip_forward"] == 1
    assert "net/ipv4/ip_forward" not in request["sysctls"]["h0"]
    assert len(request["cables"]) == 4 + 4


def test_shapers_by_rate() -> None:
    slow = planned(leaf_spine())
    shaping = Shaping.of(slow, "fair")
    assert shaping.gso_bytes == 16_000
    assert [shaping.burst_bytes(rate) for rate in (10**8, 2 * 10**8, 8 * 10**8)] == [
        24_000,
        24_000,
        50_000,
    ]
    lines = shaping.lines("p0", 200_000_000)
    assert len([line for line in lines if line.startswith("class")]) == 1 + CLASSES // 2 + 1
    whole = "rate 200000000bit ceil 200000000bit burst 24000 cburst 24000 quantum 20000"
    for mode in ("fair", "fifo"):
        classes = Shaping.of(slow, mode).lines("p0", 200_000_000)
        assert f"class add dev p0 parent 1: classid 1:80 htb prio 0 {whole}" in classes
    fast = Shaping.of(planned(leaf_spine(), scale=500), "fair")
    assert fast.gso_bytes is None
    assert fast.burst_bytes(800_000_000) == 150_000


def test_routes_that_change_are_the_only_ones_written() -> None:
    plan = planned(leaf_spine())
    fabric = plan.fabric
    up = fabric.link_up.copy()
    cable = link_named(plan, "leaf0:2>spine0:0")
    up[[cable, cable + 1]] = False
    degraded = fabric.with_links(up=up)
    after = next_hops(degraded, Routing(degraded))
    left = link_named(plan, "leaf1:3>spine1:1")
    changes = route_changes(plan, plan.hops, after)
    assert set(changes) == {"leaf0", "leaf1", "spine0"}
    assert changes["leaf1"] == [
        f"route replace 10.0.0.{k}/32 via 10.128.0.{left + 1} dev p3" for k in (0, 1)
    ]
    assert route_changes(plan, after, after) == {}


def test_pinned_routes_spread_and_collide() -> None:
    plan = planned(leaf_spine(leaves=2, hosts=4, spines=2))
    leaf = plan.fabric.device("leaf0")
    far = [plan.fabric.device(f"h{k}/nic0") for k in range(4, 8)]
    spread, collide = steered(plan, "spread"), steered(plan, "collide")
    ways = [link_named(plan, f"leaf0:{4 + k}>spine{k}:0") for k in range(2)]
    assert [spread[leaf][nic] for nic in far] == [(ways[k],) for k in (0, 1, 0, 1)]
    assert [collide[leaf][nic] for nic in far] == [(ways[0],)] * 4
    assert steered(plan, "kernel") == {a: dict(b) for a, b in plan.hops.items()}


def test_chosen_paths_spread_or_collide() -> None:
    fabric = build_topology(load_topology(leaf_spine(leaves=2, hosts=4, spines=4)))
    routing = Routing(fabric)
    ends = [(fabric.device(f"h{k}/nic0"), fabric.device(f"h{k + 4}/nic0")) for k in range(4)]
    spread = PathChooser(routing, "spread")
    assert len({spread.links(*pair)[1] for pair in ends}) == 4  # type: ignore[index]
    collide = PathChooser(routing, "collide")
    assert len({collide.links(*pair)[1] for pair in ends}) == 1  # type: ignore[index]
    assert PathChooser(routing, "kernel").links(*ends[0]) is None
    assert PathChooser(routing, "fabric").links(*ends[0]) == routing.routes(*ends[0]).path(0)


def test_an_unknown_choice_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'spread'"):
        choice_of("spred")
