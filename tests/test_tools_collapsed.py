# SPDX-License-Identifier: Apache-2.0
"""Collapsed drawings: a box per group and tier, a line per bundle, nothing lost, all readable."""

import itertools
import shutil
import xml.etree.ElementTree as ET
from functools import cache

import numpy as np
import pytest

from railweave.fabric.errors import InputError
from railweave.fabric.graph import DeviceKind, FabricBuilder, LinkModel
from railweave.tools import cli
from railweave.tools.drawing import compose
from railweave.tools.layout import lay_out
from railweave.tools.overlay import LinkLoads
from railweave.tools.palette import PLANE_FILLS, ramp
from railweave.tools.render import draw, to_dot
from railweave.tools.tiers import arrange
from railweave.topologies.load import build_topology, load_topology

SVG = "{http://www.w3.org/2000/svg}"
GBPS = 10**9
CABLE = {"rate_bps": 400 * GBPS, "delay_ps": 50_000, "model": LinkModel.ROCE_LOSSLESS}

# Every kind: rails and a core, fat-tree, pods of several groups, two planes, racks, no groups.
DESIGNS = (
    "superpod-b200-512",
    "superpod-h100-4su",
    "fat-tree-k16",
    "superpod-h100-1su-tor",
    "h100-rail-only-512",
    "superpod-b300-8su",
    "hpn7-pod",
    "megascale-12k",
    "nvl72-8",
)


@cache
def fabric_of(name):
    return build_topology(load_topology(name))


@cache
def many_groups(groups=130):
    """A fabric of many groups: a host with two NICs and two leaves in each, 4 spines over all."""
    build = FabricBuilder("many-groups")
    spines = [build.add_device(f"spine{s}", DeviceKind.SWITCH, index=s, tier=2) for s in range(4)]
    for g in range(groups):
        host = build.add_host(f"h{g}")
        build.add_device(f"h{g}/gpu0", DeviceKind.GPU, host=host, group=g)
        for r in range(2):
            nic = build.add_device(
                f"h{g}/nic{r}", DeviceKind.NIC, host=host, index=r, group=g, rail=r
            )
            leaf = build.add_device(f"leaf{g}.r{r}", DeviceKind.SWITCH, tier=1, group=g, rail=r)
            build.add_cable(nic, leaf, tier="host-leaf", **CABLE)
            for spine in spines:
                build.add_cable(leaf, spine, tier="leaf-spine", **CABLE)
    return build.finish()


def unnamed(hosts=6):
    """Hosts two by two on switches that belong to no group; one switch joins them."""
    build = FabricBuilder("unnamed")
    top = build.add_device("top", DeviceKind.SWITCH, tier=2)
    for h in range(hosts):
        if h % 2 == 0:
            leaf = build.add_device(f"sw{h // 2}", DeviceKind.SWITCH, tier=1)
            build.add_cable(leaf, top, tier="leaf-spine", **CABLE)
        nic = build.add_device(f"h{h}/nic0", DeviceKind.NIC, host=build.add_host(f"h{h}"))
        build.add_cable(nic, leaf, tier="host-leaf", **CABLE)
    return build.finish()


def loads_of(fabric, seed=7):
    load = np.random.default_rng(seed).beta(1, 4, fabric.n_links)
    load[::3] = 0
    return LinkLoads("demo", load, (load * 1e9).astype(np.int64))


def overlaps(labels):
    """Pairs of labels whose estimated boxes share more than a hair, by a sweep from the left."""
    boxes = sorted((label.bounds, label.text) for label in labels)
    found, open_boxes = [], []
    for (left, top, right, bottom), text in boxes:
        open_boxes = [box for box in open_boxes if box[0][2] > left + 0.5]
        found += [
            (text, other)
            for (_, t, _, b), other in open_boxes
            if t < bottom - 0.5 and top < b - 0.5
        ]
        open_boxes.append(((left, top, right, bottom), text))
    return found


@pytest.mark.parametrize("with_load", [False, True])
@pytest.mark.parametrize("expand", [("none",), ("0",), ("1", "2")])
@pytest.mark.parametrize("name", [*DESIGNS, "many-groups"])
def test_no_text_overlaps_and_all_is_on_the_page(name, expand, with_load):
    fabric = many_groups() if name == "many-groups" else fabric_of(name)
    if expand != ("none",) and fabric.group.max() < 2:  # without such groups, the first there is
        expand = (arrange(fabric, expand=("none",)).columns[0].label,)
    scene = compose(fabric, loads_of(fabric) if with_load else None, expand=expand)
    assert overlaps(scene.labels) == []
    for label in scene.labels:
        left, top, right, bottom = label.bounds
        assert left >= 0, label
        assert top >= 0, label
        assert right <= scene.width, label
        assert bottom <= scene.height, label


@pytest.mark.parametrize("name", DESIGNS)
def test_no_box_hides_another(name):
    scene = compose(fabric_of(name), expand=("none",))
    boxes = [box for box in scene.boxes if box.tip and box.opacity == 1.0]
    for row in {box.y for box in boxes}:
        ends = sorted((box.x, box.x + box.width) for box in boxes if box.y == row)
        assert all(a[1] < b[0] for a, b in itertools.pairwise(ends))


@pytest.mark.parametrize("expand", [("none",), ("0",)])
@pytest.mark.parametrize("name", ["superpod-b200-512", "hpn7-pod", "megascale-12k", "nvl72-8"])
def test_every_switch_host_and_cable_is_in_exactly_one_place(name, expand):
    fabric = fabric_of(name)
    tiers = arrange(fabric, expand=expand)
    hosts = [host for n in tiers.levels[0] for host in tiers.nodes[n].members]
    assert sorted(hosts) == list(range(len(fabric.host_names)))
    switches = [s for node in tiers.nodes if node.level for s in node.members]
    assert sorted(switches) == fabric.switches.tolist()
    drawn = np.sort(np.concatenate([bundle.cables for bundle in tiers.bundles]))
    assert np.array_equal(drawn, 2 * np.flatnonzero(fabric.link_network[::2]))
    assert tiers.n_cables == len(drawn)
    place = {s: n for n, node in enumerate(tiers.nodes) if node.level for s in node.members}
    for bundle in tiers.bundles:
        ends = fabric.link_src[bundle.links]
        seen = {place[end] for end in ends.tolist() if end in place}
        assert seen == {n for n in (bundle.lower, bundle.upper) if tiers.nodes[n].level}


def test_boxes_and_lines_of_a_collapsed_superpod_say_their_counts():
    fabric = fabric_of("superpod-b200-512")  # 16 scalable units of 32, under 64 cores
    tiers = arrange(fabric)
    assert tiers.collapsed
    assert len(tiers.columns) == 16
    scene = compose(fabric)
    texts = [label.text for label in scene.labels]
    assert texts.count("32 hosts \N{MIDDLE DOT} 256 GPUs") == 16
    assert texts.count("8 leaves") == texts.count("8 spines") == 16
    assert texts.count("64 cores") == 1
    assert texts.count("each line: 256 cables") == 3
    assert texts.count("= 102.4 Tbps") == 3
    assert texts.count("400 Gbps each") == 3
    assert {"Collapsed", "a column per group", "strip: the rails of its switches"} <= set(texts)
    assert len(scene.cables) == 3 * 16 + 1  # and the sample in the legend
    assert scene.boxes[0].tip == ""
    tips = {cable.tip for cable in scene.cables}
    assert "group 3 \N{EN DASH} leaf3.r0\N{EN DASH}leaf3.r7: 256 cables of 400 Gbps" in tips


def test_a_small_fabric_is_drawn_in_full_and_a_large_one_is_not():
    assert not arrange(fabric_of("superpod-h100-4su")).collapsed  # 1,016 GPUs
    assert not arrange(fabric_of("fat-tree-k16")).collapsed  # 1,024
    assert arrange(fabric_of("superpod-b200-256")).collapsed  # 2,048
    full = arrange(fabric_of("superpod-b200-256"), expand=("all",))
    assert not full.collapsed
    assert sum(node.level > 0 for node in full.nodes) == 96


def test_an_expanded_group_is_drawn_host_by_host_beside_the_others():
    tiers = arrange(fabric_of("superpod-b200-512"), expand=("3",))
    opened = next(i for i, column in enumerate(tiers.columns) if not column.collapsed)
    assert tiers.columns[opened].label == "3"
    inside = [node for node in tiers.nodes if node.column == opened]
    assert [node.name for node in inside if node.level == 0] == [f"h{h}" for h in range(96, 128)]
    assert [node.name for node in inside if node.level == 1] == [f"leaf3.r{r}" for r in range(8)]
    assert sum(node.level == 2 for node in inside) == 8
    others = [node for node in tiers.nodes if node.column != opened]
    assert all(node.collapsed for node in others)
    assert len(others) == 15 * 3 + 1


def test_many_groups_share_columns():
    tiers = arrange(many_groups(), expand=("none",))
    assert len(tiers.columns) == 44
    assert {column.count for column in tiers.columns} == {3, 1}
    assert tiers.columns[0].title == "groups 0\N{EN DASH}2"
    texts = [label.text for label in compose(many_groups(), expand=("none",)).labels]
    assert "a column for up to 3 groups in a row" in texts
    assert "0\N{EN DASH}2" in texts


def test_a_box_of_one_switch_bears_its_name():
    tiers = arrange(fabric_of("superpod-h100-1su-tor"), expand=("none",))  # a leaf per 4 hosts
    leaves = [tiers.nodes[number] for number in tiers.levels[1]]
    assert [(node.name, node.collapsed) for node in leaves] == [
        (f"leaf{number}", False) for number in range(8)
    ]
    assert [column.title for column in tiers.columns] == [f"hosts of leaf{n}" for n in range(8)]


def test_planes_lie_apart_and_are_tinted():
    fabric = fabric_of("hpn7-pod")  # 15 segments of 8 leaves in each of 2 planes, 60 spines each
    tiers = arrange(fabric)
    leaves = [tiers.nodes[n] for n in tiers.levels[1]]
    assert [len(node.members) for node in leaves] == [8] * 30
    assert [node.plane for node in leaves] == [0, 1] * 15
    spines = [tiers.nodes[n] for n in tiers.levels[2]]
    assert [(node.plane, len(node.members)) for node in spines] == [(0, 60), (1, 60)]
    for bundle in tiers.bands[1, 2]:
        assert tiers.nodes[bundle.lower].plane == tiers.nodes[bundle.upper].plane
    layout = lay_out(tiers)
    (_, x0, width0), (_, x1, _) = layout.planes[2]
    assert x0 + width0 < x1
    scene = compose(fabric)
    assert {box.fill for box in scene.bands} >= set(PLANE_FILLS[:2])
    assert len({cable.colour for cable in scene.cables if cable.tip}) == 2
    assert {"plane 0", "plane 1", "p0", "p1"} <= {label.text for label in scene.labels}


def test_pods_of_several_groups_have_their_spines_above_them():
    tiers = arrange(fabric_of("megascale-12k"))  # 24 sets of 64 servers, 6 pods of 4 sets
    spines = tiers.levels[2]
    assert [len(tiers.nodes[n].members) for n in spines] == [32] * 6
    places = lay_out(tiers).places
    for number in spines:
        below = [b.lower for b in tiers.bands[1, 2] if b.upper == number]
        assert len(below) == 4
    order = sorted(spines, key=lambda n: places[n].x)
    assert [tiers.nodes[n].members[0] for n in order] == sorted(
        tiers.nodes[n].members[0] for n in spines
    )


def test_racks_are_counted_and_joined_by_a_bar():
    fabric = fabric_of("nvl72-8")
    texts = [label.text for label in compose(fabric, expand=("none",)).labels]
    assert (
        sum("1 rack" in text and "72 GPUs" in text for text in texts) + texts.count("1 rack") == 8
    )
    scene = compose(fabric)
    bars = [box for box in scene.boxes if box.tip.endswith("NVSwitches of the rack")]
    assert [box.tip.split("/")[0] for box in bars] == [f"rack{i}" for i in range(8)]
    assert {f"rack{i}" for i in range(8)} <= {label.text for label in scene.labels}


def test_hosts_without_groups_collapse_by_their_leaf():
    tiers = arrange(unnamed(), expand=("none",))
    assert [column.label for column in tiers.columns] == ["sw0", "sw1", "sw2"]
    assert [len(column.hosts) for column in tiers.columns] == [2, 2, 2]
    assert [tiers.nodes[n].column for n in tiers.levels[1]] == [0, 1, 2]
    assert [tiers.nodes[n].column for n in tiers.levels[2]] == [-1]
    opened = arrange(unnamed(), expand=("sw1",))
    assert [node.name for node in opened.nodes if node.level == 0] == [
        "hosts of sw0",
        "h2",
        "h3",
        "hosts of sw2",
    ]


def test_load_of_a_bundle_is_its_hottest_link_and_its_mean():
    fabric = unnamed()
    load = np.zeros(fabric.n_links)
    name = {fabric.link_name(link): link for link in range(fabric.n_links)}
    load[name["h2/nic0:0>sw1:1"]] = 0.8
    load[name["sw1:2>h3/nic0:0"]] = 0.2
    scene = compose(fabric, LinkLoads("r", load, (load * 1e6).astype(np.int64)), expand=("none",))
    outer, inner = scene.cables[-3:-1]  # the last is the sample in the legend
    assert outer.tip == (
        "hosts of sw1 \N{EN DASH} sw1: 2 cables of 400 Gbps; "
        "busiest h2/nic0:0>sw1:1 80.00 %, mean 25.00 %"
    )
    assert (outer.colour, inner.colour) == (ramp(0.8), ramp(0.25))
    assert inner.width < outer.width / 2
    strip = [box.fill for box in scene.boxes if box.height == 7.0]
    assert strip.count(ramp(0.8)) == 1  # a host of the group
    assert strip.count(ramp(0.2)) == 1  # the other


def test_a_bundle_with_a_cable_down_says_so():
    fabric = unnamed()
    up = fabric.link_up.copy()
    up[:2] = False
    (tip,) = {
        cable.tip
        for cable in compose(fabric.with_links(up=up), expand=("none",)).cables
        if "down" in cable.tip
    }
    assert tip == "sw0 \N{EN DASH} top: 1 cable of 400 Gbps, 1 down"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("16", "there is no group '16' to expand; expected all, none, or a group: 0 to 15"),
        ("al", "did you mean 'all'?"),
        ("-1", "there is no group '-1'"),
    ],
)
def test_an_unknown_group_is_refused(asked, said):
    with pytest.raises(InputError, match="--expand") as caught:
        arrange(fabric_of("superpod-b200-512"), expand=(asked,))
    assert said in str(caught.value)


def test_the_command_expands_what_it_is_told(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def drawn(name, *words):
        assert cli.run_command_line(("topo", "draw", name, "-o", "a.svg", "--force", *words)) == 0
        root = ET.parse("a.svg").getroot()
        return {element.text for element in root.iter(f"{SVG}text")}

    none = drawn("superpod-h100-1su-tor", "--expand", "none")
    assert "4 hosts" in none
    assert "h3" not in none
    assert "h3" in drawn("superpod-h100-1su-tor")
    two = drawn("superpod-b200-256", "--expand", "0", "--expand", "7")
    assert two == drawn("superpod-b200-256", "--expand", "0,7")
    assert {"leaf0.r0", "leaf7.r7"} <= two
    assert "leaf1.r0" not in two
    assert cli.run_command_line(("topo", "draw", "superpod-b200-256", "--expand", "8")) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: --expand: ")


def test_same_fabric_same_bytes():
    one, two = (build_topology(load_topology("superpod-b200-256")) for _ in range(2))
    for form in ("svg", "dot"):
        assert draw(one, form=form, loads=loads_of(one)) == draw(
            two, form=form, loads=loads_of(two)
        )


def test_dot_is_collapsed_too():
    text = to_dot(fabric_of("superpod-b200-512"))
    edges = [line for line in text.splitlines() if " -- " in line]
    assert len(edges) == 3 * 16
    assert '"group 3" -- "leaf3.r0\N{EN DASH}leaf3.r7"' in text
    assert "256 cables of 400 Gbps" in text
    captions = [line for line in text.splitlines() if "shape=plaintext" in line]
    assert sum("= 102.4 Tbps" in line for line in captions) == 3
    labels = [line for line in text.splitlines() if "label=" in line and "tooltip=" in line]
    assert sum("8\\nleaves" in line or "8 leaves" in line for line in labels) == 16


def test_boxes_of_one_name_stay_two_in_dot():
    text = to_dot(unnamed(), expand=("none",))
    assert sum(" -- " in line for line in text.splitlines()) == 6
    assert '"hosts of sw0" -- sw0' in text


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
@pytest.mark.parametrize(("form", "head"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_graphviz_draws_it(form, head):
    assert draw(fabric_of("superpod-b200-512"), form=form).startswith(head)
