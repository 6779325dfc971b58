# SPDX-License-Identifier: Apache-2.0
"""Folding a symmetric schedule changes nothing, and asymmetry is not folded."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import railweave
from railweave.collectives import plan
from railweave.fabric import folding, folds
from railweave.fabric._folding_checks import is_covering
from railweave.fabric.memo import Isolated

if TYPE_CHECKING:
    from railweave.fabric.schedule import Schedule

HOSTS = 32


@cache
def rails(policy: str = "rail", ack_every: int = 0) -> tuple[Any, Any, Any]:
    cable = {"model": "roce-lossless", "rate": "400Gbps"}
    spec = railweave.load_topology(
        {
            "kind": "rail-optimized",
            "hosts": {"count": HOSTS, "model": "dgx-h100"},
            "group": 8,
            "leaf": {"switch": "spectrum-4"},
            "spine": {"switch": "spectrum-4"},
            "links": {
                "host-leaf": {**cable, "length": "3m"},
                "leaf-spine": {**cable, "length": "30m"},
            },
        }
    )
    fabric = railweave.build_topology(spec)
    routing = railweave.Routing(fabric, policy=policy)
    return fabric, routing, railweave.NetworkSettings(ack_every=ack_every)


def hierarchical(size_bytes: int = 2**27) -> Schedule:
    hosts = [rank // 8 for rank in range(8 * HOSTS)]
    return plan(
        "all_reduce", ranks=8 * HOSTS, size_bytes=size_bytes, algorithm="hierarchical", hosts=hosts
    )


def isolated(schedule: Schedule, stage: tuple[Any, Any, Any]) -> Isolated:
    engine: Any = railweave.make_engine("fluid", railweave.FabricEnvironment(), *stage)
    gpus = np.array(stage[0].gpus[: schedule.n_ranks], np.int32)
    return Isolated(engine._bind(schedule, gpus), engine.state)


def folded(schedule: Schedule, stage: tuple[Any, Any, Any]) -> folding.Folded | None:
    cut = isolated(schedule, stage)
    return folding.fold(cut._own, cut.paths, cut._capacity, cut._ack_share)


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch):
    monkeypatch.setattr(folding, "_LEAST", 64)


@pytest.mark.parametrize("ack_every", [0, 4])
def test_folded_and_whole_take_equal_times(ack_every):
    stage = rails("rail", ack_every)
    schedule = hierarchical()
    small = folded(schedule, stage)
    assert small is not None
    assert len(small.graph) * 32 <= len(schedule)
    times = []
    for memo in (True, False):
        env = railweave.FabricEnvironment()
        engine = railweave.make_engine("fluid", env, *stage, memo=memo)
        env.run(until=engine.execute(schedule, [int(g) for g in stage[0].gpus]))
        times.append((env.now, engine.cautions(), engine.counters().wire_bytes.tolist()))
    assert times[0] == times[1]


def test_an_all_to_all_under_one_switch_folds_to_its_distances():
    links = [{"ends": [f"h{i}", "s"], "rate": "100Gbps", "delay": "500ns"} for i in range(12)]
    nodes = {f"h{i}": "host" for i in range(12)} | {"s": "switch"}
    fabric = railweave.build_topology(
        railweave.load_topology({"kind": "custom", "nodes": nodes, "links": links})
    )
    stage = (fabric, railweave.Routing(fabric), railweave.NetworkSettings(ack_every=0))
    schedule = plan("all_to_all", ranks=12, size_bytes=12 * 2**20, algorithm="direct")
    # All of a rank's messages are alike and share its cable: their numbers tell them apart.
    small = folded(schedule, stage)
    assert small is not None
    assert len(small.graph) == 11
    cut = isolated(schedule, stage)
    state, _, ended = cut.run(2**60)
    assert ended
    span = cut.span()
    assert span is not None
    assert span.time_ps == state.now_ps


def test_schedules_of_one_structure_are_folded_once(monkeypatch):
    counted = []
    fold = folding.fold
    monkeypatch.setattr(folds, "fold", lambda *args: counted.append(1) or fold(*args))
    env = railweave.FabricEnvironment()
    engine = railweave.make_engine("fluid", env, *rails())
    gpus = [int(g) for g in rails()[0].gpus]
    took = {}
    for size in (2**27, 2**28, 2**27 + 1):
        start = env.now
        env.run(until=engine.execute(hierarchical(size), gpus))
        took[size] = env.now - start
    assert len(counted) == 2  # a byte more makes one chunk unlike the others
    for size, time in took.items():
        alone = railweave.FabricEnvironment()
        whole = railweave.make_engine("fluid", alone, *rails(), memo=False)
        alone.run(until=whole.execute(hierarchical(size), gpus))
        assert alone.now == time


def test_trees_that_share_the_links_of_a_host_fold_to_one_rail():
    ranks = 8 * HOSTS
    hosts = [rank // 8 for rank in range(ranks)]
    schedule = plan(
        "all_reduce", ranks=ranks, size_bytes=2**27, algorithm="host_tree", hosts=hosts,
        channels=8, chunks=4,
    )  # fmt: skip
    small = folded(schedule, rails())
    assert small is not None
    assert len(small.graph) * 8 == len(schedule)


def test_what_breaks_the_symmetry_is_not_folded():
    assert folded(hierarchical(), rails()) is not None
    assert folded(hierarchical(2**27 + 1), rails()) is None  # one chunk a byte longer


def test_a_slower_cable_makes_classes_of_its_own(monkeypatch):
    whole = folded(hierarchical(), rails())
    assert whole is not None
    engine: Any = railweave.make_engine("fluid", railweave.FabricEnvironment(), *rails())
    schedule = hierarchical()
    gpus = np.array(rails()[0].gpus, np.int32)
    bound = engine._bind(schedule, gpus)
    slow = int(bound.links[np.argmax(engine.fabric.link_network[bound.links])])
    engine.state.links.capacity[slow] /= 2
    cut = Isolated(bound, engine.state)
    monkeypatch.setattr(folding, "_GAIN", 1)
    narrower = folding.fold(cut._own, cut.paths, cut._capacity, cut._ack_share)
    assert narrower is not None
    assert len(narrower.graph) > 4 * len(whole.graph)
    span = cut.span()
    monkeypatch.setattr(folding, "_LEAST", 2**40)
    unfolded = cut.span()
    assert span is not None
    assert unfolded is not None
    assert span.time_ps == unfolded.time_ps
    assert span.contended.tolist() == unfolded.contended.tolist()


def test_wrong_classes_are_caught():
    cut = isolated(hierarchical(), rails())
    columns = folding._Columns(cut._own, cut.paths, cut._capacity, cut._ack_share)
    found = columns.refined(most=len(cut._own))
    assert found is not None
    node, link = found

    def covers(node_class: Any, link_class: Any) -> bool:
        _, kept = np.unique(node_class, return_index=True)
        _, kept_links = np.unique(link_class, return_index=True)
        return is_covering(columns, node_class, link_class, kept, kept_links)

    assert covers(node, link)
    rng = np.random.default_rng(5)
    caught = 0
    for _ in range(40):
        merged = node.copy()
        a, b = rng.choice(node.max() + 1, 2, replace=False)
        merged[merged == max(a, b)] = min(a, b)
        merged = np.unique(merged, return_inverse=True)[1].astype(np.int32)
        caught += not covers(merged, link)
    assert caught == 40
