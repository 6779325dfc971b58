# SPDX-License-Identifier: Apache-2.0
"""Figures of hashing: the fullest uplink, the queue pairs it takes, and what polarisation costs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.graph import DeviceKind
from railweave.fabric.routing import Routing
from railweave.topologies.balls import (
    expected_fullest,
    expected_used,
    qps_for,
    simulate_shift,
)
from railweave.topologies.review.findings import Fact, Found, check_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from railweave.fabric.graph import Fabric
    from railweave.topologies.review.case import Case

__all__ = ["cores_used", "qps_by_simulation"]

_SHARE: Final = 0.9
_SAMPLES: Final = 40
_TRIED: Final = (1, 2, 4, 8, 16, 32, 64)
_MOST_DRAWS: Final = 4096
_FLOWS: Final = 256


def qps_by_simulation(flows: int, links: int) -> tuple[int | None, dict[int, float]]:
    """Return the queue pairs that give 90 % of the line rate on average, and the shares tried."""
    tried: dict[int, float] = {}
    for qps in _TRIED:
        if flows * qps > _MOST_DRAWS and tried:
            break
        tried[qps] = simulate_shift(flows, links, qps, samples=_SAMPLES).mean
        if tried[qps] >= _SHARE:
            return qps, tried
    return None, tried


@check_named(
    "hash-load",
    about="How unevenly a hash loads the uplinks of a leaf when every host sends one flow up.",
    why="The fullest uplink sets the pace of a synchronous collective.",
    mend="more queue pairs per connection, or spraying or adaptive routing",
    part="figure",
)
def hash_load(case: Case) -> Iterator[Found | Fact]:
    """Give the expected load of the fullest uplink in closed form and by simulation."""
    fabric = case.fabric
    lower, _upper, link = case.trunks
    rising = (fabric.tier[lower] == 1) & fabric.link_up[link]
    _nic, switch, access = case.access
    ups = Counter(lower[rising].tolist())
    downs = Counter(switch[fabric.link_up[access]].tolist())
    shapes: dict[tuple[int, int], int] = {}
    for leaf, links in ups.items():
        if downs[leaf]:
            shapes.setdefault((downs[leaf], links), leaf)
    if not shapes:
        yield Fact(rule="hash-load", text="no leaf has uplinks", checked=False)
        return
    (flows, links), leaf = max(shapes.items())
    if links == 1:
        yield Fact(rule="hash-load", text="leaves have one uplink: nothing to hash", checked=False)
        return
    fullest = expected_fullest(flows, links) * links / flows
    slow = qps_for(flows, links, _SHARE)
    drawn = simulate_shift(flows, links, 1, samples=_SAMPLES)
    text = (
        f"{case.name(leaf)}: {flows} flows over {links} uplinks load the fullest {fullest:.2f} "
        f"times the mean (simulated {drawn.fullest:.2f}) and leave "
        f"{links - expected_used(flows, links):.1f} idle; "
        f"{slow if slow is not None else 'more than 512'} queue pairs keep the fullest within "
        f"1/{_SHARE:g} of it"
    )
    values: dict[str, object] = {
        "flows": flows,
        "uplinks": links,
        "fullest_over_mean": fullest,
        "fullest_over_mean_simulated": drawn.fullest,
        "qps_for_fullest": slow,
    }
    if flows == links:
        mean, tried = qps_by_simulation(flows, links)
        text += (
            f"; with {mean} flows run at {_SHARE:.0%} of the line rate on average (simulated)"
            if mean is not None
            else f"; {max(tried)} still leave flows at {max(tried.values()):.0%} on average"
        )
        values |= {
            "qps_for_mean_simulated": mean,
            "mean_share_simulated": {str(qps): share for qps, share in tried.items()},
        }
    yield Fact(rule="hash-load", text=text, values=values)


def cores_used(fabric: Fabric, *, polarised: bool, seed: int = 1) -> tuple[int, int] | None:
    """Return how many cables into cores the flows of one leaf use, and how many they could.

    Flows go from the NICs of the first leaf to those of hosts in other pods, as many as there are
    up to 256, by the hash itself. None without a core.
    """
    if not (fabric.tier == 3).any():
        return None
    leaf = int(np.flatnonzero(fabric.tier == 1)[0])
    into = (fabric.kind[fabric.link_src] == DeviceKind.NIC) & (fabric.link_dst == leaf)
    senders = fabric.link_src[into & fabric.link_up]
    far = fabric.nics[fabric.group[fabric.nics] != fabric.group[senders[0]]]
    if not len(far):
        return None
    # to few hosts over many queue pairs: each destination costs a search of the whole fabric
    picked = far[np.linspace(0, len(far) - 1, min(_FLOWS, len(far))).astype(np.int64)]
    src = np.resize(senders, len(picked))
    policy = "ecmp-polarised" if polarised else "ecmp"
    routing = Routing(fabric, policy=policy, seed=seed)
    able = routing.reachable(src, picked)
    if not able.any():
        return None
    spread = Routing(fabric, policy="spray", seed=seed).routes(src[able], picked[able])

    def tops(links: np.ndarray) -> int:
        return len(np.unique(links[fabric.tier[fabric.link_dst[links]] == 3]))

    return tops(routing.routes(src[able], picked[able]).links), tops(spread.links)


@check_named(
    "hash-polarisation",
    about="What is left of the ways through the core if all switches hash alike.",
    why="Switches that hash alike repeat each other's choice: of the cables above, most stay idle.",
    mend="give every switch a hash seed of its own",
    part="figure",
)
def hash_polarisation(case: Case) -> Iterator[Found | Fact]:
    """Count the cables into cores that flows use with seeds of their own and with one seed."""
    own = cores_used(case.fabric, polarised=False)
    alike = cores_used(case.fabric, polarised=True)
    if own is None or alike is None:
        yield Fact(
            rule="hash-polarisation",
            text="flows choose once, so equal seeds change nothing",
            checked=False,
        )
        return
    yield Fact(
        rule="hash-polarisation",
        text=f"flows of one leaf to other pods use {own[0]} of {own[1]} cables into cores with a "
        f"seed for each switch, {alike[0]} with one seed for all",
        values={"cables": own[1], "used": own[0], "used_polarised": alike[0]},
    )
