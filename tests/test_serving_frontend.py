# SPDX-License-Identifier: Apache-2.0
"""The network between clients and servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from railweave.run_folder import RunFolder, Stopwatch
from railweave.runner import run_scenario
from railweave.topologies.load import build_topology, load_topology

if TYPE_CHECKING:
    from pathlib import Path

    from railweave.result import Result

SLOW = {"rate": "1Mbps", "delay": "3ms", "bytes_per_token": "4B"}


def serve(requests: list[dict[str, Any]], **workload: Any) -> Result:
    keys = {"kind": "serving", "model": "llama-3.1-8b", "requests": requests, **workload}
    scenario = {"schema": 1, "topology": "h100-rail-8", "workload": keys}
    return run_scenario(scenario).raise_for_status()


def test_a_prompt_is_stored_and_forwarded_and_tokens_come_back() -> None:
    one = [{"prompt": 1000, "output": 3}]
    (inside,) = serve(one).requests
    (row,) = serve(one, frontend=SLOW).requests
    link_ps = 32_000 * 10**6 + 3 * 10**9  # 4,000 B at 1 Mbit/s, and the way
    assert row["prefill_start_ps"] == 2 * link_ps
    back_ps = 2 * (32 * 10**6 + 3 * 10**9)  # a token of 4 B over two links
    assert row["ttft_ps"] == inside["ttft_ps"] + 2 * link_ps + back_ps


def test_prompts_wait_for_those_before_them() -> None:
    rows = serve([{"prompt": 1000, "output": 1}] * 3, frontend=SLOW, colocated={}).requests
    starts = [row["queue_ps"] for row in rows]
    assert starts[0] == 2 * (32 + 3) * 10**9
    assert starts[1] >= starts[0] + 32 * 10**9


def test_it_is_a_topology_of_its_own_that_can_be_drawn(tmp_path: Path) -> None:
    result = serve([{"prompt": 100, "output": 5}], frontend=SLOW)
    assert result.serving["frontend"] == {
        "gateway>h0": 400, "h0>gateway": 0, "gateway>h1": 0, "h1>gateway": 20,
        "clients>gateway": 400, "gateway>clients": 20,
    }  # fmt: skip
    written = RunFolder(tmp_path / "run", name="s").write(result, Stopwatch())
    fabric = build_topology(load_topology(written / "frontend.yaml"))
    assert fabric.host_names == ("gateway", "h0", "h1", "clients")
    assert len(fabric.switches) == 1
