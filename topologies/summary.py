# SPDX-License-Identifier: Apache-2.0
"""What a fabric amounts to: counts, oversubscription and bisection bandwidth."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from railweave.topologies.reach import joined_labels, unreachable_pairs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric

__all__ = ["bisection_bps", "oversubscription", "summarise"]

_TIER_NAMES: Final = {1: "leaf", 2: "spine", 3: "core"}
_CABLES: Final = ("host-leaf", "leaf-spine", "spine-core")


def summarise(fabric: Fabric) -> dict[str, Any]:
    """Return the figures of a fabric as plain data.

    ``switches`` and ``cables`` count per tier (parallel cables each count); ``other`` and ``link``
    appear where a fabric has switches or cables outside the tiers. ``oversubscription`` is
    bandwidth down to bandwidth up of the worst switch of a tier, None without uplinks.
    ``unreachable_pairs`` counts ordered pairs of GPUs that nothing joins, where there are any.
    """
    tiers = Counter(_TIER_NAMES.get(int(t), "other") for t in fabric.tier[fabric.switches])
    tier_of = np.array(fabric.link_tier, dtype=object)[::2]
    network = fabric.link_network[::2]
    cables = Counter(tier_of[network].tolist())
    ratios = oversubscription(fabric)
    missing, _ = unreachable_pairs(fabric)
    return {
        "name": fabric.name,
        "kind": fabric.meta.get("kind"),
        "gpus": len(fabric.gpus),
        "hosts": len(fabric.host_names),
        "nics": len(fabric.nics),
        "switches": {name: tiers[name] for name in _TIER_NAMES.values()}
        | ({"other": tiers["other"]} if tiers["other"] else {}),
        "cables": {name: cables[name] for name in _CABLES}
        | ({"link": cables["link"]} if cables["link"] else {}),
        "oversubscription": {
            name: None if ratios[name] is None else float(ratios[name] or 0)
            for name in ("leaf", "spine")
        },
        "bisection_bps": bisection_bps(fabric),
    } | ({"unreachable_pairs": missing} if missing else {})


def _capacity(fabric: Fabric, links: NDArray[np.bool_]) -> NDArray[np.int64]:
    """int64 (devices,): rate of the links that leave each device, of those chosen, in bit/s."""
    total = np.zeros(fabric.n_devices, np.int64)
    np.add.at(total, fabric.link_src[links], fabric.link_rate_bps[links])
    return total


def _in_tier(fabric: Fabric, name: str) -> NDArray[np.bool_]:
    return np.array([tier == name for tier in fabric.link_tier], np.bool_) & fabric.link_up


def oversubscription(fabric: Fabric) -> dict[str, Fraction | None]:
    """Return bandwidth down over bandwidth up of the worst leaf and the worst spine.

    Links that are down do not count. None: no switch of that tier has uplinks.
    """
    found: dict[str, Fraction | None] = {}
    for level, (name, below, above) in enumerate(
        (("leaf", "host-leaf", "leaf-spine"), ("spine", "leaf-spine", "spine-core")), start=1
    ):
        down, up = (_capacity(fabric, _in_tier(fabric, tier)) for tier in (below, above))
        switches = np.flatnonzero((fabric.tier == level) & (up > 0)).tolist()
        ratios = [Fraction(int(down[device]), int(up[device])) for device in switches]
        found[name] = max(ratios, default=None)
    return found


def bisection_bps(fabric: Fabric) -> int:
    """Return the network bandwidth from the first half of the hosts to the second, in bit/s.

    It is the maximum flow from hosts ``0 .. n//2 - 1`` to the others through the network links,
    one direction (Ford and Fulkerson: the minimum cut between them). Intact tiered fabrics are
    wired evenly, so that their flow follows from the sums per leaf and pod; for any other fabric
    it is computed on the graph.
    """
    half = len(fabric.host_names) // 2
    if half == 0:
        return 0
    tiered = "oversubscription" in fabric.meta and bool(fabric.link_up.all())
    return _even_flow(fabric, half) if tiered else _maximum_flow(fabric, half)


def _even_flow(fabric: Fabric, half: int) -> int:
    """Return the flow of an evenly wired Clos: inside leaves, then pods, then the core."""
    access = _in_tier(fabric, "host-leaf") & (fabric.host[fabric.link_src] >= 0)
    src_host = fabric.host[fabric.link_src]
    sides = []
    for mine in (src_host < half, src_host >= half):
        total = np.zeros(fabric.n_devices, np.int64)
        chosen = access & mine
        np.add.at(total, fabric.link_dst[chosen], fabric.link_rate_bps[chosen])
        sides.append(total)
    first, second = sides
    leaves = np.flatnonzero(fabric.tier == 1)
    leaf_up = _capacity(fabric, _in_tier(fabric, "leaf-spine"))[leaves]
    flow, surplus = _match(first[leaves] - second[leaves], leaf_up, first[leaves], second[leaves])
    # Pods are the leaves that spines join, sections those that spines and cores join.
    below = fabric.link_up & fabric.link_network & (fabric.host[fabric.link_src] < 0)
    below &= fabric.host[fabric.link_dst] < 0
    to_core = np.maximum(fabric.tier[fabric.link_src], fabric.tier[fabric.link_dst]) == 3
    pod, section = joined_labels(fabric, below & ~to_core), joined_labels(fabric, below)
    ups, out, into = (np.zeros(fabric.n_devices, np.int64) for _ in range(3))
    spines = np.flatnonzero(fabric.tier == 2)
    np.add.at(ups, pod[spines], _capacity(fabric, _in_tier(fabric, "spine-core"))[spines])
    np.add.at(out, pod[leaves], np.maximum(surplus, 0))
    np.add.at(into, pod[leaves], np.maximum(-surplus, 0))
    inside, left = _match(out - into, ups, out, into)
    out, into = (np.zeros(fabric.n_devices, np.int64) for _ in range(2))
    np.add.at(out, section, np.maximum(left, 0))  # a pod's label is one of its leaves
    np.add.at(into, section, np.maximum(-left, 0))
    return flow + inside + int(np.minimum(out, into).sum())


def _match(
    difference: NDArray[np.int64],
    up: NDArray[np.int64],
    out: NDArray[np.int64],
    into: NDArray[np.int64],
) -> tuple[int, NDArray[np.int64]]:
    """Return what is served below, and what is left per switch within its bandwidth up."""
    return int(np.minimum(out, into).sum()), np.clip(difference, -up, up)


def _maximum_flow(fabric: Fabric, half: int) -> int:
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from(("first", "second"))
    for link in np.flatnonzero(fabric.link_network & fabric.link_up).tolist():
        ends: list[object] = []
        for device in (fabric.link_src[link], fabric.link_dst[link]):
            host = int(fabric.host[device])
            ends.append(int(device) if host < 0 else ("first" if host < half else "second"))
        a, b = ends
        if a == b:
            continue
        before = graph.get_edge_data(a, b, {"capacity": 0})["capacity"]
        graph.add_edge(a, b, capacity=before + int(fabric.link_rate_bps[link]))
    return int(nx.maximum_flow_value(graph, "first", "second"))
