# SPDX-License-Identifier: Apache-2.0
"""Checks of bandwidth: oversubscription as declared against minimum cuts, and bisection."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.units import format_rate
from railweave.topologies.min_cut import ENDLESS, SwitchGraph
from railweave.topologies.reach import joined_labels
from railweave.topologies.review.alignment import rails_of_leaves
from railweave.topologies.review.findings import Fact, Found, check_named

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric
    from railweave.topologies.review.case import Case

__all__ = ["bisection_cut_bps", "leaf_cuts", "pod_cuts", "pods_of_switches", "ratio_text"]

_NETWORK_TIERS: Final = ("leaf", "spine")
_EACH: Final = 64


def ratio_text(ratio: Fraction) -> str:
    """Write a ratio of bandwidth down to bandwidth up.

    Examples
    --------
    >>> ratio_text(Fraction(16, 15)), ratio_text(Fraction(1, 2))
    ('1.067:1', '1:2')
    """
    if ratio < 1:
        return f"1:{float(1 / ratio):.4g}"
    return f"{float(ratio):.4g}:1"


def _access_bps(fabric: Fabric, graph: SwitchGraph, nics: NDArray[np.bool_]) -> NDArray[np.int64]:
    """int64 (switches,): bandwidth that NICs among ``nics`` (devices) have into each switch."""
    links = fabric.link_network & fabric.link_up & nics[fabric.link_src]
    links &= graph.number[fabric.link_dst] >= 0
    total = np.zeros(len(fabric.switches), np.int64)
    np.add.at(total, graph.number[fabric.link_dst[links]], fabric.link_rate_bps[links])
    return total


def bisection_cut_bps(fabric: Fabric, graph: SwitchGraph | None = None) -> int:
    """Return the minimum cut between the first half of the hosts and the others, in bit/s.

    From hosts ``0 .. n//2 - 1`` to the others, in that direction; cables between two NICs count.
    """
    graph = graph or SwitchGraph(fabric)
    half = len(fabric.host_names) // 2
    first = (fabric.host >= 0) & (fabric.host < half)
    second = fabric.host >= half
    flow = graph.max_flow_bps(_access_bps(fabric, graph, first), _access_bps(fabric, graph, second))
    straight = fabric.link_network & fabric.link_up
    straight &= first[fabric.link_src] & second[fabric.link_dst]
    return flow + int(fabric.link_rate_bps[straight].sum())


def leaf_cuts(fabric: Fabric, graph: SwitchGraph) -> dict[int, tuple[int, int]]:
    """Return for each leaf with uplinks its hosts' bandwidth, and the cut between it and the rest.

    The cut is what can flow from the leaf to the other leaves of its pod and to the cores (to its
    spines, where it is alone), both in bit/s; leaves of one cell of the fabric's symmetry are
    worked out once.
    """
    hosts = _access_bps(fabric, graph, fabric.host >= 0)
    tier = fabric.tier[fabric.switches]
    src, _, _ = graph.bundles
    with_uplinks = np.zeros(len(hosts), np.bool_)
    with_uplinks[src] = True
    pod = pods_of_switches(fabric)
    cells = graph.cells(np.unique(np.stack([hosts, tier]), axis=1, return_inverse=True)[1])
    leaves = np.flatnonzero((tier == 1) & (hosts > 0) & with_uplinks)
    known: dict[tuple[int, bool], int] = {}
    found: dict[int, tuple[int, int]] = {}
    for leaf in leaves.tolist():
        peers = (pod == pod[leaf]) & (hosts > 0)
        peers[leaf] = False
        alone = not peers.any()
        # in few leaves each is cut by itself: cells may hold leaves that only count alike
        key = (leaf if len(leaves) <= _EACH else int(cells[leaf])), alone
        if key not in known:
            supply = np.zeros_like(hosts)
            supply[leaf] = ENDLESS
            ends = (tier == 2) if alone else (peers | (tier == 3))
            known[key] = graph.max_flow_bps(supply, np.where(ends, ENDLESS, 0))
        found[int(fabric.switches[leaf])] = (int(hosts[leaf]), known[key])
    return found


def pods_of_switches(fabric: Fabric) -> NDArray[np.int64]:
    """int64 (switches,): what the switches are joined to without the cores."""
    network = fabric.link_network & fabric.link_up
    network &= (fabric.host[fabric.link_src] < 0) & (fabric.host[fabric.link_dst] < 0)
    top = np.maximum(fabric.tier[fabric.link_src], fabric.tier[fabric.link_dst]) == 3
    return joined_labels(fabric, network & ~top)[fabric.switches]


def pod_cuts(fabric: Fabric, graph: SwitchGraph) -> dict[int, tuple[int, int]]:
    """Return for each pod under a core its bandwidth from leaves to spines, and the cut above it.

    A pod is named by its first leaf. The cut is what can flow from its spines to those of other
    pods, in bit/s; pods of one cell of the symmetry are worked out once.
    """
    tier = fabric.tier[fabric.switches]
    if not (tier == 3).any():
        return {}
    label = pods_of_switches(fabric)
    src, dst, rate = graph.bundles
    rising = (tier[src] == 1) & (tier[dst] == 2)
    into = np.zeros(len(tier), np.int64)
    np.add.at(into, dst[rising], rate[rising])
    cells = graph.cells(np.unique(np.stack([into, tier]), axis=1, return_inverse=True)[1])
    leaves = tier == 1
    known: dict[tuple[int, ...], int] = {}
    found: dict[int, tuple[int, int]] = {}
    for pod in np.unique(label[leaves]).tolist():
        mine = label == pod
        below = int(into[mine & (tier == 2)].sum())
        if not below:
            continue
        key = tuple(sorted(cells[mine].tolist()))
        if key not in known:
            spines = tier == 2
            supply = np.where(mine & spines, ENDLESS, 0)
            known[key] = graph.max_flow_bps(supply, np.where(spines & ~mine, ENDLESS, 0))
        if known[key]:
            found[int(pod)] = (below, known[key])
    return found


_MORE: Final = (
    "Traffic that leaves the leaf or pod has more bandwidth than declared, rounded up to whole "
    "cables or bought for nothing."
)


def _ratios(cuts: Mapping[int, tuple[int, int]]) -> dict[int, Fraction]:
    return {device: Fraction(down, cut) for device, (down, cut) in cuts.items() if cut}


@check_named(
    "oversubscription",
    about="Each tier, and each rail, has the bandwidth up that the file declares: hosts' bandwidth "
    "over the minimum cut above the leaf, and leaves' bandwidth over the cut above the pod.",
    why="Traffic that leaves the leaf or pod gets less than its share of the line rate.",
    mend="add uplinks or spines, or declare the ratio that is meant",
    part="effect",
)
def oversubscription(case: Case) -> Iterator[Found | Fact]:
    """Compare declared and built ratios."""
    fabric = case.fabric
    declared = fabric.meta.get("oversubscription", {})
    graph = SwitchGraph(fabric)
    found = {"leaf": _ratios(leaf_cuts(fabric, graph)), "spine": _ratios(pod_cuts(fabric, graph))}
    for tier in _NETWORK_TIERS:
        ratios = found[tier]
        if not ratios:
            continue
        worst = max(ratios, key=lambda device: ratios[device])
        ratio = ratios[worst]
        yield Fact(
            rule="oversubscription",
            text=f"{tier}: {ratio_text(ratio)}",
            values={"tier": tier, "ratio": float(ratio)},
        )
        if tier in declared and ratio != declared[tier]:
            alike = [device for device, value in ratios.items() if value == ratio]
            less = ratio < declared[tier]  # oversubscription, and so more bandwidth
            yield Found(
                level="info" if less else "error",
                message=f"{tier}: declared {ratio_text(declared[tier])}, built {ratio_text(ratio)}",
                where=tuple(case.name(device) for device in alike[:3]),
                devices=frozenset((*alike, *case.at_fault_above(1 if tier == "leaf" else 2))),
                at=_upper_switch(case, tier),
                why=_MORE if less else "",
                mend="declare the ratio that is built, or take out uplinks" if less else "",
            )
    yield from _per_rail(case, found["leaf"])


def _upper_switch(case: Case, tier: str) -> int | None:
    level = {"leaf": 2, "spine": 3}[tier]
    above = np.flatnonzero(case.fabric.tier == level)
    return int(above[0]) if len(above) else None


def _per_rail(case: Case, ratios: Mapping[int, Fraction]) -> Iterator[Found | Fact]:
    """Compare the worst leaf of each rail with that of the others."""
    rails = rails_of_leaves(case)
    if rails is None or not ratios:
        return
    worst: dict[int, Fraction] = {}
    for leaf, ratio in ratios.items():
        if leaf in rails:
            worst[rails[leaf]] = max(worst.get(rails[leaf], Fraction(0)), ratio)
    if not worst:
        return
    low, high = min(worst.values()), max(worst.values())
    yield Fact(
        rule="oversubscription",
        text=f"rails: {ratio_text(high)}" + ("" if low == high else f" down to {ratio_text(low)}"),
        values={"rails": {str(rail): float(ratio) for rail, ratio in sorted(worst.items())}},
    )
    usual = sorted(worst.values())[len(worst) // 2]
    if high != usual:  # a rail with less load than the others harms nobody
        bad = [rail for rail, ratio in sorted(worst.items()) if ratio == high]
        leaves = [leaf for leaf, ratio in ratios.items() if rails.get(leaf) in bad]
        yield Found(
            level="warning",
            message=f"rail {', '.join(map(str, bad))}: {ratio_text(high)}, while most have "
            f"{ratio_text(usual)}",
            where=tuple(case.name(leaf) for leaf in leaves[:3]),
            devices=frozenset(leaf for leaf in leaves if ratios[leaf] == high),
            at=leaves[0],
        )


@check_named(
    "bisection",
    about="The maximum flow between the two halves of the hosts is what the tiers promise.",
    why="An all-to-all or a transfer from one half to the other is bound by it.",
    mend="add bandwidth to the tier that the cut runs through",
    part="effect",
)
def bisection(case: Case) -> Iterator[Found | Fact]:
    """Compute the bisection, and hold it against the declared ratios."""
    fabric = case.fabric
    graph = SwitchGraph(fabric)
    half = len(fabric.host_names) // 2
    if half == 0:
        yield Fact(rule="bisection", text="one host: nothing to cut", checked=False)
        return
    cut = bisection_cut_bps(fabric, graph)
    inject = min(
        int(_access_bps(fabric, graph, side).sum())
        for side in ((fabric.host >= 0) & (fabric.host < half), fabric.host >= half)
    )
    share = cut / inject if inject else 0.0
    yield Fact(
        rule="bisection",
        text=f"{format_rate(cut)} between the halves of {len(fabric.host_names)} hosts, "
        f"{100 * share:.1f} % of what they inject",
        values={"cut_bps": cut, "inject_bps": inject, "share": share},
    )
    declared = fabric.meta.get("oversubscription")
    if not declared or fabric.meta.get("apart"):
        return
    promised = Fraction(inject)
    for tier in _NETWORK_TIERS:
        promised /= max(Fraction(1), Fraction(declared.get(tier, 1)))
    # Ratios that were rounded up to whole cables are told by `oversubscription`; less than the
    # declared ones allow can only come of uneven wiring.
    if cut < promised and inject:
        yield Found(
            level="error",
            message=f"the cut between the halves is {format_rate(cut)}, while the declared ratios "
            f"promise {format_rate(int(promised))}",
            devices=frozenset((*np.flatnonzero(fabric.tier > 0).tolist(), *fabric.nics.tolist())),
        )
