# SPDX-License-Identifier: Apache-2.0
"""NCCL's algorithms on the engines: tuned schedules, switches that reduce, choice, predictions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from railweave.collectives import plan, verify
from railweave.collectives.choice import choose
from railweave.collectives.nccl_model import Box, candidates
from railweave.collectives.predict import predict
from railweave.collectives.traffic import traffic_of
from railweave.collectives.tuned import Tuning, tuned
from railweave.fabric.errors import InputError
from railweave.fabric.loops import expand
from railweave.fabric.profiles import (
    LAUNCH_MODES,
    catalogue_names,
    find_network,
    find_profile,
    load_profile,
    profile_text,
)
from railweave.tools import cli
from railweave.tools.bench import Bench

if TYPE_CHECKING:
    from pathlib import Path

HOPPER = Box(
    architecture="hopper", interconnect="nvlink", nodes=1, gpus_per_node=8, link_GBps=370.8,
    nvls=True,
)  # fmt: skip


def hosts_of(*shares: int) -> list[int]:
    return [host for host, share in enumerate(shares) for _ in range(share)]


# ---------------------------------------------------------------- schedules
@pytest.mark.parametrize("shares", [(8,), (8, 8), (3, 5, 4), (1, 7), (2, 1, 2, 9), (1, 1, 1, 1)])
@pytest.mark.parametrize("name", ["nvls", "host_tree", "ring"])
@pytest.mark.parametrize("options", [{}, {"chunks": 3}, {"chunk_bytes": 100}])
def test_uneven_hosts(shares: tuple[int, ...], name: str, options: dict[str, int]) -> None:
    hosts = hosts_of(*shares)
    channels = {} if name == "nvls" else {"channels": 3}
    schedule = plan(
        "all_reduce", ranks=len(hosts), size_bytes=1003, algorithm=name, hosts=hosts,
        **options, **channels,
    )  # fmt: skip
    verify(schedule, size_bytes=1003)
    assert schedule.switches == (len(shares) if name == "nvls" else 0)


@pytest.mark.parametrize("ranks", [2, 5, 8, 72])
def test_nvls_sends_the_buffer_and_a_share(ranks: int) -> None:
    size = 72 * 5 * 512
    schedule = plan("all_reduce", ranks=ranks, size_bytes=size, algorithm="nvls", chunks=1)
    sent = schedule.bytes_sent_per_rank()
    assert sent[:ranks].tolist() == [size + size // ranks] * ranks
    received = np.bincount(
        schedule.dst, weights=schedule.size_bytes, minlength=ranks + 1
    )  # the switch hands each what it asked for and what the others own
    assert received[:ranks].tolist() == [size] * ranks
    counts = traffic_of("all_reduce", "NVLS", size_bytes=size, nodes=1, gpus_per_node=ranks)
    assert counts.link_bytes == sent[0]


@pytest.mark.parametrize(("hosts", "load"), [(2, 1.0), (3, 1.5), (4, 2.0), (8, 2.0)])
@pytest.mark.parametrize(("name", "called"), [("nvls", "NVLSTree"), ("host_tree", "Tree")])
def test_bytes_between_hosts(hosts: int, load: float, name: str, called: str) -> None:
    of, size = hosts_of(*[4] * hosts), 2**16
    schedule = expand(
        plan("all_reduce", ranks=4 * hosts, size_bytes=size, algorithm=name, hosts=of)
    )
    node = np.array([*of, *range(hosts)] if schedule.switches else of)
    away = node[schedule.src] != node[schedule.dst]
    sent = np.bincount(node[schedule.src[away]], weights=schedule.size_bytes[away])
    assert sent.max() == load * size
    counts = traffic_of("all_reduce", called, size_bytes=size, nodes=hosts, gpus_per_node=4)
    assert counts.node_bytes == load * size
    ring = traffic_of("all_reduce", "Ring", size_bytes=size, nodes=hosts, gpus_per_node=4)
    assert (counts.node_bytes < ring.node_bytes) == (hosts < 4)


def test_looped_rings_are_the_written_out_ones() -> None:
    of = hosts_of(4, 4, 4)
    looped = plan(
        "all_reduce", ranks=12, size_bytes=120_007, algorithm="ring", hosts=of, channels=4
    )
    assert len(looped) == 48
    assert looped.n_runs == 48 * 22
    verify(looped, size_bytes=120_007)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_switches_of_a_network_reduce(groups: int) -> None:
    of, size = hosts_of(4, 4, 4, 4), 2**16
    schedule = plan(
        "all_reduce", ranks=16, size_bytes=size, algorithm="collnet", hosts=of, groups=groups
    )
    verify(schedule, size_bytes=size)
    assert schedule.switches == 4 * groups + (4 if groups > 1 else 0)
    out = (schedule.src < 16) & (schedule.dst >= 16)
    sent = np.bincount(schedule.src[out], weights=schedule.size_bytes[out])
    assert sent.tolist() == [size // 4] * 16  # a slice once, however many hosts
    with pytest.raises(InputError, match="do not divide into 3 groups"):
        plan("all_reduce", ranks=16, size_bytes=8, algorithm="collnet", hosts=of, groups=3)


@pytest.mark.parametrize("engine", ["analytic", "fluid", "packet"])
def test_reduction_in_leaves_is_executed(engine: str) -> None:
    size = 2**27
    row = bench("all_reduce", 16, algorithm="CollNetDirect", engine=engine).run(size)
    assert row.algorithm == "CollNetDirect"
    assert row.time_ps >= row.bound_ps
    found = predict(
        find_profile("h100"), "all_reduce", size_bytes=size, nodes=2, gpus_per_node=8,
        network=replace(find_network("roce-400g"), reduction=True), algorithm="CollNetDirect",
    )  # fmt: skip
    hidden = found.parts["network"] + found.parts["steps"]  # behind the bytes, but for the first
    assert found.time_s - hidden < row.time_ps / 1e12 < found.time_s
    assert row.time_ps / 1e12 == pytest.approx(found.time_s, rel=0.05)


@pytest.mark.parametrize("ranks", [2, 3, 8, 17])
def test_pat_takes_log_steps(ranks: int) -> None:
    schedule = plan("all_gather", ranks=ranks, size_bytes=ranks * 64, algorithm="pat")
    assert schedule.phase is not None
    assert int(schedule.phase.max()) + 1 == (ranks - 1).bit_length()
    assert schedule.bytes_sent_per_rank().tolist() == [(ranks - 1) * 64] * ranks


def test_a_tuned_schedule_has_delays_and_bytes() -> None:
    schedule = plan("all_gather", ranks=4, size_bytes=4000, algorithm="ring", channels=2)
    node = np.array([0, 0, 1, 1], np.int32)
    slow = tuned(
        schedule, Tuning(local_delay_ps=5, net_delay_ps=9, local_scale=2.0, net_scale=1.5),
        node=node,
    )  # fmt: skip
    local = node[schedule.src] == node[schedule.dst]
    assert set(slow.delay_ps[local]) == {5}
    assert set(slow.delay_ps[~local]) == {9}
    assert set(slow.size_bytes[local]) == {1000}
    assert set(slow.size_bytes[~local]) == {750}
    assert slow.key != schedule.key


# ---------------------------------------------------------------- choice
def test_what_nccl_may_choose_from() -> None:
    assert ("NVLS", "Simple") in candidates("all_reduce", HOPPER)
    assert ("NVLSTree", "Simple") not in candidates("all_reduce", HOPPER)
    pcie = Box(architecture="ada", interconnect="pcie", nodes=1, gpus_per_node=8, link_GBps=22.0)
    assert {protocol for _, protocol in candidates("all_reduce", pcie)} == {"LL", "Simple"}
    one_each = Box(
        architecture="hopper", interconnect="nvlink", nodes=4, gpus_per_node=1, link_GBps=370.8,
        nic_GBps=50.0,
    )  # fmt: skip
    assert ("PAT", "Simple") in candidates("all_gather", one_each)
    assert ("PAT", "Simple") not in candidates("all_gather", HOPPER)


def test_a_choice_may_be_overridden() -> None:
    asked = choose("all_reduce", size_bytes=2**30, box=HOPPER, algorithm="ring", protocol="ll128")
    assert (asked.algorithm, asked.protocol) == ("Ring", "LL128")
    with pytest.raises(InputError, match="NCCL does not run broadcast by NVLS here"):
        choose("broadcast", size_bytes=8, box=HOPPER, algorithm="NVLS")
    with pytest.raises(InputError, match="with LL here"):
        choose("all_reduce", size_bytes=8, box=HOPPER, algorithm="NVLS", protocol="LL")
    with pytest.raises(InputError, match="'rign'"):
        choose("all_reduce", size_bytes=8, box=HOPPER, algorithm="rign")


# ---------------------------------------------------------------- profiles
@pytest.mark.parametrize("name", catalogue_names("profiles"))
def test_a_profile_survives_its_file(name: str, tmp_path: Path) -> None:
    profile = find_profile(name)
    assert profile.source
    assert set(profile.launch_ps) <= set(LAUNCH_MODES)
    path = tmp_path / "p.yaml"
    path.write_text(profile_text(profile))
    assert load_profile(str(path)) == profile
    for size in (8, 2**20, 2**30):  # nothing beats its wire
        for op in ("all_reduce", "all_gather", "alltoall", "broadcast", "sendrecv"):
            found = predict(profile, op, size_bytes=size, gpus_per_node=2)
            assert found.time_s >= found.bound_s > 0
            assert found.time_s == pytest.approx(sum(found.parts.values()))


def test_faults_of_a_profile_file_are_named(tmp_path: Path) -> None:
    text = profile_text(find_profile("h100"))
    path = tmp_path / "p.yaml"
    path.write_text(text.replace("LL128: ", "LL129: ", 1))
    with pytest.raises(InputError, match=r"p.yaml:.*LL129"):
        load_profile(str(path))
    path.write_text(text.replace("rate:", "speed:", 1))
    with pytest.raises(InputError, match="unknown key 'speed'"):
        load_profile(str(path))
    with pytest.raises(InputError, match="'h1000' is not a device profile"):
        load_profile("h1000")


def test_more_than_a_domain_needs_a_network() -> None:
    with pytest.raises(InputError, match="2 nodes of 8 GPUs are more than the 8"):
        predict(find_profile("h100"), "all_reduce", size_bytes=8, nodes=2, gpus_per_node=8)
    rack = predict(
        find_profile("gb200-nvl72"), "all_reduce", size_bytes=2**33, nodes=18, gpus_per_node=4
    )
    assert rack.algorithm == "NVLS"
    with pytest.raises(InputError, match="no launch constant for 'cuda-graf'"):
        predict(
            find_profile("h100"), "all_reduce", size_bytes=8, gpus_per_node=8, launch="cuda-graf"
        )


# ---------------------------------------------------------------- on a fabric
def bench(op: str, ranks: int, **options: str) -> Bench:
    return Bench(op, topology="h100-rail-8", ranks=ranks, profile="auto", **options)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "alltoall"])
def test_one_box_on_the_fabric_is_as_predicted(op: str) -> None:
    timed = bench(op, 8)
    for size in (8 * 2**10, 2**20, 2**26, 2**30):
        row = timed.run(size)
        found = predict(find_profile("h100"), op, size_bytes=size, gpus_per_node=8)
        assert (row.algorithm, row.protocol) == (found.algorithm, found.protocol)
        assert row.time_ps / 1e12 == pytest.approx(found.time_s, rel=0.02)


@pytest.mark.parametrize("algorithm", ["Ring", "Tree", "NVLSTree"])
def test_two_boxes_on_the_fabric_are_as_predicted(algorithm: str) -> None:
    timed = bench("all_reduce", 16, algorithm=algorithm)
    row = timed.run(2**30)
    found = predict(
        find_profile("h100"), "all_reduce", size_bytes=2**30, nodes=2, gpus_per_node=8,
        network=find_network("roce-400g"), algorithm=algorithm,
    )  # fmt: skip
    assert row.time_ps / 1e12 == pytest.approx(found.time_s, rel=0.03)
    assert row.wire_Bps <= row.busiest_bps / 8
    if algorithm == "NVLSTree":
        assert row.bus_Bps > 8 * 50e9  # more than the NICs of a host carry


@pytest.mark.parametrize(
    ("algorithm", "rel"), [("Ring", 0.02), ("Tree", 0.031), ("NVLSTree", 0.09)]
)
def test_eight_boxes_on_the_fabric_are_as_predicted(algorithm: str, rel: float) -> None:
    """Trees are as far above their closed form as their pieces take to fill them."""
    row = bench("all_reduce", 64, algorithm=algorithm).run(2**33)
    found = predict(
        find_profile("h100"), "all_reduce", size_bytes=2**33, nodes=8, gpus_per_node=8,
        network=find_network("roce-400g"), algorithm=algorithm,
    )  # fmt: skip
    assert row.time_ps / 1e12 == pytest.approx(found.time_s, rel=rel)


@pytest.mark.parametrize("op", ["broadcast", "reduce"])
def test_chains_over_boxes_are_cut_for_the_latency_of_their_protocol(op: str) -> None:
    """Pieces too short for the slots of a connection left links idle: three times the time."""
    row = bench(op, 16).run(2**26)
    found = predict(
        find_profile("h100"), op, size_bytes=2**26, nodes=2, gpus_per_node=8,
        network=find_network("roce-400g"),
    )  # fmt: skip
    assert row.time_ps / 1e12 == pytest.approx(found.time_s, rel=0.10)


@pytest.mark.parametrize("algorithm", ["Ring", "NVLS"])
@pytest.mark.parametrize("engine", ["packet"])
def test_engines_agree_on_an_idle_box(algorithm: str, engine: str) -> None:
    size = 2**24
    fluid = bench("all_reduce", 8, algorithm=algorithm).run(size)
    other = bench("all_reduce", 8, algorithm=algorithm, engine=engine).run(size)
    assert other.time_ps == pytest.approx(fluid.time_ps, rel=0.02)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "alltoall", "broadcast", "reduce"])
def test_engines_agree_between_boxes(op: str) -> None:
    size = 2**24
    fluid = bench(op, 16).run(size)
    packet = bench(op, 16, engine="packet").run(size)
    assert packet.time_ps == pytest.approx(fluid.time_ps, rel=0.02)


@pytest.mark.parametrize("size_MiB", [10, 12, 14, 24])
@pytest.mark.parametrize("algorithm", ["Ring", "Tree", "NVLSTree"])
def test_engines_agree_on_what_is_forced(algorithm: str, size_MiB: int) -> None:
    size = size_MiB * 2**20
    fluid = bench("all_reduce", 16, algorithm=algorithm).run(size)
    packet = bench("all_reduce", 16, algorithm=algorithm, engine="packet").run(size)
    assert packet.time_ps == pytest.approx(fluid.time_ps, rel=0.02)


def test_a_rack_of_72_reduces_in_its_switches() -> None:
    timed = Bench("all_reduce", topology="nvl72-8", ranks=72, profile="auto")
    row = timed.run(2**33)
    assert row.algorithm == "NVLS"
    found = predict(find_profile("gb200-nvl72"), "all_reduce", size_bytes=2**33, gpus_per_node=72)
    assert row.time_ps / 1e12 == pytest.approx(found.time_s, rel=0.02)


def test_perf_writes_what_nccl_tests_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.json"
    words = ["perf", "all_gather", "-T", "h100-rail-8", "-g", "8", "-b", "1M", "-e", "3M",
             "-i", "1M", "-n", "20", "-w", "5", "-J", str(path)]  # fmt: skip
    assert cli.run_command_line(words) == 0
    table = capsys.readouterr().out
    rows = [line.split() for line in table.splitlines() if not line.startswith("#")]
    assert [row[0] for row in rows] == ["1048576", "2097152", "3145728"]
    written = json.loads(path.read_text())
    assert written["config"]["step_bytes"] == 2**20
    assert (written["config"]["iterations"], written["config"]["warmup_iters"]) == (20, 5)
    assert [result["count"] for result in written["results"]] == [32768, 65536, 98304]
    first = written["results"][0]
    assert (first["redop"], first["root"], first["algorithm"]) == ("none", "-1", "Ring")
    assert first["out_of_place"]["bus_bw"] == pytest.approx(float(rows[0][7]), abs=0.01)
    assert cli.run_command_line(words) == 2  # it exists
    assert "exists" in capsys.readouterr().err
    assert cli.run_command_line([*words, "--force"]) == 0
