# SPDX-License-Identifier: Apache-2.0
"""The run folder: its files, its bytes, and what it never touches."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from railweave.fabric.document import parse_yaml
from railweave.fabric.errors import InputError
from railweave.run_folder import RUN_FILES, RunFolder, Stopwatch
from railweave.runner import run_scenario
from railweave.scenario import load_scenario, scenario_sha256
from railweave.trace_events import trace_events
from railweave.yaml_text import yaml_text

SCENARIO = {
    "schema": 1,
    "name": "pair",
    "seed": 3,
    "topology": {
        "kind": "custom",
        "nodes": {"h0": "host", "h1": "host", "s0": "switch"},
        "links": [
            {"ends": ["h0", "s0"], "rate": "100Gbps", "delay": "100ns"},
            {"ends": ["h1", "s0"], "rate": "100Gbps", "delay": "100ns"},
        ],
    },
    "network": {"mtu": "4000B", "frame_overhead": "0B", "switch_latency": "0s"},
    "workload": [
        {
            "kind": "flows",
            "name": "f",
            "flows": [
                {"id": "a,b", "src": "h0", "dst": "h1", "size": "1MB", "class": "kv"},
                {"id": "c", "src": "h0", "dst": "h1", "size": "1MB", "after": ["a,b"]},
            ],
        },
        {"kind": "collective", "name": "g", "op": "all_gather", "size": "1MB", "start": "1ms"},
    ],
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = RunFolder(tmp_path_factory.mktemp("runs") / "run", name="pair")
    return folder.write(run_scenario(SCENARIO), Stopwatch())


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_folder_holds_the_files_of_the_contract(written: Path) -> None:
    names = {path.name for path in written.iterdir() if path.suffix != ".parquet"}
    assert names == set(RUN_FILES)
    assert [path.name for path in written.parent.iterdir()] == ["run"]


def test_flows_csv(written: Path) -> None:
    text = (written / "flows.csv").read_text()
    header = "id,src,dst,size_bytes,start_ps,end_ps,fct_ps,bound_ps,tag"
    assert text.splitlines()[0].startswith(header)
    first, second = rows(written / "flows.csv")
    # 1 MB at 100G, one packet more at the switch, two cables, both hosts
    one = 80_000_000 + 320_000 + 200_000 + 1_000_000
    assert first["id"] == "f/a,b"
    assert (first["src"], first["dst"], first["tag"]) == ("h0/nic0", "h1/nic0", "kv")
    times = ("size_bytes", "start_ps", "end_ps", "fct_ps", "bound_ps")
    assert [int(first[key]) for key in times] == [1_000_000, 0, one, one, one]
    assert [int(second[key]) for key in times] == [1_000_000, one, 2 * one, one, one]


def test_links_csv(written: Path) -> None:
    text = (written / "links.csv").read_text()
    assert text.splitlines()[0] == "link,src,dst,rate_bps,wire_bytes,utilisation,ack_bytes"
    by_name = {row["link"]: row for row in rows(written / "links.csv")}
    up = by_name["h0/nic0:0>s0:0"]
    assert (up["src"], up["dst"], int(up["rate_bps"])) == ("h0/nic0", "s0", 100_000_000_000)
    # both flows and one half of the all_gather
    assert int(up["wire_bytes"]) == 2_500_000
    span = json.loads((written / "result.json").read_text())["sim_time_ps"]
    used = (2_500_000 + int(up["ack_bytes"])) * 8 / (100e9 * span / 1e12)
    assert float(up["utilisation"]) == pytest.approx(used, abs=1e-9)
    down = by_name["s0:0>h0/nic0:0"]
    assert int(down["wire_bytes"]) == 500_000
    # one ACK of 86 B for every four packets of the two flows and of half an all_gather
    assert int(down["ack_bytes"]) == 86 * (63 + 63 + 32)


def test_result_json(written: Path) -> None:
    result = json.loads((written / "result.json").read_text())
    assert list(result) == [
        *("schema", "name", "status", "engine", "sim_time_ps", "bound_ps", "flows"),
        *("collectives", "serving", "network", "warnings", "provenance"),
    ]
    assert (result["schema"], result["status"], result["engine"]) == (1, "completed", "fluid")
    assert result["flows"]["count"] == 2
    assert all(isinstance(value, int) for value in result["flows"].values())
    assert result["sim_time_ps"] >= result["bound_ps"] > 1_000_000_000
    (row,) = result["collectives"]
    assert (row["workload"], row["op"], row["size_bytes"]) == ("g", "all_gather", 1_000_000)
    assert row["time_ps"] >= row["bound_ps"]
    loaded = load_scenario(SCENARIO)
    assert result["provenance"] == {
        "version": "0.1.0",
        "seed": 3,
        "topology_sha256": loaded.topology.sha256,
        "scenario_sha256": scenario_sha256(loaded.resolved()),
    }


def test_timing_json(written: Path) -> None:
    timing = json.loads((written / "timing.json").read_text())
    assert set(timing) == {
        *("schema", "started_at", "wall_seconds", "cpu_seconds", "host", "versions")
    }
    assert {"python", "railweave", "numba", "numpy", "simpy"} <= set(timing["versions"])
    assert timing["cpu_seconds"] >= 0


def test_the_resolved_scenario_gives_the_same_run(written: Path, tmp_path: Path) -> None:
    again = RunFolder(tmp_path / "again", name="pair").write(
        run_scenario(written / "scenario.yaml"), Stopwatch()
    )
    for name in RUN_FILES:
        if name != "timing.json":
            assert (again / name).read_bytes() == (written / name).read_bytes(), name
    resolved = yaml.safe_load((written / "scenario.yaml").read_text())
    assert resolved["network"]["ack"] == {"every": 4}
    assert resolved["workload"][1]["algorithm"] == "auto"


def test_the_trace_is_in_the_trace_event_format(written: Path) -> None:
    trace = json.loads((written / "trace.json").read_text())
    events = trace["traceEvents"]
    assert trace["otherData"]["flows_left_out"] == 0
    names = {event["args"]["name"]: event["pid"] for event in events if event["ph"] == "M"}
    assert set(names) == {"collectives", "h0"}
    begun = {event["id"]: event for event in events if event["ph"] == "b"}
    ended = {event["id"]: event for event in events if event["ph"] == "e"}
    assert set(begun) == set(ended) == {"c0", "f0", "f1"}
    assert (begun["f0"]["name"], begun["f0"]["cat"]) == ("f/a,b", "kv")
    assert begun["f0"]["pid"] == ended["f0"]["pid"] == names["h0"]
    assert (begun["f0"]["ts"], ended["f0"]["ts"]) == (0.0, 81.52)
    assert begun["c0"]["ts"] == 1000.0


def test_the_trace_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("railweave.trace_events.MAX_EVENTS", 1)
    trace = trace_events(run_scenario(SCENARIO))
    assert trace["otherData"]["flows_left_out"] == 1
    kept = [event["id"] for event in trace["traceEvents"] if event["ph"] == "b"]
    assert kept == ["c0", "f0"]


def test_bytes_do_not_depend_on_the_process(tmp_path: Path) -> None:
    scenario = tmp_path / "s.yaml"
    flows = [
        {"src": f"h{i}/gpu{k}", "dst": f"h{(i + 1) % 8}/gpu{(3 * k + i) % 8}", "size": "1MB"}
        for i in range(8)
        for k in range(8)
    ]
    data: dict[str, Any] = {
        "schema": 1,
        "topology": "h100-rail-8",
        "workload": [
            {"kind": "flows", "flows": flows},
            {
                "kind": "collective",
                "op": "all_reduce",
                "size": "4MB",
                "placement": {"policy": "random"},
            },
        ],
    }
    scenario.write_text(yaml.safe_dump(data))
    folders = []
    for hash_seed in ("0", "4711"):
        folder = tmp_path / f"run{hash_seed}"
        subprocess.run(
            [sys.executable, "-m", "railweave", "run", str(scenario), "-q", "-o", str(folder)],
            check=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        folders.append(folder)
    for name in RUN_FILES:
        same = (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
        assert same == (name != "timing.json"), name


def test_an_existing_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(InputError, match=r"run: output: it exists; expected a folder that is not"):
        RunFolder(tmp_path / "run", name="pair")
    (tmp_path / "file").write_text("mine")
    for force in (False, True):
        with pytest.raises(InputError, match="it exists and is not a folder"):
            RunFolder(tmp_path / "file", name="pair", force=force)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="it exists and is not a folder"):
        RunFolder(tmp_path / "link", name="pair")


def test_force_replaces_only_what_railweave_wrote(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = run_scenario(SCENARIO)
    RunFolder(folder, name="pair").write(result, Stopwatch())
    (folder / "notes.txt").write_text("mine")
    (folder / "flows.csv").write_text("old")
    RunFolder(folder, name="pair", force=True).write(result, Stopwatch())
    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / "flows.csv").read_text().startswith("id,src,dst")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_force_refuses_a_folder_that_is_not_a_runs(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_text("mine")
    with pytest.raises(InputError, match="it is not a run's folder"):
        RunFolder(tmp_path, name="pair", force=True)
    (tmp_path / "photo.jpg").unlink()
    RunFolder(tmp_path, name="pair", force=True)  # an empty folder will do


def test_a_place_that_cannot_be_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is not a folder"):
        RunFolder(tmp_path / "file" / "run", name="pair")


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_place_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="cannot be written"):
        RunFolder(tmp_path / "run", name="pair")


def test_parents_are_made(tmp_path: Path) -> None:
    path = RunFolder(tmp_path / "a" / "b" / "run", name="pair").write(
        run_scenario(SCENARIO), Stopwatch()
    )
    assert (path / "result.json").is_file()


def test_default_folders_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run_scenario(SCENARIO)
    paths = [RunFolder(None, name="pair").write(result, Stopwatch()) for _ in range(2)]
    assert paths == [Path("runs/pair-1"), Path("runs/pair-2")]
    (tmp_path / "runs" / "pair-3").write_text("in the way")
    assert RunFolder(None, name="pair").write(result, Stopwatch()) == Path("runs/pair-4")


def test_nothing_is_left_when_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(result: object) -> dict[str, Any]:
        raise KeyboardInterrupt

    result = run_scenario(SCENARIO)
    monkeypatch.setattr("railweave.run_folder.trace_events", broken)
    with pytest.raises(KeyboardInterrupt):
        RunFolder(tmp_path / "run", name="pair").write(result, Stopwatch())

    def full(self: Path, *args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.undo()
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(InputError, match=r"cannot be written \(no space left on device\)"):
        RunFolder(tmp_path / "run", name="pair").write(result, Stopwatch())
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "value",
    [
        *("no", "Off", "y", "null", "~", "", "1e9", "0x1F", "12:30:00", "2:1", "-", "a: b", "#c"),
        *("64MiB", "0ps", "50GB/s", "h0/gpu0:0>h0/nic0:1", "é", "a\nb", '"', "\\", "- x", "*a"),
        *(1, -1, 2**62, 1.0, 1e-5, 1.5e300, 0.1, True, None),
        *([], {}, [1, "no"], [[]], {"a": {}}, [{"a": [{"no": 1}], "b": []}, "x", {}]),
    ],
)
def test_scenario_yaml_reads_back_as_it_was(value: object) -> None:
    data = {"key": value, "below": {"off": value, "list": [value, {"x": value}]}}
    text = yaml_text(data)
    assert parse_yaml(text, file="x").data == data
    assert yaml.safe_load(text) == data
