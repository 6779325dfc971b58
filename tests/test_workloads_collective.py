# SPDX-License-Identifier: Apache-2.0
"""The workload ``collective``: its options reach the schedule, and mistakes name their key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from railweave.collectives import closed_form_ps
from railweave.fabric.errors import InputError
from railweave.runner import run_scenario
from railweave.scenario import load_scenario

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
