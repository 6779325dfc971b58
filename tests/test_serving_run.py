# SPDX-License-Identifier: Apache-2.0
"""Serving workloads end to end: worked transfer times, queues, batches, bounds, determinism."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from railweave.fabric.errors import InputError, PhysicsError
from railweave.run_folder import RunFolder, Stopwatch, run_files
from railweave.runner import run_scenario
from railweave.workloads.serving import pools
from railweave.workloads.serving.replica import Replica
from railweave.workloads.serving.serving import ServingRun

if TYPE_CHECKING:
    from pathlib import Path

    from railweave.result import Result

KV_BYTES = 704_512_000  # 2,150 tokens of Llama-3.1-70B
RAIL_BPS = 400 * 10**9
PAYLOAD_SHARE = 4096 / 4178  # of a RoCEv2 frame on IPv4 with an MTU of 4096


def serve(workload: dict[str, Any], *, topology: Any = "h100-rail-8", **overrides: Any) -> Result:
    full = {
        "kind": "serving",
        "model": "llama-3.1-70b",
        "prefill": {"tp": 8},
        "decode": {"tp": 8},
        "requests": [{"prompt": 2150, "output": 2}],
        **workload,
    }
    scenario = {"schema": 1, "topology": topology, "workload": full, **overrides}
    return run_scenario(scenario).raise_for_status()


def small(**workload: Any) -> dict[str, Any]:
    """Return a workload of one-GPU replicas."""
    return {"model": "llama-3.1-8b", "prefill": {}, "decode": {}, **workload}


def kv_ms(result: Result) -> list[float]:
    return [row["kv_ps"] / 1e9 for row in result.requests]


def test_the_cache_crosses_eight_rails_at_their_rate() -> None:
    result = serve({"block": 1})
    assert result.serving["kv_bytes"] == KV_BYTES
    assert [r.flow.size_bytes for r in result.records] == [88_064_000] * 8
    payload_ms = 88_064_000 * 8 / RAIL_BPS * 1e3
    assert payload_ms == pytest.approx(1.76128)
    (row,) = result.requests
    latency_ms = 3e-3  # two switches' worth of store-and-forward, the hosts and the cables
    assert row["kv_ps"] / 1e9 == pytest.approx(payload_ms / PAYLOAD_SHARE + latency_ms, rel=5e-4)
    assert row["kv_ps"] == row["kv_bound_ps"]


def test_whole_blocks_move() -> None:
    result = serve({"block": 16})
    assert result.serving["kv_bytes"] == 2160 * 327_680


def test_four_prefill_ranks_need_twice_the_time_of_eight() -> None:
    result = serve({"block": 1, "prefill": {"tp": 4}})
    assert result.serving["kv_bytes"] == KV_BYTES
    assert len(result.records) == 8
    assert {r.flow.src for r in result.records} == set(result.fabric.gpus[:4].tolist())
    assert kv_ms(result)[0] * PAYLOAD_SHARE == pytest.approx(3.52256, rel=5e-3)


def test_sixteen_decode_ranks_pull_every_head_twice() -> None:
    result = serve({"block": 1, "decode": {"tp": 16}})
    assert result.serving["kv_bytes"] == 1_409_024_000
    assert len(result.records) == 16
    assert kv_ms(result)[0] * PAYLOAD_SHARE == pytest.approx(3.52256, rel=5e-3)


def test_two_transfers_into_one_replica_share_its_rails() -> None:
    two = [{"prompt": 2150, "output": 2}] * 2
    alone = kv_ms(serve({"block": 1}))[0]
    result = serve({"block": 1, "prefill": {"tp": 8, "replicas": 2}, "requests": two})
    assert kv_ms(result) == pytest.approx([2 * alone] * 2, rel=5e-3)
    assert [row["kv_bound_ps"] / 1e9 for row in result.requests] == pytest.approx([alone] * 2)
    spread = serve(
        {
            "block": 1,
            "prefill": {"tp": 8, "replicas": 2},
            "decode": {"tp": 8, "replicas": 2},
            "requests": two,
        }
    )
    assert kv_ms(spread) == pytest.approx([alone] * 2)


def test_the_first_token_comes_out_of_the_first_iteration_after_the_cache() -> None:
    result = serve({"requests": [{"prompt": 2150, "output": 1}, {"prompt": 2150, "output": 3}]})
    first, second = result.requests
    assert result.serving["decode"]["steps"] == 3
    assert first["first_token_ps"] == first["end_ps"] > first["kv_end_ps"]
    assert first["ttft_ps"] == first["first_token_ps"]
    assert first["tpot_ps"] is None
    assert first["tpot_bound_ps"] is None
    assert result.serving["tpot_ps"]["count"] == 1
    assert second["tpot_ps"] == (second["end_ps"] - second["first_token_ps"]) // 2


def test_a_request_alone_takes_its_bound() -> None:
    (row,) = serve({}).requests
    assert row["ttft_ps"] >= row["ttft_bound_ps"]
    assert row["ttft_ps"] == pytest.approx(row["ttft_bound_ps"], rel=1e-6)
    assert row["tpot_ps"] == pytest.approx(row["tpot_bound_ps"], rel=1e-4)


def test_analytic_is_a_bound_of_fluid() -> None:
    shapes: tuple[dict[str, Any], ...] = ({"tp": 8}, {"tp": 4}, {"tp": 4, "pp": 2}, {"tp": 16})
    for prefill in shapes:
        workload = {"prefill": prefill}
        (bound,) = serve(workload, engine="analytic").requests
        (fluid,) = serve(workload, engine="fluid").requests
        for name in ("ttft_ps", "tpot_ps", "kv_ps", "end_ps"):
            assert bound[name] <= fluid[name]
        # Across hosts a collective may take more than its longest chain and its busiest link.
        assert fluid["ttft_ps"] == pytest.approx(bound["ttft_ps"], rel=1e-3)
        assert bound["ttft_ps"] == bound["ttft_bound_ps"]


def test_all_reduces_in_a_row_take_what_they_take_between_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workload = {"requests": [{"prompt": 300, "output": 3}, {"prompt": 200, "output": 2}]}
    in_a_row = serve(workload)
    monkeypatch.setattr(pools, "_uses_shared_links", lambda *_: True)
    alternating = serve(workload)
    assert in_a_row.requests == alternating.requests
    assert in_a_row.links.wire_bytes.tolist() == alternating.links.wire_bytes.tolist()
    assert len(in_a_row.executed) < len(alternating.executed)


def test_what_the_model_says_leaves_each_gpu() -> None:
    """2,150 tokens of prefill send 9.925 GB per GPU over NVLink, a decode iteration 4,616,192 B."""
    result = serve({"requests": [{"prompt": 2150, "output": 1}]})
    fabric = result.fabric
    out = {
        int(fabric.link_src[i]): int(result.links.wire_bytes[i])
        for i in range(fabric.n_links)
        if fabric.link_tier[i] == "nvlink" and fabric.kind[fabric.link_src[i]] == 0
    }
    logits = 256_512 * 7 // 8
    prefill, decode = fabric.gpus[0], fabric.gpus[8]
    assert out[prefill] == 161 * 14 * (35_225_600 // 8) + logits
    assert out[prefill] / 1e9 == pytest.approx(9.925, abs=5e-4)
    assert out[decode] == 4_616_192 + logits


def test_sequences_join_the_batch_between_iterations() -> None:
    requests = [{"prompt": 500, "output": 40}, {"prompt": 500, "output": 10, "at": "60ms"}]
    result = serve(small(requests=requests))
    first, second = result.requests
    assert first["first_token_ps"] < second["kv_end_ps"] < second["first_token_ps"]
    assert second["end_ps"] < first["end_ps"]
    assert result.serving["decode"]["steps"] == 40
    assert result.serving["decode"]["mean_batch"] == 1.25
    assert first["tpot_ps"] > first["tpot_bound_ps"]


def test_a_full_batch_makes_the_next_request_wait_before_its_cache_moves() -> None:
    requests = [{"prompt": 500, "output": 10}, {"prompt": 500, "output": 10}]
    first, second = serve(small(max_num_seqs=1, requests=requests)).requests
    assert second["prefill_end_ps"] < second["kv_start_ps"] == first["end_ps"]


def test_kv_blocks_are_held_until_they_are_free() -> None:
    """Room for 3,011 tokens: not for the second request's blocks beside the first's."""
    requests = [{"prompt": 2000, "output": 50}, {"prompt": 2000, "output": 50}]
    result = serve(small(gpu_memory_utilization=0.20569, requests=requests))
    assert result.serving["decode"]["kv_capacity_tokens"] == 3008
    first, second = result.requests
    # Prefill holds the first prompt's blocks until the transfer is acknowledged.
    assert second["prefill_start_ps"] == first["kv_end_ps"]
    assert second["kv_start_ps"] == first["end_ps"]


def test_blocks_come_back_and_every_request_ends_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[ServingRun] = []
    start = ServingRun.start

    def recorded(self: ServingRun) -> Any:
        runs.append(self)
        return start(self)

    monkeypatch.setattr(ServingRun, "start", recorded)
    requests = [{"prompt": 100 + 37 * i, "output": 1 + i % 5, "at": f"{i}ms"} for i in range(12)]
    pool = {"replicas": 2}
    result = serve(small(prefill=pool, decode=pool, router="least-connections", requests=requests))
    (run,) = runs
    for replica in run.fleet.replicas:
        assert replica.free_blocks == replica.plan.blocks
        assert replica.memory.taken == replica.memory.returned > 0
        assert replica.connections == 0
    assert [r.generated for r in run.requests] == [request["output"] for request in requests]
    assert result.serving["requests"] == {"count": 12, "completed": 12, "rejected": 0}
    assert result.serving["tokens"]["output"] == sum(request["output"] for request in requests)
    assert sum(r.flow.size_bytes for r in result.records) == result.serving["kv_bytes"]


def test_what_never_fits_is_rejected_and_counted() -> None:
    requests = [{"prompt": 2000, "output": 10}, {"prompt": 9000, "output": 10}]
    workload = small(gpu_memory_utilization=0.20569, requests=requests, slo={"ttft": "1s"})
    result = serve(workload)
    assert result.serving["requests"] == {"count": 2, "completed": 1, "rejected": 1}
    assert [row["status"] for row in result.requests] == ["completed", "rejected"]
    slo = result.serving["slo"]
    assert (slo["ttft_ps"], slo["met"], slo["share"]) == (10**12, 1, 0.5)
    (warning,) = result.warnings
    assert warning == (
        "1 of 2 requests were rejected: "
        "r1 needs 563 KV blocks for 9000 tokens, and prefill0 has 188"
    )
    with pytest.raises(InputError, match=r"no request can be served: r0 needs 563 KV blocks"):
        serve({**workload, "requests": requests[1:]})
    with pytest.raises(InputError, match=r"r0 has 131073 tokens, more than the 131072 of llama"):
        serve(small(requests=[{"prompt": 131072, "output": 1}]))


def test_an_slo_is_met_or_missed() -> None:
    requests = [{"prompt": 500, "output": 3}, {"prompt": 500, "output": 3}]
    rows = serve(small(requests=requests, max_num_batched_tokens=500)).requests
    limit = f"{rows[0]['ttft_ps']}ps"
    result = serve(
        small(requests=requests, max_num_batched_tokens=500, slo={"ttft": limit, "tpot": "1s"})
    )
    assert rows[0]["ttft_ps"] < rows[1]["ttft_ps"]
    assert result.serving["slo"]["met"] == 1


def test_prompts_share_a_step_within_the_token_budget() -> None:
    requests = [{"prompt": 500, "output": 1, "at": f"{i}us"} for i in range(4)]
    steps = {
        budget: serve(
            small(requests=requests, max_num_batched_tokens=budget, chunked_prefill=False)
        )
        for budget in (100, 1000, 8192)
    }
    assert [r.serving["prefill"]["steps"] for r in steps.values()] == [4, 3, 2]
    chunked = serve(small(requests=requests, max_num_batched_tokens=100))
    assert chunked.serving["prefill"]["steps"] == 20
    starts = [row["prefill_start_ps"] for row in steps[1000].requests]
    assert starts[0] < starts[1] == starts[2] < starts[3]


def test_prefill_stages_are_a_pipeline() -> None:
    requests = [{"prompt": 2000, "output": 1}, {"prompt": 2000, "output": 1}]
    workload = {
        "prefill": {"tp": 4, "pp": 2},
        "requests": requests,
        "max_num_batched_tokens": 2000,
    }
    result = serve(workload)
    first, second = result.requests
    half = (first["prefill_end_ps"] - first["prefill_start_ps"]) / 2
    assert second["prefill_start_ps"] - first["prefill_start_ps"] == pytest.approx(half, rel=0.05)
    sources = {r.flow.src for r in result.records}
    assert sources == set(result.fabric.gpus[:8].tolist())  # each stage sends its own layers


def test_what_beats_its_bound_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replica, "bound_ps", lambda *_: 10**15)
    with pytest.raises(PhysicsError, match=r"the first token of request r0 took"):
        serve(small(requests=[{"prompt": 10, "output": 1}]))


def test_routers_change_where_requests_go() -> None:
    requests = [
        {"prompt": 100, "output": 200},
        {"prompt": 100, "output": 1, "at": "20ms"},
        {"prompt": 100, "output": 1, "at": "200ms"},
    ]
    took = {
        router: [
            row["decode"]
            for row in serve(
                small(decode={"replicas": 2}, router=router, requests=requests)
            ).requests
        ]
        for router in ("round-robin", "least-connections")
    }
    assert took == {"round-robin": [0, 1, 0], "least-connections": [0, 1, 1]}


def test_pull_push_and_stream_move_the_same_bytes_and_each_hides_more() -> None:
    rows = {}
    for mode in ("pull", "push", "stream"):
        workload = {"kv_transfer": mode, "requests": [{"prompt": 20_000, "output": 2}]}
        (rows[mode],) = serve(workload).requests
    assert len({row["kv_bytes"] for row in rows.values()}) == 1
    assert len({row["prefill_end_ps"] for row in rows.values()}) == 1
    pull, push, stream = (row["kv_exposed_ps"] for row in rows.values())
    # Pull leaves all of it to the end, push the last of three chunks, stream an eighth of that.
    assert pull == rows["pull"]["kv_ps"] == rows["pull"]["kv_bound_ps"]
    assert push / pull == pytest.approx((20_000 - 2 * 8192) / 20_000, rel=0.01)
    assert stream / push == pytest.approx(1 / 8, rel=0.02)
    assert rows["pull"]["ttft_ps"] - rows["stream"]["ttft_ps"] == pull - stream


def test_a_trace_is_read_limited_and_written_out(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:00:00.0000000,100,2\n"
        "2023-11-16 18:00:01.0000000,200,3\n"
        "2023-11-16 18:00:02.0000000,300,4\n"
    )
    path = tmp_path / "s.yaml"
    path.write_text(
        "schema: 1\ntopology: h100-rail-8\nworkload: {kind: serving, model: llama-3.1-8b, "
        "trace: trace.csv, limit: 2, rate_scale: 4, start: 1ms}\n"
    )
    result = run_scenario(path).raise_for_status()
    assert [row["arrival_ps"] for row in result.requests] == [10**9, 251 * 10**9]
    folder = RunFolder(tmp_path / "run", name="s")
    written = folder.write(result, Stopwatch())
    again = run_files(run_scenario(written / "scenario.yaml"), Stopwatch())
    del again["timing.json"]
    assert again == {name: (written / name).read_text() for name in again}
    head, *rows = again["requests.csv"].splitlines()
    assert head.startswith("workload,id,status,arrival_ps,prompt_tokens,output_tokens,")
    assert len(rows) == 2


def test_two_services_share_the_fabric() -> None:
    one = {"kind": "serving", "requests": [{"prompt": 500, "output": 2}], **small()}
    one = {**one, "requests": [{"prompt": 500, "output": 2}]}
    both = {"placement": {"policy": "list", "gpus": ["h1/gpu0", "h2/gpu0"]}}
    scenario = {
        "schema": 1,
        "topology": "h100-rail-8",
        "workload": [{**one, "name": "a"}, {**one, "name": "b", **both}],
    }
    result = run_scenario(scenario).raise_for_status()
    assert set(result.serving) == {"a", "b"}
    assert [row["workload"] for row in result.requests] == ["a", "b"]
    names = result.fabric.device_names
    ends = [(names[r.flow.src], names[r.flow.dst]) for r in result.records]
    assert ends == [("h0/gpu0", "h1/gpu0"), ("h1/gpu0", "h2/gpu0")]


def test_hash_seeds_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "schema: 1\ntopology: h100-rail-8\nplacement: {policy: random}\n"
        "workload: {kind: serving, model: llama-3.1-8b, prefill: {replicas: 2, tp: 2}, "
        "decode: {replicas: 2, tp: 2}, requests: [{prompt: 900, output: 3}, "
        "{prompt: 700, output: 4}, {prompt: 800, output: 2}]}\n"
    )
    texts = []
    for seed in ("0", "42"):
        folder = tmp_path / seed
        command = [sys.executable, "-m", "railweave", "run", str(path), "-q", "-o", str(folder)]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run(command, check=True, env=environment, capture_output=True)
        names = sorted(p.name for p in folder.iterdir() if p.name != "timing.json")
        assert "requests.csv" in names
        texts.append({name: (folder / name).read_bytes() for name in names})
    assert texts[0] == texts[1]
