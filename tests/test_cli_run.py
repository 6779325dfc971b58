# SPDX-License-Identifier: Apache-2.0
"""``railweave run``: what it prints, what it exits with, and Ctrl-C in mid-run."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from railweave.tools.cli import run_command_line
from railweave.tools.words import shown_time

EXAMPLES = Path(__file__).parent.parent / "examples"

SCENARIO = """\
schema: 1
topology:
  kind: custom
  nodes: {h0: host, h1: host, s0: switch}
  links:
    - {ends: [h0, s0], rate: 100Gbps, delay: 0s}
    - {ends: [h1, s0], rate: 100Gbps, delay: 0s}
network: {mtu: 4000B, frame_overhead: 0B, switch_latency: 0s, host_latency: 0s, ack: {every: 0}}
workload:
  kind: flows
  flows:
    - {id: a, src: h0, dst: h1, size: 1MB}
"""


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "pair.yaml"
    path.write_text(SCENARIO)
    return path


def test_the_summary(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["run", str(scenario)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out == (
        "run        pair: completed, engine fluid\n"
        "simulated  80.32 us, bound 80.32 us (1.000 times it)\n"
        "\n"
        "flows  1 with 1 MB\n"
        "            time     bound\n"
        "  mean  80.32 us  80.32 us\n"
        "  p50   80.32 us  80.32 us\n"
        "  p99   80.32 us  80.32 us\n"
        "  max   80.32 us  80.32 us\n"
        "\n"
        "hottest network links  utilisation  carried  bound at line rate\n"
        "h0/nic0:0>s0:0              99.6 %     1 MB               80 us\n"
        "s0:1>h1/nic0:0              99.6 %     1 MB               80 us\n"
        "\n"
        "folder  runs/pair-1\n"
    )


def test_json_is_the_object_of_result_json(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["run", str(scenario), "--json", "-o", "there"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(Path("there/result.json").read_text())
    assert printed["sim_time_ps"] == 80_320_000


def test_quiet_prints_nothing(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["run", str(scenario), "-q"]) == 0
    assert capsys.readouterr() == ("", "")
    assert Path("runs/pair-1/result.json").is_file()


def test_seed_and_engine_go_before_the_file(scenario: Path) -> None:
    arguments = ["run", str(scenario), "-q", "-o", "o", "--seed", "9", "--engine", "analytic"]
    assert run_command_line(arguments) == 0
    result = json.loads(Path("o/result.json").read_text())
    assert result["provenance"]["seed"] == 9
    assert result["engine"] == "analytic"
    assert "seed: 9\nengine: analytic\n" in Path("o/scenario.yaml").read_text()


def test_an_existing_folder_needs_force(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["run", str(scenario), "-q", "-o", "o"]) == 0
    before = Path("o/timing.json").read_bytes()
    assert run_command_line(["run", str(scenario), "-q", "-o", "o"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: o: output: it exists; expected a folder that is not there yet")
    assert Path("o/timing.json").read_bytes() == before
    assert run_command_line(["run", str(scenario), "-q", "-o", "o", "--force"]) == 0
    assert Path("o/timing.json").read_bytes() != before


def test_bad_input_exits_with_two_and_leaves_nothing(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario.write_text(SCENARIO.replace("size: 1MB", "size: 1"))
    assert run_command_line(["run", str(scenario), "-o", "o"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    where = f"error: {scenario}:12: workload.flows[0].size: "
    assert err == f"{where}1 has no unit; expected a size with its unit, such as 64MiB or 4096B\n"
    assert [path.name for path in scenario.parent.iterdir()] == ["pair.yaml"]


def test_a_run_that_can_never_finish_exits_with_one_and_is_kept(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    circle = (
        "    - {id: b, src: h0, dst: h1, size: 1MB, after: [c]}\n"
        "    - {id: c, src: h0, dst: h1, size: 1MB, after: [b]}\n"
    )
    scenario.write_text(SCENARIO + circle)
    assert run_command_line(["run", str(scenario), "-o", "o"]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("run        pair: deadlocked, engine fluid\n")
    assert err == (
        "error: the run can never finish: at 80320000 ps nothing moves and "
        "flow b waits for c; flow c waits for b\n"
        "partial results are in o\n"
    )
    result = json.loads(Path("o/result.json").read_text())
    assert result["status"] == "deadlocked"
    assert result["flows"]["ended"] == 1


ENDLESS = """
import sys
from typing import Literal
from railweave.tools.cli import run_command_line
from railweave.workloads.workload import WorkloadModel, workload_kind

class EndlessModel(WorkloadModel):
    kind: Literal["endless"]

@workload_kind(EndlessModel)
def start(workload, context):
    def process():
        while True:
            yield context.env.timeout(1_000_000)
            if context.env.now == 100_000_000:
                print("under way", file=sys.stderr, flush=True)
    return context.env.process(process())

sys.exit(run_command_line(sys.argv[1:]))
"""


@pytest.mark.parametrize("output", [["-o", "o"], []])
def test_ctrl_c_in_mid_run_keeps_partial_results(scenario: Path, output: list[str]) -> None:
    scenario.write_text(
        SCENARIO.partition("workload:")[0]
        + "workload:\n"
        + "  - {kind: flows, flows: [{id: a, src: h0, dst: h1, size: 1MB}]}\n"
        + "  - {kind: endless}\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, "run", str(scenario), *output],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == "under way\n"
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    folder = Path("o" if output else "runs/pair-1")
    assert process.returncode == 130
    assert err == (
        f"error: the run was interrupted; what it had is kept\npartial results are in {folder}\n"
    )
    assert out.startswith("run        pair: interrupted, engine fluid\n")
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == "interrupted"
    with (folder / "flows.csv").open(newline="") as file:
        (flow,) = csv.DictReader(file)
    assert (flow["id"], flow["end_ps"]) == ("flows0/a", "80320000")
    assert not list(scenario.parent.glob("**/.*"))


@pytest.mark.parametrize("name", ["two-flows", "all-reduce"])
def test_the_examples_run(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    arguments = ["run", str(EXAMPLES / f"{name}.yaml"), "-o", str(folder), "--json"]
    assert run_command_line(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["status"] == "completed"
    assert result["bound_ps"] <= result["sim_time_ps"] < 1.01 * result["bound_ps"]


def test_times_are_shown_with_four_digits() -> None:
    times = [0, 999, 1000, 80_320_000, 1_761_280_000, 999_960_000, 4 * 10**12, 123_456 * 10**12]
    assert [shown_time(time) for time in times] == [
        *("0 ps", "999 ps", "1 ns", "80.32 us", "1.761 ms", "1000 us", "4 s", "123456 s")
    ]
