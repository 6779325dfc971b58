# SPDX-License-Identifier: Apache-2.0
"""Scenarios with ``engine: packet``: keys of the network block, tables, deadlock, exit codes."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from typer.testing import CliRunner

from railweave.fabric.errors import InputError, StalledError
from railweave.fabric.jit import as_python
from railweave.fabric.packet.deadlock import strike_off
from railweave.fabric.packet.engine import PacketEngine
from railweave.runner import prepare, run_scenario
from railweave.scenario import load_scenario
from railweave.tools.cli import app, run_command_line

if TYPE_CHECKING:
    from pathlib import Path


def star(hosts: int, **keys: Any) -> dict[str, Any]:
    names = [f"h{i}" for i in range(hosts)]
    return {
        "kind": "custom",
        "nodes": dict.fromkeys(names, "host") | {"s1": "switch"},
        "links": [
            {"ends": [name, "s1"], "rate": "100Gbps", "delay": "500ns", **keys} for name in names
        ],
    }


def scenario(topology: dict[str, Any], flows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "engine": "packet",
        "topology": topology,
        "workload": {"kind": "flows", "flows": flows},
        **more,
    }


BARE = {"switch_latency": "0ns", "host_latency": "0ns", "ack": {"every": 0}}


def test_four_senders_as_worked_by_hand() -> None:
    flows = [{"id": f"f{i}", "src": f"h{i}", "dst": "h4", "size": f"{i + 1}MiB"} for i in range(4)]
    network = {**BARE, "cc": {"kind": "none"}, "pfc": {"response": "0ns"}}
    network["buffer"] = {"mode": "static", "xoff": "20MB", "headroom": "0B"}
    network["buffer"]["total"] = "100MB"
    result = run_scenario(scenario(star(5), flows, network=network)).raise_for_status()
    ends = [record.end_ps for record in result.records]
    assert ends == [342_599_680, 599_630_240, 771_095_360, 856_995_040]
    assert result.network["pause_frames"] == 0


def test_tables_have_the_counters(tmp_path: Path) -> None:
    flows = [{"id": f"f{i}", "src": f"h{i}", "dst": "h3", "size": "2MiB"} for i in range(3)]
    network = {"buffer": {"total": "3MB"}, "cc": {"profile": "scaled"}}
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump(scenario(star(4), flows, network=network)))
    done = CliRunner().invoke(app, ["run", str(file), "-o", str(tmp_path / "out")])
    assert done.exit_code == 0
    result = json.loads((tmp_path / "out" / "result.json").read_text())["network"]
    assert result["pause_frames"] > 0
    assert result["drops"] == {
        "buffer": 0, "lossless_violation": 0, "random": 0, "link_down": 0, "watchdog": 0
    }  # fmt: skip
    with (tmp_path / "out" / "links.csv").open() as text:
        links = list(csv.DictReader(text))
    with (tmp_path / "out" / "flows.csv").open() as text:
        rows = list(csv.DictReader(text))
    assert sum(int(row["pause_frames_sent"]) for row in links) >= result["pause_frames"]
    assert sum(int(row["paused_ps"]) for row in links) == result["paused_ps_total"]
    assert sum(int(row["ecn_marked"]) for row in links) == result["ecn_marked"]
    assert sum(int(row["cnps"]) for row in rows) <= result["cnps"]
    assert rows[0]["path"].split()[0].startswith("h0/nic0:")
    again = load_scenario(tmp_path / "out" / "scenario.yaml")
    assert again.packet == load_scenario(file).packet


def test_a_block_of_the_scenario_goes_before_that_of_the_topology() -> None:
    topology = star(2)
    topology["network"] = {"cc": {"kind": "dcqcn", "profile": "nic"}, "buffer": {"total": "8MB"}}
    loaded = load_scenario(
        scenario(
            topology, [{"src": "h0", "dst": "h1", "size": "1MiB"}],
            network={"cc": {"profile": "paper", "rai": "50Mbps"}, "rto": "none"},
        )
    )  # fmt: skip
    packet = loaded.packet
    assert packet.cc is not None
    assert packet.cc.paper
    assert packet.cc.steps_bps(100e9) == (50e6, 400e6)
    assert (packet.buffer_bytes, packet.rto_ps) == (8_000_000, 0)


def test_other_engines_say_which_keys_they_do_not_heed() -> None:
    flows = [{"src": "h0", "dst": "h1", "size": "1MiB"}]
    result = run_scenario(
        scenario(star(2), flows, network={"cc": {"kind": "none"}, "rto": "1ms"})
        | {"engine": "fluid"}
    )
    assert "only the packet engine heeds network.cc, network.rto" in result.warnings


def test_a_buffer_without_room_for_headroom_is_refused() -> None:
    flows = [{"src": "h0", "dst": "h1", "size": "1MiB"}]
    result = CliRunner()
    assert result is not None
    with pytest.raises(Exception, match=r"network\.buffer: reserve and headroom of 's1' take"):
        run_scenario(scenario(star(2), flows, network={"buffer": {"total": "50kB"}}))


def test_priorities_are_served_in_turn() -> None:
    """Two priorities on one port share it frame by frame; one of them alone is not held back."""
    flows = [
        {"id": "a", "src": "h0", "dst": "h2", "size": "4MiB", "priority": 3},
        {"id": "b", "src": "h1", "dst": "h2", "size": "4MiB", "priority": 1},
    ]
    network = {**BARE, "cc": {"kind": "none"}, "pfc": {"lossless": [1, 3]}}
    result = run_scenario(scenario(star(3), flows, network=network)).raise_for_status()
    a, b = (record.fct_ps for record in result.records)
    assert a == pytest.approx(b, rel=0.02)
    assert a > 1.95 * 342_266_880


TRIANGLE = {
    "kind": "custom",
    "nodes": {
        **{f"{h}{i}": "host" for h in "hg" for i in range(3)},
        **{f"s{i}": "switch" for i in range(3)},
    },
    "links": [
        *({"ends": [f"{h}{i}", f"s{i}"], "rate": "100Gbps", "delay": "500ns"}
          for h in "hg" for i in range(3)),
        *({"ends": [f"s{i}", f"s{(i + 1) % 3}"], "rate": "100Gbps", "delay": "500ns"}
          for i in range(3)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("expiry", [False, True])
def test_a_deadlock_is_found_and_its_circle_named(expiry: bool) -> None:
    """Flows over two of three links in a ring, more than fit: every link waits for the next."""
    flows = [
        {"id": f"{h}{i}", "src": f"{h}{i}", "dst": f"{h}{(i + 2) % 3}", "size": "8MiB",
         "path": [f"{h}{i}", *(f"s{(i + k) % 3}" for k in range(3)), f"{h}{(i + 2) % 3}"]}
        for h in "hg" for i in range(3)
    ]  # fmt: skip
    network = {
        **BARE, "cc": {"kind": "none"}, "pfc": {"expiry": expiry},
        "buffer": {"mode": "static", "xoff": "100kB", "xon": "10kB"},
    }  # fmt: skip
    result = run_scenario(scenario(TRIANGLE, flows, network=network))
    assert (result.status, result.exit_code) == ("deadlocked", 1)
    circle = result.to_dict()["network"]["deadlock"]
    assert [entry["link"].split(":")[0] for entry in circle] == ["s0", "s1", "s2"]
    assert all(entry["priority"] == 3 for entry in circle)
    assert "wait for each other in a circle: s0:2>s1:2 (priority 3) -> " in str(result.error)
    assert result.sim_time_ps > 100_000_000  # at least as long as it takes to be sure
    assert all(record.end_ps < 0 for record in result.records)


def test_a_queue_that_nothing_leaves_is_stuck_whatever_its_threshold_is() -> None:
    """Its headroom is in use and no packet of it can go, so it never looks at its threshold."""
    leaves = range(4)
    ways = [(f"{kind}{i}", f"L{i}") for kind in "abc" for i in leaves]
    ways += [pair for i in leaves for pair in ((f"L{i}", f"S{i}"), (f"S{i}", f"L{(i + 1) % 4}"))]
    topology = {
        "kind": "custom",
        "nodes": {f"{kind}{i}": "host" for kind in "abc" for i in leaves}
        | {f"{kind}{i}": "switch" for i in leaves for kind in "LS"},
        "links": [{"ends": list(way), "rate": "100Gbps", "delay": "300ns"} for way in ways],
    }
    flows = [
        {"id": f"{kind}{i}", "src": f"{kind}{i}", "dst": f"{kind}{(i + 2) % 4}", "size": "2MiB"}
        for kind in "abc"
        for i in leaves
    ]
    network = {"cc": {"kind": "none"}, "buffer": {"total": "4MB"}}
    result = run_scenario(load_scenario(scenario(topology, flows, network=network)))
    assert result.status == "deadlocked"
    assert len(result.to_dict()["network"]["deadlock"]) == 8  # all the way round


def test_a_circle_that_does_not_close_is_a_caution() -> None:
    """The same flows, too short to fill the buffers: the run ends, and says what could happen."""
    flows = [
        {"id": f"h{i}", "src": f"h{i}", "dst": f"h{(i + 2) % 3}", "size": "8kB",
         "path": [f"h{i}", *(f"s{(i + k) % 3}" for k in range(3)), f"h{(i + 2) % 3}"]}
        for i in range(3)
    ]  # fmt: skip
    result = run_scenario(scenario(TRIANGLE, flows, network={**BARE, "cc": {"kind": "none"}}))
    assert result.status == "completed"
    said = [line for line in result.warnings if "wait for each other in a circle" in line]
    assert said == [
        "lossless links can wait for each other in a circle, and so deadlock: "
        "s0:2>s1:2 -> s1:3>s2:2 -> s2:3>s0:3 (priority 3)"
    ]
    one_way = run_scenario(scenario(TRIANGLE, flows[:1], network=BARE))
    assert not [line for line in one_way.warnings if "circle" in line]


@pytest.mark.parametrize("engine", ["packet", "fluid"])
@pytest.mark.parametrize(
    ("priorities", "circle"), [((2, 2, 2), True), ((3, 3, 3), True), ((1, 2, 3), False)]
)
def test_links_wait_for_others_of_their_priority_alone(
    engine: str, priorities: tuple[int, ...], circle: bool
) -> None:
    flows = [
        {"id": f"h{i}", "src": f"h{i}", "dst": f"h{(i + 2) % 3}", "size": "8kB",
         "path": [f"h{i}", *(f"s{(i + k) % 3}" for k in range(3)), f"h{(i + 2) % 3}"],
         "priority": priority}
        for i, priority in enumerate(priorities)
    ]  # fmt: skip
    network = {"pfc": {"lossless": [1, 2, 3]}}
    result = run_scenario(scenario(TRIANGLE, flows, network=network) | {"engine": engine})
    assert any("in a circle" in line for line in result.raise_for_status().warnings) is circle


@pytest.mark.parametrize("engine", ["packet", "fluid"])
def test_pinned_paths_that_go_down_and_up_again_can_close_a_circle(engine: str) -> None:
    """Four leaves in a ring of four spines: each flow goes over two of them, through a valley."""
    ring = range(4)
    topology = {
        "kind": "custom",
        "nodes": {f"h{i}": "host" for i in ring}
        | {f"l{i}": {"type": "switch", "tier": "leaf"} for i in ring}
        | {f"s{i}": {"type": "switch", "tier": "spine"} for i in ring},
        "links": [
            {"ends": list(ends), "rate": "100Gbps", "delay": "500ns"}
            for i in ring
            for ends in ((f"h{i}", f"l{i}"), (f"l{i}", f"s{i}"), (f"s{i}", f"l{(i + 1) % 4}"))
        ],
    }
    flows = [
        {"id": f"f{i}", "src": f"h{i}", "dst": f"h{(i + 2) % 4}", "size": "8kB",
         "path": [f"h{i}", f"l{i}", f"s{i}", f"l{(i + 1) % 4}", f"s{(i + 1) % 4}",
                  f"l{(i + 2) % 4}", f"h{(i + 2) % 4}"]}
        for i in ring
    ]  # fmt: skip
    for n, told in ((4, True), (3, False)):
        result = run_scenario(scenario(topology, flows[:n]) | {"engine": engine})
        assert any("circle" in line for line in result.raise_for_status().warnings) is told


def test_a_lossy_priority_waits_for_nothing() -> None:
    flows = [
        {"id": f"h{i}", "src": f"h{i}", "dst": f"h{(i + 2) % 3}", "size": "8kB", "priority": 4,
         "path": [f"h{i}", *(f"s{(i + k) % 3}" for k in range(3)), f"h{(i + 2) % 3}"]}
        for i in range(3)
    ]  # fmt: skip
    result = run_scenario(scenario(TRIANGLE, flows)).raise_for_status()
    assert not [line for line in result.warnings if "circle" in line]


def test_what_a_lossy_priority_drops_is_sent_again() -> None:
    flows = [
        {"id": f"f{i}", "src": f"h{i}", "dst": "h2", "size": "8MiB", "priority": 0}
        for i in range(2)
    ]  # fmt: skip
    network = {"cc": {"kind": "none"}, "buffer": {"total": "1MB"}}
    result = run_scenario(scenario(star(3), flows, network=network)).raise_for_status()
    assert result.network["drops"]["buffer"] > 0
    assert result.network["retransmitted_bytes"] > 0
    with pytest.raises(InputError, match="no acknowledgements, but lost packets are repeated"):
        run_scenario(scenario(star(3), flows, network=network | BARE))


def test_a_collective_runs_its_own_graph() -> None:
    """A ring all_reduce over packets takes at least its bound and at most a little more."""
    data = {
        "schema": 1,
        "engine": "packet",
        "topology": star(4),
        "network": {"ack": {"every": 0}},
        "workload": {
            "kind": "collective", "op": "all_reduce", "sizes": ["4MiB"], "algorithm": "ring",
            "ranks": "all",
        },
    }  # fmt: skip
    result = run_scenario(data).raise_for_status()
    fluid = run_scenario(data | {"engine": "fluid"}).raise_for_status()
    (packet,), (rates,) = result.executed, fluid.executed
    took, least = packet.end_ps - packet.start_ps, packet.bound_ps
    assert least <= took < 1.05 * (rates.end_ps - rates.start_ps)


def test_victims_and_the_root_of_their_pauses_are_named() -> None:
    """Two senders fill a port; a third, which goes elsewhere, is held back behind them."""
    topology = {
        "kind": "custom",
        "nodes": {
            **{f"a{i}": "host" for i in (1, 2, 3)}, "r1": "host", "r2": "host",
            "s1": "switch", "s2": "switch",
        },
        "links": [
            *({"ends": [f"a{i}", "s1"], "rate": "100Gbps", "delay": "100ns"} for i in (1, 2, 3)),
            *({"ends": [f"r{i}", "s2"], "rate": "100Gbps", "delay": "100ns"} for i in (1, 2)),
            {"ends": ["s1", "s2"], "rate": "400Gbps", "delay": "100ns"},
        ],
    }  # fmt: skip
    flows = [
        {"id": "one", "src": "a1", "dst": "r1", "size": "8MiB"},
        {"id": "two", "src": "a2", "dst": "r1", "size": "8MiB"},
        {"id": "other", "src": "a3", "dst": "r2", "size": "8MiB"},
    ]
    network = {
        **BARE, "cc": {"kind": "none"}, "ecn": {"enabled": False}, "pfc": {"response": "0ns"},
        "buffer": {"mode": "static", "xoff": "100kB", "xon": "90kB", "headroom": "1MB"},
    }  # fmt: skip
    result = run_scenario(scenario(topology, flows, network=network)).raise_for_status()
    (victim,) = result.network["victims"]
    assert (victim["flow"], victim["root_port"].split(">")[1]) == ("other", "r1/nic0:0")
    assert victim["slowdown"] == pytest.approx(2, abs=0.05)
    fluid = run_scenario(scenario(topology, flows) | {"engine": "fluid"}).raise_for_status()
    assert fluid.records[2].fct_ps < 1.05 * fluid.records[2].bound_ps


def test_a_livelock_ends_the_command_and_keeps_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = {
        "recovery": "go-back-0", "loss": {"rate": 0.02}, "pfc": {"enabled": False},
        "livelock": 5000,
    }  # fmt: skip
    flows = [{"id": "f1", "src": "h0", "dst": "h1", "size": "8MiB"}]
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump(scenario(star(2), flows, network=network)))
    assert run_command_line(["run", str(file), "-o", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert "5000 packets were sent again" in said
    assert "flow 'f1' (h0/nic0 -> h1/nic0) waits for packet" in said
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["status"] == "failed"
    assert [one["work"] for one in result["network"]["livelock"]] == ["flow 'f1'"]
    assert result["network"]["livelock"][0]["packets"] == 2048


@pytest.mark.parametrize(
    ("network", "flow", "says"),
    [
        (
            "{mtu: 4096B,\n  recovery: trim}",
            "",
            "s.yaml:10: network.recovery: nothing is ever trimmed where every link is lossless",
        ),
        (
            "{mtu: 4096B,\n  rto: 0ns}",
            "",
            "s.yaml:10: network.rto: 0ns is too little; expected none",
        ),
        (
            "{mtu: 4096B,\n  mtu_: 1}",
            ", start: 1ms,\n  weight: 2",
            "s.yaml:10: network.mtu_: ",
        ),
        (
            "{\n  mtu: 4096B}",
            ", start: 1ms,\n  weight: 2",
            "s.yaml:15: workload.flows[0].weight: flow 'f' has weight 2, which packets do not heed",
        ),
        (
            "{\n  buffer: {total: 60kB}}",
            ", start: 1ms",
            "s.yaml:10: network.buffer: reserve and headroom of 's' take",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_line_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], network: str, flow: str, says: str
) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(
        "schema: 1\nengine: packet\ntopology:\n  kind: custom\n"
        "  nodes: {a: host, b: host, s: switch}\n  links:\n"
        "    - {ends: [a, s], rate: 100Gbps, delay: 500ns, count: 1}\n"
        "    - {ends: [b, s], rate: 100Gbps, delay: 500ns, count: 1}\n"
        f"network: {network}\n"
        "workload:\n  kind: flows\n  flows:\n"
        f"  - {{id: f, src: a, dst: b, size: 1MB{flow}}}\n"
    )
    assert run_command_line(["run", str(file), "-o", str(tmp_path / "out")]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_setting_of_the_topology_is_found_in_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fabric = star(2) | {"schema": 1, "name": "two", "network": {"recovery": "trim"}}
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(fabric, sort_keys=False))
    flows = [{"id": "f", "src": "h0", "dst": "h1", "size": "1MB"}]
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump(scenario(star(2), flows) | {"topology": "two.yaml"}))
    assert run_command_line(["run", str(file), "-o", str(tmp_path / "out")]) == 2
    line = (tmp_path / "two.yaml").read_text().splitlines().index("  recovery: trim") + 1
    assert f"two.yaml:{line}: network.recovery: nothing is ever trimmed" in capsys.readouterr().err


def test_a_look_for_deadlocks_is_the_same_compiled() -> None:
    flows = [
        {"id": f"{h}{i}", "src": f"{h}{i}", "dst": f"{h}{(i + 2) % 3}", "size": "8MiB",
         "path": [f"{h}{i}", *(f"s{(i + k) % 3}" for k in range(3)), f"{h}{(i + 2) % 3}"]}
        for h in "hg" for i in range(3)
    ]  # fmt: skip
    network = {**BARE, "cc": {"kind": "none"}, "buffer": {"total": "3MB"}}
    engine = prepare(load_scenario(scenario(TRIANGLE, flows, network=network))).engine
    assert isinstance(engine, PacketEngine)
    with pytest.raises(StalledError):
        engine.env.run()
    state = engine.state
    arrays = (
        state.runs, state.ports, state.egress, state.ingress, state.switches, state.swports,
        state.packets,
    )  # fmt: skip
    left = strike_off(*arrays)
    waits = state.ingress.waits.tolist()
    assert (as_python(strike_off, *arrays), state.ingress.waits.tolist()) == (left, waits)
    assert left == sum(waits) == 9  # the cables of the hosts wait for the circle
    assert len(engine.cycle) == 3


def test_lossless_drops_are_named() -> None:
    flows = [{"id": f"f{i}", "src": f"h{i}", "dst": "h4", "size": "1MiB"} for i in range(4)]
    network = {**BARE, "cc": {"kind": "none"}}
    network["buffer"] = {"mode": "static", "xoff": "100KB", "headroom": "0B", "total": "100MB"}
    result = run_scenario(scenario(star(5), flows, network=network))
    dropped = result.network["drops"]["lossless_violation"]
    assert dropped > 0
    named = [w for w in result.warnings if "of lossless priorities found no headroom" in w]
    assert [w.split()[0] for w in named] == [f"{dropped:,}"]
    assert ">s1:" in named[0]


def test_a_bound_counts_what_is_sent_once() -> None:
    flows = [{"id": f"f{i}", "src": f"h{i}", "dst": "h4", "size": "1MiB"} for i in range(4)]
    network = {**BARE, "ack": {"every": 4}, "cc": {"kind": "none"}, "recovery": "go-back-n"}
    network |= {"pfc": {"enabled": False}, "loss": {"rate": 0.01}}
    result = run_scenario(scenario(star(5), flows, network=network)).raise_for_status()
    assert result.network["retransmitted_bytes"] > 10**6
    least = 4 * (256 * 4178 + 16) * 80  # each frame crosses the receiver's link once
    assert least * 0.5 < result.bound_ps <= least
