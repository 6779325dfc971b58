# SPDX-License-Identifier: Apache-2.0
"""Every schedule computes its operation, and `verify` catches those that do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from railweave.collectives import algorithms, verify
from railweave.collectives import plan as planned
from railweave.collectives.operations import OPERATIONS
from railweave.fabric.errors import CheckError, RailweaveError
from railweave.fabric.loops import expand
from railweave.fabric.schedule import Schedule, ScheduleBuilder, dependency_csr


def plan(*args: Any, **options: Any) -> Schedule:
    """A plan with a node for each transfer."""
    return expand(planned(*args, **options))


RANKS = [*range(1, 18), 24, 32, 64, 72]
SHARES = [(8, 8), (8, 6), (6, 8), (3, 5, 4), (8,), (1,), (1, 1, 1), (1, 3), (2, 1, 2), (4,) * 4]
HOSTS = [
    *([h for h, share in enumerate(shares) for _ in range(share)] for shares in SHARES),
    [4, 9, 4, 9, 9, 4, 7, 7, 4],
]
EVERY = [(op, name) for op in OPERATIONS for name in algorithms(op)]


def hosts_of(shares: tuple[int, ...]) -> list[int]:
    return [host for host, share in enumerate(shares) for _ in range(share)]


def edges(schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    before = np.repeat(np.arange(len(schedule)), np.diff(schedule.succ_ptr)).astype(np.int32)
    return before, schedule.succ


def without_edge(schedule: Schedule, edge: int) -> Schedule:
    before, after = (np.delete(column, edge) for column in edges(schedule))
    n_deps, ptr, succ = dependency_csr(len(schedule), before, after)
    return replace(schedule, n_deps=n_deps, succ_ptr=ptr, succ=succ)


def changed(schedule: Schedule, column: str, node: int, value: int) -> Schedule:
    values = getattr(schedule, column).copy()
    values[node] = value
    return replace(schedule, **{column: values})


def test_every_operation_has_an_algorithm() -> None:
    assert {op for op, _ in EVERY} == set(OPERATIONS)


@pytest.mark.parametrize(("op", "name"), EVERY)
@pytest.mark.parametrize("ranks", RANKS)
def test_schedule_computes_its_operation(op: str, name: str, ranks: int) -> None:
    size = 1_000_003
    schedule = plan(op, ranks=ranks, size_bytes=size, algorithm=name)
    pairs = [(0, 1)] if name == "pair" else None
    verify(schedule, size_bytes=size, pairs=pairs)
    assert (len(schedule) == 0) == (ranks == 1)


@pytest.mark.parametrize(("op", "name"), [pair for pair in EVERY if pair[1] != "pair"])
@pytest.mark.parametrize("hosts", HOSTS, ids=str)
def test_hosts_equal_unequal_and_interleaved(op: str, name: str, hosts: list[int]) -> None:
    size = 100_003
    schedule = plan(op, ranks=len(hosts), size_bytes=size, algorithm=name, hosts=hosts)
    verify(schedule, size_bytes=size)


OPTIONS = [
    {"channels": 3},
    {"chunks": 4, "slots": 2},
    {"chunks": 5, "slots": 1, "channels": 2},
    {"chunk_bytes": 300, "channels": 8},
]
PIPELINED = [
    ("all_reduce", "ring"), ("all_gather", "ring"), ("reduce_scatter", "ring"),
    ("broadcast", "chain"), ("reduce", "chain"),
    ("all_reduce", "tree"), ("broadcast", "tree"), ("reduce", "tree"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "name"), PIPELINED)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("hosts", [[0] * 5, hosts_of((3, 5, 4)), hosts_of((4,) * 3), [2, 0, 2, 0]])
def test_channels_chunks_and_slots(
    op: str, name: str, options: dict[str, int], hosts: list[int]
) -> None:
    size, ranks = 10_007, len(hosts)
    root = {"root": ranks - 2} if op in ("broadcast", "reduce") else {}
    schedule = plan(
        op, ranks=ranks, size_bytes=size, algorithm=name, hosts=hosts, **options, **root
    )
    verify(schedule, size_bytes=size, root=ranks - 2)
    # Channels between two ranks are numbered from 0, and each carries as much as the others.
    channel = np.zeros(len(schedule), int) if schedule.channel is None else schedule.channel
    chunks = {(s, d): set() for s, d in zip(schedule.src, schedule.dst, strict=True)}
    for s, d, c in zip(schedule.src, schedule.dst, channel, strict=True):
        chunks[s, d].add(int(c))
    assert all(used == set(range(len(used))) for used in chunks.values())
    if len(set(hosts)) == 1 and name != "tree":
        assert {len(used) for used in chunks.values()} == {options.get("channels", 1)}


@pytest.mark.parametrize(("op", "name"), PIPELINED)
def test_slots_bound_what_is_under_way(op: str, name: str) -> None:
    schedule = plan(op, ranks=6, size_bytes=6000, algorithm=name, chunks=7, slots=3)
    before, after = edges(schedule)
    waits = set(zip(before.tolist(), after.tolist(), strict=True))
    channel = np.zeros(len(schedule), int) if schedule.channel is None else schedule.channel
    combine = schedule.combine
    assert combine is not None
    lanes: dict[tuple[int, ...], list[int]] = {}
    for node in range(len(schedule)):
        key = (schedule.src[node], schedule.dst[node], channel[node])
        if name == "tree":
            key = (*key, combine[node])  # up and down are connections of their own in NCCL too
        lanes.setdefault(key, []).append(node)
    for lane in lanes.values():
        assert len(lane) >= 7
        assert all(pair in waits for pair in zip(lane, lane[3:], strict=False))


@pytest.mark.parametrize("op", ["broadcast", "reduce"])
@pytest.mark.parametrize("name", ["chain", "tree"])
@pytest.mark.parametrize("root", [0, 2, 4])
@pytest.mark.parametrize("chunks", [1, 3, 8])
def test_rooted_operations(op: str, name: str, root: int, chunks: int) -> None:
    schedule = plan(op, ranks=5, size_bytes=1000, algorithm=name, root=root, chunks=chunks)
    verify(schedule, size_bytes=1000, root=root)
    with pytest.raises(CheckError):
        verify(schedule, size_bytes=1000, root=root - 1 if root else 1)


@pytest.mark.parametrize("op", ["gather", "scatter"])
@pytest.mark.parametrize("root", [0, 2, 4])
def test_gather_and_scatter_have_the_root_asked_for(op: str, root: int) -> None:
    schedule = plan(op, ranks=5, size_bytes=1003, root=root)
    verify(schedule, size_bytes=1003, root=root)
    with pytest.raises(CheckError):
        verify(schedule, size_bytes=1003, root=(root + 1) % 5)
    with pytest.raises(CheckError, match="do not make up 1300 bytes"):
        verify(schedule, size_bytes=1300, root=root)


def test_a_pair_is_the_pair_asked_for() -> None:
    schedule = plan("send", ranks=4, size_bytes=10, algorithm="pair", source=2, target=0)
    verify(schedule, pairs=[(2, 0)], size_bytes=10)
    with pytest.raises(CheckError, match="rank 2 sends chunk 0 before it holds it"):
        verify(schedule, pairs=[(0, 2)])


# Mutations: one thing wrong at a time, at every place.

SMALL = [
    ("all_reduce", {"ranks": 5}),
    ("all_gather", {"ranks": 5}),
    ("reduce_scatter", {"ranks": 5}),
    ("all_reduce", {"ranks": 4, "hosts": [0, 0, 1, 1], "algorithm": "hierarchical"}),
    ("all_reduce", {"ranks": 5, "hosts": [0, 0, 0, 1, 1], "algorithm": "hierarchical"}),
    ("all_reduce", {"ranks": 7, "hosts": [0, 0, 1, 1, 2, 2, 2], "algorithm": "hierarchical"}),
    ("broadcast", {"ranks": 4, "chunks": 1}),
    ("reduce", {"ranks": 4, "chunks": 1}),
    ("reduce", {"ranks": 6, "chunks": 2, "algorithm": "tree"}),
    ("all_gather", {"ranks": 6, "hosts": [0, 0, 1, 1, 2, 2], "algorithm": "hierarchical"}),
    ("reduce_scatter", {"ranks": 6, "hosts": [0, 0, 1, 1, 2, 2], "algorithm": "hierarchical"}),
]


# Another rank may feed a leaf as well, so that a wrong source is not always wrong.
TREES = [
    ("broadcast", {"ranks": 6, "chunks": 2, "algorithm": "tree"}),
    ("all_reduce", {"ranks": 6, "chunks": 2, "algorithm": "tree"}),
]


@pytest.mark.parametrize(("op", "shape"), [*SMALL, *TREES])
def test_no_dependency_can_be_spared(op: str, shape: dict[str, object]) -> None:
    schedule = plan(op, size_bytes=840, **shape)
    count = len(schedule.succ)
    assert count > 0
    for edge in range(count):
        with pytest.raises(CheckError):
            verify(without_edge(schedule, edge))


@pytest.mark.parametrize(("op", "shape"), [*SMALL, ("all_to_all", {"ranks": 4})])
def test_a_wrong_chunk_rank_or_size_is_caught(op: str, shape: dict[str, object]) -> None:
    schedule = plan(op, size_bytes=840, **shape)
    ranks, chunks = schedule.n_ranks, schedule.n_chunks
    assert schedule.chunk is not None
    assert schedule.combine is not None
    for node in range(len(schedule)):
        wrong = [
            changed(schedule, "src", node, (schedule.src[node] + 1) % ranks),
            changed(schedule, "chunk", node, chunks),
        ]
        if not schedule.combine[node]:
            # A partial sum may skip a rank of its chain and still be summed: that is correct.
            wrong.append(changed(schedule, "dst", node, (schedule.dst[node] + 1) % ranks))
        if chunks > 1:
            wrong.append(changed(schedule, "chunk", node, (schedule.chunk[node] + 1) % chunks))
        if op not in ("all_gather", "broadcast", "all_to_all"):
            wrong.append(changed(schedule, "combine", node, not schedule.combine[node]))
        if op != "all_to_all":  # there each chunk travels once: see the next test
            wrong.append(changed(schedule, "size_bytes", node, schedule.size_bytes[node] + 1))
        for broken in wrong:
            with pytest.raises(CheckError):
                verify(broken, size_bytes=840)


def test_a_wrong_block_is_caught() -> None:
    schedule = plan("all_to_all", ranks=4, size_bytes=840)
    verify(schedule, size_bytes=840)
    for node in range(len(schedule)):
        with pytest.raises(CheckError, match="do not make up 840 bytes"):
            verify(changed(schedule, "size_bytes", node, 211), size_bytes=840)


def test_two_transfers_swapped_in_order_are_caught() -> None:
    schedule = plan("all_reduce", ranks=4, size_bytes=400)
    assert schedule.chunk is not None
    swapped = schedule.chunk.copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    with pytest.raises(CheckError):
        verify(replace(schedule, chunk=swapped))


def test_unordered_replacements_of_one_chunk_are_a_hazard() -> None:
    build = ScheduleBuilder(n_ranks=3)
    first = build.transfer(0, 1, 10, chunk=0)
    build.transfer(0, 2, 10, chunk=0)
    build.transfer(1, 2, 10, chunk=0, after=[first])
    schedule = replace(build.finish(), n_chunks=1)
    with pytest.raises(CheckError, match="both touch chunk 0 at rank 2"):
        verify(schedule, "broadcast")


def test_unordered_additions_are_no_hazard() -> None:
    build = ScheduleBuilder(n_ranks=3)
    build.transfer(1, 0, 10, chunk=0)
    build.transfer(2, 0, 10, chunk=0)
    schedule = replace(build.finish(), n_chunks=1, combine=np.array([True, True]))
    verify(schedule, "reduce", size_bytes=10)


def test_order_through_other_nodes_counts() -> None:
    build = ScheduleBuilder(n_ranks=2)
    first = build.transfer(0, 1, 10, chunk=0)
    pause = build.work(1, 5, after=[first])
    build.transfer(1, 0, 10, chunk=0, after=[pause])
    schedule = replace(build.finish(), n_chunks=1)
    verify(schedule, "broadcast", size_bytes=10)


def test_counting_a_rank_twice_is_caught() -> None:
    build = ScheduleBuilder(n_ranks=2)
    first = build.transfer(1, 0, 10, chunk=0)
    build.transfer(1, 0, 10, chunk=0, after=[first])
    schedule = replace(build.finish(), n_chunks=1, combine=np.array([True, True]))
    with pytest.raises(CheckError, match=r"rank 0 counts ranks \[1\] twice in chunk 0"):
        verify(schedule, "reduce")


def test_a_cycle_is_caught() -> None:
    schedule = plan("all_gather", ranks=3, size_bytes=30)
    before, after = edges(schedule)
    # 0 -> 4 is an edge of the ring, 4 -> 0 closes a cycle.
    assert 4 in schedule.succ[schedule.succ_ptr[0] : schedule.succ_ptr[1]]
    n_deps, ptr, succ = dependency_csr(
        len(schedule), np.append(before, np.int32(4)), np.append(after, np.int32(0))
    )
    with pytest.raises(RailweaveError, match="cycle"):
        verify(replace(schedule, n_deps=n_deps, succ_ptr=ptr, succ=succ))


def test_lengths_that_do_not_make_up_the_size_are_caught() -> None:
    schedule = plan("all_reduce", ranks=4, size_bytes=400)
    with pytest.raises(CheckError, match="300 bytes together, not 400"):
        verify(replace(schedule, size_bytes=schedule.size_bytes * 3 // 4), size_bytes=400)


@pytest.mark.parametrize(("op", "name"), [pair for pair in EVERY if pair[0] == "all_reduce"])
@pytest.mark.parametrize("ranks", [2, 3, 8, 12, 64])
@pytest.mark.parametrize("size", [0, 1, 7, 1 << 20])
def test_no_all_reduce_sends_less_than_the_bound(op: str, name: str, ranks: int, size: int) -> None:
    hosts = [rank * 3 // ranks for rank in range(ranks)]
    schedule = plan(op, ranks=ranks, size_bytes=size, algorithm=name, hosts=hosts)
    # Mean bytes sent per rank >= 2 (n - 1) / n S, multiplied by n.
    assert schedule.bytes_sent_per_rank().sum() >= 2 * (ranks - 1) * size


def test_phases_never_go_back_along_a_dependency() -> None:
    for op, name in EVERY:
        schedule = plan(op, ranks=6, size_bytes=600, algorithm=name, hosts=[0, 0, 0, 1, 1, 2])
        assert schedule.phase is not None
        before, after = edges(schedule)
        assert (schedule.phase[before] < schedule.phase[after]).all()
