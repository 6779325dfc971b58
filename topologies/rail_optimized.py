# SPDX-License-Identifier: Apache-2.0
"""Rail-optimized fabrics: NIC r of every host of a group goes to the leaf of rail r.

As in NVIDIA's DGX SuperPOD reference architectures: a scalable unit of hosts has one leaf per
rail; spines join the leaves of all units, and a core joins the units where it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from railweave.fabric.devices import host_model, switch_model
from railweave.fabric.errors import InputError
from railweave.fabric.graph import DeviceKind, FabricBuilder
from railweave.topologies.budgets import check_budget
from railweave.topologies.clos import Tier, plan_clos, uplinks, wire_clos
from railweave.topologies.hosts import add_host, check_nic_rate
from railweave.topologies.spec import (
    Count,
    HostsSpec,
    LeafSpec,
    LinksSpec,
    TopologyModel,
    UpperSpec,
    nics_of,
    topology,
)

if TYPE_CHECKING:
    from railweave.fabric.graph import Fabric

__all__ = ["RailOptimized"]


@topology("rail-optimized")
class RailOptimized(TopologyModel):
    """Leaves per rail and group, spines over them, a core if wanted."""

    kind: Literal["rail-optimized"]
    hosts: HostsSpec
    group: Count | None = Field(None, description="Hosts of a scalable unit (default: all)")
    leaf: LeafSpec
    spine: UpperSpec
    core: UpperSpec | None = None
    links: LinksSpec

    def build(self, name: str, *, phy_ps: int) -> Fabric:
        """Build the fabric.

        Leaf ports 0.. are the hosts of the group in order, its uplinks follow. Without a core all
        groups share the spines; with one, each group has its own.
        """
        model = host_model(self.hosts.model)
        down = self.links.host_leaf.resolve(phy_ps)
        check_nic_rate(model, down.rate_bps, field="links.host-leaf.rate")
        spine, core = upper_tiers(self.links, self.spine, self.core, phy_ps=phy_ps)

        size = min(self.group or self.hosts.count, self.hosts.count)
        groups = -(-self.hosts.count // size)
        rails = nics_of(model)
        leaf_up = uplinks(size, down.rate_bps, spine)
        leaf_model = switch_model(self.leaf.switch)
        ports = {down.rate_bps: size}
        ports[spine.link.rate_bps] = ports.get(spine.link.rate_bps, 0) + leaf_up
        check_budget("each leaf", leaf_model, ports, field="leaf.switch")
        pods, leaves = (1, groups * rails) if core is None else (groups, rails)
        plan = plan_clos(pods=pods, leaves=leaves, leaf_up=leaf_up, spine=spine, core=core)

        build = FabricBuilder(name)
        hosts = [
            add_host(build, f"h{h}", model, group=h // size, rails=True)
            for h in range(self.hosts.count)
        ]
        switches = [
            [
                build.add_device(
                    f"leaf{g}.r{r}",
                    DeviceKind.SWITCH,
                    index=g * rails + r,
                    tier=1,
                    group=g,
                    rail=r,
                    model=leaf_model.name,
                )
                for r in range(rails)
            ]
            for g in range(groups)
        ]
        for h, nics in enumerate(hosts):
            for rail, nic in nics.items():
                build.add_cable(
                    nic,
                    switches[h // size][rail],
                    rate_bps=down.rate_bps,
                    delay_ps=down.delay_ps,
                    model=down.model,
                    tier="host-leaf",
                    a_port=0,
                    b_port=h % size,
                )
        pods_of_leaves = (
            switches if core is not None else [[leaf for group in switches for leaf in group]]
        )
        wire_clos(build, plan, leaves=pods_of_leaves, first_uplink=size, spine=spine, core=core)
        return build.finish(**declared(self.kind, spine, core))


def upper_tiers(
    links: LinksSpec, spine: UpperSpec, core: UpperSpec | None, *, phy_ps: int
) -> tuple[Tier, Tier | None]:
    """Return the tiers of a file with their cables; a missing or idle one raises."""
    if links.leaf_spine is None:
        raise InputError(
            "it is missing", field="links.leaf-spine", expected="the cables to the spines"
        )
    if core is None:
        if links.spine_core is not None:
            raise InputError(
                "there is no core", field="links.spine-core", expected="a core, or no such key"
            )
        return Tier.of(spine, links.leaf_spine, phy_ps=phy_ps), None
    if links.spine_core is None:
        raise InputError(
            "it is missing", field="links.spine-core", expected="the cables to the core"
        )
    lower = Tier.of(spine, links.leaf_spine, phy_ps=phy_ps)
    return lower, Tier.of(core, links.spine_core, phy_ps=phy_ps)


def declared(kind: str, spine: Tier, core: Tier | None) -> dict[str, object]:
    """Return what a tiered fabric remembers of its file: kind and declared oversubscription."""
    ratios = {"leaf": spine.oversubscription}
    if core is not None:
        ratios["spine"] = core.oversubscription
    return {"kind": kind, "oversubscription": ratios}
