# SPDX-License-Identifier: Apache-2.0
"""Victims of pauses: flows slowed though none of their own ports had too much to carry.

A paused port holds back whoever crosses it. Behind it, downstream, lies the root of the congestion
tree: a port that was not paused itself, at which more arrived than it could carry, or one that its
host paused. A flow that crosses a paused port but no root is a victim (Guo et al., "RDMA over
commodity Ethernet at scale", SIGCOMM 2016).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.fabric.dependency import first_cycle
from railweave.fabric.graph import DeviceKind
from railweave.fabric.words import listed, plural

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.fabric.packet.engine import PacketEngine

__all__ = ["MOST_VICTIMS", "drop_cautions", "victims", "waiting_cautions"]

MOST_VICTIMS = 100
"""Victims that a result lists, the slowest first."""

_SLOWED = 1.05  # times the bound
_FRAMES = 4  # a queue of so many frames had more to carry than it could


def victims(engine: PacketEngine, paused_ps: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return the ended flows that pauses slowed although their own ports had room.

    Parameters
    ----------
    paused_ps
        int64 (links,): how long each port was paused.
    """
    state, fabric = engine.state, engine.fabric
    links = fabric.n_links
    peak = state.egress.peak.reshape(links, -1).max(axis=1)
    frame = int(state.run.mtu + state.run.overhead)
    full = (peak >= _FRAMES * frame) & fabric.link_network
    roots = full & (paused_ps == 0)
    found = []
    for record in engine.records():
        if record.end_ps < 0 or record.bound_ps <= 0:
            continue
        slowdown = record.fct_ps / record.bound_ps
        path = np.array(record.path, np.int64)
        held = path[paused_ps[path] > 0] if len(path) else path
        if slowdown < _SLOWED or not len(held) or roots[path].any():
            continue
        root = _root(engine, int(held[-1]), full, paused_ps)
        if root >= 0 and root not in path:
            found.append((slowdown, record.flow.id, root))
    found.sort(key=lambda victim: (-victim[0], victim[1]))
    return [
        {"flow": flow, "root_port": fabric.link_name(root), "slowdown": round(slowdown, 6)}
        for slowdown, flow, root in found
    ]


def waiting_cautions(engine: PacketEngine) -> list[str]:
    """Say whether lossless links can wait for each other in a circle on the routes in use.

    Up/down routes cannot; pinned paths and switches without tiers may. A link waits for one of the
    same priority alone, and where its priority is lossless there.
    """
    fabric, state = engine.fabric, engine.state
    if engine.cycle or not (engine.in_use.pinned or np.any(fabric.tier[fabric.switches] < 0)):
        return []
    paths = engine.in_use.by_priority(engine.packet.priority)
    kind = state.ingress.kind.reshape(fabric.n_links, -1)
    waits = {p: fabric.link_network & (kind[:, state.priorities.index(p)] > 0) for p in paths}
    found = first_cycle(fabric, paths, waits=waits)
    if not found:
        return []
    names = listed([fabric.link_name(link) for link, _ in found], between=" -> ")
    return [
        "lossless links can wait for each other in a circle, and so deadlock: "
        f"{names} (priority {found[0][1]})"
    ]


def drop_cautions(engine: PacketEngine) -> list[str]:
    """Say where packets of lossless priorities were dropped because headroom was too small."""
    ingress, count = engine.state.ingress, int(engine.state.run.violations)
    if not count:
        return []
    dropped = np.where(ingress.kind == 1, ingress.dropped, 0)
    by_link = dropped.reshape(engine.fabric.n_links, -1).sum(axis=1)
    worst = int(by_link.argmax())
    return [
        f"{plural(count, 'packet')} of lossless priorities found no headroom and "
        f"{'was' if count == 1 else 'were'} dropped, most at the end of "
        f"{engine.fabric.link_name(worst)} ({int(by_link[worst]):,}): pauses come too late for "
        "buffer.headroom"
    ]


def _root(
    engine: PacketEngine, link: int, full: NDArray[np.bool_], paused_ps: NDArray[np.int64]
) -> int:
    """Follow a paused port downstream, always to the fullest queue, to one that was not paused.

    A port that a host paused is as far as it goes.
    """
    fabric, peak = engine.fabric, engine.state.egress.peak
    classes = len(engine.state.priorities)
    ptr, out = fabric.out_links
    seen: set[int] = set()
    while link not in seen:
        seen.add(link)
        device = fabric.link_dst[link]
        ways = [int(way) for way in out[ptr[device] : ptr[device + 1]] if full[way]]
        if not ways:
            return link if fabric.kind[device] == DeviceKind.NIC else -1
        link = max(
            ways, key=lambda way: (int(peak[way * classes : (way + 1) * classes].max()), -way)
        )
        if paused_ps[link] == 0:
            return link
    return -1
