# SPDX-License-Identifier: Apache-2.0
"""What each link needs for the messages that cross it, and what comes before and after at least."""

from __future__ import annotations

from typing import Any

from railweave.fabric.jit import jit

__all__ = ["link_floors"]


@jit
def link_floors(
    path: Any,
    begin: Any,
    after: Any,
    wire: Any,
    payload: Any,
    smallest: Any,
    cost: Any,
    ptr: Any,
    link: Any,
    share: Any,
    latency: Any,
    per_byte: Any,
    network: Any,
    host_ps: Any,
    even: Any,
    floors: Any,
) -> Any:
    """Find what each link of some paths has to carry and the least before and after it.

    Parameters
    ----------
    path
        int32 (paths,).
    begin, after
        float64 (paths,): when the first message of each begins at the earliest, and what at least
        passes between the end of any and the end of all, in ps.
    wire, payload
        int64 (paths,): bytes of all its messages, as network links and others carry them.
    smallest
        Fewest bytes that a message has on the network.
    cost, ptr, link, share
        As in `railweave.fabric.paths.PathTable`.
    latency, per_byte
        float64 (links,): ps that a link adds to any message, and ps per byte at its rate.
    network
        bool (links,).
    host_ps
        What either end of a path over the network adds.
    even
        Whether what is sprayed over several links is split by ``share``; what may be split in any
        other way holds up none of them.
    floors
        float64 (4, links): the earliest begin, the least way to the link, the time of its bytes,
        and the least that follows the last of them. Comes filled with infinity, but with 0 for the
        time.
    """
    for row in range(len(path)):
        own = path[row]
        first, end = ptr[own], ptr[own + 1]
        packet = min(float(smallest), cost[own, 2]) if cost[own, 1] > 0.0 else 0.0
        behind, slowest, ends = 0.0, 0.0, 0.0
        for at in range(first, end):
            hop = link[at]
            if share[at] == 1.0:
                behind += latency[hop]
            if network[hop]:
                ends = host_ps
                slowest = max(slowest, per_byte[hop])
        ahead, stored = 0.0, 0.0
        for at in range(first, end):
            hop = link[at]
            whole = share[at] == 1.0
            if whole:
                behind -= latency[hop]
            if whole or even:
                size = wire[row] if network[hop] else payload[row]
                to = ends + ahead
                if whole and network[hop] and per_byte[hop] >= slowest:
                    to += stored * packet
                floors[0, hop] = min(floors[0, hop], begin[row])
                floors[1, hop] = min(floors[1, hop], to)
                floors[2, hop] += share[at] * size * per_byte[hop]
                rest = ends + behind + share[at] * latency[hop] + after[row]
                floors[3, hop] = min(floors[3, hop], rest)
            if whole:
                ahead += latency[hop]
                if network[hop]:
                    stored += per_byte[hop]
