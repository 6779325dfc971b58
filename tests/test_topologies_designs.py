# SPDX-License-Identifier: Apache-2.0
"""The shipped designs against the counts that their sources publish."""

from collections import Counter
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from railweave.fabric._tables import nvlink_domains
from railweave.fabric.devices import host_model
from railweave.fabric.graph import DeviceKind
from railweave.topologies import build_topology, load_topology, shipped_designs
from railweave.topologies.checks import check
from railweave.topologies.summary import oversubscription, summarise

GBPS = 10**9

# Published counts of compute fabrics: nodes, GPUs, (leaf, spine, core) switches.
# B200: NVIDIA DGX SuperPOD reference architecture for DGX B200, table of switches by nodes.
# H100: RA-11333-001, one scalable unit and 4 (127 nodes: one place is the fabric manager's).
# B300: DGX SuperPOD reference architecture for DGX B300 (Ethernet), units of 64 nodes.
# HPN: Qian et al., SIGCOMM 2024: 15 segments of 1,024 GPUs, per plane 120 ToRs, 60 aggregations.
PUBLISHED = {
    "superpod-b200-64": (64, 512, (16, 8, 0)),
    "superpod-b200-128": (128, 1024, (32, 16, 0)),
    "superpod-b200-256": (256, 2048, (64, 32, 0)),
    "superpod-b200-512": (512, 4096, (128, 128, 64)),
    "superpod-b200-1024": (1024, 8192, (256, 256, 128)),
    "superpod-b200-2048": (2048, 16384, (512, 512, 256)),
    "superpod-h100-1su": (32, 256, (8, 4, 0)),
    "superpod-h100-4su": (127, 1016, (32, 16, 0)),
    "superpod-b300-1su": (64, 512, (16, 8, 0)),
    "superpod-b300-8su": (512, 4096, (128, 64, 0)),
    "hpn7-segment": (128, 1024, (16, 120, 0)),
    "hpn7-pod": (1920, 15360, (240, 120, 0)),
}

# Counts of designs whose sources leave some of them open, and of twins and labs of this project.
DERIVED = {
    "meta-24k": (3072, 24576, (1536, 128, 16)),
    "megascale-12k": (1536, 12288, (192, 192, 128)),
    "nvl72-8": (144, 576, (32, 9, 0)),
    "superpod-h100-1su-tor": (32, 256, (8, 4, 0)),
    "h100-rail-1su": (32, 256, (8, 2, 0)),
    "h100-tor-1su": (32, 256, (8, 2, 0)),
    "h100-rail-8": (8, 64, (8, 2, 0)),
    "h100-rail-512": (64, 512, (8, 4, 0)),
    "h100-tor-512": (64, 512, (8, 4, 0)),
    "h100-rail-only-512": (64, 512, (8, 0, 0)),
    "h100-tapered-512": (64, 512, (8, 2, 0)),
    "h100-dual-plane-512": (64, 512, (16, 4, 0)),
    "fat-tree-k16": (1024, 1024, (128, 128, 64)),
    "loopback-host": (1, 4, (0, 0, 0)),
}
COUNTS = PUBLISHED | DERIVED

CABLES = {  # host-leaf, leaf-spine, spine-core; all others: as many in each tier as GPUs
    "superpod-h100-4su": (1016, 1024, 0),
    "superpod-b300-1su": (1024, 1024, 0),
    "superpod-b300-8su": (8192, 8192, 0),
    "hpn7-segment": (2048, 16 * 60, 0),
    "hpn7-pod": (30720, 240 * 60, 0),
    "meta-24k": (24576, 2 * 24576, 128 * 55),
    "megascale-12k": (12288, 12288 // 2, 12288 // 2),
    "h100-rail-only-512": (512, 0, 0),
    "h100-tapered-512": (512, 256, 0),
    "h100-dual-plane-512": (1024, 512, 0),
    "loopback-host": (0, 0, 0),
}

FINDINGS = {  # what `topo check` truly finds; nothing elsewhere
    "meta-24k": [("info", "oversubscription", "spine: declared 7:1, built 6.982:1")],
    "h100-rail-only-512": [
        (
            "info",
            "rails-apart",
            f"{64 * 63 * 8 * 7:,} ordered pairs of GPUs are on rails that nothing joins, h0/gpu0 "
            "and h1/gpu1 first: their bytes must be passed on over NVLink; "
            + "; ".join(
                f"h[0-63]/gpu{rail} and h[0-63]/gpu{others}, but those that NVLink or PCIe joins "
                f"({2 * 64 * 63 * (7 - rail):,} pairs)"
                for rail, others in enumerate([*(f"[{rail}-7]" for rail in range(1, 7)), "7"])
            ),
        )
    ],
}


@cache
def design(name):
    return build_topology(load_topology(name))


def ports_of(fabric, switch):
    """Count the ports of a switch by tier of their cable and rate in Gb/s."""
    links = np.flatnonzero(fabric.link_src == fabric.device(switch)).tolist()
    return Counter((fabric.link_tier[i], int(fabric.link_rate_bps[i]) // GBPS) for i in links)


def test_every_design_has_its_counts_here():
    assert set(shipped_designs()) == set(COUNTS)


@pytest.mark.parametrize("name", COUNTS)
def test_counts(name):
    spec, fabric = load_topology(name), design(name)
    found = summarise(fabric)
    assert spec.name == fabric.name == name
    assert spec.model.source
    counts = found["hosts"], found["gpus"], tuple(found["switches"].values())
    assert counts == COUNTS[name]
    cables = tuple(found["cables"].values())
    gpus = found["gpus"]
    assert cables == CABLES.get(name, (gpus, gpus, gpus if counts[2][2] else 0))


@pytest.mark.parametrize("name", COUNTS)
def test_check_finds_what_is_true_and_nothing_else(name):
    found = check(design(name), load_topology(name))
    assert [(f.level, f.rule, f.message) for f in found] == FINDINGS.get(name, [])
    built = [f for f in found if f.rule == "oversubscription"]  # below what is declared
    assert all("has more bandwidth than declared" in f.why for f in built)


@pytest.mark.parametrize("name", COUNTS)
def test_the_head_of_the_file_says_what_it_is_in_one_line(name):
    lines = shipped_designs()[name].read_text("utf-8").splitlines()
    assert lines[0] == "# SPDX-License-Identifier: Apache-2.0"
    assert lines[1].startswith("# ")
    assert lines[1].endswith(".")
    assert lines[2] == "schema: 1"


@pytest.mark.parametrize("name", [name for name in COUNTS if COUNTS[name][1] <= 8192])
def test_content_of_a_model_builds_the_same_fabric(name):
    spec, one = load_topology(name), design(name)
    again = load_topology(spec.model.content())
    assert again.sha256 == spec.sha256
    two = build_topology(again)
    assert one.device_names == two.device_names
    assert np.array_equal(one.link_rate_bps, two.link_rate_bps)
    assert np.array_equal(one.link_dst, two.link_dst)


def test_the_bill_of_the_h100_superpod():
    """RA-11333-001, appendix: 2,040 cables, 508 modules in hosts, 1,536 in 48 switches."""
    found = summarise(design("superpod-h100-4su"))
    assert sum(found["cables"].values()) == 2040
    assert sum(found["switches"].values()) == 48
    modules_of_a_host, cages_of_a_switch = 4, 32  # twin-port: two links a module
    assert found["hosts"] * modules_of_a_host == 508
    assert 48 * cages_of_a_switch == 1536
    # every port is taken but those of the fabric manager's place
    full = sum(1 for i in range(4) for r in range(8) if _used("superpod-h100-4su", i, r) == 64)
    assert full == 3 * 8


def _used(name, group, rail):
    return sum(ports_of(design(name), f"leaf{group}.r{rail}").values())


@pytest.mark.parametrize("name", ["hpn7-segment", "hpn7-pod"])
def test_hpn_has_two_planes_of_tors_with_128_ports_down_and_60_up(name):
    fabric = design(name)
    segments = COUNTS[name][0] // 128
    for plane in (0, 1):
        tors = [f"leaf{s}.r{r}.p{plane}" for s in range(segments) for r in range(8)]
        assert set(tors) <= set(fabric.device_names)
        for tor in (tors[0], tors[-1]):
            assert ports_of(fabric, tor) == {("host-leaf", 200): 128, ("leaf-spine", 400): 60}
        spines = [
            n for n in fabric.device_names if n.startswith("spine") and n.endswith(f"p{plane}")
        ]
        assert len(spines) == 60
        assert ports_of(fabric, spines[0]) == {("leaf-spine", 400): 8 * segments}
    assert oversubscription(fabric)["leaf"] == Fraction(16, 15)  # 25.6 : 24 Tb/s
    nic = fabric.device("h5/nic3")
    homes = fabric.link_dst[(fabric.link_src == nic) & fabric.link_network]
    assert [fabric.device_names[i] for i in homes] == ["leaf0.r3.p0", "leaf0.r3.p1"]


@pytest.mark.parametrize("name", ["superpod-b300-1su", "superpod-b300-8su"])
def test_b300_leaves_use_all_128_ports(name):
    fabric = design(name)
    assert ports_of(fabric, "leaf0.r7.p1") == {("host-leaf", 400): 64, ("leaf-spine", 400): 64}
    assert ports_of(fabric, "spine0.p0") == {("leaf-spine", 400): 128}


def test_meta_pods():
    fabric = design("meta-24k")
    pods = Counter(fabric.group[fabric.gpus].tolist())
    assert pods == dict.fromkeys(range(8), 3072)
    # two servers a rack, twice the bandwidth up
    assert ports_of(fabric, "leaf0") == {("host-leaf", 400): 16, ("leaf-spine", 400): 32}
    assert oversubscription(fabric) == {"leaf": Fraction(1, 2), "spine": Fraction(384, 55)}


def test_megascale_sets():
    fabric = design("megascale-12k")
    assert ports_of(fabric, "leaf5.r2") == {("host-leaf", 200): 64, ("leaf-spine", 400): 32}
    assert ports_of(fabric, "spine0") == {("leaf-spine", 400): 32, ("spine-core", 400): 32}
    nics = fabric.parts("h70", DeviceKind.NIC)
    homes = fabric.link_dst[np.isin(fabric.link_src, nics) & fabric.link_network]
    assert [fabric.device_names[i] for i in homes] == [f"leaf1.r{r}" for r in range(8)]


def test_nvl72_racks_are_nvlink_domains():
    fabric = design("nvl72-8")
    domains = nvlink_domains(fabric)[fabric.gpus]
    assert sorted(Counter(domains.tolist()).values()) == [72] * 8
    nvlink = host_model("gb200-tray").figures["nvlink.links"].value
    assert nvlink == 18  # one to each chip: 1.8 TB/s both directions, 100 GB/s a link
    assert ports_of(fabric, "leaf0.r0") == {("host-leaf", 400): 18, ("leaf-spine", 400): 18}


def test_twins_of_512_gpus_differ_in_wiring_alone():
    rail, tor, only = (design(f"h100-{kind}-512") for kind in ("rail", "tor", "rail-only"))
    models = [Counter(zip(f.kind.tolist(), f.model, strict=True)) for f in (rail, tor)]
    assert models[0] == models[1]
    for one in (tor, only):
        assert [n for n in one.device_names if "/" in n] == [
            n for n in rail.device_names if "/" in n
        ]

    def homes(fabric):
        nics = fabric.parts("h9", DeviceKind.NIC)
        found = fabric.link_dst[np.isin(fabric.link_src, nics) & fabric.link_network]
        return [fabric.device_names[i] for i in found]

    rails = [f"leaf0.r{r}" for r in range(8)]
    assert homes(rail) == homes(only) == rails
    assert homes(tor) == ["leaf1"] * 8
    bisections = [summarise(fabric)["bisection_bps"] for fabric in (rail, tor, only)]
    assert bisections == [256 * 400 * GBPS] * 3
