# SPDX-License-Identifier: Apache-2.0
"""The workload kv-transfer: the caches of prompts and nothing else, from pool to pool."""

from __future__ import annotations

from typing import Any

import pytest

from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.errors import InputError, UnreachableError
from railweave.runner import run_scenario, set_stage, workload_context
from railweave.scenario import load_scenario
from railweave.tools.ranks import rank_map
from railweave.workloads.process_groups import process_groups
from railweave.workloads.workload import Findings

PER_RANK = 335_544_320  # 8,192 tokens of 70B, 327,680 B each, over 8 ranks


def keys(**more: Any) -> dict[str, Any]:
    workload = {
        "kind": "kv-transfer", "model": "llama-3.1-70b", "prompt": 8192,
        "prefill": {"replicas": 2, "tp": 8}, "decode": {"replicas": 2, "tp": 8}, **more,
    }  # fmt: skip
    return {"schema": 1, "topology": "h100-rail-8", "workload": workload}


def test_each_rank_sends_its_part_to_the_one_beside_it() -> None:
    result = run_scenario(load_scenario(keys())).raise_for_status()
    ids = [f"r{number}.kv{rank}-{rank}" for number in range(2) for rank in range(8)]
    assert [record.flow.id for record in result.records] == ids
    assert {record.flow.size_bytes for record in result.records} == {PER_RANK}
    wire = PER_RANK + PER_RANK // 4096 * 82 + 16  # 342,261,776 B at 400 Gb/s
    assert 0 <= result.sim_time_ps - wire * 20 < 10_000_000
    assert result.bound_ps == result.sim_time_ps
    assert result.flows.bytes == 16 * PER_RANK


def test_caches_go_round_the_replicas_of_both_pools() -> None:
    """Three caches from one replica to two: their NICs send three parts, one after the other."""
    more = {"prefill": {"tp": 8}, "requests": 3, "prompt": 100}
    result = run_scenario(load_scenario(keys(**more))).raise_for_status()
    ends = [record.flow.dst for record in result.records]
    assert ends[:8] == ends[16:] != ends[8:16]
    assert {record.flow.size_bytes for record in result.records} == {112 * 327_680 // 8}  # blocks
    assert result.sim_time_ps < 1.03 * result.bound_ps


def test_who_loses_whom_and_where_pools_are() -> None:
    scenario = load_scenario(keys(decode={"replicas": 2, "tp": 4}))
    found = rank_map(scenario, "run")
    assert list(found.labels) == ["kv-transfer prefill", "kv-transfer decode"]
    env = FabricEnvironment()
    stage = set_stage(env, scenario)
    (one,) = scenario.workloads
    groups = process_groups(one.model, workload_context(scenario, one, env, stage, Findings()))
    names = stage.fabric.device_names
    assert len(groups) == 16
    assert {group.name for group in groups} == {"KV cache"}
    assert [names[device] for device in groups[7].devices] == ["h0/gpu7", "h2/gpu3"]


def test_a_cache_without_a_way_is_a_finding_before_anything_runs() -> None:
    scenario = keys() | {"faults": [{"node": "h2/nic3", "do": "down", "at": "0s"}]}
    with pytest.raises(UnreachableError, match="no route from 'h0/gpu3' to 'h2/gpu3'"):
        run_scenario(load_scenario(scenario))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"prompt": 0}, "prompt"),
        ({"prompt": 10**9}, "prompt"),
        ({"prefill": {"replicas": 9, "tp": 8}}, "need 88 GPUs"),
        ({"decode": {"tp": 3}}, "tp"),
        ({"decode": {"tp": 8, "ep": 8}}, "ep"),
        ({"model": "llama-3.1-71b"}, "llama-3.1-70b"),
        ({"kv_dtype": "fp7"}, "fp7"),
        ({"requests": 2**18}, "262,144 caches go as 2,097,152 flows"),
    ],
)
def test_what_cannot_be_handed_over_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        run_scenario(load_scenario(keys(**more))).raise_for_status()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
