# SPDX-License-Identifier: Apache-2.0
"""Bad topology files: one line with file, line, field and what was expected."""

import pytest

from railweave.fabric.document import parse_yaml
from railweave.fabric.errors import InputError
from railweave.topologies import build_topology, load_topology, shipped_designs
from railweave.topologies.load import topology_json_schema

RAIL = shipped_designs()["h100-rail-1su"].read_text()
KARY = shipped_designs()["fat-tree-k16"].read_text()
TOR = shipped_designs()["h100-tor-1su"].read_text()
CUSTOM = """schema: 1
name: pair
kind: custom
nodes:
  h0: host
  g: {type: host, model: dgx-h100}
  s1: {type: switch, model: tomahawk-5}
links:
  - {ends: [h0, s1], rate: 100Gbps, delay: 500ns}
  - {ends: [g/nic0, "s1:4"], rate: 400Gbps, length: 3m}
"""

BAD = [
    # text, replaced, by, line, field, parts of the message
    (RAIL, "count: 32", "coutn: 32", 7, "hosts.coutn", "did you mean 'count'?"),
    (RAIL, "dgx-h100", "dgx-h10", 7, "hosts.model", "did you mean 'dgx-h100'?"),
    (RAIL, "count: 32", "count: -1", 7, "hosts.count", "at least 1"),
    (RAIL, "count: 32", "count: 1e9", 7, "hosts.count", "write 1000000000"),
    (RAIL, "spectrum-4}", "spectrum4x}", 9, "leaf.switch", "did you mean 'spectrum-4'?"),
    (RAIL, '"1:1"', "2:1", 10, "spine.oversubscription", "in quotes"),
    (RAIL, '"1:1"', '"0:1"', 10, "spine.oversubscription", "has a zero"),
    (RAIL, '"1:1"', '"1:1", count: 3', 10, "spine.count", "one of 1, 2, 4, 8, 16, 32"),
    (RAIL, "rail-optimized\n", "rail-optimised\n", 5, "kind", "did you mean 'rail-optimized'?"),
    (RAIL, "kind: rail-optimized\n", "", None, "kind",
     "custom | fat-tree | leaf-spine | loopback-host | multi-plane | nvl-domain | rail-only | "
     "rail-optimized"),
    (RAIL, "schema: 1\n", "", None, "schema", "schema: 1"),
    (RAIL, "schema: 1\n", "schema: 2\n", 3, "schema", "expected 1"),
    (RAIL, "name: h100-rail-1su\n", "", None, "name", "it is missing"),
    (RAIL, "400Gbps, length: 10m", "400, length: 10m", 12, "links.host-leaf.rate", "no unit"),
    (RAIL, "length: 10m", "lenght: 10m", 12, "links.host-leaf.lenght", "mean 'length'?"),
    (RAIL, "length: 10m", "length: 10m, delay: 1us", 12, "links.host-leaf.delay", "both"),
    (RAIL, ", length: 10m", "", 12, "links.host-leaf.delay", "either length or delay"),
    (RAIL, "{model: roce-lossless", "{model: roce", 12, "links.host-leaf.model", "roce-lossless"),
    (RAIL, "rate: 400Gbps, length: 10m", "rate: 800Gbps, length: 10m", 12, "links.host-leaf.rate",
     "at most 400Gbps (connectx-7)"),
    (RAIL, "mtu: 4096B", "mtu: 4096", 14, "network.mtu", "4096B"),
    (RAIL, "mtu: 4096B", "pfc: {enable: true}", 14, "network.pfc.enable", "mean 'enabled'?"),
    (RAIL, "mtu: 4096B", "buffer: {headroom: 5}", 14, "network.buffer.headroom", "no unit"),
    (KARY, "k: 16", "k: 15", 7, "k", "a multiple of 2"),
    (KARY, "{model: single-nic-400g}", "{count: 1000, model: single-nic-400g}", 8, "hosts.count",
     "k: 16 has room for exactly 1024 hosts, not 1000"),
    (KARY, "k: 16", "k: 12\nleaf: {switch: quantum-2}", 8, "leaf", "k decides this"),
    (KARY.replace("k: 16", "k: 12"), "single-nic-400g", "dgx-h100", 7, "k", "a multiple of 16"),
    (KARY, "length: 10m", "length: 10m, count: 2", 11, "links.leaf-spine.count", "k decides"),
    (KARY, "k: 16", "k: 16\ntiers: 2", 13, "links.spine-core", "two tiers have no core"),
    (TOR, "tiers: 2", "tiers: 3", None, "core", "it is missing"),
    (TOR, "tiers: 2", "tiers: 4", 7, "tiers", "2, 3"),
    (TOR, "hosts: 4", "hosts: 12", 9, "leaf.hosts",
     "each leaf needs 192 ports of 400Gbps, but spectrum-4 has 128"),
    (CUSTOM, "h0: host", "h0: hst", 5, "nodes.h0", "did you mean 'host'?"),
    (CUSTOM, "type: host", "typ: host", 6, "nodes.g.typ", "did you mean 'type'?"),
    (CUSTOM, "type: host", "type: router", 6, "nodes.g.type", "host"),
    (CUSTOM, "tomahawk-5", "tomahawk55", 7, "nodes.s1.model", "did you mean 'tomahawk-5'?"),
    (CUSTOM, "[h0, s1]", "[h0, s2]", 9, "links[0].ends[1]", "there is no node 's2'"),
    (CUSTOM, "[h0, s1]", "[h0, h0]", 9, "links[0].ends", "both ends are 'h0'"),
    (CUSTOM, "[h0, s1]", "[h0]", 9, "links[0].ends[1]", "it is missing"),
    (CUSTOM, "[h0, s1]", '["h0:3", s1]', 9, "links[0].ends[0]", "expected h0/nic0:3"),
    (CUSTOM, "[h0, s1]", "[h0, s1/nic2]", 9, "links[0].ends[1]", "is a switch and has no NIC"),
    (CUSTOM, "[h0, s1]", '[h0, "s1:4"]', 10, "links[1].ends[1]", "port 4 of 's1' is used twice"),
    (CUSTOM, "g/nic0", "g/nic9", 10, "links[1].ends[0]", "expected g/nic0 to nic7"),
    (CUSTOM, "length: 3m", "length: 3m, count: 2", 10, "links[1].ends[0]", "has 1 port(s)"),
    (CUSTOM, "rate: 400Gbps", "rate: 800Gbps", 10, "links[1].rate", "at most 400Gbps"),
    (CUSTOM, "delay: 500ns", "delay: 500ns, count: 300", 7, "nodes.s1",
     "s1 needs 300 ports of 200Gbps, but tomahawk-5 has 256"),
    (CUSTOM, '  - {ends: [g/nic0, "s1:4"], rate: 400Gbps, length: 3m}\n', "", 8, "links",
     "in 2 pieces: nothing joins 'h0' and 'g'"),
    (CUSTOM, "h0: host", "h0: no", 5, "nodes.h0", "expected one of host, switch"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "old", "new", "line", "field", "part"), BAD)
def test_bad_input_is_one_located_line(tmp_path, text, old, new, line, field, part):
    assert old in text
    path = tmp_path / "bad.yaml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        build_topology(load_topology(path))
    error = caught.value
    assert error.file == str(path)
    assert error.field == field
    if line is not None:
        assert error.line == line
    assert part in str(error)
    assert "\n" not in str(error)
    assert error.exit_code == 2


BUDGETS = [
    # hosts, group, switch, uplink rate, oversubscription, field, the two numbers
    (65, 65, "quantum-2", "400Gbps", "2:1", "leaf.switch", ("98 ports", "has 64")),
    (130, 130, "spectrum-4", "400Gbps", "1:1", "leaf.switch", ("260 ports", "has 128")),
    (96, 96, "spectrum-4", "800Gbps", "1:1", "leaf.switch", ("76.8Tbps", "51.2Tbps")),
    (320, 32, "quantum-2", "400Gbps", "1:1", "spine.switch", ("80 ports", "has 64")),
    (16, 16, "quantum-2", "800Gbps", "1:1", "leaf.switch", ("800Gbps", "400Gbps")),
]


@pytest.mark.parametrize(("hosts", "group", "switch", "rate", "over", "field", "two"), BUDGETS)
def test_switches_carry_only_what_they_can(hosts, group, switch, rate, over, field, two):
    cable = {"length": "10m", "model": "roce-lossless"}
    mapping = {
        "kind": "rail-optimized",
        "hosts": {"count": hosts, "model": "dgx-h100"},
        "group": group,
        "leaf": {"switch": switch},
        "spine": {"switch": switch, "oversubscription": over},
        "links": {
            "host-leaf": cable | {"rate": "400Gbps"},
            "leaf-spine": cable | {"rate": rate},
        },
    }
    with pytest.raises(InputError) as caught:
        build_topology(load_topology(mapping))
    assert caught.value.field == field
    assert all(number in caught.value.message for number in two), caught.value.message


def test_a_core_that_cannot_carry_its_pods():
    cable = {"rate": "400Gbps", "length": "10m", "model": "infiniband"}
    mapping = {
        "kind": "rail-optimized",
        "hosts": {"count": 65 * 2, "model": "dgx-h100"},
        "group": 2,
        "leaf": {"switch": "quantum-2"},
        "spine": {"switch": "quantum-2", "count": 65},
        "core": {"switch": "quantum-2"},
        "links": {"host-leaf": cable, "leaf-spine": cable, "spine-core": cable},
    }
    with pytest.raises(
        InputError, match="each core needs 65 ports of 400Gbps, but quantum-2 has 64"
    ):
        build_topology(load_topology(mapping))


def test_unknown_designs_and_files(tmp_path):
    with pytest.raises(InputError, match=r"no design 'h100-rail-1sv'.*mean 'h100-rail-1su'\?"):
        load_topology("h100-rail-1sv")
    with pytest.raises(InputError, match="there is no such file"):
        load_topology("nowhere/x.yaml", base=tmp_path)
    (tmp_path / "t.yaml").write_text("- a\n")
    with pytest.raises(InputError, match=r"t\.yaml:1: this is a list"):
        load_topology("t.yaml", base=tmp_path)


def test_paths_start_from_the_base(tmp_path):
    (tmp_path / "designs").mkdir()
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "designs" / "mine.yaml").write_text(CUSTOM)
    assert load_topology("../designs/mine.yaml", base=tmp_path / "scenarios").name == "pair"


def test_inline_topologies_are_located_in_their_document():
    inline = "".join(f"  {line}\n" for line in CUSTOM.splitlines()[2:])
    document = parse_yaml(f"engine: fluid\ntopology:\n{inline}", file="s.yaml")
    assert load_topology(document, at=("topology",)).name == "inline"
    bad = parse_yaml(f"topology:\n{inline}".replace("h0, s1", "h0, s9"), file="s.yaml")
    with pytest.raises(
        InputError, match=r"s\.yaml:8: topology\.links\[0\]\.ends\[1\]: there is no"
    ):
        build_topology(load_topology(bad, at=("topology",)))


def test_schema_names_every_kind():
    schema = topology_json_schema()
    assert len(schema["oneOf"]) == 8
    for reference in schema["oneOf"]:
        assert reference["$ref"].removeprefix("#/$defs/") in schema["$defs"]
    links = schema["$defs"]["LinksSpec"]["properties"]
    assert set(links) == {"host-leaf", "leaf-spine", "spine-core"}
