# SPDX-License-Identifier: Apache-2.0
"""Racks that are one NVLink domain each, joined by a rail-optimized fabric.

As in NVIDIA's DGX SuperPOD reference architecture for GB200: NIC r of every compute tray of a
group of racks goes to the leaf of rail r; the GPUs of a rack reach each other by NVLink.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from railweave.fabric.errors import InputError
from railweave.topologies.rails import RailUpper
from railweave.topologies.roster import roster_of
from railweave.topologies.spec import Count, Racks, UpperSpec, topology
from railweave.topologies.tiered import build_tiered

if TYPE_CHECKING:
    from railweave.fabric.graph import Fabric

__all__ = ["NvlDomain"]


@topology("nvl-domain")
class NvlDomain(RailUpper):
    """Racks with NVLink inside and a rail-optimized fabric over their hosts."""

    kind: Literal["nvl-domain"]
    racks: Racks
    group: Count | None = Field(None, description="Racks of a scalable unit (default: all)")
    pod: Count | None = Field(
        None, description="Racks of a pod, whole groups, under a core (default: a group)"
    )
    spine: UpperSpec

    def build(self, name: str, *, phy_ps: int) -> Fabric:
        """Build the fabric; ``group`` and ``pod`` count racks. See `build_tiered`."""
        roster = roster_of(self.racks, self.links.host_leaf, field="racks")
        tiers = self.tiers(self.spine, phy_ps)
        sizes = [batch.rack.hosts for batch in roster.batches if batch.rack is not None]
        for batch, hosts in zip(roster.batches, sizes, strict=True):
            if hosts != sizes[0]:
                raise InputError(
                    f"racks of {hosts} and of {sizes[0]} hosts do not share leaves evenly",
                    field=f"{batch.field}.model",
                    expected=f"racks of {sizes[0]} hosts",
                )
        layout = self.rail_layout(roster, each=sizes[0])
        return build_tiered(name, self.kind, roster, layout, tiers)
