# SPDX-License-Identifier: Apache-2.0
"""Messages whose packets wait for nobody, compiled: they fly without packets, to the same results.

At its post a message is given its end at once (`railweave.fabric.packet.frames`) where no packet of
another queue pair is on any link of its path and every switch on it has flights only, so few bytes
that no pause, mark or drop can follow. Should another message come near while it is under way, it
is grounded: its packets are sent after all, from its post on. Until then nothing else touched its
ports, so what happens up to now is what would have happened, and what follows is exact.

A device has flights or messages that go as packets, never both: packets look at all bytes that a
switch holds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric.jit import jit
from railweave.fabric.packet.events import push
from railweave.fabric.packet.frames import send_frames
from railweave.fabric.packet.layout import (
    CARRY,
    CC_NONE,
    CLASS_SHIFT,
    DONE,
    FLYING,
    FREE_AT,
    GROUNDED,
    KEPT,
    KIND_SHIFT,
    LANDED,
    MOST_HOPS,
    NONE,
    PEAK,
    REPOST,
    TIMER,
    WAITS,
)
from railweave.fabric.packet.rates import gap_ps
from railweave.fabric.packet.work import message_bytes, packets_of, take_row, turn

__all__ = ["arrive", "board", "ground_all", "leave", "let_go"]


@jit
def _zone(zones: Any, ends: Any, hops: Any, first: Any, explicit: Any, by: Any) -> None:
    """Count a lane in or out at each device of its path."""
    at = first
    device = ends[hops[first].link ^ 1]
    while True:
        if explicit == 1:
            zones[device].explicit += by
        else:
            zones[device].flying += by
        link = np.int64(hops[at].link)
        if link < 0:
            break
        device = ends[link]
        at += 1


@jit
def _count(
    runs: Any, ports: Any, egress: Any, ingress: Any, qps: Any, hops: Any, lanes: Any, trail: Any,
    flight: Any, number: Any,
) -> None:  # fmt: skip
    """Count what a flight that has arrived put on its links, and leave the ports as it did."""
    run = runs[0]
    pair = np.int64(flight.lane)
    qp = qps[pair]
    klass = np.int64(qp.klass)
    n = np.int64(lanes[pair].hops)
    before = np.int64(NONE)
    for h in range(n):
        link = np.int64(hops[qp.path + h].link)
        port = ports[link]
        row = egress[link * run.classes + klass]
        at = number * MOST_HOPS + h
        port.busy = trail[at, FREE_AT]
        port.carry = trail[at, CARRY]
        port.data_bytes += flight.wire
        port.alternate = 1 if h == 0 else 0
        row.frames += flight.packets
        if run.strict > 1:
            row.deficit -= flight.wire
        if h > 0:
            peak = trail[at, PEAK]
            row.peak = max(row.peak, peak)
            held = ingress[before * run.classes + klass]
            if held.kind != 0:
                held.peak = max(held.peak, peak)
        before = link
    run.hops += n * flight.packets
    run.elided_hops += n * flight.packets
    qp.psn += flight.packets
    qp.posted += flight.packets
    qp.tx += flight.packets
    qp.high = max(qp.high, qp.psn)
    qp.expected = qp.psn
    qp.sent += flight.wire
    qp.began = flight.last_start
    qp.wire = flight.last_wire
    qp.begins = 1
    if qp.rate > 0.0:
        qp.free = flight.last_start + gap_ps(np.int64(flight.last_wire), qp.rate)


@jit(inline=True)
def _free(runs: Any, flights: Any, number: Any) -> None:
    run = runs[0]
    flights[number].next = run.flight_free
    run.flight_free = number
    run.flight_left += 1


@jit
def _land(
    runs: Any, ports: Any, egress: Any, ingress: Any, qps: Any, hops: Any, lanes: Any,
    flights: Any, trail: Any, zones: Any, ends: Any, pair: Any,
) -> None:  # fmt: skip
    """Count the flights of a lane, all of which have arrived."""
    lane = lanes[pair]
    number = np.int64(lane.head)
    while number >= 0:
        flight = flights[number]
        _count(runs, ports, egress, ingress, qps, hops, lanes, trail, flight, number)
        flight.state = LANDED
        runs[0].flights -= 1
        number = np.int64(flight.next)
    lane.head = lane.tail = NONE
    _zone(zones, ends, hops, np.int64(qps[pair].path), 0, -1)


@jit
def arrive(
    runs: Any, ports: Any, egress: Any, ingress: Any, qps: Any, hops: Any, lanes: Any,
    flights: Any, trail: Any, zones: Any, ends: Any, number: Any,
) -> Any:  # fmt: skip
    """End a flight; return 1, or 0 if it was grounded, so that its packets end its message."""
    flight = flights[number]
    pair = np.int64(flight.lane)
    lane = lanes[pair]
    if flight.state == GROUNDED:
        _free(runs, flights, number)
        return 0
    if flight.state == FLYING:
        _count(runs, ports, egress, ingress, qps, hops, lanes, trail, flight, number)
        runs[0].flights -= 1
        lane.head = flight.next
        if lane.head < 0:
            lane.tail = NONE
            _zone(zones, ends, hops, np.int64(qps[pair].path), 0, -1)
    if flight.alone == 1:
        if lane.last >= 0:
            _free(runs, flights, np.int64(lane.last))
        flight.state = KEPT
        lane.last = number
    else:
        _free(runs, flights, number)
    return 1


@jit
def _near(
    runs: Any, ports: Any, egress: Any, ingress: Any, qps: Any, hops: Any, lanes: Any,
    flights: Any, trail: Any, zones: Any, riders: Any, ends: Any, ptr: Any, links: Any,
    device: Any, found: Any,
) -> Any:  # fmt: skip
    """Put the lanes with flights at a device before the list ``found``; land what has arrived."""
    for i in range(ptr[device], ptr[device + 1]):
        for way in range(2):
            pair = np.int64(riders[links[i] ^ way])
            if pair < 0 or lanes[pair].head < 0 or lanes[pair].listed == 1:
                continue
            if lanes[pair].until <= runs[0].now:
                _land(
                    runs, ports, egress, ingress, qps, hops, lanes, flights, trail, zones, ends,
                    pair,
                )  # fmt: skip
                continue
            lanes[pair].listed = 1
            lanes[pair].next = found
            found = pair
    return found


@jit
def _ground(
    runs: Any, ev: Any, wheel: Any, far: Any, qps: Any, nodes: Any, hops: Any, lanes: Any,
    flights: Any, zones: Any, ends: Any, pair: Any,
) -> None:  # fmt: skip
    """Post the messages of a lane's flights once more, each at its time, to go as packets."""
    run = runs[0]
    lane = lanes[pair]
    number = np.int64(lane.head)
    while number >= 0:
        flight = flights[number]
        row = np.int64(flight.node)
        if nodes[row].loop >= 0:
            row = take_row(runs, nodes, row, flight.payload)
        key = (TIMER << CLASS_SHIFT) | (REPOST << KIND_SHIFT) | flight.order
        push(runs, ev, wheel, far, flight.post, key, row)
        flight.state = GROUNDED
        lane.explicit += 1
        run.flights -= 1
        run.grounded += 1
        number = np.int64(flight.next)
    lane.head = lane.tail = NONE
    lane.listed = 0
    lane.shy = 1
    first = np.int64(qps[pair].path)
    _zone(zones, ends, hops, first, 0, -1)
    _zone(zones, ends, hops, first, 1, 1)


@jit
def _clear(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any, ingress: Any, qps: Any,
    nodes: Any, hops: Any, lanes: Any, flights: Any, trail: Any, zones: Any, riders: Any,
    ends: Any, ptr: Any, links: Any, pair: Any,
) -> Any:  # fmt: skip
    """Ground all flights at the devices of a path, at those of theirs, and so on; 1 if any."""
    found = np.int64(NONE)
    grounded = 0
    while True:
        at = np.int64(qps[pair].path)
        device = np.int64(ends[hops[at].link ^ 1])
        while True:
            if zones[device].flying > 0:
                found = _near(
                    runs, ports, egress, ingress, qps, hops, lanes, flights, trail, zones, riders,
                    ends, ptr, links, device, found,
                )  # fmt: skip
            link = np.int64(hops[at].link)
            if link < 0:
                break
            device = np.int64(ends[link])
            at += 1
        if grounded > 0:
            _ground(runs, ev, wheel, far, qps, nodes, hops, lanes, flights, zones, ends, pair)
        if found < 0:
            return 1 if grounded > 0 else 0
        grounded += 1
        pair = found
        found = np.int64(lanes[pair].next)


@jit
def ground_all(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any, ingress: Any, qps: Any,
    nodes: Any, hops: Any, lanes: Any, flights: Any, trail: Any, zones: Any, ends: Any, some: Any,
) -> None:  # fmt: skip
    """Turn the flights of some lanes that are still under way into packets."""
    for pair in some:
        if lanes[pair].until <= runs[0].now:
            _land(runs, ports, egress, ingress, qps, hops, lanes, flights, trail, zones, ends, pair)
        else:
            _ground(runs, ev, wheel, far, qps, nodes, hops, lanes, flights, zones, ends, pair)


@jit(inline=True)
def _undisturbed(
    runs: Any, ports: Any, egress: Any, ingress: Any, qps: Any, hops: Any, lanes: Any,
    flights: Any, trail: Any, zones: Any, riders: Any, ends: Any, pair: Any,
) -> Any:  # fmt: skip
    """Tell whether nobody is near a path: 1, 2 if its ports are idle as well, 0 if somebody is."""
    run = runs[0]
    first = np.int64(qps[pair].path)
    if zones[ends[hops[first].link ^ 1]].explicit > 0:
        return 0
    idle = 2
    for h in range(lanes[pair].hops):
        link = np.int64(hops[first + h].link)
        if zones[ends[link]].explicit > 0 or ports[link].blocked != 0:
            return 0
        if ports[link].pauses > 0 or ports[link ^ 1].pauses > 0:  # some may still be on the wire
            return 0
        other = np.int64(riders[link])
        if other >= 0 and other != pair and lanes[other].head >= 0:
            if lanes[other].until > run.now:
                return 0
            _land(
                runs, ports, egress, ingress, qps, hops, lanes, flights, trail, zones, ends, other
            )
        if ports[link].busy > run.now or ports[link].tau == 0:
            idle = 1
    return idle


@jit(inline=True)
def _like_last(runs: Any, lanes: Any, flights: Any, trail: Any, pair: Any, size: Any) -> Any:
    """Return the lane's last flight as one that begins now, if that was alike, else NONE."""
    lane = lanes[pair]
    number = np.int64(lane.last)
    if number < 0 or flights[number].payload != size:
        return np.int64(NONE)
    lane.last = NONE
    flight = flights[number]
    by = runs[0].now - flight.post
    flight.post += by
    flight.until += by
    flight.last_start += by
    for h in range(lane.hops):
        at = number * MOST_HOPS + h
        trail[at, FREE_AT] += by
        trail[at, WAITS] = 0
    return number


@jit
def board(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any, ingress: Any, qps: Any,
    rates: Any, nodes: Any, loops: Any, hops: Any, lanes: Any, flights: Any, trail: Any,
    zones: Any, riders: Any, ends: Any, ptr: Any, links: Any, node: Any,
) -> Any:  # fmt: skip
    """Let the message that a node posts now fly if it can.

    Returns 1 if it does, 0 if it must go as packets, and 2 if others were grounded first: then it
    must be posted again after them.
    """
    run = runs[0]
    pair = np.int64(nodes[node].qp)
    lane = lanes[pair]
    qp = qps[pair]
    number = np.int64(NONE)
    if (
        run.fly == 1
        and lane.most > 0
        and (lane.shy == 0 or run.quantum == 1)
        and lane.explicit == 0
        and qp.free <= run.now
        and (run.cc == CC_NONE or rates[pair].on == 0)
    ):
        calm = _undisturbed(
            runs, ports, egress, ingress, qps, hops, lanes, flights, trail, zones, riders, ends,
            pair,
        )  # fmt: skip
        size = message_bytes(nodes, loops, node)
        before = np.int64(lane.tail)
        alone = calm == 2 and before < 0
        if alone:
            number = _like_last(runs, lanes, flights, trail, pair, size)
        if calm > 0 and number < 0:
            number = np.int64(run.flight_free)
            flight = flights[number]
            flight.lane = pair
            flight.payload = size
            flight.packets = packets_of(run, size)
            flight.post = run.now
            flight.alone = 1 if alone else 0
            if send_frames(runs, ports, qps, hops, lanes, flights, trail, number, before):
                run.flight_free = flight.next
                run.flight_left -= 1
            else:
                number = np.int64(NONE)
    if number < 0:
        if _clear(
            runs, ev, wheel, far, ports, egress, ingress, qps, nodes, hops, lanes, flights, trail,
            zones, riders, ends, ptr, links, pair,
        ):  # fmt: skip
            return 2
        if lane.explicit == 0 and lane.linger == 0:
            _zone(zones, ends, hops, np.int64(qp.path), 1, 1)
        lane.linger = 0
        lane.explicit += 1
        return 0
    flight = flights[number]
    flight.node = node
    flight.state = FLYING
    flight.order = run.flown
    flight.next = NONE
    run.flown += 1
    run.flights += 1
    lane.until = flight.until
    if lane.tail >= 0:
        flights[lane.tail].next = number
    else:
        lane.head = number
        first = np.int64(qp.path)
        for h in range(lane.hops):
            riders[hops[first + h].link] = pair
        _zone(zones, ends, hops, first, 0, 1)
    lane.tail = number
    if nodes[node].loop >= 0:
        turn(loops, nodes[node])
    push(runs, ev, wheel, far, flight.until + qp.latency, (DONE << CLASS_SHIFT) | node, -1 - number)
    return 1


@jit(inline=True)
def let_go(zones: Any, ends: Any, qps: Any, hops: Any, lanes: Any, pair: Any) -> None:
    """Leave a path when no packet of a lane is under way any more."""
    lane = lanes[pair]
    if lane.linger == 1 and lane.explicit == 0 and qps[pair].inflight == 0:
        lane.linger = 0
        _zone(zones, ends, hops, np.int64(qps[pair].path), 1, -1)


@jit(inline=True)
def leave(zones: Any, ends: Any, qps: Any, hops: Any, lanes: Any, pair: Any) -> None:
    """Count off a message that went as packets."""
    lane = lanes[pair]
    lane.explicit -= 1
    if lane.explicit == 0:
        lane.linger = 1
        let_go(zones, ends, qps, hops, lanes, pair)
