# SPDX-License-Identifier: Apache-2.0
"""Iterations at once take what they take one by one, disturbed or not, and move the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from railweave.collectives import plan
from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.engines import make_engine
from railweave.fabric.flow import Flow
from railweave.fabric.network import NetworkSettings
from railweave.fabric.routing import Routing
from railweave.topologies.load import build_topology, load_topology

if TYPE_CHECKING:
    from collections.abc import Generator

PAUSES = [1000 * (i + 1) for i in range(40)]


def iterate(
    *, kind: str = "fluid", memo: bool = True, disturb_ps: int | None = None, curtail_ps: int = -1
) -> tuple[list[int], list[int], int]:
    """Return when each batch of iterations ended, the bytes of all links, and the batches."""
    fabric = build_topology(load_topology("h100-rail-8"))
    env = FabricEnvironment()
    engine = make_engine(kind, env, fabric, Routing(fabric), NetworkSettings(), memo=memo)
    gpus = [int(gpu) for gpu in fabric.gpus[:8]]
    parts = [
        (plan("all_reduce", ranks=8, size_bytes=size, hosts=[0] * 8), times)
        for size, times in ((16_384, 3), (100_000, 1))
    ]
    ends: list[int] = []
    batches = 0

    def model() -> Generator[Any, Any, None]:
        nonlocal batches
        left = list(PAUSES)
        while left:
            under_way = engine.iterate(parts, gpus, left, tag="tp")
            batches += 1
            started = int(env.now)
            if curtail_ps >= 0 and started <= curtail_ps:
                timer = env.timeout(curtail_ps - started)
                timer.callbacks.append(lambda _, it=under_way: it.curtail())
            runs = yield under_way.event
            ends.append(int(env.now))
            del left[:runs]

    def foreign() -> Generator[Any, Any, None]:
        yield env.timeout(disturb_ps)
        yield engine.send(Flow(id="f", src=gpus[0], dst=gpus[3], size_bytes=3_000_000))

    if disturb_ps is not None:
        env.process(foreign())
    env.run(env.process(model()))
    while engine.busy:
        env.step()
    return ends, engine.counters().wire_bytes.tolist(), batches


def test_iterations_at_once_take_what_they_take_one_by_one() -> None:
    at_once, moved, batches = iterate()
    one_by_one, the_same, single = iterate(memo=False)
    assert (batches, single) == (1, 40)
    assert at_once == one_by_one[-1:]
    assert moved == the_same


@pytest.mark.parametrize("at_ps", [0, 1, 5_000_000, 30_000_001, 123_456_789, 400_000_000])
def test_a_flow_on_their_links_disturbs_them_from_then_on(at_ps: int) -> None:
    at_once, moved, batches = iterate(disturb_ps=at_ps)
    one_by_one, the_same, single = iterate(memo=False, disturb_ps=at_ps)
    assert batches < single
    assert at_once[-1] == one_by_one[-1]
    assert set(at_once) <= set(one_by_one)
    assert moved == the_same


@pytest.mark.parametrize("at_ps", [0, 7, 40_000_000, 200_000_000])
def test_curtailed_iterations_end_with_the_one_under_way(at_ps: int) -> None:
    ends, moved, batches = iterate(curtail_ps=at_ps)
    every, the_same, _ = iterate(memo=False)
    assert batches == 2
    assert ends == [min(end for end in every if end > at_ps), every[-1]]
    assert moved == the_same


def test_an_engine_without_memory_does_one_at_a_time() -> None:
    ends, _, batches = iterate(kind="analytic")
    assert batches == len(ends) == 40


def test_pauses_alone_need_no_engine() -> None:
    fabric = build_topology(load_topology("h100-rail-8"))
    env = FabricEnvironment()
    engine = make_engine("packet", env, fabric, Routing(fabric), NetworkSettings())
    under_way = engine.iterate((), [int(fabric.gpus[0])], [5, 6, 7])
    assert under_way.ends_ps == [5, 11, 18]
    assert [under_way.done(t) for t in (0, 5, 10, 11, 18)] == [0, 1, 1, 2, 3]
    env.run(under_way.event)
    assert (env.now, under_way.event.value) == (18, 3)


@pytest.mark.parametrize("at_ps", [1, 5_000_000, 30_000_001, 123_456_789])
def test_what_has_been_moved_is_known_at_any_time(at_ps: int) -> None:
    counted = []
    for memo in (True, False):
        fabric = build_topology(load_topology("h100-rail-8"))
        env = FabricEnvironment()
        engine = make_engine("fluid", env, fabric, Routing(fabric), NetworkSettings(), memo=memo)
        gpus = [int(gpu) for gpu in fabric.gpus[:8]]
        parts = [(plan("all_reduce", ranks=8, size_bytes=100_000, hosts=[0] * 8), 3)]

        def model(engine: Any = engine, gpus: Any = gpus, parts: Any = parts) -> Any:
            left = list(PAUSES)
            while left:
                runs = yield engine.iterate(parts, gpus, left).event
                del left[:runs]

        env.process(model())
        env.run(until=at_ps)
        counted.append(engine.counters().wire_bytes.tolist())
    assert counted[0] == counted[1]
