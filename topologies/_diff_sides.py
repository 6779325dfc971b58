# SPDX-License-Identifier: Apache-2.0
"""A fabric as `railweave.topologies.diff` compares it: hosts and switches, their parts, cables."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from railweave.fabric.graph import DeviceKind, LinkModel

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Set

    from railweave.fabric.graph import Fabric

__all__ = ["Cable", "End", "Side", "Value", "find_renamed"]

_PLACE: Final = ("tier", "group", "rail")  # arrays of a fabric
_TIERS: Final = {1: "leaf", 2: "spine", 3: "core"}

_PARTS: Final = {
    DeviceKind.GPU: "GPU",
    DeviceKind.NIC: "NIC",
    DeviceKind.NVSWITCH: "NVSwitch",
    DeviceKind.PCIE_SWITCH: "PCIe switch",
    DeviceKind.CPU: "CPU",
    DeviceKind.SWITCH: "switch",
}

Value = str | int | bool | None
End = tuple[str, int]
"""Device and port."""


class Cable(NamedTuple):
    """A cable between two ends in order of name, and what it is made of."""

    a: End
    b: End
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


class Side:
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
        columns = [getattr(fabric, name).tolist() for name in _PLACE]
        self.place = list(zip(*columns, strict=True))
        self._kinds, self._nics = fabric.kind.tolist(), fabric.gpu_nic.tolist()

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

    def is_switch(self, end: End) -> bool:
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

    def mark(self, device: int) -> Hashable:
        """Return what differs where `facts` do, in less time."""
        nic = self._nics[device]
        near = self.part(nic) if nic >= 0 else None
        return self._kinds[device], self.fabric.model[device], self.place[device], near

    def facts(self, device: int) -> dict[str, Value]:
        """Return what is compared of a device; -1 (no group, no rail) becomes None."""
        fabric = self.fabric
        places = zip(_PLACE, self.place[device], strict=True)
        nic = int(fabric.gpu_nic[device])
        return {
            "kind": DeviceKind(int(fabric.kind[device])).name.lower(),
            "model": fabric.model[device] or None,
            **{name: None if value < 0 else value for name, value in places},
            "nic": self.part(nic).removeprefix("/") if nic >= 0 else None,
        }

    def part_sort(self, device: int) -> str:
        """Say what kind of thing a device is."""
        if self.fabric.kind[device] == DeviceKind.SWITCH:
            tier = _TIERS.get(int(self.fabric.tier[device]))
            return f"{tier} switch" if tier else "switch"
        return _PARTS[DeviceKind(int(self.fabric.kind[device]))]

    def is_inside(self, cable: Cable) -> str | None:
        """Return the host that a cable lies inside, if any."""
        a, b = (self.node_of[self.index[device]] for device, _ in (cable.a, cable.b))
        return a if a == b else None

    def cables(self) -> Iterator[Cable]:
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
            yield Cable(
                a=a,
                b=b,
                tier=fabric.link_tier[there],
                rate_bps=rates[there],
                rate_back_bps=rates[back],
                delay_ps=delays[there],
                model=models[there],
                up=up[there] and up[back],
            )


def find_renamed(old: Side, new: Side) -> dict[str, str]:
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


def _wiring(side: Side, nodes: Set[str]) -> dict[str, list[_Wire]]:
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


def _inside(side: Side, node: str) -> Hashable:
    """Return everything about a node but its name and its cables."""
    fabric, devices = side.fabric, side.nodes[node]
    return tuple(
        (side.part(d), int(fabric.kind[d]), fabric.model[d], side.place[d]) for d in devices
    )
