# SPDX-License-Identifier: Apache-2.0
"""Fat-trees: all NICs of a host on one leaf, two or three tiers.

Either by port count (``k: 16``, the k-ary fat-tree of Al-Fares, Loukissas and Vahdat, SIGCOMM
2008) or by the switches' catalogue entries and an oversubscription per tier.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count as from_
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from railweave.fabric.devices import HostModel, host_model, switch_model
from railweave.fabric.errors import InputError, RailweaveError
from railweave.fabric.fields import FileModel, fault
from railweave.fabric.graph import DeviceKind, FabricBuilder
from railweave.topologies.budgets import check_budget, shortage
from railweave.topologies.clos import ClosPlan, Tier, plan_clos, uplinks, wire_clos
from railweave.topologies.hosts import add_host, check_nic_rate
from railweave.topologies.rail_optimized import declared, upper_tiers
from railweave.topologies.spec import (
    Count,
    HostName,
    LeafSpec,
    LinksSpec,
    TopologyModel,
    UpperSpec,
    nics_of,
    topology,
)

if TYPE_CHECKING:
    from railweave.fabric.graph import Fabric
    from railweave.topologies.spec import ResolvedLink

__all__ = ["FatTree"]


class FatTreeLeaf(LeafSpec):
    """The leaf switches, and how many hosts stand under each."""

    hosts: Count | None = Field(None, description="Hosts per leaf (default: as many as fit)")


class FatTreeHosts(FileModel):
    """How many hosts, of which model; with ``k`` the number follows from it."""

    count: Count | None = None
    model: HostName


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """The lower part: hosts in all, per leaf and per unit (a leaf never straddles two units)."""

    hosts: int
    per_leaf: int
    per_unit: int

    @property
    def units(self) -> int:
        return -(-self.hosts // self.per_unit)

    @property
    def leaves_per_unit(self) -> int:
        return -(-self.per_unit // self.per_leaf)

    def leaf_of(self, host: int) -> int:
        unit, place = divmod(host, self.per_unit)
        return unit * self.leaves_per_unit + place // self.per_leaf


@topology("fat-tree")
class FatTree(TopologyModel):
    """Leaves with whole hosts, spines, and a core with three tiers."""

    kind: Literal["fat-tree"]
    k: Annotated[int, Field(ge=2, le=256, multiple_of=2)] | None = Field(
        None, description="Ports of every switch; the numbers of switches and hosts follow"
    )
    tiers: Literal[2, 3] | None = Field(None, description="2 or 3 (default with k or a core: 3)")
    hosts: FatTreeHosts
    group: Count | None = Field(
        None, description="Hosts of a unit: a pod if there are three tiers (default: what fits)"
    )
    leaf: FatTreeLeaf | None = None
    spine: UpperSpec | None = None
    core: UpperSpec | None = None
    links: LinksSpec

    @model_validator(mode="after")
    def _whole(self) -> FatTree:
        if self.k is not None:
            for key in ("leaf", "spine", "core", "group"):
                if getattr(self, key) is not None:
                    raise fault("k decides this", expected="no such key beside k", key=key)
            return self
        if self.hosts.count is None:
            raise fault("the number of hosts is missing", expected="count, or k", key="hosts")
        for key in ("leaf", "spine", "core") if self.tiers == 3 else ("leaf", "spine"):
            if getattr(self, key) is None:
                raise fault("it is missing", expected=f"{key}: {{switch: ...}}, or k", key=key)
        if self.core is not None and self.tiers == 2:
            raise fault("two tiers have no core", expected="tiers: 3", key="core")
        return self

    def build(self, name: str, *, phy_ps: int) -> Fabric:
        """Build the fabric.

        Leaf ports 0.. are the NICs of its hosts in order, its uplinks follow.
        """
        model = host_model(self.hosts.model)
        down = self.links.host_leaf.resolve(phy_ps)
        check_nic_rate(model, down.rate_bps, field="links.host-leaf.rate")
        leaf_name = ""
        if self.k is not None:
            spine, core = self._kary_tiers(phy_ps)
            layout = _kary_layout(self.k, self.hosts.count, nics_of(model), core=core is not None)
            plan = _kary_plan(self.k, core=core is not None)
        else:
            if self.leaf is None or self.spine is None or self.hosts.count is None:
                raise RailweaveError("a fat-tree without k was not validated")
            spine, core = upper_tiers(self.links, self.spine, self.core, phy_ps=phy_ps)
            leaf_name = switch_model(self.leaf.switch).name
            layout = _fit(
                self.leaf, self.hosts.count, self.group, nics_of(model), down, spine, core
            )
            per_pod = layout.leaves_per_unit
            pods, leaves = (layout.units, per_pod) if core else (1, per_pod * layout.units)
            leaf_up = uplinks(layout.per_leaf * nics_of(model), down.rate_bps, spine)
            plan = plan_clos(pods=pods, leaves=leaves, leaf_up=leaf_up, spine=spine, core=core)
        build = FabricBuilder(name)
        switches = _add_lower(build, layout, model, down, leaf_name)
        per_pod = layout.leaves_per_unit
        wire_clos(
            build,
            plan,
            leaves=[
                switches[pod * per_pod : (pod + 1) * per_pod] if core else switches
                for pod in range(plan.pods)
            ],
            first_uplink=layout.per_leaf * nics_of(model),
            spine=spine,
            core=core,
        )
        return build.finish(**declared(self.kind, spine, core))

    def _kary_tiers(self, phy_ps: int) -> tuple[Tier, Tier | None]:
        """Return the tiers of a k-ary tree; cables not described are as those below them."""
        for key, link in (
            ("leaf-spine", self.links.leaf_spine),
            ("spine-core", self.links.spine_core),
        ):
            if link is not None and link.count not in (None, 1):
                raise InputError(
                    "k decides this", field=f"links.{key}.count", expected="no such key beside k"
                )
        if self.tiers == 2 and self.links.spine_core is not None:
            raise InputError(
                "two tiers have no core", field="links.spine-core", expected="no such key"
            )
        lower = self.links.leaf_spine or self.links.host_leaf
        spine = Tier(switch=None, link=lower.resolve(phy_ps))
        if self.tiers == 2:
            return spine, None
        return spine, Tier(switch=None, link=(self.links.spine_core or lower).resolve(phy_ps))


def _kary_layout(k: int, asked: int | None, nics: int, *, core: bool) -> _Layout:
    """Half of each leaf's ports go down; pods have k/2 leaves, or there is one pod of k."""
    half = k // 2
    if half % nics:
        raise InputError(
            f"the {nics} NICs of a host do not divide the {half} host ports of a leaf",
            field="k",
            expected=f"a multiple of {2 * nics}",
        )
    per_leaf = half // nics
    per_unit = per_leaf * (half if core else k)
    hosts = per_unit * (k if core else 1)
    if asked not in (None, hosts):
        raise InputError(
            f"k: {k} has room for exactly {hosts} hosts, not {asked}",
            field="hosts.count",
            expected=f"{hosts}, or no count",
        )
    return _Layout(hosts=hosts, per_leaf=per_leaf, per_unit=per_unit)


def _kary_plan(k: int, *, core: bool) -> ClosPlan:
    half = k // 2
    if not core:
        return ClosPlan(pods=1, leaf_up=half, spines=half, leaf_spine=1, spine_down=k)
    return ClosPlan(
        pods=k,
        leaf_up=half,
        spines=half,
        leaf_spine=1,
        spine_down=half,
        spine_up=half,
        cores=half * half,
        planes=half,
        spine_core=1,
    )


def _needed(below: tuple[int, int], upper: Tier) -> dict[int, int]:
    """Return the ports of a switch with ``(number, rate)`` ports down and what it needs up."""
    number, rate_bps = below
    ports = {rate_bps: number}
    up_bps = upper.link.rate_bps
    ports[up_bps] = ports.get(up_bps, 0) + uplinks(number, rate_bps, upper)
    return ports


def _fit(
    leaf: FatTreeLeaf,
    count: int,
    group: int | None,
    nics: int,
    down: ResolvedLink,
    spine: Tier,
    core: Tier | None,
) -> _Layout:
    """Fill leaves, then pods, as far as the ports go, and then even them out."""
    switch = switch_model(leaf.switch)
    most = min(group or count, count)
    if leaf.hosts is not None:
        per_leaf = leaf.hosts
        ports = _needed((per_leaf * nics, down.rate_bps), spine)
        check_budget("each leaf", switch, ports, field="leaf.hosts")
    else:
        ports = _needed((nics, down.rate_bps), spine)
        check_budget("a leaf with one host", switch, ports, field="leaf.switch")
        fits = next(
            n
            for n in from_(1)
            if n == most or shortage(switch, _needed(((n + 1) * nics, down.rate_bps), spine))
        )
        per_leaf = -(-most // -(-most // fits))
    if group is not None:
        return _Layout(hosts=count, per_leaf=per_leaf, per_unit=most)
    if core is None or spine.switch is None:
        return _Layout(hosts=count, per_leaf=per_leaf, per_unit=count)
    rate_bps = spine.link.rate_bps
    check_budget("each spine", spine.switch, _needed((1, rate_bps), core), field="spine.switch")
    leaves = -(-count // per_leaf)
    fits = next(
        n
        for n in from_(1)
        if n == leaves or shortage(spine.switch, _needed((n + 1, rate_bps), core))
    )
    per_pod = -(-leaves // -(-leaves // fits))
    return _Layout(hosts=count, per_leaf=per_leaf, per_unit=per_leaf * per_pod)


def _add_lower(
    build: FabricBuilder, layout: _Layout, model: HostModel, down: ResolvedLink, leaf_name: str
) -> list[int]:
    """Add hosts, leaves and the cables between them; return the leaves in order."""
    nics = nics_of(model)
    hosts = [
        add_host(build, f"h{h}", model, group=h // layout.per_unit) for h in range(layout.hosts)
    ]
    leaves = [
        build.add_device(
            f"leaf{n}",
            DeviceKind.SWITCH,
            index=n,
            tier=1,
            group=n // layout.leaves_per_unit,
            model=leaf_name,
        )
        for n in range(layout.leaf_of(layout.hosts - 1) + 1)
    ]
    for h, devices in enumerate(hosts):
        place = h % layout.per_unit % layout.per_leaf
        for nic, device in devices.items():
            build.add_cable(
                device,
                leaves[layout.leaf_of(h)],
                rate_bps=down.rate_bps,
                delay_ps=down.delay_ps,
                model=down.model,
                tier="host-leaf",
                a_port=0,
                b_port=place * nics + nic,
            )
    return leaves
