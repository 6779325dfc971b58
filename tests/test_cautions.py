# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from railweave import run_scenario

INCAST = "several flows met at"
CIRCLE = "can wait for each other in a circle"
TRIANGLE = {
    "kind": "custom",
    "nodes": {
        name: "host" if name[0] == "h" else "switch"
        for name in ["h0", "h1", "h2", "S0", "S1", "S2"]
    },
    "links": [
        {"ends": list(ends), "rate": "100Gbps", "delay": "0s"}
        for ends in (
            ("h0", "S0"),
            ("h1", "S1"),
            ("h2", "S2"),
            ("S0", "S1"),
            ("S1", "S2"),
            ("S2", "S0"),
        )
    ],
}


def warnings(topology: Any, workload: dict[str, Any]) -> tuple[str, ...]:
    scenario = {"schema": 1, "engine": "fluid", "topology": topology, "workload": workload}
    return run_scenario(scenario).raise_for_status().warnings


def flows(*ends: tuple[str, str], **more: Any) -> dict[str, Any]:
    rows = [{"src": src, "dst": dst, "size": "1MiB", **more} for src, dst in ends]
    return {"kind": "flows", "flows": rows}


def star(model: str) -> dict[str, Any]:
    return {
        "kind": "custom",
        "nodes": {"h0": "host", "h1": "host", "h2": "host", "s": "switch"},
        "links": [
            {"ends": [f"h{i}", "s"], "rate": "100Gbps", "delay": "0s", "model": model}
            for i in range(3)
        ],
    }


@pytest.mark.parametrize(("model", "said"), [("roce-lossless", True), ("roce-lossy", False)])
def test_a_lossless_incast_is_named(model: str, said: bool) -> None:
    found = warnings(star(model), flows(("h0", "h2"), ("h1", "h2")))
    assert [INCAST in text and "s:2>h2/nic0:0" in text for text in found] == [True] * said


def test_flows_that_do_not_meet_say_nothing() -> None:
    assert warnings(star("roce-lossless"), flows(("h0", "h1"), ("h1", "h2"), ("h2", "h0"))) == ()


def test_flows_that_share_only_their_senders_port_say_nothing() -> None:
    assert warnings(star("roce-lossless"), flows(("h0", "h1"), ("h0", "h2"))) == ()


@pytest.mark.parametrize(("op", "said"), [("all_to_all", True), ("all_reduce", False)])
def test_a_remembered_collective_tells_too(op: str, said: bool) -> None:
    workload = {"kind": "collective", "op": op, "size": "1MiB", "algorithm": "auto", "ranks": 16}
    assert any(INCAST in text for text in warnings("h100-rail-8", workload)) == said


def test_a_circle_of_buffers_is_named() -> None:
    around = [
        {"src": f"h{i}", "dst": f"h{(i + 2) % 3}", "size": "1MiB",
         "path": [f"h{i}", f"S{i}", f"S{(i + 1) % 3}", f"S{(i + 2) % 3}", f"h{(i + 2) % 3}"]}
        for i in range(3)
    ]  # fmt: skip
    found = warnings(TRIANGLE, {"kind": "flows", "flows": around})
    (circle,) = [text for text in found if CIRCLE in text]
    assert all(name in circle for name in ("S0:1>S1:1", "S1:2>S2:1", "S2:2>S0:2"))
    short = warnings(TRIANGLE, flows(("h0", "h1"), ("h1", "h2"), ("h2", "h0")))
    assert not any(CIRCLE in text for text in short)


def test_flows_that_come_by_one_faster_link_meet_too() -> None:
    # Two senders share a fast trunk into a slow receiver; a third flow on the trunk is the victim.
    links = [
        {"ends": [host, switch], "rate": "100Gbps", "delay": "100ns"}
        for host, switch in (("a1", "s1"), ("a2", "s1"), ("a3", "s1"), ("r1", "s2"), ("r2", "s2"))
    ]
    trunk = {"ends": ["s1", "s2"], "rate": "400Gbps", "delay": "100ns"}
    nodes = {end: "switch" if end[0] == "s" else "host" for row in links for end in row["ends"]}
    topology = {"kind": "custom", "nodes": nodes, "links": [*links, trunk]}
    (said,) = warnings(topology, flows(("a1", "r1"), ("a2", "r1"), ("a3", "r2")))
    assert INCAST in said
    assert "s2:0>r1/nic0:0" in said
