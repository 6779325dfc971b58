# SPDX-License-Identifier: Apache-2.0
"""What differs between two fabrics, exactly."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.fabric.network_model import NetworkModel, network_settings
from railweave.tools import cli
from railweave.topologies import build_topology, load_topology, shipped_designs
from railweave.topologies.diff import diff, diff_settings

LAB = {
    "kind": "custom",
    "nodes": {
        "h0": "host",
        "h1": "host",
        "h2": "host",
        "s1": {"type": "switch", "model": "tomahawk-5", "tier": "leaf"},
        "s2": {"type": "switch", "model": "tomahawk-5", "tier": "leaf"},
        "top": {"type": "switch", "tier": "spine"},
    },
    "links": [
        {"ends": ["h0", "s1:0"], "rate": "100Gbps", "delay": "500ns"},
        {"ends": ["h1", "s1:1"], "rate": "100Gbps", "delay": "500ns"},
        {"ends": ["h2", "s2:0"], "rate": "100Gbps", "delay": "500ns"},
        {"ends": ["s1:8", "top:0"], "rate": "400Gbps", "delay": "500ns", "count": 2},
        {"ends": ["s2:8", "top:2"], "rate": "400Gbps", "delay": "500ns", "count": 2},
    ],
}


def build(data):
    return build_topology(load_topology(data))


def changed(edit):
    data = copy.deepcopy(LAB)
    edit(data)
    return data


def renamed(data, before, after):
    """Write another name for a node wherever it stands."""
    data["nodes"] = {after if n == before else n: node for n, node in data["nodes"].items()}
    for link in data["links"]:
        link["ends"] = [
            after + end[len(before) :] if end.split(":")[0] == before else end
            for end in link["ends"]
        ]


def told(before, after):
    return [
        (one.what, one.change, one.sort, one.name, one.field, one.before, one.after)
        for one in diff(build(before), build(after))
    ]


def test_the_same_fabric_has_no_difference_in_any_order():
    assert told(LAB, LAB) == []

    def shuffle(data):
        data["nodes"] = dict(reversed(data["nodes"].items()))
        data["links"].reverse()
        data["links"][1]["ends"].reverse()

    assert told(LAB, changed(shuffle)) == []


def test_a_rate():
    data = changed(lambda data: data["links"][0].update(rate="200Gbps", delay="600ns"))
    cable = ("cable", "changed", "host-leaf cable", "h0/nic0:0-s1:0")
    inner = ("cable", "changed", "pcie cable", "h0/gpu0:0-h0/nic0:1")
    assert told(LAB, data) == [
        (*cable, "rate_bps", 100 * 10**9, 200 * 10**9),
        (*cable, "delay_ps", 500_000, 600_000),
    ]
    assert inner[3] not in {row[3] for row in told(LAB, data)}


def test_a_model_of_link_and_of_switch():
    def edit(data):
        data["links"][2]["model"] = "infiniband"
        data["nodes"]["s2"]["model"] = "quantum-2"

    assert told(LAB, changed(edit)) == [
        ("device", "changed", "leaf switch", "s2", "model", "tomahawk-5", "quantum-2"),
        (
            "cable",
            "changed",
            "host-leaf cable",
            "h2/nic0:0-s2:0",
            "model",
            "roce-lossless",
            "infiniband",
        ),
    ]


def test_two_cables_swapped_are_two_moves():
    def edit(data):
        data["links"][1]["ends"] = ["h1", "s2:0"]
        data["links"][2]["ends"] = ["h2", "s1:1"]

    assert told(LAB, changed(edit)) == [
        ("cable", "moved", "host-leaf cable", "h1/nic0:0-s1:1", "end", "s1:1", "s2:0"),
        ("cable", "moved", "host-leaf cable", "h2/nic0:0-s2:0", "end", "s2:0", "s1:1"),
    ]


def test_a_moved_cable_may_also_be_slower():
    data = changed(lambda data: data["links"][1].update(ends=["h1", "s2:5"], rate="50Gbps"))
    assert told(LAB, data) == [
        ("cable", "moved", "host-leaf cable", "h1/nic0:0-s1:1", "end", "s1:1", "s2:5"),
        (
            "cable",
            "changed",
            "host-leaf cable",
            "h1/nic0:0-s1:1",
            "rate_bps",
            100 * 10**9,
            50 * 10**9,
        ),
    ]


@pytest.mark.parametrize(
    ("node", "sort"),
    [("h1", "host of 1 x h100"), ("s2", "tomahawk-5 leaf switch"), ("top", "spine switch")],
)
def test_a_renamed_node_is_one_difference(node, sort):
    data = changed(lambda data: renamed(data, node, "new"))
    assert told(LAB, data) == [("device", "renamed", sort, node, "name", node, "new")]


def test_renamed_neighbours_settle_one_another():
    def edit(data):
        for node in ("h1", "s1", "top"):
            renamed(data, node, f"{node}x")

    assert {row[1:4] for row in told(LAB, changed(edit))} == {
        ("renamed", "host of 1 x h100", "h1"),
        ("renamed", "tomahawk-5 leaf switch", "s1"),
        ("renamed", "spine switch", "top"),
    }


def test_twins_are_not_guessed():
    """Two bare switches go and two come: nothing says which is which."""
    data = changed(lambda data: data["nodes"].update(a={"type": "switch"}, b={"type": "switch"}))
    data["links"] += [
        {"ends": ["top:10", f"{node}:0"], "rate": "1Gbps", "delay": "0ns"} for node in "ab"
    ]
    data["links"][-1]["ends"][0] = "top:11"
    other = copy.deepcopy(data)
    for node in "ab":
        renamed(other, node, f"{node}2")
    assert {row[1] for row in told(data, other)} == {"renamed"}  # ports of `top` tell them apart
    other["links"][-1]["ends"], other["links"][-2]["ends"] = (
        ["top:12", "b2:0"],
        ["top:13", "a2:0"],
    )
    assert [row[1:4] for row in told(data, other) if row[0] == "device"] == [
        ("removed", "switch", "a"),
        ("removed", "switch", "b"),
        ("added", "switch", "a2"),
        ("added", "switch", "b2"),
    ]


def test_a_host_more_brings_its_cable_but_not_its_inside():
    def edit(data):
        data["nodes"]["h3"] = "host"
        data["links"].append({"ends": ["h3", "s2:1"], "rate": "100Gbps", "delay": "500ns"})

    assert told(LAB, changed(edit)) == [
        ("device", "added", "host of 1 x h100", "h3", None, None, None),
        ("cable", "added", "host-leaf cable", "h3/nic0:0-s2:1", None, None, None),
    ]
    assert told(changed(edit), LAB) == [
        ("device", "removed", "host of 1 x h100", "h3", None, None, None),
        ("cable", "removed", "host-leaf cable", "h3/nic0:0-s2:1", None, None, None),
    ]


def test_a_link_that_is_down():
    fabric = build(LAB)
    up = fabric.link_up.copy()
    link = next(k for k in range(fabric.n_links) if fabric.link_name(k) == "h1/nic0:0>s1:1")
    up[link] = False
    (one,) = diff(fabric, fabric.with_links(up=up))
    assert (one.name, one.field, one.before, one.after) == ("h1/nic0:0-s1:1", "up", True, False)


def test_rails_are_compared():
    before, after = (build_topology(load_topology(n)) for n in ("h100-rail-1su", "h100-tor-1su"))
    rails = [one for one in diff(before, after) if one.field == "rail"]
    assert len(rails) == 256
    assert {(one.before, one.after) for one in rails} == {(rail, None) for rail in range(8)}


@pytest.mark.parametrize("name", [name for name in shipped_designs() if "1su" in name])
def test_no_design_differs_from_itself(name):
    one, two = (build_topology(load_topology(name)) for _ in range(2))
    assert diff(one, two) == []


@settings(max_examples=25, deadline=None)
@given(st.sets(st.integers(0, 4)), st.sampled_from(["removed", "rate"]))
def test_each_edit_is_told_once_and_backwards_it_is_its_mirror(links, how):
    def edit(data):
        for link in links:
            data["links"][link]["rate"] = "10Gbps"

    data = changed(edit)
    there, back = told(LAB, data), told(data, LAB)
    assert len(there) == sum(LAB["links"][link].get("count", 1) for link in links)
    assert sorted(there) == sorted((*row[:5], row[6], row[5]) for row in back)


def test_settings_are_compared_by_what_they_come_to():
    plain, same = network_settings(NetworkModel()), network_settings(NetworkModel(mtu="4096B"))
    assert diff_settings(plain, same) == []
    (one,) = diff_settings(plain, network_settings(NetworkModel(mtu="1024B")))
    assert (one.name, one.before, one.after) == ("mtu_bytes", 4096, 1024)


HEAD = "schema: 1\nname: {name}\nkind: rail-optimized\nhosts: {{count: {hosts}, model: dgx-h100}}\n"
REST = """\
leaf: {switch: spectrum-4}
spine: {switch: spectrum-4}
links:
  host-leaf: {model: roce-lossless, rate: 400Gbps, length: 3m}
  leaf-spine: {model: roce-lossless, rate: 400Gbps, length: 10m}
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = HEAD.format(name="one", hosts=4) + REST
    (tmp_path / "one.yaml").write_text(one)
    (tmp_path / "two.yaml").write_text(
        HEAD.format(name="two", hosts=4)
        + REST.replace("400Gbps, length: 3m", "200Gbps, length: 3m").replace(
            "spectrum-4}\nlinks", 'spectrum-4, oversubscription: "1:2"}\nlinks'
        )
        + "network: {mtu: 1024B}\n"
    )
    (tmp_path / "three.yaml").write_text(HEAD.format(name="three", hosts=5) + REST)
    (tmp_path / "copy.yaml").write_text(one.replace("name: one", "name: copy"))


def typed(capsys, *words):
    code = cli.run_command_line(words)
    streams = capsys.readouterr()
    return code, streams.out, streams.err


def test_the_command_counts_what_is_alike(files, capsys):
    assert typed(capsys, "topo", "diff", "one.yaml", "two.yaml") == (
        1,
        """\
one -> two: 33 differences
  oversubscription.leaf  1:1      ->  1:2
  bisection_bps          6.4Tbps  ->  3.2Tbps
cables
  ~ 32 host-leaf cables: rate 400Gbps -> 200Gbps (h0/nic0:0-leaf0.r0:0 first)
network
  ~ mtu_bytes: 4KiB -> 1KiB
""",
        "",
    )


def test_the_command_shows_every_one_if_asked(files, capsys):
    code, out, _ = typed(capsys, "topo", "diff", "one.yaml", "three.yaml")
    assert code == 1
    assert "  + host of 8 x h100 h4\n" in out
    code, every, _ = typed(capsys, "topo", "diff", "one.yaml", "three.yaml", "--all")
    assert code == 1
    assert len(every.splitlines()) > len(out.splitlines())
    assert "  + host-leaf cable h4/nic7:0-leaf0.r7:4\n" in every


def test_no_difference_ends_with_0(files, capsys):
    assert typed(capsys, "topo", "diff", "one.yaml", "copy.yaml") == (
        0,
        "one and copy: no difference\n",
        "",
    )
    code, out, _ = typed(capsys, "topo", "diff", "one.yaml", "copy.yaml", "--json")
    assert (code, json.loads(out)) == (
        0,
        {
            "schema": 1,
            "before": "one",
            "after": "copy",
            "same": True,
            "figures": {},
            "differences": [],
        },
    )


def test_json_tells_all(files, capsys):
    code, out, _ = typed(capsys, "topo", "diff", "one.yaml", "two.yaml", "--json")
    told = json.loads(out)
    assert (code, told["same"], len(told["differences"])) == (1, False, 33)
    assert told["figures"]["bisection_bps"] == {"before": 6_400 * 10**9, "after": 3_200 * 10**9}
    assert told["differences"][0] == {
        "what": "cable",
        "change": "changed",
        "name": "h0/nic0:0-leaf0.r0:0",
        "sort": "host-leaf cable",
        "field": "rate_bps",
        "before": 400 * 10**9,
        "after": 200 * 10**9,
    }


def test_a_missing_file_is_one_clear_line(files, capsys):
    code, out, err = typed(capsys, "topo", "diff", "one.yaml", "four.yaml")
    assert (code, out) == (2, "")
    assert err.startswith("error: four.yaml")


def test_racks_are_compared():
    data = {
        "kind": "nvl-domain",
        "racks": {"count": 2, "model": "gb200-nvl72"},
        "group": 1,
        "leaf": {"switch": "quantum-2"},
        "spine": {"switch": "quantum-2"},
        "links": {
            "host-leaf": {"rate": "400Gbps", "length": "5m", "model": "infiniband"},
            "leaf-spine": {"rate": "400Gbps", "length": "30m", "model": "infiniband"},
        },
    }
    fewer = copy.deepcopy(data)
    fewer["racks"]["count"] = 1
    rows = told(data, fewer)
    gone = [row[2:4] for row in rows if row[:2] == ("device", "removed")]
    assert ("NVSwitch", "rack1/nvs0") in gone
    assert sum(sort == "host of 4 x gb200" for sort, _ in gone) == 18
    assert sum(row[1:3] == ("removed", "nvlink cable") for row in rows) == 72
