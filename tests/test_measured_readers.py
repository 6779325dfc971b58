# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  (recorded tables)
"""Sound rows out of sound and broken logs, a line for each thing skipped, or a clear refusal."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railweave.fabric.errors import InputError
from railweave.tools.measured.data import Row, merge_repeats
from railweave.tools.measured.reading import read_measured

DEVICES = "".join(
    f"#  Rank {r:2d} Group  0 Pid  31{r:02d} on    node{r // 8} device  {r % 8} [0000:{r:02x}:00] "
    "NVIDIA H100 80GB HBM3\n"
    for r in range(8)
)
HEAD = f"""# nccl-tests version 2.17.6 nccl-headers=22805 nccl-library=22907
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 8 minBytes 8 maxBytes 1048576 step: 2(factor) warmup iters: 1 iters: 20 graph: 0
#
# Using devices
{DEVICES}#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""
ROWS = (
    "           8             2     float     sum      -1    12.90    0.00    0.00       0    12.73    0.00    0.00       0",
    "     1048576        262144     float     sum      -1    28.60   36.66   64.16       0    28.10   37.32   65.30       0",
    "    16777216       4194304     float     sum      -1   124.00  135.30  236.78       0   123.50  135.85  237.73       0",
)
TAIL = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 117.3\n#\n"
LOG = HEAD + "\n".join(ROWS) + "\n" + TAIL
GOOD = [("all_reduce", 8, 12.9), ("all_reduce", 1048576, 28.6), ("all_reduce", 16777216, 124.0)]


def read(folder, text, name="log.txt", **more):
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_measured(path, **more)


def rows(data):
    return [(row.op, row.size_bytes, row.time_us) for row in data.rows]


def skipped(data):
    return [(skip.line, skip.why) for skip in data.skipped]


def test_a_log_of_nccl_tests(tmp_path):
    (data,) = read(tmp_path, LOG)
    assert rows(data) == GOOD
    assert (data.nodes, data.gpus_per_node, data.backend) == (1, 8, "nccl")
    assert data.hardware == "8xNVIDIA H100 80GB HBM3"
    assert data.skipped == ()
    assert data.findings == ()
    assert data.rows[1].line == LOG.splitlines().index(ROWS[1]) + 1


@pytest.mark.parametrize(
    ("change", "lost", "why"),
    [
        (lambda text: text.replace("\n", "\r\n"), [], []),
        (lambda text: "\ufeff" + text, [], []),
        (lambda text: text.replace(ROWS[1], ROWS[1][:70]), [1048576], ["a cut line"]),
        (lambda text: text.replace(ROWS[1], ROWS[1][:30]), [1048576], ["a cut line"]),
        (lambda text: text[: text.index(ROWS[2]) + 60], [16777216], ["a cut line"]),
        (lambda text: text.replace(ROWS[0], ROWS[0] + ROWS[0]), [8], ["two lines in one"]),
        (
            lambda text: text.replace(ROWS[1], f"{ROWS[1][:62]}node0:31:44 [0] NCCL INFO Ring"),
            [1048576],
            ["a row with NCCL's messages in it"],
        ),
        (
            lambda text: text.replace(ROWS[1], f"{ROWS[1]}\nnode0:31:44 [0] NCCL INFO a\n"
                                      "node0:31:45 [1] NCCL INFO b"),
            [],
            ["NCCL messages (2 lines)"],
        ),
        (lambda text: text.replace(ROWS[1], f"slurmstepd: bye\n{ROWS[1]}"), [],
         ["not of nccl-tests"]),
        (lambda text: text.replace("       0    28.10", "     N/A    28.10"), [], []),
        (lambda text: text.replace("28.60   36.66   64.16       0", "N/A N/A N/A N/A"), [],
         ["no time out of place"]),
        (lambda text: text.replace("64.16       0", "64.16       7"), [], ["wrong data"]),
        (lambda text: "\n".join(f"[1,0]<stdout>:{line}" for line in text.splitlines()), [], []),
        (lambda text: "\n".join(f"0: {line}" for line in text.splitlines()), [], []),
    ],
)  # fmt: skip
def test_a_broken_log_gives_its_sound_rows(tmp_path, change, lost, why):
    (data,) = read(tmp_path, change(LOG))
    assert [row.size_bytes for row in data.rows] == [r[1] for r in GOOD if r[1] not in lost]
    assert [skip.why for skip in data.skipped] == why
    in_place = "N/A N/A" in change(LOG) or "       7" in change(LOG)
    assert {row.time_us for row in data.rows} <= {r[2] for r in GOOD} | (
        {28.1} if in_place else set()
    )


@given(st.data())
def test_a_log_cut_anywhere_gives_only_rows_that_were_in_it(tmp_path_factory, data):
    cut = data.draw(st.integers(0, len(LOG)))
    folder = tmp_path_factory.mktemp("cut")
    try:
        found = read(folder, LOG[:cut])
    except InputError as error:
        told = str(error)
    else:
        told = str(folder)
        kept = [(op, size) for op, size, _ in rows(found[0])]
        assert kept == [(op, size) for op, size, _ in GOOD][: len(kept)]
        assert all(row.time_us in (12.9, 28.6, 124.0) for row in found[0].rows)
    assert str(folder) in told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the file is empty"),
        ("\n \r\n", "the file is empty"),
        (b"\x7fELF\x02\x01\x01\x00\x00\x00", "this is no text"),
        ("Hello, world\n1 2 3\n", "this is of another program"),
        ("Server listening on 5201\n[  5]   0.00-1.00  sec  1.10 GBytes\n", "another program"),
        ('{"a": 1}', "this JSON is of another program"),
        ('{"a": ', "this is not JSON"),
        ("dataset,nodes,size_bytes,x,y,z\n", "there is no column 'gpus_per_node'"),
        (HEAD, "no whole row"),
        ("#bytes #iterations    t_min[usec]    t_max[usec]\n 2       1000          0.9   3.1\n",
         "a table of latencies"),
    ],
)  # fmt: skip
def test_what_holds_nothing_is_refused(tmp_path, text, told):
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    assert told in str(caught.value)
    assert str(tmp_path / "log.txt") in str(caught.value)


def test_old_columns_without_root_and_with_blanks(tmp_path):
    head = LOG.split("#                ")[0].replace(
        "# Collective test starting: all_reduce_perf\n", ""
    )
    old = (
        "#\n#  size         count      type   redop     time   algbw   busbw  error     time   algbw"
        "   busbw  error\n"
        "  33554432   1048576     float             200.0  167.77  146.80  0e+00   201.0  166.9"
        "  146.1  1e-07\n"
    )
    (data,) = read(tmp_path, f"$ ./build/all_gather_perf -g 8\n{head}{old}")
    assert rows(data) == [("all_gather", 33554432, 200.0)]


def test_columns_that_newer_versions_add(tmp_path):
    wide = LOG.replace("#wrong\n", "#wrong   min   max\n").replace(
        ROWS[1], f"{ROWS[1]}   27.0   31.0"
    )
    (data,) = read(tmp_path, wide)
    assert ("all_reduce", 1048576, 28.6) in rows(data)


def test_the_operation_is_told_by_the_bandwidths_or_asked_for(tmp_path):
    nameless = LOG.replace("# Collective test starting: all_reduce_perf\n", "")
    assert rows(read(tmp_path, nameless)[0]) == GOOD
    flat = (
        nameless.replace("64.16", "36.66").replace("236.78", "135.30").replace("237.73", "135.85")
    )
    with pytest.raises(InputError, match="--op"):
        read(tmp_path, flat.replace("     sum", "    none"))
    (data,) = read(tmp_path, flat.replace("     sum", "    none"), op="broadcast")
    assert data.rows[0].op == "broadcast"


def test_several_tests_in_one_log(tmp_path):
    both = LOG + LOG.replace("all_reduce_perf", "alltoall_perf").replace("graph: 0", "graph: 1")
    one, two = read(tmp_path, both)
    assert (one.name, two.name) == ("log.txt#1", "log.txt#2")
    assert {row.op for row in two.rows} == {"all_to_all"}
    assert {row.launch for row in two.rows} == {"cuda-graph"}


@pytest.mark.parametrize(
    ("change", "kind", "part", "time"),
    [
        (lambda t: t.replace("   124.00", "    0.124"), "unit", "ms, not us", 124.0),
        (lambda t: t.replace("   124.00", "   124000"), "unit", "ns, not us", 124.0),
        (lambda t: t.replace("  135.30", "  126.01"), "unit", "GiB/s", 124.0),
        (lambda t: t.replace("  135.30", "   99.99"), "inconsistent", "times size over time", 124.0),
        (lambda t: t.replace("    16777216       4194304", "     4194304       4194304"),
         "unit", "elements of 4 B", 124.0),
    ],
)  # fmt: skip
def test_slips_of_units_are_named_and_mended(tmp_path, change, kind, part, time):
    (data,) = read(tmp_path, change(LOG))
    found = [finding for finding in data.findings if finding.kind == kind]
    assert part in found[0].what
    assert found[0].line == LOG.splitlines().index(ROWS[2]) + 1
    assert ("all_reduce", 16777216, pytest.approx(time)) in rows(data)


def test_rows_that_stand_twice_are_named(tmp_path):
    again = ROWS[1].replace("28.60   36.66", "30.60   34.27")
    (data,) = read(tmp_path, LOG.replace(ROWS[1], f"{ROWS[1]}\n{again}"))
    assert ("all_reduce", 1048576, pytest.approx(29.6)) in rows(data)
    (finding,) = data.findings
    assert (finding.kind, "2 times, 28.6 to 30.6 us" in finding.what) == ("duplicate", True)


def test_out_of_place_goes_before_in_place():
    one = Row(op="all_reduce", size_bytes=8, time_us=9.0, in_place=True)
    two = Row(op="all_reduce", size_bytes=8, time_us=5.0)
    kept, findings = merge_repeats("x", [one, two])
    assert ([row.time_us for row in kept], findings) == ([5.0], ())


NCCL_JSON = {
    "version": 3,
    "args": ["./build/all_gather_perf", "-b", "1M"],
    "env": {"NCCL_ALGO": "Ring"},
    "nccl_version": 22907,
    "config": {"nthreads": 1},
    "devices": [
        {"rank": r, "hostname": f"n{r // 4}", "device": r % 4, "device_info": "NVIDIA A100-SXM4"}
        for r in range(8)
    ],
    "results": [
        {"size": 1048576, "count": 32768, "type": "float", "redop": "none", "root": -1,
         "out_of_place": {"time": 40.5, "alg_bw": 25.9, "bus_bw": 22.6, "nwrong": "N/A"},
         "in_place": {"time": 41.5, "alg_bw": 25.3, "bus_bw": 22.1, "nwrong": 0}},
        {"size": 2097152, "count": 65536, "type": "float", "redop": "none", "root": -1,
         "out_of_place": {"time": 60.5, "alg_bw": 34.7, "bus_bw": 30.3, "nwrong": 3}},
    ],
}  # fmt: skip


def test_json_of_nccl_tests(tmp_path):
    (data,) = read(tmp_path, json.dumps(NCCL_JSON))
    assert rows(data) == [("all_gather", 1048576, 40.5)]
    assert (data.nodes, data.gpus_per_node) == (2, 4)
    assert data.findings[0].kind == "wrong-data"
    assert data.facts["variables"] == {"NCCL_ALGO": "Ring"}


def probe_text(*rows):
    head = {
        "schema": 1, "kind": "railweave-probe", "backend": "gloo", "nodes": 1,
        "ranks_per_node": [4], "device": "cpu", "status": "failed", "message": "rank 2 died",
        "skipped": [{"what": "rails", "why": "only one host"}],
    }  # fmt: skip
    lines = ",\n  ".join(rows)
    return f'{json.dumps(head, indent=1)[:-2]},\n "rows": [\n  {lines}\n ]\n}}\n'


def probe_row(size, time, **more):
    row = {
        "part": "collectives", "op": "alltoall", "size_bytes": size, "in_place": None,
        "out_of_place": {"time_us": time, "wrong": 0},
    }  # fmt: skip
    return json.dumps({**row, **more})


def test_json_of_the_probe_whole_and_cut(tmp_path):
    text = probe_text(probe_row(64, 5.0), probe_row(128, 6.0), probe_row(256, 7.0))
    (data,) = read(tmp_path, text, "m.json")
    every = [("all_to_all", 64, 5.0), ("all_to_all", 128, 6.0), ("all_to_all", 256, 7.0)]
    assert rows(data) == every
    assert (data.nodes, data.gpus_per_node, data.backend, data.link) == (1, 4, "gloo", "loopback")
    told = [
        (0, "the probe ended early (failed): rank 2 died"),
        (0, "the probe did not measure rails: only one host"),
    ]
    assert skipped(data) == told
    line = text.splitlines().index(next(x for x in text.splitlines() if '"size_bytes": 256' in x))
    assert data.rows[2].line == line + 1
    (cut,) = read(tmp_path, text[: text.index('"size_bytes": 256') + 20], "m.json")
    assert rows(cut) == every[:2]
    assert skipped(cut) == [*told, (line + 1, "a cut line")]
    with pytest.raises(InputError, match="not JSON"):
        read(tmp_path, text[:40], "m.json")


def test_rows_of_the_probe_that_are_not_sound(tmp_path):
    text = probe_text(
        probe_row(64, 5.0), probe_row(128, float("nan")), probe_row(256, -1), probe_row(0, 5.0),
        probe_row(512, "x"), probe_row(1024, 5.0, op="shout"), '{"part": "collectives"}', "3",
        probe_row(2048, 5.0, out_of_place={"time_us": 5.0, "wrong": 4}),
    )  # fmt: skip
    (data,) = read(tmp_path, text, "m.json")
    assert rows(data) == [("all_to_all", 64, 5.0)]
    whys = [why for _, why in skipped(data)]
    for part in ("time nan", "time -1", "size of 0 B", "time 'x'", "'shout' is not", "not a row",
                 "a row without", "wrong data"):  # fmt: skip
        assert any(part in why for why in whys), (part, whys)


def test_text_of_ib_write_bw(tmp_path):
    text = """
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF          Device         : mlx5_0
 Number of qps   : 8            Transport type : IB
 Mtu             : 4096[B]
 Link type       : Ethernet
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 16384      5000             380.4              380.0              2.899
 131072     5000             392.4              39
 1048576    5000             392.2              392.0              0.0467
"""
    (data,) = read(tmp_path, text)
    assert rows(data) == [
        ("rdma_write", 16384, pytest.approx(16384 * 8 / 380e3)),
        ("rdma_write", 1048576, pytest.approx(1048576 * 8 / 392e3)),
    ]
    assert skipped(data) == [(11, "a cut line")]
    assert (data.facts["number of qps"], data.facts["mtu"]) == ("8", "4096[B]")


def test_perftest_counts_megabytes_as_powers_of_two(tmp_path):
    text = " #bytes #iterations  BW peak[MB/sec]  BW average[MB/sec]  MsgRate[Mpps]\n 65536 1000 1 100 1\n"
    (data,) = read(tmp_path, text)
    assert data.rows[0].time_us == pytest.approx(65536 / (100 * 2**20) * 1e6)


TABLE = """dataset,hardware,nodes,gpus_per_node,link,collective,algorithm,protocol,size_bytes,time_us,algbw_GBps
a,8xH100-SXM5,1,8,NVLink4,all_reduce,NCCL-auto,,1048576,25.4,41.28
a,8xH100-SXM5,1,8,NVLink4,all_reduce,Ring,,33554432,200,167.77
a,8xH100-SXM5,1,4,NVLink4,all_reduce,NCCL-auto,,1048576,18.1,57.93
a,8xH100-SXM5,1,8,NVLink4,kv_transfer,NCCL-auto,,1048576,18.1,57.93
a,8xH100-SXM5,1,8,NVLink4,all_reduce,NCCL-auto,torch.distributed,2097152,0.0321,65.3
a,8xH100-SXM5,one,8,NVLink4,all_reduce,NCCL-auto,,1048576,18.1,57.93
a,8xH100-SXM5,1,8,NVLink4,all_red
"""


def test_a_table_of_published_rows(tmp_path):
    eight, four = read(tmp_path, TABLE, "t.csv")
    assert [(r.size_bytes, r.time_us, r.algorithm, r.launch) for r in eight.rows] == [
        (33554432, 200.0, "Ring", "nccl-tests"),
        (1048576, 25.4, "auto", "nccl-tests"),
        (2097152, pytest.approx(32.1), "auto", "torch-eager"),
    ]
    assert rows(four) == [("all_reduce", 1048576, 18.1)]
    assert skipped(eight) == [
        (5, "kv_transfer is no collective of NCCL"),
        (7, "nodes 'one' is not a count"),
        (8, "6 of 11 columns: a cut line"),
    ]
    assert [(f.kind, f.line) for f in eight.findings] == [("unit", 6)]


def test_elements_for_bytes_in_a_table(tmp_path):
    text = TABLE.splitlines()[0] + "\nb,8xA100,1,8,NVLink3,all_reduce,NCCL,,524288,25.4,41.28\n"
    (data,) = read(tmp_path, text, "t.csv")
    assert "elements of 2 B" in data.findings[0].what
