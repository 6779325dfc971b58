# SPDX-License-Identifier: Apache-2.0
"""What differs between two fabrics: hosts and switches, their parts, cables and rates.

Things are the same where their names are: a device ``leaf0``, a cable ``leaf0:33-spine1:0``. A host
or switch that is only in the one fabric, and that a single one of the other matches in everything
but its name, was renamed; a cable one of whose ends lost its other end was moved.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Literal

from railweave.topologies._diff_sides import Cable, Side, Value, find_renamed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from railweave.fabric.graph import Fabric
    from railweave.fabric.network import NetworkSettings

__all__ = ["Change", "Difference", "diff", "diff_settings"]

Change = Literal["removed", "added", "renamed", "moved", "changed"]
_ORDER: Final = ("removed", "added", "renamed", "moved", "changed")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that is not the same.

    Parameters
    ----------
    what
        ``device`` (a host, a switch or a part of a host), ``cable``, or ``setting`` of the network.
    change
        ``removed`` (only the first fabric has it), ``added`` (only the second), ``renamed``,
        ``moved`` (a cable keeps one end) or ``changed``.
    name
        Its name in the first fabric; in the second where it was added. Cables of renamed devices
        are called by the new names.
    sort
        What kind of thing it is: ``host of 8 x h100``, ``leaf switch``, ``host-leaf cable``.
    field, before, after
        What changed, from what to what, for things that are in both: ``rate_bps``, ``model``,
        ``name`` of a device, ``end`` of a cable. None means that one side has no such thing.
    """

    what: Literal["device", "cable", "setting"]
    change: Change
    name: str
    sort: str
    field: str | None = None
    before: Value = None
    after: Value = None


def diff(before: Fabric, after: Fabric) -> list[Difference]:
    """Compare two fabrics; an empty list says that they are the same but for their own names.

    Devices come first, then cables; each removed, added, renamed, moved, changed, then by place in
    the fabric that has them. Cables inside a host that only one fabric has go with the host. The
    order of devices and cables does not count.

    Parameters
    ----------
    before, after
        The fabrics; what only the second has counts as added.
    """
    old, new = Side(before), Side(after)
    renamed = find_renamed(old, new)
    old.rename(renamed)
    found = [*_nodes(old, new, renamed), *_parts(old, new), *_cables(old, new)]
    return sorted(found, key=lambda one: (one.what == "cable", _ORDER.index(one.change)))


def diff_settings(before: NetworkSettings, after: NetworkSettings) -> list[Difference]:
    """Compare the network settings that two topology files lead to, defaults included."""
    pairs = zip(asdict(before).items(), asdict(after).items(), strict=True)
    return [
        Difference(
            what="setting",
            change="changed",
            name=name,
            sort="network setting",
            field=name,
            before=one,
            after=two,
        )
        for (name, one), (_, two) in pairs
        if one != two
    ]


def _nodes(old: Side, new: Side, renamed: Mapping[str, str]) -> Iterator[Difference]:
    for node in old.nodes:
        if node not in new.nodes:
            yield Difference(what="device", change="removed", name=node, sort=old.sort(node))
    for node in new.nodes:
        if node not in old.nodes:
            yield Difference(what="device", change="added", name=node, sort=new.sort(node))
    for before, after in renamed.items():
        yield Difference(
            what="device",
            change="renamed",
            name=before,
            sort=old.sort(after),
            field="name",
            before=before,
            after=after,
        )


def _parts(old: Side, new: Side) -> Iterator[Difference]:
    """Compare the devices of nodes that are in both."""
    for node, devices in old.nodes.items():
        if node not in new.nodes:
            continue
        beside = {new.part(device): device for device in new.nodes[node]}
        for device in devices:
            other = beside.pop(old.part(device), None)
            name = old.fabric.device_names[device]
            if other is None:
                yield Difference(
                    what="device", change="removed", name=name, sort=old.part_sort(device)
                )
                continue
            if old.mark(device) == new.mark(other):
                continue
            values = zip(old.facts(device).items(), new.facts(other).items(), strict=True)
            for (field, one), (_, two) in values:
                if one != two:
                    yield Difference(
                        what="device",
                        change="changed",
                        name=name,
                        sort=old.part_sort(device),
                        field=field,
                        before=one,
                        after=two,
                    )
        for device in beside.values():
            yield Difference(
                what="device",
                change="added",
                name=new.fabric.device_names[device],
                sort=new.part_sort(device),
            )


def _cables(old: Side, new: Side) -> Iterator[Difference]:
    """Compare cables by their two ends; what has no counterpart may have moved."""
    after = {(cable.a, cable.b): cable for cable in new.cables()}
    gone = []
    for cable in old.cables():
        other = after.pop((cable.a, cable.b), None)
        if other is None:
            gone.append(cable)
        elif other != cable:
            yield from _remade(cable, other)
    gone = [cable for cable in gone if _goes_alone(old, cable, new)]
    came = {ends: cable for ends, cable in after.items() if _goes_alone(new, cable, old)}
    free = {(cable.tier, end): cable for cable in came.values() for end in (cable.a, cable.b)}
    for cable in gone:
        ends = sorted((cable.a, cable.b), key=old.is_switch)  # better the end at a host stays
        end = next((end for end in ends if (cable.tier, end) in free), None)
        if end is None:
            yield Difference(what="cable", change="removed", name=cable.name, sort=cable.sort)
            continue
        other = free[cable.tier, end]
        del came[other.a, other.b]
        for taken in (other.a, other.b):
            free.pop((cable.tier, taken), None)
        was = cable.b if end == cable.a else cable.a
        now = other.b if end == other.a else other.a
        yield Difference(
            what="cable",
            change="moved",
            name=cable.name,
            sort=cable.sort,
            field="end",
            before=f"{was[0]}:{was[1]}",
            after=f"{now[0]}:{now[1]}",
        )
        yield from _remade(cable, other)
    for cable in came.values():
        yield Difference(what="cable", change="added", name=cable.name, sort=cable.sort)


def _remade(cable: Cable, other: Cable) -> Iterator[Difference]:
    """Say in what two cables between the same ends differ."""
    same_back = cable.rate_bps == cable.rate_back_bps and other.rate_bps == other.rate_back_bps
    for field in ("tier", "rate_bps", "rate_back_bps", "delay_ps", "model", "up"):
        one, two = getattr(cable, field), getattr(other, field)
        if one != two and not (field == "rate_back_bps" and same_back):
            yield Difference(
                what="cable",
                change="changed",
                name=cable.name,
                sort=cable.sort,
                field=field,
                before=one,
                after=two,
            )


def _goes_alone(side: Side, cable: Cable, other: Side) -> bool:
    """Tell whether a cable is not just part of a host that the other fabric has not."""
    host = side.is_inside(cable)
    return host is None or host in other.nodes
