# SPDX-License-Identifier: Apache-2.0
"""Where hosts and switches stand, so that lengths of cables mean something.

The rule, every number of which can be changed:

1. Hosts fill racks in their order, a group (scalable unit) beginning a new rack. A rack takes
   ``min(power // power of a host, (height - 4U) // height of a host)`` of them, at least one; a
   rack of an NVLink domain is a rack.
2. A leaf whose hosts all stand in one rack stands in it, at the top, as long as the 4U kept free
   last; every other leaf stands in a network rack in the middle of its group's racks.
3. Switches above leaves stand in network racks in the middle of the hall. A network rack that is
   full but for 4U is followed by another.
4. Racks stand in rows. A cable runs up to the tray, along and across the rows by right angles, and
   down, with slack at both ends; inside a rack it runs straight, with little slack.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from railweave.fabric.devices import host_model, switch_model
from railweave.fabric.errors import InputError
from railweave.fabric.graph import DeviceKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from railweave.fabric.graph import Fabric
    from railweave.topologies.spec import TopologySpec

__all__ = ["Hall", "Place", "Racks", "host_models", "place"]

_UNIT_MM: Final = 45  # a rack unit is 44.45 mm (EIA-310)
_KEPT_UNITS: Final = 4
_SWITCH_UNITS: Final = 2  # of a model without a figure
_HOST_UNITS: Final = 8


@dataclass(frozen=True, kw_only=True)
class Hall:
    """Racks and their distances; all of it assumed, and to be replaced by the real hall's.

    Parameters
    ----------
    power_mw, units
        What a rack feeds, in milliwatts, and its height: 44 kW take the four DGX H100 that the
        DGX SuperPOD reference architecture (RA-11333-001) puts into racks of over 40 kW.
    row
        Racks in a row.
    pitch_mm, aisle_mm
        From rack to rack in a row, and from row to row.
    tray_mm
        From the top of a rack up to the cable tray.
    slack_mm, rack_slack_mm
        At each end of a cable between racks, and inside one.
    """

    power_mw: int = 44_000_000
    units: int = 48
    row: int = 20
    pitch_mm: int = 600
    aisle_mm: int = 3000
    tray_mm: int = 500
    slack_mm: int = 2000
    rack_slack_mm: int = 300


@dataclass(frozen=True, kw_only=True)
class Place:
    """Number of a rack, and the unit, from 1 at the bottom, where a device begins."""

    rack: int
    unit: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Racks:
    """The racks of a fabric.

    Parameters
    ----------
    hall
        The rule's numbers.
    names
        Name of each rack: ``r0`` with hosts, ``n1`` with switches.
    at
        Where each host and switch stands, by name.
    hosts_per_rack
        How many hosts the rule puts into a rack, by host model.
    """

    hall: Hall
    names: tuple[str, ...]
    at: Mapping[str, Place]
    hosts_per_rack: Mapping[str, int]

    def length_mm(self, a: str, b: str) -> int:
        """Return the length of a cable between two hosts or switches, up to the next metre."""
        one, other, hall = self.at[a], self.at[b], self.hall
        if one.rack == other.rack:
            run = abs(one.unit - other.unit) * _UNIT_MM + 2 * hall.rack_slack_mm
        else:
            up = sum((hall.units - end.unit) * _UNIT_MM + hall.tray_mm for end in (one, other))
            (row, seat), (row_b, seat_b) = (divmod(end.rack, hall.row) for end in (one, other))
            across = abs(row - row_b) * hall.aisle_mm + abs(seat - seat_b) * hall.pitch_mm
            run = up + across + 2 * hall.slack_mm
        return -(-run // 1000) * 1000


def host_models(fabric: Fabric, spec: TopologySpec | None) -> list[str]:
    """Return the catalogue name of each host, in dense order; empty where it is not known."""
    count = len(fabric.host_names)
    if spec is None:
        return [""] * count
    if spec.kind == "custom":
        nodes = spec.model.nodes  # type: ignore[attr-defined]
        return [getattr(nodes.get(name), "model", "host") for name in fabric.host_names]
    content = spec.model.content()
    entries = content.get("racks", content.get("hosts"))
    listed: list[dict[str, Any]] = entries if isinstance(entries, list) else [entries or {}]
    found: list[str] = []
    for entry in listed:
        if "model" not in entry:
            continue
        number = entry.get("count", count)
        if "racks" in content:
            from railweave.fabric.devices import rack_model

            rack = rack_model(entry["model"])
            found += [rack.host.name] * (number * rack.hosts)
        else:
            found += [host_model(entry["model"]).name] * number
    return found[:count] + [""] * (count - len(found))


def place(fabric: Fabric, spec: TopologySpec | None = None, *, hall: Hall | None = None) -> Racks:
    """Place hosts and switches by the rule above.

    Raises
    ------
    InputError
        The hall has no room for a host or a switch at all.
    """
    hall = hall or Hall()
    if hall.units <= _KEPT_UNITS or hall.row < 1 or hall.power_mw <= 0:
        raise InputError("no host fits into such racks", expected=f"more than {_KEPT_UNITS} units")
    models = host_models(fabric, spec)
    domain_hosts = _domain_hosts(spec)
    rack_of, unit_of, per_rack, last = _place_hosts(fabric, hall, models, domain_hosts)
    homes, network = _leaf_homes(fabric, hall, rack_of)
    order = _row_of_racks(last, network)
    names = [name for name, _ in order]
    seat = {key: number for number, (_, key) in enumerate(order)}
    at: dict[str, Place] = {}
    for host, rack in enumerate(rack_of):
        name = fabric.host_names[host]
        at[name] = Place(rack=seat["hosts", rack, 0], unit=unit_of[host])
    tops: dict[int, int] = {}
    for device, key in homes.items():
        number = seat[key]
        model = fabric.model[device]
        height = (switch_model(model).footprint.rack_units if model else None) or _SWITCH_UNITS
        top = tops.get(number, hall.units)
        tops[number] = top - height
        at[fabric.device_names[device]] = Place(rack=number, unit=max(1, top - height + 1))
    return Racks(hall=hall, names=tuple(names), at=at, hosts_per_rack=per_rack)


_Key = tuple[str, int, int]
"""Kind of a rack, what it serves, and its number among those that serve it."""


def _domain_hosts(spec: TopologySpec | None) -> int:
    """Return the hosts of a rack that is sold whole, or 0."""
    if spec is None or spec.kind != "nvl-domain":
        return 0
    from railweave.fabric.devices import rack_model

    entries = spec.model.content()["racks"]
    entry = entries[0] if isinstance(entries, list) else entries
    return rack_model(entry["model"]).hosts


def _place_hosts(
    fabric: Fabric, hall: Hall, models: list[str], domain_hosts: int
) -> tuple[list[int], list[int], dict[str, int], dict[int, int]]:
    """Return rack and unit of each host, hosts per rack by model, and the group of each rack."""
    group_of_host = np.full(len(fabric.host_names), -1, np.int64)
    parts = np.flatnonzero(fabric.host >= 0)
    group_of_host[fabric.host[parts]] = fabric.group[parts]
    racks: list[int] = []
    units: list[int] = []
    per_rack: dict[str, int] = {}
    group_of_rack: dict[int, int] = {}
    rack, filled, before = -1, 0, None
    for host, model in enumerate(models):
        found = host_model(model).footprint if model else None
        height = (found.rack_units if found else None) or _HOST_UNITS
        power = (found.max_power_mw or found.power_mw) if found else None
        room = (hall.units - _KEPT_UNITS) // height
        if power:
            room = min(room, hall.power_mw // power)
        if room < 1 and not domain_hosts:
            drawn = f" and {power / 1e6:g} kW" if power else ""
            raise InputError(
                f"a rack of {hall.units} units ({_KEPT_UNITS} kept free) and "
                f"{hall.power_mw / 1e6:g} kW holds no {model or 'host'} of {height} units{drawn}",
                expected="racks of more power (--rack-power) or height (--rack-units)",
            )
        room = domain_hosts or room
        per_rack[model] = room
        group = int(group_of_host[host])
        if filled >= room or (group, model) != before:
            rack, filled = rack + 1, 0
            group_of_rack[rack] = group
        before = group, model
        racks.append(rack)
        units.append(min(hall.units, 1 + filled * height))
        filled += 1
    return racks, units, per_rack, group_of_rack


def _leaf_homes(
    fabric: Fabric, hall: Hall, rack_of: list[int]
) -> tuple[dict[int, _Key], dict[_Key, list[int]]]:
    """Return where each switch stands, and the switches of each network rack."""
    below: dict[int, set[int]] = {}
    is_nic = fabric.kind == DeviceKind.NIC
    links = fabric.link_network & is_nic[fabric.link_src]
    for nic, switch in zip(
        fabric.link_src[links].tolist(), fabric.link_dst[links].tolist(), strict=True
    ):
        below.setdefault(switch, set()).add(rack_of[int(fabric.host[nic])])
    room: dict[int, int] = {}
    filled: dict[tuple[str, int], int] = {}
    homes: dict[int, _Key] = {}
    network: dict[_Key, list[int]] = {}
    for device in fabric.switches.tolist():
        model = fabric.model[device]
        height = (switch_model(model).footprint.rack_units if model else None) or _SWITCH_UNITS
        own = below.get(device, set())
        if len(own) == 1:
            (rack,) = own
            if room.get(rack, 0) + height <= _KEPT_UNITS:
                room[rack] = room.get(rack, 0) + height
                homes[device] = ("hosts", rack, 0)
                continue
        middle = sorted(own)[len(own) // 2] if own else -1
        served = ("upper", 0)
        if own:
            group = int(fabric.group[device])
            served = ("leaves", group if group >= 0 else middle)
        filled[served] = filled.get(served, 0) + height
        key = (*served, (filled[served] - 1) // (hall.units - _KEPT_UNITS))
        homes[device] = key
        network.setdefault(key, []).append(device)
    return homes, network


def _row_of_racks(groups: dict[int, int], network: dict[_Key, list[int]]) -> list[tuple[str, _Key]]:
    """Return the racks in the order in which they stand, network racks amid those they serve."""
    order: list[_Key] = []
    by_group: dict[int, list[int]] = {}
    for rack, group in groups.items():
        by_group.setdefault(group, []).append(rack)
    for group, racks in by_group.items():
        row: list[_Key] = [("hosts", rack, 0) for rack in racks]
        mine = [key for key in network if key[0] == "leaves" and key[1] == group]
        if group < 0:  # without groups a leaf's network rack stands by its middle rack
            mine = [key for key in network if key[0] == "leaves"]
        for key in mine:
            row.insert(len(row) // 2 if group >= 0 else row.index(("hosts", key[1], 0)) + 1, key)
        order += row
    order += [key for key in network if key[0] == "leaves" and key not in order]
    middle = len(order) // 2
    order[middle:middle] = [key for key in network if key[0] == "upper"]
    return [(f"{'r' if key[0] == 'hosts' else 'n'}{i}", key) for i, key in enumerate(order)]
