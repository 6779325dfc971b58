# SPDX-License-Identifier: Apache-2.0
"""Designs that given parts can build: enumerated, checked, priced, emulated, and the best of them.

The alternatives are those that architects argue about: rails or whole hosts to a leaf, with or
without a spine, one plane or two, tapered upper tiers, racks that are NVLink domains, and lossless
or loss-tolerant links. Units are as few as the switch's ports allow, and even; two tiers are taken
where they suffice, else three.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from railweave.fabric.catalogue import catalogue_names
from railweave.fabric.devices import host_model, nic_model, rack_model, switch_model
from railweave.fabric.errors import InputError, nearest_name
from railweave.fabric.units import format_rate
from railweave.topologies.checks import check
from railweave.topologies.load import build_topology, load_topology

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from railweave.fabric.devices import HostModel, SwitchModel
    from railweave.tools.comparing import Design

__all__ = ["TRANSPORTS", "Candidate", "candidates"]

_TAPERS: Final = (Fraction(1), Fraction(2), Fraction(3), Fraction(4), Fraction(7))
TRANSPORTS: Final[Mapping[str, str]] = {
    "lossless": "roce-lossless",
    "loss-tolerant": "roce-lossy",
    "trimming": "trimming",
    "credit": "infiniband",
}
"""Transports and the models of their links; ``credit`` is that of InfiniBand switches alone."""

_LENGTHS: Final = {"host-leaf": "10m", "leaf-spine": "30m", "spine-core": "50m"}
"""Lengths of cables (assumed: those of the shipped designs)."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A design that was tried: its file, its figures, or why it cannot be.

    Parameters
    ----------
    name, content
        Name and the mapping of its topology file.
    refused
        Why it cannot be built, or what its checks block.
    design
        Its figures, where it can.
    """

    name: str
    content: Mapping[str, Any]
    refused: str = ""
    design: Design | None = None


def candidates(
    gpus: int,
    hosts: str | Sequence[str],
    switch: str,
    *,
    most: Fraction = Fraction(7),
    transports: Sequence[str] = ("lossless",),
) -> Iterator[Candidate]:
    """Yield the alternatives, those that cannot be built with the reason.

    Parameters
    ----------
    gpus
        GPUs wanted; whole hosts or racks are taken.
    hosts, switch
        Catalogue names: of hosts, and of racks that are NVLink domains.
    most
        Oversubscription of the leaf at most.
    transports
        Of `TRANSPORTS`: each alternative is taken with links of each.
    """
    names = [hosts] if isinstance(hosts, str) else list(hosts)
    box = switch_model(switch)
    for transport in transports:
        if transport not in TRANSPORTS:
            raise InputError(
                f"'{transport}' is not a transport",
                expected=" | ".join(TRANSPORTS),
                nearest=nearest_name(transport, TRANSPORTS),
                field="--transport",
            )
    for name in names:
        parts = _parts(gpus, name, box)
        for transport in transports if "ethernet" in box.protocols else ("credit",):
            head = f"{parts.name}-" if len(names) > 1 else ""
            tail = f"-{transport}" if len(transports) > 1 else ""
            for taper in _TAPERS:
                if taper > most:
                    break
                ending = "" if taper == 1 else f"-{taper}to1"
                for kind in parts.kinds:
                    label = f"{head}{kind}{ending}{tail}"
                    yield _try(label, kind, parts, taper, TRANSPORTS[transport])
            if not parts.racks:
                for kind in ("rail-only", "multi-plane"):
                    yield _try(
                        f"{head}{kind}{tail}", kind, parts, Fraction(1), TRANSPORTS[transport]
                    )


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """What is built from: ``count`` hosts, or racks of ``racks`` hosts each, and one switch."""

    name: str
    count: int
    host: HostModel
    box: SwitchModel
    racks: int = 0

    @property
    def kinds(self) -> tuple[str, ...]:
        return ("nvl-domain",) if self.racks else ("rail-optimized", "fat-tree")


def _parts(gpus: int, name: str, box: SwitchModel) -> _Parts:
    known = catalogue_names("racks")
    if name in known:
        rack = rack_model(name)
        each = rack.hosts * rack.host.gpus
        return _Parts(
            name=rack.name, count=-(-gpus // each), host=rack.host, box=box, racks=rack.hosts
        )
    try:
        host = host_model(name)
    except InputError as error:
        near = nearest_name(name, known)
        if near is None:
            raise
        raise InputError(error.message, expected=error.expected, nearest=near) from None
    if host.nic is None or not host.nics:
        raise InputError(f"'{name}' has no NICs of its own", field="--host")
    return _Parts(name=host.name, count=-(-gpus // host.gpus), host=host, box=box)


def _try(name: str, kind: str, parts: _Parts, taper: Fraction, model: str) -> Candidate:
    """Build one alternative with two tiers, and with three where two do not suffice."""
    said = ""
    content: dict[str, Any] = {}
    for tall in (False, True):
        if tall and kind in ("rail-only", "multi-plane", "nvl-domain"):
            break
        built = []
        for rounded in (0, 1, 2):
            try:
                content = _content(name, kind, parts, taper, model, tall=tall, rounded=rounded)
                spec = load_topology(content)
                built.append((build_topology(spec), spec, content))
            except InputError as error:
                said = said or error.message + (
                    f"; expected {error.expected}" if error.expected else ""
                )
        if not built:
            continue
        fabric, spec, content = min(built, key=lambda one: len(one[0].switches))
        wrong = [one for one in check(fabric, spec) if one.level == "error"]
        refused = f"{wrong[0].rule}: {wrong[0].message}" if wrong else ""
        return Candidate(name=name, content=content, refused=refused)
    return Candidate(name=name, content=content, refused=said)


def _content(
    name: str,
    kind: str,
    parts: _Parts,
    taper: Fraction,
    model: str,
    *,
    tall: bool,
    rounded: int,
) -> dict[str, Any]:
    """Return the mapping of a topology file; ``rounded`` is that of `_unit`."""
    host, box, count = parts.host, parts.box, parts.count
    assert host.nic is not None
    assert host.nics is not None
    nic = host.nic
    planes = 2 if kind == "multi-plane" else 1
    units: dict[str, Any] = {"count": count, "model": parts.name}
    if planes > 1 and nic.ports % planes:
        split = _split_nic(nic.name, planes)
        units["nic"] = split
        nic = nic_model(split)
    link = {"model": model, "rate": format_rate(nic.rate_bps)}
    mode = box.port_mode_bps(nic.rate_bps)
    if mode is None:
        raise InputError(f"{box.name} has no ports of {format_rate(nic.rate_bps)}")
    ports = box.ports[mode]
    share = taper / (taper + 1) if kind != "rail-only" else Fraction(1)
    down = int(ports * share) // max(1, nic.ports // planes)
    content: dict[str, Any] = {
        "schema": 1,
        "name": name,
        "kind": kind,
        "source": f"railweave design: {count} x {parts.name}, {box.name}",
        "racks" if parts.racks else "hosts": units,
        "leaf": {"switch": box.name},
        "links": {"host-leaf": {**link, "length": _LENGTHS["host-leaf"]}},
    }
    if kind == "fat-tree":
        content["tiers"] = 3 if tall else 2
        per_leaf = max(1, down // host.nics)
        content["leaf"]["hosts"] = per_leaf if tall else _unit(count, per_leaf, taper, rounded)
        if tall:
            content["group"] = max(1, per_leaf * (box.ports[mode] // 2))
    elif kind != "rail-only":
        content["group"] = _unit(count, max(1, down // (parts.racks or 1)), taper, rounded)
    if planes > 1:
        content["planes"] = planes
    if kind != "rail-only":
        ratio = f"{taper.numerator}:{taper.denominator}"
        content["spine"] = {"switch": box.name, "oversubscription": ratio}
        content["links"]["leaf-spine"] = {**link, "length": _LENGTHS["leaf-spine"]}
    if tall:
        content["core"] = {"switch": box.name, "oversubscription": "1:1"}
        content["links"]["spine-core"] = {**link, "length": _LENGTHS["spine-core"]}
    return content


def _unit(count: int, most: int, taper: Fraction, rounded: int) -> int:
    """Return the size of units of at most ``most``.

    ``rounded`` 0: as few units as they can be, and even; 1: the same, rounded up so that the taper
    divides them; 2: full ones and a rest. Which takes fewest switches depends on the ports.

    Examples
    --------
    >>> [_unit(256, 85, Fraction(2), rounded) for rounded in (0, 1, 2)]
    [64, 64, 85]
    """
    if rounded == 2:
        return min(count, most)
    even = -(-count // -(-count // most))
    step = taper.numerator if rounded else 1
    return min(most, -(-even // step) * step)


def _split_nic(name: str, planes: int) -> str:
    """Return the NIC of the same make whose ports the planes divide."""
    for other in catalogue_names("nics"):
        if other.startswith(f"{name}-{planes}x"):
            return other
    raise InputError(f"the catalogue has no {name} with {planes} ports")
