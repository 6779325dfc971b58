# SPDX-License-Identifier: Apache-2.0
"""Looped schedules do to the picosecond what they do written out, run by run."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import railweave
from railweave.collectives import plan
from railweave.fabric.chain import chain, work
from railweave.fabric.loops import expand

if TYPE_CHECKING:
    from railweave.fabric.schedule import Schedule

RINGS = [
    ("all_reduce", "ring"),
    ("all_gather", "ring"),
    ("reduce_scatter", "ring"),
    ("all_reduce", "hierarchical"),
]


@cache
def bed(topology: str, ack_every: int) -> tuple[Any, Any, Any]:
    fabric = railweave.build_topology(railweave.load_topology(topology))
    return fabric, railweave.Routing(fabric), railweave.NetworkSettings(ack_every=ack_every)


def ringed(op: str, algorithm: str, ranks: int, size_bytes: int, **options: Any) -> Schedule:
    hosts = [rank // 8 for rank in range(ranks)]
    return plan(op, ranks=ranks, size_bytes=size_bytes, algorithm=algorithm, hosts=hosts, **options)


def outcome(
    schedule: Schedule, gpus: list[int], stage: tuple[Any, Any, Any], *, memo: bool = False
) -> tuple[Any, ...]:
    env = railweave.FabricEnvironment()
    engine = railweave.make_engine("fluid", env, *stage, memo=memo)
    env.run(until=engine.execute(schedule, gpus))
    record = engine.collectives()[0]
    counters = engine.counters()
    assert record.bound_ps <= record.end_ps
    return (
        replace(record, bound_ps=0), counters.wire_bytes.tolist(), counters.ack_bytes.tolist(),
    )  # fmt: skip


@pytest.mark.parametrize("ack_every", [0, 4])
@pytest.mark.parametrize(("op", "algorithm"), RINGS)
@pytest.mark.parametrize("size_bytes", [0, 5, 1000, 10_000_001, 2**27])
def test_looped_and_written_out_are_equal(op, algorithm, size_bytes, ack_every):
    stage = bed("h100-rail-8", ack_every)
    gpus = [int(gpu) for gpu in stage[0].gpus[:24]]
    mixed = [gpus[i] for i in np.random.default_rng(1).permutation(24)]
    for delay_ps in (0, 3_000_000):
        looped = ringed(op, algorithm, 24, size_bytes, step_delay_ps=delay_ps)
        for placed in (gpus, mixed):
            expected = outcome(expand(looped), placed, stage)
            assert outcome(looped, placed, stage) == expected
            assert outcome(looped, placed, stage, memo=True) == expected


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    st.sampled_from(RINGS), st.integers(2, 20), st.integers(0, 200_000), st.integers(0, 20_000_000)
)
def test_a_foreign_flow_in_the_middle_changes_both_alike(ring, ranks, size_bytes, late_ps):
    """The flow wakes a remembered span, which goes on from the middle of its runs."""
    fabric, routing, network = bed("h100-rail-8", 4)
    gpus = [int(gpu) for gpu in fabric.gpus[:ranks]]
    looped = ringed(*ring, ranks, size_bytes)
    seen = []
    for schedule, memo in ((looped, True), (looped, False), (expand(looped), False)):
        env = railweave.FabricEnvironment()
        engine = railweave.make_engine("fluid", env, fabric, routing, network, memo=memo)

        def late(env: Any = env, engine: Any = engine) -> Any:
            yield env.timeout(late_ps)
            yield engine.send(
                railweave.Flow(id="late", src=gpus[0], dst=gpus[-1], size_bytes=300_000)
            )

        env.process(late())
        env.run(until=engine.execute(schedule, gpus))
        env.run()
        seen.append((engine.collectives()[0].end_ps, env.now, engine.counters().wire_bytes.sum()))
    assert seen[0] == seen[1] == seen[2]


def test_counters_in_the_middle_of_a_run():
    stage = bed("h100-rail-8", 0)
    gpus = [int(gpu) for gpu in stage[0].gpus[:24]]
    looped = ringed("all_reduce", "hierarchical", 24, 24 * 2**20)
    end = outcome(looped, gpus, stage)[0].end_ps
    for part in (0.1, 0.5, 0.9):
        seen = []
        for schedule in (looped, expand(looped)):
            env = railweave.FabricEnvironment()
            engine = railweave.make_engine("fluid", env, *stage, memo=False)
            engine.execute(schedule, gpus)
            env.run(until=int(end * part))
            seen.append(engine.counters().wire_bytes)
        assert np.abs(seen[0] - seen[1]).max() <= 24  # bytes: shares of runs are rounded


def test_a_chain_of_loops_is_the_chain_written_out():
    stage = bed("h100-rail-8", 4)
    gpus = [int(gpu) for gpu in stage[0].gpus[:16]]
    parts = [
        ringed("all_reduce", "ring", 16, 1_000_003), work(16, 5_000_000),
        ringed("all_gather", "ring", 16, 77), ringed("all_reduce", "hierarchical", 16, 12_345),
    ]  # fmt: skip
    whole = chain(parts)
    assert whole.n_runs == sum(part.n_runs for part in parts) + 3
    assert outcome(whole, gpus, stage)[1:] == outcome(expand(whole), gpus, stage)[1:]
    assert (
        outcome(whole, gpus, stage)[0].end_ps
        == outcome(chain([expand(part) for part in parts]), gpus, stage)[0].end_ps
    )


def test_bytes_of_loops():
    for size_bytes in (0, 3, 1000, 2**20 + 7):
        for op, algorithm in RINGS:
            looped = ringed(op, algorithm, 24, size_bytes)
            whole = expand(looped)
            assert looped.total_bytes == whole.total_bytes
            assert looped.n_runs == len(whole)
            sent = looped.bytes_sent_per_rank()
            assert sent.tolist() == whole.bytes_sent_per_rank().tolist()
    assert expand(whole) is whole


def test_a_large_ring_is_a_row_per_rank():
    ring = plan("all_reduce", ranks=4096, size_bytes=2**30, algorithm="ring")
    assert len(ring) == 4096
    assert ring.n_runs == 2 * 4095 * 4096


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 6), min_size=2, max_size=8), st.integers(1, 100_000))
def test_bounds_hold_on_unequal_hosts(shares, size_bytes):
    """Runs that are released before their first one must keep their order."""
    hosts = [host for host, share in enumerate(shares) for _ in range(share)]
    looped = plan(
        "all_reduce", ranks=len(hosts), size_bytes=size_bytes, algorithm="hierarchical",
        hosts=hosts,
    )  # fmt: skip
    stage = bed("h100-rail-8", 4)
    gpus = [int(gpu) for gpu in stage[0].gpus[: len(hosts)]]
    engine: Any = railweave.make_engine("fluid", railweave.FabricEnvironment(), *stage)
    tight = engine.bound_ps(expand(looped), gpus)
    assert engine.bound_ps(looped, gpus) <= tight <= outcome(looped, gpus, stage)[0].end_ps
