# SPDX-License-Identifier: Apache-2.0
"""Rail-optimized fabrics: NIC r of every host of a group goes to the leaf of rail r.

As in NVIDIA's DGX SuperPOD reference architectures: a scalable unit of hosts has one leaf per
rail; spines join the leaves of all units, and a core joins the units where it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from railweave.topologies.rails import RailModel
from railweave.topologies.roster import roster_of
from railweave.topologies.spec import UpperSpec, topology
from railweave.topologies.tiered import build_tiered

if TYPE_CHECKING:
    from railweave.fabric.graph import Fabric

__all__ = ["RailOptimized"]


@topology("rail-optimized")
class RailOptimized(RailModel):
    """Leaves per rail and group, spines over them, a core if wanted."""

    kind: Literal["rail-optimized"]
    spine: UpperSpec

    def build(self, name: str, *, phy_ps: int) -> Fabric:
        """Build the fabric; see `build_tiered`."""
        roster = roster_of(self.hosts, self.links.host_leaf)
        tiers = self.tiers(self.spine, phy_ps)
        return build_tiered(name, self.kind, roster, self.rail_layout(roster), tiers)
