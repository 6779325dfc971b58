# SPDX-License-Identifier: Apache-2.0
"""Scenario files: every mistake is one line with file, line, field and what was expected."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from railweave.fabric.errors import InputError
from railweave.runner import prepare
from railweave.scenario import load_scenario, scenario_schema

TOPOLOGY = """
  kind: custom
  nodes: {h0: host, h1: host, s0: switch}
  links:
    - {ends: [h0, s0], rate: 100Gbps, delay: 500ns}
    - {ends: [h1, s0], rate: 100Gbps, delay: 500ns}
"""
FLOWS = """
  kind: flows
  flows:
    - {id: f1, src: h0, dst: h1, size: 1MiB}
"""


def scenario(
    tmp_path: Path, *, topology: str = TOPOLOGY, workload: str = FLOWS, more: str = ""
) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(f"schema: 1\n{more}topology: {topology}workload: {workload}")
    return path


def message(path: Path) -> str:
    """Return the one line that loading (and building) the scenario raises."""
    with pytest.raises(InputError) as caught:
        prepare(load_scenario(path))
    assert caught.value.exit_code == 2
    text = str(caught.value)
    assert "\n" not in text
    return text.replace(str(path.parent) + os.sep, "")


def test_a_good_scenario_has_its_defaults(tmp_path: Path) -> None:
    loaded = load_scenario(scenario(tmp_path))
    assert loaded.name == "s"
    assert (loaded.model.seed, loaded.model.engine) == (1, "fluid")
    assert loaded.model.routing.policy == "ecmp"
    assert [w.name for w in loaded.workloads] == ["flows"]
    assert loaded.settings.mtu_bytes == 4096


def test_the_scenarios_network_goes_before_the_topologys(tmp_path: Path) -> None:
    topology = TOPOLOGY + "  network: {mtu: 1024B, switch_latency: 100ns}\n"
    loaded = load_scenario(
        scenario(tmp_path, topology=topology, more="network: {mtu: 2048B, ack: {every: 0}}\n")
    )
    settings = loaded.settings
    assert settings.mtu_bytes == 2048
    assert settings.switch_latency_ps == 100_000
    assert settings.ack_every == 0


def test_overrides_go_before_the_file(tmp_path: Path) -> None:
    path = scenario(tmp_path)
    loaded = load_scenario(path, overrides={"seed": 7, "engine": "analytic", "routing.qps": 4})
    assert (loaded.model.seed, loaded.model.engine, loaded.model.routing.qps) == (7, "analytic", 4)
    with pytest.raises(InputError, match=r"topology\.kind\.x: .* cannot be set"):
        load_scenario(path, overrides={"topology.kind.x": 1})
    with pytest.raises(InputError, match=r"^routing.policy: flowlet routing needs packets"):
        load_scenario(path, overrides={"routing.policy": "flowlet"})


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("rooting: {}\n", "s.yaml:2: rooting: unknown key 'rooting'"),
        ("seed: -1\n", "s.yaml:2: seed: this is -1; expected at least 0"),
        ("seed: 1e9\n", "s.yaml:2: seed: this is '1e9' (YAML reads 1e9 as text: write 1000000000)"),
        ("name: no\n", "s.yaml:2: name: this is false (YAML reads no,"),
        ("name: ../../etc\n", "s.yaml:2: name: "),
        ("engine: fluit\n", "s.yaml:2: engine: this is 'fluit'; expected one of analytic"),
        ("routing: {spray: rr}\n", "s.yaml:2: routing.spray: the fluid engine sees no packets"),
        ("network: {buffer: {mode: static}}\n", "s.yaml:2: network.buffer.xoff: static thresholds"),
        ("network: {cc: {profil: nic}}\n", "s.yaml:2: network.cc.profil: unknown key 'profil'"),
        ("network: {rto: 5}\n", "s.yaml:2: network.rto: 5 has no unit; expected none, or a time"),
        ("network: {pfc: {watchdog: {action: bark}}}\n", "s.yaml:2: network.pfc.watchdog.action"),
        ("routing: {policy: flowlet}\n", "s.yaml:2: routing.policy: flowlet routing needs packets"),
        ("routing: {policy: adaptive}\n", "s.yaml:2: routing.policy: adaptive routing needs"),
        ("routing: {qps: 0}\n", "s.yaml:2: routing.qps: this is 0; expected at least 1"),
        ("network: {mtu: 4096}\n", "s.yaml:2: network.mtu: 4096 has no unit; expected a size"),
        ("network: {switch_latency: 12:30:00}\n", "s.yaml:2: network.switch_latency: YAML reads"),
        ("network: {mtv: 4096B}\n", "s.yaml:2: network.mtv: unknown key 'mtv'"),
        ("faults: [{at: -2ms, link: x, do: down}]\n", "s.yaml:2: faults[0].at: "),
        (
            "engine: analytic\nfaults: [{at: 2ms, link: x, do: down}]\n",
            "s.yaml:3: faults[0].at: the analytic engine has no faults in mid-run; expected 0s",
        ),
        (
            "engine: analytic\nfaults: [{link: x, do: down, for: 5ms}]\n",
            "s.yaml:3: faults[0].for: the analytic engine has no faults in mid-run; expected no",
        ),
        ("faults: [{node: s0, do: pause-storm}]\n", "s.yaml:2: faults[0].do: the fluid engine"),
        (
            "faults: [{node: s0, do: down, for: 0ms}]\n",
            "s.yaml:2: faults[0].for: a fault must last",
        ),
        ("faults: [{node: s0, do: up, for: 1ms}]\n", "s.yaml:2: faults[0].for: 'up' has no end"),
        ("faults: [{do: down}]\n", "s.yaml:2: faults[0]: it names no one thing; expected either"),
        ("faults: [{link: x, do: degrade}]\n", "s.yaml:2: faults[0]: it has no rate"),
        ("faults: [{link: x, do: down, rate: 1Gbps}]\n", "s.yaml:2: faults[0]: 'down' takes no"),
        ("faults: [{node: s9, do: down}]\n", "s.yaml:2: faults[0].node: 's9' is not a device"),
        ("faults: [{node: s0, do: up}]\n", "s.yaml:2: faults[0].node: 's0' is not down at"),
        ("schema: 2\n", "s.yaml:2: schema: the key 'schema' is written twice (first on line 1)"),
        ("placement: {policy: list}\n", "s.yaml:2: placement.gpus: it is missing"),
        ("placement: {policy: pakced}\n", "s.yaml:2: placement.policy: this is 'pakced'"),
    ],
)
def test_a_mistake_in_the_scenario_is_named(tmp_path: Path, more: str, expected: str) -> None:
    assert message(scenario(tmp_path, more=more)).startswith(expected)


def test_a_misspelt_key_names_the_nearest(tmp_path: Path) -> None:
    assert message(scenario(tmp_path, more="routng: {}\n")).endswith("did you mean 'routing'?")


@pytest.mark.parametrize(
    ("flow", "expected"),
    [
        ("{id: a, src: h0, dst: h1, size: 64}", "workload.flows[0].size: 64 has no unit"),
        ("{id: a, src: h0, dst: h1, size: -64MiB}", "workload.flows[0].size: '-64MiB' is negative"),
        ("{id: a, src: h0, dst: h1, size: 1e9}", "workload.flows[0].size: '1e9' "),
        ("{id: a, scr: h0, dst: h1, size: 1B}", "workload.flows[0].scr: unknown key 'scr'"),
        ("{id: a, src: h0, dst: h1}", "workload.flows[0].size: it is missing"),
        ("{id: a, src: h0, dst: h2, size: 1B}", "workload.flows[0].dst: 'h2' is not a device"),
        ("{id: a, src: h0, dst: s0, size: 1B}", "workload.flows[0].dst: 's0' cannot send or"),
        ("{id: a, src: h0, dst: h0, size: 1B}", "workload.flows[0].dst: flow 'a' goes from h0 to"),
        ("{src: h0, dst: h1, size: 1B, weight: 0}", "workload.flows[0].weight: this is 0"),
        ("{src: h0, dst: h1, size: 1B, priority: 8}", "workload.flows[0].priority: this is 8"),
        ("{src: h0, dst: h1, size: 1B, cap: 20}", "workload.flows[0].cap: 20 has no unit"),
        (
            "{src: h0, dst: h1, size: 1B, after: [g]}",
            "workload.flows[0].after[0]: there is no flow",
        ),
        ("{src: h0, dst: h1, size: 1B, path: [h0]}", "workload.flows[0].path: a path needs two"),
        (
            "{src: h0, dst: h1, size: 1B, path: [h0, h1]}",
            "workload.flows[0].path: no cable joins 'h0' to 'h1'; expected a neighbour of h0",
        ),
        (
            "{src: h0, dst: h1, size: 1B, path: [h0, s0]}",
            "workload.flows[0].path: the path ends at 's0'; expected 'h1/nic0'",
        ),
        (
            "{src: h0, dst: h1, size: 1B, ack_path: [h1, s0, h0]}",
            "workload.flows[0].ack_path: the fluid engine sends acknowledgements back on",
        ),
    ],
)
def test_a_mistake_in_a_flow_is_named(tmp_path: Path, flow: str, expected: str) -> None:
    text = message(scenario(tmp_path, workload=f"\n  kind: flows\n  flows:\n    - {flow}\n"))
    assert text.startswith(f"s.yaml:11: {expected}")


def test_a_flow_id_used_twice_names_both_lines(tmp_path: Path) -> None:
    path = scenario(tmp_path, workload=FLOWS + "    - {id: f1, src: h1, dst: h0, size: 1B}\n")
    expected = "s.yaml:12: workload.flows[1].id: the flow id 'f1' is used twice (first on line 11)"
    assert message(path).startswith(expected)


def test_an_unknown_host_names_the_nearest(tmp_path: Path) -> None:
    path = scenario(
        tmp_path, workload="\n  kind: flows\n  flows: [{src: h0, dst: h1/nic7, size: 1B}]\n"
    )
    assert message(path).endswith("did you mean 'h1/nic0'?")


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        ("{kind: flow, flows: []}", "workload.kind: 'flow' is not a kind of workload"),
        ("{kind: flows, flows: []}", "workload.flows: there are no flows"),
        ("{flows: []}", "workload.kind: it is missing"),
        ("{kind: trainings, model: x}", "workload.kind: 'trainings' is not a kind of workload"),
        ("[]", "workload: there is no workload"),
        ("[flows]", "workload[0]: this is no workload"),
        ("{kind: collective, op: all_reduce}", "workload.size: it names no size once"),
        (
            "{kind: collective, op: all_redce, size: 1MiB}",
            "workload.op: 'all_redce' is not",
        ),
        (
            "{kind: collective, op: all_reduce, size: 1MiB, algorithm: rign}",
            "workload.algorithm: 'rign' is not an algorithm of all_reduce",
        ),
        (
            "{kind: collective, op: all_reduce, size: 1MiB, ranks: 3}",
            "workload.ranks: 3 ranks, but there are 2 GPUs",
        ),
        (
            "{kind: collective, op: all_reduce, size: 1MiB, ranks: 0}",
            "workload.ranks: this is 0; expected all or at least 1",
        ),
        (
            "{kind: collective, op: all_reduce, sizes: [1MiB, -1MiB]}",
            "workload.sizes[1]: '-1MiB' is negative",
        ),
        ("7", "workload: this is 7"),
    ],
)
def test_a_mistake_in_a_workload_is_named(tmp_path: Path, workload: str, expected: str) -> None:
    text = message(scenario(tmp_path, workload=workload + "\n"))
    assert text.startswith(f"s.yaml:8: {expected}")


def test_workloads_of_one_name_are_refused(tmp_path: Path) -> None:
    one = "{kind: flows, name: w, flows: [{src: h0, dst: h1, size: 1B}]}"
    path = scenario(tmp_path, workload=f"\n  - {one}\n  - {one}\n")
    assert message(path).startswith("s.yaml:10: workload[1].name: two workloads are called 'w'")


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        ("h100-rail-1sv\n", "s.yaml:2: topology: there is no design 'h100-rail-1sv'"),
        ("nowhere.yaml\n", "nowhere.yaml: there is no such file"),
        ("7\n", "s.yaml:2: topology: this is 7"),
        ("{kind: custom, nodes: {h0: hots}, links: []}\n", "s.yaml:2: topology."),
        (
            "{kind: custom, nodes: {h0: host, h1: host, s0: switch, s1: switch}, links: "
            "[{ends: [h0, s0], rate: 1Gbps, delay: 1ns}, {ends: [h1, s1], rate: 1Gbps, "
            "delay: 1ns}]}\n",
            "s.yaml:2: topology.links: the fabric is in 2 pieces: nothing joins 'h0' and 'h1'",
        ),
        (
            "{kind: custom, nodes: {h0: host, s0: switch}, links: [{ends: [h0, s0], rate: 100, "
            "delay: 1ns}]}\n",
            "s.yaml:2: topology.links[0].rate: 100 has no unit",
        ),
    ],
)
def test_a_mistake_in_the_topology_is_named(tmp_path: Path, topology: str, expected: str) -> None:
    assert message(scenario(tmp_path, topology=topology)).startswith(expected)


def test_a_fault_that_cuts_a_flow_off_is_refused_with_the_flow(tmp_path: Path) -> None:
    path = scenario(tmp_path, more="faults: [{link: 'h1/nic0:0-s0:1', do: down}]\n")
    text = message(path)
    assert text.startswith("s.yaml:12: workload.flows[0]: ")
    assert "'h0/nic0'" in text
    assert "'h1/nic0'" in text


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "s.yaml: the file is empty"),
        (b"- a\n- b\n", "s.yaml:1: this is a list; expected key: value lines"),
        (b"just words\n", "s.yaml:1: this is a single value"),
        (b"\x7fELF\x00\x01", "s.yaml:1: the character U+007F does not belong in text"),
        (b"\x80\x81\x82", "s.yaml:1: the file is not text"),
        (b"schema: 1\nworkload: {kind: [}\n", "s.yaml:2: this is not YAML"),
        (b"schema: 1\nname: !!python/object/apply:os.system [id]\n", "s.yaml:2: name: the tag"),
        (b"schema: 1\n", "s.yaml:1: topology: it is missing"),
        (b"schema: 3\ntopology: lab-8\nworkload: {}\n", "s.yaml:1: schema: this is 3"),
    ],
)
def test_a_file_that_is_no_scenario_is_refused(
    tmp_path: Path, content: bytes, expected: str
) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(content)
    assert message(path).startswith(expected)


def test_alias_bombs_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    path = tmp_path / "s.yaml"
    path.write_text("\n".join(lines))
    assert "the aliases of this file explode" in message(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every file")
def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = scenario(tmp_path)
    path.chmod(0)
    assert message(path) == "s.yaml: the file cannot be read (permission denied)"


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs Linux's /proc")
def test_a_file_that_fails_while_it_is_read_is_refused() -> None:
    text = message(Path("/proc/self/mem"))
    assert text == "mem: the file cannot be read (input/output error)"


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert message(tmp_path / "none.yaml") == "none.yaml: there is no such file"
    (tmp_path / "folder.yaml").mkdir()
    assert message(tmp_path / "folder.yaml").startswith("folder.yaml: this is a directory")


def test_a_mapping_is_a_scenario_too() -> None:
    data = {
        "schema": 1,
        "topology": {
            "kind": "custom",
            "nodes": {"h0": "host", "h1": "host"},
            "links": [{"ends": ["h0", "h1"], "rate": "100Gbps", "delay": "0s"}],
        },
        "workload": {"kind": "flows", "flows": [{"src": "h0", "dst": "h1", "size": "1B"}]},
    }
    kept = repr(data)
    loaded = load_scenario(data, overrides={"seed": 3, "routing.qps": 2})
    assert (loaded.name, loaded.model.seed) == ("scenario", 3)
    assert repr(data) == kept


def test_resolved_scenarios_resolve_to_themselves(tmp_path: Path) -> None:
    loaded = load_scenario(
        scenario(tmp_path, more="seed: 5\nnetwork: {phy_latency: 7ns, ack: {size: 99B}}\n")
    )
    resolved = loaded.resolved()
    again = load_scenario(resolved)
    assert again.resolved() == resolved
    assert again.settings == loaded.settings
    assert resolved["network"]["phy_latency"] == "7ns"
    assert resolved["workload"]["flows"][0] == {
        "id": "f1",
        "src": "h0",
        "dst": "h1",
        "size": "1MiB",
        "start": "0ps",
        "class": "",
        "weight": 1.0,
        "after": [],
    }


def references(schema: Any) -> set[str]:
    """Return what every ``$ref`` of a schema points to."""
    if isinstance(schema, dict):
        own = {schema["$ref"]} if isinstance(schema.get("$ref"), str) else set()
        return own.union(*(references(part) for part in schema.values()))
    if isinstance(schema, list):
        return set().union(*(references(part) for part in schema))
    return set()


def test_the_schema_knows_every_kind_of_topology_and_workload() -> None:
    schema = scenario_schema()
    assert references(schema) == {f"#/$defs/{name}" for name in schema["$defs"]}
    text, inline = schema["properties"]["topology"]["anyOf"]
    assert text["type"] == "string"
    assert len(inline["oneOf"]) >= 3
    one, many = schema["properties"]["workload"]["anyOf"]
    named = [choice["$ref"].rpartition("/")[2] for choice in one["oneOf"]]
    assert {"FlowsModel", "CollectiveModel"} <= set(named)
    assert many["items"] == one
    assert all(name in schema["$defs"] for name in named)
    flow = schema["$defs"]["FlowModel"]["properties"]
    assert "class" in flow
    assert flow["size"]["type"] == "string"
    assert set(schema["required"]) == {"schema", "topology", "workload"}
