# SPDX-License-Identifier: Apache-2.0
"""Remembered collectives give the picoseconds and the bytes of the graph they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from railweave.collectives import plan
from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.errors import RailweaveError
from railweave.fabric.flow import Flow
from railweave.fabric.fluid import FluidEngine
from railweave.fabric.graph import DeviceKind, Fabric, FabricBuilder, LinkModel
from railweave.fabric.network import NetworkSettings
from railweave.fabric.routing import Routing

N = 8


def leaf_spine(*, slow: int | None = None) -> Fabric:
    """Two leaves of four hosts, two spines; host ``slow`` has a quarter of the rate."""
    build = FabricBuilder("leaf-spine")
    nics = [
        build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}"))
        for i in range(N)
    ]
    leaf = [build.add_device(f"leaf{i}", DeviceKind.SWITCH, tier=1) for i in range(2)]
    spine = [build.add_device(f"spine{i}", DeviceKind.SWITCH, tier=2) for i in range(2)]
    for i, nic in enumerate(nics):
        rate = 25 * 10**9 if i == slow else 100 * 10**9
        build.add_cable(
            nic, leaf[i // 4], rate_bps=rate, delay_ps=3_000, model=LinkModel.ROCE_LOSSLESS
        )
    for below in leaf:
        for above in spine:
            build.add_cable(
                below, above, rate_bps=100 * 10**9, delay_ps=7_001, model=LinkModel.ROCE_LOSSLESS
            )
    return build.finish()


@dataclass
class Seen:
    """What one run showed."""

    collectives: list[tuple[str, int, int]] = field(default_factory=list)
    flows: list[tuple[str, int, int]] = field(default_factory=list)
    bytes: list[Any] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    remembered: int = 0  # instants of the sampling at which a job was remembered


Act = Callable[[FluidEngine], None]


def run(
    acts: Sequence[tuple[int, Act]], *, memo: bool, ack_every: int = 0, qps: int = 1,
    sample: Sequence[int] = (), fabric: Fabric | None = None,
) -> Seen:  # fmt: skip
    fabric = leaf_spine() if fabric is None else fabric
    env = FabricEnvironment()
    engine = FluidEngine(
        env, fabric, Routing(fabric, seed=3), NetworkSettings(ack_every=ack_every),
        memo=memo, qps=qps,
    )  # fmt: skip
    seen = Seen()

    def at(when: int, act: Act) -> Iterator[Any]:
        yield env.timeout(when)
        act(engine)

    def look(when: int) -> Iterator[Any]:
        yield env.timeout(when)
        counted = engine.counters()
        seen.bytes.append((when, counted.wire_bytes.tolist(), counted.ack_bytes.tolist()))
        seen.remembered += bool(engine._ends)

    for when, act in acts:
        env.process(at(when, act))
    for when in sample:
        env.process(look(when))
    env.run()
    seen.collectives = [(c.tag, c.start_ps, c.end_ps) for c in engine.collectives()]
    seen.flows = [(r.flow.id, r.start_ps, r.end_ps) for r in engine.records()]
    counted = engine.counters()
    seen.bytes.append((-1, counted.wire_bytes.tolist(), counted.ack_bytes.tolist()))
    seen.waiting = engine.waiting()
    return seen


def collective(
    ranks: Sequence[int], size: int, *, op: str = "all_reduce", repeat: int = 1, tag: str = "c"
) -> Act:
    schedule = plan(op, ranks=len(ranks), size_bytes=size)

    def act(engine: FluidEngine) -> None:
        engine.execute(schedule, list(ranks), tag=tag, repeat=repeat)

    return act


def flow(src: int, dst: int, size: int, name: str = "f") -> Act:
    def act(engine: FluidEngine) -> None:
        engine.send(Flow(id=name, src=src, dst=dst, size_bytes=size))

    return act


def both(acts: Sequence[tuple[int, Act]], **options: Any) -> Seen:
    """Run with and without memory; they must agree in everything."""
    on, off = run(acts, memo=True, **options), run(acts, memo=False, **options)
    assert on.collectives == off.collectives
    assert on.flows == off.flows
    assert on.bytes == off.bytes
    assert on.waiting == off.waiting
    assert off.remembered == 0
    return on


ACKS = pytest.mark.parametrize("ack_every", [0, 1])


@ACKS
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "all_to_all", "broadcast"])
def test_idle_collectives(ack_every: int, op: str) -> None:
    act = collective(range(N), 1_000_003, op=op, repeat=3)
    span = run([(0, collective(range(N), 1_000_003, op=op))], memo=False, ack_every=ack_every)
    seen = both([(17, act)], ack_every=ack_every, sample=range(0, 10**9, 40_000_001))
    assert seen.collectives[0][2] - 17 == 3 * span.collectives[0][2]
    assert seen.remembered > 1


@ACKS
def test_a_flow_arriving_at_any_instant(ack_every: int) -> None:
    repeat, size = 3, 300_001
    ranks = [0, 4, 1, 5]
    alone = run([(0, collective(ranks, size, repeat=repeat))], memo=False, ack_every=ack_every)
    end = alone.collectives[0][2]
    assert end % repeat == 0
    span = end // repeat
    edges = {run_ * span + d for run_ in range(repeat + 1) for d in (-1, 0, 1)}
    inside = {span + span * i // 37 for i in range(37)}
    delayed = 0
    for when in sorted(t for t in edges | inside if t >= 0):
        acts = [(0, collective(ranks, size, repeat=repeat)), (when, flow(0, 5, 200_000))]
        seen = both(acts, ack_every=ack_every, sample=[max(when - 1, 0), when, when + 1])
        delayed += seen.collectives[0][2] > end
        if when >= end:
            assert seen.collectives[0][2] == end
    assert delayed >= 30


@pytest.mark.parametrize("qps", [1, 2])
def test_flows_at_many_instants_of_one_run(qps: int) -> None:
    acts: list[tuple[int, Act]] = [(0, collective(range(N), 2_000_000, repeat=2))]
    acts += [
        (37_000_000 * i, flow(i % N, (i * 3 + 1) % N, 50_000, f"f{i}"))
        for i in range(12) if i % N != (i * 3 + 1) % N
    ]  # fmt: skip
    both(acts, ack_every=4, qps=qps, sample=range(1, 10**9, 70_000_000))


@ACKS
@pytest.mark.parametrize("lag", [0, 1, 40_000_000, 131_000_007])
def test_two_collectives_on_the_same_links(ack_every: int, lag: int) -> None:
    acts = [
        (0, collective([0, 1, 4, 5], 10**6, repeat=2, tag="a")),
        (lag, collective([0, 2, 4, 6], 10**6, repeat=2, tag="b")),
    ]
    seen = both(acts, ack_every=ack_every)
    assert [tag for tag, _, _ in seen.collectives] in (["a", "b"], ["b", "a"])
    apart = run([acts[0]], memo=False, ack_every=ack_every).collectives[0][2]
    assert max(end for _, _, end in seen.collectives) > apart


def test_two_collectives_on_other_links_are_both_remembered() -> None:
    acts = [
        (0, collective([0, 1], 10**6, repeat=3, tag="a")),
        (5, collective([2, 3], 10**6, repeat=3, tag="b")),
        (9, flow(4, 5, 10**6)),
    ]
    seen = both(acts, sample=[10**6])
    a, b = seen.collectives
    assert a[2] - 0 == b[2] - 5
    on = run(acts, memo=True, sample=[10**6])
    assert on.remembered == 1


@ACKS
@pytest.mark.parametrize("when", [0, 1, 33_333_333, 90_000_000])
def test_a_link_that_changes_under_a_remembered_collective(ack_every: int, when: int) -> None:
    downlink = 1  # leaf0 to h0

    def slower(engine: FluidEngine) -> None:
        engine.set_link(downlink, rate_bps=30 * 10**9)

    def back(engine: FluidEngine) -> None:
        engine.set_link(downlink, rate_bps=100 * 10**9)

    base = [(0, collective(range(4), 10**6, repeat=2))]
    alone = run(base, memo=False, ack_every=ack_every).collectives[0][2]
    seen = both([*base, (when, slower)], ack_every=ack_every)
    assert seen.collectives[0][2] > alone
    # What was remembered before the change is not used after it, nor after the way back.
    again = [
        *base, (10**9, slower), (10**9, collective(range(4), 10**6, tag="slow")),
        (2 * 10**9, back), (2 * 10**9, collective(range(4), 10**6, tag="fast")),
    ]  # fmt: skip
    seen = both(again, ack_every=ack_every)
    spans = {tag: end - start for tag, start, end in seen.collectives}
    assert spans["fast"] * 2 == spans["c"]
    assert spans["slow"] > 2 * spans["fast"]


@ACKS
def test_a_link_that_goes_down_and_comes_back(ack_every: int) -> None:
    def turn(up: bool) -> Act:
        return lambda engine: engine.set_link(0, up=up)

    base = [(0, collective(range(4), 10**6, repeat=2))]
    alone = run(base, memo=False, ack_every=ack_every).collectives[0][2]
    seen = both(
        [*base, (50_000_000, turn(False)), (450_000_000, turn(True))], ack_every=ack_every,
        sample=[49_999_999, 50_000_000, 300_000_000, 450_000_000, 460_000_000],
    )  # fmt: skip
    # Chunks wait before the link and then go on one by one: the ring is late by the pause, no more.
    assert alone + 395_000_000 < seen.collectives[0][2] <= alone + 400_000_000
    never = both([*base, (50_000_000, turn(False))], ack_every=ack_every)
    assert never.collectives == []
    assert len(never.waiting) == 1  # the same rank pair several times, said once
    assert "h0/nic0:0>leaf0:0" in never.waiting[0]


def test_a_collective_over_a_link_that_is_down_from_the_start() -> None:
    acts: list[tuple[int, Act]] = [
        (0, lambda engine: engine.set_link(0, up=False)), (1, collective(range(4), 10**6)),
        (10**8, lambda engine: engine.set_link(0, up=True)),
    ]  # fmt: skip
    seen = both(acts)
    span = run([(0, collective(range(4), 10**6))], memo=False).collectives[0][2]
    assert seen.collectives[0][2] == 10**8 + span


@ACKS
def test_a_foreign_flow_comes_while_messages_wait_their_turn(ack_every: int) -> None:
    slow = leaf_spine(slow=2)
    ring = (0, collective(range(4), 4 * 10**6, repeat=2))
    end = run([ring], memo=False, fabric=slow, ack_every=ack_every).collectives[0][2]
    for eighth in range(1, 8):
        when = end * eighth // 8
        seen = both(
            [ring, (when, flow(0, 1, 10**6))], fabric=slow, ack_every=ack_every, sample=[when + 1]
        )
        assert seen.collectives[0][2] >= end


def test_a_degraded_host_has_a_span_of_its_own() -> None:
    act = [(0, collective(range(4), 10**6)), (10**9, collective([4, 5, 6, 7], 10**6, tag="d"))]
    seen = both(act, fabric=leaf_spine(slow=6))
    fast, slow = (end - start for _, start, end in seen.collectives)
    assert slow > 2 * fast


def test_cancelling_a_flow_beside_a_collective() -> None:
    foreign = Flow(id="x", src=0, dst=1, size_bytes=10**9)

    def start(engine: FluidEngine) -> None:
        engine.send(foreign).defused = True

    acts = [
        (0, collective(range(4), 10**6, repeat=4)), (30_000_001, start),
        (60_000_002, lambda engine: engine.cancel(foreign)),
        (400_000_000, collective(range(4), 10**6, tag="after")),
    ]  # fmt: skip
    seen = both(acts, sample=[60_000_001, 60_000_002, 60_000_003, 399_999_999])
    assert seen.flows == [("x", 30_000_001, -1)]
    # The cancelled flow's bytes stay counted.
    before = seen.bytes[0][1][0] - run(acts[:1], memo=False, sample=[60_000_001]).bytes[0][1][0]
    assert before > 0
    first_hop = [sample[1][0] for sample in seen.bytes]
    assert first_hop == sorted(first_hop)


def test_memory_is_used_and_saves_solves() -> None:
    fabric, env = leaf_spine(), FabricEnvironment()
    engine = FluidEngine(env, fabric, Routing(fabric), NetworkSettings(ack_every=0))
    engine.execute(plan("all_reduce", ranks=N, size_bytes=10**6), range(N), repeat=1000)
    env.run()
    assert engine.state.solves == (0, 0)  # all of it in a simulation of its own
    assert engine.collectives()[0].end_ps % 1000 == 0


def test_equal_placements_share_a_span_and_others_do_not() -> None:
    fabric, env = leaf_spine(slow=7), FabricEnvironment()
    engine = FluidEngine(env, fabric, Routing(fabric), NetworkSettings(ack_every=0))
    for ranks in ([0, 1], [2, 3], [0, 1], [4, 5], [6, 7]):
        engine.execute(plan("all_reduce", ranks=2, size_bytes=10**6), ranks)
        env.run()
    spans = [c.end_ps - c.start_ps for c in engine.collectives()]
    assert len(set(spans[:4])) == 1
    assert spans[4] > 3 * spans[0]
    assert len(engine._spans) == 2


@settings(
    derandomize=True, deadline=None, max_examples=40, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(data=st.data())
def test_anything_at_any_time(data: st.DataObject) -> None:
    draw = data.draw
    fabric = leaf_spine(slow=draw(st.sampled_from([None, 2])))
    times = st.integers(0, 400_000_000)
    acts: list[tuple[int, Act]] = []
    for i in range(draw(st.integers(1, 4))):
        ranks = draw(st.permutations(range(N)))[: draw(st.integers(2, 5))]
        op = draw(st.sampled_from(["all_reduce", "all_to_all", "broadcast"]))
        size = draw(st.sampled_from([0, 1, 10**5, 10**6]))
        repeat = draw(st.integers(1, 3))
        acts.append((draw(times), collective(ranks, size, op=op, repeat=repeat, tag=f"c{i}")))
    for i in range(draw(st.integers(0, 4))):
        src, dst = draw(st.permutations(range(N)))[:2]
        size = draw(st.sampled_from([0, 1, 10**5, 10**6]))
        acts.append((draw(times), flow(src, dst, size, f"f{i}")))
    for _ in range(draw(st.integers(0, 3))):
        link = draw(st.integers(0, fabric.n_links - 1))
        share = draw(st.integers(1, 4))

        def change(engine: FluidEngine, link: int = link, share: int = share) -> None:
            engine.set_link(link, rate_bps=int(fabric.link_rate_bps[link]) * share // 4)

        acts.append((draw(times), change))
    both(
        acts, ack_every=draw(st.sampled_from([0, 1, 4])), qps=draw(st.sampled_from([1, 2])),
        fabric=fabric, sample=[draw(times), draw(times)],
    )  # fmt: skip


def test_the_errors_of_a_cancelled_flow_are_typed() -> None:
    fabric, env = leaf_spine(), FabricEnvironment()
    engine = FluidEngine(env, fabric, Routing(fabric), NetworkSettings())
    lost = Flow(id="lost", src=0, dst=1, size_bytes=10**9)

    def process() -> Iterator[Any]:
        done = engine.send(lost)
        yield env.timeout(5)
        engine.cancel(lost)
        with pytest.raises(RailweaveError, match="'lost' was cancelled"):
            yield done

    env.process(process())
    env.run()
    assert not engine.busy


@ACKS
def test_a_change_before_the_start_is_not_made_up_for_when_woken(ack_every: int) -> None:
    # The engine rests when the link changes: it takes note of it no later than at that instant.
    acts: list[tuple[int, Act]] = [
        (0, lambda engine: engine.set_link(0, rate_bps=25 * 10**9)), (1, collective([0, 1], 0)),
        *((at, flow(0, 1, 0, f"f{at}")) for at in (78, 308, 4178)),
    ]  # fmt: skip
    both(acts, ack_every=ack_every)
    size = [(1, collective([0, 1], 10**6)), (10**6, flow(0, 1, 10**5)), (10**7, flow(1, 0, 10**5))]
    both([acts[0], *size], ack_every=ack_every, sample=[10**6, 5 * 10**6, 10**8])


@pytest.mark.parametrize("ack_every", [0, 4])
def test_flows_the_other_way_on_the_same_cables(ack_every: int) -> None:
    # A broadcast goes one way; without acknowledgements those who come the other way neither
    # disturb it nor are lost when something else does.
    acts: list[tuple[int, Act]] = [(0, collective([0, 1, 2], 10**6, op="broadcast", repeat=3))]
    acts += [(10**6 + i, flow(2, 0, 10**6, f"back{i}")) for i in range(3)]
    acts += [(40 * 10**6 + i, flow(2, 0, 10**6, f"also{i}")) for i in range(2)]
    alone = run(acts[:1], memo=False, ack_every=ack_every).collectives[0][2]
    seen = both(acts, ack_every=ack_every, sample=[2 * 10**6, 50 * 10**6])
    assert (seen.collectives[0][2] == alone) == (ack_every == 0)
    acts.append((60 * 10**6, flow(0, 1, 10**6, "same way")))
    assert both(acts, ack_every=ack_every).collectives[0][2] > alone


@pytest.mark.parametrize("others", [33, 34, 35])
def test_a_disturbed_exchange_finds_room_beside_many_flows(others: int) -> None:
    # 30 flows of the exchange join the others' at an instant at which 64 slots are almost or just
    # taken: the arrays grow while it moves in.
    acts = [(0, collective(range(6), 6 * 10**7, op="all_to_all"))]
    acts += [(1, flow(6, 7, 10**7, f"o{i}")) for i in range(others)]
    seen = both([*acts, (10**9, flow(0, 1, 10**6))], sample=[10**8])
    assert seen.remembered
