# SPDX-License-Identifier: Apache-2.0
"""Sizes, numbers of transfers and closed forms of the schedules."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.collectives import (
    algorithms,
    bus_bandwidth_Bps,
    busbw_factor,
    closed_form_ps,
)
from railweave.collectives import plan as planned
from railweave.collectives.algorithm import Links
from railweave.collectives.operations import OPERATIONS
from railweave.collectives.structure import split_bytes
from railweave.fabric.errors import InputError
from railweave.fabric.loops import expand

if TYPE_CHECKING:
    from railweave.fabric.schedule import Schedule


def plan(*args: Any, **options: Any) -> Schedule:
    """A plan with a node for each transfer."""
    return expand(planned(*args, **options))


def longest_path_ps(
    schedule: Schedule, *, rate_bps: int, local_rate_bps: int = 0, hosts: list[int] | None = None
) -> int:
    """Time of a schedule whose every transfer has a link to itself; rates divide 8e12."""
    ready = np.zeros(len(schedule), np.int64)
    left = schedule.n_deps.copy()
    order = list(np.flatnonzero(left == 0))
    end = 0
    for node in order:
        local = hosts is not None and hosts[schedule.src[node]] == hosts[schedule.dst[node]]
        per_byte = 8 * 10**12 // (local_rate_bps if local else rate_bps)
        done = int(ready[node] + schedule.delay_ps[node] + schedule.size_bytes[node] * per_byte)
        end = max(end, done)
        for after in schedule.succ[schedule.succ_ptr[node] : schedule.succ_ptr[node + 1]]:
            ready[after] = max(ready[after], done)
            left[after] -= 1
            if left[after] == 0:
                order.append(after)
    assert len(order) == len(schedule)
    return end


def test_ring_all_reduce_is_two_turns_of_the_ring() -> None:
    schedule = plan("all_reduce", ranks=3, size_bytes=30, step_delay_ps=7)
    assert schedule.src.tolist() == [0, 1, 2] * 4
    assert schedule.dst.tolist() == [1, 2, 0] * 4
    assert schedule.chunk is not None
    assert schedule.chunk.tolist() == [2, 0, 1, 1, 2, 0, 0, 1, 2, 2, 0, 1]
    assert schedule.n_deps.tolist() == [0] * 3 + [1] * 9
    assert schedule.succ.tolist() == [4, 5, 3, 7, 8, 6, 10, 11, 9]
    assert schedule.succ_ptr.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9]
    assert schedule.size_bytes.tolist() == [10] * 12
    assert schedule.delay_ps.tolist() == [7] * 12


def test_number_of_transfers() -> None:
    def count(op: str, **shape: object) -> int:
        return len(plan(op, size_bytes=1024, **shape))

    assert count("all_reduce", ranks=64) == 2 * 63 * 64
    assert count("all_gather", ranks=64) == count("reduce_scatter", ranks=64) == 63 * 64
    assert count("all_to_all", ranks=64) == 63 * 64
    assert count("broadcast", ranks=8, chunks=4) == 7 * 4
    assert count("sendrecv", ranks=8) == 8
    assert count("send", ranks=2) == 1
    hosts = [rank // 8 for rank in range(32)]
    # Two turns of 8 slices within each of 4 hosts, and 8 rings of 4 over the hosts.
    assert count("all_reduce", ranks=32, hosts=hosts) == 4 * 2 * 7 * 8 + 8 * 2 * 3 * 4


def test_a_ring_over_1024_ranks() -> None:
    schedule = plan("all_reduce", ranks=1024, size_bytes=2**30)
    assert len(schedule) == 2_095_104
    assert set(np.unique(schedule.size_bytes)) == {2**20}
    assert schedule.bytes_sent_per_rank().tolist() == [2 * 1023 * 2**20] * 1024
    dtypes = {
        name: getattr(schedule, name).dtype
        for name in ("kind", "src", "dst", "n_deps", "succ_ptr", "succ", "chunk", "phase")
    }
    assert set(dtypes.values()) == {np.dtype(np.int32)}
    assert schedule.size_bytes.dtype == schedule.delay_ps.dtype == np.int64


@given(st.integers(0, 10**15), st.integers(1, 300))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_split_is_even_and_whole(size: int, parts: int) -> None:
    sizes = split_bytes(size, parts)
    assert sizes.sum() == size
    assert sizes.max() == -(-size // parts)
    assert sizes.max() - sizes.min() <= 1
    assert (np.diff(sizes) <= 0).all()


@pytest.mark.parametrize("size", [0, 3, 100, 12_345_678_901])
def test_bytes_sent_when_the_size_does_not_divide(size: int) -> None:
    n = 7
    chunks = split_bytes(size, n)
    sent = plan("reduce_scatter", ranks=n, size_bytes=size).bytes_sent_per_rank()
    assert sent.tolist() == [size - chunks[r] for r in range(n)]
    sent = plan("all_gather", ranks=n, size_bytes=size).bytes_sent_per_rank()
    assert sent.tolist() == [size - chunks[(r + 1) % n] for r in range(n)]
    sent = plan("all_to_all", ranks=n, size_bytes=size).bytes_sent_per_rank()
    assert sent.tolist() == [size - chunks[r] for r in range(n)]
    assert plan("all_reduce", ranks=n, size_bytes=size).total_bytes == 2 * (n - 1) * size
    assert plan("broadcast", ranks=n, size_bytes=size).total_bytes == (n - 1) * size


def test_less_bytes_than_ranks_leaves_empty_transfers() -> None:
    schedule = plan("all_gather", ranks=5, size_bytes=2)
    assert len(schedule) == 20
    assert sorted(schedule.size_bytes.tolist()) == [0] * 12 + [1] * 8


def test_spans_split_like_single_chunks() -> None:
    hosts = [0, 0, 1, 1, 2, 2]
    schedule = plan("all_reduce", ranks=6, size_bytes=604, hosts=hosts)
    assert schedule.algorithm == "hierarchical"
    chunks = split_bytes(604, 6)
    assert schedule.chunk is not None
    assert schedule.span is not None
    for first, span, size in zip(schedule.chunk, schedule.span, schedule.size_bytes, strict=True):
        assert size == chunks[first : first + span].sum()
    assert set(schedule.span.tolist()) == {1, 3}


# Closed forms against the longest path of the graph they describe, to the picosecond.

ALPHA, RATE = 3_000, 400 * 10**9  # 20 ps a byte
LINKS = Links(alpha_ps=ALPHA, rate_bps=RATE, local_alpha_ps=ALPHA, local_rate_bps=RATE)
# Those whose transfers share links are executed, in test_collectives_closed_forms.
SHARING = ("collnet", "direct", "host_tree", "nvls", "pat", "pxn", "tree")
EXACT = [(op, name) for op in OPERATIONS for name in algorithms(op) if name not in SHARING]


def options_of(name: str) -> dict[str, int]:
    """Messages on one connection do not share it where only one is under way at a time."""
    return {"slots": 1} if name == "chain" else {}


@pytest.mark.parametrize(("op", "name"), EXACT)
@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 16])
def test_closed_form_is_the_longest_path(op: str, name: str, ranks: int) -> None:
    size = 16 * 9 * 5 * 1024
    options = {"links": LINKS, **options_of(name)}
    schedule = plan(
        op, ranks=ranks, size_bytes=size, algorithm=name, step_delay_ps=ALPHA, **options
    )
    found = longest_path_ps(schedule, rate_bps=RATE)
    took = closed_form_ps(
        op, name, ranks=ranks, size_bytes=size, alpha_ps=ALPHA, rate_bps=RATE, **options_of(name)
    )
    steps = int(schedule.phase.max()) + 1 if len(schedule) and schedule.phase is not None else 0
    uneven = size % schedule.n_chunks > 0 if schedule.n_chunks else False
    assert took <= found <= took + uneven * (steps * 20 + 1)


@pytest.mark.parametrize(("op", "name"), EXACT)
@given(ranks=st.integers(1, 9), size=st.integers(0, 10_000))
@settings(derandomize=True, deadline=None, max_examples=25)
def test_closed_form_is_a_lower_bound(op: str, name: str, ranks: int, size: int) -> None:
    options = {"links": LINKS, **options_of(name)}
    schedule = plan(
        op, ranks=ranks, size_bytes=size, algorithm=name, step_delay_ps=ALPHA, **options
    )
    found = longest_path_ps(schedule, rate_bps=RATE)
    bound = closed_form_ps(
        op, name, ranks=ranks, size_bytes=size, alpha_ps=ALPHA, rate_bps=RATE, **options_of(name)
    )
    steps = int(schedule.phase.max()) + 1 if len(schedule) and schedule.phase is not None else 0
    assert bound <= found <= bound + steps * 20 + 1  # at most one byte more in each step


def test_broadcast_chunks_follow_each_other() -> None:
    # 7 hops and 16 chunks: (7 + 16 - 1) x (3 ns + 1,024 B x 20 ps).
    schedule = plan(
        "broadcast", ranks=8, size_bytes=16 * 1024, chunks=16, slots=1, step_delay_ps=ALPHA
    )
    assert longest_path_ps(schedule, rate_bps=RATE) == 22 * (3_000 + 20_480)
    assert plan("broadcast", ranks=2, size_bytes=3 * 2**19 + 1).n_chunks == 4
    assert plan("broadcast", ranks=2, size_bytes=2**40).n_chunks == 128


@pytest.mark.parametrize("hosts", [2, 3, 4])
@pytest.mark.parametrize("share", [1, 2, 8])
def test_hierarchical_closed_form(hosts: int, share: int) -> None:
    size, of = 24 * 4096, [host for host in range(hosts) for _ in range(share)]
    schedule = plan(
        "all_reduce",
        ranks=hosts * share,
        size_bytes=size,
        algorithm="hierarchical",
        hosts=of,
        step_delay_ps=ALPHA,
    )
    fast = 1600 * 10**9
    found = longest_path_ps(schedule, rate_bps=RATE, local_rate_bps=fast, hosts=of)
    slice_bytes = size // share
    by_hand = 2 * (share - 1) * (ALPHA + slice_bytes * 5)
    by_hand += 2 * (hosts - 1) * (ALPHA + slice_bytes // hosts * 20)
    assert found == by_hand
    assert found == closed_form_ps(
        "all_reduce",
        "hierarchical",
        ranks=hosts * share,
        size_bytes=size,
        alpha_ps=ALPHA,
        rate_bps=RATE,
        hosts=of,
        local_rate_bps=fast,
    )


@pytest.mark.parametrize("shares", [(8, 6), (3, 5, 4), (1, 4)])
def test_hierarchical_closed_form_bounds_unequal_hosts(shares: tuple[int, ...]) -> None:
    of = [host for host, share in enumerate(shares) for _ in range(share)]
    shape = {"ranks": sum(shares), "size_bytes": 6 * 5 * 4096, "hosts": of}
    schedule = plan("all_reduce", algorithm="hierarchical", step_delay_ps=ALPHA, **shape)
    found = longest_path_ps(schedule, rate_bps=RATE, local_rate_bps=RATE, hosts=of)
    bound = closed_form_ps("all_reduce", "hierarchical", alpha_ps=ALPHA, rate_bps=RATE, **shape)
    assert bound < found


def test_direct_all_to_all_closed_form() -> None:
    # One start-up, then 7/8 of the buffer through the rank's own link.
    assert (
        closed_form_ps("alltoall", ranks=8, size_bytes=8000, alpha_ps=ALPHA, rate_bps=RATE)
        == ALPHA + 7000 * 20
    )


def test_published_ring_figures() -> None:
    """8 ranks at 370.8 GB/s and 3.4 us: 47.6 us + 5067.552 us; 64 ranks at 49.0186 GB/s."""
    took = closed_form_ps(
        "all_reduce",
        "ring",
        ranks=8,
        size_bytes=2**30,
        alpha_ps=3_400_000,
        rate_bps=8 * 370_800_000_000,
    )
    exact = 14 * Fraction(3_400_000) + Fraction(7, 4) * 2**30 * 10**12 / 370_800_000_000
    assert took == int(exact)
    assert round(took / 1e6, 2) == 5115.15
    bus = bus_bandwidth_Bps("all_reduce", ranks=8, size_bytes=2**30, time_ps=took)
    assert round(bus / 1e9, 2) == 367.35
    took = closed_form_ps(
        "all_reduce",
        "ring",
        ranks=64,
        size_bytes=2**20,
        alpha_ps=5_000_000,
        rate_bps=8 * 49_018_600_000,
    )
    assert round(took / 1e6, 2) == 672.11


def test_bus_factors() -> None:
    factors = {
        "all_reduce": 1.75,
        "all_gather": 0.875,
        "reduce_scatter": 0.875,
        "all_to_all": 0.875,
        "broadcast": 1.0,
        "reduce": 1.0,
        "gather": 0.875,
        "scatter": 0.875,
        "send": 1.0,
        "recv": 1.0,
        "barrier": 1.0,
    }
    assert {op: busbw_factor(op, 8) for op in OPERATIONS} == factors
    assert busbw_factor("all_reduce", 1) == 0.0
    with pytest.raises(InputError, match="0 ranks"):
        busbw_factor("all_reduce", 0)
    assert bus_bandwidth_Bps("all_reduce", ranks=8, size_bytes=100, time_ps=0) == 0.0
