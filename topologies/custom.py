# SPDX-License-Identifier: Apache-2.0
"""Fabrics written out: any nodes, any links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from railweave.fabric.devices import HostModel, host_model, switch_model
from railweave.fabric.errors import InputError, nearest_name
from railweave.fabric.fields import FileModel, fault
from railweave.fabric.graph import DeviceKind, FabricBuilder
from railweave.topologies.hosts import add_host, check_nic_rate
from railweave.topologies.spec import (
    CableSpec,
    Count,
    HostName,
    SwitchName,
    TopologyModel,
    topology,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from railweave.fabric.graph import Fabric

__all__ = ["Custom"]

_TIERS: Final = {"leaf": 1, "spine": 2, "core": 3}
_TIER_NAMES: Final = {(1, 2): "leaf-spine", (2, 3): "spine-core"}
_LAST_NUMBER: Final = 65_535
_NODE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_END: Final = re.compile(r"(?P<node>[^/:]+)(?:/nic(?P<nic>\d+))?(?::(?P<port>\d+))?")


class HostNode(FileModel):
    """A host of the catalogue."""

    type: Literal["host"]
    model: HostName = "host"


class SwitchNode(FileModel):
    """A switch, with its catalogue entry and its tier if it has them."""

    type: Literal["switch"]
    model: SwitchName | None = None
    tier: Literal["leaf", "spine", "core"] | None = None


_Full = HostNode | SwitchNode


def _node_form(value: Any) -> str:
    if not isinstance(value, dict | HostNode | SwitchNode):
        return "bare"
    found = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if found in ("host", "switch"):
        return str(found)
    return "switch" if isinstance(value, dict) and "tier" in value else "host"


Node = Annotated[
    Annotated[Literal["host", "switch"], Tag("bare")]
    | Annotated[HostNode, Tag("host")]
    | Annotated[SwitchNode, Tag("switch")],
    Discriminator(_node_form),
]


class CustomLink(CableSpec):
    """One or several parallel cables."""

    ends: tuple[str, str] = Field(strict=False, description="Nodes, parts (g/nic3) or ports (l1:5)")
    count: Count = Field(1, description="Parallel cables")


@topology("custom")
class Custom(TopologyModel):
    """Named hosts and switches, and the links between them."""

    kind: Literal["custom"]
    nodes: dict[str, Node] = Field(min_length=1)
    links: list[CustomLink] = Field(default_factory=list)

    @model_validator(mode="after")
    def _names(self) -> Custom:
        for name in self.nodes:
            if not _NODE.fullmatch(name):
                raise fault(
                    f"'{name}' cannot be the name of a node",
                    expected="letters, digits, '_', '.' and '-'",
                    key="nodes",
                )
        return self

    def build(self, name: str, *, phy_ps: int) -> Fabric:
        """Build the fabric: devices in the order of ``nodes``, cables in the order of ``links``."""
        nodes = {key: _full(node) for key, node in self.nodes.items()}
        ends = [
            _read_end(text, nodes, count=link.count, field=f"links.{i}.ends.{side}")
            for i, link in enumerate(self.links)
            for side, text in enumerate(link.ends)
        ]
        build = FabricBuilder(name)
        plugs = _Plugs(build, nodes, ends)
        keys = []
        for i, link in enumerate(self.links):
            a, b = ends[2 * i : 2 * i + 2]
            if a.node == b.node:
                raise InputError(
                    f"both ends are '{a.node}'", field=f"links.{i}.ends", expected="two nodes"
                )
            wire = link.resolve(phy_ps)
            for node in (nodes[a.node], nodes[b.node]):
                if isinstance(node, HostNode):
                    check_nic_rate(host_model(node.model), wire.rate_bps, field=f"links.{i}.rate")
            for nth in range(link.count):
                (a_device, a_port), (b_device, b_port) = plugs.take(a, nth), plugs.take(b, nth)
                number = build.add_cable(
                    a_device,
                    b_device,
                    rate_bps=wire.rate_bps,
                    delay_ps=wire.delay_ps,
                    model=wire.model,
                    tier=_tier_name(nodes[a.node], nodes[b.node]),
                    a_port=a_port,
                    b_port=b_port,
                )
                if own := link.packet_keys():
                    keys.append(((number, number + 1), own))
        return build.finish(kind=self.kind, **({"link_keys": tuple(keys)} if keys else {}))


def _full(node: Literal["host", "switch"] | _Full) -> _Full:
    if isinstance(node, str):
        return HostNode(type="host") if node == "host" else SwitchNode(type="switch")
    return node


def _tier_name(a: _Full, b: _Full) -> str:
    """Return the tier class of a cable: hosts stand below every switch but spines and cores."""
    levels = sorted(
        0 if isinstance(node, HostNode) else _TIERS.get(node.tier or "", -1) for node in (a, b)
    )
    if levels in ([0, 1], [-1, 0]):
        return "host-leaf"
    return _TIER_NAMES.get((levels[0], levels[1]), "link")


@dataclass(frozen=True, kw_only=True)
class _End:
    """One end of a link as written: a node, perhaps its NIC, perhaps its first port."""

    node: str
    nic: int | None
    port: int | None
    count: int
    field: str

    @property
    def device(self) -> str:
        """The name of the device, as far as it is given."""
        return self.node if self.nic is None else f"{self.node}/nic{self.nic}"


def _read_end(text: str, nodes: Mapping[str, _Full], *, count: int, field: str) -> _End:
    match = _END.fullmatch(text)
    if match is None:
        raise InputError(
            f"'{text}' is not the end of a link", field=field, expected="a node, g/nic3 or l1:5"
        )
    node, nic, port = (match[part] for part in ("node", "nic", "port"))
    for what, number in (("NIC", nic), ("port", port)):
        if number is not None and (len(number) > 6 or int(number) > _LAST_NUMBER):
            raise InputError(
                f"there is no {what} {number[:20]}", field=field, expected=f"0 to {_LAST_NUMBER}"
            )
    if node not in nodes:
        raise InputError(
            f"there is no node '{node}'", field=field, nearest=nearest_name(node, nodes)
        )
    full = nodes[node]
    is_host = isinstance(full, HostNode)
    if nic is not None and not is_host:
        raise InputError(
            f"'{node}' is a switch and has no NIC", field=field, expected=f"{node}:PORT"
        )
    if port is not None and is_host and nic is None:
        raise InputError(
            f"'{node}' is a host: its NICs have the ports",
            field=field,
            expected=f"{node}/nic0:{port}",
        )
    if port is not None and isinstance(full, SwitchNode) and full.model:
        ports = max(switch_model(full.model).ports.values())
        if int(port) + count > ports:
            raise InputError(
                f"'{node}' has no port {int(port) + count - 1}",
                field=field,
                expected=f"0 to {ports - 1} ({full.model})",
            )
    return _End(
        node=node,
        nic=None if nic is None else int(nic),
        port=None if port is None else int(port),
        count=count,
        field=field,
    )


class _Ports:
    """The ports of one device; those named in the file are kept for their links."""

    def __init__(self, device: int, limit: int | None) -> None:
        self.device = device
        self._limit = limit
        self._taken: set[int] = set()

    def reserve(self, end: _End) -> None:
        for port in range(end.port or 0, (end.port or 0) + end.count):
            if self._limit is not None and port >= self._limit:
                raise self._none_left(end)
            if port in self._taken:
                raise InputError(f"port {port} of '{end.device}' is used twice", field=end.field)
            self._taken.add(port)

    def take(self, end: _End) -> int:
        port = next(n for n in range(len(self._taken) + 1) if n not in self._taken)
        if self._limit is not None and port >= self._limit:
            raise self._none_left(end)
        self._taken.add(port)
        return port

    def _none_left(self, end: _End) -> InputError:
        return InputError(
            f"'{end.device}' has {self._limit} port(s), which is too few", field=end.field
        )


class _Plugs:
    """Adds the nodes, then hands out their NICs and ports."""

    def __init__(
        self, build: FabricBuilder, nodes: Mapping[str, _Full], ends: Sequence[_End]
    ) -> None:
        self._switches: dict[str, _Ports] = {}
        self._nics: dict[str, dict[int, _Ports]] = {}
        self._free: dict[str, list[int]] = {}
        by_node: dict[str, list[_End]] = {name: [] for name in nodes}
        for end in ends:
            by_node[end.node].append(end)
        for number, (name, node) in enumerate(nodes.items()):
            if isinstance(node, SwitchNode):
                device = build.add_device(
                    name,
                    DeviceKind.SWITCH,
                    index=number,
                    tier=_TIERS.get(node.tier or "", -1),
                    model=switch_model(node.model).name if node.model else "",
                )
                self._switches[name] = _Ports(device, None)
            else:
                self._add_host(build, name, host_model(node.model), by_node[name])
        for end in ends:
            if end.port is not None:
                self._ports(end).reserve(end)

    def _add_host(
        self, build: FabricBuilder, name: str, model: HostModel, ends: Sequence[_End]
    ) -> None:
        named = {end.nic for end in ends if end.nic is not None}
        if model.nics is not None:
            numbers = list(range(model.nics))
        else:  # a bare host: a NIC for each cable whose end does not name one
            unnamed = sum(end.count for end in ends if end.nic is None)
            spare = (n for n in range(len(named) + unnamed) if n not in named)
            numbers = sorted((*named, *islice(spare, unnamed)))
        limit = model.nic.ports if model.nic else 1
        devices = add_host(build, name, model, nics=numbers)
        self._nics[name] = {nic: _Ports(device, limit) for nic, device in devices.items()}
        self._free[name] = [nic for nic in numbers if nic not in named for _ in range(limit)]

    def _ports(self, end: _End) -> _Ports:
        if end.node in self._switches:
            return self._switches[end.node]
        nics = self._nics[end.node]
        if end.nic is not None:
            if end.nic not in nics:
                raise InputError(
                    f"'{end.node}' has no NIC {end.nic}",
                    field=end.field,
                    expected=f"{end.node}/nic0 to nic{max(nics)}",
                )
            return nics[end.nic]
        if not self._free[end.node]:
            raise InputError(f"'{end.node}' has no NIC left of {len(nics)}", field=end.field)
        return nics[self._free[end.node].pop(0)]

    def take(self, end: _End, nth: int) -> tuple[int, int]:
        """Return device and port for the ``nth`` cable that ends at ``end``."""
        ports = self._ports(end)
        return ports.device, (ports.take(end) if end.port is None else end.port + nth)
