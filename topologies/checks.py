# SPDX-License-Identifier: Apache-2.0
"""Static checks of a fabric: that all is joined, within budget and as declared."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from railweave.fabric.devices import nic_model, switch_model
from railweave.fabric.graph import DeviceKind, LinkModel
from railweave.topologies.budgets import overfull_switches
from railweave.topologies.reach import (
    cross_rail_pairs,
    list_unreachable,
    one_rail,
    pieces,
    unreachable_pairs,
)
from railweave.topologies.summary import oversubscription

if TYPE_CHECKING:
    from collections.abc import Iterator
    from fractions import Fraction

    from railweave.fabric.graph import Fabric
    from railweave.topologies.spec import TopologySpec

__all__ = ["Finding", "check", "pieces", "protocol_findings", "unreachable_pairs"]

Level = Literal["error", "warning", "info"]
_NETWORK_TIERS: Final = ("leaf", "spine")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a check found: ``error`` fails the check, the others do not."""

    level: Level
    rule: str
    message: str


def check(fabric: Fabric, spec: TopologySpec | None = None) -> list[Finding]:
    """Run every check on a fabric and return what they found, errors first.

    Parameters
    ----------
    fabric
        The fabric, perhaps with faults applied.
    spec
        The topology it was built from, if its file is to be checked too.
    """
    findings = [
        *_reachability(fabric),
        *_ports(fabric),
        *_budgets(fabric),
        *protocol_findings(fabric),
        *_oversubscription(fabric),
        *_unused(fabric),
    ]
    if spec is not None and spec.model.source is None:
        findings.append(
            Finding(level="info", rule="source", message="the file does not say its source")
        )
    order = ("error", "warning", "info")
    return sorted(findings, key=lambda finding: order.index(finding.level))


def _reachability(fabric: Fabric) -> Iterator[Finding]:
    missing, first = unreachable_pairs(fabric)
    if first is None:
        return
    by_design, named = (
        cross_rail_pairs(fabric) if fabric.meta.get("apart") == "rails" else (0, None)
    )
    if by_design and named is not None:
        yield Finding(
            level="info",
            rule="rails-apart",
            message=f"{by_design} ordered pairs of GPUs are on rails that nothing joins, "
            f"{named[0]} and {named[1]} first: their bytes must be passed on over NVLink",
        )
    if missing > by_design:
        first = next(
            pair for pair in list_unreachable(fabric) if not by_design or one_rail(fabric, *pair)
        )
        yield Finding(
            level="error",
            rule="reachability",
            message=f"{missing - by_design} pairs of GPUs cannot reach each other, {first[0]} and "
            f"{first[1]} first",
        )


def _ports(fabric: Fabric) -> Iterator[Finding]:
    span = int(fabric.link_src_port.max(initial=0)) + 1
    ends = fabric.link_src.astype(np.int64) * span + fabric.link_src_port
    used, first, number = np.unique(ends, return_index=True, return_counts=True)
    twice = number > 1
    for i in np.argsort(first[twice]).tolist():  # in the order of the cables
        device, port = divmod(int(used[twice][i]), span)
        yield Finding(
            level="error",
            rule="port-once",
            message=f"{number[twice][i]} cables use port {fabric.device_names[device]}:{port}",
        )


def _budgets(fabric: Fabric) -> Iterator[Finding]:
    for switch, lacking in overfull_switches(fabric):
        yield Finding(level="error", rule="port-budget", message=f"{switch} {lacking}")


def protocol_findings(fabric: Fabric) -> Iterator[Finding]:
    """Say which devices end links of a protocol that they do not speak, once per device model."""
    number: dict[str, int] = {}
    named = np.array([number.setdefault(name, len(number)) for name in fabric.model])
    names = list(number)
    links = np.flatnonzero(fabric.link_network)
    kinds = np.stack([fabric.link_model[links], named[fabric.link_src[links]]])
    found, first, counts = np.unique(kinds, axis=1, return_index=True, return_counts=True)
    wrong: Counter[tuple[str, str, str]] = Counter()
    example: dict[tuple[str, str, str], str] = {}
    for i in np.argsort(first).tolist():
        name, link = names[found[1, i]], int(links[first[i]])
        if not name:
            continue
        is_nic = fabric.kind[fabric.link_src[link]] == DeviceKind.NIC
        spoken = (nic_model(name) if is_nic else switch_model(name)).protocols
        model = LinkModel(int(found[0, i]))
        needed = "infiniband" if model == LinkModel.INFINIBAND else "ethernet"
        if needed not in spoken:
            key = (model.label, name, " and ".join(sorted(spoken)))
            wrong[key] += int(counts[i])
            example.setdefault(key, fabric.cable_name(link))
    for key, count in wrong.items():
        label, name, speaks = key
        yield Finding(
            level="error",
            rule="protocol",
            message=f"{count} links are {label}, but {name} speaks {speaks} only "
            f"({example[key]} first)",
        )


def _oversubscription(fabric: Fabric) -> Iterator[Finding]:
    declared = fabric.meta.get("oversubscription", {})
    real = oversubscription(fabric)
    for tier in _NETWORK_TIERS:
        ratio = real.get(tier)
        if tier not in declared or ratio is None or ratio == declared[tier]:
            continue
        worse = ratio > declared[tier]
        yield Finding(
            level="error" if worse else "info",
            rule="oversubscription",
            message=f"{tier}: declared {_text(declared[tier])}, built {_text(ratio)}",
        )


def _unused(fabric: Fabric) -> Iterator[Finding]:
    ends = np.bincount(fabric.link_src[fabric.link_up], minlength=fabric.n_devices)
    idle = [fabric.device_names[i] for i in fabric.switches.tolist() if ends[i] == 0]
    if idle:
        yield Finding(
            level="warning", rule="unused-switch", message=f"no link ends on {', '.join(idle)}"
        )


def _text(ratio: Fraction) -> str:
    if ratio < 1:
        return f"1:{float(1 / ratio):.4g}"
    return f"{float(ratio):.4g}:1"
