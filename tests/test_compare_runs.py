# SPDX-License-Identifier: Apache-2.0
"""Runs side by side: which links, which class and which part of a step make one slower."""

from __future__ import annotations

import pytest

from railweave.tools import cli
from railweave.tools.run_figures import read_run_figures

FLOWS = """
schema: 1
seed: 1
name: {name}
engine: {engine}
topology: h100-rail-8
workload:
  kind: flows
  flows:
  - {{id: a, src: h1/gpu0, dst: h0/gpu0, size: 1MiB, class: kv}}
  - {{id: b, src: {src}, dst: {dst}, size: 1MiB, class: tp}}
"""


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def invoke(*words):
        code = cli.run_command_line(words)
        streams = capsys.readouterr()
        return code, streams.out, streams.err

    return invoke


def _run(call, tmp_path, name: str, *, engine="fluid", src="h2/gpu1", dst="h3/gpu1") -> None:
    (tmp_path / f"{name}.yaml").write_text(FLOWS.format(name=name, engine=engine, src=src, dst=dst))
    assert call("run", f"{name}.yaml", "-o", name, "-q")[0] == 0


def test_the_link_and_the_class_that_two_flows_share_are_named(call, tmp_path):
    """Flows on rails of their own, then both into one NIC: 21.39 us each, 3.1 us on the way."""
    _run(call, tmp_path, "apart")
    _run(call, tmp_path, "incast", src="h2/gpu0", dst="h0/gpu0")
    code, out, _ = call("compare", "apart", "incast")
    assert code == 0
    words = [line for line in out.splitlines() if line.startswith("- ")]
    assert words[0].startswith("- incast is 1.873 ")
    assert "times slower than apart" in words[0]
    assert "the busiest host-leaf link, leaf0.r0:0>h0/nic0:0, is busy for" in words[1]
    assert ", with the same 4.278 MB on all of them" in words[1]
    assert [line for line in words if "class kv has a p99 of" in line]
    assert [line for line in words if "class tp has a p99 of" in line]
    one = read_run_figures(tmp_path / "incast")
    assert {tag: found.wire_bytes for tag, found in one.classes.items()} == {
        "kv": 1_069_584,
        "tp": 1_069_584,
    }
    assert one.classes["kv"].p99_ps == one.p99_ps


def test_runs_that_are_alike_say_so_and_no_more(call, tmp_path):
    _run(call, tmp_path, "one")
    _run(call, tmp_path, "two")
    _, out, _ = call("compare", "one", "two")
    assert [line for line in out.splitlines() if line.startswith("- ")] == [
        "- two takes as long as one"
    ]


def test_the_axis_of_a_step_that_takes_longer_is_named(call, tmp_path):
    """The same model over a spine of a quarter of the leaves' bandwidth."""
    text = (
        "schema: 1\nname: {name}\nengine: fluid\ntopology: h100-rail-8\n"
        "workload: {{kind: training, model: llama-3.1-8b, tp: 8, dp: 8, sequence: 4096, "
        "micro_batches: {batches}}}\n"
    )
    for name, batches in (("short", 1), ("long", 2)):
        (tmp_path / f"{name}.yaml").write_text(text.format(name=name, batches=batches))
        assert call("run", f"{name}.yaml", "-o", name, "-q")[0] == 0
    _, out, _ = call("compare", "short", "long")
    assert "- long: computing takes" in out
    assert "- long: traffic of layers takes" in out
    assert "- long: traffic of dp" not in out
    assert "steps: bytes of tp" in out


def test_counters_of_the_packet_engine_are_rows(call, tmp_path):
    _run(call, tmp_path, "apart", engine="packet")
    _run(call, tmp_path, "incast", engine="packet", src="h2/gpu0", dst="h0/gpu0")
    _, out, _ = call("compare", "apart", "incast")
    assert "ECN marks" in out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id,src\n", "has no column dst"),
        ("", "has no column id"),
        ("id,src,dst,size_bytes,start_ps,end_ps,bound_ps,tag,wire_bytes\na\n", "cells than"),
    ],
)
def test_a_broken_table_of_flows_is_one_clear_error(call, tmp_path, text, said):
    _run(call, tmp_path, "one")
    _run(call, tmp_path, "two")
    (tmp_path / "two/flows.csv").write_text(text)
    code, _, err = call("compare", "one", "two")
    assert code == 2
    assert "two/flows.csv" in err
    assert said in err


def test_designs_have_the_classes_and_the_tail_of_their_workloads(call, tmp_path):
    """A row for each class of a workload's flows, on every design."""
    (tmp_path / "job.yaml").write_text(
        FLOWS.format(name="job", engine="fluid", src="h2/gpu1", dst="h0/gpu0")
    )
    words = ("h100-rail-8", "h100-rail-1su", "--no-failures", "--workload", "job.yaml")
    code, out, _ = call("compare", *words)
    assert code == 0
    rows = {line.split("  ")[0].strip(): line for line in out.splitlines()}
    assert "1.07 MB" in rows["job: class kv: bytes"]
    assert {"job: p99 of flows", "job: class tp: p99"} <= rows.keys()


def test_the_class_that_the_busiest_link_carries_is_named(call, tmp_path):
    """Longer prompts: more bytes of caches to hand over, on links that carry little else."""
    text = (
        "schema: 1\nname: {name}\nengine: fluid\ntopology: h100-rail-8\n"
        "workload: {{kind: serving, model: llama-3.1-8b, prefill: {{replicas: 1, tp: 8}}, "
        "decode: {{replicas: 1, tp: 8}}, router: round-robin, "
        "requests: [{{prompt: {prompt}, output: 4, at: 0ms}}]}}\n"
    )
    for name, prompt in (("short", 1000), ("long", 2000)):
        (tmp_path / f"{name}.yaml").write_text(text.format(name=name, prompt=prompt))
        assert call("run", f"{name}.yaml", "-o", name, "-q")[0] == 0
    short, long = (read_run_figures(tmp_path / name) for name in ("short", "long"))
    assert long.on_links["kv"] == pytest.approx(2 * short.on_links["kv"], rel=0.02)
    assert long.busiest_class == "kv"
    _, out, _ = call("compare", "short", "long")
    assert "(most of it kv), is busy for" in out
    assert "- long: links carry" in out
    assert "bytes of prefill on links" in out
