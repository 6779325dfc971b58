# SPDX-License-Identifier: Apache-2.0
"""What differs between two fabrics: hosts and switches, their parts, cables and rates.

Things are the same where their names are: a device ``leaf0``, a cable ``leaf0:33-spine1:0``. A host
or switch that is only in the one fabric, and that a single one of the other matches in everything
but its name, was renamed; a cable one of whose ends lost its other end was moved.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from railweave.fabric.graph import DeviceKind, LinkModel

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Set

    from railweave.fabric.graph import Fabric
    from railweave.fabric.network import NetworkSettings

__all__ = ["Change", "Difference", "diff", "diff_settings"]

Change = Literal["removed", "added", "renamed", "moved", "changed"]
_ORDER: Final = ("removed", "added", "renamed", "moved", "changed")
_PLACE: Final = ("tier", "group", "rail", "plane")  # arrays of a fabric; a fabric may lack some
_TIERS: Final = {1: "leaf", 2: "spine", 3: "core"}

_PARTS: Final = {
    DeviceKind.GPU: "GPU",
    DeviceKind.NIC: "NIC",
    DeviceKind.NVSWITCH: "NVSwitch",
    DeviceKind.PCIE_SWITCH: "PCIe switch",
    DeviceKind.CPU: "CPU",
    DeviceKind.SWITCH: "switch",
}

_Value = str | int | bool | None
_End = tuple[str, int]  # device and port


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
        Its name in the first fabric; in the second where it was added.
    sort
        What kind of thing it is: ``dgx-h100 host``, ``leaf switch``, ``host-leaf cable``.
    field, before, after
        What changed, from what to what, for things that are in both: ``rate_bps``, ``model``,
        ``name`` of a device, ``end`` of a cable. None means that one side has no such thing.
    """

    what: Literal["device", "cable", "setting"]
    change: Change
    name: str
    sort: str
    field: str | None = None
    before: _Value = None
    after: _Value = None


class _Cable(NamedTuple):
    """A cable between two ends in order of name, and what it is made of."""

    a: _End
    b: _End
    tier: str
    rate_bps: int
    rate_back_bps: int
    delay_ps: int
    model: str
    up: bool

    @property
    def name(self) -> str:
        return f"{self.a[0]}:{self.a[1]}-{self.b[0]}:{self.b[1]}"

    @property
    def sort(self) -> str:
        return f"{self.tier} cable" if self.tier != "link" else "cable"


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
    old, new = _Side(before), _Side(after)
    renamed = _renamed(old, new)
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


class _Side:
    """One of the two fabrics: its hosts and switches (nodes), their parts, and its cables."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.nodes: dict[str, list[int]] = {name: [] for name in fabric.host_names}
        self.node_of: list[str] = []
        for device, host in enumerate(fabric.host.tolist()):
            node = fabric.host_names[host] if host >= 0 else fabric.device_names[device]
            self.nodes.setdefault(node, []).append(device)
            self.node_of.append(node)
        self.hosts = set(fabric.host_names)
        self.names = list(fabric.device_names)
        self.places = [name for name in _PLACE if hasattr(fabric, name)]
        columns = [getattr(fabric, name).tolist() for name in self.places]
        self.place = list(zip(*columns, strict=True))

    def rename(self, names: Mapping[str, str]) -> None:
        """Give nodes, and the parts of hosts, the names that they have in the other fabric."""
        for node, name in names.items():
            self.nodes[name] = self.nodes.pop(node)
            for device in self.nodes[name]:
                self.node_of[device] = name
                self.names[device] = name + self.names[device].removeprefix(node)
            if node in self.hosts:
                self.hosts.remove(node)
                self.hosts.add(name)

    @cached_property
    def index(self) -> dict[str, int]:
        """Device name, as it is in the other fabric, -> dense index."""
        return {name: device for device, name in enumerate(self.names)}

    def is_switch(self, end: _End) -> bool:
        """Tell whether a cable ends at a switch here."""
        return self.node_of[self.index[end[0]]] not in self.hosts

    def part(self, device: int) -> str:
        """Return what a part is called inside its node."""
        return self.names[device].removeprefix(self.node_of[device])

    def sort(self, node: str) -> str:
        """Say what kind of thing a node is."""
        if node in self.hosts:
            gpus = [d for d in self.nodes[node] if self.fabric.kind[d] == DeviceKind.GPU]
            models = sorted({self.fabric.model[gpu] for gpu in gpus})
            return f"host of {len(gpus)} x {' or '.join(models)}" if gpus else "host"
        device = self.nodes[node][0]
        if self.fabric.kind[device] != DeviceKind.SWITCH:
            return _PARTS[DeviceKind(int(self.fabric.kind[device]))]
        tier = _TIERS.get(int(self.fabric.tier[device]))
        return " ".join(filter(None, (self.fabric.model[device], tier, "switch")))

    def cables(self) -> Iterator[_Cable]:
        """Yield every cable, ends in order of name."""
        fabric = self.fabric
        src, dst = fabric.link_src[::2].tolist(), fabric.link_dst[::2].tolist()
        ports = fabric.link_src_port[::2].tolist(), fabric.link_dst_port[::2].tolist()
        rates = fabric.link_rate_bps.tolist()
        delays, up = fabric.link_delay_ps.tolist(), fabric.link_up.tolist()
        labels = {model.value: model.label for model in LinkModel}
        models = [labels[model] for model in fabric.link_model.tolist()]
        for cable, (s, d) in enumerate(zip(src, dst, strict=True)):
            there, back = 2 * cable, 2 * cable + 1
            a, b = (self.names[s], ports[0][cable]), (self.names[d], ports[1][cable])
            if b < a:
                a, b, there, back = b, a, back, there
            yield _Cable(
                a=a,
                b=b,
                tier=fabric.link_tier[there],
                rate_bps=rates[there],
                rate_back_bps=rates[back],
                delay_ps=delays[there],
                model=models[there],
                up=up[there] and up[back],
            )


def _renamed(old: _Side, new: _Side) -> dict[str, str]:
    """Match nodes without a namesake that are alike in all but name, where there is no choice.

    A match settles the name at the other end of its cables, so that it may decide further ones.
    """
    alias = {node: node for node in old.nodes if node in new.nodes}
    missing = [[node for node in side.nodes if node not in alias] for side in (old, new)]
    if not all(missing):
        return {}
    wiring = [_wiring(side, set(nodes)) for side, nodes in zip((old, new), missing, strict=True)]
    renamed: dict[str, str] = {}
    while all(missing):
        known = (alias | renamed, {name: name for name in (*alias, *renamed.values())})
        alike: list[dict[Hashable, list[str]]] = [{}, {}]
        for side, nodes, wires, names, marks in zip(
            (old, new), missing, wiring, known, alike, strict=True
        ):
            for node in nodes:
                ends = ((names.get(wire.peer, "?"), *wire.rest) for wire in wires.get(node, ()))
                mark = (_inside(side, node), tuple(sorted(ends)))
                marks.setdefault(mark, []).append(node)
        fresh = {
            nodes[0]: alike[1][mark][0]
            for mark, nodes in alike[0].items()
            if len(nodes) == 1 and len(alike[1].get(mark, ())) == 1
        }
        if not fresh:
            break
        renamed |= fresh
        taken = set(fresh.values())
        missing[0] = [node for node in missing[0] if node not in fresh]
        missing[1] = [node for node in missing[1] if node not in taken]
    return renamed


class _Wire(NamedTuple):
    """A cable as one of its nodes sees it; ``rest`` is its part and port at both ends, its make."""

    peer: str
    rest: tuple[str | int, ...]


def _wiring(side: _Side, nodes: Set[str]) -> dict[str, list[_Wire]]:
    """Return the cables of some nodes."""
    found: dict[str, list[_Wire]] = {}
    fabric = side.fabric
    src, dst = fabric.link_src.tolist(), fabric.link_dst.tolist()
    for link, (s, d) in enumerate(zip(src, dst, strict=True)):
        if (node := side.node_of[s]) in nodes and node != (peer := side.node_of[d]):
            made = (int(fabric.link_rate_bps[link]), int(fabric.link_rate_bps[link ^ 1]))
            here, there = int(fabric.link_src_port[link]), int(fabric.link_dst_port[link])
            rest = (int(fabric.link_delay_ps[link]), int(fabric.link_model[link]))
            ends = (side.part(d), there, side.part(s), here)
            found.setdefault(node, []).append(_Wire(peer, (*ends, *made, *rest)))
    return found


def _inside(side: _Side, node: str) -> Hashable:
    """Return everything about a node but its name and its cables."""
    fabric, devices = side.fabric, side.nodes[node]
    return tuple(
        (side.part(d), int(fabric.kind[d]), fabric.model[d], side.place[d]) for d in devices
    )


def _nodes(old: _Side, new: _Side, renamed: Mapping[str, str]) -> Iterator[Difference]:
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


def _parts(old: _Side, new: _Side) -> Iterator[Difference]:
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
                    what="device", change="removed", name=name, sort=_part_sort(old, device)
                )
                continue
            values = zip(_facts(old, device).items(), _facts(new, other).items(), strict=True)
            for (field, one), (_, two) in values:
                if one != two:
                    yield Difference(
                        what="device",
                        change="changed",
                        name=name,
                        sort=_part_sort(old, device),
                        field=field,
                        before=one,
                        after=two,
                    )
        for device in beside.values():
            yield Difference(
                what="device",
                change="added",
                name=new.fabric.device_names[device],
                sort=_part_sort(new, device),
            )


def _part_sort(side: _Side, device: int) -> str:
    if side.fabric.kind[device] == DeviceKind.SWITCH:
        tier = _TIERS.get(int(side.fabric.tier[device]))
        return f"{tier} switch" if tier else "switch"
    return _PARTS[DeviceKind(int(side.fabric.kind[device]))]


def _facts(side: _Side, device: int) -> dict[str, _Value]:
    """Return what is compared of a device; -1 (no group, no rail) becomes None."""
    fabric = side.fabric
    places = zip(side.places, side.place[device], strict=True)
    nic = int(fabric.gpu_nic[device])
    return {
        "kind": DeviceKind(int(fabric.kind[device])).name.lower(),
        "model": fabric.model[device] or None,
        **{name: None if value < 0 else value for name, value in places},
        "nic": side.part(nic).removeprefix("/") if nic >= 0 else None,
    }


def _cables(old: _Side, new: _Side) -> Iterator[Difference]:
    """Compare cables by their two ends; what has no counterpart may have moved."""
    after = {(cable.a, cable.b): cable for cable in new.cables()}
    gone = []
    for cable in old.cables():
        other = after.pop((cable.a, cable.b), None)
        if other is None:
            gone.append(cable)
        elif other != cable:
            yield from _remade(cable, other)
    gone = [cable for cable in gone if not _inner(old, cable, new.nodes)]
    came = {ends: cable for ends, cable in after.items() if not _inner(new, cable, old.nodes)}
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


def _remade(cable: _Cable, other: _Cable) -> Iterator[Difference]:
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


def _inner(side: _Side, cable: _Cable, others: Mapping[str, Any]) -> bool:
    """Tell whether a cable lies inside a host that the other fabric has not."""
    a, b = (side.node_of[side.index[device]] for device, _ in (cable.a, cable.b))
    return a == b and a not in others
