# SPDX-License-Identifier: Apache-2.0
"""The upper tiers of a folded Clos: how many switches, and how many cables between which.

Leaves stand in pods. Every leaf of a pod reaches every spine of its pod by the same number of
cables. With a core, the spines of a pod fall into planes: spine j of every pod reaches the cores
of plane ``j mod planes``, again by equally many cables each (Al-Fares, Loukissas and Vahdat, "A
Scalable, Commodity Data Center Network Architecture", SIGCOMM 2008, generalised to any port count).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

from railweave.fabric.devices import SwitchModel, switch_model
from railweave.fabric.errors import InputError
from railweave.topologies.budgets import check_budget, shortage

if TYPE_CHECKING:
    from railweave.topologies.spec import LinkSpec, ResolvedLink, UpperSpec

__all__ = ["ClosPlan", "Tier", "plan_clos", "uplinks"]


@dataclass(frozen=True, kw_only=True)
class Tier:
    """An upper tier as asked for: switch model (None: any), cables below it, fixed numbers."""

    switch: SwitchModel | None
    link: ResolvedLink
    oversubscription: Fraction = Fraction(1)
    count: int | None = None
    parallel: int | None = None

    @classmethod
    def of(cls, spec: UpperSpec, link: LinkSpec, *, phy_ps: int) -> Tier:
        """Return the tier that a file describes."""
        return cls(
            switch=switch_model(spec.switch),
            link=link.resolve(phy_ps),
            oversubscription=spec.oversubscription,
            count=spec.count,
            parallel=link.count,
        )


@dataclass(frozen=True, kw_only=True)
class ClosPlan:
    """Numbers of a wired Clos.

    Parameters
    ----------
    pods
        Number of pods.
    leaf_up
        Uplinks of each leaf.
    spines
        Spines of each pod.
    leaf_spine
        Cables between a leaf and each spine of its pod.
    spine_down, spine_up
        Ports of each spine, down and up.
    cores, planes, spine_core
        Cores in all; planes they fall into; cables between a spine and each core of its plane.
    """

    pods: int
    leaf_up: int
    spines: int
    leaf_spine: int
    spine_down: int
    spine_up: int = 0
    cores: int = 0
    planes: int = 1
    spine_core: int = 0


def uplinks(down_ports: int, down_bps: int, tier: Tier) -> int:
    """Return how many uplinks carry ``down_ports`` ports at the tier's oversubscription."""
    share = Fraction(down_ports * down_bps, tier.link.rate_bps) / tier.oversubscription
    return max(1, ceil(share))


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def plan_clos(
    *,
    pods: int,
    leaves: int,
    leaf_up: int,
    spine: Tier,
    core: Tier | None = None,
) -> ClosPlan:
    """Choose the fewest spines and cores that the switches' ports allow.

    Parameters
    ----------
    pods, leaves
        Number of pods, and of leaves in each.
    leaf_up
        Uplinks of each leaf.
    spine, core
        What was asked of the tiers.

    Raises
    ------
    InputError
        No number of switches carries the cables, or a number that was asked for cannot.
    """
    if spine.count is not None and spine.count % pods:
        raise InputError(
            f"{spine.count} spines do not spread over {pods} pods",
            field="spine.count",
            expected=f"a multiple of {pods}",
        )
    tried: list[int] = []
    for spines in _divisors(leaf_up):
        parallel = leaf_up // spines
        if spine.count is not None and spines * pods != spine.count:
            tried.append(spines * pods)
            continue
        if spine.parallel is not None and parallel != spine.parallel:
            continue
        down = leaves * parallel
        up = uplinks(down, spine.link.rate_bps, core) if core is not None else 0
        ports = _ports((spine.link.rate_bps, down), (core.link.rate_bps if core else 0, up))
        if spine.switch is not None and shortage(spine.switch, ports):
            if spines == leaf_up or spine.count is not None or spine.parallel is not None:
                check_budget("each spine", spine.switch, ports, field="spine.switch")
            continue
        plan = ClosPlan(
            pods=pods,
            leaf_up=leaf_up,
            spines=spines,
            leaf_spine=parallel,
            spine_down=down,
            spine_up=up,
        )
        return plan if core is None else _with_core(plan, core)
    if spine.parallel is not None:
        raise InputError(
            f"{leaf_up} uplinks of a leaf do not come in bundles of {spine.parallel}",
            field="links.leaf-spine.count",
            expected=f"a divisor of {leaf_up}",
        )
    raise InputError(
        f"{spine.count} spines cannot share the {leaf_up} uplinks of each leaf evenly",
        field="spine.count",
        expected=f"one of {', '.join(map(str, tried))}",
    )


def _ports(*pairs: tuple[int, int]) -> dict[int, int]:
    ports: dict[int, int] = {}
    for rate_bps, number in pairs:
        if number:
            ports[rate_bps] = ports.get(rate_bps, 0) + number
    return ports


def _with_core(plan: ClosPlan, core: Tier) -> ClosPlan:
    """Add the cores: fewest first, then as many planes as possible."""
    wirings = sorted(
        (
            (planes * per_plane, planes, per_plane)
            for planes in _divisors(plan.spines)
            for per_plane in _divisors(plan.spine_up)
        ),
        key=lambda wiring: (wiring[0], -wiring[1]),
    )
    counts = sorted({wiring[0] for wiring in wirings})
    if core.count is not None:
        wirings = [wiring for wiring in wirings if wiring[0] == core.count]
        if not wirings:
            raise InputError(
                f"{core.count} cores cannot share the {plan.spine_up} uplinks of each spine evenly",
                field="core.count",
                expected=f"one of {', '.join(map(str, counts))}",
            )
    if core.parallel is not None:
        wirings = [w for w in wirings if plan.spine_up // w[2] == core.parallel]
        if not wirings:
            raise InputError(
                f"{plan.spine_up} uplinks of a spine do not come in bundles of {core.parallel}",
                field="links.spine-core.count",
                expected=f"a divisor of {plan.spine_up}",
            )
    ports: dict[int, int] = {}
    for cores, planes, per_plane in wirings:
        parallel = plan.spine_up // per_plane
        ports = {core.link.rate_bps: plan.pods * (plan.spines // planes) * parallel}
        if core.switch is None or not shortage(core.switch, ports):
            return ClosPlan(
                pods=plan.pods,
                leaf_up=plan.leaf_up,
                spines=plan.spines,
                leaf_spine=plan.leaf_spine,
                spine_down=plan.spine_down,
                spine_up=plan.spine_up,
                cores=cores,
                planes=planes,
                spine_core=parallel,
            )
    lacking = shortage(core.switch, ports) if core.switch is not None else None
    raise InputError(f"each core {lacking}", field="core.switch")
