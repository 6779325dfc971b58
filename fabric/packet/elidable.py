# SPDX-License-Identifier: Apache-2.0
"""Which queue pairs may ever send messages without packets, and what switches may hold meanwhile.

What can pause, be paused, be marked, lost, held back by credit or paced is sent as packets; so is
whatever goes beside it (`railweave.fabric.packet.elision`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.fabric.packet import layout as lay
from railweave.fabric.packet.layout import records

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.fabric.packet.state import PacketState

__all__ = ["calm_bytes", "can_elide", "lanes_of", "safe_bytes"]

_FRAMES = 3  # that a switch may hold of one link's flights


def can_elide(state: PacketState) -> bool:
    """Tell whether messages of a simulation may go without packets at all."""
    run, settings = state.run, state.settings
    return bool(
        (settings.elide or settings.quantum > 1)
        and run.fold == 1
        and run.spread == lay.SPREAD_NONE
        and run.failing == 0
        and run.trim_wire == 0
        and run.sender_ends == 0
        and run.poll_ps == 0
    )


def safe_bytes(state: PacketState) -> NDArray[np.int64]:
    """Return what each link's flights may have in the switches at its ends without an effect.

    int64 (links x classes,), 0 where nothing may be elided: with as much from every other link, no
    pause is sent and no frame marked or dropped.
    """
    run, ingress, egress = state.run, state.ingress, state.egress
    classes, links = int(run.classes), state.fabric.n_links
    most = _FRAMES * int(run.mtu + run.overhead + run.first)
    kind, switch = ingress.kind, ingress.switch
    above = np.where(kind == 1, np.maximum(most - ingress.reserve, 0), most)
    above = above.reshape(links, classes).max(axis=1)
    into = state.into
    shared = np.bincount(into[into >= 0], above[into >= 0], len(state.switches))
    left = np.maximum(state.switches.total - shared, 0.0)
    own = np.where(
        ingress.alpha > 0.0, np.floor(ingress.alpha * left[np.maximum(switch, 0)]), ingress.xoff
    )
    pausing = np.where(left[np.maximum(switch, 0)] > 0, ingress.reserve + own, 0)
    arriving = np.where(kind == 1, pausing, np.where(kind == 2, 0, most))
    arriving = np.where(switch >= 0, arriving, most)
    from_switch = np.repeat(state.ports.switch, classes)
    free = left[np.maximum(from_switch, 0)]
    room = np.minimum(np.floor(egress.limit * free), np.minimum(egress.room, egress.kmin))
    # A lossless frame finds room whatever its egress holds.
    source = np.where(from_switch >= 0, np.minimum(room, most), most)
    return np.minimum(np.minimum(arriving, source), most).astype(np.int64)


def calm_bytes(state: PacketState) -> int:
    """Return how much may be under way at once without a pause, a mark or a drop anywhere."""
    ingress, egress, classes = state.ingress, state.egress, int(state.run.classes)
    data = np.arange(len(ingress)) % classes < max(int(state.run.strict), 1)
    total = state.switches.total[np.maximum(ingress.switch, 0)]
    # Where z is under way, a queue that has all of it pauses from alpha (total - z) on.
    own = np.where(
        ingress.alpha > 0.0,
        ingress.alpha * total / (1.0 + ingress.alpha),
        np.minimum(ingress.xoff, total),
    )
    least = [own[data & (ingress.kind == 1) & (ingress.switch >= 0)]]
    leaving = np.repeat(state.ports.switch, classes) >= 0
    least.append(egress.kmin[data & leaving])
    lossy = data & (ingress.kind == 0) & (ingress.switch >= 0)
    share = egress.limit.min(initial=1.0)
    least.append(np.minimum(share * total / (1.0 + share), egress.room.min(initial=0))[lossy])
    return int(np.concatenate(least).min(initial=lay.FOREVER))


def lanes_of(
    state: PacketState, rows: Any, ptr: NDArray[np.int64], links: NDArray[np.int64]
) -> Any:
    """Return LANE records of new queue pairs ``rows`` along their paths (CSR)."""
    n = len(rows)
    lanes = records(lay.LANE, n)
    lanes["head"] = lanes["tail"] = lanes["last"] = lanes["next"] = lay.NONE
    lanes["sends"] = lay.NONE
    count = np.diff(ptr)
    lanes["hops"] = np.minimum(count, np.iinfo(np.int32).max)
    if not state.run.elide or not n:
        return lanes
    ports, start = state.ports, ptr[:-1]
    owner = np.repeat(np.arange(n), count)
    rate = ports.rate[links]
    plain = (ports.inside[links] == 0) & (ports.credit[links] == 0) & (ports.up[links] == 1)
    plain &= rate >= rate[start][owner]
    even = np.minimum.reduceat(ports.tau[links] > 0, start)
    paced = (rows["rate"] > 0) & ~(even & (rows["rate"] >= rate[start]))
    least = np.minimum.reduceat(state.safe[links * state.run.classes + rows["klass"][owner]], start)
    order = np.lexsort((links, owner))
    twice = np.zeros(n, np.bool_)
    twice[owner[order][1:][(np.diff(links[order]) == 0) & (np.diff(owner[order]) == 0)]] = True
    able = (
        np.minimum.reduceat(plain, start)
        & ~paced
        & ~twice
        & (ports.switch[links[start]] == lay.NONE)
        & (count <= lay.MOST_HOPS)
        & (rows["every"] == 0)
        & (least >= int(state.run.mtu + state.run.overhead + state.run.first))
    )
    lanes["most"] = np.where(able, least, 0)
    return lanes
