# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels of routing: distances and the walk of each flow.

Switches and NICs go by dense numbers here, links by their index in the fabric. A *state* is
``2 * switch + phase``: in phase 0 a path may still climb, in phase 1 it only descends. A step
between switches has a direction: +1 up, 0 across one tier, -1 down; where switches have no tiers
every step is a step down, and the phases say nothing.

Links come as CSR: ``ptr`` by owner, and a table with a column per link. Its rows are `LINK`, the
link's index, `FAR`, the dense number at its far end, and between switches `DIRECTION`.

numba's cache watches one file at a time: whoever changes ``leave`` or ``onward`` must touch
``_spray`` too, which calls them.
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
    "leave",
    "mix",
    "onward",
    "source_port",
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
_16, _27, _30, _31, _32 = (np.uint64(bits) for bits in (16, 27, 30, 31, 32))
_ROCE = np.uint64(4791 << 16 | 17)
_FIRST_PORT = np.uint64(49152)
_PORTS = np.uint64(16384)
_ADDRESS = np.uint64(10 << 24)


@jit()
def mix(value: Any) -> Any:
    """``hashing.mix``."""
    value = value + _GOLDEN
    value = (value ^ (value >> _30)) * _FIRST
    value = (value ^ (value >> _27)) * _SECOND
    return value ^ (value >> _31)


@jit()
def source_port(queue_pair: Any, source: Any, destination: Any) -> Any:
    """``hashing.roce_source_port`` of a queue pair between two NICs."""
    return _FIRST_PORT + mix(queue_pair ^ mix((source << _32) | destination)) % _PORTS


@jit()
def hash_index(state: Any, source: Any, destination: Any, port: Any, count: Any) -> Any:
    """``hashing.choose`` of the flow between two NICs, from a switch's hash state."""
    value = mix(state ^ (_ADDRESS + source))
    value = mix(value ^ (_ADDRESS + destination))
    value = mix(value ^ ((port << _32) | _ROCE))
    return np.int64(((value >> _32) * np.uint64(count)) >> _32)


@jit("void(i4[::1], i4[::1], i4[::1], i4[:, ::1], i4[::1], i2[:, :, ::1])", allocates=False)
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


@jit(internal=True, allocates=False)
def leave(
    nic: Any,
    target: Any,
    row: Any,
    near: Any,
    up_ptr: Any,
    up: Any,
    pair_ptr: Any,
    pair: Any,
    ahead: Any,
) -> Any:
    """Fill in the next hops of a NIC towards another and return their number.

    ``ahead`` takes a link and the state behind it per column.
    """
    count = 0
    for k in range(pair_ptr[nic], pair_ptr[nic + 1]):
        if pair[FAR, k] == target:
            ahead[0, count] = pair[LINK, k]
            ahead[1, count] = HERE
            count += 1
    if count > 0 or row < 0:
        return count
    best = -1
    for k in range(up_ptr[nic], up_ptr[nic + 1]):
        hops = near[row, 0, up[FAR, k]]
        if hops < 0 or (best >= 0 and hops > best):
            continue
        if hops != best:
            best = hops
            count = 0
        ahead[0, count] = up[LINK, k]
        ahead[1, count] = 2 * up[FAR, k]
        count += 1
    return count


@jit(internal=True, allocates=False)
def onward(
    state: Any,
    target: Any,
    row: Any,
    near: Any,
    hop_ptr: Any,
    hop: Any,
    down_ptr: Any,
    down: Any,
    ahead: Any,
) -> Any:
    """Fill in the next hops of a switch towards a NIC and return their number."""
    switch = state >> 1
    phase = state & 1
    left = near[row, phase, switch]
    count = 0
    if left == 0:
        low = np.int64(down_ptr[switch])
        end = np.int64(down_ptr[switch + 1])
        high = end
        while low < high:
            middle = (low + high) >> 1
            if down[FAR, middle] < target:
                low = middle + 1
            else:
                high = middle
        while low < end and down[FAR, low] == target:
            ahead[0, count] = down[LINK, low]
            ahead[1, count] = HERE
            count += 1
            low += 1
        return count
    for k in range(hop_ptr[switch], hop_ptr[switch + 1]):
        direction = hop[DIRECTION, k]
        if phase == 1 and direction >= 0:
            continue
        after = 0 if direction > 0 else 1
        if near[row, after, hop[FAR, k]] == left - 1:
            ahead[0, count] = hop[LINK, k]
            ahead[1, count] = 2 * hop[FAR, k] + after
            count += 1
    return count


@jit(
    "void(i8, i4[::1], i4[::1], i4[::1], i4[::1], u8[::1], i4[::1], i2[:, :, ::1],"
    " i4[::1], i4[:, ::1], i4[::1], i4[:, ::1], i4[::1], i4[:, ::1], i4[::1], i4[:, ::1],"
    " u8[::1], i8[::1], i4[::1], i4[::1], i4[::1], i4[:, ::1], i8[::1], i8[::1], i4[::1])",
    allocates=False,
)
def walk(
    policy: Any,
    source: Any,
    target: Any,
    first: Any,
    last: Any,
    queue_pair: Any,
    row_of_nic: Any,
    near: Any,
    up_ptr: Any,
    up: Any,
    pair_ptr: Any,
    pair: Any,
    hop_ptr: Any,
    hop: Any,
    down_ptr: Any,
    down: Any,
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
    goes from NIC ``source`` to NIC ``target`` (-1: it stays inside). By destination, a path climbs
    by the digits of the destination's position, lowest first, and comes down each tier by the
    digit that brought it up there. ``ahead`` and ``digits`` (by tier) are working room.
    """
    switches = len(tier)
    for i in range(len(source)):
        at = np.int64(ptr[i])
        if first[i] >= 0:
            for k in range(inside_ptr[first[i]], inside_ptr[first[i] + 1]):
                links[at] = inside_link[k]
                at += 1
        if source[i] >= 0:
            nic = np.int64(source[i])
            goal = np.int64(target[i])
            row = np.int64(row_of_nic[goal])
            word_from = np.uint64(nic)
            word_to = np.uint64(goal)
            port = source_port(queue_pair[i], word_from, word_to)
            digit: Any = position[goal]
            state: Any = np.int64(HERE)
            starts = True
            while starts or state != HERE:
                if starts:
                    count = leave(nic, goal, row, near, up_ptr, up, pair_ptr, pair, ahead)
                    chooser = switches + nic
                else:
                    count = onward(state, goal, row, near, hop_ptr, hop, down_ptr, down, ahead)
                    chooser = state >> 1
                pick: Any = np.int64(0)
                if policy == BY_HASH:
                    if count > 1:
                        pick = hash_index(state_hash[chooser], word_from, word_to, port, count)
                elif starts:
                    pick = digit % count
                    digit = digit // count
                    for above in range(len(digits)):
                        digits[above] = digit
                else:
                    level: Any = np.int64(tier[chooser])
                    if level < 0:
                        level = 0
                    if (state & 1) == 0:
                        digits[level] = digit
                    after = np.int64(ahead[1, 0])
                    if after != HERE:
                        if (after & 1) == 0:
                            digit = digits[level] // count
                        else:
                            level = np.int64(tier[after >> 1])
                            if level < 0:
                                level = 0
                    pick = digits[level] % count
                links[at] = ahead[0, pick]
                at += 1
                state = np.int64(ahead[1, pick])
                starts = False
        if last[i] >= 0:
            for k in range(inside_ptr[last[i]], inside_ptr[last[i] + 1]):
                links[at] = inside_link[k]
                at += 1


@jit(
    "void(i4[::1], i4[::1], i4[::1], i4[::1], i4[::1], b1[::1], i4[:, ::1], i4[::1], i4[:, ::1])",
    allocates=False,
)
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
