# SPDX-License-Identifier: Apache-2.0
"""The bill of materials of a fabric: what to buy, what it costs, what it draws.

Switches and NICs are counted from the fabric. For each cable a medium is chosen by rate and length
(the shortest reach that suffices); copper and active optical cables are one piece per links they
carry, fibres need an optic at each end. An end whose cage holds two links takes a twin-port optic
for each two of its links, if the catalogue has one of the same medium; a host's cages are those of
its catalogue entry. The fabric's cost and power are those of switches, NICs, cables and optics:
hosts are listed beside them, as their price and power hold their NICs already.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from railweave.fabric.cables import cable_model, cables_for
from railweave.fabric.catalogue import catalogue_names
from railweave.fabric.devices import host_model, switch_model
from railweave.fabric.network_model import phy_latency_ps
from railweave.tools.prices import FIBRE, PriceList
from railweave.topologies.racks import host_models, place
from railweave.topologies.review.cable_reach import cable_lengths_mm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from railweave.fabric.cables import CableModel
    from railweave.fabric.graph import Fabric
    from railweave.topologies.racks import Hall, Racks
    from railweave.topologies.spec import TopologySpec

__all__ = ["Bill", "Line", "make_bill"]

_FIBRES: Final = ("multimode", "single-mode")
_Key = tuple[str, str, str, int | None]  # group, item, used for, length of a cable in mm


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the bill.

    Parameters
    ----------
    group
        ``switch``, ``nic``, ``optic``, ``cable``, ``fibre``, ``host`` or ``rack``.
    item, count
        Name in the catalogue, and how many to buy.
    used_for
        Tier or tiers.
    length_mm
        Of a cable or fibre, as the file says it or the racks ask for it; None of other things.
    cents, power_mw
        Of one; None where no figure is known. Power of a cable is that of both its ends.
    origin
        Where the price comes from.
    """

    group: str
    item: str
    count: int
    used_for: str
    cents: int | None
    power_mw: int | None
    origin: str = ""
    length_mm: int | None = None


@dataclass(frozen=True, kw_only=True)
class Bill:
    """The bill of a fabric.

    Parameters
    ----------
    lines
        What is needed, network first.
    currency
        Of every amount.
    cables
        Cables per tier.
    racks
        Racks with hosts, and network racks.
    """

    name: str
    lines: tuple[Line, ...]
    currency: str
    cables: Mapping[str, int]
    racks: tuple[int, int]

    @property
    def network(self) -> list[Line]:
        """The lines that make up the fabric: all but hosts and racks."""
        return [line for line in self.lines if line.group not in ("host", "rack")]

    @property
    def cost_cents(self) -> int:
        """Cost of the fabric, of the lines that have a price."""
        return sum(line.count * line.cents for line in self.network if line.cents is not None)

    @property
    def power_mw(self) -> int:
        """Power of the fabric's switches, optics and cables, of the lines that have a figure.

        NICs are left out: they are in the power of their hosts.
        """
        return sum(
            line.count * line.power_mw
            for line in self.network
            if line.power_mw is not None and line.group != "nic"
        )

    def missing(self, what: str) -> list[str]:
        """Return the items of the fabric without a ``cents`` or ``power_mw``, each once."""
        found = [line.item for line in self.network if getattr(line, what) is None]
        return list(dict.fromkeys(found))

    def number(self, group: str) -> int:
        """Return how many pieces of a group there are."""
        return sum(line.count for line in self.lines if line.group == group)

    def to_dict(self) -> dict[str, Any]:
        """Return the bill as plain data."""
        return {
            "topology": self.name,
            "currency": self.currency,
            "lines": [
                {
                    "group": line.group,
                    "item": line.item,
                    "count": line.count,
                    "used_for": line.used_for,
                    "length_m": None if line.length_mm is None else line.length_mm / 1000,
                    "price_each_cents": line.cents,
                    "power_each_mw": line.power_mw,
                    "price_from": line.origin,
                }
                for line in self.lines
            ],
            "cables": dict(self.cables),
            "racks": {"hosts": self.racks[0], "network": self.racks[1]},
            "network": {
                "cost_cents": self.cost_cents,
                "power_mw": self.power_mw,
                "without_price": self.missing("cents"),
                "without_power": self.missing("power_mw"),
            },
        }


def make_bill(
    fabric: Fabric,
    spec: TopologySpec | None = None,
    *,
    prices: PriceList | None = None,
    hall: Hall | None = None,
    racks: Racks | None = None,
) -> Bill:
    """Work out the bill of a fabric.

    Parameters
    ----------
    fabric, spec
        The fabric, and the topology it was built from (for hosts and racks).
    prices
        Prices (default: the catalogue's, which are assumptions).
    hall, racks
        The hall that racks stand in, or the racks themselves.
    """
    prices = prices or PriceList()
    racks = racks or place(fabric, spec, hall=hall)
    counts: Counter[_Key] = Counter()
    for device in fabric.switches.tolist():
        tier = {1: "leaf", 2: "spine", 3: "core"}.get(int(fabric.tier[device]), "other")
        counts["switch", fabric.model[device] or "switch without a model", tier, None] += 1
    for nic in fabric.nics.tolist():
        counts["nic", fabric.model[nic] or "NIC without a model", "hosts", None] += 1
    models = host_models(fabric, spec)
    tiers = _count_cables(fabric, spec, models, racks, counts)
    for model in models:
        counts["host", model or "host without a model", "", None] += 1
    of_hosts = sum(name.startswith("r") for name in racks.names)
    lines = [_line(key, count, prices) for key, count in counts.items()]
    order = ("switch", "nic", "optic", "cable", "fibre", "host")
    lines.sort(key=lambda line: order.index(line.group))
    return Bill(
        name=fabric.name,
        lines=tuple(lines),
        currency=prices.currency,
        cables=tiers,
        racks=(of_hosts, len(racks.names) - of_hosts),
    )


def _line(key: _Key, count: int, prices: PriceList) -> Line:
    group, item, used_for, length_mm = key
    section = {"switch": "switches", "nic": "nics", "host": "hosts"}.get(group, "cables")
    known = item == FIBRE or item in catalogue_names(section)
    power = prices.power_mw(section, item) if known else None
    if group == "cable" and power is not None:
        power *= 2  # the catalogue's figure is that of one end
    if item == FIBRE:
        power = 0
    return Line(
        group=group,
        item=item,
        count=count,
        used_for=used_for,
        cents=prices.cents(section, item) if known else None,
        power_mw=power,
        origin=prices.origin(section, item) if known else "",
        length_mm=length_mm,
    )


def _count_cables(
    fabric: Fabric,
    spec: TopologySpec | None,
    models: list[str],
    racks: Racks,
    counts: Counter[_Key],
) -> dict[str, int]:
    """Add the pieces of every cable to ``counts``; return the cables of each tier."""
    lengths = cable_lengths_mm(fabric, phy_latency_ps(spec.network if spec else None))
    tiers: Counter[str] = Counter()
    # part, tier, length, and the node that shares a piece: its legs are of one length
    pieces: Counter[tuple[str, str, int, int]] = Counter()
    ends: Counter[tuple[str, str, int, int]] = Counter()  # part, tier, node, links of its cage
    chosen: dict[tuple[int, int], CableModel | None] = {}
    for k in (np.flatnonzero(fabric.link_network[::2]) * 2).tolist():
        tier, rate = fabric.link_tier[k], int(fabric.link_rate_bps[k])
        tiers[tier] += 1
        pair = int(fabric.link_src[k]), int(fabric.link_dst[k])
        length = int(lengths[k])
        if length < 0:
            length = racks.length_mm(*(_node(fabric, device) for device in pair))
        if (rate, length) not in chosen:
            fitting = cables_for(rate, length)
            chosen[rate, length] = fitting[0] if fitting else None
        model = chosen[rate, length]
        if model is None:
            counts["cable", f"cable of {rate // 10**9}G without a part", tier, length] += 1
        elif model.medium in _FIBRES:
            counts["fibre", FIBRE, tier, length] += 1
            for device in pair:
                room = _cage_links(fabric, device, rate, models)
                part = _optic(model, rate, length, room)
                ends[part.name, tier, _cage_owner(fabric, device), part.links] += 1
        else:
            shared = max(pair, key=lambda device: int(fabric.tier[device]))
            pieces[model.name, tier, length, shared] += 1
    for (name, tier, length, _), links in pieces.items():
        counts["cable", name, tier, length] += -(-links // cable_model(name).links)
    sockets: Counter[tuple[str, int, int]] = Counter()  # a cage may hold links of two tiers
    for (name, _, owner, room), links in ends.items():
        sockets[name, owner, room] += links
    for (name, owner, room), links in sockets.items():
        counts["optic", name, "hosts" if owner < 0 else "switches", None] += -(-links // room)
    return dict(tiers)


def _node(fabric: Fabric, device: int) -> str:
    host = int(fabric.host[device])
    return fabric.host_names[host] if host >= 0 else fabric.device_names[device]


def _cage_owner(fabric: Fabric, device: int) -> int:
    """Return a number for the box whose cages a device's ports are in: hosts below zero."""
    host = int(fabric.host[device])
    return -1 - host if host >= 0 else device


def _cage_links(fabric: Fabric, device: int, rate_bps: int, models: list[str]) -> int:
    """Return how many links of a rate a cage of a device holds."""
    host = int(fabric.host[device])
    if host >= 0:
        found = host_model(models[host]) if models[host] else None
        cages = found.figures.get("nic_cages") if found else None
        return found.nics // int(cages.value) if found and found.nics and cages else 1
    name = fabric.model[device]
    if not name:
        return 1
    model = switch_model(name)
    cage = max(model.ports)
    given = model.figures.get("cage_links")
    if given is not None:
        cage *= int(given.value)
    return max(1, cage // rate_bps)


def _optic(model: CableModel, rate_bps: int, length_mm: int, room: int) -> CableModel:
    """Return the optic of one end: of the same medium, for as many links as its cage holds."""
    same = [one for one in cables_for(rate_bps, length_mm) if one.medium == model.medium]
    fitting = [one for one in same if one.links <= room]
    return max(fitting or same, key=lambda one: (one.links, -one.reach_mm))
