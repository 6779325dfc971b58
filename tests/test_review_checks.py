# SPDX-License-Identifier: Apache-2.0
"""The static checks: a broken topology gives exactly the finding that names it."""

from dataclasses import replace as changed
from functools import cache
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.fabric.errors import InputError
from railweave.fabric.graph import DeviceKind
from railweave.topologies import asserts, build_topology, load_topology
from railweave.topologies.balls import (
    expected_fullest,
    expected_used,
    qps_for,
    simulate_shift,
)
from railweave.topologies.cabling import plan_cables, read_cabling, rewire, to_csv, to_ptm
from railweave.topologies.checks import CHECKS, check, inspect
from railweave.topologies.min_cut import SwitchGraph
from railweave.topologies.review.capacity import bisection_cut_bps, leaf_cuts, pod_cuts
from railweave.topologies.review.growth import grow
from railweave.topologies.review.hash_load import core_shares, cores_used
from railweave.topologies.review.paths import path_diversity, without_top_tier

GBPS = 10**9
FABRICS = ("h100-rail-8", "h100-tor-1su", "h100-rail-only-512", "superpod-b300-1su")


@cache
def design(name):
    spec = load_topology(name)
    return spec, build_topology(spec)


def cables_of(name):
    return plan_cables(design(name)[1])


def findings(name, cables):
    spec, fabric = design(name)
    return check(rewire(fabric, cables), spec)


@pytest.mark.parametrize("name", FABRICS)
def test_a_clean_topology_gives_no_finding_but_what_is_true(name):
    rules = [found.rule for found in findings(name, cables_of(name))]
    assert rules == (["rails-apart"] if "only" in name else [])


@pytest.mark.parametrize("name", ["h100-rail-8", "h100-tor-1su"])
def test_an_unplugged_spine(name):
    cables = [c for c in cables_of(name) if "spine1" not in (c.from_device, c.to_device)]
    (found,) = findings(name, cables)
    assert (found.level, found.rule) == ("warning", "unused-switch")
    assert found.message == "no link ends on spine1"
    assert found.where == ("spine1",)
    assert "oversubscription: leaf: declared 1:1, built 2:1" in found.consequences
    assert found.file.endswith(f"{name}.yaml")
    assert "spine:" in Path(found.file).read_text("utf-8").splitlines()[found.line - 1]


def test_an_unplugged_spine_of_a_plane():
    name = "h100-dual-plane-512"
    cables = [c for c in cables_of(name) if "spine1.p0" not in (c.from_device, c.to_device)]
    (found,) = findings(name, cables)
    assert (found.level, found.rule) == ("warning", "unused-switch")
    assert found.message == "no link ends on spine1.p0"
    told = "plane-balance: planes are uneven in the uplinks of leaves: 51.2Tbps, 102.4Tbps"
    assert told in found.consequences


@pytest.mark.parametrize("name", ["h100-rail-8", "h100-rail-only-512", "superpod-b300-1su"])
def test_swapped_rails_of_one_host(name):
    cables = cables_of(name)
    ends = {"h5/nic2": [], "h5/nic3": []}
    for i, cable in enumerate(cables):
        if cable.from_device in ends:
            ends[cable.from_device].append(i)
    for i, j in zip(*ends.values(), strict=True):
        one, other = cables[i], cables[j]
        cables[i] = changed(one, to_device=other.to_device, to_port=other.to_port)
        cables[j] = changed(other, to_device=one.to_device, to_port=one.to_port)
    found, *rest = findings(name, cables)
    assert [f.rule for f in rest] == (["rails-apart"] if "only" in name else [])
    assert (found.level, found.rule) == ("error", "rail-alignment")
    plane = ".p0" if "b300" in name else ""
    assert found.message.startswith(
        f"h5: h5/nic2 on leaf0.r3{plane}, h5/nic{'2' if plane else '3'} on leaf0.r"
    )


@pytest.mark.parametrize("name", FABRICS)
def test_a_missing_nic(name):
    cables = [c for c in cables_of(name) if c.from_device != "h3/nic6"]
    found, *rest = findings(name, cables)
    assert [f.rule for f in rest] == (["rails-apart"] if "only" in name else [])
    assert (found.level, found.rule) == ("error", "missing-nic")
    assert found.message == "h3: no cable in nic6"
    assert any(told.startswith("reachability: ") for told in found.consequences)


@pytest.mark.parametrize("name", FABRICS)
def test_two_cables_in_one_port(name):
    cables = cables_of(name)
    first = next(c for c in cables if c.from_device == "h0/nic0")
    i = next(i for i, c in enumerate(cables) if c.to_device == first.to_device and c != first)
    cables[i] = changed(cables[i], to_port=first.to_port)
    found, *rest = findings(name, cables)
    assert [f.rule for f in rest] == (["rails-apart"] if "only" in name else [])
    assert (found.level, found.rule) == ("error", "port-once")
    assert found.message == f"2 cables use port {first.to_device}:{first.to_port}"


@pytest.mark.parametrize("name", FABRICS)
def test_a_wrong_speed_at_a_host(name):
    cables = cables_of(name)
    i = next(i for i, c in enumerate(cables) if c.from_device == "h3/nic6")
    cables[i] = changed(cables[i], rate="200Gbps")
    found, *rest = findings(name, cables)
    assert [f.rule for f in rest] == (["rails-apart"] if "only" in name else [])
    assert (found.level, found.rule) == ("error", "odd-rate")
    assert "is 200Gbps, slower than the 400Gbps" in found.message
    assert found.where[0].startswith("h3/nic6:")


@pytest.mark.parametrize("name", ["h100-rail-8", "h100-tor-1su", "superpod-b300-1su"])
def test_a_wrong_speed_and_a_missing_cable_between_switches(name):
    cables = cables_of(name)
    i = next(i for i, c in enumerate(cables) if c.tier == "leaf-spine")
    slow = [*cables]
    slow[i] = changed(cables[i], rate="100Gbps")
    (found,) = findings(name, slow)
    assert (found.level, found.rule) == ("error", "odd-rate")
    (found,) = findings(name, [c for k, c in enumerate(cables) if k != i])
    assert (found.level, found.rule) == ("error", "uneven-uplinks")
    assert found.message.endswith(f"fewer than usual to {cables[i].to_device}")


def test_findings_say_why_how_to_mend_and_where(tmp_path):
    spec, fabric = design("h100-rail-8")
    path = tmp_path / "as-built.csv"
    cables = cables_of("h100-rail-8")
    cables[5] = changed(cables[5], rate="100Gbps")
    path.write_text(to_csv(cables))
    inner = int((~fabric.link_network).sum()) // 2
    rows = {inner + i: (str(path), i + 2) for i in range(len(cables))}
    (found,) = inspect(rewire(fabric, read_cabling(path)), spec, rows=rows).findings
    assert (found.file, found.line) == (str(path), 7)
    assert found.why
    assert found.mend
    assert all(one.about and one.why and one.mend for one in CHECKS.values())


def test_a_design_over_its_switch_is_refused_with_both_numbers():
    content = load_topology("superpod-h100-1su").model.content()
    content["hosts"]["count"] = content["group"] = 40
    with pytest.raises(InputError, match=r"needs 80 ports of 400Gbps, but quantum-2 has 64"):
        build_topology(load_topology(content))


CUSTOM = """
schema: 1
name: small
kind: custom
source: a test
nodes:
  h0: host
  h1: host
  s0: {type: switch, model: spectrum-4, tier: leaf}
links:
  - {ends: [h0, s0], rate: 400Gbps, length: 3m}
  - {ends: [h1, s0], rate: 400Gbps, length: 12km}
network: {ecn: {kmin: 40MB, kmax: 50MB}}
"""


def test_lines_of_a_custom_file(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(CUSTOM)
    spec = load_topology(path)
    found = {f.rule: f for f in check(build_topology(spec), spec)}
    assert set(found) == {"cable-reach", "ecn-before-pfc"}
    assert found["cable-reach"].line == 12
    assert "over 12km: nothing of that rate reaches further than 10km" in (
        found["cable-reach"].message
    )
    assert found["ecn-before-pfc"].line == 9
    assert "before any mark (kmin 38.15 MiB)" in found["ecn-before-pfc"].message


def test_headroom_that_does_not_fit_the_buffer():
    content = load_topology("h100-rail-512").model.content()
    content["network"] = {**content.get("network", {}), "buffer": {"total": "12MB"}}
    spec = load_topology(content)
    found = [f for f in check(build_topology(spec), spec) if f.rule == "headroom"]
    assert [f.level for f in found] == ["error", "error"]
    assert "take 14.7 MiB of a buffer of 11.44 MiB (802.1Qbb)" in found[0].message


def ring(tier=""):
    """Three switches in a ring, two hosts at each; shortest paths go one hop."""
    more = f", tier: {tier}" if tier else ""
    switches = "".join(f"  s{i}: {{type: switch{more}}}\n" for i in range(5))
    hosts = "".join(f"  h{i}: host\n" for i in range(5))
    links = "".join(
        f"  - {{ends: [h{i}, s{i}], rate: 100Gbps, delay: 1us}}\n"
        f"  - {{ends: [s{i}, s{(i + 1) % 5}], rate: 100Gbps, delay: 1us}}\n"
        for i in range(5)
    )
    return f"schema: 1\nname: ring\nkind: custom\nnodes:\n{hosts}{switches}links:\n{links}"


def test_a_ring_of_switches_can_wait_for_itself(tmp_path):
    path = tmp_path / "ring.yaml"
    path.write_text(ring())
    found = [f for f in check(build_topology(load_topology(path))) if f.rule == "deadlock"]
    assert [f.level for f in found] == ["error"]
    assert found[0].message.startswith("5 links can wait for each other in a ring: s0:")
    lossy = ring().replace("delay: 1us", "delay: 1us, model: roce-lossy")
    path.write_text(lossy)
    assert not [f for f in check(build_topology(load_topology(path))) if f.rule == "deadlock"]


def test_pcie_and_sockets_of_hosts():
    content = load_topology("h100-rail-8").model.content()
    content["hosts"] = {"count": 8, "model": "dgx-a100", "nic": "connectx-7"}
    spec = load_topology(content)
    found = [f for f in check(build_topology(spec), spec) if f.rule == "host-bottleneck"]
    assert [f.message for f in found] == [
        "8 hosts such as h0: PCIe carries 218.96Gbps to a NIC of 400Gbps, 56 % of its payload "
        "(h0/nic0)"
    ]


# -- cuts against networkx -------------------------------------------------------------------


def by_networkx(fabric, supply, drain):
    graph = nx.DiGraph()
    graph.add_nodes_from(("source", "sink"))
    is_switch = fabric.kind == DeviceKind.SWITCH
    for link in np.flatnonzero(fabric.link_network & fabric.link_up).tolist():
        a, b = int(fabric.link_src[link]), int(fabric.link_dst[link])
        if is_switch[a] and is_switch[b]:
            had = graph.get_edge_data(a, b, {"capacity": 0})["capacity"]
            graph.add_edge(a, b, capacity=had + int(fabric.link_rate_bps[link]))
    for i, device in enumerate(fabric.switches.tolist()):
        graph.add_edge("source", device, capacity=int(supply[i]))
        graph.add_edge(device, "sink", capacity=int(drain[i]))
    return nx.maximum_flow_value(graph, "source", "sink")


@st.composite
def clos(draw):
    file = {
        "kind": draw(st.sampled_from(["rail-optimized", "fat-tree"])),
        "hosts": {"count": draw(st.integers(2, 12)), "model": "dgx-h100"},
        "leaf": {"switch": "spectrum-4"},
        "spine": {
            "switch": "spectrum-4",
            "oversubscription": draw(st.sampled_from(["1:1", "2:1", "3:1", "1:2"])),
        },
        "links": {
            "host-leaf": {"rate": "400Gbps", "length": "10m"},
            "leaf-spine": {"rate": "400Gbps", "length": "30m"},
        },
    }
    if file["kind"] == "fat-tree":
        file["tiers"] = 2
        file["leaf"]["hosts"] = draw(st.integers(1, 4))
    elif draw(st.booleans()):
        file["group"] = draw(st.integers(1, 4))
        file["core"] = {
            "switch": "spectrum-4",
            "oversubscription": draw(st.sampled_from(["1:1", "4:1"])),
        }
        file["links"]["spine-core"] = {"rate": "400Gbps", "length": "30m"}
    return file, draw(st.integers(0, 2**32 - 1)), draw(st.integers(0, 6))


@settings(derandomize=True, deadline=None, max_examples=40)
@given(case=clos())
def test_cuts_are_those_of_networkx_also_with_cables_lost(case):
    file, seed, lost = case
    try:
        fabric = build_topology(load_topology(file))
    except InputError:
        return
    draws = np.random.default_rng(seed)
    up = fabric.link_up.copy()
    trunk = np.flatnonzero(fabric.link_network & (fabric.host[fabric.link_src] < 0))
    for link in draws.choice(trunk // 2, size=min(lost, len(trunk) // 2), replace=False).tolist():
        up[[2 * link, 2 * link + 1]] = False
    fabric = fabric.with_links(up=up)
    graph = SwitchGraph(fabric)
    number = graph.number
    halves = []
    half = len(fabric.host_names) // 2
    for mine in (fabric.host < half, fabric.host >= half):
        total = np.zeros(len(fabric.switches), np.int64)
        links = fabric.link_network & fabric.link_up & mine[fabric.link_src]
        links &= fabric.host[fabric.link_src] >= 0
        np.add.at(total, number[fabric.link_dst[links]], fabric.link_rate_bps[links])
        halves.append(total)
    assert bisection_cut_bps(fabric, graph) == by_networkx(fabric, *halves)
    # and any other cut: random supplies and drains
    supply, drain = draws.integers(0, 4, (2, len(fabric.switches))) * 200 * GBPS
    assert graph.max_flow_bps(supply, drain) == by_networkx(fabric, supply, drain)


def test_cuts_above_leaves_and_pods_are_closed_forms():
    _, fabric = design("meta-24k")
    graph = SwitchGraph(fabric)
    assert set(leaf_cuts(fabric, graph).values()) == {(16 * 400 * GBPS, 32 * 400 * GBPS)}
    pods = pod_cuts(fabric, graph)
    assert len(pods) == 8
    assert set(pods.values()) == {(16 * 384 * 400 * GBPS, 16 * 55 * 400 * GBPS)}


def test_paths_and_the_top_tier():
    _, fabric = design("fat-tree-k16")
    found = path_diversity(fabric)
    assert (found.fewest, found.most, found.first_hops) == (8, 64, 8)
    _, rail = design("h100-rail-8")
    lost, one_rail, pairs = without_top_tier(rail)
    # all pairs of GPUs in different hosts and rails: NVLink and the leaf join the others
    assert (lost, one_rail, pairs) == (64 * 7 * 7, 0, 64 * 63)


# -- hashing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("balls", "fullest"), [(4, 2.12), (8, 2.596), (16, 3.075), (64, 3.958), (256, 4.765)]
)
def test_the_fullest_bin(balls, fullest):
    assert expected_fullest(balls, balls) == pytest.approx(fullest, abs=0.006)
    drawn = simulate_shift(balls, balls, 1, samples=300, seed=3).fullest
    assert drawn == pytest.approx(fullest, rel=0.05)


def test_fullest_bin_of_few_balls_by_counting_all_cases():
    from itertools import product

    for balls, bins in ((3, 2), (4, 3), (6, 4)):
        cases = [max(map(case.count, range(bins))) for case in product(range(bins), repeat=balls)]
        assert expected_fullest(balls, bins) == pytest.approx(sum(cases) / len(cases), abs=1e-9)


def test_shift_permutations_give_the_closed_form_mean():
    drawn = simulate_shift(16, 16, 1, samples=400)
    assert drawn.mean == pytest.approx(expected_used(16, 16) / 16, rel=0.02)
    assert qps_for(64, 8, 0.9) == next(
        q for q in (*range(1, 17), *range(18, 65, 2))
        if q * 8 / expected_fullest(64 * q, 8) >= 0.9
    )  # fmt: skip


@pytest.mark.parametrize("name", ["superpod-b200-512", "megascale-12k", "fat-tree-k16"])
def test_polarised_hashes_use_as_many_cables_into_cores_as_the_closed_form_says(name):
    """Drawn by the hash itself over seeds; megascale's pods hold several groups of hosts."""
    fabric = build_topology(load_topology(name))
    leaf = int(np.flatnonzero(fabric.tier == 1)[0])
    for polarised in (False, True):
        shares = core_shares(fabric, leaf, polarised=polarised)
        drawn = [cores_used(fabric, polarised=polarised, seed=seed) for seed in range(1, 5)]
        flows, cables = drawn[0].flows, drawn[0].cables
        expected = float((1 - (1 - shares) ** flows).sum())
        assert len(shares) == cables
        assert shares.sum() == pytest.approx(1)
        assert np.mean([one.used for one in drawn]) == pytest.approx(expected, rel=0.04)
    # with one seed a flow's uplink fixes its core: as many ways as the leaf has uplinks
    assert np.count_nonzero(shares) == int(
        (
            fabric.link_network & (fabric.link_src == leaf) & (fabric.tier[fabric.link_dst] == 2)
        ).sum()
    )


# -- cabling plans ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["h100-rail-8", "fat-tree-k16", "hpn7-segment", "superpod-h100-4su", "nvl72-8"]
)
def test_a_plan_rebuilds_the_same_fabric(name, tmp_path):
    _, fabric = design(name)
    path = tmp_path / "plan.csv"
    cables = plan_cables(fabric)
    path.write_text(to_csv(cables))
    again = rewire(fabric, read_cabling(path))
    for field in ("link_src", "link_dst", "link_src_port", "link_dst_port", "link_rate_bps"):
        assert np.array_equal(getattr(again, field), getattr(fabric, field))
    assert np.array_equal(again.link_delay_ps, fabric.link_delay_ps)
    assert np.array_equal(again.link_model, fabric.link_model)
    assert again.link_tier == fabric.link_tier
    ends = [(c.from_device, c.from_port) for c in cables] + [
        (c.to_device, c.to_port) for c in cables
    ]
    assert len(ends) == len(set(ends))
    assert len({cable.label for cable in cables}) == len(cables)


def test_ptm_has_a_line_per_cable():
    cables = cables_of("h100-rail-8")
    lines = to_ptm(cables).splitlines()
    assert lines[0] == "graph G {"
    assert lines[1] == '    "h0":"nic0p0" -- "leaf0.r0":"swp1";'
    assert len(lines) == len(cables) + 2


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("rate", "speed", "there is no column 'speed'"),
        ("h0/nic0,", "h0/nick0,", "'h0/nick0' is not a device of h100-rail-8"),
        ("400Gbps", "400", "rate: "),
        ("roce-lossless", "rocky", "'rocky' is not a link model"),
    ],
)
def test_bad_plans_are_refused_with_their_line(tmp_path, old, new, said):
    path = tmp_path / "plan.csv"
    path.write_text(to_csv(cables_of("h100-rail-8")).replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        rewire(design("h100-rail-8")[1], read_cabling(path), file=str(path))
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{path}:")


# -- assertions for a reviewer's own tests ----------------------------------------------------


def test_assertions_pass_on_a_good_design_and_fail_on_a_broken_one():
    spec, fabric = design("h100-rail-8")
    every = [
        getattr(asserts, name) for name in asserts.__all__ if name not in (
            "assert_check", "assert_bisection", "assert_oversubscription", "assert_path_diversity"
        )
    ]  # fmt: skip
    for one in every:
        one(fabric, spec)
    asserts.assert_bisection(fabric, at_least="12.8Tbps")
    with pytest.raises(AssertionError, match=r"bisection: 12.8Tbps, wanted 13Tbps"):
        asserts.assert_bisection(fabric, at_least="13Tbps")
    asserts.assert_oversubscription(fabric, at_most="1:1")
    with pytest.raises(AssertionError, match="wanted 1:2"):
        asserts.assert_oversubscription(fabric, at_most="1:2")
    asserts.assert_path_diversity(fabric, switches=2)
    with pytest.raises(AssertionError, match="over 2 switches, wanted 3"):
        asserts.assert_path_diversity(fabric, switches=3)
    lost = rewire(fabric, [c for c in cables_of("h100-rail-8") if c.from_device != "h3/nic6"])
    with pytest.raises(AssertionError, match="h3: no cable in nic6"):
        asserts.assert_nics_cabled(lost, spec)
    with pytest.raises(AssertionError, match="mend: plug it in"):
        asserts.assert_clean(lost, spec)
    asserts.assert_clean(lost, spec, allow=["missing-nic"])
    with pytest.raises(InputError, match="did you mean 'missing-nic'"):
        asserts.assert_check("mising-nic", fabric)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        # 64 hosts on 16 leaves, 4 cables to each of 8 spines; then 2 to each of 16: half may stay
        ("superpod-b200-64", (128, 768, 256, 1024, 24, "")),
        # one group fills its leaves, so the next 64 hosts are a group beside it
        ("h100-rail-512", (128, 768, 256, 1024, 12, ", in groups of 64")),
        ("h100-tapered-512", (128, 640, 128, 768, 10, ", in groups of 64")),
        # 256 hosts fill the spines; under cores each group of 32 has 8 spines of its own, and of
        # 2,048 cables above the leaves 2,048 / 8 go where they went
        ("superpod-b200-256", (512, 2304, 1792, 8192, 224, ", under cores")),
        ("h100-rail-only-512", (128, 512, 0, 512, 0, "")),
    ],
)
def test_growth_moves_no_more_cables_than_it_must(name, found):
    spec = load_topology(name)
    grown = grow(spec, build_topology(spec))
    assert tuple(grown) == found
    assert grown.kept + grown.moved <= int(build_topology(spec).link_network.sum()) // 2
