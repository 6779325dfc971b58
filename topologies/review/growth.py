# SPDX-License-Identifier: Apache-2.0
"""Room to grow: the ports that are left, and the cables that a larger variant keeps and moves."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from railweave.fabric.devices import switch_model
from railweave.fabric.errors import InputError
from railweave.fabric.network_model import phy_latency_ps
from railweave.topologies.load import load_topology
from railweave.topologies.review.case import TIERS
from railweave.topologies.review.findings import Fact, Found, check_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from railweave.fabric.graph import Fabric
    from railweave.topologies.review.case import Case
    from railweave.topologies.spec import TopologySpec

__all__ = ["Growth", "grow", "ports_left"]

_MOST_HOSTS: Final = 4096


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
    how: str = ""


def grow(spec: TopologySpec, fabric: Fabric, times: int = 2) -> Growth:
    """Build the design with ``times`` as many hosts, and compare the cables.

    A cable is kept where it joins the same two boxes (in whatever ports), and moved where one of
    them is the same: the least that must be moved. Where more hosts do not fit the switches of the
    file, numbers of switches that it fixes are left open; then the hosts that there are become one
    group of several; then a third tier of switches joins them.

    Raises
    ------
    InputError
        No larger design fits its switches, or the kind has no number of hosts.
    """
    content: dict[str, Any] = spec.model.content()
    key = "racks" if "racks" in content else "hosts"
    entry = content.get(key)
    if not isinstance(entry, dict) or "count" not in entry:
        raise InputError("only designs with one count of hosts grow by themselves")
    phy, name = phy_latency_ps(spec.network), f"{spec.name}-x{times}"
    wider = {**content, key: {**entry, "count": entry["count"] * times}}
    refused: list[InputError] = []
    for how, variant in _variants(wider, entry["count"]):
        try:
            grown = load_topology(variant).model.build(name, phy_ps=phy)
        except InputError as error:
            refused.append(error)
        else:
            return _compared(fabric, grown, how)
    raise refused[0]


def _compared(fabric: Fabric, grown: Fabric, how: str) -> Growth:
    before, after = _joined_pairs(fabric), _joined_pairs(grown)
    kept = before & after
    moved = _moved(before - kept, after - kept)
    return Growth(
        hosts=len(grown.host_names),
        kept=kept.total(),
        moved=moved,
        added=after.total() - kept.total() - moved,
        switches_added=len(grown.switches) - len(fabric.switches),
        how=how,
    )


def _variants(wider: dict[str, Any], count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ways to take in more hosts than the ``count`` there were, the simplest first."""
    yield "", wider
    for tier in ("spine", "core"):
        if isinstance(wider.get(tier), dict):
            wider = {**wider, tier: {k: v for k, v in wider[tier].items() if k != "count"}}
    yield "", wider
    grouped = wider.get("group") or count
    if grouped == count:
        yield f", in groups of {count}", {**wider, "group": count}
    if "spine" in wider and "core" not in wider:
        links = wider.get("links", {})
        taller = {
            **wider,
            "group": grouped,
            "core": {**wider["spine"], "oversubscription": "1:1"},
            "links": {**links, "spine-core": links.get("leaf-spine", {})},
        }
        yield ", under cores", taller | ({"tiers": 3} if "tiers" in wider else {})


def _joined_pairs(fabric: Fabric) -> Counter[tuple[str, str, int]]:
    """Count the cables of each pair of boxes, the lower one first, by their rate."""
    names, tier = fabric.device_names, fabric.tier
    found: Counter[tuple[str, str, int]] = Counter()
    for k in (np.flatnonzero(fabric.link_network[::2]) * 2).tolist():
        pair = sorted(
            (int(fabric.link_src[k]), int(fabric.link_dst[k])),
            key=lambda device: (int(tier[device]), names[device]),
        )
        found[names[pair[0]], names[pair[1]], int(fabric.link_rate_bps[k])] += 1
    return found


def _moved(gone: Counter[tuple[str, str, int]], new: Counter[tuple[str, str, int]]) -> int:
    """Return how many cables that go may stay at one end and become new ones."""
    moved = 0
    ends: tuple[Literal[0], Literal[1]] = (0, 1)
    for end in ends:
        left: dict[tuple[str, int], list[tuple[str, str, int]]] = {}
        for pair in new.elements():
            left.setdefault((pair[end], pair[2]), []).append(pair)
        for pair in list(gone.elements()):
            places = left.get((pair[end], pair[2]))
            if places:
                gone[pair] -= 1
                new[places.pop()] -= 1
                moved += 1
    return moved


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
        text=f"twice as many hosts ({found.hosts}{found.how}): {found.kept} cables stay, "
        f"{found.moved} are moved, {found.added} added, with {found.switches_added} more switches",
        values=found._asdict(),
    )
