# SPDX-License-Identifier: Apache-2.0
"""The workload ``collective``: its options reach the schedule, and mistakes name their key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from railweave.collectives import closed_form_ps
from railweave.fabric.errors import InputError
from railweave.fabric.profiles import find_profile
from railweave.runner import run_scenario
from railweave.scenario import load_scenario
from railweave.tools.bench import Bench

if TYPE_CHECKING:
    from pathlib import Path

HEAD = """\
schema: 1
topology:
  kind: custom
  nodes: {h0: host, h1: host, h2: host, h3: host, s0: switch}
  links:
    - {ends: [h0, s0], rate: 100Gbps, delay: 1us}
    - {ends: [h1, s0], rate: 100Gbps, delay: 1us}
    - {ends: [h2, s0], rate: 100Gbps, delay: 1us}
    - {ends: [h3, s0], rate: 100Gbps, delay: 1us}
network:
  mtu: 4096B
  frame_overhead: 0B
  switch_latency: 0s
  host_latency: 0s
  switching: cut-through
  ack: {every: 0}
"""
ALPHA_PS = 2_000_000 + 128 * 80  # two cables, and a header read at the switch


def run(folder: Path, workload: str) -> dict[str, Any]:
    path = folder / "s.yaml"
    path.write_text(HEAD + f"workload: {{kind: collective, {workload}}}\n")
    (row,) = run_scenario(load_scenario(path)).collectives
    return dict(row)


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ("chunk: 256KiB, slots: 1", {"chunks": 16, "slots": 1}),
        ("chunk: 256KiB, slots: 2", {"chunks": 16, "slots": 2}),
        ("chunk: 1MiB", {"chunks": 4}),
        ("", {}),
        ("root: 2", {"root": 2}),
    ],
)
def test_options_reach_the_schedule(tmp_path: Path, given: str, options: dict[str, int]) -> None:
    row = run(tmp_path, f"op: broadcast, size: 4MiB, {given}")
    expected = closed_form_ps(
        "broadcast", "chain", ranks=4, size_bytes=2**22, alpha_ps=ALPHA_PS, rate_bps=100 * 10**9,
        **options,
    )  # fmt: skip
    assert row["time_ps"] == pytest.approx(expected, rel=1e-4)
    assert row["algorithm"] == "chain"


def test_channels_share_the_only_nic(tmp_path: Path) -> None:
    times = [
        run(tmp_path, f"op: all_reduce, size: 4MiB, algorithm: ring, channels: {n}")["time_ps"]
        for n in (1, 4)
    ]
    assert times[0] == times[1] == 6 * (ALPHA_PS + 2**20 * 80)


def test_gather_counts_the_shares_of_the_others(tmp_path: Path) -> None:
    row = run(tmp_path, "op: gather, size: 4MiB, root: 3")
    assert row["time_ps"] == ALPHA_PS + 3 * 2**20 * 80
    assert row["busbw_GBps"] == pytest.approx(row["algbw_GBps"] * 0.75, rel=1e-5)


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ("op: gather, size: 1MiB, slots: 2", "workload.slots: gather by direct has no option"),
        ("op: gather, size: 1MiB, chunk: 2B", "workload.chunk: gather by direct has no option"),
        ("op: reduce, size: 1MiB, root: 4", "workload.root: 4 is not a rank; expected 0 to 3"),
        ("op: reduce, size: 1MiB, chunk: 0B", "workload.chunk: 0 is not possible"),
        ("op: reduce, size: 1MiB, chunk: 512", "workload.chunk: "),
        ("op: reduce, size: 1MiB, slots: 0", "workload.slots: this is 0; expected at least 1"),
        ("op: reduce, size: 1MiB, slot: 4", "workload.slot: unknown key 'slot'"),
        ("op: all_reduce, size: 1MiB, channels: 65", "workload.channels: this is 65"),
    ],
)
def test_mistakes_name_their_key(tmp_path: Path, workload: str, said: str) -> None:
    with pytest.raises(InputError) as raised:
        run(tmp_path, workload)
    text = str(raised.value)
    assert f"s.yaml:17: {said}" in text
    assert "\n" not in text


# ---------------------------------------------------------------- reduction in switches
@pytest.mark.parametrize(("algorithm", "ranks", "inside"), [
    ("nvls", 8, 9 / 8), ("nvls", 16, 9 / 8), ("collnet", 8, 14 / 8), ("collnet", 16, 14 / 8)
])  # fmt: skip
def test_switches_take_part_without_a_profile(algorithm: str, ranks: int, inside: float) -> None:
    """NVLink bounds both: a GPU sends (1 + 1/8) S by NVLS, 2 * 7/8 S by CollNet."""
    (row,) = nccl_rows(size="64MiB", algorithm=algorithm, ranks=ranks, profile="none")
    assert (row["algorithm"], row["ranks"]) == (algorithm, ranks)
    least_ps = inside * 2**26 / 370.8e9 * 1e12  # payload rate of an H100's NVLinks, byte/s
    assert least_ps < row["bound_ps"] <= row["time_ps"] < 1.07 * least_ps
    assert row["busbw_GBps"] == pytest.approx(2 * (ranks - 1) / ranks * row["algbw_GBps"])
    bench = Bench("all_reduce", topology="h100-rail-8", ranks=ranks, algorithm=algorithm)
    assert bench.run(2**26).time_ps == row["time_ps"]


def test_trays_of_one_nvlink_domain_share_its_switch() -> None:
    row = Bench("all_reduce", topology="nvl72-8", ranks=16, algorithm="nvls").run(2**26)
    profiled = Bench("all_reduce", topology="nvl72-8", ranks=16, algorithm="nvls", profile="gb200")
    assert row.busiest.startswith("h0/gpu0")
    assert row.time_ps < profiled.run(2**26).time_ps


# ---------------------------------------------------------------- as NCCL would
def nccl_rows(**more: Any) -> list[dict[str, Any]]:
    workload = {"kind": "collective", "op": "all_reduce", "ranks": 8, "profile": "auto", **more}
    scenario = {"schema": 1, "topology": "h100-rail-8", "workload": workload}
    return run_scenario(scenario).raise_for_status().collectives


def test_nccl_chooses_by_size() -> None:
    rows = nccl_rows(sizes=["1MiB", "2MiB", "1GiB"])
    chosen = [(row["algorithm"], row["protocol"]) for row in rows]
    assert chosen == [("Ring", "LL"), ("NVLS", "Simple"), ("NVLS", "Simple")]
    bench = Bench("all_reduce", topology="h100-rail-8", ranks=8, profile="auto")
    for row in rows:
        assert row["time_ps"] == bench.run(row["size_bytes"]).time_ps
        assert row["bound_ps"] <= row["time_ps"]
        assert row["ranks"] == 8
    (thrice,) = nccl_rows(size="2MiB", repeat=3)
    assert thrice["time_ps"] == rows[1]["time_ps"]
    (eager,) = nccl_rows(size="2MiB", launch="torch-eager")
    profile = find_profile("h100")
    assert eager["time_ps"] - rows[1]["time_ps"] == (
        profile.launch("torch-eager") - profile.launch("nccl-tests")
    )
    (ring,) = nccl_rows(size="2MiB", algorithm="Ring", protocol="Simple")
    assert (ring["algorithm"], ring["protocol"]) == ("Ring", "Simple")


@pytest.mark.parametrize(("more", "says"), [
    ({"algorithm": "Rign"}, "'Rign' is not an algorithm of all_reduce"),
    ({"algorithm": "halvin_doubling", "profile": "none"}, "did you mean 'halving_doubling'"),
    ({"algorithm": "nvls", "op": "all_gather", "ranks": 16, "profile": "none"},
     "workload.algorithm: NVSwitches do not join 2 nodes"),
    ({"profile": "h1000"}, "'h1000' is not a device profile"),
    ({"profile": "none", "protocol": "LL"}, "there are no protocols"),
    ({"profile": "none", "launch": "custom"}, "nothing is launched"),
    ({"protocol": "LL256"}, "'LL256' is not possible here"),
])  # fmt: skip
def test_what_nccl_cannot_be_asked(more: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        nccl_rows(size="1MiB", **more)
