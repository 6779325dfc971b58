# SPDX-License-Identifier: Apache-2.0
"""Runs end to end: exact times, who waits for whom, and what a partial run keeps."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

import pytest

from railweave.fabric.errors import PhysicsError, RailweaveError, StalledError
from railweave.result import LinkTable, check_bounds
from railweave.runner import Progress, prepare, run_scenario
from railweave.scenario import load_scenario
from railweave.workloads import workload as workloads
from railweave.workloads.workload import WorkloadContext, WorkloadModel, workload_kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    import simpy

QUIET = {
    "mtu": "4000B",
    "frame_overhead": "0B",
    "switch_latency": "0s",
    "host_latency": "0s",
    "ack": {"every": 0},
}


def cable(a: str, b: str, rate: str, delay: str = "0s") -> dict[str, Any]:
    return {"ends": [a, b], "rate": rate, "delay": delay}


def pair(*flows: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a scenario of two hosts and a switch, 100G, without latencies or headers."""
    given = [{"src": "h0", "dst": "h1", **flow} for flow in flows]
    return {
        "schema": 1,
        "topology": {
            "kind": "custom",
            "nodes": {"h0": "host", "h1": "host", "s0": "switch"},
            "links": [cable("h0", "s0", "100Gbps"), cable("h1", "s0", "100Gbps")],
        },
        "network": QUIET,
        "workload": {"kind": "flows", "flows": given},
        **more,
    }


def ends(result: Any) -> dict[str, int]:
    return {record.flow.id: record.end_ps for record in result.records}


def test_weighted_max_min_with_a_cap() -> None:
    """Rates 80/100/100/20 Gbit/s over A = 100, B = 400, C = 200, a gigabyte each."""
    hosts = {name: "host" for name in "abcde"}
    switches = {f"s{i}": "switch" for i in range(4)}
    doors = (("a", "s0"), ("b", "s1"), ("c", "s2"), ("d", "s3"), ("e", "s0"))
    lines = (("s0", "s1", "100Gbps"), ("s1", "s2", "400Gbps"), ("s2", "s3", "200Gbps"))
    result = run_scenario(
        {
            "schema": 1,
            "topology": {
                "kind": "custom",
                "nodes": hosts | switches,
                "links": [cable(a, b, "800Gbps") for a, b in doors]
                + [cable(a, b, rate) for a, b, rate in lines],
            },
            "network": QUIET,
            "workload": {
                "kind": "flows",
                "flows": [
                    {"id": "f1", "src": "a", "dst": "c", "size": "1GB"},
                    {"id": "f2", "src": "b", "dst": "d", "size": "1GB"},
                    {"id": "f3", "src": "c", "dst": "d", "size": "1GB"},
                    {"id": "f4", "src": "e", "dst": "b", "size": "1GB", "cap": "20Gbps"},
                ],
            },
        }
    )
    # every link but the narrowest adds the first packet's time: 4000 B are 40 ns at 800G
    assert ends(result) == {
        "f1": 100_000_000_000 + 40_000 + 80_000 + 40_000,
        "f2": 80_000_000_000 + 40_000 + 80_000 + 40_000,
        "f3": 80_000_000_000 + 2 * 40_000,
        "f4": 400_000_000_000 + 2 * 40_000,
    }
    assert result.status == "completed"
    assert result.sim_time_ps == 400_000_080_000
    # f1 alone: 1 GB at 100G; the cut of A: 2 GB at 100G
    assert result.bound_ps == 160_000_000_000
    stats = result.flows
    assert (stats.count, stats.ended, stats.bytes) == (4, 4, 4_000_000_000)
    assert stats.fct_mean_ps == 165_000_120_000
    assert (stats.fct_p50_ps, stats.fct_p99_ps) == (80_000_160_000, 400_000_080_000)
    assert stats.fct_max_ps == 400_000_080_000
    line = next(hot for hot in result.links.hottest() if hot["link"] == "s0:2>s1:1")
    assert line["wire_bytes"] == 2_000_000_000
    assert line["utilisation"] == pytest.approx(160 / 400.00008, abs=1e-9)


def test_after_and_start_both_hold_a_flow_back() -> None:
    result = run_scenario(
        pair(
            {"id": "a", "size": "1MB"},
            {"id": "b", "size": "1MB", "after": ["a"]},
            {"id": "c", "size": "1MB", "after": ["a", "b"], "start": "1ms"},
        )
    )
    one = 80_000_000 + 320_000  # 1 MB at 100G, and one packet more at the switch
    starts = {record.flow.id: record.start_ps for record in result.records}
    assert starts == {"a": 0, "b": one, "c": 1_000_000_000}
    assert ends(result) == {"a": one, "b": 2 * one, "c": 1_000_000_000 + one}


def test_the_start_of_a_workload_moves_all_its_flows() -> None:
    scenario = pair({"id": "a", "size": "1MB", "start": "1us"})
    scenario["workload"]["start"] = "2us"
    assert run_scenario(scenario).records[0].start_ps == 3_000_000


def test_flows_of_several_workloads_share_the_fabric_under_their_names() -> None:
    scenario = pair()
    flow = {"id": "a", "src": "h0", "dst": "h1", "size": "1MB"}
    scenario["workload"] = [
        {"kind": "flows", "name": "x", "flows": [flow]},
        {"kind": "flows", "flows": [flow]},
    ]
    both = 160_000_000 + 320_000
    assert ends(run_scenario(scenario)) == {"x/a": both, "flows1/a": both}


def test_parallel_cables_choose_a_pinned_path() -> None:
    scenario = pair({"id": "a", "size": "1MB", "path": ["h0", "s0:2", "s1", "h1"]})
    scenario["topology"] = {
        "kind": "custom",
        "nodes": {"h0": "host", "h1": "host", "s0": "switch", "s1": "switch"},
        "links": [
            cable("h0", "s0", "100Gbps"),
            cable("h1", "s1", "100Gbps"),
            {**cable("s0", "s1", "100Gbps"), "count": 2},
        ],
    }
    result = run_scenario(scenario)
    names = [result.fabric.link_name(link) for link in result.records[0].path]
    assert names[1:-1] == ["s0:2>s1:2"]
    scenario["workload"]["flows"][0]["path"] = ["h0", "s0", "s1", "h1"]
    result = run_scenario(scenario)
    names = [result.fabric.link_name(link) for link in result.records[0].path]
    assert names[1:-1] == ["s0:1>s1:1"]


def test_a_circle_of_flows_is_named_and_the_others_are_kept() -> None:
    result = run_scenario(
        pair(
            {"id": "a", "size": "1MB", "after": ["b"]},
            {"id": "b", "size": "1MB", "after": ["c"]},
            {"id": "c", "size": "1MB", "after": ["a"]},
            {"id": "free", "size": "1MB"},
        )
    )
    assert result.status == "deadlocked"
    assert result.exit_code == 1
    assert isinstance(result.error, StalledError)
    text = str(result.error)
    assert text.startswith("the run can never finish: ")
    assert "flow a waits for b; flow b waits for c; flow c waits for a" in text
    assert ends(result) == {"free": 80_320_000}
    assert result.sim_time_ps == 80_320_000
    assert result.to_dict()["error"] == text
    with pytest.raises(StalledError):
        result.raise_for_status()


def test_a_flow_on_a_dead_link_is_named_and_who_waits_for_it() -> None:
    result = run_scenario(
        pair(
            {"id": "stuck", "size": "1MB", "path": ["h0", "s0", "h1"]},
            {"id": "next", "size": "1MB", "src": "h1", "dst": "h0", "after": ["stuck"]},
            {"id": "back", "size": "1MB", "src": "h1", "dst": "h0"},
            faults=[{"link": "s0:1>h1/nic0:0", "do": "down"}],
        )
    )
    assert result.status == "deadlocked"
    text = str(result.error)
    assert "flow next waits for stuck" in text
    assert "'stuck'" in text
    assert ends(result) == {"stuck": -1, "back": 80_320_000}
    assert (result.flows.count, result.flows.ended) == (2, 1)


def test_a_degraded_link_slows_its_flows() -> None:
    fault = {"link": "h0/nic0:0-s0:0", "do": "degrade", "rate": "50Gbps"}
    result = run_scenario(pair({"id": "a", "size": "1MB"}, faults=[fault]))
    assert ends(result) == {"a": 160_000_000 + 320_000}


def test_priorities_are_said_to_change_nothing() -> None:
    result = run_scenario(pair({"id": "a", "size": "1MB", "priority": 3}))
    assert result.warnings == (
        "the fluid engine has no traffic classes: the priority of flows changes nothing",
    )


def test_the_analytic_engine_says_that_its_times_are_bounds() -> None:
    flows = ({"id": "a", "size": "1MB"}, {"id": "b", "size": "1MB"})
    result = run_scenario(pair(*flows), overrides={"engine": "analytic"})
    assert ends(result) == {"a": 80_320_000, "b": 80_320_000}
    assert result.bound_ps == 160_000_000
    assert result.sim_time_ps == 160_000_000
    assert result.warnings[0].startswith("the analytic engine lets no flow slow another")


def test_collectives_run_one_after_another_with_nccl_tests_bandwidths() -> None:
    scenario = pair()
    scenario["workload"] = {
        "kind": "collective",
        "op": "all_gather",
        "sizes": ["2MB", "4MB"],
        "algorithm": "ring",
        "repeat": 3,
    }
    result = run_scenario(scenario)
    first, second = result.collectives
    # two ranks: each sends half of the buffer; the GPU's PCIe link is faster and adds a packet
    assert first["op"] == "all_gather"
    assert (first["size_bytes"], first["algorithm"], first["ranks"]) == (2_000_000, "ring", 2)
    assert first["time_ps"] == first["bound_ps"]
    assert 80_320_000 <= first["time_ps"] < 80_320_000 + 20_000
    assert second["time_ps"] - first["time_ps"] == 80_000_000
    assert second["start_ps"] == 3 * first["time_ps"]
    assert result.sim_time_ps == 3 * (first["time_ps"] + second["time_ps"])
    algbw = 2_000_000 / (first["time_ps"] / 1e12) / 1e9
    assert first["algbw_GBps"] == pytest.approx(algbw, abs=1e-6)
    assert first["busbw_GBps"] == pytest.approx(algbw / 2, abs=1e-6)
    assert result.flows.count == 0


def test_placement_decides_who_talks_to_whom() -> None:
    scenario = pair()
    scenario["topology"] = "h100-rail-8"
    scenario["network"] = {}
    scenario["workload"] = {
        "kind": "collective",
        "op": "all_reduce",
        "size": "1MB",
        "ranks": 8,
        "algorithm": "ring",
    }
    packed = run_scenario(scenario)
    assert packed.links.to_dict()["tiers"]["host-leaf"]["wire_bytes"] == 0
    spread = [f"h{i}/gpu0" for i in range(8)]
    scenario["workload"]["placement"] = {"policy": "list", "gpus": spread}
    crossing = run_scenario(scenario)
    assert crossing.links.to_dict()["tiers"]["host-leaf"]["wire_bytes"] > 8 * 2 * 1_000_000
    assert crossing.collectives[0]["time_ps"] > packed.collectives[0]["time_ps"]
    scenario["workload"]["placement"] = {"policy": "random"}
    seeds = [run_scenario(scenario, overrides={"seed": seed}).sim_time_ps for seed in (1, 1, 2)]
    assert seeds[0] == seeds[1] != seeds[2]


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2},
        {"topology": "h100-tor-1su"},
        {"network": {"mtu": "1024B"}},
        {"routing": {"policy": "spray"}},
        {"faults": [{"node": "spine0", "do": "down"}]},
    ],
)
def test_what_should_change_a_result_does(change: dict[str, Any]) -> None:
    flows = [
        {"src": f"h{i}/gpu{k}", "dst": f"h{(i + 3) % 8}/gpu{(k + 1) % 8}", "size": "4MB"}
        for i in range(8)
        for k in range(8)
    ]
    scenario = {
        "schema": 1,
        "topology": "h100-rail-8",
        "workload": {"kind": "flows", "flows": flows},
    }
    assert ends(run_scenario(scenario)) == ends(run_scenario(scenario))
    assert ends(run_scenario(scenario)) != ends(run_scenario({**scenario, **change}))


class TickModel(WorkloadModel):
    kind: Literal["tick"]


@pytest.fixture
def tick(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Register a kind of workload that runs what a test puts in the dictionary."""
    actions: dict[str, Any] = {}
    workloads.kind_names()
    things = dict(workloads._KINDS._things)
    monkeypatch.setattr(workloads._KINDS, "_things", things)

    @workload_kind(TickModel)
    def start(workload: TickModel, context: WorkloadContext) -> simpy.Event:
        return context.env.process(actions["process"](context))

    return actions


def ticking() -> dict[str, Any]:
    scenario = pair()
    scenario["workload"] = [
        scenario["workload"] | {"flows": [{"id": "a", "src": "h0", "dst": "h1", "size": "1MB"}]},
        {"kind": "tick"},
    ]
    return scenario


def test_an_interrupt_keeps_what_there_is(tick: dict[str, Any]) -> None:
    def process(context: WorkloadContext) -> Iterator[simpy.Event]:
        while True:
            yield context.env.timeout(1_000_000)
            if context.env.now > 100_000_000:
                raise KeyboardInterrupt

    tick["process"] = process
    result = run_scenario(ticking())
    assert result.status == "interrupted"
    assert result.exit_code == 130
    assert ends(result) == {"flows0/a": 80_320_000}
    assert result.sim_time_ps == 101_000_000


def test_a_failure_in_mid_run_keeps_what_there_is(tick: dict[str, Any]) -> None:
    def process(context: WorkloadContext) -> Iterator[simpy.Event]:
        yield context.env.timeout(90_000_000)
        raise RailweaveError("the pump broke")

    tick["process"] = process
    result = run_scenario(ticking())
    assert (result.status, str(result.error)) == ("failed", "the pump broke")
    assert result.exit_code == 1
    assert ends(result) == {"flows0/a": 80_320_000}


def test_a_workload_that_waits_for_nothing_is_named(tick: dict[str, Any]) -> None:
    def process(context: WorkloadContext) -> Iterator[simpy.Event]:
        yield context.env.event()

    tick["process"] = process
    assert "workload tick1 has not ended" in str(run_scenario(ticking()).error)


def test_a_run_ends_with_its_workloads(tick: dict[str, Any]) -> None:
    def background(context: WorkloadContext) -> Iterator[simpy.Event]:
        while True:
            yield context.env.timeout(1_000_000)

    def process(context: WorkloadContext) -> Iterator[simpy.Event]:
        context.env.process(background(context))
        yield context.env.timeout(50_000_000)

    tick["process"] = process
    seen: list[Progress] = []
    result = run_scenario(ticking(), progress=seen.append)
    assert result.status == "completed"
    assert result.sim_time_ps == 80_320_000


def test_progress_is_told(tick: dict[str, Any]) -> None:
    def process(context: WorkloadContext) -> Iterator[simpy.Event]:
        for _ in range(1000):
            yield context.env.timeout(1_000_000)

    tick["process"] = process
    seen: list[Progress] = []
    run_scenario(ticking(), progress=seen.append)
    assert len(seen) >= 3
    times = [progress.time_ps for progress in seen]
    assert times == sorted(times)
    assert seen[-1] == dataclasses.replace(seen[-1], workloads=2, ended=1)


def test_random_streams_do_not_shift_each_other(tick: dict[str, Any]) -> None:
    draws: list[int] = []

    def process(context: WorkloadContext) -> Iterator[simpy.Event]:
        draws.append(int(context.random("arrivals").integers(2**40)))
        yield context.env.timeout(1)

    tick["process"] = process
    for seed in (1, 1, 2):
        run_scenario(ticking(), overrides={"seed": seed})
    scenario = ticking()
    scenario["workload"].insert(0, {"kind": "tick", "name": "more"})
    scenario["workload"][2]["name"] = "tick1"
    run_scenario(scenario)
    assert draws[0] == draws[1] == draws[4]
    assert len({draws[0], draws[2], draws[3]}) == 3


def test_a_result_below_its_bound_is_a_defect() -> None:
    run = prepare(load_scenario(pair({"id": "a", "size": "1MB"})))
    run.env.run()
    counters = run.engine.counters()
    table = LinkTable.of(run.fabric, counters, 80_320_000)
    check_bounds(run.engine, table, sim_time_ps=80_320_000, bound_ps=80_320_000)
    with pytest.raises(PhysicsError, match="the run took 80320000 ps, below its bound"):
        check_bounds(run.engine, table, sim_time_ps=80_320_000, bound_ps=81_000_000)
    short = LinkTable.of(run.fabric, counters, 40_000_000)
    with pytest.raises(PhysicsError, match=r"carried 2\.000000 times"):
        check_bounds(run.engine, short, sim_time_ps=40_000_000, bound_ps=40_000_000)
