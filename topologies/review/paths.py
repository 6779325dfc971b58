# SPDX-License-Identifier: Apache-2.0
"""Checks of paths: who reaches whom, over how many ways, and what the top tier is for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from railweave.topologies.apart import apart_groups
from railweave.topologies.reach import (
    cross_rail_pairs,
    list_unreachable,
    one_rail,
    unreachable_pairs,
)
from railweave.topologies.review.case import TIERS
from railweave.topologies.review.findings import Fact, Found, check_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric
    from railweave.topologies.review.case import Case

__all__ = ["Diversity", "path_diversity", "without_top_switches", "without_top_tier"]

_NAMED: Final = 16
"""Groups of pairs that a message names."""

_SEARCHED: Final = 20_000
"""Unreachable pairs that are looked through for one that no other finding explains."""


@check_named(
    "reachability",
    about="Every GPU reaches every other.",
    why="A collective over the two hangs or fails.",
    mend="join them by a cable, or by a switch above both",
    part="effect",
)
def reachability(case: Case) -> Iterator[Found | Fact]:
    """Count pairs of GPUs that nothing joins."""
    fabric = case.fabric
    missing, first = unreachable_pairs(fabric)
    yield Fact(
        rule="reachability",
        text=f"{missing} ordered pairs of GPUs are not joined" if missing else "every pair",
        values={"unreachable_pairs": missing},
    )
    if first is None:
        return
    by_design = cross_rail_pairs(fabric)[0] if fabric.meta.get("apart") == "rails" else 0
    if missing <= by_design:
        return
    looked = 0
    explained: tuple[str, str] | None = None
    for pair in list_unreachable(fabric):
        if by_design and not one_rail(fabric, *pair):
            continue
        ends = {fabric.device(name) for name in pair}
        looked += 1
        if not ends & case.causes:
            first, explained = pair, None
            break
        explained = explained or pair
        if looked >= _SEARCHED:
            break
    first = explained or first
    yield Found(
        level="error",
        message=f"{missing - by_design} pairs of GPUs cannot reach each other, {first[0]} and "
        f"{first[1]} first",
        where=first,
        devices=frozenset(fabric.device(name) for name in first),
        at=fabric.device(first[0]),
    )


@check_named(
    "rails-apart",
    about="Whether rails are joined by the network at all.",
    why="Groups of ranks that span rails lose the network between them: an all-to-all over them "
    "must pass its bytes on over NVLink.",
    mend="nothing, if the collectives in use pass bytes on (PXN); otherwise add a spine",
    part="effect",
)
def rails_apart(case: Case) -> Iterator[Found | Fact]:
    """Count pairs that a rail-only fabric leaves to NVLink."""
    if case.fabric.meta.get("apart") != "rails":
        return
    by_design, named = cross_rail_pairs(case.fabric)
    if named is not None:
        yield Found(
            level="info",
            message=f"{by_design:,} ordered pairs of GPUs are on rails that nothing joins, "
            f"{named[0]} and {named[1]} first: their bytes must be passed on over NVLink; "
            f"{_by_name(case.fabric)}",
            where=named,
        )


def _by_name(fabric: Fabric) -> str:
    """Name all pairs that nothing joins."""
    groups = apart_groups(fabric)
    shown = "; ".join(str(group) for group in groups[:_NAMED])
    return shown + (f"; and {len(groups) - _NAMED} more groups" if len(groups) > _NAMED else "")


class Diversity(NamedTuple):
    """Shortest paths between switches with hosts.

    ``fewest`` and ``most`` are path counts over ordered pairs with a way through an upper tier,
    ``pair`` one of the fewest, ``first_hops`` the fewest different switches that a pair's paths
    begin with, and ``narrow`` a pair of those; all over ``pairs`` pairs.
    """

    fewest: int
    most: int
    pair: tuple[int, int]
    first_hops: int
    narrow: tuple[int, int]
    pairs: int


def path_diversity(fabric: Fabric) -> Diversity | None:
    """Count the shortest up-and-down paths between leaves, None without such pairs.

    Between two leaves that share spines, paths are the ways up to a shared spine times the ways
    down; else those over the cores. Parallel cables count each.
    """
    tiers = [np.flatnonzero(fabric.tier == level) for level in (1, 2, 3)]
    if len(tiers[0]) < 2 or not len(tiers[1]):
        return None
    up = _counts(fabric, tiers[0], tiers[1])
    over = up @ up.T
    hops = (up > 0).astype(np.float64)
    shared = hops @ hops.T
    if len(tiers[2]):
        upper = _counts(fabric, tiers[1], tiers[2])
        higher = up @ upper
        far = higher @ higher.T
        # a first hop counts where any core above it leads down to the other leaf
        crossing = ((upper > 0).astype(np.float64) @ (upper > 0).T) > 0
        across = hops @ ((crossing @ hops.T) > 0)
        over, shared = np.where(over > 0, over, far), np.where(over > 0, shared, across)
    np.fill_diagonal(over, 0)
    some = over > 0
    if not some.any():
        return None
    least = np.where(some, over, np.inf)
    thin = np.where(some, shared, np.inf)
    a, b = divmod(int(least.argmin()), len(over))
    c, d = divmod(int(thin.argmin()), len(over))
    leaves = tiers[0].tolist()
    return Diversity(
        fewest=int(least[a, b]),
        most=int(over.max()),
        pair=(leaves[a], leaves[b]),
        first_hops=int(thin[c, d]),
        narrow=(leaves[c], leaves[d]),
        pairs=int(some.sum()),
    )


def _counts(fabric: Fabric, low: NDArray[np.int64], high: NDArray[np.int64]) -> NDArray[np.float64]:
    """float64 (low, high): cables in service up from each lower to each higher switch."""
    place = np.full(fabric.n_devices, -1, np.int64)
    place[low], level = np.arange(len(low)), np.full(fabric.n_devices, -1, np.int64)
    level[high] = np.arange(len(high))
    links = fabric.link_network & fabric.link_up
    links &= (place[fabric.link_src] >= 0) & (level[fabric.link_dst] >= 0)
    found = np.zeros((len(low), len(high)))
    np.add.at(found, (place[fabric.link_src[links]], level[fabric.link_dst[links]]), 1.0)
    return found


@check_named(
    "path-diversity",
    about="Two leaves are joined over more than one upper switch.",
    why="With one switch between them its loss parts their hosts, and nothing spreads their load.",
    mend="use at least two spines, with as many cables in all",
    part="effect",
)
def diversity(case: Case) -> Iterator[Found | Fact]:
    """Count the paths between leaves."""
    found = path_diversity(case.fabric)
    if found is None:
        yield Fact(rule="path-diversity", text="no two leaves are joined above", checked=False)
        return
    spread = str(found.fewest) if found.fewest == found.most else f"{found.fewest} to {found.most}"
    yield Fact(
        rule="path-diversity",
        text=f"{spread} shortest paths between two leaves, over {found.first_hops} or more "
        "switches",
        values={
            "fewest_paths": found.fewest,
            "most_paths": found.most,
            "fewest_switches": found.first_hops,
        },
    )
    if found.first_hops == 1:
        a, b = (case.name(leaf) for leaf in found.narrow)
        yield Found(
            level="info" if (case.fabric.tier == 2).sum() == 1 else "warning",
            message=f"all paths between {a} and {b} cross one switch",
            where=(a, b),
            devices=frozenset(found.narrow) | frozenset(_at_fault_above(case)),
            at=found.narrow[0],
        )


def _at_fault_above(case: Case) -> list[int]:
    return [device for device in case.causes if int(case.fabric.tier[device]) > 1]


def without_top_switches(fabric: Fabric) -> Fabric:
    """Return the fabric without the links of its highest tier; of one tier only, as it is."""
    top = int(fabric.tier.max(initial=0))
    if top < 2:
        return fabric
    gone = fabric.tier == top
    links = fabric.link_up & ~(gone[fabric.link_src] | gone[fabric.link_dst])
    return fabric.with_links(up=links)


def without_top_tier(fabric: Fabric) -> tuple[int, int, int]:
    """Return what becomes of GPU pairs without the highest tier of switches.

    Returns
    -------
    tuple of int
        Ordered pairs that lose their way on the network; those of them whose NICs are of one
        rail; and all ordered pairs.
    """
    cut = without_top_switches(fabric)
    lost, _ = unreachable_pairs(cut)
    before, _ = unreachable_pairs(fabric)
    rails = fabric.rail[fabric.gpu_nic[fabric.gpus]] >= 0
    crossing = 0
    if rails.all() and len(rails):
        crossing = cross_rail_pairs(cut)[0] - cross_rail_pairs(fabric)[0]
    gpus = len(fabric.gpus)
    return lost - before, lost - before - crossing, gpus * (gpus - 1)


@check_named(
    "top-tier",
    about="What the top tier of switches is needed for.",
    why="Where every group of ranks stays on its rail, the top tier may carry nothing.",
    mend="see `review` for the groups of a given workload",
    part="figure",
)
def top_tier(case: Case) -> Iterator[Found | Fact]:
    """Count the pairs that need the top tier."""
    fabric = case.fabric
    top = int(fabric.tier.max(initial=0))
    if top < 2 or not case.tiered:
        yield Fact(rule="top-tier", text="there is no upper tier", checked=False)
        return
    lost, same_rail, pairs = without_top_tier(fabric)
    yield Fact(
        rule="top-tier",
        text=f"without the {TIERS[top]} switches {lost} of {pairs} ordered pairs of GPUs lose "
        f"their way, {same_rail} of them on one rail or in a fabric without rails",
        values={"tier": TIERS[top], "lost": lost, "lost_on_one_rail": same_rail, "pairs": pairs},
    )
