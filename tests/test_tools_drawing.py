# SPDX-License-Identifier: Apache-2.0
"""Drawings: complete, readable, the same bytes every time."""

import itertools
import xml.etree.ElementTree as ET

import networkx as nx
import numpy as np
import pytest

from railweave.fabric.errors import InputError, MissingToolError
from railweave.fabric.graph import DeviceKind, FabricBuilder, LinkModel
from railweave.tools.drawing import compose
from railweave.tools.export import to_node_link
from railweave.tools.layout import lay_out
from railweave.tools.overlay import LinkLoads, read_link_loads
from railweave.tools.palette import RAMP, ramp
from railweave.tools.render import draw, to_dot
from railweave.tools.render_svg import to_svg
from railweave.tools.tiers import arrange
from railweave.topologies.load import build_topology, load_topology

SVG = "{http://www.w3.org/2000/svg}"
GBPS = 10**9
DESIGNS = ("h100-rail-8", "h100-rail-1su", "superpod-h100-1su-tor", "fat-tree-k16")


def fabric_of(name):
    return build_topology(load_topology(name))


def loads_of(fabric, seed=7):
    load = np.random.default_rng(seed).beta(1, 4, fabric.n_links)
    load[::3] = 0
    return LinkLoads("demo", load, (load * 1e9).astype(np.int64))


def four_groups():
    """128 hosts in 4 groups, 32 leaves, 16 spines: the 1,024-GPU rail-optimized shape."""
    build = FabricBuilder("four-groups")
    nics = []
    for h in range(128):
        host = build.add_host(f"h{h}")
        for i in range(8):
            nic = build.add_device(
                f"h{h}/nic{i}", DeviceKind.NIC, host=host, index=i, group=h // 32, rail=i
            )
            nics.append((nic, h // 32, i))
    leaves = {
        (g, r): build.add_device(
            f"leaf{g}.r{r}", DeviceKind.SWITCH, index=8 * g + r, tier=1, group=g, rail=r
        )
        for g in range(4)
        for r in range(8)
    }
    spines = [build.add_device(f"spine{s}", DeviceKind.SWITCH, tier=2) for s in range(16)]
    cable = {"rate_bps": 400 * GBPS, "delay_ps": 50_000, "model": LinkModel.ROCE_LOSSLESS}
    for nic, group, rail in nics:
        build.add_cable(nic, leaves[group, rail], tier="host-leaf", **cable)
    for leaf, spine in itertools.product(leaves.values(), spines):
        for _ in range(2):
            build.add_cable(leaf, spine, tier="leaf-spine", **cable)
    return build.finish()


def untiered(*, down=()):
    """Two edge switches joined by three cables, and a third above them; no tier is named."""
    build = FabricBuilder("untiered")
    cable = {"rate_bps": 100 * GBPS, "delay_ps": 500_000, "model": LinkModel.ROCE_LOSSLESS}
    hosts = []
    for h in range(4):
        host = build.add_host(f"h{h}")
        hosts.append(build.add_device(f"h{h}/nic0", DeviceKind.NIC, host=host))
    s0, s1, s2 = (build.add_device(f"s{i}", DeviceKind.SWITCH, index=i) for i in range(3))
    for h, nic in enumerate(hosts):
        build.add_cable(nic, (s0, s1)[h % 2], **cable)
    for _ in range(3):
        build.add_cable(s0, s1, **cable)
    build.add_cable(s0, s2, **cable)
    build.add_cable(s2, s1, **cable)
    fabric = build.finish()
    up = fabric.link_up.copy()
    up[list(down)] = False
    return fabric.with_links(up=up)


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
@pytest.mark.parametrize("name", [*DESIGNS, "four-groups", "untiered"])
def test_no_text_overlaps_and_all_is_on_the_page(name, with_load):
    made = {"four-groups": four_groups, "untiered": untiered}
    fabric = made[name]() if name in made else fabric_of(name)
    scene = compose(fabric, loads_of(fabric) if with_load else None)
    assert overlaps(scene.labels) == []
    for label in scene.labels:
        left, top, right, bottom = label.bounds
        assert left >= 0, label
        assert top >= 0, label
        assert right <= scene.width, label
        assert bottom <= scene.height, label


def test_overlap_finder_finds_an_overlap():
    scene = compose(fabric_of("h100-rail-8"))
    assert overlaps([*scene.labels, scene.labels[5]]) != []


@pytest.mark.parametrize("name", DESIGNS)
def test_svg_names_every_switch_and_is_well_formed(name):
    fabric = fabric_of(name)
    root = ET.fromstring(draw(fabric))
    texts = {element.text for element in root.iter(f"{SVG}text")}
    assert {fabric.device_names[s] for s in fabric.switches} <= texts
    assert fabric.name in texts


def test_a_line_per_pair_with_its_number_of_cables():
    fabric = fabric_of("h100-rail-8")  # 8 leaves to 2 spines, 4 cables each; 64 host cables
    tiers = arrange(fabric)
    spans = [bundle for bundle in tiers.bundles if bundle.tier == "leaf-spine"]
    assert [len(bundle.cables) for bundle in spans] == [4] * 16
    scene = compose(fabric)
    assert len(scene.cables) == 16 + 64
    assert [label.text for label in scene.labels].count("\N{MULTIPLICATION SIGN}4") == 16
    widths = {round(cable.width, 2) for cable in scene.cables}
    assert len(widths) == 2
    assert "each line: 4 cables" in {label.text for label in scene.labels}


def test_every_network_cable_is_in_exactly_one_bundle():
    for fabric in (fabric_of("fat-tree-k16"), four_groups()):
        drawn = sorted(c for bundle in arrange(fabric).bundles for c in bundle.cables)
        assert drawn == (2 * np.flatnonzero(fabric.link_network[::2])).tolist()


def test_rails_have_colours_and_a_legend():
    scene = compose(fabric_of("h100-rail-1su"))
    texts = [label.text for label in scene.labels]
    assert [f"r{i}" for i in range(8)] == [
        text for text in texts if text[:1] == "r" and text[1:].isdigit()
    ]
    assert len({cable.colour for cable in scene.cables}) == 8
    plain = compose(fabric_of("h100-tor-1su"))
    assert len({cable.colour for cable in plain.cables}) == 1
    assert "Rails" not in {label.text for label in plain.labels}


def test_many_hosts_are_stacked_below_their_leaf():
    tiers = arrange(fabric_of("fat-tree-k16"))
    stacks = tiers.levels[0]
    assert [len(tiers.nodes[number].members) for number in stacks] == [8] * 128
    assert lay_out(tiers).host.stacked
    places = lay_out(tiers).places
    for bundle in tiers.bands[0, 1]:
        assert places[bundle.lower].x == pytest.approx(places[bundle.upper].x, abs=0.01)


def test_levels_without_tiers_are_counted_from_the_hosts():
    tiers = arrange(untiered())
    level = {node.name: node.level for node in tiers.nodes if node.level}
    assert level == {"s0": 1, "s1": 1, "s2": 2}
    assert tiers.level_name(2) == "switch level 2"


def test_a_cable_that_is_down_is_dashed():
    scene = compose(untiered(down=(0, 1)))
    assert [cable.tip for cable in scene.cables if cable.dashed and cable.tip] == [
        "h0/nic0 \N{EN DASH} s0: 1 cable of 100 Gbps, 1 down"
    ]
    assert "cable that is down" in {label.text for label in scene.labels}
    assert not any(cable.dashed for cable in compose(untiered()).cables)


def test_load_is_colour_width_order_and_list():
    fabric = untiered()
    load = np.zeros(fabric.n_links)
    load[8] = 0.5  # the first of three parallel cables s0 > s1
    load[1] = 0.02
    scene = compose(fabric, LinkLoads("r1", load, (load * 1e6).astype(np.int64)))
    hottest = scene.cables[-1]
    assert (
        hottest.tip
        == "s0 \N{EN DASH} s1: 3 cables of 100 Gbps; busiest s0:2>s1:2 50.00 %, mean 8.33 %"
    )
    assert hottest.colour == ramp(0.5)
    assert hottest.width == max(cable.width for cable in scene.cables)
    texts = [label.text for label in scene.labels]
    assert [text for text in texts if text.endswith(" %")] == ["100 %", "50.0 %", "2.0 %"]
    assert texts.index("s0:2>s1:2") < texts.index("s0:0>h0/nic0:0")


def test_ramp_darkens_all_the_way():
    def lightness(colour):
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))  # relative luminance, WCAG 2

    lights = [lightness(ramp(k / 50)) for k in range(51)]
    assert all(a > b for a, b in itertools.pairwise(lights))
    assert ramp(-1) == RAMP[0]
    assert ramp(2) == RAMP[-1]


def test_same_fabric_same_bytes():
    for form in ("svg", "dot"):
        one, two = (fabric_of("h100-rail-8") for _ in range(2))
        assert draw(one, form=form, loads=loads_of(one)) == draw(
            two, form=form, loads=loads_of(two)
        )


def test_names_are_escaped():
    build = FabricBuilder('a<b>&"c"')
    build.add_device("s<0>", DeviceKind.SWITCH, tier=1)
    root = ET.fromstring(to_svg(compose(build.finish())))
    assert {'a<b>&"c"', "s<0>"} <= {element.text for element in root.iter(f"{SVG}text")}


def test_dot_edges_run_from_lower_to_higher_tier():
    fabric = fabric_of("h100-rail-8")
    rank = {"h": 0, "l": 1, "s": 2}
    edges = [
        line.split("[")[0].split(" -- ") for line in to_dot(fabric).splitlines() if " -- " in line
    ]
    assert len(edges) == 16 + 64
    for lower, upper in edges:
        assert rank[lower.strip().strip('"')[0]] + 1 == rank[upper.strip().strip('"')[0]]


def test_missing_graphviz_says_how_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(MissingToolError, match="apt-get install graphviz") as caught:
        draw(untiered(), form="png")
    assert caught.value.exit_code == 3


def test_node_link_gives_the_graph_back():
    import json

    fabric = fabric_of("h100-rail-8")
    data = json.loads(to_node_link(fabric))
    assert data["schema"] == 1
    again = nx.node_link_graph(data, edges="edges")
    assert nx.utils.graphs_equal(again, nx.MultiDiGraph(fabric.graph))
    assert again.number_of_edges() == fabric.n_links


def test_link_loads_are_read_from_a_run_folder(tmp_path):
    fabric = untiered()
    rows = [f"{fabric.link_name(k)},a,b,1,{k * 10},{k / 100}" for k in range(fabric.n_links)]
    head = "link,src,dst,rate_bps,wire_bytes,utilisation"
    (tmp_path / "links.csv").write_text("\n".join([head, *rows]) + "\n")
    loads = read_link_loads(tmp_path, fabric)
    assert loads.run == tmp_path.name
    assert loads.wire_bytes.tolist() == [10 * k for k in range(fabric.n_links)]
    assert loads.hottest(2) == [fabric.n_links - 1, fabric.n_links - 2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("link,utilisation\n", "links.csv:1: has no column wire_bytes"),
        (
            "link,wire_bytes,utilisation\ns0:2>s1:9,1,0.5\n",
            "links.csv:2: link: 's0:2>s1:9' is not a",
        ),
        ("link,wire_bytes,utilisation\ns0:2>s1:2,many,0.5\n", "links.csv:2: holds something"),
        (None, "links.csv: cannot be read: No such file"),
    ],
)
def test_a_run_of_another_fabric_is_refused(tmp_path, text, said):
    if text is not None:
        (tmp_path / "links.csv").write_text(text)
    with pytest.raises(InputError, match=said):
        read_link_loads(tmp_path, untiered())
