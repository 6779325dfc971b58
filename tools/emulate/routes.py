# SPDX-License-Identifier: Apache-2.0
"""The fabric's own routes as next hops by destination, which is all that a kernel knows.

A kernel chooses by destination alone, wherever a packet came from. `next_hops` gives each device
its equal-cost next hops and makes sure that walking them yields exactly the paths of
`railweave.fabric.routing`; a fabric whose paths depend on more than the destination is refused.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.errors import InputError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from railweave.fabric.graph import Fabric
    from railweave.fabric.routing import Routing

    NextHops = Mapping[int, Mapping[int, tuple[int, ...]]]

__all__ = ["EMULATED_POLICIES", "next_hops", "peers_of"]

EMULATED_POLICIES = ("ecmp", "ecmp-polarised", "rail")


def peers_of(fabric: Fabric, nic: int) -> tuple[int, ...]:
    """Return the devices at the other ends of a NIC's network cables, sorted, with repeats."""
    leaving = (fabric.link_src == nic) & fabric.link_network
    return tuple(sorted(int(device) for device in fabric.link_dst[leaving]))


def next_hops(fabric: Fabric, routing: Routing) -> NextHops:
    """Return device -> destination NIC -> the links to go on by, in link order.

    Parameters
    ----------
    fabric
        The fabric as it stands: links that are down are not used.
    routing
        Routes on that fabric. Under ``rail`` there is one next hop, else every equal-cost one.

    Raises
    ------
    InputError
        The policy is none of `EMULATED_POLICIES`, or the paths cannot be told by destination alone.
    """
    if routing.policy not in EMULATED_POLICIES:
        raise InputError(
            f"a Linux network cannot route by '{routing.policy}'",
            field="routing.policy",
            expected=" | ".join(EMULATED_POLICIES),
        )
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for nic in fabric.nics.tolist():
        groups[peers_of(fabric, nic)].append(nic)
    hops: dict[int, dict[int, tuple[int, ...]]] = defaultdict(dict)
    for target in fabric.nics.tolist():
        _towards(fabric, routing, target, list(groups.values()), hops)
    return hops


def _towards(
    fabric: Fabric,
    routing: Routing,
    target: int,
    groups: list[list[int]],
    hops: dict[int, dict[int, tuple[int, ...]]],
) -> None:
    """Add the next hops towards one NIC; sources at the same switches share all but the first."""
    found: dict[int, set[int]] = defaultdict(set)
    counts: dict[int, int] = {}
    for group in groups:
        sources = [nic for nic in group if fabric.host[nic] != fabric.host[target]]
        if not sources:
            continue
        first = sources[0]
        try:
            paths = _paths(fabric, routing, first, target)
        except UnreachableError:
            continue
        counts[first] = len(paths)
        for path in paths:
            for link in path:
                found[int(fabric.link_src[link])].add(link)
        onward = {int(fabric.link_dst[path[0]]) for path in paths}
        for nic in sources[1:]:
            leaving = np.flatnonzero((fabric.link_src == nic) & fabric.link_up)
            found[nic].update(int(i) for i in leaving if int(fabric.link_dst[i]) in onward)
    for source, count in counts.items():
        if _walks(fabric, found, source, target) != count:
            names = fabric.device_names
            raise InputError(
                f"the paths {names[source]} -> {names[target]} depend on where a packet came from, "
                "which a kernel's routes cannot tell",
                field="topology",
                expected="a fabric whose switches route by destination",
            )
    for device, links in found.items():
        hops[device][target] = tuple(sorted(links))


def _paths(fabric: Fabric, routing: Routing, source: int, target: int) -> list[tuple[int, ...]]:
    if routing.policy == "rail":
        return [routing.routes([source], [target]).path(0)]
    return routing.equal_cost_paths(source, target)


def _walks(fabric: Fabric, found: Mapping[int, set[int]], source: int, target: int) -> int:
    """Count the walks from a NIC to another along next hops; -1 where they can go in a circle."""
    under_way: set[int] = set()

    @cache
    def count(device: int) -> int:
        if device == target:
            return 1
        if device in under_way:
            return -(10**9)
        under_way.add(device)
        total = sum(count(int(fabric.link_dst[link])) for link in found.get(device, ()))
        under_way.discard(device)
        return total

    return count(source)
