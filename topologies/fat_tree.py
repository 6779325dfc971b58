# SPDX-License-Identifier: Apache-2.0
"""Fat-trees: all NICs of a host on one leaf, two or three tiers.

Either by port count (``k: 16``, the k-ary fat-tree of Al-Fares, Loukissas and Vahdat, SIGCOMM
2008) or by the switches' catalogue entries and an oversubscription per tier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from railweave.fabric.devices import switch_model
from railweave.fabric.errors import InputError, RailweaveError
from railweave.fabric.fields import fault
from railweave.topologies.clos import ClosPlan, Tier
from railweave.topologies.layout import Layout
from railweave.topologies.leaf_spine import TorLeaf, fill_leaves
from railweave.topologies.roster import roster_of
from railweave.topologies.spec import (
    Count,
    HostsSpec,
    LinksSpec,
    TopologyModel,
    UpperSpec,
    one_or_list,
    topology,
)
from railweave.topologies.tiered import Tiers, build_tiered, tiers_of

if TYPE_CHECKING:
    from railweave.fabric.graph import Fabric
    from railweave.topologies.roster import Roster

__all__ = ["FatTree"]


class FatTreeHosts(HostsSpec):
    """How many hosts, of which model; with ``k`` the number follows from it."""

    count: Count | None = None  # type: ignore[assignment]


@topology("fat-tree")
class FatTree(TopologyModel):
    """Leaves with whole hosts, spines, and a core with three tiers."""

    kind: Literal["fat-tree"]
    k: Annotated[int, Field(ge=2, le=256, multiple_of=2)] | None = Field(
        None, description="Ports of every switch; the numbers of switches and hosts follow"
    )
    tiers: Literal[2, 3] | None = Field(None, description="2 or 3 (default with k or a core: 3)")
    hosts: Annotated[
        Annotated[FatTreeHosts, Tag("one")]
        | Annotated[tuple[HostsSpec, ...], Tag("list"), Field(min_length=1, strict=False)],
        Discriminator(one_or_list),
    ]
    group: Count | None = Field(
        None, description="Hosts of a unit: a pod if there are three tiers (default: what fits)"
    )
    leaf: TorLeaf | None = None
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
        if isinstance(self.hosts, FatTreeHosts) and self.hosts.count is None:
            raise fault("the number of hosts is missing", expected="count, or k", key="hosts")
        for key in ("leaf", "spine", "core") if self.tiers == 3 else ("leaf", "spine"):
            if getattr(self, key) is None:
                raise fault("it is missing", expected=f"{key}: {{switch: ...}}, or k", key=key)
        if self.core is not None and self.tiers == 2:
            raise fault("two tiers have no core", expected="tiers: 3", key="core")
        return self

    def build(self, name: str, *, phy_ps: int) -> Fabric:
        """Build the fabric; see `build_tiered`."""
        if self.k is not None:
            return self._build_kary(name, self.k, phy_ps)
        if self.leaf is None or self.spine is None:
            raise RailweaveError("a fat-tree without k was not validated")
        roster = roster_of(self.hosts, self.links.host_leaf)
        leaf = switch_model(self.leaf.switch)
        tiers = tiers_of(self.links, leaf, self.spine, self.core, phy_ps=phy_ps)
        layout = fill_leaves(roster, tiers, per_leaf=self.leaf.hosts, group=self.group)
        return build_tiered(name, self.kind, roster, layout, tiers)

    def _build_kary(self, name: str, k: int, phy_ps: int) -> Fabric:
        if not isinstance(self.hosts, FatTreeHosts):
            raise InputError("k has hosts of one model", field="hosts", expected="{model: ...}")
        spine, core = self._kary_tiers(phy_ps)
        asked = self.hosts.count
        one = roster_of(self.hosts.model_copy(update={"count": 1}), self.links.host_leaf)
        layout = _kary_layout(k, asked, one, core=core is not None)
        spec = self.hosts.model_copy(update={"count": layout.places - (self.hosts.spare or 0)})
        down = self.links.host_leaf.resolve(phy_ps)
        return build_tiered(
            name,
            self.kind,
            roster_of(spec, self.links.host_leaf),
            layout,
            Tiers(leaf=None, down=down, spine=spine, core=core),
            plan=_kary_plan(k, core=core is not None),
        )

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


def _kary_layout(k: int, asked: int | None, one: Roster, *, core: bool) -> Layout:
    """Half of each leaf's ports go down; pods have k/2 leaves, or there is one pod of k."""
    half, cables, spare = k // 2, one.most_cables, one.batches[0].spare
    if half % cables:
        raise InputError(
            f"the {cables} NICs of a host do not divide the {half} host ports of a leaf",
            field="k",
            expected=f"a multiple of {2 * cables}",
        )
    per_leaf = half // cables
    per_unit = per_leaf * (half if core else k)
    places = per_unit * (k if core else 1)
    if spare >= places:
        raise InputError(
            f"k: {k} has {places} places, of which {spare} cannot be spare",
            field="hosts.spare",
            expected=f"at most {places - 1}",
        )
    if asked not in (None, places - spare):
        raise InputError(
            f"k: {k} has room for exactly {places - spare} hosts, not {asked}",
            field="hosts.count",
            expected=f"{places - spare}, or no count",
        )
    return Layout(places=places, block=per_leaf, unit=per_unit)


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
