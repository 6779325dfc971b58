# SPDX-License-Identifier: Apache-2.0
"""Dynamic detection of deadlock: paused links that wait for each other in a circle.

From the set of paused links, every link is struck off again whose queue at its end may resume it
once all packets have left that go on over links that are not (any more) in the set: some must, as
only a packet that leaves makes the queue look at its threshold, its headroom must be empty then,
and what is stuck be at the XON threshold or below. A dynamic threshold is taken as it is when
nothing but what is stuck is left in the buffer. What remains waits for itself, for good (Hu et al.,
"Deadlocks in datacenter networks: why do they form, and how to avoid them", HotNets 2016).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.fabric.jit import call_for_work, jit
from railweave.fabric.packet.buffers import settle

if TYPE_CHECKING:
    from railweave.fabric.packet.state import PacketState

__all__ = ["deadlock_cycle"]


@jit(inline=True)
def _add_up(run: Any, egress: Any, ingress: Any, packets: Any) -> None:
    """Write into each waiting ingress queue what it has in egress queues that wait themselves."""
    for queue in range(len(ingress)):
        ingress[queue].stuck = 0
    for queue in range(len(ingress)):
        if ingress[queue].waits == 0:
            continue
        number = np.int64(egress[queue].head)
        while number >= 0:
            packet = packets[number]
            if packet.ingress >= 0 and ingress[packet.ingress].waits == 1:
                ingress[packet.ingress].stuck += np.int64(packet.wire) - run.gap
            number = np.int64(packet.next)


@jit
def strike_off(
    runs: Any, ports: Any, egress: Any, ingress: Any, switches: Any, swports: Any, packets: Any
) -> Any:
    """Mark the (link, class) that can never move in ``waits``; return how many there are."""
    run = runs[0]
    left = 0
    for number in range(len(switches)):
        settle(run, ports, egress, ingress, switches, swports, number)
    for link in range(len(ports)):
        for klass in range(run.classes):
            own = ingress[link * run.classes + klass]
            own.waits = 0
            if (ports[link].blocked >> klass) & 1 == 1 and own.off == 1:
                own.waits = 1
                left += 1
    before = left + 1
    while 0 < left < before:
        before = left
        _add_up(run, egress, ingress, packets)
        for number in range(len(switches)):
            switch = switches[number]
            shared = 0
            for i in range(switch.first, switch.last):
                queue = (np.int64(swports[i]) ^ 1) * run.classes
                for klass in range(run.classes):
                    own = ingress[queue + klass]
                    if own.waits == 1:
                        shared += max(own.stuck - own.reserve, 0)
            for i in range(switch.first, switch.last):
                queue = (np.int64(swports[i]) ^ 1) * run.classes
                for klass in range(run.classes):
                    own = ingress[queue + klass]
                    if own.waits == 0:
                        continue
                    level = own.xon * 1.0
                    if own.alpha > 0.0:
                        level = max(own.alpha * (switch.total - shared) - own.hysteresis, 0.0)
                    gone = own.held + own.head - own.stuck
                    if gone >= max(own.head, 1) and own.stuck <= own.reserve + level:
                        own.waits = 0
                        left -= 1
    return left


def deadlock_cycle(state: PacketState) -> list[tuple[int, int]]:
    """Return the (link, priority) of a circle of paused links that can never move, or nothing."""
    work = len(state.ports) * len(state.priorities) + len(state.packets) - int(state.run.pk_left)
    left = call_for_work(
        work, strike_off, state.runs, state.ports, state.egress, state.ingress, state.switches,
        state.swports, state.packets,
    )  # fmt: skip
    if left == 0:
        return []
    stuck = set(np.flatnonzero(state.ingress.waits == 1).tolist())
    return _circle(stuck, state)


def _circle(stuck: set[int], state: PacketState) -> list[tuple[int, int]]:
    """Follow what waits for what from the lowest stuck queue until it comes back."""
    held: dict[int, set[int]] = {queue: set() for queue in stuck}
    packets = state.packets
    for out in sorted(stuck):
        number = int(state.egress.head[out])
        while number >= 0:
            origin = int(packets[number].ingress)
            if origin in held:
                held[origin].add(out)
            number = int(packets[number].next)
    at, order = min(stuck), []
    while at not in order:
        order.append(at)
        if not held[at]:
            return []
        at = min(held[at])
    cycle = order[order.index(at) :]
    turn = cycle.index(min(cycle))
    classes = len(state.priorities)
    return [
        (queue // classes, state.priorities[queue % classes])
        for queue in cycle[turn:] + cycle[:turn]
    ]
