# SPDX-License-Identifier: Apache-2.0
"""Links that fail and come back under packets, pause storms, and the watchdog against them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from railweave.fabric.errors import InputError
from railweave.fabric.packet.engine import PacketEngine
from railweave.runner import prepare, run_scenario
from railweave.scenario import Scenario, load_scenario
from railweave.tools.cli import run_command_line

if TYPE_CHECKING:
    from pathlib import Path

    from railweave.fabric.packet.settings import PacketSettings

US = 10**6
MS = 1000 * US
FRAME = 4178


def leaf_spine(**keys: Any) -> dict[str, Any]:
    """Two leaves of two hosts, two spines, 100 Gb/s; h0 and h1 send 4 MB each to h2 and h3."""
    nodes: dict[str, Any] = {f"h{i}": "host" for i in range(4)}
    nodes |= {f"l{i}": {"type": "switch", "tier": "leaf"} for i in range(2)}
    nodes |= {f"s{i}": {"type": "switch", "tier": "spine"} for i in range(2)}
    ends = [[f"h{i}", f"l{i // 2}"] for i in range(4)]
    ends += [[f"l{i}", f"s{j}"] for i in range(2) for j in range(2)]
    links = [
        {"ends": pair, "rate": "100Gbps", "delay": "500ns", "model": "roce-lossless"}
        for pair in ends
    ]  # fmt: skip
    flows = [{"id": f"f{i}", "src": f"h{i}", "dst": f"h{i + 2}", "size": "4MB"} for i in range(2)]
    return {
        "schema": 1, "engine": "packet",
        "topology": {"kind": "custom", "nodes": nodes, "links": links},
        "routing": {"policy": "rail", "detection_delay": "100us"},
        "network": {"cc": {"kind": "none"}, "host_latency": "0ns", "rto": "50us", "retries": 50},
        "workload": {"kind": "flows", "flows": flows},
    } | keys  # fmt: skip


def merged(base: dict[str, Any], **network: Any) -> dict[str, Any]:
    return base | {"network": base["network"] | network}


RECOVERIES: dict[str, dict[str, Any]] = {
    "go-back-n": {"recovery": "go-back-n"},
    "selective-repeat": {"recovery": "selective-repeat"},
    "trim": {"recovery": "trim", "pfc": {"enabled": False}},
}
DOWN = {"at": "100us", "node": "s0", "do": "down"}


def delivered(result: Any) -> None:
    assert result.status == "completed", result.error
    assert all(record.end_ps > 0 for record in result.records)


# ------------------------------------------------------------------ links
@pytest.mark.parametrize("policy", ["rail", "spray"])
@pytest.mark.parametrize("recovery", RECOVERIES)
@pytest.mark.parametrize("lasts", [None, "150us", "30us"])
def test_no_byte_is_lost_for_good(recovery: str, policy: str, lasts: str | None) -> None:
    fault = DOWN if lasts is None else DOWN | {"for": lasts}
    base = leaf_spine(faults=[fault])
    base["routing"] = base["routing"] | {"policy": policy}
    result = run_scenario(merged(base, **RECOVERIES[recovery]))
    delivered(result)
    net = result.network
    assert net["drops"]["link_down"] > 0
    assert net["retransmitted_bytes"] > 0
    assert net["drops"]["lossless_violation"] == 0
    assert [row["did"] for row in net["faults"]] == ["down"] + ["up again"] * (lasts is not None)
    # Routing follows after 100 us, and again when the spine is back; 30 us it does not notice.
    times = {None: [200 * US], "150us": [200 * US, 350 * US], "30us": []}[lasts]
    assert [row["at_ps"] for row in net["reroutes"]] == times
    clean = run_scenario(merged(leaf_spine(routing=base["routing"]), **RECOVERIES[recovery]))
    assert max(r.end_ps for r in result.records) > max(r.end_ps for r in clean.records)


@pytest.mark.parametrize("policy", ["ecmp", "spray", "adaptive", "flowlet"])
def test_a_flow_that_begins_without_a_route_waits_for_one(policy: str) -> None:
    """h2 is cut off from 100 to 300 us, which routing knows from 200 to 400 us."""
    base = leaf_spine(faults=[{"at": "100us", "node": "h2", "do": "down", "for": "200us"}])
    base["routing"] = base["routing"] | {"policy": policy}
    flow = {"id": "f", "src": "h0", "dst": "h2", "size": "1MB", "start": "250us"}
    base["workload"] = {
        "kind": "flows",
        "flows": [flow, flow | {"id": "g", "src": "h2", "dst": "h0"}],
    }
    result = run_scenario(base)
    delivered(result)
    assert all(300 * US < record.end_ps < 700 * US for record in result.records)


def test_the_command_tells_what_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump(leaf_spine(faults=[DOWN | {"for": "150us"}])))
    assert run_command_line(["run", str(file), "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert re.search(r"200 us +routes +[12] changed, [12] queue pairs moved", said), said


def test_what_is_on_the_wire_and_in_the_queue_is_lost_exactly() -> None:
    """One flow; its spine goes down in the middle of a frame, for less than the delay."""
    base = leaf_spine(faults=[DOWN | {"at": "100100ns", "for": "20us"}])
    base["workload"] = {"kind": "flows", "flows": base["workload"]["flows"][:1]}
    base["network"] = base["network"] | {"frame_overhead": "82B", "switch_latency": "0ns"}
    base["network"]["ack"] = {"every": 2000}  # no answers on the way
    result = run_scenario(base)
    delivered(result)
    # Until the fault ends at 120.1 us, frame k (from 0) arrives at l0 at (k + 1) 334.24 + 500 ns
    # and goes on at once; it reaches s0 at (k + 2) 334.24 + 1000 ns. Lost are the frames that would
    # come to s0, come to l0, or come from s0 to l1 while s0 is down.
    tau = 334.24
    down, up = 100_100.0, 120_100.0
    lost = 0
    for k in range(977):
        at_leaf, at_spine, at_far = ((hops + k) * tau + hops * 500 for hops in (1, 2, 3))
        # l0 has nowhere to send it; or it is on a wire that is down when it would arrive
        lost += any(down <= at < up for at in (at_leaf, at_spine, at_far))
    assert result.network["drops"]["link_down"] == lost


def test_a_host_keeps_what_it_has_until_its_cable_is_back() -> None:
    base = leaf_spine(faults=[{"at": "100us", "node": "h0", "do": "down", "for": "60us"}])
    result = run_scenario(merged(base, rto="1ms"))
    delivered(result)
    first, other = (record.fct_ps for record in result.records)
    assert other < first < other + 62 * US + 1000 * US


def test_a_degraded_link_slows_who_crosses_it() -> None:
    base = leaf_spine(faults=[{"at": "100us", "node": "l0", "do": "degrade", "rate": "50Gbps"}])
    result = run_scenario(base)
    delivered(result)
    sent = 100 * US * 100e9 / 8e12  # bytes on the wire before
    left = result.records[0].wire_bytes - sent
    expected = 100 * US + left * 160
    assert result.records[0].fct_ps == pytest.approx(expected, rel=0.02)


def test_a_queue_pair_without_any_way_gives_up() -> None:
    faults = [{"at": "100us", "node": f"s{i}", "do": "down"} for i in range(2)]
    base = merged(leaf_spine(faults=faults), retries=3)
    result = run_scenario(base)
    assert result.status == "failed"
    assert "gave up after 3 retries" in str(result.error)


def test_queue_pairs_live_until_a_failure_is_noticed() -> None:
    """Without keys of recovery, and routing that takes 10 ms to notice: 7 x 2.1 ms outlast it."""
    base = leaf_spine(faults=[DOWN], routing={"policy": "rail"})
    base["network"] = {"cc": {"kind": "none"}}
    result = run_scenario(base)
    delivered(result)
    assert 10 * MS < max(record.end_ps for record in result.records) < 13 * MS
    short = run_scenario(merged(base, rto="500us"))
    assert short.status == "failed"
    assert (
        "queue pairs give up after 7 retries of 500us, before a failed link or a paused queue is "
        "noticed (10ms): a longer network.rto or more network.retries let them live"
    ) in short.warnings


@pytest.mark.parametrize("expiry", [False, True])
def test_pauses_do_not_pass_a_link_that_is_down(expiry: bool) -> None:
    """A cable that pauses went over goes down and comes back: what it said before is forgotten.

    Without expiry a resume that was lost with the cable would never be made good.
    """
    base = leaf_spine(faults=[DOWN | {"node": "h2", "for": "40us"}])
    base["workload"]["flows"] = [
        {"id": f"f{i}", "src": f"h{i}", "dst": "h2", "size": "1MB"} for i in (0, 1, 3)
    ]
    keys = {"buffer": {"mode": "static", "xoff": "20kB"}, "pfc": {"expiry": expiry}}
    base["faults"].append({"at": "105us", "node": "h3", "do": "down", "for": "50us"})
    run = prepare(load_scenario(merged(base, **keys)))
    run.env.run()
    assert isinstance(run.engine, PacketEngine)
    assert all(record.end_ps > 0 for record in run.engine.records())
    state = run.engine.state
    assert state.ports.pauses.sum() > 0
    assert (state.ports.blocked == 0).all()
    assert state.run.blocked == 0


@pytest.mark.parametrize("storm", [False, True])
@pytest.mark.parametrize("change", [{"use_wheel": False}, {"lazy_ends": False}])
def test_what_only_costs_time_gives_the_same_run(
    monkeypatch: pytest.MonkeyPatch, storm: bool, change: dict[str, bool]
) -> None:
    """A heap instead of the wheel; an event for the end of every frame."""
    dog = {"detect": "300us", "poll": "100us"}
    base = (
        stormy({"for": "900us"}, watchdog=dog)
        if storm
        else leaf_spine(faults=[DOWN | {"for": "200us"}])
    )
    usual = Scenario.packet.fget
    seen = []
    for changed in ({}, change):

        def settings(scenario: Scenario, changed: dict[str, bool] = changed) -> PacketSettings:
            return replace(usual(scenario), **changed)

        monkeypatch.setattr(Scenario, "packet", property(settings))
        run = prepare(load_scenario(merged(base, recovery="selective-repeat")))
        assert isinstance(run.engine, PacketEngine)
        assert run.engine.state.run.use_wheel == changed.get("use_wheel", True)
        assert run.engine.state.run.eager == (not changed.get("lazy_ends", True))
        run.env.run()
        seen.append(([record.end_ps for record in run.engine.records()], run.engine.network()))
    assert seen[0] == seen[1]
    assert min(seen[0][0]) > 0


# ------------------------------------------------------------------ storms
def stormy(storm: dict[str, Any], *, watchdog: dict[str, Any] | None = None) -> dict[str, Any]:
    """h2 storms; f0 goes to it, f1 does not. Both cross s0's or s1's way to l1."""
    pfc: dict[str, Any] = {} if watchdog is None else {"watchdog": watchdog}
    base = merged(
        leaf_spine(faults=[{"at": "50us", "node": "h2", "do": "pause-storm"} | storm]),
        pfc=pfc, rto="2ms", buffer={"total": "2MB"},
    )  # fmt: skip
    base["workload"]["flows"].append({"id": "f2", "src": "h1", "dst": "h2", "size": "1MB"})
    return base


def test_a_storm_stops_who_it_pauses_and_whoever_is_behind() -> None:
    calm = run_scenario(stormy({"for": "1us"}))
    result = run_scenario(stormy({"for": "1500us"}))
    delivered(result)
    assert all(r.end_ps > 1500 * US for r in result.records if r.flow.id in ("f0", "f2"))
    assert result.network["paused_ps_total"] > calm.network["paused_ps_total"]
    assert result.network["drops"]["lossless_violation"] == 0
    by_id = {r.flow.id: r.fct_ps for r in result.records}
    was = {r.flow.id: r.fct_ps for r in calm.records}
    assert by_id["f1"] > was["f1"]  # a victim: it shares h1's cable with f2
    (victim,) = result.network["victims"]
    assert (victim["flow"], victim["root_port"]) == ("f1", "l1:0>h2/nic0:0")


def test_an_endless_storm_without_a_watchdog_is_told() -> None:
    result = run_scenario(stormy({}))
    assert result.status == "deadlocked"
    assert "under the pause storm of h2/nic0:0>l1:0" in str(result.error)


@pytest.mark.parametrize("action", ["drop", "forward"])
def test_the_watchdog_lets_the_queue_loose(action: str) -> None:
    dog = {"detect": "300us", "poll": "100us", "action": action}
    result = run_scenario(stormy({"for": "1500us"}, watchdog=dog))
    delivered(result)
    (found,) = [row for row in result.network["watchdog"] if row["port"].startswith("l1:0>h2")][:1]
    assert 300 * US <= found["detected_ps"] - found["paused_since_ps"] <= 400 * US
    assert found["detected_ps"] % (100 * US) == 0
    assert found["action"] == action
    dropped = result.network["drops"]["watchdog"]
    assert (dropped > 0) == (action == "drop")
    if action == "forward":
        assert all(r.end_ps < 1500 * US for r in result.records)


def test_an_alert_changes_nothing() -> None:
    dog = {"detect": "300us", "poll": "100us", "action": "alert"}
    told = run_scenario(stormy({"for": "1500us"}, watchdog=dog))
    calm = run_scenario(stormy({"for": "1500us"}))
    assert told.network["watchdog"]
    assert [r.end_ps for r in told.records] == [r.end_ps for r in calm.records]


def test_pauses_are_refreshed_as_often_as_asked() -> None:
    often = merged(stormy({"for": "1500us"}), pfc={"refresh": "50us"})
    seldom = stormy({"for": "1500us"})
    counts = [run_scenario(one).network["pause_frames"] for one in (often, seldom)]
    assert counts[0] > counts[1]


def test_the_pauses_of_a_storm_are_counted_as_sent() -> None:
    """From 50 us on every 50 us, for 1500 us: 30 frames of the one port of h2, none a resume."""
    result = run_scenario(merged(stormy({"for": "1500us"}), pfc={"refresh": "50us"}))
    names = [result.fabric.link_name(i) for i in range(result.fabric.n_links)]
    sent = dict(zip(names, result.link_columns["pause_frames_sent"], strict=True))
    heard = dict(zip(names, result.link_columns["pause_frames_received"], strict=True))
    assert sent["h2/nic0:0>l1:0"] == heard["l1:0>h2/nic0:0"] == 30
    assert result.network["pause_frames"] == sum(sent.values()) > 30
    assert result.network["resume_frames"] < result.network["pause_frames"] - 20


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"node": "s0", "do": "pause-storm"}, "sends no pauses from a host"),
        ({"node": "h0", "do": "down", "priority": 3}, "only a pause storm has a priority"),
    ],
)
def test_storms_that_cannot_be(fault: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        run_scenario(leaf_spine(faults=[fault]))
