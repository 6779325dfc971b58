# SPDX-License-Identifier: Apache-2.0
"""Input made to break things: each case ends in one clear line, none in a wrong result."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import railweave
from railweave.fabric.errors import InputError
from railweave.fabric.placement import place
from railweave.tools.cli import run_command_line

if TYPE_CHECKING:
    from pathlib import Path

FLOW = {"src": "h0/gpu0", "dst": "h1/gpu0", "size": "1MiB"}
PAIR = {
    "kind": "custom",
    "nodes": {"a": "host", "b": "host", "s": "switch"},
    "links": [
        {"ends": ["a", "s"], "rate": "100Gbps", "delay": "1us"},
        {"ends": ["s", "b"], "rate": "100Gbps", "delay": "1us"},
    ],
}


def scenario(**changes: Any) -> dict[str, Any]:
    base = {
        "schema": 1,
        "topology": "h100-rail-8",
        "workload": {"kind": "flows", "flows": [FLOW]},
    }
    return base | changes


def flows(**changes: Any) -> dict[str, Any]:
    return scenario(workload={"kind": "flows", "flows": [FLOW | changes]})


def pair(link: dict[str, Any]) -> dict[str, Any]:
    topology = PAIR | {"links": [PAIR["links"][0] | link, PAIR["links"][1]]}  # type: ignore[index]
    return scenario(
        topology=topology,
        workload={"kind": "flows", "flows": [{"src": "a", "dst": "b", "size": "1MiB"}]},
    )


def collective(**changes: Any) -> dict[str, Any]:
    return scenario(workload={"kind": "collective", "op": "all_reduce", "size": "1MiB"} | changes)


def serving(**changes: Any) -> dict[str, Any]:
    workload = {
        "kind": "serving",
        "model": "llama-3.1-70b",
        "prefill": {"tp": 8},
        "decode": {"tp": 8},
        "requests": [{"prompt": 100, "output": 4}],
    }
    return scenario(workload=workload | changes)


@pytest.mark.parametrize(
    ("source", "field", "message"),
    [
        (collective(ranks=-1), "workload.ranks", "this is -1; expected all or at least 1"),
        (collective(ranks=0), "workload.ranks", "this is 0; expected all or at least 1"),
        (flows(cap="0bps"), "workload.flows[0].cap", "this is '0bps'; expected at least 1"),
        (flows(qps=5_000_000), "workload.flows[0].qps", "expected at most 4096"),
        (flows(weight=1e-300), "workload.flows[0].weight", "expected at least 1e-06"),
        (flows(weight=float("inf")), "workload.flows[0].weight", "expected at most 1000000.0"),
        (flows(start="2500h"), "workload.flows[0].start", "'2500h' is too large"),
        (flows(start="-2"), "workload.flows[0].start", "'-2' is negative"),
        (pair({"delay": "2h"}), "topology.links[0].delay", "expected at most 1h"),
        (
            pair({"delay": None, "length": "9000000000000km"}),
            "topology.links[0].length",
            "expected at most 1000000km",
        ),
        (pair({"ends": ["a", "s:3000000000"]}), "topology.links[0].ends[1]", "there is no port"),
        (pair({"ends": ["a/nic70000", "s"]}), "topology.links[0].ends[0]", "no NIC 70000"),
        (
            scenario(
                topology={
                    "kind": "custom",
                    "nodes": {"a": "host", "s": {"type": "switch", "model": "quantum-2"}},
                    "links": [{"ends": ["a", "s:900"], "rate": "1Gbps", "delay": "1us"}],
                }
            ),
            "topology.links[0].ends[1]",
            "'s' has no port 900; expected 0 to 127 (quantum-2)",
        ),
        (scenario(network={"frame_overhead": "9000PB"}), "network.frame_overhead", "64KiB"),
        (scenario(network={"ack": {"size": "1MiB"}}), "network.ack.size", "64KiB"),
        (scenario(network={"switch_latency": "1000h"}), "network.switch_latency", "at most 1h"),
        (scenario(network={"ip": 5}), "network.ip", "this is 5; expected 4, 6"),
        (scenario(name="../x"), "name", "this is '../x'; expected text of the form"),
        (
            serving(block=10**12),
            "workload.block",
            "no block of 1000000000000 tokens fits: a replica has room for the cache of 1327130",
        ),
        (
            serving(requests=[{"prompt": 9, "output": 1, "at": "1s"}], rate_scale=1e-300),
            "workload.requests",
            "the last request arrives",
        ),
    ],
)
def test_refused(source: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        railweave.run_scenario(source)
    assert caught.value.field == field
    assert message in str(caught.value)


def test_no_negative_ranks() -> None:
    fabric = railweave.build_topology(railweave.load_topology("h100-rail-8"))
    assert len(place(fabric, "packed", 0, seed=1)) == 0
    with pytest.raises(InputError, match=r"there cannot be -1 ranks"):
        place(fabric, "packed", -1, seed=1)


def test_collective_over_a_broken_fabric_is_located(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cut.yaml"
    file.write_text(
        "schema: 1\ntopology: h100-rail-8\nfaults: [{node: leaf0.r0, do: down}]\n"
        "workload: {kind: collective, op: all_to_all, size: 1MiB}\n"
    )
    assert run_command_line(["run", str(file), "-o", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error == (
        f"error: {file}:4: workload: no route from 'h0/gpu7' to 'h1/gpu0': "
        "no cables in service join them\n"
    )
    assert not (tmp_path / "out").exists()  # nothing has run


def test_serving_over_a_broken_fabric_is_located() -> None:
    faults = [{"node": f"leaf0.r{rail}", "do": "down"} for rail in range(8)]
    with pytest.raises(InputError) as caught:
        railweave.run_scenario(serving() | {"faults": faults})
    assert caught.value.field == "workload"
    assert "no route from 'h0/gpu0' to 'h1/gpu0'" in caught.value.message


def test_workloads_on_the_same_gpus_are_told() -> None:
    job = {"kind": "collective", "op": "all_reduce", "size": "1MiB", "ranks": 4}
    apart = {"policy": "list", "gpus": ["h1"]}
    together = railweave.run_scenario(scenario(workload=[job | {"name": n} for n in "ab"]))
    assert together.warnings == (
        "workloads a and b sit on the same GPUs, h0/gpu0, h0/gpu1, h0/gpu2 and 1 more: they share "
        "their links, but each has their arithmetic and memory for itself",
    )
    other = job | {"name": "b", "placement": apart}
    assert railweave.run_scenario(scenario(workload=[job | {"name": "a"}, other])).warnings == ()


def test_a_link_too_slow_for_the_clock_stalls_and_is_no_defect(tmp_path: Path) -> None:
    source = scenario(
        faults=[{"node": "spine0", "do": "degrade", "rate": "1bps"}],
        workload={"kind": "collective", "op": "all_to_all", "size": "64MiB"},
    )
    result = railweave.run_scenario(source)
    assert result.status == "deadlocked"
    assert result.exit_code == 1
    assert result.sim_time_ps >= result.bound_ps > 0
    assert max(row["utilisation"] for row in result.links.hottest()) <= 1.0


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["-b", "900000T", "-e", "900000T"], 1, "does not end within the time that a run can last"),
        (["-b", "-1"], 2, "'-1' is negative"),
        (["--qps", "100000"], 2, "--qps"),
        (["--seed", str(2**63)], 2, "--seed"),
    ],
)
def test_perf(
    options: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["perf", "all_reduce", "-T", "h100-rail-8", *options]) == code
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize("value", ["nan", "-1", "1e999"])
def test_a_load_that_no_run_gives_is_not_drawn(
    value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "links.csv").write_text(
        f"link,utilisation,wire_bytes\nh0/nic0:0>leaf0.r0:0,{value},0\n"
    )
    picture = tmp_path / "p.svg"
    arguments = ["topo", "draw", "h100-rail-8", "--run", str(tmp_path), "-o", str(picture)]
    assert run_command_line(arguments) == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path / 'links.csv'}:2: holds a number that no run gives; expected 0 or more\n"
    )
    assert not picture.exists()


@pytest.mark.parametrize("closed", [1, 2])
def test_a_closed_stream_is_no_defect(closed: int, tmp_path: Path) -> None:
    command = f'"{sys.executable}" -m railweave topo show h100-rail-8 {closed}>&-'
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert ("h100-rail-8" in done.stdout) == (closed == 2)
