# SPDX-License-Identifier: Apache-2.0
"""What starts inside when something else has ended, without a word from outside."""

from __future__ import annotations

from typing import Any

from railweave.tools.emulate.armed import Armed
from railweave.tools.emulate.graphs import Graphs
from railweave.tools.emulate.loop import Loop
from railweave.tools.emulate.wires import Wires


def waiting(number: int, wait_ns: int, after: list[int]) -> dict[str, Any]:
    return {
        "job": number,
        "repeat": 1,
        "nodes": [(-1, 0, 0, wait_ns, -1)],
        "n_deps": [0],
        "succ_ptr": [0, 0],
        "succ": [],
        "after": after,
    }


def run(graphs: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    loop, told = Loop(), dict[int, dict[str, Any]]()

    def tell(message: dict[str, Any]) -> None:
        told[message["job"]] = message
        if len(told) == len(graphs):
            loop.stop()

    Graphs(loop, Wires(loop), tell).start(graphs, not_before_ns=0)
    loop.run()
    return told


def test_a_graph_begins_when_the_last_of_those_before_it_ends() -> None:
    told = run([waiting(1, 2_000_000, []), waiting(2, 500_000, []), waiting(3, 0, [1, 2])])
    assert list(told) == [2, 1, 3]
    assert told[3]["start"] >= told[1]["end"]


def test_graphs_that_have_ended_are_not_waited_for() -> None:
    assert list(run([waiting(7, 0, [5, 6])])) == [7]


def test_flows_are_armed_as_soon_as_all_before_them_are_inside() -> None:
    armed = Armed()
    armed.expect("c", ["a", "b", "a"])
    armed.expect("d", ["c"])
    assert (armed.number("a"), armed.ready(["a"])) == (1, [])
    assert armed.number(None) == 2  # a collective between them
    assert armed.number("b") == 3
    ready = armed.ready(["b"])
    assert [(one.flow, one.number, one.after) for one in ready] == [
        ("c", 4, (1, 3)),
        ("d", 5, (4,)),
    ]
    assert armed.begun("a") is None  # handed over, not armed
    assert (armed.begun("c"), armed.begun("c"), armed.begun(None)) == (4, None, None)
