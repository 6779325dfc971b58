# SPDX-License-Identifier: Apache-2.0
"""The deadlock check: cyclic buffer dependencies, on the healthy fabric and after each failure.

Where every switch has a tier, paths climb and then descend, whatever has failed: a link waits only
for links later in the order up, across, down, so that no ring of waits can close (Dally and Seitz,
IEEE Transactions on Computers C-36(5), 1987). Elsewhere shortest paths are taken, which can close
one, so all of them are laid out, for the fabric as it is and without each cable and each switch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.dependency import cycles
from railweave.fabric.graph import LinkModel
from railweave.fabric.routing import Routing
from railweave.topologies.review.findings import Fact, Found, check_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from railweave.fabric.graph import Fabric
    from railweave.topologies.review.case import Case

__all__ = ["failures", "waiting_ring"]

_MOST_ROUTES: Final = 400_000
"""Paths laid out at most in one check: pairs of access switches times failures."""


def failures(fabric: Fabric) -> list[tuple[str, np.ndarray]]:
    """Return each cable between switches and each switch, with the links it takes along."""
    between = fabric.link_network & (fabric.host[fabric.link_src] < 0)
    between &= fabric.host[fabric.link_dst] < 0
    found = [
        (f"without {fabric.cable_name(int(link))}", np.array([link, link + 1]))
        for link in np.flatnonzero(between[::2] & fabric.link_up[::2]) * 2
    ]
    for switch in fabric.switches.tolist():
        own = np.flatnonzero((fabric.link_src == switch) | (fabric.link_dst == switch))
        found.append((f"without {fabric.device_names[switch]}", own))
    return found


def waiting_ring(fabric: Fabric) -> list[int] | None:
    """Return the links of a ring that can wait for each other, or None.

    All shortest paths between one NIC of each set of access switches are taken together.
    """
    sets: dict[tuple[int, ...], int] = {}
    network = fabric.link_network & fabric.link_up
    homes: dict[int, list[int]] = {}
    for nic, switch in zip(
        fabric.link_src[network].tolist(), fabric.link_dst[network].tolist(), strict=True
    ):
        if fabric.host[nic] >= 0 and fabric.host[switch] < 0:
            homes.setdefault(nic, []).append(switch)
    for nic, switches in homes.items():
        sets.setdefault(tuple(sorted(switches)), nic)
    nics = np.array(sorted(sets.values()), np.int64)
    if len(nics) < 2:
        return None
    routing = Routing(fabric, policy="spray")
    a, b = np.meshgrid(nics, nics, indexing="ij")
    src, dst = a[a != b], b[a != b]
    able = routing.reachable(src, dst)
    if not able.any():
        return None
    found = cycles(fabric, routing.routes(src[able], dst[able]), limit=1)
    return [link for link, _ in found[0]] if found else None


@check_named(
    "deadlock",
    about="No ring of lossless links can wait for itself, as built or after any single failure.",
    why="Pauses around such a ring can stop the whole fabric for good.",
    mend="give switches tiers so that paths only climb and descend, or use lossy transport",
    part="effect",
)
def deadlock(case: Case) -> Iterator[Found | Fact]:
    """Look for cyclic buffer dependencies with every single-failure reroute."""
    fabric = case.fabric
    waits = np.isin(fabric.link_model, (LinkModel.ROCE_LOSSLESS, LinkModel.INFINIBAND))
    if not waits.any():
        yield Fact(rule="deadlock", text="no link waits: none is lossless", checked=False)
        return
    if case.tiered:
        yield Fact(
            rule="deadlock",
            text="every path climbs and then descends, after any failure too: no ring can close",
            values={"method": "order of tiers"},
        )
        return
    cases = failures(fabric)
    access = len(np.unique(case.access.switch))
    room = max(1, _MOST_ROUTES // max(1, access * access))
    looked = [("", np.zeros(0, np.int64)), *cases][:room]
    hit: tuple[str, list[int]] | None = None
    for name, links in looked:
        up = fabric.link_up.copy()
        up[links] = False
        ring = waiting_ring(fabric.with_links(up=up))
        if ring is not None:
            hit = name, ring
            break
    yield Fact(
        rule="deadlock",
        text=f"all shortest paths laid out, as built and after {len(looked) - 1} of {len(cases)} "
        "single failures",
        values={"method": "enumeration", "failures": len(looked) - 1, "of": len(cases)},
    )
    if hit is not None:
        name, ring = hit
        yield Found(
            level="error" if not name else "warning",
            message=f"{len(ring)} links can wait for each other in a ring"
            + (f" {name}" if name else "")
            + f": {', '.join(fabric.link_name(link) for link in ring[:6])}",
            where=tuple(fabric.link_name(link) for link in ring[:6]),
            devices=frozenset(int(fabric.link_src[link]) for link in ring),
            at=~ring[0],
        )
