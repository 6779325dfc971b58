# SPDX-License-Identifier: Apache-2.0
"""The benchmarks run, at small sizes, and do what they say; no times are judged here."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

import railweave

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
NAMES = ("measure", "fluid", "startup", "building", "drawing")


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield {name: importlib.import_module(name) for name in NAMES}
    for name in NAMES:
        sys.modules.pop(name, None)


def test_the_fluid_table_has_every_row(modules, capsys):
    modules["fluid"].main(ranks=8, hosts=4, repeats=1, steps=3)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 11
    assert "execute it in the engine, 112 transfers" in lines[4]
    assert "from 3 of 14 steps" in lines[5]
    assert "all_to_all of 2 GPUs, 2 transfers" in lines[9]
    assert "32 GPUs" in lines[10]


def test_the_processes_take_as_long_as_the_schedule(modules):
    fluid = modules["fluid"]
    bed = fluid.Bed.of("fat-tree-k16")
    ring = railweave.plan("all_reduce", ranks=8, size_bytes=fluid.RING_BYTES, algorithm="ring")
    env, engine = bed.engine()
    env.run(until=fluid.process_per_gpu(env, engine, bed.gpus(8), steps=14))
    assert int(env.now) == fluid.run_once(bed, ring)(bed.engine())
    assert len(engine.records()) == ring.n_runs == 112
    env, _ = bed.engine()
    env.run(until=fluid.process_per_gpu(env, None, bed.gpus(8), steps=14))
    assert int(env.now) == 14 * fluid.HOP_PS


def test_routes_of_the_rail_optimized_fabric(modules):
    fluid = modules["fluid"]
    topology = fluid.rail_optimized(4, group=2)
    fabric = railweave.build_topology(railweave.load_topology(topology))
    assert (len(fabric.host_names), len(fabric.gpus)) == (4, 32)
    leaves = np.count_nonzero(fabric.tier[fabric.switches] == 1)
    assert leaves == 16  # two groups of eight rails
    # The ring: 28 hops over NVLink (2 links), 4 to the next host's rail 0 from rail 7, each
    # gpu>pcie>nic>leaf>spine>leaf>nic>pcie>gpu (8 links). Pairs of leaves: nic>leaf>spine>leaf>nic.
    assert fluid.build_with_routes(topology) == 28 * 2 + 4 * 8 + 16 * 15 * 4


def test_cpu_times_and_rows(modules, tmp_path):
    measure = modules["measure"]
    seen = []
    times = measure.cpu_of(seen.append, setup=lambda: "ready", repeats=3)
    assert seen == ["ready"] * 3
    assert len(times.seconds) == 3
    said = measure.cpu_of_command(
        [sys.executable, "-c", "import os, sys; sys.exit(os.environ['RW_CODE'] != '7')"],
        repeats=2,
        environment={"RW_CODE": "7"},
    )
    assert len(said.seconds) == 2
    assert min(said.seconds) > 0
    with pytest.raises(RuntimeError, match="ended with 3"):
        measure.cpu_of_command([sys.executable, "-c", "import sys; sys.exit(3)"])
    cpu, peer = measure.Cpu((3.0, 1.0, 2.0)), measure.Cpu((22.0,))
    assert cpu.scaled(2).seconds == (6.0, 2.0, 4.0)
    assert cpu.less(measure.Cpu((0.5,))).median == 1.5
    line = measure.row("x", cpu, limit=4.0)
    assert " ".join(line.split()) == "x 2.000 1.000 3.000 0.50 of the limit 4 s: ok"
    assert measure.row("x", cpu, limit=1.0).endswith("MISSED")
    assert measure.row("x", cpu, against=peer, least=12).endswith(
        "11.0 times faster, at least 12 wanted: MISSED"
    )


def test_the_start_up_commands_run(modules, tmp_path):
    startup, measure = modules["startup"], modules["measure"]
    command = startup.railweave_run(startup.EXAMPLES / "lab-flows.yaml", tmp_path / "run")
    assert len(measure.cpu_of_command(command, repeats=2).seconds) == 2  # twice into one folder
    assert (tmp_path / "run" / "result.json").is_file()


def test_the_building_table_has_every_row(modules, capsys, monkeypatch):
    building = modules["building"]
    monkeypatch.setattr(building, "LIMITS", {1024: (60.0, 4096)})
    building.main(sizes=(512, 1024), repeats=1)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8
    assert "512 GPUs" in lines[3]
    assert "1,024 GPUs" in lines[5]
    assert lines[5].endswith(": ok")
    assert lines[6].endswith("MiB of 4,096: ok")
    assert lines[7].startswith("growth exponent")


def test_routes_of_the_three_tier_fabric(modules):
    building = modules["building"]
    topology = building.three_tiers(1024)
    fabric = railweave.build_topology(railweave.load_topology(topology))
    tiers = fabric.tier[fabric.switches].tolist()
    assert [tiers.count(tier) for tier in (1, 2, 3)] == [16, 16, 8]
    # To the next GPU: 7 of 8 by NVLink, the 8th from rail 7 to rail 0 of the next host, which is
    # gpu>pcie>nic>leaf>spine>leaf>nic>pcie>gpu in its pod and 2 longer where it enters another.
    # Into the next pod: gpu>pcie>nic>leaf>spine>core>spine>leaf>nic>pcie>gpu for each GPU.
    near = 128 * 7 * 2 + 126 * 8 + 2 * 10
    assert building.build_with_routes(topology) == near + 1024 * 10


def test_growth_exponents(modules):
    sizes = [1000, 4000, 16000]
    assert modules["building"].exponent(sizes, [n**1.5 for n in sizes]) == pytest.approx(1.5)


def test_the_drawing_table_has_every_row(modules, capsys):
    modules["drawing"].main(sizes=(1024,), full=512, repeats=1)
    lines = capsys.readouterr().out.splitlines()
    shown = [line[:66].strip() for line in lines[3:]]
    assert shown == [
        "drawing 512 GPUs as SVG, full",
        "drawing 1,024 GPUs as SVG, collapsed",
        "comparing 1,024 GPUs with themselves",
    ]
