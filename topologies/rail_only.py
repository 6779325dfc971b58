# SPDX-License-Identifier: Apache-2.0
"""Rail-only fabrics: the leaves of a rail, and nothing that joins the rails.

Wang, Ghobadi, Shakeri, Zhang and Hasani, "Rail-only: A Low-Cost High-Performance Network for
Training LLMs with Trillion Parameters", arXiv 2307.12169: the spines that join rails are left
out, and each rail is a network of its own: one leaf, or a Clos where a leaf has too few ports.
GPUs of different rails on different hosts have no path; NVLink must pass their bytes on (PXN).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from railweave.fabric.errors import InputError
from railweave.topologies.rails import RailModel
from railweave.topologies.roster import roster_of
from railweave.topologies.spec import UpperSpec, topology
from railweave.topologies.tiered import build_tiered

if TYPE_CHECKING:
    from railweave.fabric.graph import Fabric

__all__ = ["RailOnly"]


@topology("rail-only")
class RailOnly(RailModel):
    """One leaf per rail and no spine over the rails; cross-rail bytes go by NVLink."""

    kind: Literal["rail-only"]
    spine: UpperSpec | None = Field(
        None, description="Spines of each rail by itself, over several groups (default: none)"
    )

    def build(self, name: str, *, phy_ps: int) -> Fabric:
        """Build the fabric; see `build_tiered`."""
        roster = roster_of(self.hosts, self.links.host_leaf)
        tiers = self.tiers(self.spine, phy_ps)
        if tiers.spine is None and self.group is not None and self.group < roster.places:
            raise InputError(
                f"without spines, groups of {self.group} hosts would be islands",
                field="group",
                expected="no such key, or a spine (of each rail by itself)",
            )
        layout = self.rail_layout(roster, apart="rails")
        return build_tiered(name, self.kind, roster, layout, tiers)
