# SPDX-License-Identifier: Apache-2.0
"""The fluid engine at its edges: nothing to carry, nobody to carry it, very much, all at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from railweave.collectives import plan
from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.errors import InputError, UnreachableError
from railweave.fabric.flow import Flow
from railweave.fabric.fluid import FluidEngine
from railweave.fabric.graph import DeviceKind, Fabric, FabricBuilder, LinkModel
from railweave.fabric.network import NetworkSettings
from railweave.fabric.routing import Routing
from railweave.fabric.schedule import ScheduleBuilder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MS = 10**9
RAW = NetworkSettings(
    frame_overhead_bytes=0, ack_every=0, switch_latency_ps=0, host_latency_ps=0, cut_through=True
)
HEADER = 128 * 80  # what the switch of a star reads before it forwards, at 100 Gb/s


def star(n: int, *, rate_bps: int = 100 * 10**9) -> Fabric:
    """Hosts 0 to n - 1 (devices 1 to n) on one switch; links 2i up and 2i + 1 down."""
    build = FabricBuilder("star")
    switch = build.add_device("s", DeviceKind.SWITCH, tier=1)
    for i in range(n):
        nic = build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}"))
        build.add_cable(nic, switch, rate_bps=rate_bps, delay_ps=0, model=LinkModel.ROCE_LOSSLESS)
    return build.finish()


def engine_on(fabric: Fabric, net: NetworkSettings = RAW, **options: Any) -> FluidEngine:
    return FluidEngine(FabricEnvironment(), fabric, Routing(fabric), net, **options)


def flow(src: int, dst: int, size: int, **more: Any) -> Flow:
    return Flow(id=f"{src}>{dst}", src=src + 1, dst=dst + 1, size_bytes=size, **more)


def later(engine: FluidEngine, *steps: tuple[int, Any]) -> None:
    def process(at: int, what: Any) -> Iterator[Any]:
        yield engine.env.timeout(at)
        what()

    for at, what in steps:
        engine.env.process(process(at, what))


# ------------------------------------------------------------------ links that carry nothing
def test_a_link_that_goes_down_parks_the_flow_and_keeps_what_is_left() -> None:
    engine = engine_on(star(3))
    engine.send(flow(0, 2, 10**9))  # 80 ms alone
    engine.send(flow(1, 2, 10**8))  # 16 ms at half the rate
    seen = []
    later(
        engine,
        (8 * MS, lambda: engine.set_link(0, up=False)),
        (30 * MS, lambda: seen.append((engine.waiting(), engine.counters().wire_bytes[0]))),
        (50 * MS, lambda: engine.set_link(0, up=True)),
    )
    engine.env.run()
    # 1>2 sends 50 MB in 8 ms, and the other half alone in 4 ms more.
    assert engine.records()[1].end_ps == 12 * MS + HEADER
    # 0>2 sent 50 MB of 1 GB by 8 ms; 950 MB take 76 ms from 50 ms on.
    assert engine.records()[0].end_ps == 126 * MS + HEADER
    ((waiting, carried),) = seen
    assert carried == 50_000_000
    assert waiting == [
        "flow '0>2' (h0/nic0 -> h2/nic0) waits for h0/nic0:0>s:0, which carries nothing"
    ]


def test_a_flow_that_never_goes_on_is_named_and_the_rest_ends() -> None:
    engine = engine_on(star(4))
    engine.send(flow(0, 3, 10**6))
    done = engine.send(flow(1, 2, 10**6))
    later(engine, (10, lambda: engine.set_link(7, rate_bps=0)))
    engine.env.run()
    assert done.triggered
    assert engine.busy
    assert engine.records()[0].end_ps == -1
    assert engine.records()[0].fct_ps == -1
    assert len(engine.waiting()) == 1
    assert "'0>3'" in engine.waiting()[0]
    assert "s:3>h3/nic0:0" in engine.waiting()[0]


def test_rate_and_state_of_a_link_are_kept_apart() -> None:
    engine = engine_on(star(2))
    engine.send(flow(0, 1, 10**9))
    later(
        engine,
        (8 * MS, lambda: engine.set_link(0, up=False)),  # 100 MB sent
        (10 * MS, lambda: engine.set_link(0, rate_bps=40 * 10**9)),  # still down
        (20 * MS, lambda: engine.set_link(0, up=True)),  # 900 MB at 40 Gb/s: 180 ms
        (40 * MS, lambda: engine.set_link(0, rate_bps=100 * 10**9)),  # 100 MB later: 800 MB left
    )
    engine.env.run()
    assert engine.records()[0].end_ps == 104 * MS + HEADER


def test_both_directions_change_apart() -> None:
    engine = engine_on(star(2))
    engine.send(flow(0, 1, 10**8))
    engine.send(flow(1, 0, 10**8))
    later(engine, (4 * MS, lambda: engine.set_link(0, rate_bps=50 * 10**9)))
    engine.env.run()
    assert [r.end_ps - HEADER for r in engine.records()] == [12 * MS, 8 * MS]


def test_what_a_link_cannot_become() -> None:
    engine = engine_on(star(2))
    with pytest.raises(InputError, match="faster than it was built"):
        engine.set_link(0, rate_bps=100 * 10**9 + 1)
    with pytest.raises(InputError, match="below 0"):
        engine.set_link(0, rate_bps=-1)
    for link in (-1, 4):
        with pytest.raises(InputError, match="there is no link"):
            engine.set_link(link, up=False)


def test_a_link_down_from_the_start_comes_up_and_counts() -> None:
    # The spine has two cables of three in service at first: they are no line of two for ever.
    build = FabricBuilder("three leaves")
    leaves = [build.add_device(f"leaf{i}", DeviceKind.SWITCH, tier=1) for i in range(3)]
    spine = build.add_device("spine", DeviceKind.SWITCH, tier=2)
    up = [
        build.add_cable(
            leaf, spine, rate_bps=(4 - i) * 10**11, delay_ps=0, model=LinkModel.ROCE_LOSSLESS
        )
        for i, leaf in enumerate(leaves)
    ]
    nics = []
    for i, leaf in enumerate(leaves):
        host = build.add_host(f"h{i}")
        nics.append(build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=host))
        build.add_cable(nics[-1], leaf, rate_bps=10**12, delay_ps=0, model=LinkModel.ROCE_LOSSLESS)
    built = build.finish()
    alive = built.link_up.copy()
    alive[[up[2], up[2] + 1]] = False
    fabric = built.with_links(up=alive)
    engine = engine_on(fabric)
    with pytest.raises(UnreachableError):
        engine.send(Flow(id="no route", src=nics[0], dst=nics[2], size_bytes=1))
    wire = up[-1] + 2
    engine.send(
        Flow(id="pinned", src=nics[0], dst=nics[2], size_bytes=10**9,
             path=(wire, up[0], up[2] + 1, wire + 5))
    )  # fmt: skip
    engine.send(Flow(id="other", src=nics[0], dst=nics[1], size_bytes=10**9))
    later(engine, (10 * MS, lambda: engine.set_link(up[2] + 1, up=True)))
    engine.env.run(until=5 * MS)
    assert len(engine.waiting()) == 1
    rates = []
    later(engine, (10 * MS, lambda: rates.extend(
        float(engine.state.slots.rate[slot]) for g in engine._jobs for slot in
        engine.state.slots_of(g))))  # fmt: skip
    engine.env.run()
    assert rates == [200e9, 200e9]  # 400 Gb/s from leaf 0, shared; 200 Gb/s into leaf 2


# ------------------------------------------------------------------ what cannot be sent
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"weight": 0.0}, "weight 0.0"),
        ({"weight": -1.0}, "weight -1.0"),
        ({"weight": float("nan")}, "weight nan"),
        ({"weight": float("inf")}, "weight inf"),
        ({"cap_bps": 0}, "cap 0"),
        ({"cap_bps": -5}, "cap -5"),
        ({"qps": 0}, "0 queue pairs"),
        ({"path": ()}, "crosses no link"),
        ({"path": (99,)}, "names link 99"),
        ({"path": (-1,)}, "names link -1"),
        ({"path": (0,)}, "ends at 's'"),
        ({"path": (0, 3)}, "ends at 'h1/nic0'"),
        ({"path": (2, 5)}, "breaks off before 'h1/nic0:0>s:1'"),
    ],
)
def test_flows_that_make_no_sense_are_refused(more: dict[str, Any], message: str) -> None:
    engine = engine_on(star(3))
    with pytest.raises(InputError, match=message):
        engine.send(flow(0, 2, 1000, **more))
    assert engine.records() == ()
    with pytest.raises(InputError, match="negative size"):
        engine.send(flow(0, 2, -1))


@pytest.mark.parametrize("end", [-3, 0, 77])
def test_flows_between_no_endpoints_are_refused(end: int) -> None:
    engine = engine_on(star(3))
    with pytest.raises(InputError):
        engine.send(Flow(id="f", src=1, dst=end, size_bytes=1))


def test_schedules_that_do_not_fit_are_refused() -> None:
    engine = engine_on(star(3))
    schedule = plan("all_reduce", ranks=3, size_bytes=3)
    with pytest.raises(InputError, match="3 ranks, 2 devices"):
        engine.execute(schedule, [1, 2])
    with pytest.raises(InputError, match="0 times"):
        engine.execute(schedule, [1, 2, 3], repeat=0)


# ------------------------------------------------------------------ little, much, many
def test_empty_messages_take_the_latency_of_their_headers() -> None:
    net = NetworkSettings(ack_every=0, switch_latency_ps=600_000, host_latency_ps=500_000)
    engine = engine_on(star(2), net)
    engine.send(flow(0, 1, 0))
    engine.env.run()
    # 98 B twice: on the wire and stored by the switch.
    assert engine.records()[0].end_ps == 2 * 98 * 80 + 600_000 + 2 * 500_000
    assert engine.counters().wire_bytes.tolist() == [98, 0, 0, 98]
    bare = engine_on(star(2))
    bare.send(flow(0, 1, 0))
    bare.env.run()
    assert bare.records()[0].end_ps == HEADER


def test_one_rank_needs_no_time() -> None:
    engine = engine_on(star(1))
    for op in ("all_reduce", "all_gather", "all_to_all"):
        done = engine.execute(plan(op, ranks=1, size_bytes=10**9), [1], repeat=7)
        assert done.triggered
    engine.env.run()
    assert [(c.start_ps, c.end_ps) for c in engine.collectives()] == [(0, 0)] * 3
    assert not engine.busy


@pytest.mark.parametrize("size", [2**40, 2**40 + 1, 10**13 + 7])
def test_huge_messages_are_exact(size: int) -> None:
    engine = engine_on(star(2))
    engine.send(flow(0, 1, size))
    engine.env.run()
    assert engine.records()[0].end_ps == size * 80 + HEADER
    assert engine.counters().wire_bytes.tolist() == [size, 0, 0, size]


def test_what_ends_beyond_the_clock_is_said_to_wait() -> None:
    engine = engine_on(star(2))
    engine.send(flow(0, 1, 10**10, cap_bps=1000))  # 925 days
    engine.env.run()
    assert engine.records()[0].end_ps == -1
    assert len(engine.waiting()) == 1


@pytest.mark.parametrize("n", [3, 7, 100])
def test_many_flows_end_in_the_same_picosecond(n: int) -> None:
    fabric = star(n + 1)
    engine = engine_on(fabric)
    ended = []
    for i in range(n):
        engine.send(flow(i, n, 10**6)).callbacks.append(
            lambda e: ended.append((engine.env.now, e.value.flow.id))
        )
    engine.env.run()
    end = n * 10**6 * 80 + HEADER
    # In the order of their start, at once.
    assert ended == [(end, f"{i}>{n}") for i in range(n)]
    assert engine.state.solves == (1, n)


def test_staggered_flows_on_one_link_conserve_time_and_bytes() -> None:
    # The link is busy from the first bit to the last: drift would show in the last end.
    engine = engine_on(star(2))
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 10**6, 500)
    for number, size in enumerate(sizes):
        at = int(rng.integers(0, 10**6)) if number else 0
        later(engine, (at, lambda s=int(size): engine.send(flow(0, 1, s))))
    engine.env.run()
    last = max(r.end_ps for r in engine.records())
    # A flow's end is rounded up, and its share of that picosecond is lost: H(500)/2 in the mean.
    assert last - HEADER - int(sizes.sum()) * 80 in range(7)
    assert engine.counters().wire_bytes[0] == sizes.sum()


def test_a_link_crossed_twice_counts_twice() -> None:
    # a - s1 = s2 - b with a walk s1 s2 s1 s2: the trunk carries it twice in one direction.
    build = FabricBuilder("there and back")
    s1, s2 = (build.add_device(f"s{i}", DeviceKind.SWITCH, tier=1) for i in (1, 2))
    ends = []
    for name, switch in (("a", s1), ("b", s2), ("c", s1), ("d", s2)):
        nic = build.add_device(f"{name}/nic0", DeviceKind.NIC, host=build.add_host(name))
        build.add_cable(nic, switch, rate_bps=10**12, delay_ps=0, model=LinkModel.ROCE_LOSSLESS)
        ends.append(nic)
    trunk = build.add_cable(s1, s2, rate_bps=90 * 10**9, delay_ps=0, model=LinkModel.ROCE_LOSSLESS)
    engine = engine_on(build.finish())
    a, b, c, d = ends
    engine.send(
        Flow(id="twice", src=a, dst=b, size_bytes=10**8, path=(0, trunk, trunk + 1, trunk, 3))
    )
    engine.send(Flow(id="once", src=c, dst=d, size_bytes=10**8))
    engine.env.run(until=1)
    assert engine.state.slots.rate[:2].tolist() == [30e9, 30e9]
    engine.env.run()
    assert engine.counters().wire_bytes[trunk] == 3 * 10**8
    assert engine.counters().wire_bytes[trunk + 1] == 10**8
    # Many of them at once, in lists of every length.
    engine = engine_on(engine.fabric)
    for i in range(23):
        engine.send(
            Flow(id=str(i), src=a, dst=b, size_bytes=(i + 1) * 10**6,
                 path=(0, *[trunk, trunk + 1] * (i % 5), trunk, 3))
        )  # fmt: skip
    engine.env.run()
    assert all(r.end_ps > 0 for r in engine.records())
    carried = sum((i + 1) * 10**6 * (i % 5 + 1) for i in range(23))
    assert engine.counters().wire_bytes[trunk] == carried
    # The trunk is full all the time.
    last = max(r.end_ps for r in engine.records())
    assert last == pytest.approx(carried * 8 * 10**12 / (90 * 10**9), rel=1e-3)


def test_weights_share_a_link_and_caps_leave_the_rest() -> None:
    engine = engine_on(star(5))
    sizes = [10**9] * 4
    for i, (weight, cap) in enumerate([(1.0, None), (2.0, None), (4.0, None), (8.0, 16 * 10**9)]):
        engine.send(flow(i, 4, sizes[i], weight=weight, cap_bps=cap))
    engine.env.run(until=1)
    assert engine.state.slots.rate[:4].tolist() == [12e9, 24e9, 48e9, 16e9]


# ------------------------------------------------------------------ schedules
def test_nodes_without_transfers_take_their_delays() -> None:
    build = ScheduleBuilder(n_ranks=2)
    busy = build.work(0, 700)
    first = build.transfer(0, 1, 10**6, after=[busy], delay_ps=300)
    inside = build.transfer(1, 1, 10**9, after=[first])  # a rank to itself: nothing to cross
    build.transfer(1, 0, 0, after=[inside], delay_ps=50)
    engine = engine_on(star(2))
    engine.execute(build.finish(), [1, 2], tag="mixed", repeat=2)
    engine.env.run()
    once = 700 + 300 + 10**6 * 80 + HEADER + 50 + HEADER
    assert engine.collectives()[0].end_ps == 2 * once


def test_a_schedule_on_a_link_that_died_names_who_waits_for_whom() -> None:
    engine = engine_on(star(2))
    engine.execute(plan("broadcast", ranks=2, size_bytes=10**6), [1, 2], tag="params")
    later(engine, (10, lambda: engine.set_link(0, up=False)))
    engine.env.run()
    (line,) = engine.waiting()
    assert "'params'" in line
    assert "rank 1 waits for rank 0" in line


# ------------------------------------------------------------------ without a compiler or a cache
_SCRIPT = """
import json, sys
from railweave.collectives import plan
from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.flow import Flow
from railweave.fabric.fluid import FluidEngine
from railweave.fabric.graph import DeviceKind, FabricBuilder, LinkModel
from railweave.fabric.network import NetworkSettings
from railweave.fabric.routing import Routing

build = FabricBuilder("star")
switch = build.add_device("s", DeviceKind.SWITCH, tier=1)
for i in range(4):
    nic = build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}"))
    build.add_cable(nic, switch, rate_bps=97 * 10**9, delay_ps=12_345,
                    model=LinkModel.ROCE_LOSSLESS)
fabric = build.finish()
env = FabricEnvironment()
engine = FluidEngine(env, fabric, Routing(fabric), NetworkSettings(ack_every=1), qps=2)
engine.execute(plan("all_reduce", ranks=4, size_bytes=333_333), [1, 2, 3, 4], repeat=2)
def foreign():
    for i in range(5):
        yield env.timeout(7_654_321)
        engine.send(Flow(id=str(i), src=1 + i % 4, dst=1 + (i + 1) % 4, size_bytes=54_321,
                         weight=0.7))
env.process(foreign())
env.run()
counted = engine.counters()
json.dump([[r.end_ps for r in engine.records()], [c.end_ps for c in engine.collectives()],
           counted.wire_bytes.tolist(), counted.ack_bytes.tolist(), engine.state.solves],
          sys.stdout)
"""


def _result_of(**more: str) -> Any:
    env = {**os.environ, **more}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _SCRIPT], capture_output=True, text=True, env=env,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_results_are_the_same_uncompiled_and_in_another_process() -> None:
    compiled = _result_of(PYTHONHASHSEED="1")
    assert _result_of(NUMBA_DISABLE_JIT="1", PYTHONHASHSEED="2") == compiled
    assert all(end > 0 for end in compiled[0] + compiled[1])
    assert sum(compiled[3]) > 0


def test_a_cache_that_cannot_be_written_only_costs_time(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    assert _result_of(NUMBA_CACHE_DIR=str(blocked / "cache")) == _result_of()


def test_the_clock_never_goes_back_to_what_was_cancelled() -> None:
    # Cancelled in the instant of its start, with nothing else under way: its event stays behind.
    engine = engine_on(star(2))
    gone = flow(0, 1, 10**6)
    engine.send(gone).defused = True
    engine.cancel(gone)
    engine.env.run(until=100)
    engine.set_link(0, rate_bps=50 * 10**9)
    assert engine.state.now_ps == 100
    assert engine.state.next_ps == 100
    assert engine.state.pending() == []  # or it would be taken after 100
    engine.env.run(until=200)
    engine.send(flow(1, 0, 10**6))
    engine.env.run(until=300)
    assert engine.state.now_ps == 200
    engine.env.run()
    assert engine.records()[1].end_ps == 200 + 10**6 * 80 + HEADER
