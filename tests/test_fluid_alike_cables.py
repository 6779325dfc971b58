# SPDX-License-Identifier: Apache-2.0
"""Cables that are alike to all messages: which they are, and that leaving them out is exact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from railweave.collectives import plan
from railweave.fabric._alike_links import alike_cables, without
from railweave.fabric._fluid_layout import HOP, PATH, records
from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.faults import Fault, apply_faults
from railweave.fabric.fluid import FluidEngine
from railweave.fabric.memo import Isolated
from railweave.fabric.network import NetworkSettings
from railweave.fabric.routing import Routing
from railweave.topologies import build_topology, load_topology

if TYPE_CHECKING:
    from railweave.fabric.graph import Fabric


def engine_on(fabric: Fabric, *, memo: bool) -> FluidEngine:
    net = NetworkSettings(ack_every=4)
    return FluidEngine(FabricEnvironment(), fabric, Routing(fabric, policy="spray"), net, memo=memo)


def paths_of(rows: list[list[tuple[int, float]]]) -> tuple[Any, Any]:
    """Make paths of (link, share)."""
    routes, hops = records(PATH, len(rows)), records(HOP, sum(map(len, rows)))
    ends = np.cumsum([len(row) for row in rows])
    routes.hops, routes.hops_end = ends - [len(row) for row in rows], ends
    hops.link = [link for row in rows for link, _ in row]
    hops.share = [share for row in rows for _, share in row]
    return routes, hops


EVEN = [(2 * cable, 0.125) for cable in range(8)]
BACK = [(2 * cable + 1, 0.125) for cable in range(8)]


def like(rows: list[list[tuple[int, float]]], rates: list[float]) -> list[int] | None:
    found = alike_cables(*paths_of(rows), np.repeat(rates, 2), np.zeros(2 * len(rates)))
    return None if found is None else found.tolist()


def test_cables_are_alike_if_every_path_crosses_all_or_none_of_them_equally() -> None:
    assert like([EVEN, BACK, EVEN], [1.0] * 8) == [0] * 8
    assert like([EVEN, BACK, EVEN], [1.0] * 7 + [2.0]) == [0] * 7 + [7]
    more = [*EVEN[:6], (12, 0.25), EVEN[7]]
    assert like([EVEN, more], [1.0] * 8) == [0, 0, 0, 0, 0, 0, 6, 0]
    assert like([EVEN, BACK, [*EVEN[:4], *EVEN]], [1.0] * 8) is None  # those of a path twice
    assert like([[(2 * c, 1.0) for c in range(8)][:4]], [1.0] * 8) is None  # short paths
    assert like([], []) is None


def test_paths_without_them_keep_their_order() -> None:
    routes, hops = paths_of([[(16, 1.0), *EVEN, (18, 1.0)], BACK])
    fewer, left = without(routes, hops, np.array([0] * 8 + [8, 9], np.int32))
    assert left.link.tolist() == [16, 0, 18, 1]
    assert fewer.hops.tolist() == [0, 3]
    assert fewer.hops_end.tolist() == [3, 4]
    assert routes.hops_end.tolist() == [10, 18]


@pytest.mark.parametrize("lost", [None, "spine0", "leaf0.r0:8-spine0:0", "leaf0.r0"])
@pytest.mark.parametrize("algorithm", ["direct", "pxn"])
def test_leaving_them_out_changes_no_picosecond(lost: str | None, algorithm: str) -> None:
    fabric = build_topology(load_topology("h100-rail-8"))
    if lost is not None:
        name = {"link": lost} if "-" in lost else {"node": lost}
        fabric = apply_faults(fabric, [Fault(**name)])
    gpus = fabric.gpus[fabric.index[fabric.gpus] != (0 if lost == "leaf0.r0" else -1)]
    hosts = fabric.host[gpus].tolist()
    schedule = plan(
        "all_to_all", ranks=len(gpus), size_bytes=2**24 + 7, algorithm=algorithm, hosts=hosts
    )
    ends = []
    for memo in (True, False):
        engine = engine_on(fabric, memo=memo)
        engine.execute(schedule, gpus.tolist())
        engine.env.run()
        ends.append((engine.collectives()[0].end_ps, engine.cautions()))
    assert ends[0] == ends[1]


def test_of_the_cables_of_a_leaf_one_is_simulated() -> None:
    fabric = build_topology(load_topology("h100-rail-512"))
    engine = engine_on(fabric, memo=True)
    gpus = fabric.gpus[fabric.host[fabric.gpus] % 16 == 0]
    schedule = plan("all_to_all", ranks=len(gpus), size_bytes=2**20, algorithm="direct")
    isolated = Isolated(engine.binder.bind(schedule, gpus), engine.state)
    paths, found = isolated._with_fewer_cables()
    assert found is not None
    spines = np.flatnonzero(np.array(fabric.link_tier, object)[isolated.links[::2]] == "leaf-spine")
    assert len(spines) == 512
    assert len(np.unique(found[spines])) == 8
    assert len(isolated.paths.hops) > 20 * len(paths.hops)
