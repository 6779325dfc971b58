# SPDX-License-Identifier: Apache-2.0
"""What must hold of every serving run: each request once, blocks and bytes accounted for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from railweave.fabric import fluid
from railweave.runner import run_scenario
from railweave.workloads.serving.serving import ServingRun
from railweave.workloads.traces import prefix_reuse, read_trace

if TYPE_CHECKING:
    from railweave.result import Result

TRACES = Path(__file__).parents[2] / "shared" / "traces"
MOONCAKE = TRACES / "mooncake_conversation_first1500.jsonl"
EXAMPLES = Path(__file__).parents[1] / "examples" / "traces"
needs_mooncake = pytest.mark.skipif(
    not MOONCAKE.exists(), reason="the Mooncake trace is not beside the checkout"
)
POOLS: dict[str, Any] = {"prefill": {"replicas": 2}, "decode": {"replicas": 2}}
GROWING = [{"prompt": 60 + i, "output": 150, "at": f"{i}ms"} for i in range(24)]
VARIETY: dict[str, dict[str, Any]] = {
    "pull": {**POOLS},
    "push": {**POOLS, "kv_transfer": "push"},
    "stream": {**POOLS, "kv_transfer": "stream"},
    "stages": {"prefill": {"pp": 2}, "decode": {"pp": 2}},
    "two stages to one": {"prefill": {"pp": 2, "tp": 2}, "decode": {"tp": 4}},
    "across hosts": {"prefill": {"tp": 16}, "decode": {"tp": 2}},
    "colocated": {"colocated": {"replicas": 3}},
    "colocated stages": {"colocated": {"replicas": 2, "pp": 2}},
    "static": {**POOLS, "batching": "static"},
    "iteration": {**POOLS, "batching": "iteration"},
    "contiguous": {**POOLS, "kv_memory": "contiguous", "max_model_len": 4000, "kv_blocks": 600},
    "short memory": {"kv_blocks": 60, "requests": GROWING},
    "short memory, colocated": {"colocated": {}, "kv_blocks": 60, "requests": GROWING},
    "experts": {
        "model": "qwen3-30b-a3b",
        "prefill": {"tp": 4, "ep": 4},
        "decode": {"tp": 4, "ep": 4},
    },
    "cache": {**POOLS, "prefix_cache": "lru"},
    "short cache": {**POOLS, "prefix_cache": "lru", "kv_blocks": 200},
    "near": {**POOLS, "router": {"order": "decode-first", "remote_prefill_above": 700}},
    "posting": {**POOLS, "kv_transfer": {"mode": "pull", "message_cost": "1us", "nic": "single"}},
}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[ServingRun]:
    found: list[ServingRun] = []
    start = ServingRun.start

    def recorded(self: ServingRun) -> Any:
        found.append(self)
        return start(self)

    monkeypatch.setattr(ServingRun, "start", recorded)
    return found


def serve(*, topology: Any = "h100-rail-8", **workload: Any) -> Result:
    keys = {"kind": "serving", "model": "llama-3.1-8b", **workload}
    scenario = {"schema": 1, "topology": topology, "workload": keys}
    return run_scenario(scenario).raise_for_status()


def requests(count: int) -> list[dict[str, Any]]:
    """Return requests some of which share their first 512 tokens."""
    found = []
    for i in range(count):
        prompt = 520 + 211 * i % 1500
        blocks = -(-prompt // 256)
        ids = [7, 8][: blocks - 1] if i % 3 else []
        ids += [1000 * (i + 1) + j for j in range(blocks - len(ids))]
        found.append(
            {
                "prompt": prompt,
                "output": 1 + 17 * i % 90,
                "at": f"{i * 13}ms",
                "hash_ids": ids,
                "hash_block": 256,
            }
        )
    return found


@pytest.mark.parametrize("variety", VARIETY)
def test_requests_end_once_and_blocks_and_bytes_are_accounted_for(
    variety: str, runs: list[ServingRun]
) -> None:
    result = serve(**{"requests": requests(24), **VARIETY[variety]})
    (run,) = runs
    assert result.serving["requests"] == {"count": 24, "completed": 24, "rejected": 0}
    for request in run.requests:
        assert request.generated == request.output_tokens
        assert request.arrival_ps < request.first_ps <= request.last_ps
    for replica in run.fleet.replicas:
        assert replica.memory.taken == replica.memory.returned
        assert replica.memory.held == 0
        assert replica.empty
    tokens = sum(replica.ledger.tokens for replica in run.fleet.replicas)
    assert tokens == sum(request.output_tokens for request in run.requests)
    classes = result.classes.values()
    total = sum((one.wire_bytes for one in classes), np.zeros(result.fabric.n_links, np.int64))
    assert total.tolist() == result.links.wire_bytes.tolist()
    moved = sum(record.flow.size_bytes for record in result.records)
    assert moved == result.serving["kv_bytes"]
    if "short memory" in variety:
        assert result.serving["preemptions"]["count"] > 0
    if "cache" in variety:
        assert result.serving["prefix"]["found_tokens"] > 0


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("variety", ["pull", "push", "colocated", "short memory", "short cache"])
def test_remembered_spans_and_many_iterations_at_once_are_exact(
    variety: str, tp: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With tp 2 iterations have collectives to remember."""
    workload = {"requests": requests(16), **VARIETY[variety], "limit": 16 if tp == 1 else 6}
    for pool in ("prefill", "decode", "colocated"):
        if pool in workload or (pool != "colocated" and "colocated" not in workload):
            workload[pool] = {**workload.get(pool, {}), "tp": tp}
    at_once = serve(**workload)
    monkeypatch.setattr(fluid, "_MEMO_NODES", 0)
    one_by_one = serve(**workload)
    assert at_once.requests == one_by_one.requests
    assert at_once.links.wire_bytes.tolist() == one_by_one.links.wire_bytes.tolist()
    assert at_once.serving == one_by_one.serving


def test_fifty_tokens_take_four_pages(runs: list[ServingRun]) -> None:
    result = serve(requests=[{"prompt": 50, "output": 1}])
    prefill, decode = runs[0].fleet.replicas
    assert prefill.memory.taken == decode.memory.taken == 4
    assert result.serving["kv_bytes"] == 4 * 16 * 131_072


def hits_of_ids(trace: Path) -> int:
    """Count, from the lines alone, the blocks of 512 tokens that stand at the start of a prompt and
    were in a prompt before: whole ones, and never the one of the last token, which is computed.
    """
    seen: set[int] = set()
    hits = 0
    for line in trace.read_text("utf-8").splitlines():
        row = json.loads(line)
        usable = row["hash_ids"][: (row["input_length"] - 1) // 512]
        hits += next((i for i, block in enumerate(usable) if block not in seen), len(usable))
        seen.update(row["hash_ids"][: row["input_length"] // 512])
    return hits


@pytest.mark.parametrize(
    ("trace", "count", "hits", "pools"),
    [
        pytest.param(MOONCAKE, 1500, 11_054, {"colocated": {}}, marks=needs_mooncake),
        (EXAMPLES / "mooncake-like.jsonl", 96, 355, {"colocated": {}}),
        (EXAMPLES / "mooncake-like.jsonl", 96, 355, {"kv_transfer": "push"}),
    ],
    ids=["mooncake", "mooncake-like", "mooncake-like-pools"],
)
def test_an_unbounded_cache_finds_what_the_ids_say(
    trace: Path, count: int, hits: int, pools: dict[str, Any]
) -> None:
    """One replica that prefills, requests one after another: all that was seen before is found."""
    arrivals = {"kind": "closed-loop", "users": 1}
    result = serve(
        trace=str(trace), arrivals=arrivals, prefix_cache="unbounded", dtype="fp8",
        kv_dtype="fp8", **pools,
    )  # fmt: skip
    assert result.serving["requests"]["completed"] == count
    assert result.serving["prefix"]["found_tokens"] == 512 * hits_of_ids(trace) == 512 * hits
    assert prefix_reuse(read_trace(trace).requests).whole_hits == hits


@needs_mooncake
def test_a_slice_of_mooncake_is_exact_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rows of the slice on 64 hosts: 70B, 4 prefill and 4 decode replicas of tp 8.

    Prompts and ids are the trace's; of each answer the first few tokens, because singly each takes
    its 161 collectives.
    """
    rows = [json.loads(line) for line in MOONCAKE.read_text("utf-8").splitlines()[:6]]
    listed = [
        {"prompt": row["input_length"], "output": 18 + i, "at": f"{37 * i}ms",
         "hash_ids": row["hash_ids"], "hash_block": 512}
        for i, row in enumerate(rows)
    ]  # fmt: skip
    pools = {"prefill": {"tp": 8, "replicas": 4}, "decode": {"tp": 8, "replicas": 4}}
    link = {"model": "roce-lossless", "rate": "400Gbps"}
    topology = {
        "kind": "rail-optimized",
        "hosts": {"count": 64, "model": "dgx-h100"},
        "leaf": {"switch": "spectrum-4"},
        "spine": {"switch": "spectrum-4"},
        "links": {
            "host-leaf": {**link, "length": "10m"},
            "leaf-spine": {**link, "length": "30m"},
        },
    }

    def run() -> Result:
        return serve(
            topology=topology, model="llama-3.1-70b", requests=listed, prefix_cache="lru", **pools
        )

    at_once = run()
    monkeypatch.setattr(fluid, "_MEMO_NODES", 0)
    one_by_one = run()
    assert at_once.requests == one_by_one.requests
    assert at_once.sim_time_ps == one_by_one.sim_time_ps
    assert at_once.links.wire_bytes.tolist() == one_by_one.links.wire_bytes.tolist()
    assert at_once.serving == one_by_one.serving
