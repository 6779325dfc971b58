# SPDX-License-Identifier: Apache-2.0
"""Checks of cables and room to grow: lengths against media, ports left, cables to move."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from railweave.fabric.cables import cable_model, cables_for
from railweave.fabric.catalogue import catalogue_names
from railweave.fabric.devices import switch_model
from railweave.fabric.errors import InputError
from railweave.fabric.network_model import phy_latency_ps
from railweave.fabric.units import format_length, format_rate
from railweave.topologies.load import load_topology
from railweave.topologies.review.case import TIERS
from railweave.topologies.review.findings import Fact, Found, check_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric
    from railweave.topologies.review.case import Case
    from railweave.topologies.spec import TopologySpec

__all__ = ["Growth", "cable_lengths_mm", "grow", "ports_left"]

_PS_PER_MM: Final = 5
_MOST_HOSTS: Final = 4096
_OPTICAL: Final = ("active-optical", "multimode", "single-mode")


def cable_lengths_mm(fabric: Fabric, phy_ps: int) -> NDArray[np.int64]:
    """int64 (links,): length that a cable's delay stands for, in mm; -1 below the PHY constant."""
    rest = fabric.link_delay_ps - phy_ps
    return np.where(rest >= 0, rest // _PS_PER_MM, -1)


@check_named(
    "cable-reach",
    about="A cable or optic of the catalogue carries each link's rate over its length.",
    why="The link does not come up, or runs with errors.",
    mend="place the two ends nearer to each other, or use a medium that reaches",
    part="effect",
)
def cable_reach(case: Case) -> Iterator[Found | Fact]:
    """Compare lengths with the reach of what the catalogue has for the rate."""
    fabric = case.fabric
    phy = phy_latency_ps(case.spec.network if case.spec else None)
    lengths = cable_lengths_mm(fabric, phy)
    cables = np.flatnonzero(fabric.link_network[::2]) * 2
    kinds: dict[tuple[str, int, int], list[int]] = {}
    for k in cables.tolist():
        key = fabric.link_tier[k], int(fabric.link_rate_bps[k]), int(lengths[k])
        kinds.setdefault(key, []).append(k)
    models = [cable_model(name) for name in catalogue_names("cables")]
    for (tier, rate, length), links in kinds.items():
        if length < 0:
            yield Fact(rule="cable-reach", text=f"{tier}: no length, only a delay", checked=False)
            continue
        of_rate = [model for model in models if model.link_bps == rate]
        fitting = cables_for(rate, length)
        said = f"{len(links)} {tier} cables of {format_rate(rate)} over {format_length(length)}"
        if fitting:
            best = fitting[0]
            yield Fact(
                rule="cable-reach",
                text=f"{said}: {best.name}, which reaches {format_length(best.reach_mm)}",
                values={"cables": len(links), "length_mm": length, "part": best.name},
            )
        elif any(model.medium in _OPTICAL for model in of_rate):
            reach = max(model.reach_mm for model in of_rate)
            yield Found(
                level="error",
                message=f"{said}: nothing of that rate reaches further than {format_length(reach)}",
                where=(fabric.cable_name(links[0]),),
                at=~links[0],
            )
        else:
            yield Fact(
                rule="cable-reach",
                text=f"{said}: the catalogue has no optic of that rate",
                checked=False,
            )


def ports_left(fabric: Fabric) -> dict[str, tuple[int, int]]:
    """Return per tier the ports of its switches that are free, and all they have.

    A free port is counted at the rate of most of the switch's cables, as far as its total allows.
    """
    found: dict[str, tuple[int, int]] = {}
    rows: dict[int, Counter[int]] = {device: Counter() for device in fabric.switches.tolist()}
    for k in np.flatnonzero(fabric.link_network).tolist():
        device = int(fabric.link_src[k])
        if device in rows:
            rows[device][int(fabric.link_rate_bps[k])] += 1
    for device, rates in rows.items():
        name = fabric.model[device]
        if not name or not rates:
            continue
        model = switch_model(name)
        usual = model.port_mode_bps(rates.most_common(1)[0][0])
        if usual is None:
            continue
        carried = sum(rate * number for rate, number in rates.items())
        room = max(0, (model.capacity_bps - carried) // usual)
        free = min(room, max(0, model.ports[usual] - rates.total()))
        tier = TIERS.get(int(fabric.tier[device]), "other")
        before = found.get(tier, (0, 0))
        found[tier] = before[0] + free, before[1] + model.ports[usual]
    return found


class Growth(NamedTuple):
    """What it takes to come from one variant of a design to a larger one, in cables."""

    hosts: int
    kept: int
    moved: int
    added: int
    switches_added: int


def grow(spec: TopologySpec, fabric: Fabric, times: int = 2) -> Growth:
    """Build the design with ``times`` as many hosts, and compare the cables.

    A cable is kept where both its ends are the same port, and moved where one end is.

    Raises
    ------
    InputError
        The larger design does not fit its switches, or the kind has no number of hosts.
    """
    content: dict[str, Any] = spec.model.content()
    key = "racks" if "racks" in content else "hosts"
    entry = content.get(key)
    if not isinstance(entry, dict) or "count" not in entry:
        raise InputError("only designs with one count of hosts grow by themselves")
    wider = {**content, key: {**entry, "count": entry["count"] * times}}
    phy, name = phy_latency_ps(spec.network), f"{spec.name}-x{times}"
    try:
        grown = load_topology(wider).model.build(name, phy_ps=phy)
    except InputError:  # a number of switches that the file fixes is of the smaller size
        for tier in ("spine", "core"):
            if isinstance(wider.get(tier), dict):
                wider[tier] = {key: v for key, v in wider[tier].items() if key != "count"}
        grown = load_topology(wider).model.build(name, phy_ps=phy)
    before, after = _ends(fabric), _ends(grown)
    kept = before & after
    free = {end for pair in after - before for end in pair}
    moved = sum(1 for pair in before - kept if free & set(pair))
    return Growth(
        hosts=len(grown.host_names),
        kept=len(kept),
        moved=moved,
        added=len(after) - len(kept) - moved,
        switches_added=len(grown.switches) - len(fabric.switches),
    )


def _ends(fabric: Fabric) -> set[frozenset[tuple[str, int]]]:
    links = np.flatnonzero(fabric.link_network[::2]) * 2
    names = fabric.device_names
    return {
        frozenset(((names[a], p), (names[b], q)))
        for a, p, b, q in zip(
            fabric.link_src[links].tolist(),
            fabric.link_src_port[links].tolist(),
            fabric.link_dst[links].tolist(),
            fabric.link_dst_port[links].tolist(),
            strict=True,
        )
    }


@check_named(
    "growth",
    about="How many ports are left, and how many cables move when the design doubles.",
    why="Recabling a running cluster takes it down and is where mistakes are made.",
    mend="leave ports free where cables of the larger variant will go, or take larger switches",
    part="figure",
)
def growth(case: Case) -> Iterator[Found | Fact]:
    """Count free ports, and what the doubled design needs."""
    left = ports_left(case.fabric)
    words = ", ".join(f"{tier} {free} of {total}" for tier, (free, total) in left.items())
    yield Fact(
        rule="growth",
        text=f"ports left: {words}" if words else "no switch is named, so no ports are known",
        values={tier: {"free": free, "ports": total} for tier, (free, total) in left.items()},
        checked=bool(words),
    )
    if case.spec is None or len(case.fabric.host_names) > _MOST_HOSTS:
        return
    try:
        found = grow(case.spec, case.fabric)
    except InputError as error:
        yield Fact(rule="growth", text=f"twice as many hosts: {error.message}", checked=False)
        return
    yield Fact(
        rule="growth",
        text=f"twice as many hosts ({found.hosts}): {found.kept} cables stay, {found.moved} are "
        f"moved, {found.added} added, with {found.switches_added} more switches",
        values=found._asdict(),
    )
