# SPDX-License-Identifier: Apache-2.0
"""The engine under SimPy's clock: equal instants, stopping and going on, one solve an instant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from railweave.collectives import plan
from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.engines import make_engine
from railweave.fabric.flow import Flow
from railweave.fabric.graph import DeviceKind, FabricBuilder, LinkModel
from railweave.fabric.network import NetworkSettings
from railweave.fabric.routing import Routing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from railweave.fabric.jobs import JobEngine

RAW = NetworkSettings(
    frame_overhead_bytes=0, ack_every=0, switch_latency_ps=0, host_latency_ps=0, cut_through=True
)
HEADER = 128 * 80
BOTH = pytest.mark.parametrize("kind", ["fluid", "analytic"])


def star(n: int, kind: str = "fluid", **options: Any) -> JobEngine:
    build = FabricBuilder("star")
    switch = build.add_device("s", DeviceKind.SWITCH, tier=1)
    for i in range(n):
        nic = build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}"))
        build.add_cable(
            nic, switch, rate_bps=100 * 10**9, delay_ps=0, model=LinkModel.ROCE_LOSSLESS
        )
    fabric = build.finish()
    return make_engine(kind, FabricEnvironment(), fabric, Routing(fabric), RAW, **options)


def flow(src: int, dst: int, size: int) -> Flow:
    return Flow(id=f"{src}>{dst}", src=src + 1, dst=dst + 1, size_bytes=size)


@BOTH
def test_completions_and_timeouts_interleave_at_equal_instants(kind: str) -> None:
    engine = star(4, kind)
    env = engine.env
    log: list[tuple[int, str]] = []
    end = 10**6 * 80 + HEADER

    def waits(name: str, src: int) -> Iterator[Any]:
        record = yield engine.send(flow(src, 3 - src, 10**6))
        assert env.now == record.end_ps == end
        log.append((env.now, name))
        yield env.timeout(0)
        log.append((env.now, f"{name} after"))

    def ticks() -> Iterator[Any]:
        for at in (end - 1, end, end + 1):
            yield env.timeout(at - env.now)
            log.append((env.now, "tick"))

    env.process(ticks())
    env.process(waits("a", 0))
    env.process(waits("b", 1))
    env.run()
    assert [entry for entry in log if entry[0] != end] == [(end - 1, "tick"), (end + 1, "tick")]
    at_end = [name for at, name in log if at == end]
    assert sorted(at_end) == ["a", "a after", "b", "b after", "tick"]
    assert at_end.index("a") < at_end.index("b")  # in the order of their start
    assert env.now == end + 1
    assert type(env.now) is int


@BOTH
def test_run_until_stops_and_goes_on(kind: str) -> None:
    engine = star(2, kind)
    env = engine.env
    done = engine.send(flow(0, 1, 10**6))
    end = 10**6 * 80 + HEADER
    for until in (1, 2, end // 2, end - 1):
        env.run(until=until)
        assert env.now == until
        assert not done.triggered
        assert engine.busy
    env.run(until=end + 5)
    assert env.now == end + 5
    assert done.processed
    assert done.value.end_ps == end
    assert not engine.busy
    # A later start counts from the clock, not from the engine's last event.
    env.run(until=end + 1_000)
    again = engine.send(flow(1, 0, 10**6))
    assert env.run(until=again).end_ps == end + 1_000 + end
    assert env.now == 2 * end + 1_000


@BOTH
def test_run_until_the_very_instant_of_a_completion(kind: str) -> None:
    engine = star(2, kind)
    end = 10**6 * 80 + HEADER
    seen = []
    done = engine.send(flow(0, 1, 10**6))
    done.callbacks.append(lambda event: seen.append(engine.env.now))
    engine.env.run(until=end)
    assert engine.env.now == end
    engine.env.run(until=end + 1)
    assert seen == [end]


def test_what_starts_in_one_instant_shares_one_solve() -> None:
    engine = star(9)
    env = engine.env

    def sender(src: int) -> Iterator[Any]:
        yield env.timeout(1_000)
        yield env.timeout(0)
        yield engine.send(flow(src, 8, 10**6))

    for src in range(8):
        env.process(sender(src))
    env.run(until=1_001)
    assert engine.state.solves == (1, 8)  # type: ignore[attr-defined]
    assert {float(r) for r in engine.state.slots.rate[:8]} == {12.5e9}  # type: ignore[attr-defined]
    env.run()
    assert {r.end_ps for r in engine.records()} == {1_000 + 8 * 10**6 * 80 + HEADER}
    assert engine.state.solves == (1, 8)  # type: ignore[attr-defined]


def test_an_end_and_a_start_at_one_instant_leave_no_gap() -> None:
    # 0>2 ends its serialisation where 1>2 starts: neither slows the other.
    engine = star(3)
    env = engine.env

    def second() -> Iterator[Any]:
        yield env.timeout(10**6 * 80)
        yield engine.send(flow(1, 2, 10**6))

    engine.send(flow(0, 2, 10**6))
    env.process(second())
    env.run()
    ends = [r.end_ps for r in engine.records()]
    assert ends == [10**6 * 80 + HEADER, 2 * 10**6 * 80 + HEADER]


@pytest.mark.parametrize("memo", [True, False])
def test_a_chain_of_callbacks_keeps_exact_time(memo: bool) -> None:
    engine = star(4, memo=memo)
    env = engine.env
    schedule = plan("all_reduce", ranks=4, size_bytes=4 * 10**5)
    step = 10**5 * 80 + HEADER
    log = []

    def loop() -> Iterator[Any]:
        for _ in range(5):
            done = yield engine.execute(schedule, [1, 2, 3, 4])
            log.append((done.start_ps, done.end_ps))
            assert env.now == done.end_ps
            yield env.timeout(7)

    env.process(loop())
    env.run()
    assert log == [(i * (6 * step + 7), i * (6 * step + 7) + 6 * step) for i in range(5)]


@BOTH
def test_waiting_for_any_and_for_all(kind: str) -> None:
    engine = star(4, kind)
    env = engine.env
    short, long = engine.send(flow(0, 1, 10**5)), engine.send(flow(2, 3, 10**6))
    seen = []

    def process() -> Iterator[Any]:
        yield env.any_of([short, long])
        seen.append(env.now)
        yield env.all_of([short, long])
        seen.append(env.now)

    env.process(process())
    env.run()
    assert seen == [10**5 * 80 + HEADER, 10**6 * 80 + HEADER]


@BOTH
def test_an_engine_that_rests_lets_time_pass(kind: str) -> None:
    engine = star(2, kind)
    engine.env.run(until=12_345)
    assert engine.env.now == 12_345
    assert engine.counters().wire_bytes.sum() == 0
    engine.env.run()
    assert engine.env.now == 12_345


def test_a_run_that_cannot_end_stops_and_may_be_waited_for() -> None:
    engine = star(2)
    done = engine.send(flow(0, 1, 10**6))
    engine.set_link(0, up=False)
    with pytest.raises(RuntimeError):  # SimPy: no scheduled events left
        engine.env.run(until=done)
    assert engine.busy
    engine.set_link(0, up=True)
    assert engine.env.run(until=done).end_ps >= 10**6 * 80


def test_processes_in_other_orders_give_the_same_ends() -> None:
    def ends(order: list[int]) -> dict[str, int]:
        engine = star(5)

        def sender(src: int) -> Iterator[Any]:
            yield engine.env.timeout(100 * (src % 2))
            yield engine.send(flow(src, 4, 10**5 * (src + 1)))

        for src in order:
            engine.env.process(sender(src))
        engine.env.run()
        return {r.flow.id: r.end_ps for r in engine.records()}

    assert ends([0, 1, 2, 3]) == ends([3, 2, 1, 0]) == ends([1, 3, 0, 2])
