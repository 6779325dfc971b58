# SPDX-License-Identifier: Apache-2.0
"""Designs that given parts can build: enumerated, checked, priced, emulated, and the best of them.

The alternatives are those that architects argue about: rails or whole hosts to a leaf, with or
without a spine, one plane or two, and tapered upper tiers. Each is the largest scalable unit that
the switch's ports allow; two tiers are taken where they suffice, else three.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from railweave.fabric.catalogue import catalogue_names
from railweave.fabric.devices import host_model, nic_model, switch_model
from railweave.fabric.errors import InputError
from railweave.fabric.units import format_rate
from railweave.tools.comparing import Design, look_at
from railweave.topologies.checks import check
from railweave.topologies.load import build_topology, load_topology

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from railweave.fabric.devices import HostModel, SwitchModel
    from railweave.tools.prices import PriceList

__all__ = ["Candidate", "candidates", "evaluate", "pareto"]

_TAPERS: Final = (Fraction(1), Fraction(2), Fraction(3), Fraction(4), Fraction(7))
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

    def goals(self, workload: str | None) -> tuple[int, int, int] | None:
        """Return cost in cents, power in mW and job time in ps, None where it cannot run."""
        if self.design is None:
            return None
        time: int | None = 0
        if workload is not None:
            time = self.design.jobs[workload].time.time_ps
        if time is None:
            return None
        return self.design.bill.cost_cents, self.design.bill.power_mw, time


def candidates(
    gpus: int, host: str, switch: str, *, most: Fraction = Fraction(7)
) -> Iterator[Candidate]:
    """Yield the alternatives, those that cannot be built with the reason.

    Parameters
    ----------
    gpus
        GPUs wanted; whole hosts are taken.
    host, switch
        Catalogue names.
    most
        Oversubscription of the leaf at most.
    """
    model, box = host_model(host), switch_model(switch)
    if model.nic is None or not model.nics:
        raise InputError(f"'{host}' has no NICs of its own", field="--host")
    count = -(-gpus // model.gpus)
    for taper in _TAPERS:
        if taper > most:
            break
        ending = "" if taper == 1 else f"-{taper}to1"
        for kind in ("rail-optimized", "fat-tree"):
            yield _try(f"{kind}{ending}", kind, count, model, box, taper)
    yield _try("rail-only", "rail-only", count, model, box, Fraction(1))
    yield _try("multi-plane", "multi-plane", count, model, box, Fraction(1))


def _try(
    name: str, kind: str, count: int, host: HostModel, box: SwitchModel, taper: Fraction
) -> Candidate:
    """Build one alternative with two tiers, and with three where two do not suffice."""
    said = ""
    content: dict[str, Any] = {}
    for tall in (False, True):
        if tall and kind in ("rail-only", "multi-plane"):
            break
        try:
            content = _content(name, kind, count, host, box, taper, tall=tall)
            spec = load_topology(content)
            wrong = [one for one in check(build_topology(spec), spec) if one.level == "error"]
        except InputError as error:
            said = said or error.message
            continue
        if wrong:
            return Candidate(
                name=name, content=content, refused=f"{wrong[0].rule}: {wrong[0].message}"
            )
        return Candidate(name=name, content=content)
    return Candidate(name=name, content=content, refused=said)


def _content(
    name: str,
    kind: str,
    count: int,
    host: HostModel,
    box: SwitchModel,
    taper: Fraction,
    *,
    tall: bool,
) -> dict[str, Any]:
    assert host.nic is not None
    assert host.nics is not None
    nic = host.nic
    planes = 2 if kind == "multi-plane" else 1
    hosts: dict[str, Any] = {"count": count, "model": host.name}
    if planes > 1 and nic.ports % planes:
        split = _split_nic(nic.name, planes)
        hosts["nic"] = split
        nic = nic_model(split)
    infiniband = "ethernet" not in box.protocols
    link = {
        "model": "infiniband" if infiniband else "roce-lossless",
        "rate": format_rate(nic.rate_bps),
    }
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
        "source": f"railweave design: {count} x {host.name}, {box.name}",
        "hosts": hosts,
        "leaf": {"switch": box.name},
        "links": {"host-leaf": {**link, "length": _LENGTHS["host-leaf"]}},
    }
    if kind == "fat-tree":
        content["tiers"] = 3 if tall else 2
        per_leaf = max(1, down // host.nics)
        content["leaf"]["hosts"] = per_leaf
        if tall:
            content["group"] = max(1, per_leaf * (box.ports[mode] // 2))
    elif kind != "rail-only":
        content["group"] = min(count, max(1, down))
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


def _split_nic(name: str, planes: int) -> str:
    """Return the NIC of the same make whose ports the planes divide."""
    for other in catalogue_names("nics"):
        if other.startswith(f"{name}-{planes}x"):
            return other
    raise InputError(f"the catalogue has no {name} with {planes} ports")


def evaluate(
    one: Candidate, path: Path, workloads: Mapping[str, Path], prices: PriceList | None
) -> Candidate:
    """Return a candidate with its figures; ``path`` is the file it was written to."""
    if one.refused:
        return one
    found = look_at(str(path.resolve()), workloads=workloads, failures=False, prices=prices)
    return Candidate(name=one.name, content=one.content, design=found)


def pareto(found: Sequence[Candidate], workload: str | None) -> list[Candidate]:
    """Return the candidates that no other beats in cost, power and time at once.

    One that cannot run the workload, or whose parts lack a price, is not among them: nothing can be
    said of it.
    """
    able = [
        (one, goals)
        for one in found
        if (goals := one.goals(workload)) is not None and not unpriced(one)
    ]
    return [
        one
        for one, goals in able
        if not any(
            other != goals and all(a <= b for a, b in zip(other, goals, strict=True))
            for _, other in able
        )
    ]


def unpriced(one: Candidate) -> list[str]:
    """Return the parts of a candidate, but fibres, that have no price."""
    if one.design is None:
        return []
    missing = one.design.bill.missing("cents")
    return [item for item in dict.fromkeys(missing) if item != "fibre"]
