# SPDX-License-Identifier: Apache-2.0
"""Figures of hashing: the fullest uplink, the queue pairs it takes, and what polarisation costs."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from railweave.fabric.graph import DeviceKind
from railweave.fabric.routing import Routing
from railweave.topologies.balls import (
    expected_fullest,
    expected_used,
    qps_for,
    simulate_shift,
)
from railweave.topologies.review.capacity import pods_of_switches
from railweave.topologies.review.findings import Fact, Found, check_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric
    from railweave.topologies.review.case import Case

__all__ = ["core_shares", "cores_used", "qps_by_simulation"]

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


class CoresUsed(NamedTuple):
    """Cables into cores that ``flows`` flows of one leaf use, of the ``cables`` they could."""

    used: int
    cables: int
    flows: int


def cores_used(fabric: Fabric, *, polarised: bool, seed: int = 1) -> CoresUsed | None:
    """Return how many cables into cores the flows of one leaf use, and how many they could.

    Flows go from the NICs of the first leaf to those of hosts in other pods, as many as there are
    up to 256, by the hash itself. None without a core.
    """
    if not (fabric.tier == 3).any():
        return None
    leaf = int(np.flatnonzero(fabric.tier == 1)[0])
    into = (fabric.kind[fabric.link_src] == DeviceKind.NIC) & (fabric.link_dst == leaf)
    senders = fabric.link_src[into & fabric.link_up]
    pod = np.full(fabric.n_devices, -1, np.int64)
    pod[fabric.switches] = pods_of_switches(fabric)
    home = np.full(fabric.n_devices, -1, np.int64)
    cabled = fabric.link_network & fabric.link_up & (fabric.kind[fabric.link_src] == DeviceKind.NIC)
    home[fabric.link_src[cabled]] = pod[fabric.link_dst[cabled]]
    far = fabric.nics[(home[fabric.nics] >= 0) & (home[fabric.nics] != pod[leaf])]
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

    return CoresUsed(
        used=tops(routing.routes(src[able], picked[able]).links),
        cables=tops(spread.links),
        flows=int(able.sum()),
    )


def core_shares(fabric: Fabric, leaf: int, *, polarised: bool) -> NDArray[np.float64]:
    """float64 (cables into cores that a leaf can use,): chance that a flow upwards takes each.

    A switch takes the next hop ``floor(u n)`` of ``n``, sorted by device and port, for a hash ``u``
    in [0, 1). With seeds of their own leaf and spine draw two of them; with one seed the same, so
    that the choice of the spine is known from that of the leaf.
    """

    def upwards(switch: int, tier: int) -> list[int]:
        out = fabric.link_network & fabric.link_up & (fabric.link_src == switch)
        out &= fabric.tier[fabric.link_dst] == tier
        links = np.flatnonzero(out).tolist()
        return sorted(links, key=lambda k: (int(fabric.link_dst[k]), int(fabric.link_src_port[k])))

    first = upwards(leaf, 2)
    above = {spine: upwards(spine, 3) for spine in {int(fabric.link_dst[k]) for k in first}}
    shares: dict[int, Fraction] = {}
    for i, link in enumerate(first):
        cores = above[int(fabric.link_dst[link])]
        for j, core in enumerate(cores):
            low, high = Fraction(i, len(first)), Fraction(i + 1, len(first))
            if polarised:
                both = min(high, Fraction(j + 1, len(cores))) - max(low, Fraction(j, len(cores)))
                share = max(both, Fraction(0))
            else:
                share = (high - low) / len(cores)
            shares[core] = shares.get(core, Fraction(0)) + share
    return np.array([float(share) for share in shares.values()])


def _expected(shares: NDArray[np.float64], flows: int) -> float:
    """Return how many links get a flow on average: the sum of ``1 - (1 - p)^flows``."""
    return float((1 - (1 - shares) ** flows).sum())


@check_named(
    "hash-polarisation",
    about="What is left of the ways through the core if all switches hash alike.",
    why="Switches that hash alike repeat each other's choice: of the cables above, most stay idle.",
    mend="give every switch a hash seed of its own",
    part="figure",
)
def hash_polarisation(case: Case) -> Iterator[Found | Fact]:
    """Count the cables into cores that flows use with seeds of their own and with one seed."""
    fabric = case.fabric
    own = cores_used(fabric, polarised=False)
    alike = cores_used(fabric, polarised=True)
    if own is None or alike is None:
        yield Fact(
            rule="hash-polarisation",
            text="flows choose once, so equal seeds change nothing",
            checked=False,
        )
        return
    leaf = int(np.flatnonzero(fabric.tier == 1)[0])
    text = (
        f"flows of one leaf to other pods use {own.used} of {own.cables} cables into cores with a "
        f"seed for each switch, {alike.used} with one seed for all"
    )
    values: dict[str, object] = {
        "flows": own.flows,
        "cables": own.cables,
        "used": own.used,
        "used_polarised": alike.used,
    }
    apart, same = (core_shares(fabric, leaf, polarised=one) for one in (False, True))
    if len(apart) == own.cables:  # else not every core leads to every pod
        expected = _expected(apart, own.flows), _expected(same, own.flows)
        worst = float(same.max() / apart.max())
        text += (
            f" (expected {expected[0]:.1f} and {expected[1]:.1f}), of which the fullest then has "
            f"{worst:.3g} times its share"
        )
        values |= {
            "expected_used": expected[0],
            "expected_used_polarised": expected[1],
            "fullest_over_share_polarised": worst,
        }
    yield Fact(rule="hash-polarisation", text=text, values=values)
