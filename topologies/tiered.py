# SPDX-License-Identifier: Apache-2.0
"""What all tiered kinds share: hosts under leaves, and a Clos over the leaves.

A kind says which hosts share leaves, how the NICs of a host spread over rails and planes, and
which leaves are joined above; `build_tiered` does the rest.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.errors import InputError
from railweave.fabric.graph import DeviceKind, FabricBuilder
from railweave.fabric.words import plural
from railweave.topologies.budgets import check_budget
from railweave.topologies.clos import Tier, plan_clos, uplinks
from railweave.topologies.roster import add_roster
from railweave.topologies.wiring import wire_clos

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from railweave.fabric.devices import SwitchModel
    from railweave.fabric.graph import Fabric
    from railweave.topologies.clos import ClosPlan
    from railweave.topologies.layout import Layout
    from railweave.topologies.roster import Plugs, Roster
    from railweave.topologies.spec import LinksSpec, ResolvedLink, UpperSpec

__all__ = ["Tiers", "build_tiered", "tiers_of"]


@dataclass(frozen=True, kw_only=True)
class Tiers:
    """The switches of each tier, and the cables of the hosts; no spine: leaves have no uplinks."""

    leaf: SwitchModel | None
    down: ResolvedLink
    spine: Tier | None
    core: Tier | None

    def declared(self) -> dict[str, object]:
        """Return the oversubscription that the file asks for, per tier that has uplinks."""
        tiers = {"leaf": self.spine, "spine": self.core}
        return {name: tier.oversubscription for name, tier in tiers.items() if tier is not None}


def tiers_of(
    links: LinksSpec,
    leaf: SwitchModel | None,
    spine: UpperSpec | None,
    core: UpperSpec | None,
    *,
    phy_ps: int,
) -> Tiers:
    """Return the tiers of a file with their cables.

    Raises
    ------
    InputError
        A tier without cables, cables without a tier, or a core without spines.
    """
    if core is not None and spine is None:
        raise InputError("it needs spines below it", field="core", expected="a spine too")
    asked = (
        ("leaf-spine", links.leaf_spine, spine, "spine"),
        ("spine-core", links.spine_core, core, "core"),
    )
    found: list[Tier | None] = []
    for key, link, tier, name in asked:
        if link is None and tier is not None:
            cables = "the cables to the spines" if name == "spine" else "the cables to the core"
            raise InputError("it is missing", field=f"links.{key}", expected=cables)
        if tier is None and link is not None:
            raise InputError(
                f"there is no {name}", field=f"links.{key}", expected=f"a {name}, or no such key"
            )
        found.append(Tier.of(tier, link, phy_ps=phy_ps) if tier and link else None)
    return Tiers(leaf=leaf, down=links.host_leaf.resolve(phy_ps), spine=found[0], core=found[1])


@dataclass(frozen=True, eq=False)
class _Lower:
    """Where the cables of a layout's hosts end.

    ``first_port`` is, per place, its first port on each of its leaves; ``demand`` lists the
    different needs of leaves as ports per rate, places that stand empty included.
    """

    first_port: NDArray[np.int64]
    demand: list[dict[int, int]]

    @property
    def most_ports(self) -> int:
        return max(sum(ports.values()) for ports in self.demand)


def _lower(roster: Roster, layout: Layout) -> _Lower:
    """Give each place its ports on its leaves, and sum up what leaves need."""
    leaves = layout.leaves_of_block
    for batch in roster.batches:
        if batch.nics % (layout.rails or 1):
            raise InputError(
                f"the {plural(batch.nics, 'NIC')} of {batch.model.name} cannot spread evenly over "
                f"{layout.rails} rails",
                field=batch.field if batch.field != roster.field else "rails",
                expected=f"rails: a divisor of {batch.nics}",
            )
    batch_of = roster.batch_of_place
    width = np.array([batch.cables // leaves for batch in roster.batches])[batch_of]
    rate = np.array([batch.rate_bps for batch in roster.batches])[batch_of]
    block = layout.block_of(np.arange(layout.places))
    end = np.cumsum(width)
    starts = np.searchsorted(block, np.arange(layout.blocks))
    first_port = end - width - (end - width)[starts][block]
    rates = np.unique(rate)
    needs = np.stack(
        [np.bincount(block, np.where(rate == r, width, 0), layout.blocks) for r in rates], axis=1
    ).astype(np.int64)
    # the places of a block that the file does not fill could still be: with what stands before
    sizes = np.bincount(block, minlength=layout.blocks)
    last = np.searchsorted(block, np.arange(layout.blocks), side="right") - 1
    missing = layout.block - sizes
    needs[np.arange(layout.blocks), np.searchsorted(rates, rate[last])] += missing * width[last]
    demand = [
        {int(r): n for r, n in zip(rates, row, strict=True) if n}
        for row in np.unique(needs, axis=0).tolist()
    ]
    return _Lower(first_port, demand)


def _leaf_uplinks(lower: _Lower, spine: Tier) -> int:
    """Return the uplinks that the busiest leaf needs; all leaves have as many."""
    return max(
        uplinks(1, sum(rate * number for rate, number in ports.items()), spine)
        for ports in lower.demand
    )


def build_tiered(
    name: str,
    kind: str,
    roster: Roster,
    layout: Layout,
    tiers: Tiers,
    *,
    plan: ClosPlan | None = None,
) -> Fabric:
    """Build a tiered fabric.

    Leaf ports 0.. are the NICs of its places in order, its uplinks follow. Without a core all
    leaves of a section share its spines; with one, each pod has its own.

    Parameters
    ----------
    name, kind
        Of the fabric.
    roster, layout, tiers
        Hosts, their leaves, and the switches above.
    plan
        Numbers of the upper tiers (default: the fewest switches whose ports suffice).

    Raises
    ------
    InputError
        A switch cannot carry its ports, or NICs that do not spread evenly over the rails.
    """
    spine, core = tiers.spine, tiers.core
    lower = _lower(roster, layout)
    per_block = layout.leaves_of_block // layout.sections
    leaf_up = 0 if spine is None else _leaf_uplinks(lower, spine)
    if tiers.leaf is not None:
        for need in lower.demand:
            ports: Counter[int] = Counter(need)
            if spine is not None:
                ports[spine.link.rate_bps] += leaf_up
            check_budget("each leaf", tiers.leaf, ports, field="leaf.switch")
    per_pod = layout.pod * layout.blocks_per_unit if core is not None else layout.blocks
    if spine is not None and plan is None:
        pods = layout.pods if core is not None else 1
        plan = plan_clos(
            pods=pods, leaves=per_pod * per_block, leaf_up=leaf_up, spine=spine, core=core
        )

    build = FabricBuilder(name)
    plugs = add_roster(
        build, roster, group_of=np.arange(layout.places) // layout.unit, rails=layout.rails
    )
    leaves = _add_leaves(build, layout, tiers.leaf)
    _plug_in(build, roster, layout, tiers, lower, plugs, leaves)
    if spine is not None and plan is not None:
        by_section = _by_section(layout, leaves)
        for section, members in enumerate(by_section):
            wire_clos(
                build,
                plan,
                leaves=[
                    members[first : first + per_pod].ravel()
                    for first in range(0, layout.blocks, per_pod)
                ],
                first_uplink=lower.most_ports,
                spine=spine,
                core=core,
                section=(section, layout.section_name(section)),
                pods_are_groups=layout.pod == 1,
            )
    return build.finish(**_meta(kind, layout, tiers))


def _meta(kind: str, layout: Layout, tiers: Tiers) -> Mapping[str, object]:
    """Return what a tiered fabric remembers of its file."""
    meta: dict[str, object] = {"kind": kind, "oversubscription": tiers.declared()}
    if layout.apart:
        meta["apart"] = layout.apart
    if layout.planes > 1:
        meta["planes"] = layout.planes
    return meta


def _add_leaves(
    build: FabricBuilder, layout: Layout, model: SwitchModel | None
) -> NDArray[np.int64]:
    """Add the leaves and return their devices, shape (blocks, rails, planes)."""
    rails, planes = layout.rails or 1, layout.planes
    found: list[int] = []
    for block in range(layout.blocks):
        for rail in range(rails):
            for plane in range(planes):
                of_rail = "" if layout.rails is None else f".r{rail}"
                of_plane = "" if planes == 1 else f".p{plane}"
                found.append(
                    build.add_device(
                        f"leaf{block}{of_rail}{of_plane}",
                        DeviceKind.SWITCH,
                        index=len(found),
                        tier=1,
                        group=block // layout.blocks_per_unit,
                        rail=-1 if layout.rails is None else rail,
                        model="" if model is None else model.name,
                    )
                )
    return np.array(found, np.int64).reshape(layout.blocks, rails, planes)


def _by_section(layout: Layout, leaves: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the leaves as (sections, blocks, leaves of a block)."""
    if layout.apart:  # sections go by rail, then plane
        return leaves.transpose(1, 2, 0).reshape(layout.sections, layout.blocks, 1)
    return leaves.transpose(2, 0, 1)


def _plug_in(
    build: FabricBuilder,
    roster: Roster,
    layout: Layout,
    tiers: Tiers,
    lower: _Lower,
    plugs: Plugs,
    leaves: NDArray[np.int64],
) -> None:
    """Join the hosts to their leaves."""
    rails, planes = layout.rails or 1, layout.planes
    ports = np.array([batch.ports for batch in roster.batches])[plugs.batch]
    rate = np.array([batch.rate_bps for batch in roster.batches])[plugs.batch]
    row, rail = np.divmod(plugs.nic, rails)
    cable, plane = np.divmod(plugs.port, planes)
    build.add_cables(
        plugs.device,
        leaves[layout.block_of(plugs.place), rail, plane],
        a_port=plugs.port,
        b_port=lower.first_port[plugs.place] + row * (ports // planes) + cable,
        rate_bps=rate,
        delay_ps=tiers.down.delay_ps,
        model=tiers.down.model,
        tier="host-leaf",
    )
