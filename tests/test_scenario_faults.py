# SPDX-License-Identifier: Apache-2.0
"""Scenarios whose links fail in the middle of a run, from the file to the run folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import railweave
from railweave.fabric.errors import InputError
from railweave.run_folder import RunFolder, Stopwatch
from railweave.runner import run_scenario
from railweave.tools.cli import run_command_line
from railweave.trace_events import trace_events

if TYPE_CHECKING:
    from railweave.result import Result

EXAMPLE = Path(__file__).parent.parent / "examples" / "lost-cable.yaml"
MS = 10**9
FABRIC = {
    "kind": "custom",
    "nodes": {
        "h0": "host", "h1": "host", "h2": "host",
        "l0": {"type": "switch", "tier": "leaf"}, "l1": {"type": "switch", "tier": "leaf"},
        "s0": {"type": "switch", "tier": "spine"}, "s1": {"type": "switch", "tier": "spine"},
    },
    "links": [
        {"ends": ends, "rate": "100Gbps", "delay": "0s"}
        for ends in (
            ["h0", "l0"], ["h1", "l1"], ["h2", "l1"],
            ["l0", "s0"], ["l0", "s1"], ["l1", "s0"], ["l1", "s1"],
        )
    ],
}  # fmt: skip


def scenario(*faults: dict[str, Any], size: str = "100MB", **more: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "topology": FABRIC,
        "network": {
            "frame_overhead": "0B", "switch_latency": "0s", "host_latency": "0s",
            "switching": "cut-through", "ack": {"every": 0},
        },
        "routing": {"detection_delay": "1ms", "policy": "rail"},
        "faults": list(faults),
        "workload": {
            "kind": "flows",
            "flows": [{"id": "f", "src": "h0", "dst": "h1", "size": size}],
        },
        **more,
    }  # fmt: skip


TAIL = 3 * 128 * 80  # headers read at three switches


def end_of(result: Result, flow: str = "f") -> int:
    return next(record.end_ps for record in result.records if record.flow.id == flow)


def test_the_example_to_the_picosecond() -> None:
    result = run_scenario(EXAMPLE)
    # 512 MiB are 547,618,832 wire bytes at 20 ps. f0 has the link alone but from 3 to 9 ms, when
    # two share it; f1 stands from 2 to 3 ms besides.
    alone = 547_618_832 * 20
    latency = min(record.bound_ps for record in result.records) - alone
    assert end_of(result, "f0") == alone + 3 * MS + latency
    assert end_of(result, "f1") == alone + 4 * MS + latency
    assert result.links.by_tier()["host-leaf"]["wire_bytes"] == 4 * 547_618_832
    assert result.links.by_tier()["leaf-spine"]["wire_bytes"] == 4 * 547_618_832
    assert "rerouted at 3ms, 9ms: flow f1" in result.warnings
    assert (
        "1 transfer stood still on links that carried nothing, the longest for 1ms (flow f1)"
        in result.warnings
    )
    assert result.to_dict()["network"]["faults"] == [
        {"at_ps": 2 * MS, "what": "leaf0:3-spine1:0", "did": "down", "links": 2},
        {"at_ps": 8 * MS, "what": "leaf0:3-spine1:0", "did": "up again", "links": 2},
    ]


def test_a_run_is_repeated_from_its_folder(tmp_path: Path) -> None:
    result = run_scenario(EXAMPLE)
    folder = RunFolder(tmp_path / "one", name="one", force=False)
    folder.write(result, Stopwatch())
    again = run_scenario(tmp_path / "one" / "scenario.yaml")
    assert again.to_dict()["network"] == result.to_dict()["network"]
    assert [one.end_ps for one in again.records] == [one.end_ps for one in result.records]


def test_a_timeline_marks_faults_and_reroutes() -> None:
    marks = [
        event for event in trace_events(run_scenario(EXAMPLE))["traceEvents"] if event["ph"] == "i"
    ]
    assert [(mark["name"], mark["ts"], mark["s"]) for mark in marks] == [
        ("leaf0:3-spine1:0 down", 2000, "g"),
        ("1 routes changed", 3000, "g"),
        ("leaf0:3-spine1:0 up again", 8000, "g"),
        ("1 routes changed", 9000, "g"),
    ]
    calm = trace_events(run_scenario(EXAMPLE, overrides={"faults": []}))
    assert all(event["ph"] != "i" for event in calm["traceEvents"])


def test_the_command_line_prints_the_faults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["run", str(EXAMPLE), "-o", str(tmp_path / "out")]) == 0
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    at = shown.index("faults")
    assert shown[at + 1 : at + 5] == [
        "2 ms leaf0:3-spine1:0 down",
        "3 ms routes 1 changed, 1 in flight moved",
        "8 ms leaf0:3-spine1:0 up again",
        "9 ms routes 1 changed, 1 in flight moved",
    ]


def test_what_nothing_restores_fails_the_run_and_keeps_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cut.json"
    source = scenario({"at": "2ms", "node": "h1", "do": "down"}, name="cut")
    source["workload"]["flows"].append({"id": "g", "src": "h0", "dst": "h2", "size": "10MB"})
    file.write_text(json.dumps(source))
    assert run_command_line(["run", str(file), "-o", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert "no route from 'h0/nic0' to 'h1/nic0' since 2ms" in error
    assert "no link of 'h1/nic0' is in service" in error
    kept = json.loads((tmp_path / "out" / "result.json").read_text())
    assert kept["status"] == "deadlocked"
    assert (kept["flows"]["count"], kept["flows"]["ended"]) == (2, 1)
    assert kept["network"]["reroutes"][-1]["without_route"] == 1
    assert kept["network"]["stalls"]["by_name"][0]["name"] == "flow f"
    assert kept["network"]["stalls"]["by_name"][0]["ended"] is False


def test_the_delay_is_ten_milliseconds_unless_told() -> None:
    down = {"at": "1ms", "link": "l0:1-s0:0", "do": "down"}
    took = []
    for fault in (down, down | {"link": "l0:2-s1:0"}):
        source = scenario(fault)
        del source["routing"]["detection_delay"]
        took.append(end_of(run_scenario(source)))
    assert sorted(took) == [8 * MS + TAIL, 18 * MS + TAIL]


@pytest.mark.parametrize(
    ("faults", "took_ps"),
    [
        # The flow goes by s0 (rail: by its destination), 100 MB in 8 ms.
        ([{"at": "2ms", "node": "s0", "do": "down"}], 9 * MS),
        ([{"at": "2ms", "node": "s0", "do": "down", "for": "500us"}], 8 * MS + MS // 2),
        (
            [
                {"at": "2ms", "node": "s0", "do": "down"},
                {"at": "3ms", "link": "l0:1-s0:0", "do": "down", "for": "1ms"},
                {"at": "3ms", "node": "s0", "do": "up"},
            ],
            9 * MS,
        ),
        ([{"at": "2ms", "node": "s1", "do": "down"}], 8 * MS),
        ([{"at": "2ms", "node": "l0", "do": "degrade", "rate": "50Gbps"}], 14 * MS),
        ([{"at": "2ms", "node": "l0", "do": "degrade", "rate": "50Gbps", "for": "4ms"}], 10 * MS),
        ([{"node": "l0", "do": "degrade", "rate": "50Gbps", "for": "4ms"}], 10 * MS),
        # Routes know of what precedes the run; what comes back then is used after the delay.
        ([{"node": "s0", "do": "down", "for": "3ms"}], 8 * MS),
        # Both overlap: down from 2 ms to 4 ms, back in the routes at 5 ms.
        (
            [
                {"at": "2ms", "node": "h1", "do": "down", "for": "2ms"},
                {"at": "3ms", "link": "h1/nic0:0-l1:0", "do": "down", "for": "500us"},
            ],
            11 * MS,
        ),
    ],
)  # fmt: skip
def test_faults_of_a_scenario(faults: list[dict[str, Any]], took_ps: int) -> None:
    assert end_of(run_scenario(scenario(*faults))) == took_ps + TAIL


@pytest.mark.parametrize(
    ("fault", "field", "said"),
    [
        ({"at": "2ms", "node": "s9", "do": "down"}, "node", "'s9' is not a device"),
        ({"at": "2ms", "link": "l0:1-s0:7", "do": "down"}, "link", "did you mean 'l0:1-s0:0'?"),
        ({"at": "2ms", "link": "l0", "do": "down"}, "link", "A:port-B:port"),
        ({"at": "2ms", "node": "s0", "do": "up"}, "node", "'s0' is not down at 2ms"),
        ({"at": "2ms", "node": "s0", "do": "up", "for": "1ms"}, "for", "'up' has no end"),
        ({"at": "-2ms", "node": "s0", "do": "down"}, "at", "0"),
        ({"at": 2, "node": "s0", "do": "down"}, "at", "unit"),
        ({"node": "s0", "do": "degrade", "rate": "101Gbps"}, "rate", "at most 100Gbps"),
        ({"at": "1ms", "node": "s0", "do": "degrade", "rate": "0bps"}, "rate", "0"),
        ({"at": "1ms", "node": "s0", "do": "pause-storm"}, "do", "engine sees no pauses"),
        ({"at": "1ms", "node": "s0", "do": "dwon"}, "do", "did you mean 'down'?"),
    ],
)
def test_bad_faults_are_located(
    tmp_path: Path, fault: dict[str, Any], field: str, said: str
) -> None:
    lines = "".join(f"    {key}: {json.dumps(value)}\n" for key, value in fault.items())
    rest = {key: value for key, value in scenario().items() if key != "faults"}
    head = "".join(f"{key}: {json.dumps(value)}\n" for key, value in rest.items())
    file = tmp_path / "bad.yaml"
    file.write_text(f"faults:\n  -\n{lines}{head}")
    with pytest.raises(InputError) as caught:
        run_scenario(file)
    assert caught.value.file == str(file)
    assert caught.value.line == 3 + list(fault).index(field)
    assert caught.value.field is not None
    assert caught.value.field.endswith(field)
    assert said in str(caught.value)


def test_an_all_to_all_gets_over_a_lost_spine() -> None:
    source = {
        "schema": 1,
        "topology": "h100-rail-8",
        "routing": {"detection_delay": "1ms"},
        "faults": [{"at": "300us", "node": "spine0", "do": "down", "for": "3ms"}],
        "workload": {"kind": "collective", "op": "all_to_all", "size": "256MiB"},
    }
    hit = run_scenario(source)
    calm = run_scenario(source | {"faults": []})
    assert hit.status == calm.status == "completed"
    assert hit.sim_time_ps > calm.sim_time_ps
    tiers, before = hit.links.by_tier(), calm.links.by_tier()
    assert {k: v["wire_bytes"] for k, v in tiers.items()} == {
        k: v["wire_bytes"] for k, v in before.items()
    }
    assert railweave.run_scenario(source).to_dict() == hit.to_dict()


def test_a_host_in_the_name_of_a_cable():
    with pytest.raises(InputError, match=r"'h0' is a host, and cables end at its NICs") as caught:
        railweave.run_scenario(
            railweave.load_scenario(
                {
                    "schema": 1,
                    "topology": {
                        "kind": "custom",
                        "nodes": {"h0": "host", "h1": "host", "s0": "switch"},
                        "links": [
                            {"ends": [host, "s0"], "rate": "100Gbps", "delay": "500ns"}
                            for host in ("h0", "h1")
                        ],
                    },
                    "faults": [{"at": "1ms", "link": "h0:0-s0:0", "do": "down"}],
                    "workload": {
                        "kind": "flows",
                        "flows": [{"src": "h0", "dst": "h1", "size": "1MiB"}],
                    },
                }
            )
        )
    assert caught.value.nearest == "h0/nic0:0-s0:0"
