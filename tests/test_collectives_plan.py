# SPDX-License-Identifier: Apache-2.0
"""Names, choice of algorithm, bad input and the sharing of structures."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from railweave.collectives import algorithms, canonical_op, closed_form_ps, plan
from railweave.collectives.algorithm import algorithm
from railweave.collectives.structure import Structure, StructureBuilder, StructureCache
from railweave.fabric.errors import InputError, RailweaveError
from railweave.fabric.loops import expand

SHARED = ("kind", "src", "dst", "n_deps", "succ_ptr", "succ", "chunk", "phase", "combine")


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("all_reduce", "all_reduce"),
        ("allreduce", "all_reduce"),
        ("AllReduce", "all_reduce"),
        ("all_reduce_perf", "all_reduce"),
        ("allgather", "all_gather"),
        ("all_gather_into_tensor", "all_gather"),
        ("reducescatter", "reduce_scatter"),
        ("reduce_scatter_tensor", "reduce_scatter"),
        ("alltoall", "all_to_all"),
        ("all-to-all", "all_to_all"),
        ("all_to_all_single", "all_to_all"),
        ("broadcast", "broadcast"),
        ("reduce", "reduce"),
        ("sendrecv", "send"),
        ("send", "send"),
        ("recv", "recv"),
        ("gather", "gather"),
        ("scatter_perf", "scatter"),
        ("barrier", "barrier"),
    ],
)
def test_names(name: str, canonical: str) -> None:
    assert canonical_op(name) == canonical


@pytest.mark.parametrize(
    ("name", "nearest"), [("all_redcue", "all_reduce"), ("alltoal", "alltoall"), ("zzz", None)]
)
def test_unknown_names_point_to_the_nearest(name: str, nearest: str | None) -> None:
    with pytest.raises(InputError, match=f"'{name}' is not a collective operation") as raised:
        canonical_op(name)
    assert raised.value.nearest == nearest
    assert "all_reduce" in (raised.value.expected or "")


def test_algorithms_of_each_operation() -> None:
    assert " ".join(algorithms("all_reduce")) == (
        "collnet halving_doubling hierarchical host_tree nvls ring tree"
    )
    assert " ".join(algorithms("all_gather")) == "hierarchical nvls pat ring"
    assert algorithms("reduce_scatter") == algorithms("all_gather")
    assert algorithms("alltoall") == ("direct", "pxn")
    assert algorithms("broadcast") == algorithms("reduce") == ("chain", "tree")
    assert algorithms("gather") == algorithms("scatter") == ("direct",)
    assert algorithms("barrier") == ("halving_doubling", "ring", "tree")
    assert algorithms("send") == algorithms("recv") == ("pair", "shift")


@pytest.mark.parametrize(
    ("hosts", "chosen"),
    [
        (None, "ring"),
        ([0] * 8, "ring"),
        (list(range(8)), "ring"),
        ([0] * 5 + [1] * 3, "ring"),
        ([0] * 4 + [1] * 4, "hierarchical"),
        ([7, 3] * 4, "hierarchical"),
        ([0, 0, 1, 1, 2, 2, 3, 3], "hierarchical"),
    ],
)
def test_automatic_choice_by_hosts(hosts: list[int] | None, chosen: str) -> None:
    for op in ("all_reduce", "all_gather", "reduce_scatter"):
        assert plan(op, ranks=8, size_bytes=8, hosts=hosts).algorithm == chosen


def test_automatic_choice_otherwise() -> None:
    chosen = {
        op: plan(op, ranks=8, size_bytes=8, hosts=[0] * 4 + [1] * 4).algorithm
        for op in ("barrier", "broadcast", "reduce", "gather", "scatter", "all_to_all")
    }
    assert chosen == {
        "barrier": "tree",
        "broadcast": "chain",
        "reduce": "chain",
        "gather": "direct",
        "scatter": "direct",
        "all_to_all": "direct",
    }


def test_automatic_send() -> None:
    pair = plan("send", ranks=2, size_bytes=100)
    assert (pair.algorithm, pair.src.tolist(), pair.dst.tolist()) == ("pair", [0], [1])
    both = plan("sendrecv", ranks=2, size_bytes=100)
    assert (both.op, both.algorithm, both.src.tolist()) == ("send", "shift", [0, 1])
    assert both.size_bytes.tolist() == [100, 100]
    assert plan("send", ranks=3, size_bytes=1).algorithm == "shift"


@pytest.mark.parametrize(
    ("arguments", "message", "nearest"),
    [
        ({"ranks": 0}, "ranks: 0 is not possible; expected a whole number, 1 or more", None),
        ({"ranks": 2.0}, "ranks: 2.0 is not possible", None),
        ({"size_bytes": -1}, "size_bytes: -1 is not possible", None),
        ({"size_bytes": 1.5}, "size_bytes: 1.5 is not possible", None),
        ({"step_delay_ps": -5}, "step_delay_ps: -5 is not possible", None),
        ({"hosts": [0, 0]}, "hosts: 2 hosts are given for 4 ranks", None),
        ({"algorithm": "rign"}, "algorithm: 'rign' is not a known all_reduce algorithm", "ring"),
        ({"root": 1}, "root: all_reduce by ring has no option 'root'; expected channels", None),
        ({"channels": 0}, "channels: 0 is not possible; expected a whole number, 1 or more", None),
        ({"slots": 0}, "slots: 0 is not possible; expected a whole number, 1 or more", None),
        ({"chunks": 2, "chunk_bytes": 2}, "chunks: both are given; expected either", None),
        (
            {"algorithm": "hierarchical", "slots": 4},
            "slots: all_reduce by hierarchical has no option 'slots'; expected no option",
            None,
        ),
        ({"op": "gather", "chunk_bytes": 4}, "has no option 'chunk_bytes'; expected root", None),
        ({"op": "scatter", "root": 9}, "root: 9 is not a rank; expected 0 to 3", None),
        ({"op": "broadcast", "chunk": 4}, "has no option 'chunk'", "chunks"),
        ({"op": "broadcast", "chunks": 0}, "chunks: 0 is not possible; expected a whole", None),
        ({"op": "broadcast", "root": 4}, "root: 4 is not a rank; expected 0 to 3", None),
        ({"op": "broadcast", "root": [1]}, r"root: \[1\] is not possible", None),
        (
            {"op": "send", "algorithm": "pair", "source": 1, "target": 1},
            "target: source and target are the same rank",
            None,
        ),
        ({"ranks": 40_000}, "the schedule would have 3199920000 transfers", None),
    ],
)
def test_bad_input(arguments: dict[str, object], message: str, nearest: str | None) -> None:
    given: dict[str, object] = {"op": "all_reduce", "ranks": 4, "size_bytes": 64, **arguments}
    with pytest.raises(InputError, match=message) as raised:
        plan(**given)  # type: ignore[arg-type]
    assert raised.value.nearest == nearest
    assert "\n" not in str(raised.value)


def test_schedules_of_one_shape_share_their_arrays() -> None:
    one = plan("all_reduce", ranks=8, size_bytes=800)
    other = plan("allreduce", ranks=8, size_bytes=804, hosts=[5] * 8, step_delay_ps=3)
    assert all(getattr(one, name) is getattr(other, name) for name in SHARED)
    assert set(one.size_bytes.tolist()) == {100}
    assert set(expand(other).size_bytes.tolist()) == {100, 101}
    assert set(one.delay_ps.tolist()) == {0}
    assert set(other.delay_ps.tolist()) == {3}


def test_hosts_matter_only_by_who_shares_one() -> None:
    one = plan("all_reduce", ranks=4, size_bytes=8, hosts=[0, 0, 1, 1])
    same = plan("all_reduce", ranks=4, size_bytes=8, hosts=[9, 9, 2, 2])
    other = plan("all_reduce", ranks=4, size_bytes=8, hosts=[0, 1, 0, 1])
    assert one.src is same.src
    assert one.key == same.key
    assert not np.array_equal(one.dst, other.dst)
    assert one.key != other.key


def test_keys_tell_schedules_apart() -> None:
    made = [
        plan("all_reduce", ranks=4, size_bytes=8),
        plan("all_reduce", ranks=4, size_bytes=9),
        plan("all_reduce", ranks=5, size_bytes=8),
        plan("all_reduce", ranks=4, size_bytes=8, step_delay_ps=1),
        plan("barrier", ranks=4, size_bytes=8),
        plan("broadcast", ranks=4, size_bytes=8),
        plan("broadcast", ranks=4, size_bytes=8, chunks=2),
        plan("broadcast", ranks=4, size_bytes=8, root=1),
    ]
    assert len({schedule.key for schedule in made}) == len(made)


def _structure(nodes: int) -> Structure:
    build = StructureBuilder(n_ranks=2, n_chunks=1)
    build.transfers(src=[0] * nodes, dst=[1] * nodes, chunk=0)
    return build.finish()


def test_the_cache_drops_what_was_used_longest_ago() -> None:
    cache = StructureCache(max_nodes=10)
    first = cache.get("a", lambda: _structure(4))
    cache.get("b", lambda: _structure(4))
    assert cache.get("a", lambda: _structure(4)) is first
    cache.get("c", lambda: _structure(4))
    assert len(cache) == 2
    assert cache.get("a", lambda: _structure(4)) is first
    cache.get("huge", lambda: _structure(11))
    assert len(cache) == 2
    for name in range(30):
        cache.get(name, lambda: _structure(0))
    assert len(cache) == 10


def test_the_name_of_an_algorithm_is_taken_once() -> None:
    def free(*_: object, **__: object) -> Fraction:
        return Fraction(0)

    with pytest.raises(RailweaveError, match="two things are called known all_gather algorithm"):

        @algorithm("all_gather", "ring", closed_form=free)
        def again(shape: object) -> Structure:
            return _structure(1)


def test_closed_form_refuses_what_plan_refuses() -> None:
    with pytest.raises(InputError, match="'tree' is not a known all_gather algorithm"):
        closed_form_ps("all_gather", "tree", ranks=4, size_bytes=4, alpha_ps=0, rate_bps=8)
