# SPDX-License-Identifier: Apache-2.0
"""The packet engine's benchmark and its comparison with recorded runs work, at small sizes."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
NAMES = (
    "measure",
    "packet",
    "packet_peers",
    "packet_reference",
    "packet_sharing",
    "packet_lossless",
)


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield {name: importlib.import_module(name) for name in NAMES}
    for name in NAMES:
        sys.modules.pop(name, None)


def test_the_table_has_a_row_for_each_case(modules, capsys):
    packet = modules["packet"]
    sizes = packet.Sizes(hosts=8, k=4, large_k=4, size=40_000)
    packet.main(sizes=sizes, repeats=1, measure=packet.measure_once)
    lines = capsys.readouterr().out.splitlines()
    assert sum("events/hop" in line for line in lines) == 1
    assert sum(line.endswith((": ok", ": MISSED")) for line in lines if "ns.py" not in line) == 11
    assert sum(line.startswith("ns.py") for line in lines) == 1


def test_fabrics_are_as_large_as_they_say(modules):
    packet = modules["packet"]
    assert len(packet.fat_tree(4).nics) == 16
    assert len(packet.fat_tree(4).switches) == 20
    assert len(packet.leaf_spine(32).switches) == 2 + 16
    assert sorted(to for _, to in packet.permutation(9)) == list(range(9))


def test_a_recorded_run_is_read_and_compared(modules, tmp_path, capsys, monkeypatch):
    """One flow of 1 MB over one switch: 1000 frames of 83 ns, one more hop, the ACK's way back."""
    (tmp_path / "inputs").mkdir()
    (tmp_path / "paths").mkdir()
    hosts = "\n".join(f"{i} 17 100Gbps 1000ns 0" for i in range(17))
    (tmp_path / "inputs" / "star17.topo").write_text(f"18 1 17\n17\n{hosts}\n")
    (tmp_path / "inputs" / "incast16.flow").write_text("1\n0 16 3 100 1000000 2.0\n")
    header = "run,fct_mean_us,fct_p99_us,fct_max_us,pfc_pauses\n"
    (tmp_path / "summary.csv").write_text(
        f"{header}W2_incast16_nocc_32MB,87.091,87.091,87.091,0\nW2_incast16_nocc_4MB,80,80,80,0\n"
    )
    command = ["packet_reference.py", str(tmp_path), "--only", "W2_incast16_nocc"]
    monkeypatch.setattr(sys, "argv", command)
    modules["packet_reference"].main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| W2")]
    assert rows[0].endswith("| 87.1 | 87.1 | 87.1 | 87.1 | 0 | 0 | ok |")
    assert rows[1].endswith("| off: mean, max |")


def test_four_queue_pairs_wait_for_each_other_behind_pauses(modules):
    """Leaf-shift with four queue pairs a host: max-min sharing would give 0.92 of the line.

    First come, first served, links are not shared fairly, and a paused host holds back all four.
    """
    sharing = modules["packet_sharing"]
    small = {"side": 8, "warm_us": 100, "window_us": 100}
    paused, fluid, _ = sharing.shares("leaf-shift", 4, 1, **small)
    free, _, _ = sharing.shares("leaf-shift", 4, 1, pfc=False, **small)
    assert (fluid, free, paused) == pytest.approx((0.916, 0.824, 0.741), abs=0.01)


@pytest.mark.parametrize("pattern", ["leaf-shift", "random"])
def test_collisions_cost_what_max_min_sharing_says(modules, pattern):
    """256 hosts, 16 leaves and spines, one queue pair each: within 5 % of max-min on the same
    paths, whose mean over many seeds is 0.6439 (1 - (15/16)^16) and 0.555."""
    sharing = modules["packet_sharing"]
    packet, fluid, paused = sharing.shares(pattern, 1, 1, warm_us=150, window_us=150)
    assert packet == pytest.approx(fluid, rel=0.05)
    assert packet == pytest.approx(sharing.PUBLISHED[pattern, 1], rel=0.05)
    assert paused > 0.05


@pytest.mark.parametrize("traffic", ["incast", "all-to-all", "shuffle"])
def test_lossless_and_loss_tolerant_run_on_one_fabric(modules, traffic):
    lossless = modules["packet_lossless"]
    rows = {
        mode: dict(zip(lossless.HEAD, lossless.row(traffic, mode, size=50_000), strict=True))
        for mode in lossless.MODES
    }
    for mode, row in rows.items():
        assert (row["headroom MB"] == "0.0") == (not mode.startswith("PFC"))
        assert mode.startswith("PFC") or row["pauses"] == "0"
        assert not mode.startswith("PFC") or (row["drops"], row["trims"]) == ("0", "0")
    trimming = rows["trimming, spray, credit"]
    assert trimming["timeouts"] == trimming["drops"] == "0"
    assert int(trimming["trims"]) > 0
