# SPDX-License-Identifier: Apache-2.0
"""Designs enumerated from parts: each builds, and the best are those that no other beats."""

import json

import pytest

from railweave.tools import cli
from railweave.tools.designing import candidates
from railweave.topologies import build_topology, load_topology


def test_candidates_build_or_say_why_not():
    found = {one.name: one for one in candidates(512, "dgx-h100", "quantum-2")}
    assert {"rail-optimized", "fat-tree", "rail-only", "multi-plane"} <= set(found)
    # 64 hosts: two units of 32 of 64 ports, as the published SuperPOD of 64 nodes
    fabric = build_topology(load_topology(dict(found["rail-optimized"].content)))
    assert len(fabric.switches) == 16 + 8
    assert len(candidates_that_fail(found)) < len(found)


def candidates_that_fail(found):
    return [one for one in found.values() if one.refused]


def test_the_command_marks_what_no_other_beats(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ("design", "--gpus", "64", "--host", "dgx-h100", "--switch", "spectrum-4", "--json")
    assert cli.run_command_line((*words, "--budget", "900000 USD")) == 0
    data = json.loads(capsys.readouterr().out)["candidates"]
    best = [one for one in data if one["pareto"]]
    assert best
    assert all(one["within_budget"] for one in best)
    for one in data:
        if one["refused"] is None:
            load_topology(str(tmp_path / "designs" / f"{one['name']}.yaml"))
    assert cli.run_command_line(words) == 2  # the files exist


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--host", "dgx-h101", "--switch", "spectrum-4"), "did you mean 'dgx-h100'?"),
        (("--host", "dgx-h100", "--switch", "spectrum-5"), "did you mean 'spectrum-4'?"),
        (("--host", "host", "--switch", "spectrum-4"), "has no NICs of its own"),
    ],
)
def test_unknown_parts(capsys, monkeypatch, tmp_path, words, said):
    monkeypatch.chdir(tmp_path)
    assert cli.run_command_line(("design", "--gpus", "64", *words)) == 2
    assert said in capsys.readouterr().err


def test_each_way_to_route_is_a_row_and_hashing_costs_time(capsys, monkeypatch, tmp_path):
    """Hashed over one queue pair, an all-to-all is slower than sprayed, on the same cables."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(
        "schema: 1\nengine: fluid\ntopology: h100-rail-8\n"
        "workload: {kind: collective, op: all_to_all, sizes: [16MiB]}\n"
    )
    words = ("design", "--gpus", "64", "--host", "dgx-h100", "--switch", "spectrum-4", "--json")
    ways = ("--workload", "job.yaml", "--routing", "ecmp", "--routing", "ecmp:4", "--routing")
    assert cli.run_command_line((*words, *ways, "spray", "--max-oversubscription", "1:1")) == 0
    data = json.loads(capsys.readouterr().out)["candidates"]
    rails = {one["routing"]: one for one in data if one["name"] == "rail-optimized"}
    times = {way: one["figures"]["workloads"]["job"]["time_ps"] for way, one in rails.items()}
    assert times["ecmp"] > times["ecmp:4"] > times["spray"]
    assert len({one["figures"]["bill"]["network"]["cost_cents"] for one in rails.values()}) == 1
    assert not rails["ecmp"]["pareto"]
    left_out = [one for one in data if one["name"] == "rail-only"]
    assert all(one["figures"]["workloads"]["job"]["time_ps"] is None for one in left_out)
    assert not any(one["pareto"] for one in left_out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--routing", "ecpm"), "did you mean 'ecmp'?"),
        (("--routing", "ecmp:0"), "--routing: '0' is not a number of queue pairs; expected 1 to"),
        (("--routing", "ecmp:many"), "'many' is not a number of queue pairs"),
        (("--routing", "adaptive"), "adaptive routing needs packets"),
        (("--workload", "job.yaml"), "two workloads have one name"),
        (("--max-oversubscription", "0:1"), "--max-oversubscription: '0:1' has a zero"),
        (("--budget", "5"), "--budget: '5' is no price"),
    ],
)
def test_bad_ways_to_route(capsys, monkeypatch, tmp_path, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(
        "schema: 1\nengine: fluid\ntopology: h100-rail-8\n"
        "workload: {kind: collective, op: all_reduce, sizes: [1MiB]}\n"
    )
    parts = ("--host", "dgx-h100", "--switch", "spectrum-4", "--workload", "job.yaml")
    assert cli.run_command_line(("design", "--gpus", "64", *parts, *words)) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "designs").exists()


def test_routing_without_a_workload_is_refused(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    parts = ("--host", "dgx-h100", "--switch", "spectrum-4", "--routing", "ecmp")
    assert cli.run_command_line(("design", "--gpus", "64", *parts)) == 2
    assert "there is nothing to route" in capsys.readouterr().err
