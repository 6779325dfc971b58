# SPDX-License-Identifier: Apache-2.0
"""What the probe decides without PyTorch: places, sizes, verdicts, what machines say."""

from __future__ import annotations

import argparse
import json
import math
from types import SimpleNamespace

import pytest

from railweave.tools.probe import run as probe

TORCHRUN = {
    "RANK": "9",
    "WORLD_SIZE": "16",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SLURM = {
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "32",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_JOB_ID": "123456",
    "SLURM_JOB_NODELIST": "gpu[007-010,12],x3",
}


def test_places_under_torchrun_and_slurm():
    one = probe.read_launch(TORCHRUN, "h")
    assert (one.launcher, one.rank, one.world, one.node) == ("torchrun", 9, 16, "1")
    assert (one.address, one.port, one.holds_store) == ("10.0.0.1", 29400, False)
    two = probe.read_launch(SLURM, "h")
    assert (two.launcher, two.world, two.address) == ("slurm", 32, "gpu007")
    assert (two.port, two.holds_store) == (20_000 + 123456 % 20_000, True)
    named = probe.read_launch({**SLURM, "MASTER_ADDR": "a", "MASTER_PORT": "5"}, "h")
    assert (named.address, named.port) == ("a", 5)


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({}, "start it with torchrun or srun"),
        ({**TORCHRUN, "WORLD_SIZE": "1"}, "at least 2"),
        ({**TORCHRUN, "RANK": "x"}, "RANK=x is not a number"),
        ({k: v for k, v in TORCHRUN.items() if k != "MASTER_ADDR"}, "MASTER_ADDR is not set"),
        ({k: v for k, v in TORCHRUN.items() if k != "LOCAL_RANK"}, "did not set LOCAL_RANK"),
        ({**TORCHRUN, "MASTER_PORT": "a"}, "MASTER_PORT=a"),
        ({**SLURM, "SLURM_JOB_NODELIST": ""}, "not a Slurm node list"),
    ],
)
def test_places_that_are_not_known(env, told):
    with pytest.raises(probe.ProbeError, match=told):
        probe.read_launch(env, "h")


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [("n1", "n1"), ("n[3,5]", "n3"), ("n[03-9]-ib,x", "n03-ib"), ("a,b", "a")],
)
def test_first_host_of_a_node_list(nodelist, first):
    assert probe.first_host(nodelist) == first


def test_sizes_are_those_of_nccl_tests():
    assert [probe.size_bytes(t) for t in ("8", "64K", "4M", "1g", "2GiB")] == [
        8, 65536, 4 << 20, 1 << 30, 2 << 30,
    ]  # fmt: skip
    for text in ("0", "M", "1.5M", "-1", "1T"):
        with pytest.raises(argparse.ArgumentTypeError):
            probe.size_bytes(text)
    assert probe.element_count("all_reduce", 8, 4, 4) == 2
    assert probe.element_count("all_gather", 8, 4, 4) == 0
    assert probe.element_count("alltoall", 4096, 4, 3) == 1023


def options(*arguments):
    return probe.read_options(["-o", "x.json", *arguments])


def test_options_and_their_refusals(capsys):
    asked = options("-b", "64", "-e", "4M", "--ops", "reduce,alltoall", "--parts", "pairs")
    assert (asked.min_bytes, asked.max_bytes, asked.ops) == (64, 4 << 20, ("reduce", "alltoall"))
    assert probe.ladder(options("-b", "8", "-f", "4"), 300) == [8, 32, 128]
    for arguments in (
        ("-b", "2M", "-e", "1M"),
        ("--ops", "all_reduse"),
        ("--seconds", "0"),
        ("--seconds", "nan"),
        ("-f", "1"),
    ):
        with pytest.raises(SystemExit) as caught:
            options(*arguments)
        assert caught.value.code == 2
        assert "error" in capsys.readouterr().err


def test_the_budget_is_shared_out_and_sizes_have_turns():
    shares = dict(probe.shares(options("--seconds", "20")))
    assert sum(shares.values()) == pytest.approx(19)
    assert shares["collectives"] == pytest.approx(19 * 14 / 20)
    only = dict(probe.shares(options("--seconds", "20", "--parts", "rails")))
    assert only == {"rails": pytest.approx(19)}
    assert [probe.turn(k) for k in range(5)] == [0, 2, 1, 2, 0]


def test_bus_factors_and_percentiles():
    assert probe.bus_factor("all_reduce", 8) == 1.75
    assert probe.bus_factor("alltoall", 8) == 0.875
    assert probe.bus_factor("sendrecv", 8) == 1
    row = probe.with_rates({"time_us": 100.0}, 10**6, 1.75)
    assert (row["algbw_GBps"], row["busbw_GBps"]) == (10.0, 17.5)
    ordered = [float(k) for k in range(1, 101)]
    assert [probe.percentile(ordered, p) for p in (0.5, 0.95, 0.99)] == [50, 95, 99]


def pulses(*ages, now=100.0):
    return [
        probe.Pulse(beat="x", at=now - age, step=k, doing=f"step {k}") for k, age in enumerate(ages)
    ]


def test_verdicts():
    quiet = {"now": 100.0, "troubled": math.inf}
    assert probe.judge(pulses(0, 1, 3), (), **quiet) == ""
    assert probe.judge(pulses(0, 21, 3), (), **quiet) == "rank 1 stopped answering in step 1"
    assert "ranks 0, 1 stopped" in probe.judge(pulses(21, 21, 3), (), **quiet)
    # an error is first taken for what follows from a rank that died
    early = {"now": 100.0, "troubled": 98.0}
    assert probe.judge(pulses(0, 3.5, 1), ["rank 0: closed"], **early) == ""
    late = {"now": 100.0, "troubled": 95.0}
    told = probe.judge(pulses(0, 5, 1), ["rank 0: closed"], **late)
    assert told == "rank 1 stopped answering in step 1"
    assert probe.judge(pulses(0, 1, 1), ["rank 0: no memory"], **late) == "rank 0: no memory"


def test_who_does_not_come():
    assert probe.late(pulses(0, 0, 0)) == "rank 0, 1 does not come: last in step 0"
    same = [probe.Pulse(step=4, doing="all_reduce of 8 B")] * 2
    assert probe.late(same) == "all ranks stand in all_reduce of 8 B"


def test_the_file_is_whole_after_every_row(tmp_path):
    path = tmp_path / "m.json"
    ledger = probe.Ledger(path, {"schema": 1}, writes=True)
    for number in range(3):
        ledger.add({"part": "collectives", "n": number})
        data = json.loads(path.read_text())
        assert (data["status"], len(data["rows"])) == ("running", number + 1)
    ledger.skip("rails", "only one host")
    ledger.write("failed", 'rank 1 said "no"')
    data = json.loads(path.read_text())
    assert (data["status"], data["message"]) == ("failed", 'rank 1 said "no"')
    assert data["skipped"] == [{"what": "rails", "why": "only one host"}]
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.json"]
    other = probe.Ledger(tmp_path / "n.json", {}, writes=False)
    other.add({})
    assert not (tmp_path / "n.json").exists()


SMI = """NVIDIA H100 80GB HBM3, GPU-1c, 550.54.15, 4, 5, 16, 1980, 1980, 0x0000000000000000
NVIDIA H100 80GB HBM3, GPU-2d, 550.54.15, 5, 5, 16, 1200, 1980, 0x0000000000000004
[N/A], broken line
"""


def test_what_nvidia_smi_prints():
    one, two = probe.gpus(SMI)
    assert (one["name"], one["pcie.link.gen.current"]) == ("NVIDIA H100 80GB HBM3", "4")
    assert two["clocks_throttle_reasons.active"] == "0x0000000000000004"
    assert probe.gpus("No devices were found\n") == []


def test_nics_of_a_machine(tmp_path):
    port = tmp_path / "infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    for name, text in (("rate", "400 Gb/sec (4X NDR)\n"), ("state", "4: ACTIVE\n"),
                       ("link_layer", "InfiniBand\n")):  # fmt: skip
        (port / name).write_text(text)
    for card, speed in (("eth0", "25000\n"), ("lo", "")):
        (tmp_path / "net" / card).mkdir(parents=True)
        (tmp_path / "net" / card / "speed").write_text(speed)
    assert probe.nics(tmp_path) == [
        {"name": "mlx5_0", "port": "1", "rate": "400 Gb/sec (4X NDR)", "state": "4: ACTIVE",
         "link_layer": "InfiniBand"},
        {"name": "eth0", "rate": "25000 Mb/s", "state": ""},
    ]  # fmt: skip


def test_programs_that_are_not_there_say_nothing():
    assert probe.said("no-such-program-here", "topo", "-m") == ""
    assert probe.said("false") == ""


class Event:
    """A CUDA event that a recorded series of stamps stands for."""

    stamps = iter(())

    def __init__(self, *, enable_timing):
        assert enable_timing

    def record(self):
        self.at = next(Event.stamps)

    def elapsed_time(self, other):
        return other.at - self.at


def bench(torch, device="cuda", **more):
    launch = SimpleNamespace(rank=0, world=2)
    return probe.Bench(
        torch, launch, options("--backend", "nccl"), None, None,
        SimpleNamespace(type=device, index=0), more.pop("statistic", "mean"),
    )  # fmt: skip


def test_cuda_events_time_each_run():
    calls = []
    Event.stamps = iter([0.0, 0.010, 0.025, 0.030])  # ms, as CUDA counts
    cuda = SimpleNamespace(Event=Event, synchronize=lambda: calls.append("sync"))
    found = bench(SimpleNamespace(cuda=cuda)).times_us(lambda: calls.append("run"), 3)
    assert found == pytest.approx([10.0, 15.0, 5.0])
    assert calls == ["run", "run", "run", "sync"]


def test_figures_are_the_slowest_over_ranks(monkeypatch):
    one = bench(SimpleNamespace())
    other = [30.0, 5.0, 5.0, 0.0, 13.333333]  # what the other rank brings: runs, then its mean
    monkeypatch.setattr(
        one, "agree", lambda values: [max(a, b) for a, b in zip(values, other, strict=True)]
    )
    found = one.figures([10.0, 20.0, 6.0])
    assert (found["min_us"], found["p50_us"], found["max_us"]) == (6.0, 20.0, 30.0)
    assert (found["mean_us"], found["time_us"], found["slowest_rank"]) == (13.3333, 13.3333, 1)
    assert found["iterations"] == 3
    by_median = bench(SimpleNamespace(), statistic="p50")
    monkeypatch.setattr(by_median, "agree", one.agree)
    assert by_median.figures([10.0, 20.0, 6.0])["time_us"] == 20.0


def test_a_backend_that_cannot_work_is_refused():
    no_cuda = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    launch = SimpleNamespace(local_rank=4, rank=4)
    assert probe.backend_of(no_cuda, "auto", launch) == "gloo"
    with pytest.raises(probe.ProbeError, match="needs CUDA"):
        probe.backend_of(no_cuda, "nccl", launch)
    four = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True, device_count=lambda: 4))
    with pytest.raises(probe.ProbeError, match="local rank 4 of 4 GPUs"):
        probe.backend_of(four, "auto", launch)
