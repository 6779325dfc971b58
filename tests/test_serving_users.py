# SPDX-License-Identifier: Apache-2.0
"""Users served at once on one GPU: reservations in one piece against pages."""

from __future__ import annotations

import random
from typing import Any

import pytest

from railweave.runner import run_scenario
from railweave.workloads.sizing.room import users_at_once

ROOM = 15_700  # slots of a 13 B model on an A100 40 GB (Kwon et al., SOSP 2023, table 1)


def lengths(count: int) -> list[tuple[int, int]]:
    """Draw exponential lengths with ShareGPT's means (figure 11 there), 2,048 at most."""
    rng = random.Random(7)
    found: list[tuple[int, int]] = []
    while len(found) < count:
        prompt, output = (max(1, round(rng.expovariate(1 / mean))) for mean in (161.31, 337.99))
        if prompt + output <= 2048:
            found.append((prompt, output))
    return found


def served(memory: str) -> dict[str, Any]:
    workload = {
        "kind": "serving",
        "model": "llama-2-13b",
        "colocated": {},
        "kv_blocks": ROOM // 16,
        "max_model_len": 2048,
        "kv_memory": memory,
        "requests": [{"prompt": prompt, "output": output} for prompt, output in lengths(1500)],
        "arrivals": {"kind": "closed-loop", "users": 64},
    }
    scenario = {
        "schema": 1, "engine": "analytic", "topology": "h100-rail-8", "workload": workload,
    }  # fmt: skip
    return run_scenario(scenario).raise_for_status().serving


def test_pages_serve_four_to_five_times_the_users_as_published() -> None:
    whole, paged = served("contiguous"), served("paged")
    users = [found["colocated"]["mean_batch"] for found in (whole, paged)]
    # published: 7.00 and 30.42 (figure 13a); the last requests, when nobody waits, count here
    assert users[0] == pytest.approx(7.0, rel=0.03)
    assert users[1] == pytest.approx(30.42, rel=0.05)
    assert 4 < users[1] / users[0] < 5
    # what a full server reaches, less its last steps, is what the closed form says
    closed = users_at_once(lengths(1500), "pages", room_tokens=ROOM)
    assert users[1] == pytest.approx(float(closed.users), rel=0.1)
    # memory is full while arithmetic idles, and the run says so
    for found in (whole, paged):
        (bound,) = found["memory_bound"]
        assert bound["memory-bound"]
        assert bound["arithmetic_used"] < 0.2
    assert paged["requests"]["completed"] == 1500


def test_a_replica_with_room_is_not_memory_bound() -> None:
    workload = {
        "kind": "serving", "model": "llama-3.1-8b", "colocated": {},
        "requests": [{"prompt": 2000, "output": 4}] * 8,
    }  # fmt: skip
    scenario = {
        "schema": 1, "engine": "analytic", "topology": "h100-rail-8", "workload": workload,
    }  # fmt: skip
    assert not run_scenario(scenario).raise_for_status().serving.get("memory_bound")
