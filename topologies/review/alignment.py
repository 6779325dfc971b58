# SPDX-License-Identifier: Apache-2.0
"""Checks of rails and planes: that NIC i of every host is where NIC i of the others is."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.units import format_rate
from railweave.fabric.words import plural
from railweave.topologies.reach import joined_labels
from railweave.topologies.review.case import SHOWN, listed
from railweave.topologies.review.findings import Fact, Found, check_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from railweave.topologies.review.case import Case

__all__ = ["rails_of_leaves"]

_MAJORITY: Final = 0.75


def rails_of_leaves(case: Case) -> dict[int, int] | None:
    """Return the rail of each leaf: as declared, or the NIC number that most of its cables have.

    None where leaves have no rails: they take NICs of all numbers alike, or hosts have one NIC.
    """
    fabric = case.fabric
    nic, switch, _ = case.access
    leaves = np.unique(switch)
    if len(leaves) and (fabric.rail[leaves] >= 0).all():
        return {int(leaf): int(fabric.rail[leaf]) for leaf in leaves}
    if len(leaves) < 2 or (fabric.rail[leaves] >= 0).any():
        return None
    found: dict[int, int] = {}
    for leaf in leaves.tolist():
        numbers = Counter(fabric.index[nic[switch == leaf]].tolist())
        number, count = numbers.most_common(1)[0]
        if count < _MAJORITY * numbers.total():
            return None
        found[leaf] = number
    return found if len(set(found.values())) > 1 else None


@check_named(
    "rail-alignment",
    about="NIC i of every host goes to a leaf of rail i.",
    why="Traffic that should stay on its rail climbs to the spine, or is passed on over NVLink; "
    "without a spine it has no way.",
    mend="swap the cables at the host or at the leaves",
    part="cause",
)
def rail_alignment(case: Case) -> Iterator[Found | Fact]:
    """Find NICs on the leaf of another rail."""
    fabric = case.fabric
    rails = rails_of_leaves(case)
    if rails is None:
        return
    nic, switch, link = case.access
    declared = bool((fabric.rail[switch] >= 0).all())
    count = len(set(rails.values()))
    per_host: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for n, leaf, k in zip(nic.tolist(), switch.tolist(), link.tolist(), strict=True):
        number = int(fabric.index[n])
        own = number % (int(fabric.rail[switch].max()) + 1) if declared else number
        if own != rails[leaf] and own in rails.values():
            per_host[int(fabric.host[n])].append((n, leaf, k))
    for host, wrong in per_host.items():
        words = [f"{case.name(n)} on {case.name(leaf)}" for n, leaf, _ in wrong]
        nics = [n for n, _, _ in wrong]
        gpus = fabric.gpus[np.isin(fabric.gpu_nic[fabric.gpus], nics)].tolist()
        yield Found(
            level="error",
            message=f"{fabric.host_names[host]}: {listed(words)}, off "
            f"{'their rails' if len(wrong) > 1 else 'its rail'}",
            where=tuple(fabric.cable_name(k) for _, _, k in wrong[:SHOWN]),
            devices=frozenset((*nics, *gpus, *(leaf for _, leaf, _ in wrong))),
            at=~wrong[0][2],
        )
    yield Fact(
        rule="rail-alignment",
        text=f"{plural(count, 'rail')}, "
        + ("declared" if declared else "told by the NIC numbers of leaves"),
        values={"rails": count, "declared": declared},
    )


def planes_of(case: Case) -> NDArray[np.int64] | None:
    """Return the plane of each device, or None where no NIC has cables in several.

    Planes are parts of the network that share no switch and no cable between switches.
    """
    fabric = case.fabric
    nic, switch, _link = case.access
    _, _, trunk = case.trunks
    between = np.zeros(fabric.n_links, np.bool_)
    between[trunk] = True
    label = joined_labels(fabric, between)
    pairs = np.unique(np.stack([nic, label[switch]]), axis=1)
    _, parts = np.unique(pairs[0], return_counts=True)
    return label if (parts > 1).any() else None


@check_named(
    "plane-balance",
    about="Every NIC has as much bandwidth into each plane, and planes are equally wide.",
    why="Traffic is spread evenly over planes, so the narrowest sets the pace for all.",
    mend="give every plane the same switches and cables",
    part="effect",
)
def plane_balance(case: Case) -> Iterator[Found | Fact]:
    """Compare the planes of a multi-plane fabric."""
    label = planes_of(case)
    if label is None:
        return
    fabric = case.fabric
    nic, switch, link = case.access
    lower, _, trunk = case.trunks
    # NICs with the same set of planes are one family: two rails of two planes are two families.
    seats: dict[int, set[int]] = defaultdict(set)
    for n, plane in zip(nic.tolist(), label[switch].tolist(), strict=True):
        seats[n].add(plane)
    families = {tuple(sorted(planes)) for planes in seats.values() if len(planes) > 1}
    up = fabric.link_up
    widths: dict[int, tuple[int, int]] = {}
    for plane in np.unique(label[switch]).tolist():
        widths[plane] = tuple(  # type: ignore[assignment]
            int(fabric.link_rate_bps[k[(label[s] == plane) & up[k]]].sum())
            for s, k in ((switch, link), (lower, trunk))
        )
    for family in sorted(families):
        for place, what in enumerate(("the hosts", "the uplinks of leaves")):
            values = [widths[plane][place] for plane in family]
            if len(set(values)) > 1:
                least = family[values.index(min(values))]
                leaves = np.unique(switch[label[switch] == least]).tolist()
                # a switch that nothing is plugged into is in no plane any more
                parts = np.flatnonzero(np.isin(label, family)).tolist()
                yield Found(
                    level="warning",
                    message=f"planes are uneven in {what}: "
                    + ", ".join(format_rate(value) for value in values),
                    where=(case.name(least),),
                    devices=frozenset((*parts, *case.at_fault_above(place))),
                    at=leaves[0],
                )
    planes = len(next(iter(sorted(families))))
    yield Fact(rule="plane-balance", text=plural(planes, "plane"), values={"planes": planes})
