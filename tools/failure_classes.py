# SPDX-License-Identifier: Apache-2.0
"""Classes of equal parts that can fail, and the part that stands for each.

Parts are of one class where the fabric's symmetry does not tell them apart: switches of one cell
of its coarsest equitable partition, cables between equal ends, hosts of equal make. A workload may
be less symmetric than the fabric, so the part that carried most in the healthy run stands for its
class.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from railweave.fabric.devices import switch_model
from railweave.fabric.faults import Fault
from railweave.fabric.words import plural
from railweave.topologies.min_cut import SwitchGraph
from railweave.topologies.review.alignment import planes_of
from railweave.topologies.review.case import TIERS, Case
from railweave.topologies.review.hosts import host_kinds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric

__all__ = ["FailureClass", "failure_classes"]

_FABRIC: Final = "link"
_NO_SWITCH: Final = -1


@dataclass(frozen=True, kw_only=True)
class FailureClass:
    """A class of parts that can fail.

    Parameters
    ----------
    part
        ``host-leaf cable``, ``optic``, ``nic``, ``leaf``, ``spine``, ``core``, ``plane``, ``host``.
    count
        How many parts are of the class.
    example
        The one that stands for it.
    faults
        What takes it out.
    """

    part: str
    count: int
    example: str
    faults: tuple[Fault, ...]


def failure_classes(fabric: Fabric, carried: NDArray[np.int64] | None = None) -> list[FailureClass]:
    """Return every class of parts that can fail, with the one that stands for it.

    Parameters
    ----------
    fabric
        The healthy fabric.
    carried
        int64 (links,): bytes that each link carried; the part with most stands for its class.
    """
    case = Case(fabric=fabric)
    load = np.zeros(fabric.n_links, np.int64) if carried is None else carried
    mark = _marks(case)
    device_load = np.zeros(fabric.n_devices, np.int64)
    for ends in (fabric.link_src, fabric.link_dst):
        np.add.at(device_load, ends[fabric.link_network], load[fabric.link_network])
    host_load = np.zeros(len(fabric.host_names), np.int64)
    inside = fabric.host >= 0
    np.add.at(host_load, fabric.host[inside], device_load[inside])
    groups: dict[tuple[Any, ...], list[tuple[int, str, tuple[Fault, ...]]]] = defaultdict(list)
    cables = (np.flatnonzero(fabric.link_network[::2] & fabric.link_up[::2]) * 2).tolist()
    cages: dict[tuple[int, int], list[int]] = defaultdict(list)
    for k in cables:
        a, b = int(fabric.link_src[k]), int(fabric.link_dst[k])
        busy = int(load[k] + load[k + 1])
        name = fabric.cable_name(k)
        key = (fabric.link_tier[k], *sorted((mark[a], mark[b])), int(fabric.link_rate_bps[k]))
        tier = "" if fabric.link_tier[k] == _FABRIC else f"{fabric.link_tier[k]} "
        groups[f"{tier}cable", key].append((busy, name, (Fault(link=name),)))
        for device, port in (
            (a, int(fabric.link_src_port[k])),
            (b, int(fabric.link_dst_port[k])),
        ):
            room = _cage_links(fabric, device, int(fabric.link_rate_bps[k]))
            if room > 1:
                cages[device, port // room].append(k)
    for (device, _), links in cages.items():
        if len(links) > 1:
            names = [fabric.cable_name(k) for k in links]
            busy = int(sum(load[k] + load[k + 1] for k in links))
            key = (mark[device], *sorted(fabric.link_tier[k] for k in links))
            example = f"{fabric.device_names[device]} with {' and '.join(names)}"
            groups["optic", key].append((busy, example, tuple(Fault(link=n) for n in names)))
    ends = np.concatenate([fabric.link_src[cables], fabric.link_dst[cables]])
    for nic in np.unique(ends[fabric.host[ends] >= 0]).tolist():
        name = fabric.device_names[nic]
        groups["nic", (mark[nic],)].append((int(device_load[nic]), name, (Fault(node=name),)))
    for device in fabric.switches.tolist():
        name = fabric.device_names[device]
        part = TIERS.get(int(fabric.tier[device]), "switch")
        groups[part, (mark[device],)].append((int(device_load[device]), name, (Fault(node=name),)))
    for kind, hosts in host_kinds(case).items():
        for host in hosts:
            name = fabric.host_names[host]
            groups["host", (hash(kind),)].append((int(host_load[host]), name, (Fault(node=name),)))
    _add_planes(case, groups, device_load)
    found = []
    for (part, _), members in groups.items():
        busiest = max(members, key=lambda member: member[0])
        found.append(
            FailureClass(part=part, count=len(members), example=busiest[1], faults=busiest[2])
        )
    return found


def _marks(case: Case) -> dict[int, int]:
    """Return the class of each switch and each cabled NIC."""
    fabric = case.fabric
    graph = SwitchGraph(fabric)
    hosts = np.zeros(len(fabric.switches), np.int64)
    np.add.at(hosts, graph.number[case.access.switch], fabric.link_rate_bps[case.access.link])
    models: dict[str, int] = {}
    model = np.array(
        [models.setdefault(fabric.model[d], len(models)) for d in fabric.switches.tolist()],
        np.int64,
    )
    start = np.stack([hosts, fabric.tier[fabric.switches].astype(np.int64), model])
    cells = graph.cells(np.unique(start, axis=1, return_inverse=True)[1])
    mark = {d: int(c) for d, c in zip(fabric.switches.tolist(), cells.tolist(), strict=True)}
    homes: dict[int, list[int]] = defaultdict(list)
    for nic, switch in zip(case.access.nic.tolist(), case.access.switch.tolist(), strict=True):
        homes[nic].append(mark[switch])
    straight = fabric.link_network & fabric.link_up & (fabric.host[fabric.link_src] >= 0)
    straight &= fabric.host[fabric.link_dst] >= 0
    for nic in fabric.link_src[straight].tolist():  # to another NIC, without a switch between
        homes[nic].append(_NO_SWITCH)
    kinds: dict[tuple[Any, ...], int] = {}
    for nic, cells_of in homes.items():
        key = (fabric.model[nic], *sorted(cells_of))
        mark[nic] = -1 - kinds.setdefault(key, len(kinds))
    return mark


def _cage_links(fabric: Fabric, device: int, rate_bps: int) -> int:
    if int(fabric.host[device]) >= 0 or not fabric.model[device]:
        return 1
    model = switch_model(fabric.model[device])
    given = model.figures.get("cage_links")
    cage = max(model.ports) * (int(given.value) if given is not None else 1)
    return max(1, min(2, cage // rate_bps))  # a twin-port optic holds two links


def _add_planes(
    case: Case,
    groups: dict[tuple[Any, ...], list[tuple[int, str, tuple[Fault, ...]]]],
    device_load: NDArray[np.int64],
) -> None:
    """Add whole planes: the parts that share no switch, of NICs with cables in several."""
    label = planes_of(case)
    if label is None:
        return
    fabric = case.fabric
    # Parts of one plane of all rails fail together: they are told by the end of their names.
    planes: dict[str, list[int]] = defaultdict(list)
    for device in fabric.switches.tolist():
        _, dot, plane = fabric.device_names[device].rpartition(".p")
        planes[plane if dot and plane.isdigit() else str(int(label[device]))].append(device)
    for plane, devices in planes.items():
        names = [fabric.device_names[device] for device in devices]
        groups["plane", ()].append(
            (
                int(device_load[devices].sum()),
                f"plane {plane} ({plural(len(names), 'switch')})",
                tuple(Fault(node=name) for name in names),
            )
        )
