# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels of routing: distances and the walk of each flow.

Switches and NICs are *places*: switches by their dense numbers, NICs by theirs after the switches'.
A *state* is ``2 * place + phase``: in phase 0 a path may still climb, in phase 1 it only descends.
A step between switches has a direction: +1 up, 0 across one tier, -1 down; where switches have no
tiers every step is a step down, and the phases say nothing. A step to or from a NIC counts as up.

Links come as CSR: ``ptr`` by the place that owns them, and a table with a column per link. Its rows
are `LINK`, the link's index in the fabric, `FAR`, the place at its far end, and `DIRECTION`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric.jit import jit

__all__ = [
    "DIRECTION",
    "FAR",
    "HERE",
    "LINK",
    "ROOM",
    "distances",
    "hash_index",
    "inside",
    "mix",
    "onward",
    "walk",
]

HERE = -1  # the state of a path that reached its NIC
LINK, FAR, DIRECTION = 0, 1, 2  # rows of a table of links
ROOM = 5  # rows of working room of `inside`
_STAMP, _VIA, _CAME, _HOPS, _QUEUE = 0, 1, 2, 3, 4
BY_HASH = 0
BY_DESTINATION = 1

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_27, _30, _31, _32 = (np.uint64(bits) for bits in (27, 30, 31, 32))
_ROCE = np.uint64(4791 << 16 | 17)
_ADDRESS = np.uint64(10 << 24)


@jit
def mix(value: Any) -> Any:
    """``hashing.mix``."""
    value = value + _GOLDEN
    value = (value ^ (value >> _30)) * _FIRST
    value = (value ^ (value >> _27)) * _SECOND
    return value ^ (value >> _31)


@jit
def hash_index(state: Any, source: Any, destination: Any, port: Any, count: Any) -> Any:
    """``hashing.choose`` of the flow between two NICs, from a switch's hash state."""
    value = mix(state ^ (_ADDRESS + np.uint64(source)))
    value = mix(value ^ (_ADDRESS + np.uint64(destination)))
    value = mix(value ^ ((port << _32) | _ROCE))
    return np.int64(((value >> _32) * np.uint64(count)) >> _32)


@jit
def distances(
    target_ptr: Any, targets: Any, into_ptr: Any, into: Any, queue: Any, out: Any
) -> None:
    """Fill ``out[row, phase, switch]`` with hops to the nearest target of each row, or -1.

    A breadth-first search backwards over states: a path climbs, crosses its own tier at most
    once, then descends. ``out`` comes filled with -1; ``queue`` has room for every state.
    """
    for row in range(out.shape[0]):
        head = 0
        tail = 0
        for t in range(target_ptr[row], target_ptr[row + 1]):
            for phase in range(2):
                out[row, phase, targets[t]] = 0
                queue[tail] = 2 * targets[t] + phase
                tail += 1
        while head < tail:
            switch = queue[head] >> 1
            phase = queue[head] & 1
            head += 1
            hops = out[row, phase, switch] + 1
            for k in range(into_ptr[switch], into_ptr[switch + 1]):
                before = into[FAR, k]
                direction = into[DIRECTION, k]
                # What may lead to this state: a climb from phase 0; else a step down from either
                # phase, or a step across from phase 0.
                if out[row, 0, before] < 0 and (direction > 0) == (phase == 0):
                    out[row, 0, before] = hops
                    queue[tail] = 2 * before
                    tail += 1
                if out[row, 1, before] < 0 and direction < 0 and phase == 1:
                    out[row, 1, before] = hops
                    queue[tail] = 2 * before + 1
                    tail += 1


@jit
def onward(
    state: Any, left: Any, goal: Any, row: Any, near: Any, ptr: Any, ways: Any, ahead: Any
) -> Any:
    """Fill in the next hops of a place ``left`` hops before a NIC and return their number.

    ``goal`` is the NIC's place; ``ahead`` takes a link and the state behind it per column.
    """
    place = state >> 1
    count = 0
    for k in range(ptr[place], ptr[place + 1]):
        far = ways[FAR, k]
        if left == 1:
            if far == goal:
                ahead[0, count] = ways[LINK, k]
                ahead[1, count] = HERE
                count += 1
        elif far < near.shape[2]:
            direction = ways[DIRECTION, k]
            after = 0 if direction > 0 else 1
            if near[row, after, far] == left - 2 and ((state & 1) == 0 or direction < 0):
                ahead[0, count] = ways[LINK, k]
                ahead[1, count] = 2 * far + after
                count += 1
    return count


@jit
def walk(
    policy: Any,
    source: Any,
    target: Any,
    first: Any,
    last: Any,
    length: Any,
    port: Any,
    row_of_nic: Any,
    near: Any,
    way_ptr: Any,
    ways: Any,
    state_hash: Any,
    position: Any,
    tier: Any,
    inside_ptr: Any,
    inside_link: Any,
    ahead: Any,
    digits: Any,
    ptr: Any,
    links: Any,
) -> None:
    """Write the links of each flow at ``links[ptr[i]:ptr[i + 1]]``.

    ``first`` and ``last`` number the stretches inside the hosts (-1: none); between them the flow
    crosses ``length`` links from NIC ``source`` to NIC ``target`` (-1: it stays inside). By
    destination, a path climbs by the digits of the destination's position, lowest first, and comes
    down each tier by the digit that brought it up there. ``ahead`` and ``digits`` (by tier) are
    working room.
    """
    switches = near.shape[2]
    for i in range(len(source)):
        at = ptr[i]
        if first[i] >= 0:
            for k in range(inside_ptr[first[i]], inside_ptr[first[i] + 1]):
                links[at] = inside_link[k]
                at += 1
        if source[i] >= 0:
            row = row_of_nic[target[i]]
            digit = position[target[i]]
            state = 2 * (switches + np.int64(source[i]))
            for left in range(length[i], 0, -1):
                count = onward(
                    state, left, switches + target[i], row, near, way_ptr, ways, ahead
                )  # fmt: skip
                place = state >> 1
                pick = np.int64(0)
                if policy == BY_HASH:
                    if count > 1:
                        pick = hash_index(state_hash[place], source[i], target[i], port[i], count)
                elif place >= switches:
                    pick = digit % count
                    digit = digit // count
                    for level in range(len(digits)):
                        digits[level] = digit
                else:
                    level = max(tier[place], 0)
                    if (state & 1) == 0:
                        digits[level] = digit
                    after = np.int64(ahead[1, 0])
                    if after != HERE:
                        if (after & 1) == 0:
                            digit = digits[level] // count
                        else:
                            level = max(tier[after >> 1], 0)
                    pick = digits[level] % count
                links[at] = ahead[0, pick]
                at += 1
                state = np.int64(ahead[1, pick])
        if last[i] >= 0:
            for k in range(inside_ptr[last[i]], inside_ptr[last[i] + 1]):
                links[at] = inside_link[k]
                at += 1


@jit
def inside(
    source: Any,
    target: Any,
    out_ptr: Any,
    out_link: Any,
    link_dst: Any,
    forwards: Any,
    found: Any,
    length: Any,
    links: Any,
) -> None:
    """Find the shortest path between two devices of each pair over the links given.

    Only devices that ``forwards`` marks pass bytes on. ``length`` is -1 where there is no path;
    rows of ``links`` hold as much of it as fits. ``found``, zeros, is working room: `ROOM` rows
    with a column per device.
    """
    for i in range(len(source)):
        head = 0
        tail = 1
        found[_QUEUE, 0] = source[i]
        found[_STAMP, source[i]] = i + 1
        while head < tail and found[_STAMP, target[i]] != i + 1:
            device = found[_QUEUE, head]
            head += 1
            if head > 1 and not forwards[device]:
                continue
            for k in range(out_ptr[device], out_ptr[device + 1]):
                link = out_link[k]
                peer = link_dst[link]
                if found[_STAMP, peer] != i + 1:
                    found[_STAMP, peer] = i + 1
                    found[_VIA, peer] = link
                    found[_CAME, peer] = device
                    found[_HOPS, peer] = found[_HOPS, device] + 1 if head > 1 else 1
                    found[_QUEUE, tail] = peer
                    tail += 1
        hops = -1
        if found[_STAMP, target[i]] == i + 1:
            device = target[i]
            hops = 0 if source[i] == device else found[_HOPS, device]
            for k in range(hops - 1, -1, -1):
                if k < links.shape[1]:
                    links[i, k] = found[_VIA, device]
                device = found[_CAME, device]
        length[i] = hops
