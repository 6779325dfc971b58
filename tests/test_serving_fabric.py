# SPDX-License-Identifier: Apache-2.0
"""The same caches over different fabrics: rails, taper, traffic beside them, and packets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from railweave.runner import run_scenario

if TYPE_CHECKING:
    from railweave.result import Result

MODEL = {"kind": "serving", "model": "llama-3.1-70b", "prefill": {"tp": 8}}
REQUESTS = [{"prompt": 2160, "output": 2}]
ROTATED = {"policy": "list", "gpus": [f"h1/gpu{(i + 4) % 8}" for i in range(8)]}


def rails(oversubscription: str = "1:1") -> dict[str, Any]:
    return {
        "kind": "rail-optimized",
        "hosts": {"count": 8, "model": "dgx-h100"},
        "group": 8,
        "leaf": {"switch": "spectrum-4"},
        "spine": {"switch": "spectrum-4", "oversubscription": oversubscription},
        "links": {
            "host-leaf": {"model": "roce-lossless", "rate": "400Gbps", "length": "10m"},
            "leaf-spine": {"model": "roce-lossless", "rate": "400Gbps", "length": "30m"},
        },
    }


def serve(topology: Any, *beside: dict[str, Any], routing: str = "rail", **workload: Any) -> Result:
    keys = {**MODEL, "name": "serving", "requests": REQUESTS, "decode": {"tp": 8}, **workload}
    return run_scenario(
        {
            "schema": 1,
            "topology": topology,
            "routing": {"policy": routing},
            "workload": [keys, *beside],
        }
    ).raise_for_status()


def row(result: Result) -> dict[str, Any]:
    return dict(next(row for row in result.requests if row["workload"] == "serving"))


def test_a_cache_that_changes_rails_crosses_the_spine_and_pays_its_taper() -> None:
    decode = {"tp": 8, "placement": ROTATED}
    matched = row(serve(rails()))
    crossed = row(serve(rails(), decode=decode))
    tapered = row(serve(rails("4:1"), decode=decode))
    still = row(serve(rails("4:1")))
    assert still["kv_ps"] == matched["kv_ps"]  # its own leaf is all that it needs
    # Two more switches on the way, and uplinks that carry the ACKs of what comes the other way.
    assert 0 < crossed["kv_ps"] - matched["kv_ps"] < 0.01 * matched["kv_ps"]
    # Eight leaves of eight 400G ports with two uplinks each: eight flows of which each leaf sends
    # one, so that an uplink has a flow for itself and the taper is not yet felt.
    assert tapered["kv_ps"] == pytest.approx(crossed["kv_ps"], rel=1e-3)
    for one in (matched, crossed, tapered):
        assert one["kv_ps"] >= one["kv_bound_ps"]
        assert one["ttft_ps"] - matched["ttft_ps"] == one["kv_ps"] - matched["kv_ps"]


def test_taper_is_felt_when_many_caches_change_rails_at_once() -> None:
    """Three prefill replicas send over other rails: from each leaf three flows over two uplinks.

    Sprayed they take half as long again, and the ACKs of the three that come the other way: 86 B
    for four packets of 4,178 B.
    """

    def kv_ps(oversubscription: str) -> list[int]:
        gpus = [f"h{4 + i // 8}/gpu{(i + 4) % 8}" for i in range(24)]
        result = serve(
            rails(oversubscription),
            prefill={"tp": 8, "replicas": 3},
            decode={"tp": 8, "replicas": 3, "placement": {"policy": "list", "gpus": gpus}},
            requests=REQUESTS * 3,
            routing="spray",
        )
        return [one["kv_ps"] for one in result.requests]

    whole, tapered = kv_ps("1:1"), kv_ps("4:1")
    assert max(tapered) / max(whole) == pytest.approx(1.5 * (1 + 86 / (4 * 4178)), rel=1e-3)


def beside_experts(hosts: tuple[int, ...], **fabric: Any) -> tuple[Result, Result]:
    """Return a cache of 16,384 tokens from h0 to h1, alone and beside a step of experts.

    DeepSeek-V3 decodes 16 requests on each GPU of two hosts, its experts divided over all 16:
    dispatch and combine in each of 58 layers, without compute in between, all of it while the cache
    moves. In ``fabric``: the rail by which decode ranks are moved, and the taper.
    """
    shift, taper = fabric.get("shift", 0), fabric.get("oversubscription", "1:1")

    def gpus(*hosts: int, by: int = 0) -> dict[str, Any]:
        names = [f"h{host}/gpu{(i + by) % 8}" for host in hosts for i in range(8)]
        return {"policy": "list", "gpus": names}

    chat = {
        "requests": [{"prompt": 16_384, "output": 1}],
        "max_num_batched_tokens": 16_384,
        "prefill": {"tp": 8, "placement": gpus(0)},
        "decode": {"tp": 8, "placement": gpus(1, by=shift)},
    }

    def run(*beside: dict[str, Any]) -> Result:
        workload = [{**MODEL, "name": "serving", **chat}, *beside]
        scenario = {"schema": 1, "topology": rails(taper), "routing": {"policy": "spray"}}
        return run_scenario({**scenario, "workload": workload}).raise_for_status()

    alone = run()
    experts = {
        "kind": "inference", "name": "experts", "model": "deepseek-v3", "tokens": 1024,
        "batch": 16 * 16, "dp": 16, "ep": 16, "ep_backend": "all_to_all", "compute": False,
        "check_memory": False, "placement": gpus(*hosts),
        "start": f"{row(alone)['prefill_end_ps'] + 10**9}ps",
    }  # fmt: skip
    both = run(experts)
    (step,) = both.steps
    assert step["start_ps"] + step["step_ps"] < row(both)["kv_end_ps"]
    return alone, both


def busy_ps(result: Result, level: tuple[int, int]) -> float:
    """Return the longest that the experts' bytes keep a link that the cache uses too, in ps.

    ``level``: tiers of its ends; 0 is the NIC's, 1 the leaf's, 2 the spine's.
    """
    fabric, worst = result.fabric, 0.0
    theirs = [one for name, one in result.classes.items() if name.startswith("experts")]
    for link in range(fabric.n_links):
        ends = fabric.tier[fabric.link_src[link]], fabric.tier[fabric.link_dst[link]]
        if ends == level and result.classes["kv"].wire_bytes[link]:
            moved = sum(int(one.wire_bytes[link] + one.ack_bytes[link]) for one in theirs)
            worst = max(worst, moved * 8e12 / float(fabric.link_rate_bps[link]))
    return worst


@pytest.mark.parametrize("shift", [0, 4], ids=["rail-matched", "rail-mismatched"])
def test_experts_on_the_same_gpus_delay_a_cache_by_their_bytes(shift: int) -> None:
    """The NIC of a decode rank is full until both are there: the busiest of eight decides."""
    alone, both = beside_experts((1, 2), shift=shift)
    late = row(both)["kv_ps"] - row(alone)["kv_ps"]
    assert late > 0.1 * row(alone)["kv_ps"]
    assert late == pytest.approx(busy_ps(both, (1, 0)), rel=1e-3)
    assert row(both)["ttft_ps"] - row(alone)["ttft_ps"] == late
    assert row(both)["kv_bound_ps"] == row(alone)["kv_bound_ps"]


def test_experts_elsewhere_meet_only_what_climbs_to_the_spines() -> None:
    alone, both = beside_experts((3, 4))
    assert (row(both)["kv_ps"], row(both)["ttft_ps"]) == (
        row(alone)["kv_ps"],
        row(alone)["ttft_ps"],
    )
    assert busy_ps(both, (1, 2)) == busy_ps(both, (2, 1)) == busy_ps(both, (1, 0)) == 0
    # Two uplinks of each leaf for a cache at a NIC's rate and what two NICs of the experts send.
    alone, both = beside_experts((3, 4), shift=4, oversubscription="4:1")
    late = row(both)["kv_ps"] - row(alone)["kv_ps"]
    most = busy_ps(both, (1, 2)) + busy_ps(both, (2, 1))
    assert 0 < late <= most
    assert row(both)["ttft_ps"] - row(alone)["ttft_ps"] == late


LOSSY = {"pfc": {"enabled": False}}


@pytest.mark.parametrize(
    ("network", "share"),
    [
        ({}, 1.0),
        ({**LOSSY, "recovery": "go-back-n"}, 1.0),
        ({**LOSSY, "recovery": "selective-repeat"}, 1.0),
        ({**LOSSY, "recovery": "trim"}, 0.98),  # of its line a receiver grants
    ],
    ids=["lossless", "go-back-n", "selective-repeat", "trim"],
)
def test_packets_and_fluid_agree_on_a_small_fleet(network: dict[str, Any], share: float) -> None:
    """One cache at a time, nothing lost, 160 bandwidth-delay products and more: 0.1 %."""
    keys = {
        "kind": "serving",
        "model": "llama-3.1-8b",
        "prefill": {"replicas": 2},
        "decode": {"replicas": 2},
        "requests": [{"prompt": 200 + 50 * i, "output": 3, "at": f"{40 * i}ms"} for i in range(4)],
    }
    found = {}
    for engine in ("fluid", "packet"):
        scenario = {"schema": 1, "engine": engine, "topology": "h100-rail-8", "network": network}
        found[engine] = run_scenario({**scenario, "workload": keys}).raise_for_status().requests
    for fluid, packet in zip(found["fluid"], found["packet"], strict=True):
        assert packet["kv_bytes"] == fluid["kv_bytes"]
        assert packet["kv_ps"] * share == pytest.approx(fluid["kv_ps"], rel=1e-3)
        assert packet["kv_ps"] >= fluid["kv_ps"]
        apart = packet["ttft_ps"] - fluid["ttft_ps"]
        assert apart == pytest.approx(packet["kv_ps"] - fluid["kv_ps"], abs=5 * 10**6)
