# SPDX-License-Identifier: Apache-2.0
"""The network between clients and servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from railweave.fabric.errors import InputError
from railweave.fabric.failover import on_nics_left
from railweave.fabric.faults import Fault, plan_faults
from railweave.run_folder import RunFolder, Stopwatch
from railweave.runner import run_scenario
from railweave.tools.columns import columns_of
from railweave.tools.drawn_run import as_run, overlay_of
from railweave.tools.render import draw
from railweave.topologies.load import build_topology, load_topology
from railweave.workloads.serving.keys import FrontendModel

if TYPE_CHECKING:
    from pathlib import Path

    from railweave.result import Result

SLOW = {"rate": "1Mbps", "core_rate": "1Mbps", "delay": "3ms"}
FRAME = 98  # bytes around a frame of RoCE over IPv4
POOLS = {"prefill": {"replicas": 1, "tp": 8}, "decode": {"replicas": 1, "tp": 8}}


def serve(
    requests: list[dict[str, Any]], *, faults: list[dict[str, Any]] | None = None, **workload: Any
) -> Result:
    keys = {"kind": "serving", "model": "llama-3.1-8b", "requests": requests, **workload}
    scenario = {"schema": 1, "topology": "h100-rail-8", "workload": keys, "faults": faults or []}
    return run_scenario(scenario).raise_for_status()


def carried(result: Result, tag: str) -> dict[str, int]:
    fabric, bytes_of = result.fabric, result.classes[tag].wire_bytes
    return {
        f"{fabric.device_names[fabric.link_src[link]]}>{fabric.device_names[fabric.link_dst[link]]}":
        int(bytes_of[link])
        for link in bytes_of.nonzero()[0]
    }  # fmt: skip


def test_prompts_and_tokens_are_flows_on_named_links_of_a_class() -> None:
    result = serve([{"prompt": 1000, "output": 5}], frontend={}, **POOLS)
    into = 4000 + FRAME
    # The first, the last, and those between as one.
    out = 2 * (256 + FRAME) + 3 * 256 + FRAME
    assert carried(result, "prompt") == {
        "clients/nic0>fe-leaf0": into, "fe-leaf0>gateway/nic0": into,
        "gateway/nic0>fe-leaf0": into, "fe-leaf0>h0/fe0": into,
    }  # fmt: skip
    assert carried(result, "token") == {
        "h1/fe0>fe-leaf0": out, "fe-leaf0>gateway/nic0": out,
        "gateway/nic0>fe-leaf0": out, "fe-leaf0>clients/nic0": out,
    }  # fmt: skip


def test_it_leaves_the_fabric_of_the_gpus_as_it_was() -> None:
    requests = [{"prompt": 3000, "output": 7}, {"prompt": 500, "output": 3, "at": "1ms"}]
    plain = serve(requests, **POOLS)
    fast = {"rate": "800Gbps", "core_rate": "800Gbps", "delay": "0s"}
    beside = serve(requests, frontend=fast, **POOLS)
    assert beside.fabric.device_names[: plain.fabric.n_devices] == plain.fabric.device_names
    assert beside.fabric.link_name(0) == plain.fabric.link_name(0)
    own = [record for record in beside.records if record.flow.tag == "kv"]
    assert [(r.flow, r.path, r.fct_ps) for r in own] == [
        (r.flow, r.path, r.fct_ps) for r in plain.records
    ]


def test_times_are_those_at_the_client() -> None:
    (inside,) = serve([{"prompt": 1000, "output": 3}], **POOLS).requests
    result = serve([{"prompt": 1000, "output": 3}], frontend=SLOW, **POOLS)
    (row,) = result.requests
    ends = {record.flow.id: record for record in result.records}
    assert row["prefill_start_ps"] == ends["r0.to-prefill0"].end_ps
    # Each leg: half of the delay at both ends, a frame at 1 Mbit/s over two links, and a switch.
    leg_ps = 2 * (4000 + FRAME) * 8 * 10**6 + 3 * 10**9
    assert ends["r0.in"].fct_ps == pytest.approx(leg_ps, rel=1e-4)
    assert ends["r0.to-prefill0"].start_ps == ends["r0.in"].end_ps  # stored and forwarded
    back = ends["r0.back.first"].end_ps - ends["r0.out.first"].start_ps
    assert row["ttft_ps"] == inside["ttft_ps"] + row["prefill_start_ps"] + back
    assert row["answered_ps"] == ends["r0.back.last"].end_ps
    assert row["answered_ps"] > row["end_ps"]


def test_prompts_share_a_link_and_slow_each_other() -> None:
    three = serve([{"prompt": 1000, "output": 1}] * 3, frontend=SLOW, colocated={}).requests
    leg_ps = (3 + 1) * (4000 + FRAME) * 8 * 10**6 + 3 * 10**9  # three share the first link
    assert three[0]["prefill_start_ps"] == pytest.approx(2 * leg_ps, rel=1e-4)


def test_a_link_too_slow_for_its_streams_makes_answers_late() -> None:
    fast = serve([{"prompt": 100, "output": 200}], frontend={}, colocated={}).requests[0]
    thin = {"rate": "100kbps", "core_rate": "1Gbps", "delay": "0s", "bytes_per_token": "1B"}
    slow = serve([{"prompt": 100, "output": 200}], frontend=thin, colocated={}).requests[0]
    least_ps = 198 * 256 * 8 * 10**12 // 100_000
    assert slow["answered_ps"] - slow["first_token_ps"] >= least_ps
    assert fast["answered_ps"] - fast["end_ps"] < 10**9


def test_what_the_fabric_of_the_gpus_means_by_a_host_is_not_changed() -> None:
    nodes = {"a": "host", "b": "host", "s": {"type": "switch", "tier": "leaf"}}
    cables = [
        {"ends": [host, "s"], "rate": "400Gbps", "delay": "500ns"} for host in ("a", "b", "a")
    ]
    lab = build_topology(load_topology({"kind": "custom", "nodes": nodes, "links": cables[:2]}))
    both = FrontendModel().network.join(lab)
    assert both.device_names[both.endpoint("a")] == "a/nic0"  # a bare host's only NIC
    dual = build_topology(load_topology({"kind": "custom", "nodes": nodes, "links": cables}))
    lost = Fault(link="b/nic0:0-s:1")
    moved = on_nics_left(plan_faults(FrontendModel().network.join(dual), [lost]).fabric)
    assert moved.device_names[moved.gpu_nic[moved.device("b/gpu0")]] == "b/nic0"  # not b/fe0
    with pytest.raises(InputError, match="has a 'clients' of its own"):
        FrontendModel().network.join(both)


def test_the_stack_is_one_drawing(tmp_path: Path) -> None:
    result = serve([{"prompt": 100, "output": 5}], frontend={}, **POOLS)
    folder = RunFolder(tmp_path / "run", name="s").write(result, Stopwatch())
    bare = build_topology(load_topology("h100-rail-8"))
    fabric = as_run(bare, folder)
    assert fabric.device_names == result.fabric.device_names
    for overlay in ("utilisation", "ranks"):
        shown = overlay_of(fabric, run=folder, overlay=overlay, flow=None)
        picture = draw(shown.fabric, loads=shown.loads, ranks=shown.ranks).decode()
        for name in ("gateway", "clients", "storage", "fe-leaf0", "spine0", "h7"):
            assert f">{name}<" in picture
    with pytest.raises(InputError, match="is not a link of this topology"):
        overlay_of(bare, run=folder, overlay="utilisation", flow=None)


def test_groups_can_still_be_told_apart_in_a_drawing() -> None:
    fabric = build_topology(load_topology("h100-rail-512"))
    plain = columns_of(fabric, ("0",))
    beside = columns_of(FrontendModel().network.join(fabric), ("0",))
    assert beside[:-1] == plain
    assert beside[-1].title == "front end"
    assert len(beside[-1].hosts) == 3


def test_many_servers_get_leaves_under_a_spine() -> None:
    few = {"servers_per_leaf": 3}
    fabric = serve([{"prompt": 10, "output": 1}], frontend=few, colocated={}).fabric
    switches = [fabric.device_names[i] for i in fabric.switches if fabric.front_end[i]]
    assert switches == ["fe-leaf0", "fe-leaf1", "fe-leaf2", "fe-spine0"]


def test_a_server_that_the_gateway_has_lost_is_not_used_and_nothing_is_lost() -> None:
    requests = [{"prompt": 2000, "output": 400, "at": f"{10 * i}ms"} for i in range(6)]
    cut = {"at": "200ms", "link": "h0/fe0:0-fe-leaf0:0", "do": "down", "for": "20s"}
    two = {"replicas": 2, "tp": 8}
    result = serve(requests, faults=[cut], frontend={}, colocated=two, router="round-robin")
    assert [row["status"] for row in result.requests] == ["completed"] * 6
    (outage,) = result.serving["outages"]
    assert outage["replica"] == "colocated0"
    assert outage["requests"] == 3
    assert {row["decode"] for row in result.requests} == {1}


def test_a_gateway_that_is_cut_off_makes_everybody_wait() -> None:
    cut = {"at": "1ms", "link": "gateway/nic0:0-fe-leaf0:8", "do": "down", "for": "2s"}
    requests = [{"prompt": 2000, "output": 50}]
    result = serve(requests, faults=[cut], frontend={}, colocated={"tp": 8})
    (row,) = result.requests
    assert row["attempts"] == 1
    assert row["end_ps"] < 2 * 10**12 < row["answered_ps"]
    assert "outages" not in result.serving


def test_two_services_share_one_front_end() -> None:
    def two(**other: Any) -> dict[str, Any]:
        part = {"kind": "serving", "model": "llama-3.1-8b", "colocated": {}, "frontend": {}}
        part["requests"] = [{"prompt": 10, "output": 1}]
        return {
            "schema": 1, "topology": "h100-rail-8",
            "workload": [part | {"name": "a"}, part | {"name": "b", "frontend": other}],
        }  # fmt: skip

    assert run_scenario(two(bytes_per_token="8B")).raise_for_status().status == "completed"
    with pytest.raises(InputError, match="not the front-end network of the workload before"):
        run_scenario(two(rate="10Gbps"))
