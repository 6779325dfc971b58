# SPDX-License-Identifier: Apache-2.0
"""perf: nccl-tests' sizes and columns, and no result beyond the wire or below its bound."""

import json

import pytest

from railweave.collectives import busbw_factor, canonical_op
from railweave.fabric.errors import InputError
from railweave.tools import cli
from railweave.tools.bench import Bench
from railweave.tools.commands.perf import nccl_size_bytes, size_ladder


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("8", 8), ("1K", 1024), ("1M", 2**20), ("1m", 2**20), ("8G", 2**33), ("0.5K", 512),
     ("1MiB", 2**20), ("64kB", 64_000), ("4096B", 4096)],
)  # fmt: skip
def test_sizes_are_read_as_nccl_tests_does(text, size_bytes):
    assert nccl_size_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "M", "-1M", "1X", "1Mib", "1 2"])
def test_other_sizes_are_refused(text):
    with pytest.raises(InputError, match="-b"):
        nccl_size_bytes(text, field="-b")


def test_the_ladder_includes_both_ends():
    assert list(size_ladder("1M", "8M", 2)) == [2**20, 2**21, 2**22, 2**23]
    assert list(size_ladder("8", "100", 4)) == [8, 32]


def perf(capsys, *words):
    """Run the command on the network alone, without a device profile unless one is named."""
    alone = () if "--profile" in words else ("--profile", "none")
    code = cli.run_command_line(["perf", *words, *alone])
    return code, capsys.readouterr().out


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "alltoall", "sendrecv"])
def test_rows_obey_wire_and_bound(capsys, op):
    fabric = ("-T", "h100-rail-8", "--ranks", "24")
    code, out = perf(capsys, op, *fabric, "-b", "64K", "-e", "16M", "-f", "16", "--json")
    result = json.loads(out)
    assert (code, result["schema"], result["ranks"]) == (0, 1, 24)
    assert [row["size_bytes"] for row in result["rows"]] == [2**16, 2**20, 2**24]
    for row in result["rows"]:
        assert " ".join(row) == (
            "size_bytes time_us algbw_GBps busbw_GBps wire_GBps bound_us algorithm protocol"
        )
        assert row["time_us"] * 1e6 >= row["bound_us"] * 1e6 - 2 > 0
        algbw = row["size_bytes"] / row["time_us"] / 1e3
        assert row["algbw_GBps"] == pytest.approx(algbw, rel=1e-9)
        assert row["busbw_GBps"] == pytest.approx(algbw * busbw_factor(op, 24), rel=1e-9)
        assert row["algorithm"] != "auto"


def test_the_wire_never_beats_the_link():
    for algorithm in ("ring", "hierarchical"):
        row = Bench("all_reduce", topology="h100-rail-8", algorithm=algorithm).run(2**26)
        assert 0 < row.wire_Bps <= row.busiest_bps / 8
        assert row.algorithm == algorithm


@pytest.mark.parametrize(
    "op",
    [
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "alltoall",
        "broadcast",
        "reduce",
        "sendrecv",
        "scatter",
        "gather",
        "barrier",
    ],
)
def test_every_operation_of_nccl_tests_runs(capsys, op):
    code, out = perf(capsys, op, "-T", "h100-rail-8", "-b", "1M", "-e", "1M", "--json")
    result = json.loads(out)
    assert (code, result["op"], result["ranks"]) == (0, canonical_op(op), 64)
    assert 0 < result["rows"][0]["bound_us"] <= result["rows"][0]["time_us"]


def test_sendrecv_is_a_shift_of_two_ranks_too():
    assert Bench("sendrecv", topology="h100-rail-8", ranks=2).run(2**20).algorithm == "shift"
    assert Bench("send", topology="h100-rail-8", ranks=2).run(2**20).algorithm == "pair"


def test_channels_use_the_nics_of_a_host(capsys):
    def busbw(*words):
        fabric = ("-T", "h100-rail-8", "-b", "256M", "-e", "256M", "--algorithm", "ring")
        _, out = perf(capsys, "all_reduce", *fabric, "--json", *words)
        return json.loads(out)["rows"][0]["busbw_GBps"]

    one, eight = busbw(), busbw("--channels", "8")
    assert one < 49.1  # goodput of one NIC of 400 Gb/s
    assert 370.8 < eight < 8 * 49.1  # rails do not collide, as the one ring does on the spines


def test_chunk_and_slots_matter(capsys):
    def time_us(*words):
        fabric = ("-T", "h100-rail-8", "-b", "64M", "-e", "64M")
        _, out = perf(capsys, "broadcast", *fabric, "--json", *words)
        return json.loads(out)["rows"][0]["time_us"]

    best = time_us()
    assert best < time_us("--chunk", "64M")
    assert best < time_us("--chunk", "512K") < time_us("--chunk", "512K", "--slots", "1")
    assert best <= time_us("--algorithm", "chain", "--chunk", "256K", "--slots", "8")


def test_the_root_is_shown_and_used(capsys):
    words = ("-T", "h100-rail-8", "-b", "1M", "-e", "1M", "--root", "9")
    code, out = perf(capsys, "gather", *words)
    row = next(line.split() for line in out.splitlines() if not line.startswith("#"))
    assert (code, row[1], row[4]) == (0, "4096", "9")
    assert "> " not in out
    assert "h1/nic1" in out  # the busiest link leads to the root


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("all_reduce", "--slots", "2"), "--slots: all_reduce by hierarchical has no option"),
        (("broadcast", "--root", "64"), "--root: 64 is not a rank; expected 0 to 63"),
        (("broadcast", "--chunk", "0"), "--chunk: 0 is not possible"),
        (("broadcast", "--chunk", "many"), "--chunk: 'many'"),
        (("gather", "--chunk", "1M"), "--chunk: gather by direct has no option '--chunk'"),
        (("all_reduce", "--algorithm", "rign"), "--algorithm: 'rign' is not a known all_reduce"),
    ],
)
def test_options_an_algorithm_has_not_are_refused(capsys, words, said):
    code = cli.run_command_line(["perf", *words, "-T", "h100-rail-8", "--profile", "none"])
    streams = capsys.readouterr()
    assert (code, streams.out) == (2, "")
    assert said in streams.err
    assert streams.err.count("\n") == 1


def test_ranks_are_the_first_gpus():
    bench = Bench("all_reduce", topology="h100-rail-8", ranks=8)
    row = bench.run(2**20)  # one host: nothing leaves its NVLink
    assert "/nvs0:" in row.busiest
    assert bench.run(2**20) == row


SPINES = """\
schema: 1
name: two-groups
kind: rail-optimized
hosts: {{count: 4, model: dgx-h100}}
group: 2
leaf: {{switch: spectrum-4}}
spine: {{switch: spectrum-4, oversubscription: "{ratio}"}}
links:
  host-leaf: {{rate: 400Gbps, length: 10m}}
  leaf-spine: {{rate: 400Gbps, length: 30m}}
"""


def test_the_engine_and_the_topology_matter(capsys, tmp_path):
    def time_us(ratio, *words):
        path = tmp_path / "t.yaml"
        path.write_text(SPINES.format(ratio=ratio))
        _, out = perf(
            capsys, "all_to_all", "-T", str(path), "-b", "16M", "-e", "16M", "--json", *words
        )
        return json.loads(out)["rows"][0]["time_us"]

    wide, narrow = time_us("1:1"), time_us("2:1")
    # 24 of the 31 peers are on other hosts, 16 of them in the other group; the bottleneck moves
    # from the NICs (24 shares) to half as many uplinks (16 shares over half the rate).
    assert narrow / wide > 1.25
    assert time_us("1:1", "--engine", "analytic") <= wide


def test_the_table_has_nccl_tests_columns(capsys):
    code, out = perf(capsys, "all_gather", "-T", "h100-rail-8", "-b", "1M", "-e", "2M")
    assert code == 0
    head = next(line for line in out.splitlines() if " redop " in line)
    names = head.lstrip("#").split()
    assert names[:8] == ["size", "count", "type", "redop", "root", "time", "algbw", "busbw"]
    rows = [line.split() for line in out.splitlines() if not line.startswith("#")]
    assert [row[:5] for row in rows] == [
        ["1048576", "4096", "float", "none", "-1"],
        ["2097152", "8192", "float", "none", "-1"],
    ]
    assert all(len(row) == len(names) for row in rows)


def test_warmup_runs_every_policy(capsys, monkeypatch):
    ran = []
    run = Bench.run
    monkeypatch.setattr(Bench, "run", lambda bench, size: ran.append(run(bench, size)))
    assert cli.run_command_line(["warmup"]) == 0
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("the kernels are ready (")
    assert len(ran) == 6
    assert all(row.time_ps > 0 for row in ran)


def test_a_wrong_way_to_use_queue_pairs_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["perf", "all_reduce", "-T", "h100-rail-8", "--qps", "4", "--qp-mode", "round"]
    assert cli.run_command_line(words) == 2
    told = capsys.readouterr().err
    assert "--qp-mode" in told
    assert "round-robin" in told
