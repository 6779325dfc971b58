# SPDX-License-Identifier: Apache-2.0
"""The hosts of a tiered fabric: their places, and the cables that wait for a leaf.

Hosts stand in *places*, counted from 0 in the order of the file. A place may be spare: its leaf
ports are kept, but nobody stands there (DGX SuperPOD H100 gives one place to the fabric manager).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.devices import host_model, nic_model, rack_model
from railweave.fabric.errors import InputError
from railweave.fabric.graph import DeviceKind, FabricBuilder
from railweave.topologies.hosts import add_host, check_nic_rate
from railweave.topologies.spec import MachinesSpec, RacksSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from railweave.fabric.devices import HostModel, RackModel
    from railweave.fabric.graph import Fabric
    from railweave.topologies.spec import HostLinkSpec, HostsSpec

__all__ = ["MOST_PLACES", "Batch", "Plugs", "Roster", "add_roster", "roster_of"]

MOST_PLACES: Final = 1_000_000
"""Hosts that a file may list: a typing error must not fill the memory."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Hosts of one kind in places that follow each other.

    Parameters
    ----------
    model
        The hosts.
    rack
        The racks that they fill, or None.
    count, spare
        Hosts, and free places after them.
    nics, ports
        NICs of a host and cables of a NIC.
    rate_bps
        Rate of each cable.
    field
        Where the file describes them.
    """

    model: HostModel
    rack: RackModel | None
    count: int
    spare: int
    nics: int
    ports: int
    rate_bps: int
    field: str

    @property
    def places(self) -> int:
        """Places taken and spare."""
        return self.count + self.spare

    @property
    def cables(self) -> int:
        """Cables of a host."""
        return self.nics * self.ports


@dataclass(frozen=True, kw_only=True)
class Roster:
    """All hosts of a fabric; ``field`` is the key of the file that lists them."""

    batches: tuple[Batch, ...]
    field: str

    @property
    def places(self) -> int:
        """Places in all."""
        return sum(batch.places for batch in self.batches)

    @property
    def batch_of_place(self) -> NDArray[np.int64]:
        """int64 (places,): number of the batch of each place."""
        return np.repeat(np.arange(len(self.batches)), [batch.places for batch in self.batches])

    @property
    def most_cables(self) -> int:
        """Cables of the host that has most."""
        return max(batch.cables for batch in self.batches)

    @property
    def fastest_bps(self) -> int:
        """Rate of the fastest cables."""
        return max(batch.rate_bps for batch in self.batches)


def roster_of(
    specs: HostsSpec | RacksSpec | Sequence[HostsSpec | RacksSpec],
    link: HostLinkSpec,
    *,
    planes: int = 1,
    field: str = "hosts",
) -> Roster:
    """Return the hosts that a file lists.

    Parameters
    ----------
    specs
        An entry, or a list of them.
    link
        The cables of the hosts.
    planes
        Planes over which the ports of each NIC are split.
    field
        Key of the file, for messages.

    Raises
    ------
    InputError
        A cable that is faster than the NIC, more cables than ports, ports that the planes do not
        divide, or more hosts than `MOST_PLACES`.
    """
    one = isinstance(specs, MachinesSpec)
    listed = (specs,) if isinstance(specs, MachinesSpec) else specs
    batches = [
        _batch(spec, link, planes, field if one else f"{field}.{i}")
        for i, spec in enumerate(listed)
    ]
    roster = Roster(batches=tuple(batches), field=field)
    if roster.places > MOST_PLACES:
        raise InputError(
            f"there are {roster.places} places for hosts",
            field=field,
            expected=f"at most {MOST_PLACES}",
        )
    return roster


def _batch(spec: HostsSpec | RacksSpec, link: HostLinkSpec, planes: int, field: str) -> Batch:
    rack = rack_model(spec.model) if isinstance(spec, RacksSpec) else None
    model = rack.host if rack is not None else host_model(spec.model)
    if spec.nic is not None:
        if model.nic is None:
            raise InputError(
                f"{model.name} takes a NIC for each cable",
                field=f"{field}.nic",
                expected="no such key",
            )
        model = replace(model, nic=nic_model(spec.nic))
    rate_bps = spec.rate or link.rate
    check_nic_rate(
        model, rate_bps, field="links.host-leaf.rate" if spec.rate is None else f"{field}.rate"
    )
    each = 1 if rack is None else rack.hosts
    return Batch(
        model=model,
        rack=rack,
        count=spec.count * each,
        spare=(spec.spare or 0) * each,
        nics=1 if model.nics is None else model.nics,
        ports=_cabled_ports(model, link.count, planes, field),
        rate_bps=rate_bps,
        field=field,
    )


def _cabled_ports(model: HostModel, asked: int | None, planes: int, field: str) -> int:
    """Return how many ports of each NIC are cabled."""
    has = model.nic.ports if model.nic is not None else 1
    name = model.nic.name if model.nic is not None else model.name
    if asked is None:
        if has % planes:
            raise InputError(
                f"{planes} planes do not divide the {has} port{'s' * (has > 1)} of {name}",
                field="planes",
                expected=f"NICs with a multiple of {planes} ports ({field}.nic)",
            )
        return has
    if asked * planes > has:
        raise InputError(
            f"{asked} cables from each NIC to each of {planes} leaves, but {name} has {has} port"
            f"{'s' * (has > 1)}"
            if planes > 1
            else f"{asked} cables from each NIC, but {name} has {has} port{'s' * (has > 1)}",
            field="links.host-leaf.count",
            expected=f"at most {has // planes}",
        )
    return asked * planes


@dataclass(frozen=True, eq=False)
class Plugs:
    """The network cables of all hosts at their lower end, host by host, NIC by NIC.

    Each is an int64 array: the device and port of the NIC; the place of its host; the number of
    the NIC in its host; the batch of the host.
    """

    device: NDArray[np.int64]
    port: NDArray[np.int64]
    place: NDArray[np.int64]
    nic: NDArray[np.int64]
    batch: NDArray[np.int64]


def add_roster(
    build: FabricBuilder, roster: Roster, *, group_of: NDArray[np.int64], rails: int | None
) -> Plugs:
    """Add all hosts to a fabric and return the cables that wait for a leaf.

    Parameters
    ----------
    build
        The fabric under construction.
    roster
        The hosts.
    group_of
        int64 (places,): the group of each place.
    rails
        NIC i of a host is of rail ``i mod rails``; None: NICs are of no rail.
    """
    found: list[tuple[NDArray[np.int64], ...]] = []
    hosts = frames = first = 0
    for number, batch in enumerate(roster.batches):
        like = _template(batch, rails)
        each = 1 if batch.rack is None else batch.rack.hosts
        places = first + np.arange(batch.count)
        names = [f"h{hosts + i}" for i in range(batch.count)]
        copies = batch.count // each
        groups = group_of[places[::each]]
        if batch.rack is None:
            numbers = build.add_copies(like, names, group=groups)
        else:
            racks = [f"rack{frames + i}" for i in range(copies)]
            numbers = build.add_copies(like, racks, hosts=names, group=groups)
            frames += copies
        nics = np.flatnonzero(like.kind == DeviceKind.NIC)
        devices = np.repeat(numbers[:, nics].astype(np.int64).ravel(), batch.ports)
        found.append(
            (
                devices,
                np.tile(np.arange(batch.ports), len(nics) * copies),
                np.repeat(places, batch.cables),
                np.tile(np.repeat(like.index[nics].astype(np.int64), batch.ports), copies),
                np.full(len(devices), number),
            )
        )
        hosts += batch.count
        first += batch.places
    return Plugs(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _template(batch: Batch, rails: int | None) -> Fabric:
    """Return a fabric of one host, or of one rack: its hosts and the NVSwitches between them."""
    if batch.rack is None:
        build = FabricBuilder("h")
        add_host(build, "h", batch.model)
        like = build.finish()
    else:
        like = _rack(batch.rack, batch.model)
    nic = like.kind == DeviceKind.NIC
    rail = np.where(nic & (rails is not None), like.index % (rails or 1), -1)
    return replace(like, rail=rail.astype(np.int32))


def _rack(rack: RackModel, model: HostModel) -> Fabric:
    """Return a rack; all its NVSwitch planes are one node, as they are in a host."""
    if model.nvlink is None:
        raise InputError(f"the hosts of {rack.name} have no NVLink", field="racks.model")
    build = FabricBuilder("rack")
    plane = build.add_device("rack/nvs0", DeviceKind.NVSWITCH, tier=0)
    for i in range(rack.hosts):
        add_host(build, f"h{i}", model, plane=plane)
    return build.finish()
