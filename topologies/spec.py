# SPDX-License-Identifier: Apache-2.0
"""The file models that all kinds of topology share, and the registry of kinds.

A new kind is one new file in this package: a `TopologyModel` with the keys of its file and a
``build`` method, under ``@topology("its-name")``.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from railweave.fabric.about import about
from railweave.fabric.devices import host_model, nic_model, rack_model, switch_model
from railweave.fabric.errors import InputError
from railweave.fabric.fields import Delay, FileModel, Length, Rate, Ratio, fault
from railweave.fabric.graph import LinkModel
from railweave.fabric.network_model import NetworkModel
from railweave.fabric.packet.model import LinkBufferModel, LinkPfcModel, LossModel, link_settings
from railweave.fabric.packet.model_rates import EcnModel  # noqa: TC001 - pydantic reads it
from railweave.fabric.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from railweave.fabric.document import Document, Key
    from railweave.fabric.graph import Fabric

__all__ = [
    "SCHEMA",
    "Count",
    "HostLinkSpec",
    "HostName",
    "Hosts",
    "HostsSpec",
    "LeafSpec",
    "LinkSpec",
    "LinksSpec",
    "MachinesSpec",
    "NicName",
    "RackName",
    "Racks",
    "RacksSpec",
    "ResolvedLink",
    "SwitchName",
    "TopologyModel",
    "TopologySpec",
    "UpperSpec",
    "one_or_list",
    "topology",
]

SCHEMA: Final = 1
"""Version of the format of topology files."""

PS_PER_MM: Final = 5
"""Light in fibre needs 4.9 ns per metre (group index 1.468, Corning SMF-28 data sheet), about 5."""


def _known(find: Callable[[str], object]) -> Callable[[str], str]:
    def validate(name: str) -> str:
        try:
            find(name)
        except InputError as error:
            raise fault(error.message, expected=error.expected, nearest=error.nearest) from None
        return name

    return validate


HostName = Annotated[str, AfterValidator(_known(host_model))]
RackName = Annotated[str, AfterValidator(_known(rack_model))]
NicName = Annotated[str, AfterValidator(_known(nic_model))]
SwitchName = Annotated[str, AfterValidator(_known(switch_model))]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
LinkModelName = Literal["roce-lossless", "roce-lossy", "trimming", "infiniband"]


@dataclass(frozen=True, kw_only=True)
class ResolvedLink:
    """What a cable is made of: rate in bit/s, propagation in ps, model."""

    rate_bps: int
    delay_ps: int
    model: LinkModel


def _over(block: str) -> str:
    return about(f"Goes before network.{block}, key by key (packet engine)", f"network.{block}")


class CableSpec(FileModel):
    """Rate, model and length (or delay) of a cable."""

    model: LinkModelName = Field(
        "roce-lossless", description=about("How frames are carried", "roce-lossless")
    )
    rate: Annotated[Rate, Field(ge=1)] = Field(
        description=about("Of each direction", unit="a rate")
    )
    length: Length | None = Field(
        None,
        description=about(
            "5 ns per metre plus the PHY latency", "none: delay says it", unit="a length"
        ),
    )
    delay: Delay | None = Field(
        None,
        description=about(
            "The whole propagation delay, PHY included", "none: length says it", unit="a time"
        ),
    )
    buffer: LinkBufferModel | None = Field(None, description=_over("buffer"))
    pfc: LinkPfcModel | None = Field(None, description=_over("pfc"))
    ecn: EcnModel | None = Field(None, description=_over("ecn"))
    loss: LossModel | None = Field(None, description=_over("loss"))

    @model_validator(mode="after")
    def _one_distance(self) -> CableSpec:
        if (self.length is None) == (self.delay is None):
            said = "both length and delay are given" if self.length is not None else "it is missing"
            raise fault(said, expected="either length or delay", key="delay")
        if self.ecn is not None and self.ecn.at is not None:
            said = "marks are set at one place in the whole network"
            raise fault(said, expected="network.ecn.at", key="ecn")
        return self

    def packet_keys(self) -> dict[str, Any]:
        """Return what these cables have otherwise than the network, as the packet engine has it."""
        return link_settings(buffer=self.buffer, pfc=self.pfc, ecn=self.ecn, loss=self.loss)

    def resolve(self, phy_ps: int) -> ResolvedLink:
        """Return the physical link; ``phy_ps`` is added to a delay given by length."""
        by_length_ps = (self.length or 0) * PS_PER_MM + phy_ps
        return ResolvedLink(
            rate_bps=self.rate,
            delay_ps=by_length_ps if self.delay is None else self.delay,
            model=LinkModel.from_label(self.model),
        )


class LinkSpec(CableSpec):
    """The cables of one tier."""

    count: Count | None = Field(
        None, description="Parallel cables between two switches (default: as the ports ask)"
    )


class HostLinkSpec(CableSpec):
    """The cables of the hosts."""

    count: Count | None = Field(
        None, description="Cables of each NIC to each of its leaves (default: all its ports)"
    )


class LinksSpec(FileModel):
    """The cables of a tiered fabric."""

    host_leaf: HostLinkSpec = Field(alias="host-leaf")
    leaf_spine: LinkSpec | None = Field(None, alias="leaf-spine")
    spine_core: LinkSpec | None = Field(None, alias="spine-core")


class MachinesSpec(FileModel):
    """How many machines, and how they differ from their catalogue entry and from each other."""

    count: Count
    nic: NicName | None = Field(None, description="NICs in place of those of the model")
    rate: Annotated[Rate, Field(ge=1)] | None = Field(
        None, description="Rate of each of their cables (default: links.host-leaf.rate)"
    )
    spare: Count | None = Field(
        None, description="Places left free after these: leaves keep the ports (default: none)"
    )


class HostsSpec(MachinesSpec):
    """How many hosts, of which model."""

    model: HostName


class RacksSpec(MachinesSpec):
    """How many racks, of which model; all GPUs of a rack are one NVLink domain."""

    model: RackName


def one_or_list(value: object) -> str:
    """Return which form of an entry a file uses: ``one`` or ``list``."""
    return "list" if isinstance(value, list | tuple) else "one"


Hosts = Annotated[
    Annotated[HostsSpec, Tag("one")]
    | Annotated[tuple[HostsSpec, ...], Tag("list"), Field(min_length=1, strict=False)],
    Discriminator(one_or_list),
]
"""Hosts of one model, or a list of such entries: their order is that of the hosts."""

Racks = Annotated[
    Annotated[RacksSpec, Tag("one")]
    | Annotated[tuple[RacksSpec, ...], Tag("list"), Field(min_length=1, strict=False)],
    Discriminator(one_or_list),
]
"""Racks of one model, or a list of such entries."""


class LeafSpec(FileModel):
    """The leaf switches."""

    switch: SwitchName


class UpperSpec(FileModel):
    """The switches of an upper tier."""

    switch: SwitchName
    oversubscription: Ratio = Field(
        Fraction(1), description="Bandwidth from below to bandwidth up, of the tier below this"
    )
    count: Count | None = Field(
        None,
        description="Switches in this tier, per plane (default: the fewest whose ports suffice)",
    )


class TopologyModel(FileModel):
    """What every topology file has."""

    schema_: Literal[1] | None = Field(None, alias="schema", description="Version of the format")
    name: str | None = Field(None, min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    kind: str
    source: str | None = Field(None, description="Where the design comes from")
    network: NetworkModel = Field(
        NetworkModel(), description="Defaults of the network settings; a scenario's go before them"
    )

    def build(self, name: str, *, phy_ps: int) -> Fabric:
        """Build the fabric called ``name``; ``phy_ps`` is the PHY part of each cable's delay."""
        raise NotImplementedError

    def content(self) -> dict[str, Any]:
        """Return what decides the fabric, as plain data in a canonical form."""
        return self.model_dump(
            mode="json", by_alias=True, exclude={"schema_", "source"}, exclude_none=True
        )


topology: Registry[type[TopologyModel]] = Registry(
    "kind of topology", package="railweave.topologies"
)
"""The kinds of topology; as a decorator, registers a new one."""


@dataclass(frozen=True, kw_only=True)
class TopologySpec:
    """A checked topology file.

    Parameters
    ----------
    name
        Name of the fabric.
    model
        Its content, one of the models of the kinds.
    document, at
        Where it was read, to name lines in messages.
    """

    name: str
    model: TopologyModel
    document: Document = field(repr=False)
    at: tuple[Key, ...] = ()

    @property
    def kind(self) -> str:
        """The kind: ``rail-optimized``, ``fat-tree``, ``custom``, ..."""
        return self.model.kind

    @property
    def network(self) -> NetworkModel:
        """The file's defaults for the network settings."""
        return self.model.network

    @property
    def file(self) -> str | None:
        """The file it was read from."""
        return self.document.file

    @property
    def sha256(self) -> str:
        """Digest of what the file says, whatever its spelling, order or comments."""
        content = self.model.content() | {"name": self.name}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def locate(self, error: InputError) -> InputError:
        """Return an error about this topology with its file, line and full field."""
        loc = self.at + _keys(error.field)
        return self.document.error(
            error.message, at=loc, expected=error.expected, nearest=error.nearest
        )


def _keys(dotted: str | None) -> tuple[Key, ...]:
    keys = dotted.split(".") if dotted else []
    return tuple(int(key) if key.isdigit() else key for key in keys)
