# SPDX-License-Identifier: Apache-2.0
"""Checks of hosts: whether GPUs can fill their NICs."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.graph import DeviceKind, LinkModel
from railweave.fabric.network import Framing
from railweave.fabric.units import format_rate
from railweave.fabric.words import plural
from railweave.topologies.review.findings import Fact, Found, check_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from railweave.topologies.review.case import Case

__all__ = ["host_kinds"]


def host_kinds(case: Case) -> dict[tuple[object, ...], list[int]]:
    """Return the hosts of a fabric by what is in them and how fast their cables are."""
    fabric = case.fabric
    inner = ~fabric.link_network & (fabric.host[fabric.link_src] >= 0)
    inner &= fabric.host[fabric.link_src] == fabric.host[fabric.link_dst]
    marks: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    first: dict[int, int] = {}
    for device, host in enumerate(fabric.host.tolist()):
        if host >= 0:
            first.setdefault(host, device)
            nic = int(fabric.gpu_nic[device])
            marks[host].append((int(fabric.kind[device]), nic - first[host] if nic >= 0 else -1))
    for k in (*np.flatnonzero(inner).tolist(), *case.access.link.tolist()):
        host = int(fabric.host[fabric.link_src[k]])
        outside = bool(fabric.link_network[k])
        ends = (
            int(fabric.link_src[k]) - first[host],
            -1 if outside else int(fabric.link_dst[k]) - first[host],
        )
        marks[host].append((*ends, int(fabric.link_rate_bps[k])))
    found: dict[tuple[object, ...], list[int]] = {}
    for host, mark in marks.items():
        found.setdefault(tuple(mark), []).append(host)
    return found


@check_named(
    "host-bottleneck",
    about="Each GPU has a NIC of its own, on its socket, on PCIe links as fast as the NIC.",
    why="The network waits for PCIe, for the link between sockets, or for a NIC that GPUs share.",
    mend="take another host or NIC, or slower and cheaper switch ports that it can fill",
    part="effect",
)
def host_bottleneck(case: Case) -> Iterator[Found | Fact]:
    """Compare NICs with the PCIe links behind them, and GPUs with NICs."""
    fabric = case.fabric
    for hosts in host_kinds(case).values():
        host = hosts[0]
        name, count = fabric.host_names[host], len(hosts)
        gpus = [int(gpu) for gpu in fabric.gpus[fabric.host[fabric.gpus] == host]]
        nics = [int(nic) for nic in fabric.nics[fabric.host[fabric.nics] == host]]
        said = f"{count} hosts such as {name}" if count > 1 else name
        inside = f"{plural(len(gpus), 'GPU')}, {plural(len(nics), 'NIC')}"
        yield Fact(
            rule="host-bottleneck",
            text=f"{said}: {inside}",
            values={"hosts": count, "gpus": len(gpus), "nics": len(nics)},
        )
        sharing: dict[int, list[int]] = defaultdict(list)
        for gpu in [gpu for gpu in gpus if fabric.gpu_nic[gpu] >= 0]:
            sharing[int(fabric.gpu_nic[gpu])].append(gpu)
        most = max((len(users) for users in sharing.values()), default=0)
        if most > 1:
            yield Found(
                level="info",
                message=f"{said}: {most} GPUs share a NIC ({inside})",
                where=(name,),
                devices=frozenset(nics),
                at=gpus[0],
            )
        yield from _narrow_pcie(case, nics, said)
        yield from _far_nics(case, gpus, said)


def _narrow_pcie(case: Case, nics: list[int], said: str) -> Iterator[Found]:
    """Find NICs whose PCIe link is slower than the payload of their cables."""
    fabric = case.fabric
    for nic in nics:
        mine = fabric.link_src == nic
        cables = np.flatnonzero(mine & fabric.link_network)
        inside = np.flatnonzero(mine & (fabric.link_model == LinkModel.PCIE))
        if not len(cables) or not len(inside):
            continue
        infiniband = fabric.link_model[cables[0]] == LinkModel.INFINIBAND
        framing = Framing.INFINIBAND if infiniband else Framing.ETHERNET
        line = int(fabric.link_rate_bps[cables].sum())
        payload = int(line * case.settings.efficiency(framing))
        pcie = int(fabric.link_rate_bps[inside].max())
        if pcie < payload:
            yield Found(
                level="warning",
                message=f"{said}: PCIe carries {format_rate(pcie)} to a NIC of "
                f"{format_rate(line)}, {100 * pcie / payload:.0f} % of its payload "
                f"({case.name(nic)})",
                where=(fabric.device_names[nic],),
                devices=frozenset((nic,)),
                at=nic,
            )
            return  # one of a kind says it for all


def _far_nics(case: Case, gpus: list[int], said: str) -> Iterator[Found]:
    """Find GPUs whose NIC hangs on the root of another CPU socket."""
    fabric = case.fabric
    root: dict[int, int] = {}
    host = int(fabric.host[gpus[0]]) if gpus else -1
    inner = np.flatnonzero(
        (fabric.host[fabric.link_src] == host) & (fabric.link_model == LinkModel.PCIE)
    )
    ends = list(zip(fabric.link_src[inner].tolist(), fabric.link_dst[inner].tolist(), strict=True))
    kind = fabric.kind
    # switches first: devices behind them follow
    root |= {
        a: b for a, b in ends if kind[a] == DeviceKind.PCIE_SWITCH and kind[b] == DeviceKind.CPU
    }
    for a, b in ends:
        if kind[a] in (DeviceKind.GPU, DeviceKind.NIC):
            if kind[b] == DeviceKind.CPU:
                root[a] = b
            elif b in root:
                root[a] = root[b]
    far = [
        gpu
        for gpu in gpus
        if gpu in root
        and int(fabric.gpu_nic[gpu]) in root
        and root[gpu] != root[int(fabric.gpu_nic[gpu])]
    ]
    if far:
        yield Found(
            level="warning",
            message=f"{said}: {len(far)} GPUs reach their NIC across CPU sockets, "
            f"{case.name(far[0])} first",
            where=tuple(case.name(gpu) for gpu in far[:5]),
            devices=frozenset(far),
            at=far[0],
        )
