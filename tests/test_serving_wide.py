# SPDX-License-Identifier: Apache-2.0
"""Attention replicas that share experts: their traffic, their barrier, where caches go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from railweave.fabric.errors import InputError
from railweave.runner import run_scenario
from railweave.workloads.experts import ExpertStyle
from railweave.workloads.inference import StepStyle, step_ops
from railweave.workloads.memory import memory_fit
from railweave.workloads.ops import total_wire_bytes
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.shapes import load_shape

if TYPE_CHECKING:
    from railweave.result import Result

# Qwen3-30B-A3B: h 2048, 48 layers of 128 experts, top 8; four ranks on each of two hosts.
H, E, LAYERS, EP = 2048, 128, 48, 8
HERE = {"policy": "list", "gpus": [f"h{h}/gpu{g}" for h in (2, 3) for g in range(4)]}
DECODE = {"dp": EP, "ep": EP, "placement": HERE}


def serve(
    requests: list[dict[str, Any]],
    *,
    faults: list[dict[str, Any]] | None = None,
    model: str = "qwen3-30b-a3b",
    **keys: Any,
) -> Result:
    workload = {"kind": "serving", "model": model, "requests": requests, **keys}
    scenario = {
        "schema": 1, "topology": "h100-rail-8", "workload": workload, "faults": faults or [],
    }  # fmt: skip
    return run_scenario(scenario).raise_for_status()


def layer_bytes(result: Result, repeat: int = LAYERS) -> list[int]:
    """Payload of a layer of each step of the decode pool, in order."""
    steps = [one for one in result.executed if one.tag == "decode0" and one.repeat == repeat]
    return [step.size_bytes for step in steps]


def test_vllms_default_gathers_hidden_states_and_router_logits() -> None:
    """AG of T (h + E) b and RS of T h b over e ranks, T padded to that of the fullest."""
    alike = [{"prompt": 64, "output": 3}] * EP
    result = serve(alike, prefill={"tp": 4}, decode=DECODE)
    expected = (EP - 1) * EP * 2 * ((H + E) + H)
    assert set(layer_bytes(result)) == {expected}
    one = [{"prompt": 64, "output": 3}]  # seven others compute a token for nobody
    assert set(layer_bytes(serve(one, prefill={"tp": 4}, decode=DECODE))) == {expected}
    busy = [{"prompt": 64, "output": 9}] * 3
    result = serve(busy, prefill={"tp": 4}, decode=DECODE | {"pad_to": 4})
    assert set(layer_bytes(result)) == {4 * expected}


@pytest.mark.parametrize("mode", ["low_latency", "normal"])
def test_an_all_to_all_is_that_of_a_step_of_the_same_tokens(mode: str) -> None:
    own = {"ep_backend": "all_to_all", "ep_mode": mode}
    result = serve([{"prompt": 64, "output": 3}] * EP, prefill={"tp": 4}, decode=DECODE | own)
    plan = ParallelismPlan(dp=EP, ep=EP)
    style = StepStyle(experts=ExpertStyle(backend="all_to_all", mode=mode, gpus_per_host=4))  # type: ignore[arg-type]
    ops = step_ops(load_shape("qwen3-30b-a3b"), plan, phase="decode", tokens=1, style=style)
    expected = sum(total_wire_bytes(op, plan) for op in ops if op.axis == "ep") // LAYERS
    assert expected in layer_bytes(result)
    if mode == "low_latency":  # h + 4 h/128 + 16 out and 2 h back for each token and expert
        assert expected % (H + 4 * H // 128 + 16 + 2 * H) == 0
        assert expected // (H + 4 * H // 128 + 16 + 2 * H) <= EP * 8


@pytest.mark.parametrize(
    ("tp", "backend"), [(1, "allgather_reducescatter"), (1, "all_to_all"), (2, "mixed")]
)
def test_a_step_is_that_of_the_workload_inference_to_the_picosecond(tp: int, backend: str) -> None:
    divided = {"tp": tp, "dp": EP // tp, "ep": EP, "ep_backend": backend, "placement": HERE}
    step = {"kind": "inference", "model": "qwen3-30b-a3b", "batch": 8, "tokens": 63, **divided}
    alone = run_scenario({"schema": 1, "topology": "h100-rail-8", "workload": step})
    served = serve([{"prompt": 64, "output": 2}] * 8, prefill={"tp": 4}, decode=divided)
    first = next(span for span in served.tracks if span.track == "decode0.dp0")
    assert first.end_ps - first.start_ps == alone.raise_for_status().steps[0]["step_ps"]


def test_a_cache_goes_to_the_one_attention_replica_that_decodes_it() -> None:
    """A latent cache is whole on each rank: a replica of eight pulls it eight times."""
    one = [{"prompt": 160, "output": 2}]
    keys = {"model": "deepseek-v2-lite", "prefill": {"tp": 4}}
    wide = serve(one, decode=DECODE, **keys)
    (flow,) = [record.flow for record in wide.records if record.flow.tag == "kv"]
    assert wide.fabric.device_names[flow.dst] == "h2/gpu0"
    narrow = serve(one, decode={"tp": 8, "placement": HERE}, **keys)
    assert narrow.serving["kv_bytes"] == 8 * wide.serving["kv_bytes"] == 8 * flow.size_bytes


def test_they_step_together_and_each_has_its_own_queue() -> None:
    requests = [{"prompt": 100, "output": 40}] + [{"prompt": 4000, "output": 40}] * 3
    result = serve(requests, prefill={"tp": 4}, decode=DECODE)
    assert [row["decode"] for row in result.requests] == [0, 1, 2, 3]
    ends = [
        {span.end_ps for span in result.tracks if span.track == f"decode0.dp{i}"} for i in range(4)
    ]
    assert [len(own) for own in ends] == [40] * 4
    assert len(ends[1] & ends[2]) > 20  # of their 40 tokens, those while both are there
    pool = result.serving["decode"]
    assert (pool["replicas"], pool["gpus"]) == (1, EP)


def test_experts_that_are_divided_leave_more_room_for_caches() -> None:
    result = serve([{"prompt": 64, "output": 2}], prefill={"tp": 4}, decode=DECODE)
    fit = memory_fit(
        load_shape("qwen3-30b-a3b"), ParallelismPlan(dp=EP, ep=EP), memory_bytes=80 * 10**9
    )
    assert result.serving["decode"]["kv_capacity_tokens"] == fit.kv_capacity_tokens // 16 * 16


def test_one_lost_gpu_takes_all_of_them_and_all_load_their_weights() -> None:
    requests = [{"prompt": 200, "output": 60, "at": f"{i}ms"} for i in range(12)]
    fault = {"node": "h3/gpu2", "do": "down", "at": "60ms", "for": "20ms"}
    result = serve(requests, faults=[fault], prefill={"tp": 4}, decode=DECODE)
    assert result.serving["requests"]["completed"] == 12
    (outage,) = result.serving["outages"]
    assert outage["replica"] == "decode0"
    assert outage["requests"] > 3
    loads = [record for record in result.records if record.flow.tag == "weights"]
    assert len(loads) == EP
    assert outage["up_ps"] == max(record.end_ps for record in loads)


def test_a_pool_of_them_grows_group_by_group() -> None:
    requests = [{"prompt": 200, "output": 60, "at": f"{20 * i}ms"} for i in range(30)]
    rule = {"pool": "decode", "above": 0.01, "below": 0, "every": "20ms", "most": 2}
    wide = {"dp": 8, "ep": 8, "max_num_seqs": 1}
    result = serve(requests, prefill={"tp": 4}, decode=wide, autoscale=rule | {"metric": "queue"})
    assert [event["did"] for event in result.serving["autoscale"]][:2] == ["start", "serve"]
    assert len([r for r in result.records if r.flow.tag == "weights"]) == 8
    assert max(row["decode"] for row in result.requests) > 7


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        ({"dp": 4}, "4 attention replicas without experts in common are replicas"),
        ({"dp": 4, "ep": 2}, "experts over 2 ranks are not within a replica of 4"),
        ({"dp": 4, "ep": 4, "pp": 2}, "stages of attention replicas do not step together"),
        ({"skew": 1.0}, "no experts are reached that way"),
        ({"ep_backend": "all_to_all"}, "experts are not divided"),
        ({"dp": 4, "ep": 4, "ep_backend": "all-to-all"}, "is no way to reach experts"),
        ({"dp": 3, "ep": 3}, "3 does not divide the 128 experts"),
    ],
)
def test_what_cannot_be_is_said(pool: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        serve([{"prompt": 64, "output": 2}], prefill={"tp": 4}, decode=pool)
