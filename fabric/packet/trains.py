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
from railweave.fabric.packet.buffers import serialise
from railweave.fabric.packet.events import push
from railweave.fabric.packet.layout import (
    CLASS_SHIFT,
    DONE,
    KIND_SHIFT,
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
def _fill(runs: Any, qps: Any, nodes: Any, trains: Any, number: Any) -> None:
    """Load the next packets of a message onto its train."""
    run = runs[0]
    train = trains[number]
    node = nodes[train.row]
    qp = qps[node.qp]
    first = train.left == node.packets
    frames = min(np.int64(train.left), run.quantum)
    train.left -= frames
    full = np.int64(run.mtu)
    last = full
    if train.left == 0:
        last = node.payload - (node.packets - 1) * run.mtu
    if qp.pad > 1:
        full = (full + 3) // 4 * 4
        last = (last + 3) // 4 * 4
    full += qp.overhead
    last += qp.overhead
    train.frames = frames
    train.size = (frames - 1) * full + last
    train.head = full if frames > 1 else last
    train.tail = last
    if first:
        train.size += qp.first
        train.head += qp.first
        if frames == 1:
            train.tail += qp.first


@jit(inline=True)
def _take_train(runs: Any, trains: Any) -> Any:
    number = np.int64(runs[0].train_free)
    runs[0].train_free = trains[number].next
    runs[0].train_left -= 1
    return number


@jit(inline=True)
def _free_train(runs: Any, trains: Any, number: Any) -> None:
    trains[number].next = runs[0].train_free
    runs[0].train_free = number
    runs[0].train_left += 1


@jit(inline=True)
def _push(runs: Any, ev: Any, wheel: Any, far: Any, at: Any, link: Any, number: Any) -> None:
    push(runs, ev, wheel, far, at, (TIMER << CLASS_SHIFT) | (TRAIN << KIND_SHIFT) | link, number)


@jit
def depart(
    runs: Any, ev: Any, wheel: Any, far: Any, qps: Any, nodes: Any, trains: Any, hops: Any,
    row: Any,
) -> None:  # fmt: skip
    """Let the first train of a message leave its host."""
    number = _take_train(runs, trains)
    train = trains[number]
    qp = qps[nodes[row].qp]
    train.row = row
    train.at = qp.path
    train.left = nodes[row].packets
    _fill(runs, qps, nodes, trains, number)
    train.tail_at = runs[0].now
    _push(runs, ev, wheel, far, runs[0].now, np.int64(hops[qp.path].link), number)


@jit
def roll(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any, qps: Any, nodes: Any,
    trains: Any, hops: Any, users: Any, number: Any,
) -> None:  # fmt: skip
    """Take a train from the port it has reached to the next one that others use too."""
    run = runs[0]
    train = trains[number]
    node = nodes[train.row]
    klass = np.int64(qps[node.qp].klass)
    arrives = run.now
    begins = qps[node.qp].path == train.at
    while True:
        hop = hops[train.at]
        link = np.int64(hop.link)
        port = ports[link]
        free = max(arrives, port.busy)
        if port.busy > arrives and port.tau > 0:
            waits = (port.busy - arrives) // port.tau
        else:
            waits = np.int64(0)
        end = serialise(ports, link, free, train.size)
        rest = train.tail_at
        if port.tau > 0:
            rest += train.tail * port.tau
        if rest > end and not begins:  # a slower link is still bringing its tail
            end = rest
            port.busy = end
        port.data_bytes += train.size
        row = egress[link * run.classes + klass]
        row.frames += train.frames
        if port.switch >= 0:
            row.peak = max(row.peak, waits + train.size - run.gap)
        run.hops += train.frames
        run.train_hops += train.frames
        if begins and train.left > 0:  # the next one follows when this one has left its host
            after = _take_train(runs, trains)
            follower = trains[after]
            follower.row = train.row
            follower.at = train.at
            follower.left = train.left
            _fill(runs, qps, nodes, trains, after)
            follower.tail_at = end
            _push(runs, ev, wheel, far, end, link, after)
        begins = False
        head = train.head * port.tau
        if port.tau == 0:
            head = (train.head * 8 * 10**12) // port.rate
        arrives = free + head + hop.fixed
        train.tail_at = end + hop.fixed
        train.at = hop.next
        onward = np.int64(hops[train.at].link)
        if onward < 0:
            if train.left == 0:
                node.state = 2
                key = (DONE << CLASS_SHIFT) | np.int64(node.parent)
                at = train.tail_at + qps[node.qp].latency
                push(runs, ev, wheel, far, at, key, np.int64(train.row))
            _free_train(runs, trains, number)
            return
        if users[onward] > 1:
            _push(runs, ev, wheel, far, arrives, onward, number)
            return
