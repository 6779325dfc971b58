# SPDX-License-Identifier: Apache-2.0
"""Arrivals, routers with stale metrics, batching and memory policies, autoscaling, overload."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from railweave.fabric.errors import InputError
from railweave.runner import run_scenario
from railweave.workloads.serving.keys import RouterModel
from railweave.workloads.serving.request import Request
from railweave.workloads.serving.routers import ROUTERS
from railweave.workloads.serving.scorers import SCORERS

if TYPE_CHECKING:
    from railweave.result import Result


def serve(*, topology: Any = "h100-rail-8", seed: int = 1, **workload: Any) -> Result:
    keys = {"kind": "serving", "model": "llama-3.1-8b", **workload}
    scenario = {"schema": 1, "seed": seed, "topology": topology, "workload": keys}
    return run_scenario(scenario).raise_for_status()


def arrivals(result: Result) -> np.ndarray[Any, Any]:
    return np.array([row["arrival_ps"] for row in result.requests]) / 1e12


# ---------------------------------------------------------------------------- arrivals
def test_poisson_and_bursty_gaps_have_their_mean_and_spread() -> None:
    short = {"count": 4000, "prompt": 10, "output": 1, "rate_per_s": 50}
    for kind, cv in (("poisson", 1.0), ("gamma", 3.0)):
        keys = {**short, "kind": kind, **({"cv": cv} if kind == "gamma" else {})}
        found = arrivals(serve(arrivals=keys, colocated={"replicas": 2}, kv_blocks=1000))
        gaps = np.diff(found)
        # Standard errors of mean and of standard deviation: about cv/63 and 3 cv/63.
        assert gaps.mean() == pytest.approx(1 / 50, rel=4 * cv / 63)
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.2)


def test_a_closed_loop_keeps_its_users() -> None:
    keys = {"kind": "closed-loop", "users": 3, "count": 12, "prompt": 100, "output": 20}
    result = serve(arrivals={**keys, "think": "10ms"}, colocated={})
    starts, ends = arrivals(result), np.array([r["end_ps"] for r in result.requests]) / 1e12
    assert (starts[:3] == 0).all()
    for start in starts[3:]:
        assert np.isclose(ends + 0.01, start, atol=1e-12).any()  # some user thought for 10 ms
        assert ((starts <= start) & (ends > start)).sum() <= 3


def test_turns_wait_for_the_answer_and_find_what_was_said() -> None:
    keys = {"kind": "sessions", "count": 2, "turns": 3, "prompt": 160, "output": 32}
    result = serve(
        arrivals={**keys, "think": "1s"},
        prefix_cache="lru",
        colocated={},
        router="session-affinity",
    )
    for first in (0, 1):
        turns = [row for row in result.requests if (int(row["id"][1:]) // 3) == first]
        assert [row["prompt_tokens"] for row in turns] == [160, 352, 544]
        assert [row["found_tokens"] for row in turns] == [0, 160, 352]  # prompts, not answers
        for before, after in pairwise(turns):
            assert after["arrival_ps"] == before["end_ps"] + 10**12


def test_lengths_of_a_list_may_arrive_at_other_times() -> None:
    listed = [{"prompt": 100 + i, "output": 2} for i in range(20)]
    result = serve(requests=listed, arrivals={"kind": "poisson", "rate_per_s": 10}, colocated={})
    assert [row["prompt_tokens"] for row in result.requests] == [100 + i for i in range(20)]
    assert arrivals(result)[-1] > 0.5
    again = serve(requests=listed, arrivals={"kind": "poisson", "rate_per_s": 10}, colocated={})
    assert again.requests == result.requests
    other = serve(
        requests=listed, arrivals={"kind": "poisson", "rate_per_s": 10}, colocated={}, seed=2
    )
    assert arrivals(other).tolist() != arrivals(result).tolist()


@pytest.mark.parametrize(
    "keys",
    [
        {"kind": "poisson", "rate_per_s": 9, "count": 5, "prompt": 99, "output": 2},
        {"kind": "gamma", "rate_per_s": 9, "cv": 2, "count": 5, "prompt": 99, "output": 2},
        {"kind": "closed-loop", "users": 2, "count": 5, "prompt": 99, "output": 2},
        {"kind": "sessions", "turns": 2, "count": 3, "prompt": {"least": 9, "most": 99},
         "output": {"mean": 9, "median": 5, "largest": 30}},
    ],
)  # fmt: skip
def test_what_a_run_folder_keeps_runs_again(keys: dict[str, Any]) -> None:
    result = serve(arrivals=keys, colocated={})
    assert run_scenario(result.scenario).raise_for_status().requests == result.requests


# ---------------------------------------------------------------------------- routers
@dataclass
class View:
    number: int
    connections: int = 0
    free_blocks: int = 100
    blocks: int = 100
    waiting: int = 0
    running: int = 0
    waiting_tokens: int = 0
    inbound_bytes: int = 0
    cached: int = 0
    far: int = 0

    def cached_tokens(self, request: Any) -> int:
        return self.cached

    def hops(self) -> int:
        return self.far


REQUEST = Request(number=0, prompt_tokens=1000, output_tokens=1, arrival_ps=0, session="a")


def choose(name: str, *views: View, **keys: Any) -> int:
    router = ROUTERS.get(name)(np.random.default_rng(1), RouterModel(policy=name, **keys))
    return router.choose(REQUEST, views)


def test_each_router_looks_at_its_own_signal() -> None:
    assert choose("least-kv", View(0, free_blocks=10), View(1, free_blocks=20)) == 1
    assert choose("power-of-two", View(0, connections=2), View(1, connections=1)) == 1
    near, idle = View(1, far=4), View(2, far=6)
    assert choose("topology-aware", View(0, far=6), near, idle) == 1
    near.inbound_bytes = 10**9
    assert choose("topology-aware", View(0, far=6, inbound_bytes=1), near, idle) == 2
    idle.connections = 9  # much busier than the others
    assert choose("topology-aware", View(0, far=6, inbound_bytes=1), near, idle) == 0


def test_prefixes_count_until_load_drifts_apart() -> None:
    cached, idle = View(0, cached=600, connections=60), View(1, free_blocks=101)
    assert choose("prefix-aware", cached, idle) == 0
    cached.connections = 65  # more than 64 apart, and more than 1.5 times
    assert choose("prefix-aware", cached, idle) == 1
    assert choose("prefix-aware", View(0, cached=300), View(1, free_blocks=101)) == 1  # not > 0.3


def test_thresholds_of_routers_are_keys_that_somebody_heeds() -> None:
    cached, idle = View(0, cached=600, connections=6), View(1, free_blocks=101)
    assert choose("prefix-aware", cached, idle, balance_abs_threshold=5) == 1
    assert choose("prefix-aware", View(0, cached=600), idle, cache_threshold=0.7) == 1
    far, busy = View(0, far=6, connections=1), View(1, far=2, connections=4)
    assert choose("topology-aware", View(0, far=6), busy) == 0
    assert choose("topology-aware", View(0, far=6), busy, near_slack=4) == 1
    assert choose("topology-aware", far, busy, near_factor=2.0) == 1
    with pytest.raises(ValueError, match="no pool has the policy topology-aware"):
        RouterModel(policy="round-robin", near_slack=3)


def test_scorers_are_weighed_and_added() -> None:
    one, two = View(0, cached=900, waiting=5), View(1, waiting=0)
    assert choose("weighted", one, two) == 0  # 2 x 0.9 + 0 against 0 + 1
    assert choose("weighted", one, two, scorers={"prefix": 1, "queue": 2}) == 1
    for name in SCORERS.names():
        scores = SCORERS.get(name)(np.random.default_rng(1)).scores(REQUEST, [one, two])
        assert all(0 <= score <= 1 for score in scores)


def test_a_session_stays() -> None:
    router = ROUTERS.get("session-affinity")(np.random.default_rng(1))
    views = [View(0, connections=1), View(1)]
    assert router.choose(REQUEST, views) == 1
    views[1].connections = 50
    assert router.choose(REQUEST, views) == 1
    assert router.choose(REQUEST, views[:1]) == 0  # where it was does not serve any more


def test_old_metrics_send_a_burst_to_one_replica() -> None:
    burst = [{"prompt": 100, "output": 50, "at": f"{i}ms"} for i in range(8)]
    spread = {}
    for interval in ("0s", "1s"):
        router = {"policy": "least-kv", "scrape_interval": interval}
        result = serve(requests=burst, colocated={"replicas": 4}, router=router)
        spread[interval] = [row["decode"] for row in result.requests]
    assert sorted(spread["0s"]) == [0, 0, 1, 1, 2, 2, 3, 3]
    # All see the same numbers: turn by turn among equals, never by what was sent before.
    assert spread["1s"] == [0, 1, 2, 3, 0, 1, 2, 3]


def test_short_prompts_stay_where_they_are_decoded() -> None:
    listed = [{"prompt": n, "output": 3} for n in (100, 900, 300, 800)]
    router = {"order": "decode-first", "remote_prefill_above": 500}
    result = serve(requests=listed, router=router)
    assert [row["prefill"] for row in result.requests] == [None, 0, None, 0]
    assert [row["kv_bytes"] > 0 for row in result.requests] == [False, True, False, True]


# ---------------------------------------------------------------------------- memory, batching
def test_pages_serve_more_users_than_reservations() -> None:
    """Room for 16 sequences of 2,048 tokens; they use 300 each: 19 pages instead of 128."""
    listed = [{"prompt": 200, "output": 100} for _ in range(64)]
    most = {}
    for memory in ("contiguous", "paged"):
        result = serve(
            requests=listed, colocated={}, kv_memory=memory, kv_blocks=16 * 128, max_model_len=2048
        )
        most[memory] = max(span.args["sequences"] for span in result.tracks)
    assert most == {"contiguous": 16, "paged": 64}


def test_a_full_memory_beside_idle_arithmetic_is_said() -> None:
    listed = [{"prompt": 200, "output": 100} for _ in range(64)]
    result = serve(
        requests=listed, colocated={}, kv_memory="contiguous", kv_blocks=512, max_model_len=2048
    )
    (row,) = result.serving["memory_bound"]
    assert row["replica"] == "colocated0"
    assert row["waited_for_blocks"] > 0.5
    assert row["arithmetic_used"] < 0.1
    strict = {"waited_above": 1.0}
    patient = serve(
        requests=listed, colocated={}, kv_memory="contiguous", kv_blocks=512, max_model_len=2048,
        memory_bound=strict,
    )  # fmt: skip
    assert "memory_bound" not in patient.serving
    plenty = serve(requests=listed, colocated={}, max_model_len=2048)
    assert "memory_bound" not in plenty.serving


def test_batching_policies_order_as_they_must() -> None:
    listed = [{"prompt": 200, "output": 10 + 40 * (i % 4), "at": f"{5 * i}ms"} for i in range(32)]
    mean = {}
    for policy in ("static", "iteration", "continuous"):
        result = serve(requests=listed, colocated={}, batching=policy, max_num_seqs=8)
        mean[policy] = result.serving["ttft_ps"]["mean"]
    assert mean["continuous"] <= mean["iteration"] < mean["static"]


def test_preemptions_are_counted() -> None:
    listed = [{"prompt": 64, "output": 200} for _ in range(16)]
    result = serve(requests=listed, colocated={}, kv_blocks=80)
    counted = result.serving["preemptions"]
    assert counted["count"] >= counted["requests"] > 0
    assert counted["count"] == sum(row["preemptions"] for row in result.requests)
    assert result.serving["tokens"]["output"] == 3200


# ---------------------------------------------------------------------------- load
def test_overload_tells_its_backlog_and_ends() -> None:
    keys = {"kind": "poisson", "rate_per_s": 400, "count": 300, "prompt": 2000, "output": 20}
    result = serve(arrivals=keys, slo={"ttft": "200ms", "tpot": "50ms"})
    backlog = result.serving["backlog"]
    assert result.serving["requests"]["completed"] == 300
    assert backlog["waiting_at_last_arrival"] > 200
    assert backlog["drained_ps"] > 5 * 10**12
    assert result.serving["slo"]["share"] < 0.1


def test_a_pool_grows_with_its_queue_and_its_weights_cross_the_fabric() -> None:
    keys = {"kind": "poisson", "rate_per_s": 60, "count": 400, "prompt": 2000, "output": 4}
    rule = {"pool": "prefill", "above": 4, "below": 0.5, "every": "500ms", "most": 3,
            "start_delay": "1s"}  # fmt: skip
    result = serve(arrivals=keys, prefill={"tp": 1}, decode={"tp": 1}, autoscale=rule)
    did = [(event["replica"], event["did"]) for event in result.serving["autoscale"]]
    assert did[:2] == [("prefill1", "start"), ("prefill2", "start")]
    start, serves = (
        next(e["at_ps"] for e in result.serving["autoscale"] if e["did"] == what)
        for what in ("start", "serve")
    )
    weights = [r for r in result.records if r.flow.tag == "weights"]
    assert weights[0].flow.size_bytes == 2 * 8_030_261_248
    assert serves == weights[0].end_ps
    assert weights[0].start_ps == start + 10**12
    alone = serve(arrivals=keys, prefill={"tp": 1}, decode={"tp": 1})
    assert result.serving["ttft_ps"]["mean"] < alone.serving["ttft_ps"]["mean"]


def test_a_cache_that_waits_too_long_is_dropped_and_prefilled_again() -> None:
    listed = [{"prompt": 800, "output": 100} for _ in range(3)]
    result = serve(requests=listed, kv_blocks=60, kv_transfer={"mode": "pull", "timeout": "200ms"})
    assert result.serving["kv_timeouts"] > 0
    assert result.serving["requests"]["completed"] == 3


def test_posting_messages_bounds_a_transfer() -> None:
    listed = [{"prompt": 1600, "output": 2}]
    took = {}
    for cost, block in (("0ns", 16), ("5us", 16), ("5us", 64)):
        result = serve(requests=listed, block=block,
                       kv_transfer={"mode": "pull", "message_cost": cost})  # fmt: skip
        took[cost, block] = result.requests[0]["kv_ps"]
    messages = 100 * 32 * 2  # pages of 16 tokens, layers, keys and values
    assert took["5us", 16] == pytest.approx(messages * 5_000_000, rel=0.01)
    assert took["5us", 64] == pytest.approx(took["5us", 16] / 4, rel=0.01)
    assert took["0ns", 16] < took["5us", 64]


def test_one_nic_for_all_takes_eight_times_as_long() -> None:
    listed = [{"prompt": 2160, "output": 2}]
    pools = {"model": "llama-3.1-70b", "prefill": {"tp": 8}, "decode": {"tp": 8}}
    took = {
        nic: serve(requests=listed, **pools, kv_transfer={"mode": "pull", "nic": nic}).requests[0][
            "kv_ps"
        ]
        for nic in ("affine", "single")
    }
    assert took["single"] / took["affine"] == pytest.approx(8, rel=0.01)


def test_names_are_those_of_vllm_bench() -> None:
    too_long = {"prompt": 200_000, "output": 5}
    listed = [{"prompt": 100, "output": 5}] * 3 + [too_long]
    result = serve(requests=listed, slo={"ttft": "1s"})
    bench, own = result.serving["vllm_bench"], result.serving
    assert bench["mean_ttft_ms"] == pytest.approx(own["ttft_ps"]["mean"] / 1e9, rel=1e-6)
    assert (bench["completed"], bench["failed"], bench["total_output_tokens"]) == (3, 1, 15)
    assert bench["p99_itl_ms"] == own["itl_ps"]["p99"] / 1e9
    assert bench["request_goodput"] == bench["request_throughput"]
    assert own["itl_ps"]["count"] == 12


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"prefix_cache": "lru", "kv_memory": "contiguous"}, "only paged memory shares blocks"),
        ({"prefix_cache": "lru", "block": 48}, "a KV block of 48 tokens does not divide the 256"),
        ({"max_model_len": 400}, "has 601 tokens, more than the 400 of max_model_len"),
    ],
)
def test_what_cannot_be_is_refused(keys: dict[str, Any], expected: str) -> None:
    listed = [{"prompt": 600, "output": 1, "hash_ids": [1, 2, 3], "hash_block": 256}]
    with pytest.raises(InputError, match=expected):
        serve(requests=listed, **keys)
