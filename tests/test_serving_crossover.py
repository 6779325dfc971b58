# SPDX-License-Identifier: Apache-2.0
"""Pull, push and layer-wise stream: which is first, and where that changes.

One prompt of S tokens alone, in n steps of C tokens at most. A step of C tokens leaves bytes
or messages that take X(C) = max(W, M): W on the wire, M to post. With G groups of layers, each of
which adds c to its step, and R from the prefill to the read, what each way adds to the prefill is

    pull    R + X(S)
    push    X(last step)
    stream  n G c + X(last step) / G

as long as what a step leaves has gone when the next one ends. So for one step the stream is first
above S = (G c - R) / (x (1 - 1/G)) tokens, where x is the X of one token; and where steps are many,
push is first again above n = X(C) (1 - 1/G) / (G c) steps.
"""

from __future__ import annotations

from typing import Any

import pytest

from railweave.fabric.devices import gpu_model
from railweave.runner import run_scenario
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.shapes import load_shape
from railweave.workloads.sizing.times import ReplicaTimes

RATE_BPS = 400 * 10**9
PER_TOKEN = 131_072  # bytes of cache of a token: 2 x 32 layers x 8 heads x 128 x 2 B
WIRE_PS = PER_TOKEN * 8 * 4178 / 4096 / RATE_BPS * 1e12  # of a token: MTU 4096, IPv4
POST_PS = 2 * 32 / 16 * 1e6  # of a token: two messages for each layer and block of 16, 1 us each
US = 10**6


def serve(requests: list[dict[str, Any]], **workload: Any) -> list[dict[str, Any]]:
    keys = {"kind": "serving", "model": "llama-3.1-8b", "requests": requests, **workload}
    scenario = {"schema": 1, "topology": "h100-rail-8", "workload": keys}
    return run_scenario(scenario).raise_for_status().requests


def first(mode: str, prompt: int, *, budget: int = 8192, **transfer: Any) -> int:
    """Return the time to the first token of one prompt alone."""
    (row,) = serve(
        [{"prompt": prompt, "output": 1}],
        max_num_batched_tokens=budget,
        kv_transfer={"mode": mode, **transfer},
    )
    return int(row["ttft_ps"])


@pytest.mark.parametrize(
    ("groups", "sync_us", "read_us", "message_us", "tokens"),
    [
        (8, 50, 0, 0, 170.9),
        (32, 50, 0, 0, 617.6),
        (8, 50, 200, 0, 85.5),
        (8, 50, 0, 1, 114.3),  # posting, not the wire, is what takes time
        (8, 400, 0, 0, 1367.7),
    ],
)
def test_the_stream_is_first_above_the_prompt_that_pays_for_its_steps(
    groups: int, sync_us: int, read_us: int, message_us: int, tokens: float
) -> None:
    per_token = max(WIRE_PS, POST_PS * message_us)
    cost_ps = groups * sync_us * US - read_us * US
    assert cost_ps / (per_token * (1 - 1 / groups)) == pytest.approx(tokens, abs=0.1)
    posting = {"message_cost": f"{message_us}us"}

    def ahead(prompt: int) -> int:
        pull = first("pull", prompt, read_delay=f"{read_us}us", **posting)
        stream = first("stream", prompt, stream_groups=groups, sync_cost=f"{sync_us}us", **posting)
        # Both take the path once; times are rounded up to a picosecond.
        expected = prompt * per_token * (1 - 1 / groups) - cost_ps
        assert pull - stream == pytest.approx(expected, abs=100)
        return pull - stream

    block = int(tokens) // 16 * 16
    assert ahead(block) < 0 < ahead(block + 16)


def test_push_is_pull_in_one_step_and_ahead_of_it_by_the_chunks_before() -> None:
    assert first("push", 512) == first("pull", 512)
    assert first("pull", 512, read_delay="3us") - first("push", 512) == 3 * US
    behind = first("pull", 2048, budget=512) - first("push", 2048, budget=512)
    assert behind == pytest.approx(1536 * WIRE_PS, abs=100)


def test_push_is_first_again_where_steps_are_many() -> None:
    """512 tokens a step: 7/8 of their 1.37 ms against 0.35 ms for each step: 3.4 steps."""
    assert pytest.approx(3.40, abs=0.01) == 512 * WIRE_PS * 7 / 8 / (8 * 44 * US)

    def ahead(steps: int) -> int:
        prompt = {"prompt": 512 * steps, "budget": 512}
        push = first("push", **prompt)
        stream = first("stream", **prompt, sync_cost="44us")
        expected = 512 * WIRE_PS * 7 / 8 - steps * 8 * 44 * US
        assert push - stream == pytest.approx(expected, abs=100)
        return push - stream

    assert ahead(3) > 0 > ahead(4)


def test_the_break_even_rate_of_a_run_is_that_of_its_arithmetic() -> None:
    """Bytes of the cache over the time of the prefill: on one GPU, the closed form of `size`.

    Equation 2 of Qin et al., "Mooncake", FAST 2025, with the arithmetic of the 8B model (26 d^2 and
    2 p d of causal attention in each of 32 layers) at the rate that the GPU reaches.
    """
    keys = {"kind": "serving", "model": "llama-3.1-8b", "requests": [{"prompt": 8192, "output": 1}]}
    result = run_scenario({"schema": 1, "topology": "h100-rail-8", "workload": keys})
    rate = result.serving["break_even_Bps"]
    (row,) = result.requests
    assert rate == row["kv_bytes"] * 10**12 // (row["prefill_end_ps"] - row["prefill_start_ps"])
    gpu = gpu_model("H100")
    times = ReplicaTimes(load_shape("llama-3.1-8b"), ParallelismPlan(), gpu)
    assert rate == pytest.approx(times.break_even_Bps(8192), rel=1e-6)
    reached, d, p = gpu.flops["bf16"] * gpu.efficiency.compute, 4096, 8192
    equation = reached * 2 * d * 2 / (4 * (2 * p * d + 26 * d * d))
    assert rate == pytest.approx(equation, rel=0.02)


def test_on_a_slow_network_the_stream_hides_what_it_computes() -> None:
    """The groups leave more slowly than they are computed: all but the first waits for bytes."""
    slow = {"nic": "affine", "message_cost": "50us"}  # 3.2 ms for each block of 16 tokens
    (row,) = serve([{"prompt": 2048, "output": 1}], kv_transfer={"mode": "pull", **slow})
    prefill = row["prefill_end_ps"] - row["prefill_start_ps"]
    hidden = first("pull", 2048, **slow) - first("stream", 2048, **slow)
    assert prefill < 2048 * POST_PS * 50
    assert hidden == pytest.approx(prefill * 7 / 8, rel=1e-3)


@pytest.mark.parametrize(("mode", "poster"), [("pull", 4), ("push", 1), ("stream", 1)])
def test_a_rank_posts_one_message_after_another(mode: str, poster: int) -> None:
    """Two prefill ranks to one decode rank: a read is posted by one rank, a write by two.

    And two transfers at once share their ranks: nobody posts faster than one message at a time.
    """
    shape = {"prefill": {"tp": 2, "replicas": 2}, "decode": {"tp": 1}}
    cost = {"mode": mode, "message_cost": "100us", "stream_groups": 4}
    rows = serve([{"prompt": 320, "output": 1}] * 2, **shape, kv_transfer=cost)
    messages = 320 // 16 * 32 * 2  # of each pair of ranks
    last = max(row["kv_end_ps"] for row in rows) - min(row["kv_start_ps"] for row in rows)
    assert last == pytest.approx(poster * messages * 100 * US, rel=1e-3)


def test_pull_is_first_where_decode_seats_are_short() -> None:
    """Who sends while it computes has a seat of the decode side set aside for all that time.

    Two prompts at once, one seat. P to prefill, K to move, D to decode the first: pull answers the
    second after max(2P, P + K + D) + K, the stream after 2P + 2K/G + D. With D < P - K it is ahead
    as long as D is less than K (1 - 2/G).
    """

    def second(mode: str, output: int) -> dict[str, Any]:
        rows = serve(
            [{"prompt": 8192, "output": output}] * 2,
            decode={"max_num_seqs": 1},
            kv_transfer=mode,
        )
        return max(rows, key=lambda row: row["first_token_ps"])

    (alone,) = serve([{"prompt": 8192, "output": 8}], kv_transfer="pull")
    moved = alone["kv_ps"]
    token = alone["ttft_ps"] - alone["kv_end_ps"]
    last = int(moved * 6 / 8 // token)  # most output tokens with which the stream is ahead
    assert last >= 1
    for output, stream_ahead in ((last, True), (last + 1, False)):
        stream, pull = second("stream", output)["ttft_ps"], second("pull", output)["ttft_ps"]
        assert (stream < pull) == stream_ahead
        assert pull - stream == pytest.approx(moved * 6 / 8 - output * token, rel=0.02)
