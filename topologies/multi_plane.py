# SPDX-License-Identifier: Apache-2.0
"""Multi-plane fabrics: the ports of each NIC go to leaves that share nothing above.

The dual-ToR, dual-plane design of Qian et al., "Alibaba HPN: A Data Center Network for Large
Language Model Training", SIGCOMM 2024: a NIC has a port in every plane; planes are disjoint up
to the top, so that a broken leaf or a whole lost plane costs a share of the rate and no host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from railweave.topologies.rails import RailModel
from railweave.topologies.roster import roster_of
from railweave.topologies.spec import UpperSpec, topology
from railweave.topologies.tiered import build_tiered

if TYPE_CHECKING:
    from railweave.fabric.graph import Fabric

__all__ = ["MultiPlane"]


@topology("multi-plane")
class MultiPlane(RailModel):
    """Each NIC split over disjoint planes (dual ToR), rail-optimized in each plane."""

    kind: Literal["multi-plane"]
    planes: Annotated[int, Field(ge=2, le=64)] = Field(
        2, description="Disjoint parts; they divide the ports of each NIC (2)"
    )
    spine: UpperSpec

    def build(self, name: str, *, phy_ps: int) -> Fabric:
        """Build the fabric; port p of a NIC is of plane ``p mod planes``. See `build_tiered`."""
        roster = roster_of(self.hosts, self.links.host_leaf, planes=self.planes)
        tiers = self.tiers(self.spine, phy_ps)
        layout = self.rail_layout(roster, planes=self.planes)
        return build_tiered(name, self.kind, roster, layout, tiers)
