# SPDX-License-Identifier: Apache-2.0
"""Inside a host: what its parts hang on, which way bytes take, and how much gets through."""

import itertools
from collections import Counter

import numpy as np
import pytest

from railweave.fabric.catalogue import catalogue_names
from railweave.fabric.devices import host_model, rack_model
from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.engines import make_engine
from railweave.fabric.errors import UnreachableError
from railweave.fabric.faults import Fault, apply_faults
from railweave.fabric.flow import Flow
from railweave.fabric.graph import DeviceKind, FabricBuilder, LinkModel
from railweave.fabric.network import NetworkSettings
from railweave.fabric.paths import limiting_links
from railweave.fabric.routing import Routing
from railweave.topologies import build_topology, load_topology
from railweave.topologies.hosts import add_host

MBPS = 10**6


def one_leaf(model, *, hosts=2, planes=False):
    """Hosts of one model with every NIC on one switch, each at its full rate."""
    build = FabricBuilder("bench")
    host = host_model(model)
    leaf = build.add_device("leaf0", DeviceKind.SWITCH, tier=1)
    plane = build.add_device("nvs0", DeviceKind.NVSWITCH) if planes else None
    for h in range(hosts):
        for nic in add_host(build, f"h{h}", host, plane=plane).values():
            build.add_cable(
                nic,
                leaf,
                rate_bps=host.nic.rate_bps if host.nic else 400 * 10**9,
                delay_ps=500_000,
                model=LinkModel.ROCE_LOSSLESS,
                tier="host-leaf",
                a_port=0,
            )
    return build.finish()


def way(fabric, src, dst):
    """Return the devices on the path from one GPU to another, and its narrowest MB/s."""
    links = list(Routing(fabric).routes([fabric.device(src)], [fabric.device(dst)]).links)
    names = [fabric.device_names[fabric.link_src[links[0]]]]
    names += [fabric.device_names[fabric.link_dst[link]] for link in links]
    narrowest = min(int(fabric.link_rate_bps[link]) for link in links)
    return [name.removeprefix("h0/") for name in names], narrowest / 8 / MBPS


INSIDE = {  # the way from the first GPU to another, and its MB/s
    ("dgx-h100", 5): (["gpu0", "nvs0", "gpu5"], 370_800),
    ("dgx-a100", 1): (["gpu0", "nvs0", "gpu1"], 240_000),
    ("dgx-b200", 7): (["gpu0", "nvs0", "gpu7"], 721_800),
    ("gb200-tray", 3): (["gpu0", "nvs0", "gpu3"], 721_800),
    # one PCIe switch; two CPU sockets
    ("l40s-8", 3): (["gpu0", "pcie0", "gpu3"], 27_370),
    ("l40s-8", 4): (["gpu0", "pcie0", "cpu0", "cpu1", "pcie1", "gpu4"], 8_211),
    ("rtx-pro-6000-8", 2): (["gpu0", "pcie0", "gpu2"], 54_730),
    ("rtx-pro-6000-8", 6): (["gpu0", "pcie0", "cpu0", "cpu1", "pcie1", "gpu6"], 16_419),
    # one CPU root without a PCIe switch; two
    ("t4-8", 3): (["gpu0", "cpu0", "gpu3"], 6_840),
    ("t4-8", 7): (["gpu0", "cpu0", "cpu1", "gpu7"], 4_104),
}


@pytest.mark.parametrize(("model", "other"), INSIDE)
def test_the_way_between_gpus_of_a_host(model, other):
    names, narrowest = INSIDE[model, other]
    assert way(one_leaf(model), "h0/gpu0", f"h0/gpu{other}") == (names, narrowest)


OUTWARD = {  # from the last GPU to the same one of the next host: what lies before the NIC
    "dgx-a100": (["gpu7", "pcie3", "nic7"], 25_000),
    "dgx-h100": (["gpu7", "pcie7", "nic7"], 50_000),
    "dgx-b300": (["gpu7", "pcie7", "nic7"], 100_000),
    "aws-p5en": (["gpu7", "pcie7", "nic14"], 25_000),  # the first of its two
    "gb200-tray": (["gpu3", "cpu1", "nic3"], 50_000),
    "l40s-8": (["gpu7", "pcie1", "nic3"], 25_000),
    "t4-8": (["gpu7", "cpu1", "cpu0", "nic0"], 4_104),  # its NIC sits on the other socket
}


@pytest.mark.parametrize("model", OUTWARD)
def test_the_way_to_the_nic(model):
    before, narrowest = OUTWARD[model]
    last = f"gpu{host_model(model).gpus - 1}"
    names, found = way(one_leaf(model), f"h0/{last}", f"h1/{last}")
    assert names[: len(before) + 1] == [*before, "leaf0"]
    assert names[len(before) + 1 :] == [f"h1/{name}" for name in reversed(before)]
    assert found == narrowest


@pytest.mark.parametrize("model", catalogue_names("hosts"))
def test_all_gpus_of_two_hosts_reach_each_other(model):
    fabric = one_leaf(model)
    ends = itertools.permutations(fabric.gpus.tolist(), 2)
    src, dst = np.array(list(ends), np.int32).T
    assert len(Routing(fabric).routes(src, dst)) == len(src)


@pytest.mark.parametrize("model", catalogue_names("hosts"))
def test_parts_hang_where_the_catalogue_says(model):
    host = host_model(model)
    fabric = one_leaf(model, hosts=1)
    kinds = Counter(DeviceKind(kind).name for kind in fabric.kind.tolist())
    assert (kinds["GPU"], kinds["CPU"], kinds["PCIE_SWITCH"]) == (host.gpus, host.cpus, host.trees)
    assert (kinds["NVSWITCH"] == 1) == (host.nvlink is not None)
    pcie = (fabric.link_model == LinkModel.PCIE).sum() // 2
    sockets = host.cpus * (host.cpus - 1) // 2 if host.socket else 0
    parts = host.gpus + (host.nics or 0) if host.cpus else 1
    assert pcie == parts + host.trees + sockets
    graph = fabric.graph
    for root, tree in zip(host.gpu_root, host.gpu_tree, strict=True):
        assert (root, tree) == (root, -1) or host.tree_root[tree] == root
    for gpu, (root, tree) in enumerate(zip(host.gpu_root, host.gpu_tree, strict=True)):
        holder = f"h0/pcie{tree}" if tree >= 0 else f"h0/cpu{root}"
        assert graph.has_edge(f"h0/gpu{gpu}", holder)
        if tree >= 0:
            assert graph.has_edge(holder, f"h0/cpu{root}")


def test_gpus_of_an_nvlink_host_never_cross_its_cpus():
    """GPUs that NVLink no longer joins use their NICs, or are cut off without them."""
    fabric = apply_faults(one_leaf("dgx-h100"), [Fault(node="h0/nvs0")])
    assert not fabric.forwards[[fabric.device(f"h0/cpu{i}") for i in (0, 1)]].any()
    names, narrowest = way(fabric, "h0/gpu0", "h0/gpu1")
    assert names == ["gpu0", "pcie0", "nic0", "leaf0", "nic1", "pcie1", "gpu1"]
    assert narrowest == 50_000
    cut = apply_faults(fabric, [Fault(node="h0/nic1")])
    with pytest.raises(UnreachableError, match="'h0/gpu0' to 'h0/gpu1'"):
        way(cut, "h0/gpu0", "h0/gpu1")


def test_idle_cpu_roots_add_nothing_to_the_rate_computation():
    """Behind the PCIe switch of a DGX only the narrower of two links in series is kept."""
    fabric = one_leaf("dgx-h100", hosts=1)
    limiting = limiting_links(fabric, np.ones(fabric.n_links))
    pcie = fabric.link_model == LinkModel.PCIE
    touches_cpu = (fabric.kind[fabric.link_src] == DeviceKind.CPU) | (
        fabric.kind[fabric.link_dst] == DeviceKind.CPU
    )
    # of GPU > switch > NIC > leaf, and back, only the cable of 400G can limit
    assert not limiting[pcie & ~touches_cpu].any()
    assert limiting[fabric.link_network].all()


def test_a_failed_nvlink_plane_takes_its_share():
    host = host_model("dgx-h100")
    assert host.nvlink is not None
    assert host.nvlink.planes == 4
    left = host.nvlink.without_planes_bps(1)
    assert left == 3 * host.nvlink.rate_bps // 4
    assert host.nvlink.without_planes_bps(0) == host.nvlink.rate_bps
    assert host.nvlink.without_planes_bps(4) == host.nvlink.without_planes_bps(9) == 0
    fabric = apply_faults(
        one_leaf("dgx-h100", hosts=1), [Fault(node="h0/nvs0", do="degrade", rate_bps=left)]
    )
    assert way(fabric, "h0/gpu0", "h0/gpu1") == (["gpu0", "nvs0", "gpu1"], 278_100)


def test_a_rack_is_one_nvlink_domain():
    rack = rack_model("nvl72")
    assert (rack.hosts, rack.host.gpus, rack.gpus, rack.switch_trays) == (18, 4, 72, 9)
    assert rack.host.nvlink is not None
    assert rack.host.nvlink.planes == 2 * rack.switch_trays
    fabric = one_leaf("gb200-tray", planes=True)
    assert way(fabric, "h0/gpu0", "h1/gpu3") == (["gpu0", "nvs0", "h1/gpu3"], 721_800)


def test_nvlink_rates_are_links_times_what_nccl_counts_on():
    """And none is a marketing total: 600, 900 or 1,800 GB/s count both directions."""
    per_link = {12: {20.0: 300}, 18: {20.6: 450, 40.1: 900}}
    for name in catalogue_names("hosts"):
        host = host_model(name)
        if host.nvlink is None:
            continue
        links = host.figures["nvlink.links"].value
        usable = host.nvlink.rate_bps / 8e9
        raw = {round(links * each, 1): top for each, top in per_link[links].items()}
        assert usable in raw, name
        assert usable < raw[usable]


@pytest.mark.parametrize("senders", [(1,), (1, 2, 3)])
def test_gpus_share_the_links_of_a_root(senders):
    """Flows into one GPU of a T4 host share its link to the root: 6.84 GB/s in all."""
    fabric, env = one_leaf("t4-8", hosts=1), FabricEnvironment()
    engine = make_engine("fluid", env, fabric, Routing(fabric), NetworkSettings())
    done = [
        engine.send(
            Flow(
                id=f"f{gpu}",
                src=fabric.device(f"h0/gpu{gpu}"),
                dst=fabric.device("h0/gpu0"),
                size_bytes=684 * 10**6,
            )
        )
        for gpu in senders
    ]
    for event in done:
        env.run(event)
    latency_ps = 2 * 300_000
    assert env.now == len(senders) * 10**11 + latency_ps


GOODPUT = {  # GB/s of one long flow between GPUs of two hosts, and what limits it
    "dgx-h100": ("400Gbps", None, 49.02),  # the network: Gen5 carries 54.73
    "dgx-a100": ("200Gbps", None, 24.51),  # the network: Gen4 carries 27.37
    "dgx-a100 with 400G": ("400Gbps", "connectx-7", 27.37),  # PCIe Gen4
    "dgx-b300": ("800Gbps", None, 98.04),  # the network: Gen6 carries 110
    "l40s-8": ("200Gbps", None, 24.51),  # the network, behind a PCIe switch
    "t4-8": ("100Gbps", None, 4.104),  # the link between the sockets: GPU 7 is far from the NIC
}


@pytest.mark.parametrize("case", GOODPUT)
def test_goodput_from_gpu_to_gpu(case):
    rate, nic, expected = GOODPUT[case]
    hosts = {"count": 2, "model": case.split()[0]} | ({"nic": nic} if nic else {})
    cable = {"rate": rate, "length": "3m"}
    fabric = build_topology(
        load_topology(
            {
                "kind": "rail-only",
                "hosts": hosts,
                "leaf": {"switch": "spectrum-4"},
                "links": {"host-leaf": cable},
            }
        )
    )
    env = FabricEnvironment()
    quiet = NetworkSettings(ack_every=0)
    engine = make_engine("fluid", env, fabric, Routing(fabric), quiet)
    size = 10**10
    env.run(
        engine.send(
            Flow(
                id="f",
                src=fabric.device("h0/gpu7"),
                dst=fabric.device("h1/gpu7"),
                size_bytes=size,
            )
        )
    )
    assert size / env.now * 1e3 == pytest.approx(expected, rel=2e-4)
