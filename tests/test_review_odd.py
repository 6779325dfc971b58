# SPDX-License-Identifier: Apache-2.0
"""Small and odd fabrics go through every command: no switch, no cable, hosts that differ."""

from __future__ import annotations

import json

import pytest

from railweave.tools import cli

ODD = {
    "direct": """
nodes: {h0: host, h1: host}
links: [{ends: [h0, h1], rate: 100Gbps, delay: 500ns}]
""",
    "alone": """
nodes: {h0: host}
links: []
""",
    "star": """
nodes: {h0: host, h1: host, h2: host, s: switch}
links:
  - {ends: [h0, s], rate: 100Gbps, delay: 500ns, count: 3}
  - {ends: [h1, s], rate: 100Gbps, delay: 500ns}
  - {ends: [h2, s], rate: 40Gbps, delay: 500ns}
""",
    "unlike": """
nodes:
  a: {type: host, model: dgx-a100}
  b: host
  l: {type: switch, model: spectrum-4, tier: leaf}
  s: {type: switch, tier: spine}
links:
  - {ends: [a/nic0, l], rate: 200Gbps, length: 2m}
  - {ends: [b, l], rate: 100Gbps, delay: 300ns}
  - {ends: [l, s], rate: 400Gbps, length: 3000m}
""",
}
JOB = """
schema: 1
engine: fluid
topology: h100-rail-8
workload: {kind: collective, op: all_reduce, sizes: [64KiB], ranks: %d}
"""


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def invoke(*words):
        code = cli.run_command_line(words)
        streams = capsys.readouterr()
        return code, streams.out, streams.err

    return invoke


@pytest.mark.parametrize("name", ODD)
def test_every_command_has_an_answer(call, tmp_path, name):
    (tmp_path / "odd.yaml").write_text(f"schema: 1\nname: {name}\nkind: custom\n{ODD[name]}")
    (tmp_path / "job.yaml").write_text(JOB % (1 if name == "alone" else 2))
    for words in (
        ("topo", "show", "odd.yaml"),
        ("topo", "check", "odd.yaml", "--facts"),
        ("topo", "draw", "odd.yaml", "-o", "odd.svg"),
        ("topo", "draw", "odd.yaml", "-o", "few.svg", "--expand", "none"),
        ("bom", "odd.yaml", "--cabling", "odd.csv", "--ptm", "odd.dot"),
        ("topo", "check", "odd.yaml", "--cabling", "odd.csv"),
        ("review", "odd.yaml", "--workload", "job.yaml", "-o", "review"),
        ("compare", "odd.yaml", "h100-rail-8", "--workload", "job.yaml", "--no-failures"),
        ("compare", "h100-rail-8", "odd.yaml", "--workload", "job.yaml", "--no-failures"),
    ):
        code, out, err = call(*words)
        assert code in (0, 1), (words, err)
        assert out or "wrote" in err
    failures = json.loads((tmp_path / "review/review.json").read_text())["failures"]
    host = next(one for one in failures if one["part"] == "host")
    assert host["hosts_lost"] >= 1
    if name == "direct":  # either end of its only cable takes both hosts from each other
        assert {one["part"]: one["hosts_lost"] for one in failures} == {
            "cable": 2,
            "nic": 2,
            "host": 2,
        }
