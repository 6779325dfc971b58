# SPDX-License-Identifier: Apache-2.0
"""Dynamic detection of deadlock: paused links that wait for each other in a circle.

From the set of paused links, every link is struck off again whose queue at its end would resume it
if all packets left it that go on over links that are not (any more) in the set: some must, as only
a packet that leaves makes the queue look at its threshold, its headroom must be empty then, and
what is stuck be at the XON threshold or below. What remains waits for itself (Hu et al., "Deadlocks
in datacenter networks: why do they form, and how to avoid them", HotNets 2016).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.jit import as_python
from railweave.fabric.packet.buffers import settle

if TYPE_CHECKING:
    from railweave.fabric.packet.state import PacketState

__all__ = ["deadlock_cycle"]


def deadlock_cycle(state: PacketState) -> list[tuple[int, int]]:
    """Return the (link, priority) of a circle of paused links that can never move, or nothing."""
    for number in range(len(state.switches)):
        as_python(
            settle, state.run, state.ports, state.egress, state.ingress, state.switches,
            state.swports, number,
        )  # fmt: skip
    classes = len(state.priorities)
    paused: set[int] = {
        int(link) * classes + klass
        for link in np.flatnonzero(state.ports.blocked).tolist()
        for klass in range(classes)
        if (int(state.ports.blocked[link]) >> klass)
        & int(state.ingress.off[link * classes + klass])
    }
    held = _held(state, paused)
    changed = True
    while changed:
        changed = False
        for queue in sorted(paused):
            row = state.ingress[queue]
            stuck = sum(size for out, size in held[queue].items() if out in paused)
            gone = int(row.held) + int(row.head) - stuck
            if gone >= max(int(row.head), 1) and stuck <= _resume_level(state, row):
                paused.discard(queue)
                changed = True
    return _circle(paused, held, state)


def _held(state: PacketState, paused: set[int]) -> dict[int, dict[int, int]]:
    """Bytes that each paused ingress queue holds, by the egress queue they wait in."""
    held: dict[int, dict[int, int]] = {queue: {} for queue in paused}
    packets = state.packets
    for out in np.flatnonzero(state.egress.head >= 0):
        number = int(state.egress.head[out])
        while number >= 0:
            origin = int(packets[number].ingress)
            if origin in held:
                size = int(packets[number].wire) - int(state.run.gap)
                held[origin][int(out)] = held[origin].get(int(out), 0) + size
            number = int(packets[number].next)
    return held


def _resume_level(state: PacketState, row: object) -> float:
    reserve = int(row.reserve)  # type: ignore[attr-defined]
    if row.alpha > 0:  # type: ignore[attr-defined]
        switch = state.switches[row.switch]  # type: ignore[attr-defined]
        free = row.alpha * (switch.total - switch.shared)  # type: ignore[attr-defined]
        return float(reserve + max(free - row.hysteresis, 0))  # type: ignore[attr-defined]
    return float(reserve + row.xon)  # type: ignore[attr-defined]


def _circle(
    stuck: set[int], held: dict[int, dict[int, int]], state: PacketState
) -> list[tuple[int, int]]:
    """Follow what waits for what from the lowest stuck queue until it comes back."""
    if not stuck:
        return []
    at, order = min(stuck), []
    while at not in order:
        order.append(at)
        after = [out for out in held[at] if out in stuck]
        if not after:
            return []
        at = min(after)
    cycle = order[order.index(at) :]
    turn = cycle.index(min(cycle))
    classes = len(state.priorities)
    return [
        (queue // classes, state.priorities[queue % classes])
        for queue in cycle[turn:] + cycle[:turn]
    ]
