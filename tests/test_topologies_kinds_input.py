# SPDX-License-Identifier: Apache-2.0
"""Bad files of the tiered kinds: one line with file, line, field and what was expected."""

import pytest

from railweave.fabric.errors import InputError
from railweave.topologies import build_topology, load_topology

LINKS = """links:
  host-leaf: {rate: 400Gbps, length: 10m}
  leaf-spine: {rate: 400Gbps, length: 30m}
"""
RAIL = f"""schema: 1
name: bad
kind: rail-optimized
hosts: {{count: 16, model: dgx-h100}}
group: 8
leaf: {{switch: spectrum-4}}
spine: {{switch: spectrum-4}}
{LINKS}"""
MIXED = RAIL.replace(
    "hosts: {count: 16, model: dgx-h100}",
    "hosts:\n  - {count: 8, model: dgx-h100}\n  - {count: 8, model: l40s-8, rate: 200Gbps}",
)
PODS = RAIL.replace("\nspine:", "\ncore: {switch: spectrum-4}\npod: 16\nspine:")
PODS += "  spine-core: {rate: 400Gbps, length: 100m}\n"
ONLY = """schema: 1
name: bad
kind: rail-only
hosts: {count: 16, model: dgx-h100}
leaf: {switch: quantum-2}
links:
  host-leaf: {model: infiniband, rate: 400Gbps, length: 10m}
"""
PLANES = f"""schema: 1
name: bad
kind: multi-plane
planes: 2
hosts: {{count: 16, model: hgx-h100-2x200g}}
leaf: {{switch: spectrum-4}}
spine: {{switch: spectrum-4}}
{LINKS.replace("400Gbps, length: 10m", "200Gbps, length: 10m")}"""
RACKS = f"""schema: 1
name: bad
kind: nvl-domain
racks: {{count: 4, model: gb200-nvl72}}
group: 2
leaf: {{switch: spectrum-4}}
spine: {{switch: spectrum-4}}
{LINKS}"""
TOR = f"""schema: 1
name: bad
kind: leaf-spine
hosts: {{count: 16, model: dgx-h100}}
leaf: {{switch: spectrum-4}}
spine: {{switch: spectrum-4}}
{LINKS}"""
KARY = """schema: 1
name: bad
kind: fat-tree
k: 4
hosts: {model: single-nic-400g}
links:
  host-leaf: {rate: 400Gbps, length: 10m}
"""
NO_SPINE = "spine: {switch: spectrum-4}\n"

BAD = [
    # text, replaced, by, line, field, parts of the message
    # an older or newer schema comes before anything else that such a file may say
    (RAIL, "schema: 1", "schema: 0\nswitches: 4", 1, "schema", "0, older than this version reads"),
    (ONLY, "schema: 1", "schema: 2\nswitches: 4", 1, "schema", "2, newer than this version reads"),
    # impossible radix
    (
        ONLY,
        "count: 16",
        "count: 65",
        5,
        "leaf.switch",
        "needs 65 ports of 400Gbps, but quantum-2 has 64",
    ),
    (
        RAIL.replace("count: 16", "count: 130"),
        "group: 8",
        "group: 65",
        6,
        "leaf.switch",
        "130 ports",
    ),
    (
        PLANES,
        "count: 16",
        "count: 300",
        6,
        "leaf.switch",
        "300 ports of 200Gbps, but spectrum-4 has 256",
    ),
    (
        RACKS,
        "group: 2",
        "group: 4",
        6,
        "leaf.switch",
        "144 ports of 400Gbps, but spectrum-4 has 128",
    ),
    (
        TOR,
        "leaf: {switch: spectrum-4",
        "leaf: {switch: spectrum-4, hosts: 9",
        5,
        "leaf.hosts",
        "144 ports",
    ),
    (TOR, "count: 16", "count: 1600", 6, "spine.switch", "has 128"),
    # uneven rails
    (
        MIXED,
        "count: 8, model: dgx",
        "count: 8, model: dgx",
        6,
        "hosts[1].model",
        "uneven rails: l40s-8 has 4 NICs, but dgx-h100 has 8",
    ),
    (
        MIXED,
        "l40s-8, rate: 200Gbps",
        "t4-8, rate: 100Gbps",
        6,
        "hosts[1].model",
        "t4-8 has 1 NIC, but dgx-h100 has 8",
    ),
    (MIXED, "group: 8", "group: 8\nrails: 8", 6, "hosts[1]", "expected rails: a divisor of 4"),
    (
        RAIL,
        "group: 8",
        "group: 8\nrails: 3",
        6,
        "rails",
        "8 NICs of dgx-h100 cannot spread evenly over 3",
    ),
    (RAIL, "group: 8", "group: 8\nrails: 0", 6, "rails", "at least 1"),
    # zero spines, or none
    (
        RAIL,
        "spine: {switch: spectrum-4}",
        "spine: {switch: spectrum-4, count: 0}",
        7,
        "spine.count",
        "at least 1",
    ),
    (PLANES, NO_SPINE, "", None, "spine", "it is missing"),
    (RACKS, NO_SPINE, "", None, "spine", "it is missing"),
    (ONLY, "leaf:", "core: {switch: quantum-2}\nleaf:", 5, "core", "needs spines below it"),
    (
        ONLY,
        "leaf:",
        "spine: {switch: quantum-2}\nleaf:",
        None,
        "links.leaf-spine",
        "the cables to the spines",
    ),
    (ONLY, "leaf:", "group: 8\nleaf:", 5, "group", "groups of 8 hosts would be islands"),
    (
        RAIL.replace("rail-optimized", "rail-only"),
        NO_SPINE,
        "",
        9,
        "links.leaf-spine",
        "there is no spine",
    ),
    (
        PLANES,
        "spine: {switch: spectrum-4}",
        "spine: {switch: spectrum-4, count: 3}",
        7,
        "spine.count",
        "cannot share the 8 uplinks of each leaf evenly; expected one of 1, 2, 4, 8",
    ),
    # planes that do not divide the ports
    (PLANES, "planes: 2", "planes: 3", 4, "planes", "3 planes do not divide the 2 ports"),
    (PLANES, "planes: 2", "planes: 1", 4, "planes", "at least 2"),
    (
        PLANES,
        "hgx-h100-2x200g",
        "dgx-h100",
        4,
        "planes",
        "NICs with a multiple of 2 ports (hosts.nic)",
    ),
    (PLANES, "length: 10m", "length: 10m, count: 2", 9, "links.host-leaf.count", "at most 1"),
    (RAIL, "group: 8", "planes: 2", 5, "planes", "unknown key 'planes'"),
    # hosts
    (RAIL, "dgx-h100", "dgx-h100, nic: conectx-9", 4, "hosts.nic", "did you mean 'connectx-8'?"),
    (RAIL, "dgx-h100", "dgx-h100, nic: connectx-6", 9, "links.host-leaf.rate", "at most 200Gbps"),
    (RAIL, "dgx-h100", "dgx-h100, rate: 800Gbps", 4, "hosts.rate", "at most 400Gbps"),
    (RAIL, "dgx-h100", "dgx-h100, spare: 0", 4, "hosts.spare", "at least 1"),
    (
        RAIL,
        "length: 10m",
        "length: 10m, count: 2",
        9,
        "links.host-leaf.count",
        "connectx-7 has 1 port",
    ),
    (RAIL, "dgx-h100}", "host, nic: connectx-6}", 4, "hosts.nic", "a NIC for each cable"),
    (MIXED, "model: l40s-8", "model: l40s-9", 6, "hosts[1].model", "did you mean 'l40s-8'?"),
    (MIXED, "count: 8, model: l40s-8", "model: l40s-8", 6, "hosts[1].count", "it is missing"),
    (RAIL, "{count: 16, model: dgx-h100}", "[]", 4, "hosts", "at least this many entries: 1"),
    (RAIL, "{count: 16, model: dgx-h100}", "16", 4, "hosts", "expected a mapping"),
    (RACKS, "gb200-nvl72", "dgx-h100", 4, "racks.model", "one of gb200-nvl72"),
    (RACKS, "racks:", "hosts:", 4, "hosts", "unknown key 'hosts'"),
    (RACKS, "count: 4", "count: 1000000", 4, "racks", "at most 1000000"),
    # pods
    (RAIL, "group: 8", "group: 8\npod: 16", 6, "pod", "expected a core"),
    (PODS, "pod: 16", "pod: 12", 8, "pod", "not whole groups of 8; expected a multiple of 8"),
    (
        PODS.replace("count: 16", "count: 32"),
        "spine: {switch: spectrum-4}",
        "spine: {switch: spectrum-4, count: 3}",
        9,
        "spine.count",
        "a multiple of 2",
    ),
    # k-ary
    (
        KARY,
        "{model: single-nic-400g}",
        "[{count: 4, model: single-nic-400g}]",
        5,
        "hosts",
        "one model",
    ),
    (KARY, "single-nic-400g", "single-nic-400g, spare: 16", 5, "hosts.spare", "at most 15"),
    (
        KARY,
        "single-nic-400g",
        "single-nic-400g, count: 15",
        5,
        "hosts.count",
        "exactly 16 hosts, not 15",
    ),
]


@pytest.mark.parametrize(("text", "old", "new", "line", "field", "part"), BAD)
def test_bad_input_is_one_located_line(tmp_path, text, old, new, line, field, part):
    assert old in text
    path = tmp_path / "bad.yaml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        build_topology(load_topology(path))
    error = caught.value
    assert (error.file, error.field) == (str(path), field)
    if line is not None:
        assert error.line == line
    assert part in str(error)
    assert "\n" not in str(error)
    assert error.exit_code == 2


@pytest.mark.parametrize("text", [RAIL, PODS, ONLY, PLANES, RACKS, TOR, KARY])
def test_the_files_without_the_faults_build(tmp_path, text):
    path = tmp_path / "good.yaml"
    path.write_text(text)
    spec = load_topology(path)
    assert build_topology(spec).n_links > 0
    again = load_topology(spec.model.content())
    assert again.sha256 == load_topology(path).sha256
