# SPDX-License-Identifier: Apache-2.0
"""Quantum: several packets of a message go as one where no feedback can act, compiled.

Such a train is served as one frame, cut through: its head goes on when the first frame has been
stored, its tail no earlier than its last frame has. Ports are first come, first served, so a train
learns when it leaves as it arrives, and ports that one queue pair has for itself need no event.
That is exact for what a port sends, and off by up to a train where queue pairs share it. No buffers
are counted: trains are for runs in which they cannot fill.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric.jit import jit
from railweave.fabric.packet.buffers import PS_BYTE, serialise
from railweave.fabric.packet.events import push
from railweave.fabric.packet.layout import (
    CLASS_SHIFT,
    DONE,
    KIND_SHIFT,
    NONE,
    TIMER,
    TRAIN,
)

__all__ = ["depart", "roll", "takes_trains", "wire_bytes"]


@jit(inline=True)
def wire_bytes(run: Any, node: Any) -> Any:
    """Return what a message has on the wire at most, answers included."""
    return node.payload + node.packets * (run.overhead + run.ack_wire + 16) + run.first


@jit(inline=True)
def takes_trains(runs: Any, lanes: Any, nodes: Any, row: Any) -> Any:
    """Count a message that begins, and tell whether it may go in trains."""
    run = runs[0]
    run.under_way += wire_bytes(run, nodes[row])
    return run.under_way <= run.calm_bytes and lanes[nodes[row].qp].most > 0


@jit(inline=True)
def _load(
    runs: Any, qps: Any, lanes: Any, nodes: Any, trains: Any, hops: Any, pair: Any, left: Any
) -> Any:
    """Put the next packets of a queue pair's message on a train at its host, and return it."""
    run = runs[0]
    number = np.int64(run.train_free)
    train = trains[number]
    run.train_free = train.next
    run.train_left -= 1
    row = np.int64(lanes[pair].sends)
    node = nodes[row]
    qp = qps[pair]
    frames = min(left, run.quantum)
    full = np.int64(run.mtu)
    last = full
    if left == frames:
        last = node.payload - (node.packets - 1) * run.mtu
    if qp.pad > 1:
        full = (full + 3) // 4 * 4
        last = (last + 3) // 4 * 4
    full += qp.overhead
    last += qp.overhead
    train.wire = (frames - 1) * full + last
    train.head = full if frames > 1 else last
    train.tail = last
    if left == node.packets:
        train.wire += qp.first
        train.head += qp.first
        if frames == 1:
            train.tail += qp.first
    train.row = row
    train.at = qp.path
    train.frames = frames
    train.left = left - frames
    train.leads = 1
    train.lane = pair
    train.klass = qp.klass
    return number


@jit(inline=True)
def _travel(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any, qps: Any, nodes: Any,
    trains: Any, hops: Any, users: Any, number: Any, at: Any,
) -> Any:  # fmt: skip
    """Take a train that reaches a port at ``at`` to the next one that others use as well.

    Returns 1, or 0 if there is none, so that it has arrived.
    """
    run = runs[0]
    train = trains[number]
    arrives = at
    while True:
        hop = hops[train.at]
        link = np.int64(hop.link)
        port = ports[link]
        start = max(arrives, port.busy)
        tau = port.tau
        if tau > 0:
            behind = (start - arrives) // tau
            head = train.head * tau
            last = train.tail * tau
        else:
            behind = np.int64((start - arrives) * (port.rate * 1.25e-13))
            head = train.head * PS_BYTE // port.rate
            last = train.tail * PS_BYTE // port.rate
        end = serialise(ports, link, start, train.wire)
        if train.tail_at + last > end:  # a slower link is still bringing its tail
            end = train.tail_at + last
            port.busy = end
        port.data_bytes += train.wire
        row = egress[link * run.classes + train.klass]
        row.frames += train.frames
        if port.switch >= 0:
            row.peak = max(row.peak, behind + train.wire - run.gap)
        run.hops += train.frames
        run.train_hops += train.frames
        arrives = start + head + port.fixed
        train.tail_at = end + port.fixed
        train.at = hop.next
        onward = np.int64(hops[train.at].link)
        if onward < 0:
            if train.left == 0:
                node = nodes[train.row]
                node.state = 2
                key = (DONE << CLASS_SHIFT) | np.int64(node.parent)
                ends = train.tail_at + qps[train.lane].latency
                push(runs, ev, wheel, far, ends, key, np.int64(train.row))
            train.next = run.train_free
            run.train_free = number
            run.train_left += 1
            return 0
        if users[onward] > 1:
            key = (TIMER << CLASS_SHIFT) | (TRAIN << KIND_SHIFT) | onward
            push(runs, ev, wheel, far, arrives, key, number)
            return 1


@jit(inline=True)
def _follow(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any, qps: Any, lanes: Any,
    nodes: Any, trains: Any, hops: Any, users: Any, pair: Any, left: Any, alone: Any,
) -> None:  # fmt: skip
    """Let trains leave a host until one has a port before it that others use as well.

    Where there is none on the whole path (``alone``: that is known), each leaves in its time, so
    that whoever cancels the message finds what is left of it.
    """
    run = runs[0]
    lane = lanes[pair]
    first = np.int64(hops[qps[pair].path].link)
    while True:
        if left == 0:  # on to the next message
            lane.sends = nodes[lane.sends].next
            if lane.sends < 0:
                return
            left = np.int64(nodes[lane.sends].packets)
        number = _load(runs, qps, lanes, nodes, trains, hops, pair, left)
        left = np.int64(trains[number].left)
        at = max(nodes[lane.sends].delay, ports[first].busy)  # may be past: nobody else was there
        trains[number].tail_at = at
        if users[first] > 1 or (alone == 1 and at > run.now):
            key = (TIMER << CLASS_SHIFT) | (TRAIN << KIND_SHIFT) | first
            push(runs, ev, wheel, far, max(at, run.now), key, number)
            return
        if _travel(
            runs, ev, wheel, far, ports, egress, qps, nodes, trains, hops, users, number, at
        ):
            return
        alone = 1


@jit
def depart(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any, qps: Any, lanes: Any,
    nodes: Any, trains: Any, hops: Any, users: Any, row: Any,
) -> None:  # fmt: skip
    """Let a message leave its host in trains, after those of its queue pair."""
    pair = np.int64(nodes[row].qp)
    lane = lanes[pair]
    nodes[row].next = NONE
    nodes[row].state = 1
    nodes[row].delay = runs[0].now
    if lane.sends >= 0:
        nodes[lane.waits].next = row
        lane.waits = row
        return
    lane.sends = lane.waits = row
    left = np.int64(nodes[row].packets)
    _follow(
        runs, ev, wheel, far, ports, egress, qps, lanes, nodes, trains, hops, users, pair, left, 0
    )


@jit
def roll(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any, qps: Any, lanes: Any,
    nodes: Any, trains: Any, hops: Any, users: Any, number: Any,
) -> None:  # fmt: skip
    """Let a train have its turn at a port that it has reached; the one behind it follows."""
    train = trains[number]
    if train.frames == 0:  # cancelled
        train.next = runs[0].train_free
        runs[0].train_free = number
        runs[0].train_left += 1
        return
    pair = np.int64(train.lane)
    left = np.int64(train.left)
    leads = train.leads == 1
    alone = 0
    if train.at == qps[pair].path and users[hops[train.at].link] == 1:
        alone = 1
    else:
        train.leads = 0
    shared = _travel(
        runs, ev, wheel, far, ports, egress, qps, nodes, trains, hops, users, number, runs[0].now
    )
    if leads and (alone == 0 or shared == 0):
        _follow(
            runs, ev, wheel, far, ports, egress, qps, lanes, nodes, trains, hops, users, pair, left,
            alone,
        )  # fmt: skip
