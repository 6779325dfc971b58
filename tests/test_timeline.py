# SPDX-License-Identifier: Apache-2.0
"""The load of links over time: it adds up, it is bounded, and it changes nothing."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from railweave.fabric.errors import InputError
from railweave.run_folder import RunFolder, Stopwatch, run_files
from railweave.runner import run_scenario

if TYPE_CHECKING:
    from pathlib import Path

SCENARIO: dict[str, Any] = {
    "schema": 1,
    "name": "pair",
    "topology": {
        "kind": "custom",
        "nodes": {"h0": "host", "h1": "host", "h2": "host", "s0": "switch"},
        "links": [
            {"ends": [host, "s0"], "rate": "100Gbps", "delay": "100ns"}
            for host in ("h0", "h1", "h2")
        ],
    },
    "network": {"mtu": "4000B", "frame_overhead": "0B", "ack": {"every": 0}},
    "workload": {
        "kind": "flows",
        "flows": [
            {"id": "a", "src": "h0", "dst": "h1", "size": "1MB"},
            {"id": "b", "src": "h2", "dst": "h1", "size": "1MB", "start": "200us"},
        ],
    },
}
STABLE = ("result.json", "flows.csv", "links.csv", "trace.json", "scenario.yaml")


@pytest.mark.parametrize("engine", ["fluid", "packet", "analytic"])
def test_looking_changes_no_byte_of_the_run(engine: str) -> None:
    given = {"overrides": {"engine": engine}}
    watch = Stopwatch()
    plain = run_files(run_scenario(SCENARIO, **given), watch)
    looked = run_files(run_scenario(SCENARIO, **given, timeline=8), watch)
    assert set(looked) - set(plain) == {"timeline.json"}
    assert {name: plain[name] for name in STABLE} == {name: looked[name] for name in STABLE}


@pytest.mark.parametrize("intervals", [4, 7, 64])
@pytest.mark.parametrize("engine", ["fluid", "packet"])
def test_the_intervals_add_up_to_the_totals_and_are_bounded(engine: str, intervals: int) -> None:
    result = run_scenario(SCENARIO, overrides={"engine": engine}, timeline=intervals)
    timeline = result.timeline
    assert timeline is not None
    steps = np.diff(timeline.edges_ps)
    assert intervals // 2 <= len(steps) <= intervals
    assert len(set(steps[:-1].tolist())) == 1
    assert 0 < steps[-1] <= steps[0]
    assert (timeline.edges_ps[0], timeline.edges_ps[-1]) == (0, result.sim_time_ps)
    total = result.links.wire_bytes + result.links.ack_bytes
    assert timeline.values["bytes"].sum(axis=1).tolist() == total[timeline.links].tolist()
    assert set(np.flatnonzero(total)) == set(timeline.links.tolist())


def test_each_interval_has_what_was_sent_in_it() -> None:
    """At 100 Gbps a busy link carries 12,500 B a microsecond; between the flows it is idle."""
    timeline = run_scenario(SCENARIO, timeline=512).timeline
    assert timeline is not None
    fabric = run_scenario(SCENARIO).fabric
    names = [fabric.link_name(link) for link in timeline.links.tolist()]
    sent = timeline.values["bytes"][names.index("h0/nic0:0>s0:0")]
    step = int(timeline.edges_ps[1])
    ends = timeline.edges_ps[1:]
    whole = ends <= 80_000_000  # 1 MB at 100 Gbps takes 80 us
    assert np.abs(sent[whole] - 12_500 * step // 1_000_000).max() <= 1
    assert sent[ends > 80_000_000 + 2 * step].sum() == 0
    late = timeline.values["bytes"][names.index("h2/nic0:0>s0:2")]
    assert late[ends <= 200_000_000].sum() == 0


def test_a_run_that_stands_still_ends_and_keeps_its_timeline() -> None:
    scenario = copy.deepcopy(SCENARIO)
    scenario["faults"] = [{"at": "40us", "link": "h1/nic0:0-s0:1", "do": "down"}]
    plain, looked = run_scenario(scenario), run_scenario(scenario, timeline=32)
    assert plain.status == looked.status == "deadlocked"
    assert plain.to_dict() == looked.to_dict()
    assert looked.timeline is not None
    assert looked.timeline.edges_ps[-1] == looked.sim_time_ps
    assert len(looked.timeline.edges_ps) >= 16


@pytest.mark.parametrize("intervals", [0, 3, 513])
def test_a_number_of_intervals_that_cannot_be_is_refused(intervals: int) -> None:
    with pytest.raises(InputError, match="intervals"):
        run_scenario(SCENARIO, timeline=intervals)


def test_the_folder_of_a_run_without_keeps_none_of_the_run_before(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run", name="pair").write(run_scenario(SCENARIO, timeline=8), Stopwatch())
    found = json.loads((tmp_path / "run" / "timeline.json").read_text())
    assert list(found) == ["schema", "edges_ps", "links", "bytes"]
    again = RunFolder(tmp_path / "run", name="pair", force=True)
    again.write(run_scenario(SCENARIO), Stopwatch())
    assert not (tmp_path / "run" / "timeline.json").exists()


def test_a_timeline_of_a_remembered_run_goes_through_it_once(monkeypatch):
    """Whoever asks for later and later times of a span does not begin it again."""
    from railweave.fabric.memo import Isolated

    begun = []
    run = Isolated.run

    def counted(self, until_ps):
        begun.append(until_ps)
        return run(self, until_ps)

    monkeypatch.setattr(Isolated, "run", counted)
    job = {"kind": "collective", "op": "all_reduce", "sizes": ["256MiB"]}
    scenario = {"schema": 1, "topology": "h100-rail-8", "workload": job}
    result = run_scenario(scenario, timeline=32)
    assert len(result.timeline.edges_ps) > 16
    assert len(begun) <= 2
    plain = run_scenario(scenario)
    assert result.sim_time_ps == plain.sim_time_ps
    carried = plain.links.wire_bytes + plain.links.ack_bytes
    grown = result.timeline.values["bytes"].sum(axis=1)
    assert grown.tolist() == carried[result.timeline.links].tolist()
