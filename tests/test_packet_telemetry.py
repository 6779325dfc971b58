# SPDX-License-Identifier: Apache-2.0
"""Counters of links and priorities, queues over time, and their files."""

from __future__ import annotations

import csv
import json
from io import StringIO
from itertools import pairwise
from typing import Any

import pytest

from railweave.fabric.errors import InputError
from railweave.run_folder import Stopwatch, run_files
from railweave.runner import run_scenario
from railweave.trace_events import trace_events

US = 10**6


def incast(senders: int = 2, **keys: Any) -> dict[str, Any]:
    nodes: dict[str, Any] = {f"h{i}": "host" for i in range(senders + 1)} | {"s": "switch"}
    links = [
        {"ends": [f"h{i}", "s"], "rate": "100Gbps", "delay": "0ns"} for i in range(senders + 1)
    ]
    flows = [
        {"id": f"f{i}", "src": f"h{i}", "dst": f"h{senders}", "size": "409600B"}
        for i in range(senders)
    ]
    network = {
        "frame_overhead": "82B", "switch_latency": "0ns", "host_latency": "0ns",
        "ack": {"every": 0}, "cc": {"kind": "none"},
    }  # fmt: skip
    return {
        "schema": 1, "engine": "packet", "network": network,
        "topology": {"kind": "custom", "nodes": nodes, "links": links},
        "workload": {"kind": "flows", "flows": flows},
    } | keys  # fmt: skip


def test_a_queue_is_sampled_frame_by_frame() -> None:
    """Two senders at line rate: the queue grows by a frame in each frame's time, then drains."""
    frame = 4178 * 80
    result = run_scenario(incast(telemetry={"every": f"{frame}ps", "ports": ["s:2"], "most": 1000}))
    rows = result.port_series
    assert {row[1] for row in rows} == {"s:2>h2/nic0:0"}
    queue = {row[0] // frame: row[2] for row in rows}
    # Two arrive at each tick from 1 to 100 and one leaves at each from 2 to 201, before they come.
    expected = {k: (2 * min(k, 100) - (k - 1)) * 4178 for k in range(1, 202)}
    assert queue == {k: expected[k] for k in queue}
    assert len(queue) >= 199
    sent = {row[0] // frame: row[3] for row in rows}
    assert sent[100] == 100 * 4178  # the frame being sent counts


def test_a_series_is_bounded_and_percentiles_are_those_of_time() -> None:
    frame = 4178 * 80
    base = incast(telemetry={"every": f"{frame}ps", "ports": ["s:2"], "most": 16})
    result = run_scenario(base)
    times = sorted({row[0] for row in result.port_series})
    assert 8 <= len(times) <= 16
    assert len({b - a for a, b in pairwise(times)}) == 1
    full = run_scenario(incast(telemetry={"every": f"{frame}ps"}))
    assert full.port_series == ()
    link = [full.fabric.link_name(i) for i in range(full.fabric.n_links)].index("s:2>h2/nic0:0")
    median = full.link_columns["queue_p50_bytes"][link]
    # The queue of 1 to 101 and back down to 1 frames has its median at 51 of them.
    assert median <= 51 * 4178 <= median * 1.07
    assert full.link_columns["queue_p99_bytes"][link] > 90 * 4178


def test_sampling_changes_nothing() -> None:
    plain = run_scenario(incast(4))
    sampled = run_scenario(incast(4, telemetry={"every": "1us", "ports": ["s:4", "s:0"]}))
    assert plain.network == sampled.network
    assert [r.end_ps for r in plain.records] == [r.end_ps for r in sampled.records]
    assert plain.link_columns.items() <= sampled.link_columns.items()


def test_files_and_tracks() -> None:
    result = run_scenario(incast(telemetry={"every": "5us", "ports": ["s:2"]}))
    rows = list(csv.DictReader(StringIO(run_files(result, Stopwatch())["ports.csv"])))
    assert rows[0]["time_ps"] == str(5 * US)
    assert int(rows[0]["queue_bytes"]) == result.port_series[0][2]
    tracks = [e for e in trace_events(result)["traceEvents"] if e["ph"] == "C"]
    assert {e["name"] for e in tracks} == {"queue s:2>h2/nic0:0", "paused s:2>h2/nic0:0"}
    assert json.dumps(tracks)
    assert result.scenario["telemetry"]["ports"] == ["s:2"]


def test_counters_stand_at_the_links_where_they_happen() -> None:
    network = {"recovery": "selective-repeat", "loss": {"rate": 0.01}, "pfc": {"enabled": False}}
    base = incast()
    base["network"] = {**base["network"], "ack": {"every": 1}, **network}
    result = run_scenario(base)
    columns, net = result.link_columns, result.network
    names = [result.fabric.link_name(i) for i in range(result.fabric.n_links)]
    assert sum(columns["lost"]) == net["drops"]["random"] > 0
    assert sum(columns["retransmitted_bytes"]) == net["retransmitted_bytes"] > 0
    first = {name for name, size in zip(names, columns["retransmitted_bytes"], strict=True) if size}
    assert first <= {"h0/nic0:0>s:0", "h1/nic0:0>s:1"}
    late = {name for name, n in zip(names, columns["out_of_sequence"], strict=True) if n}
    assert late == {"s:2>h2/nic0:0"}
    assert sum(columns["out_of_sequence"]) == net["out_of_sequence"]


def test_two_priorities_have_columns_of_their_own() -> None:
    base = incast()
    base["network"]["pfc"] = {"lossless": [3, 4]}
    base["network"]["buffer"] = {"mode": "static", "xoff": "20kB"}
    base["workload"]["flows"][1]["priority"] = 4
    columns = run_scenario(base).link_columns
    both = [a + b for a, b in zip(columns["paused_ps_p3"], columns["paused_ps_p4"], strict=True)]
    assert both == columns["paused_ps"]
    assert sum(columns["pause_frames_sent_p3"]) > 0
    assert sum(columns["pause_frames_sent_p4"]) > 0


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"telemetry": {"ports": ["s:9"]}}, "telemetry.ports.*'s' has no port 9"),
        ({"telemetry": {"ports": ["t:1"]}}, "'t' is not a device"),
        ({"telemetry": {"every": 5}}, "telemetry.every"),
        ({"engine": "fluid", "telemetry": {}}, "the fluid engine has no queues"),
    ],
)
def test_bad_telemetry_is_refused(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        run_scenario(incast() | keys)
