# SPDX-License-Identifier: Apache-2.0
"""Leaf-spine fabrics: all NICs of a host on one leaf, every leaf on every spine."""

from __future__ import annotations

from itertools import count as from_
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from railweave.fabric.devices import switch_model
from railweave.topologies.budgets import check_budget, shortage
from railweave.topologies.clos import uplinks
from railweave.topologies.layout import Layout
from railweave.topologies.roster import roster_of
from railweave.topologies.spec import (
    Count,
    Hosts,
    LeafSpec,
    LinksSpec,
    TopologyModel,
    UpperSpec,
    topology,
)
from railweave.topologies.tiered import build_tiered, tiers_of

if TYPE_CHECKING:
    from railweave.fabric.graph import Fabric
    from railweave.topologies.clos import Tier
    from railweave.topologies.roster import Roster
    from railweave.topologies.tiered import Tiers

__all__ = ["LeafSpine", "TorLeaf", "fill_leaves"]


class TorLeaf(LeafSpec):
    """The leaf switches, and how many hosts stand under each."""

    hosts: Count | None = Field(None, description="Hosts per leaf (default: as many as fit)")


@topology("leaf-spine")
class LeafSpine(TopologyModel):
    """Leaves with whole hosts, each joined to every spine."""

    kind: Literal["leaf-spine"]
    hosts: Hosts
    leaf: TorLeaf
    spine: UpperSpec
    links: LinksSpec

    def build(self, name: str, *, phy_ps: int) -> Fabric:
        """Build the fabric; see `build_tiered`."""
        roster = roster_of(self.hosts, self.links.host_leaf)
        leaf = switch_model(self.leaf.switch)
        tiers = tiers_of(self.links, leaf, self.spine, None, phy_ps=phy_ps)
        layout = fill_leaves(roster, tiers, per_leaf=self.leaf.hosts)
        return build_tiered(name, self.kind, roster, layout, tiers)


def _needed(below: tuple[int, int], upper: Tier | None) -> dict[int, int]:
    """Return the ports of a switch with ``(number, rate)`` ports down and what it needs up."""
    number, rate_bps = below
    ports = {rate_bps: number}
    if upper is not None:
        up_bps = upper.link.rate_bps
        ports[up_bps] = ports.get(up_bps, 0) + uplinks(number, rate_bps, upper)
    return ports


def fill_leaves(
    roster: Roster, tiers: Tiers, *, per_leaf: int | None = None, group: int | None = None
) -> Layout:
    """Fill leaves with whole hosts, then pods with leaves, as far as ports go; even them out.

    Parameters
    ----------
    roster
        The hosts; the one with most cables says how many fit.
    tiers
        The switches.
    per_leaf, group
        Hosts under each leaf and of each unit, where the file says.

    Raises
    ------
    InputError
        A leaf cannot carry the hosts it shall, or not one.
    """
    switch, spine, core = tiers.leaf, tiers.spine, tiers.core
    nics, down_bps, count = roster.most_cables, roster.fastest_bps, roster.places
    most = min(group or count, count)
    if switch is not None and per_leaf is not None:
        ports = _needed((per_leaf * nics, down_bps), spine)
        check_budget("each leaf", switch, ports, field="leaf.hosts")
    elif switch is not None:
        ports = _needed((nics, down_bps), spine)
        check_budget("a leaf with one host", switch, ports, field="leaf.switch")
        fits = next(
            n
            for n in from_(1)
            if n == most or shortage(switch, _needed(((n + 1) * nics, down_bps), spine))
        )
        per_leaf = -(-most // -(-most // fits))
    per_leaf = per_leaf or most
    if group is not None:
        return Layout(places=count, block=per_leaf, unit=most)
    if core is None or spine is None or spine.switch is None:
        return Layout(places=count, block=per_leaf, unit=count)
    rate_bps = spine.link.rate_bps
    check_budget("each spine", spine.switch, _needed((1, rate_bps), core), field="spine.switch")
    leaves = -(-count // per_leaf)
    fits = next(
        n
        for n in from_(1)
        if n == leaves or shortage(spine.switch, _needed((n + 1, rate_bps), core))
    )
    per_pod = -(-leaves // -(-leaves // fits))
    return Layout(places=count, block=per_leaf, unit=per_leaf * per_pod)
