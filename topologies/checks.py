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
from railweave.topologies.summary import oversubscription

if TYPE_CHECKING:
    from collections.abc import Iterator
    from fractions import Fraction

    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric
    from railweave.topologies.spec import TopologySpec

__all__ = ["Finding", "check", "pieces", "unreachable_pairs"]

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
        *_protocols(fabric),
        *_oversubscription(fabric),
        *_unused(fabric),
    ]
    if spec is not None and spec.model.source is None:
        findings.append(
            Finding(level="info", rule="source", message="the file does not say its source")
        )
    order = ("error", "warning", "info")
    return sorted(findings, key=lambda finding: order.index(finding.level))


def _labels(
    fabric: Fabric, links: NDArray[np.bool_], *, hosts_joined: bool = False
) -> NDArray[np.int64]:
    """Label each device with the smallest device it is joined to over ``links``."""
    label = np.arange(fabric.n_devices)
    src, dst = fabric.link_src[links], fabric.link_dst[links]
    if hosts_joined:  # the parts of a host are one piece even where nothing inside joins them
        parts = np.flatnonzero(fabric.host >= 0)
        _, first, host = np.unique(fabric.host[parts], return_index=True, return_inverse=True)
        src, dst = np.append(src, parts), np.append(dst, parts[first[host]])
    while True:
        before = label.copy()
        np.minimum.at(label, dst, before[src])
        np.minimum.at(label, src, before[dst])
        label = label[label]
        if np.array_equal(label, before):
            return label


def pieces(fabric: Fabric) -> list[list[str]]:
    """Return the hosts of each part of a fabric, the first hosts first."""
    label = _labels(fabric, fabric.link_up, hosts_joined=True)
    parts = np.flatnonzero(fabric.host >= 0)
    found: dict[int, dict[str, None]] = {}
    for host, piece in zip(fabric.host[parts].tolist(), label[parts].tolist(), strict=True):
        found.setdefault(piece, {})[fabric.host_names[host]] = None
    return [list(names) for names in found.values()]


def unreachable_pairs(fabric: Fabric) -> tuple[int, tuple[str, str] | None]:
    """Count ordered GPU pairs that nothing joins, and name the first.

    A pair is joined inside an NVLink domain; or by a cable between the two NICs; or if a switch of
    one NIC reaches a switch of the other by climbing first and descending after (never up again).
    Where switches have no tiers any path will do.
    """
    gpus = fabric.gpus
    domain = _labels(fabric, fabric.link_up & (fabric.link_model == LinkModel.NVLINK))[gpus]
    inside = _labels(fabric, fabric.link_up & (fabric.link_model == LinkModel.PCIE))
    nic = fabric.gpu_nic[gpus]
    usable = (nic >= 0) & (inside[gpus] == inside[nic])
    reach, place = _nic_reach(fabric)
    where = np.where(usable, place[nic], len(reach) - 1)
    classes, inverse, sizes = np.unique(
        np.stack([domain, where]), axis=1, return_inverse=True, return_counts=True
    )
    same_domain = classes[0][:, None] == classes[0][None, :]
    cut = ~(same_domain | reach[np.ix_(classes[1], classes[1])])
    if not cut.any():
        return 0, None
    a, b = np.argwhere(cut)[0]
    missing = int((cut * sizes[:, None] * sizes[None, :]).sum())
    one, other = (gpus[np.flatnonzero(inverse.ravel() == c)[0]] for c in (a, b))
    return missing, (fabric.device_names[one], fabric.device_names[other])


def _nic_reach(fabric: Fabric) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return which places reach which, and the place of each device.

    A place stands for all NICs on the same switches; a NIC with a cable to another NIC has a place
    of its own. The last place is nowhere: it reaches nothing.
    """
    network = fabric.link_up & fabric.link_network
    is_nic = fabric.kind == DeviceKind.NIC
    neighbours: dict[int, set[int]] = {}
    leaving = network & is_nic[fabric.link_src]
    for a, b in zip(
        fabric.link_src[leaving].tolist(), fabric.link_dst[leaving].tolist(), strict=True
    ):
        neighbours.setdefault(a, set()).add(b)
    keys: dict[tuple[int, ...], int] = {}
    place_of = {}
    for nic, others in neighbours.items():
        beside = (nic,) if any(is_nic[other] for other in others) else ()
        place_of[nic] = keys.setdefault((*sorted(others), *beside), len(keys))
    on = np.zeros((len(keys) + 1, fabric.n_devices), np.int32)
    for key, number in keys.items():
        on[number, list(key)] = 1
    on = on[:, fabric.switches]
    reach = (on @ _switch_reach(fabric, network) @ on.T) > 0
    place = np.full(fabric.n_devices, len(keys), np.int64)
    place[list(place_of)] = list(place_of.values())
    for nic, others in neighbours.items():
        for other in others:
            if is_nic[other]:
                reach[place[nic], place[other]] = True
    return reach, place


def _switch_reach(fabric: Fabric, network: NDArray[np.bool_]) -> NDArray[np.int32]:
    """0/1 (switches, switches): whether the second lies below the top of a climb from the first."""
    switches = fabric.switches
    is_switch = fabric.kind == DeviceKind.SWITCH
    between = network & is_switch[fabric.link_src] & is_switch[fabric.link_dst]
    if (fabric.tier[switches] <= 0).any():
        label = _labels(fabric, between)[switches]
        joined: NDArray[np.int32] = (label[:, None] == label[None, :]).astype(np.int32)
        return joined
    number = np.cumsum(is_switch) - 1
    src, dst = fabric.link_src[between], fabric.link_dst[between]
    climbs = fabric.tier[src] < fabric.tier[dst]
    low, high = number[src[climbs]], number[dst[climbs]]
    edges = np.unique(np.stack([fabric.tier[src[climbs]], low, high]), axis=1)[1:].T.tolist()
    reach = np.eye(len(switches), dtype=np.bool_)
    for below, above in edges:  # what lies below a switch, lowest tier first
        reach[above] |= reach[below]
    for below, above in reversed(edges):  # and what lies below the switches above it
        reach[below] |= reach[above]
    below_or_beside: NDArray[np.int32] = reach.astype(np.int32)
    return below_or_beside


def _reachability(fabric: Fabric) -> Iterator[Finding]:
    missing, first = unreachable_pairs(fabric)
    if first is not None:
        yield Finding(
            level="error",
            rule="reachability",
            message=f"{missing} pairs of GPUs cannot reach each other, {first[0]} and {first[1]} "
            "first",
        )


def _ports(fabric: Fabric) -> Iterator[Finding]:
    used = Counter(zip(fabric.link_src.tolist(), fabric.link_src_port.tolist(), strict=True))
    for (device, port), number in used.items():
        if number > 1:
            yield Finding(
                level="error",
                rule="port-once",
                message=f"{number} cables use port {fabric.device_names[device]}:{port}",
            )


def _budgets(fabric: Fabric) -> Iterator[Finding]:
    for switch, lacking in overfull_switches(fabric):
        yield Finding(level="error", rule="port-budget", message=f"{switch} {lacking}")


def _protocols(fabric: Fabric) -> Iterator[Finding]:
    """Say which devices end links of a protocol that they do not speak, once per device model."""
    wrong: Counter[tuple[str, str, str]] = Counter()
    example: dict[tuple[str, str, str], str] = {}
    for link in np.flatnonzero(fabric.link_network).tolist():
        device = int(fabric.link_src[link])
        name = fabric.model[device]
        if not name:
            continue
        is_nic = fabric.kind[device] == DeviceKind.NIC
        spoken = (nic_model(name) if is_nic else switch_model(name)).protocols
        model = LinkModel(int(fabric.link_model[link]))
        needed = "infiniband" if model == LinkModel.INFINIBAND else "ethernet"
        if needed not in spoken:
            key = (model.label, name, " and ".join(sorted(spoken)))
            wrong[key] += 1
            example.setdefault(key, fabric.cable_name(link))
    for key, number in wrong.items():
        label, name, speaks = key
        yield Finding(
            level="error",
            rule="protocol",
            message=f"{number} links are {label}, but {name} speaks {speaks} only "
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
