# SPDX-License-Identifier: Apache-2.0
"""The probe with gloo on this machine, where a Python has PyTorch.

``RAILWEAVE_TORCH_PYTHON`` names such a Python; by default this one is tried.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "tools/probe/run.py"
PYTHON = os.environ.get("RAILWEAVE_TORCH_PYTHON", sys.executable)
LIMIT_S = 120


@pytest.fixture(autouse=True, scope="module")
def torch():
    done = subprocess.run(
        [PYTHON, "-c", "import torch.distributed"], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip(f"{PYTHON} has no PyTorch; RAILWEAVE_TORCH_PYTHON may name one that has")


def start(folder, ranks, *arguments, hosts=1):
    """Start the ranks as a launcher would, over as many pretended hosts."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    each = ranks // hosts
    return [
        subprocess.Popen(
            [PYTHON, str(SCRIPT), "--backend", "gloo", "-o", "m.json", *arguments],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank % each),
                "LOCAL_WORLD_SIZE": str(each), "GROUP_RANK": str(rank // each),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
            },
        )
        for rank in range(ranks)
    ]  # fmt: skip


def ended(processes):
    """Return code and stderr of every rank; none outlives the test."""
    try:
        return [(p.communicate(timeout=LIMIT_S)[1], p.returncode) for p in processes]
    finally:
        for process in processes:
            process.kill()


def written(folder):
    return json.loads((folder / "m.json").read_text())


def test_two_ranks_run_every_operation(tmp_path):
    ends = ended(start(tmp_path, 2, "--max-bytes", "4K", "-f", "16", "-n", "5", "--seconds", "30"))
    assert [code for _, code in ends] == [0, 0], ends
    data = written(tmp_path)
    assert (data["status"], data["backend"], data["world_size"]) == ("complete", "gloo", 2)
    found = [row for row in data["rows"] if row["part"] == "collectives"]
    assert {row["op"] for row in found} == {
        "all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce", "sendrecv",
        "scatter", "gather",
    }  # fmt: skip
    for row in found:
        for form in (row["out_of_place"], row["in_place"]):
            if form is not None:
                assert form["wrong"] == 0
                assert 0 < form["min_us"] <= form["p50_us"] <= form["p99_us"] <= form["max_us"]
    both = {row["op"] for row in found if row["out_of_place"] and row["in_place"]}
    assert both == {"all_gather", "reduce_scatter"}
    parts = {row["part"] for row in data["rows"]}
    assert parts == {"collectives", "sweeps", "overlap", "pairs"}
    pairs = {(r["src"], r["dst"], r["kind"]) for r in data["rows"] if r["part"] == "pairs"}
    assert pairs == {(0, 1, "latency"), (0, 1, "bandwidth"), (1, 0, "bandwidth")}
    assert {"what": "rails", "why": "only one host"} in data["skipped"]


def test_four_ranks_on_two_hosts_have_rails(tmp_path):
    arguments = ("--parts", "rails,sweeps", "--max-bytes", "4K", "-f", "64", "-n", "5")
    ends = ended(start(tmp_path, 4, *arguments, hosts=2))
    assert [code for _, code in ends] == [0] * 4, ends
    data = written(tmp_path)
    assert (data["nodes"], data["ranks_per_node"]) == (2, [2, 2])
    rails = [row for row in data["rows"] if row["part"] == "rails"]
    assert [(row["shift"], len(row["rail_GBps"])) for row in rails] == [(0, 2), (1, 2)]
    assert {row["where"] for row in data["rows"] if row["part"] == "sweeps"} == {
        "same host", "other host, same rail", "other host, other rail",
    }  # fmt: skip


@pytest.mark.parametrize("victim", [2, 0])
def test_a_killed_rank_ends_all_and_the_rows_are_kept(tmp_path, victim):
    processes = start(tmp_path, 4, "--max-bytes", "64K", "--seconds", "300", "-n", "1000")
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if (tmp_path / "m.json").exists() and len(written(tmp_path)["rows"]) > 2:
            break
        time.sleep(0.2)
    before = len(written(tmp_path)["rows"])
    processes[victim].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    ends = ended(processes)
    assert time.monotonic() - killed < 60
    others = [end for rank, end in enumerate(ends) if rank != victim]
    assert [code for _, code in others] == [1, 1, 1], ends
    told = "rank 2 stopped answering" if victim else "rank 0 or its launcher is gone"
    assert all(told in text for text, _ in others), ends
    data = written(tmp_path)
    assert len(data["rows"]) >= before > 2
    if victim:
        assert data["status"] == "failed"
        assert data["message"].startswith("rank 2 stopped answering in ")


def test_an_existing_file_is_kept(tmp_path):
    (tmp_path / "m.json").write_text("mine")
    ends = ended(start(tmp_path, 2))
    assert [code for _, code in ends] == [2, 2]
    assert "exists already" in ends[0][0]
    assert (tmp_path / "m.json").read_text() == "mine"
