# SPDX-License-Identifier: Apache-2.0
"""Steps over the engine: bytes on links, exposed communication, bubbles, replicas together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.fabric.errors import InputError
from railweave.fabric.graph import DeviceKind
from railweave.runner import run_scenario

if TYPE_CHECKING:
    from railweave.result import Result

LAB = "h100-rail-8"
TRAIN = {"kind": "training", "model": "llama-3.1-8b", "sequence": 1024, "check_memory": False}
MIXTRAL = {**TRAIN, "model": "mixtral-8x7b"}
SERVE = {"kind": "inference", "model": "mixtral-8x7b", "tokens": 128, "check_memory": False}


def run(workload: dict[str, Any], **scenario: Any) -> Result:
    whole = {"schema": 1, "topology": LAB, "workload": workload, **scenario}
    return run_scenario(whole).raise_for_status()


def step(workload: dict[str, Any], **scenario: Any) -> dict[str, Any]:
    (row,) = run(workload, **scenario).steps
    return dict(row)


def sent(result: Result) -> int:
    """Payload that left GPUs: NVLink and PCIe carry no headers."""
    fabric = result.fabric
    from_gpu = np.array(fabric.kind)[fabric.link_src] == DeviceKind.GPU
    return int(result.links.wire_bytes[from_gpu].sum())


@st.composite
def training(draw: st.DrawFn) -> dict[str, Any]:
    tp, cp, dp = (draw(st.sampled_from([1, 2])) for _ in range(3))
    pp = draw(st.sampled_from([1, 2, 3]))
    ep = draw(st.sampled_from([e for e in (1, 2, 4) if dp * cp % e == 0]))
    schedule = draw(st.sampled_from(["1f1b", "gpipe", "zero-bubble", "interleaved"]))
    whole = pp == 1 and schedule != "interleaved"
    return {
        **MIXTRAL, "tp": tp, "pp": pp, "cp": cp, "dp": dp, "ep": ep, "schedule": schedule,
        "micro_batches": 3 * pp, "chunks": 2 if schedule == "interleaved" else 1,
        "zero": draw(st.sampled_from([0, 1, *([3] if whole else [])])),
        "context": draw(st.sampled_from(["ring", "all_gather", "ulysses"])),
        "recompute": draw(st.sampled_from(["none", "full"])),
        "replicas": draw(st.sampled_from(["auto", "each"])),
        "bucket": draw(st.sampled_from([None, 10**9])),
    }  # fmt: skip


@settings(derandomize=True, deadline=None, max_examples=12)
@given(workload=training())
def test_links_carry_the_closed_forms_of_a_training_step(workload: dict[str, Any]) -> None:
    result = run(workload)
    (row,) = result.steps
    closed = row["wire_bytes"]
    assert sent(result) == sum(closed["by_axis"].values()) == closed["nvlink"] + closed["network"]
    assert row["bound_ps"] <= row["step_ps"] + 2
    assert row["compute_ps"] <= row["step_ps"]


@st.composite
def inference(draw: st.DrawFn) -> dict[str, Any]:
    tp, pp, dp = (draw(st.sampled_from([1, 2])) for _ in range(3))
    ep = draw(st.sampled_from([1, tp * dp]))
    backend = draw(st.sampled_from(["allgather_reducescatter", "mixed", "all_to_all"]))
    return {
        **SERVE, "phase": draw(st.sampled_from(["prefill", "decode"])), "tp": tp, "pp": pp,
        "dp": dp, "ep": ep, "batch": draw(st.integers(0, 9)),
        **({"ep_backend": backend, "skew": 1.2} if ep > tp else {}),
        "sequence_parallel": draw(st.booleans()),
    }  # fmt: skip


@settings(derandomize=True, deadline=None, max_examples=15)
@given(workload=inference())
def test_links_carry_the_closed_forms_of_an_inference_step(workload: dict[str, Any]) -> None:
    result = run(workload)
    (row,) = result.steps
    rounds = 3 if workload["phase"] == "decode" and workload["pp"] > 1 else 1
    assert sent(result) == rounds * sum(row["wire_bytes"]["by_axis"].values())
    assert row["compute_ps"] <= row["step_ps"]


@settings(derandomize=True, deadline=None, max_examples=16)
@given(workload=training() | inference())
def test_compute_off_changes_no_byte_on_any_link(workload: dict[str, Any]) -> None:
    busy, free = (run({**workload, "compute": on}) for on in (True, False))
    assert (busy.links.wire_bytes == free.links.wire_bytes).all()
    (with_it,), (without,) = busy.steps, free.steps
    assert with_it["wire_bytes"] == without["wire_bytes"]
    assert without["compute_ps"] == without["bubble_ps"] == 0
    assert without["exposed_ps"] == without["step_ps"]


def test_one_gpu_computes_and_sends_nothing() -> None:
    row = step({**TRAIN, "micro_batches": 2})
    assert row["step_ps"] == row["compute_ps"] == row["bound_ps"] > 0
    assert (row["exposed_ps"], row["bubble_ps"], row["communication_ps"]) == (0, 0, 0)
    empty = step({**SERVE, "batch": 0})
    assert (empty["step_ps"], empty["tokens"]) == (0, 0)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("degrees", [{"tp": 4, "pp": 3}, {"pp": 2, "dp": 3}, {"tp": 2, "ep": 4,
                                     "dp": 2, "pp": 2, "ep_backend": "all_to_all"}])  # fmt: skip
def test_an_empty_batch_takes_no_time_and_moves_nothing(
    phase: str, degrees: dict[str, Any]
) -> None:
    model = {} if "ep" in degrees else {"model": "llama-3.1-8b"}
    empty = step({**SERVE, **model, "phase": phase, "batch": 0, **degrees})
    assert (empty["step_ps"], empty["bound_ps"], empty["tokens"]) == (0, 0, 0)
    assert empty["wire_bytes"] == {"nvlink": 0, "network": 0, "by_axis": {}, "busiest_rank": 0}


def test_replicas_without_requests_wait_for_nobody() -> None:
    job = {**SERVE, "model": "llama-3.1-8b", "pp": 3}
    one, more = (step({**job, "batch": 1, "dp": dp}) for dp in (1, 4))
    assert one["step_ps"] == more["step_ps"] > 0
    assert one["wire_bytes"]["by_axis"] == more["wire_bytes"]["by_axis"]


def test_exposed_is_the_difference_to_free_communication() -> None:
    row = step({**TRAIN, "tp": 8, "pp": 2, "micro_batches": 4})
    assert row["step_ps"] == row["compute_ps"] + row["exposed_ps"]
    assert 0 < row["exposed_ps"] <= row["communication_ps"] * 2
    assert row["bubble_ps"] > 0


def test_gradients_hide_behind_the_last_backward_pass() -> None:
    # one bucket for each layer; without overlap all of them wait for the end
    job = {**TRAIN, "dp": 8, "sequence": 8192, "bucket": 1}
    hidden, late = (step({**job, "overlap_grad_reduce": on}) for on in (True, False))
    assert hidden["wire_bytes"] == late["wire_bytes"]
    assert hidden["compute_ps"] == late["compute_ps"]
    assert hidden["exposed_ps"] < late["exposed_ps"]
    assert hidden["overlapped_ps"] > 0


def test_replicas_in_lockstep_take_what_each_takes() -> None:
    job = {**TRAIN, "tp": 8, "pp": 2, "dp": 4, "micro_batches": 3}
    together, each = (step({**job, "replicas": how}) for how in ("auto", "each"))
    assert (together["replicas"], each["replicas"]) == ("lockstep, alike", "each")
    for key in ("step_ps", "compute_ps", "exposed_ps", "bubble_ps", "communication_ps"):
        assert together[key] == each[key]


def test_replicas_that_are_not_alike_say_so_in_lockstep() -> None:
    one = {**TRAIN, "tp": 4, "pp": 2, "dp": 2, "replicas": "lockstep"}
    other = {"kind": "flows", "flows": [{"src": "h0/gpu0", "dst": "h1/gpu0", "size": "1MiB"}]}
    result = run([one, other])  # type: ignore[arg-type]
    assert any("run in lockstep, though" in line for line in result.warnings)
    assert result.steps[0]["replicas"] == "lockstep"


def test_two_jobs_share_a_fabric_and_slow_each_other_down() -> None:
    job = {**TRAIN, "tp": 4, "dp": 2, "bucket": 10**9}
    alone = step({**job, "placement": {"policy": "list", "gpus": [
        *(f"h0/gpu{i}" for i in range(4)), *(f"h1/gpu{i}" for i in range(4))]}})  # fmt: skip
    rows = run(
        [
            {**job, "name": name, "placement": {"policy": "list", "gpus": [
                *(f"{a}/gpu{i}" for i in range(4)), *(f"{b}/gpu{i}" for i in range(4))]}}
            for name, a, b in (("a", "h0", "h1"), ("b", "h2", "h1"))
        ]  # type: ignore[arg-type]
    ).steps  # fmt: skip
    assert {row["workload"] for row in rows} == {"a", "b"}
    assert all(row["step_ps"] > alone["step_ps"] for row in rows)


def test_stages_that_do_not_divide_the_layers_finish() -> None:
    row = step({**TRAIN, "tp": 2, "pp": 5, "micro_batches": 5})
    assert row["plan"]["pp"] == 5
    decode = step({**SERVE, "model": "llama-3.1-8b", "pp": 5, "batch": 7})
    assert decode["step_ps"] >= decode["compute_ps"] > 0


def test_steps_repeat_alike() -> None:
    rows = run({**TRAIN, "tp": 2, "dp": 2, "steps": 3}).steps
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert len({row["step_ps"] for row in rows}) == 1


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ({**TRAIN, "dp": 65}, "workload.dp: 65 ranks, but there are 64 GPUs"),
        ({**TRAIN, "model": "llama-3.1-80b"}, "workload.model: no model 'llama-3.1-80b'"),
        ({**SERVE, "model": "llama-3.1-80b"}, "workload.model: no model 'llama-3.1-80b'"),
        (
            {**SERVE, "batch": 10**20},
            "workload.batch: this is 100000000000000000000; expected at most 26",
        ),
        ({**TRAIN, "tp": 10**20}, "workload.tp: 100,000,000,000,000,000,000 ranks are more than"),
        ({**TRAIN, "sequence": 10**20}, "workload.sequence: 100,000,000,000,000,000,000 is out"),
        ({**TRAIN, "model": "llama-3.1-80b"}, "did you mean 'llama-3.1-8b'"),
        ({**TRAIN, "tp": 3}, "workload.tp: 3 does not divide the 32 attention heads"),
        ({**TRAIN, "check_memory": True}, "llama-3.1-8b does not fit: a rank of stage 0 needs"),
        ({**SERVE, "check_memory": True}, "mixtral-8x7b does not fit: a rank holds"),
        ({**SERVE, "ep": 2}, "workload.ep: 2 ranks are no whole replicas"),
    ],
)
def test_what_cannot_be(workload: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as found:
        run(workload)
    assert message in str(found.value)
