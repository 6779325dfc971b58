# SPDX-License-Identifier: Apache-2.0
"""Buckets, bounds and comparisons of an emulation: arithmetic that needs no network."""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railweave.collectives import plan
from railweave.fabric.loops import expand
from railweave.tools.emulate.buckets import Buckets, longest_chain
from railweave.tools.emulate.compare import Comparison, LinkRow, Row, percentile
from railweave.tools.emulate.headroom import CpuTimes, Headroom
from railweave.tools.emulate.layout import Options, lay_out, load_for_emulation
from railweave.tools.emulate.loop import Loop
from railweave.tools.emulate.watch import Watch, Worked

if TYPE_CHECKING:
    from collections.abc import Iterator


def buckets(*sizes: float, rate_bps: int = 8_000) -> Buckets:
    return Buckets(np.array(sizes), np.full(len(sizes), rate_bps, np.int64))


def test_one_transfer_takes_the_smallest_bucket_of_its_path() -> None:
    full = buckets(100.0, 60.0, 80.0)
    assert full.take([[0, 1]], [1e9]) == [60.0]
    assert full.take([[0]], [1e9]) == [40.0]
    assert full.take([[1, 2]], [1e9]) == [0.0]


def test_those_that_begin_together_share_and_leave_what_they_cannot_use() -> None:
    assert buckets(90.0).take([[0], [0], [0]], [1e9, 10.0, 1e9]) == [40.0, 10.0, 40.0]
    # the first is held up elsewhere: the second has the rest
    assert buckets(90.0, 20.0).take([[0, 1], [0]], [1e9, 1e9]) == [20.0, 70.0]


def test_tokens_come_back_at_the_rate_that_is_not_used() -> None:
    one = buckets(100.0, rate_bps=8_000)  # 1000 B/s
    one.take([[0]], [1e9])
    one.advance(50 * 10**9, np.array([20]))  # in 50 ms come 50 bytes, 20 are used
    assert one.take([[0]], [1e9]) == [30.0]
    one.advance(10**12, np.array([20]))
    assert one.take([[0]], [1e9]) == [100.0]


@given(
    st.lists(st.floats(0, 1e5), min_size=1, max_size=5),
    st.lists(
        st.tuples(st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True),
                  st.floats(0, 1e6)),
        max_size=6,
    ),
)  # fmt: skip
def test_no_bucket_gives_more_than_it_has(
    sizes: list[float], transfers: list[tuple[list[int], float]]
) -> None:
    paths = [[link % len(sizes) for link in path] for path, _ in transfers]
    paths = [sorted(set(path)) for path in paths]
    wanted = [most for _, most in transfers]
    given_bytes = buckets(*sizes).take(paths, wanted)
    for link, size in enumerate(sizes):
        used = sum(got for got, path in zip(given_bytes, paths, strict=True) if link in path)
        assert used <= size + 1e-3
    for got, most in zip(given_bytes, wanted, strict=True):
        assert 0 <= got <= most + 1e-3


def test_the_longest_chain_of_a_ring_is_its_steps() -> None:
    assert longest_chain(expand(plan("all_reduce", ranks=8, size_bytes=8192))) == 14
    assert longest_chain(plan("all_to_all", ranks=4, size_bytes=4096, algorithm="direct")) == 1


def row(predicted_ps: int, measured_ps: int) -> Row:
    return Row(name="f", what="", size_bytes=1, predicted_ps=predicted_ps, measured_ps=measured_ps)


def test_errors_are_measured_over_predicted() -> None:
    assert row(100, 103).error == pytest.approx(0.03)
    assert row(100, 98).error == pytest.approx(-0.02)
    compared = Comparison(
        flows=(row(100, 103), row(100, 98)),
        collectives=(),
        makespan=row(100, 101),
        links=(LinkRow(name="l", expected_bytes=1000, counted_bytes=1009),),
    )
    assert compared.worst() == pytest.approx(0.03)
    assert compared.paths_confirmed()
    summary = compared.to_dict()["flow_error"]
    assert summary == {"median": 0.02, "p90": 0.03, "max": 0.03}


def test_a_counter_that_is_off_by_more_than_a_percent_denies_the_paths() -> None:
    strange = LinkRow(name="l", expected_bytes=1000, counted_bytes=1011)
    compared = Comparison(flows=(), collectives=(), makespan=row(1, 1), links=(strange,))
    assert not compared.paths_confirmed()


def test_data_where_none_was_foretold_denies_the_paths() -> None:
    strange = LinkRow(name="l", expected_bytes=0, counted_bytes=1514)
    idle = LinkRow(name="m", expected_bytes=0, counted_bytes=0)
    assert (strange.error, idle.error) == (1.0, 0.0)


def test_percentiles_by_nearest_rank() -> None:
    values = [float(k) for k in range(1, 11)]
    assert [percentile(values, p) for p in (0, 10, 50, 90, 91, 100)] == [1, 1, 5, 9, 10, 10]


def test_headroom_is_the_busy_share_of_all_cpus() -> None:
    before, after = CpuTimes(total=1000, idle=800), CpuTimes(total=1200, idle=920)
    assert Headroom.between(before, after).busy == pytest.approx(0.4)
    assert Headroom.between(before, after).valid
    assert not Headroom(busy=0.41).valid


def test_one_full_cpu_of_many_is_one_too_many() -> None:
    assert Headroom(busy=0.4, moving=0.65, packets=0.65).why_not is None
    everything = Headroom(busy=0.41, moving=0.65, packets=0.65)
    assert everything.why_not == "the CPUs were 41 % busy, above 40 %"
    moving = Headroom(busy=0.2, moving=0.66, packets=0.1)
    assert moving.why_not == "the process that moves the bytes needed 66 % of a CPU, above 65 %"
    packets = Headroom(busy=0.2, moving=0.1, packets=0.8)
    assert packets.why_not == "packets took 80 % of a CPU, above 65 %"


def test_the_share_of_a_window_is_that_of_the_cpu_busiest_with_packets() -> None:
    before = Worked(at=0, moving=1_000, packets=(50, 0))
    after = Worked(at=1_000, moving=1_600, packets=(150, 250))
    assert after.shares_since(before) == (0.6, 0.25)


def test_the_worst_window_is_told() -> None:
    loop = Loop()
    watch = Watch(loop)
    watch.begin()

    def work() -> None:
        until = time.process_time() + 0.3
        while time.process_time() < until:
            pass

    loop.at(time.monotonic_ns(), work)
    loop.at(time.monotonic_ns() + 700_000_000, loop.stop)
    loop.run()
    told = watch.end()
    assert told is not None
    assert 0.9 < told["moving"] <= 1.01
    assert 0.0 <= told["packets"] <= 1.1  # counted in ticks of 10 ms
    assert watch.end() is None


@pytest.fixture
def judged_cases(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parent.parent / "benchmarks"))
    yield importlib.import_module("emulation_cases")
    sys.modules.pop("emulation_cases", None)


@pytest.mark.parametrize(("fabric", "traffic"), [("rails", "rail_cases"), ("leaves", "leaf_cases")])
def test_what_the_emulation_is_judged_by_is_a_scenario(
    judged_cases: Any, fabric: str, traffic: str
) -> None:
    topology, cases = getattr(judged_cases, fabric)(), getattr(judged_cases, traffic)()
    assert len(cases) == 9
    assert len(cases["Poisson"]) == 40
    for flows in cases.values():
        workload = {"kind": "flows", "flows": flows}
        loaded = load_for_emulation({"schema": 1, "topology": topology, "workload": workload})
        plan, routing, changes = lay_out(loaded, Options())
        assert plan.slowest_bps == 200_000_000
        assert changes == ()
        assert routing.policy == "ecmp"
        for one in flows:
            assert one["src"].split("/")[0] != one["dst"].split("/")[0]
