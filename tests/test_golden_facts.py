# SPDX-License-Identifier: Apache-2.0
"""Published facts of hosts and switches, and route sets of small fabrics pair by pair."""

import itertools

import networkx as nx
import numpy as np
import pytest

from railweave.fabric.devices import host_model, switch_model
from railweave.fabric.errors import InputError
from railweave.fabric.routing import Routing
from railweave.topologies import build_topology, load_topology

GBPS = 10**9


def test_a_dgx_a100_has_six_nvswitches_twelve_links_and_eight_nics():
    """The switches of a host are one device per domain here; `nvlink.planes` counts them."""
    host = host_model("dgx-a100")
    figures = {name: str(figure.value) for name, figure in host.figures.items()}
    assert (figures["nvlink.planes"], figures["nvlink.links"]) == ("6", "12")
    assert (host.gpus, host.nics) == (8, 8)


def test_tomahawk_4_has_64_ports_of_400g_and_spectrum_4_its_published_pool():
    tomahawk, spectrum = switch_model("tomahawk-4"), switch_model("spectrum-4")
    assert tomahawk.ports[400 * GBPS] == 64
    assert str(tomahawk.figures["capacity"].value) == "25.6Tbps"
    assert str(spectrum.figures["buffer"].value) == "133643264B"
    assert spectrum.ports == {800 * GBPS: 64, 400 * GBPS: 128, 200 * GBPS: 256}


def test_a_file_of_another_schema_is_told_that_first(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("schema: 0\nkind: rail-only\n")  # it has no name either
    with pytest.raises(InputError) as caught:
        load_topology(str(path))
    assert "schema 0, older than this version reads; expected 1" in str(caught.value)


SMALL = {
    "rail-optimized": {"hosts": {"count": 3, "model": "dgx-h100"}, "group": 2},
    "fat-tree": {"hosts": {"count": 3, "model": "dgx-h100"}, "tiers": 2},
    "rail-only": {"hosts": {"count": 3, "model": "dgx-h100"}},
    "multi-plane": {"hosts": {"count": 4, "model": "hgx-h100-2x200g"}, "planes": 2},
}


def small(kind):
    file = {"kind": kind, "leaf": {"switch": "spectrum-4"}, **SMALL[kind]}
    rate = "200Gbps" if kind == "multi-plane" else "400Gbps"
    file["links"] = {"host-leaf": {"rate": rate, "length": "3m"}}
    if kind != "rail-only":
        file["spine"] = {"switch": "spectrum-4", "count": 2}
        file["links"]["leaf-spine"] = {"rate": "400Gbps", "length": "3m"}
    if kind == "fat-tree":
        file["leaf"] = {"switch": "spectrum-4", "hosts": 1}
    return build_topology(load_topology(file))


@pytest.mark.parametrize("kind", SMALL)
def test_sprayed_links_are_those_of_all_shortest_paths_for_every_pair(kind):
    fabric = small(kind)
    graph = nx.DiGraph()
    for k in np.flatnonzero(fabric.link_network & fabric.link_up).tolist():
        graph.add_edge(int(fabric.link_src[k]), int(fabric.link_dst[k]))
    pairs = [
        (a, b)
        for a, b in itertools.permutations(fabric.nics.tolist(), 2)
        if fabric.host[a] != fabric.host[b]
    ]
    routing = Routing(fabric, policy="spray")
    looked = 0
    for a, b in pairs:
        try:
            found = routing.routes(
                np.array([a], np.int32), np.array([b], np.int32), np.zeros(1, np.int32)
            )
        except InputError:
            assert kind == "rail-only"
            assert fabric.rail[a] != fabric.rail[b]
            continue
        through = nx.DiGraph(
            step for path in nx.all_shortest_paths(graph, a, b) for step in itertools.pairwise(path)
        )
        used = {(int(fabric.link_src[k]), int(fabric.link_dst[k])) for k in links_of(found)}
        assert used == set(through.edges), (fabric.device_names[a], fabric.device_names[b])
        looked += 1
    assert looked >= 48


def links_of(found):
    return np.asarray(found.links).tolist()
