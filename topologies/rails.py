# SPDX-License-Identifier: Apache-2.0
"""What the files of all kinds with rails have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from railweave.fabric.devices import switch_model
from railweave.fabric.errors import InputError
from railweave.fabric.words import plural
from railweave.topologies.layout import Layout
from railweave.topologies.spec import Count, Hosts, LeafSpec, LinksSpec, TopologyModel, UpperSpec
from railweave.topologies.tiered import tiers_of

if TYPE_CHECKING:
    from railweave.topologies.roster import Roster
    from railweave.topologies.tiered import Tiers

__all__ = ["RailModel", "RailUpper"]


class RailUpper(TopologyModel):
    """Groups whose hosts share a leaf per rail, and the switches over them."""

    group: Count | None = Field(None, description="Hosts of a scalable unit (default: all)")
    pod: Count | None = Field(
        None, description="Hosts of a pod, whole groups, under a core (default: a group)"
    )
    rails: Count | None = Field(
        None,
        description="Leaves of a group; NIC i goes to rail i mod rails (default: NICs of a host)",
    )
    leaf: LeafSpec
    core: UpperSpec | None = None
    links: LinksSpec

    def tiers(self, spine: UpperSpec | None, phy_ps: int) -> Tiers:
        """Return the switches of each tier."""
        leaf = switch_model(self.leaf.switch)
        return tiers_of(self.links, leaf, spine, self.core, phy_ps=phy_ps)

    def rail_layout(
        self,
        roster: Roster,
        *,
        each: int = 1,
        planes: int = 1,
        apart: Literal["rails"] | None = None,
    ) -> Layout:
        """Return which hosts share leaves.

        Parameters
        ----------
        roster
            The hosts.
        each
            Hosts of what the file counts: 1, or the hosts of a rack.
        planes, apart
            As in `Layout`.

        Raises
        ------
        InputError
            Hosts whose NICs make uneven rails, or a pod that is not whole groups.
        """
        rails = self.rails or _rails_of(roster)
        group = min((self.group or roster.places) * each, roster.places)
        pod = 1
        if self.pod is not None:
            whole = self.group or roster.places // each
            if self.core is None:
                raise InputError("pods need a core to join them", field="pod", expected="a core")
            if self.pod % whole:
                raise InputError(
                    f"a pod of {self.pod} is not whole groups of {whole}",
                    field="pod",
                    expected=f"a multiple of {whole}",
                )
            pod = self.pod // whole
        return Layout(
            places=roster.places,
            block=group,
            unit=group,
            rails=rails,
            pod=pod,
            planes=planes,
            apart=apart,
        )


class RailModel(RailUpper):
    """Hosts of one or several models in such groups."""

    hosts: Hosts


def _rails_of(roster: Roster) -> int:
    """Return the NICs that every host has."""
    first = roster.batches[0]
    for batch in roster.batches[1:]:
        if batch.nics != first.nics:
            raise InputError(
                f"uneven rails: {batch.model.name} has {plural(batch.nics, 'NIC')}, "
                f"but {first.model.name} has {first.nics}",
                field=f"{batch.field}.model",
                expected="as many NICs in every host, or rails: a number that divides both",
            )
    return first.nics
