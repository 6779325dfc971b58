# SPDX-License-Identifier: Apache-2.0
"""Put the spines and cores of a plan into a fabric, and their cables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.graph import DeviceKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from railweave.fabric.graph import FabricBuilder
    from railweave.topologies.clos import ClosPlan, Tier

__all__ = ["wire_clos"]


def wire_clos(
    build: FabricBuilder,
    plan: ClosPlan,
    *,
    leaves: Sequence[NDArray[np.int64]],
    first_uplink: int,
    spine: Tier,
    core: Tier | None = None,
    section: tuple[int, str] = (0, ""),
    pods_are_groups: bool = False,
) -> None:
    """Add the spines and cores of a plan and their cables.

    Parameters
    ----------
    build
        The fabric under construction; its leaves are there.
    plan
        The numbers.
    leaves
        Device indices of the leaves of each pod; the last pod may have fewer than the plan says.
    first_uplink
        Port of a leaf's first uplink; uplink j goes to spine j modulo the pod's spines.
    spine, core
        The tiers the plan was made for.
    section
        Number of this part of the fabric among those that share no switch, and the ending of the
        names of its switches.
    pods_are_groups
        Whether a spine is of the group of its pod.
    """
    grouped = plan.spines if pods_are_groups and core is not None else None
    spines = _add_switches(
        build, "spine", plan.pods * plan.spines, 2, spine, section, per_group=grouped
    )
    pod = np.repeat(np.arange(len(leaves)), [len(members) for members in leaves])
    place = np.concatenate([np.arange(len(members)) for members in leaves])
    uplink = np.arange(plan.leaf_up)
    cable, j = np.divmod(uplink, plan.spines)
    build.add_cables(
        np.repeat(np.concatenate(leaves), plan.leaf_up),
        spines[(pod[:, None] * plan.spines + j).ravel()],
        a_port=np.tile(first_uplink + uplink, len(pod)),
        b_port=(place[:, None] * plan.leaf_spine + cable).ravel(),
        rate_bps=spine.link.rate_bps,
        delay_ps=spine.link.delay_ps,
        model=spine.link.model,
        tier="leaf-spine",
    )
    if core is None:
        return
    cores = _add_switches(build, "core", plan.cores, 3, core, section)
    per_plane = plan.cores // plan.planes
    sharing = plan.spines // plan.planes
    pod, j = np.divmod(np.arange(len(spines)), plan.spines)
    row, plane = np.divmod(j, plan.planes)
    uplink = np.arange(plan.spine_up)
    cable, place = np.divmod(uplink, per_plane)
    build.add_cables(
        np.repeat(spines, plan.spine_up),
        cores[(plane[:, None] * per_plane + place).ravel()],
        a_port=np.tile(plan.spine_down + uplink, len(spines)),
        b_port=((pod * sharing + row)[:, None] * plan.spine_core + cable).ravel(),
        rate_bps=core.link.rate_bps,
        delay_ps=core.link.delay_ps,
        model=core.link.model,
        tier="spine-core",
    )


def _add_switches(
    build: FabricBuilder,
    word: str,
    count: int,
    level: int,
    tier: Tier,
    section: tuple[int, str],
    *,
    per_group: int | None = None,
) -> NDArray[np.int64]:
    number, ending = section
    model = tier.switch.name if tier.switch is not None else ""
    return np.array(
        [
            build.add_device(
                f"{word}{i}{ending}",
                DeviceKind.SWITCH,
                index=number * count + i,
                tier=level,
                group=-1 if per_group is None else i // per_group,
                model=model,
            )
            for i in range(count)
        ],
        np.int64,
    )
