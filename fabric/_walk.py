# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels of routing: distances and the walk of each flow.

Switches and NICs go by dense numbers here, links by their index in the fabric. A *state* is
``2 * switch + phase``: in phase 0 a path may still climb, in phase 1 it only descends. A step
between switches has a direction: +1 up, 0 across one tier, -1 down; where switches have no tiers
every step is a step down, and the phases say nothing.

numba's cache watches one file at a time: whoever changes ``leave`` or ``onward`` must touch
``_spray`` too, which calls them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric.jit import jit

__all__ = [
    "HERE",
    "distances",
    "hash_index",
    "inside",
    "leave",
    "lengths",
    "mix",
    "onward",
    "source_port",
    "walk",
]

HERE = -1  # the state of a path that reached its NIC
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


@jit("void(i4[::1], i4[::1], i4[::1], i4[::1], i1[::1], i2[:, :, ::1])")
def distances(
    target_ptr: Any, targets: Any, in_ptr: Any, in_from: Any, in_direction: Any, out: Any
) -> None:
    """Fill ``out[row, phase, switch]`` with hops to the nearest target of each row, or -1.

    A breadth-first search backwards over states: a path climbs, crosses its own tier at most
    once, then descends.
    """
    switches = out.shape[2]
    queue = np.empty(2 * switches, np.int32)
    for row in range(out.shape[0]):
        near = out[row]
        for switch in range(switches):
            near[0, switch] = near[1, switch] = -1
        head, tail = 0, 0
        for t in range(target_ptr[row], target_ptr[row + 1]):
            for phase in range(2):
                near[phase, targets[t]] = 0
                queue[tail] = 2 * targets[t] + phase
                tail += 1
        while head < tail:
            switch, phase = queue[head] >> 1, queue[head] & 1
            head += 1
            hops = near[phase, switch] + 1
            for k in range(in_ptr[switch], in_ptr[switch + 1]):
                before = in_from[k]
                if phase == 0:
                    if in_direction[k] > 0 and near[0, before] < 0:
                        near[0, before] = hops
                        queue[tail] = 2 * before
                        tail += 1
                elif in_direction[k] <= 0:
                    if near[0, before] < 0:
                        near[0, before] = hops
                        queue[tail] = 2 * before
                        tail += 1
                    if in_direction[k] < 0 and near[1, before] < 0:
                        near[1, before] = hops
                        queue[tail] = 2 * before + 1
                        tail += 1


@jit(internal=True)
def leave(
    nic: Any,
    target: Any,
    row: Any,
    near: Any,
    up_ptr: Any,
    up_link: Any,
    up_switch: Any,
    pair_ptr: Any,
    pair_link: Any,
    pair_nic: Any,
    to_link: Any,
    to_state: Any,
) -> Any:
    """Fill in the next hops of a NIC towards another and return their number."""
    count = 0
    for k in range(pair_ptr[nic], pair_ptr[nic + 1]):
        if pair_nic[k] == target:
            to_link[count] = pair_link[k]
            to_state[count] = HERE
            count += 1
    if count > 0 or row < 0:
        return count
    best = -1
    for k in range(up_ptr[nic], up_ptr[nic + 1]):
        hops = near[row, 0, up_switch[k]]
        if hops < 0 or (best >= 0 and hops > best):
            continue
        if hops != best:
            best = hops
            count = 0
        to_link[count] = up_link[k]
        to_state[count] = 2 * up_switch[k]
        count += 1
    return count


@jit(internal=True)
def onward(
    state: Any,
    target: Any,
    row: Any,
    near: Any,
    hop_ptr: Any,
    hop_link: Any,
    hop_switch: Any,
    hop_direction: Any,
    down_ptr: Any,
    down_link: Any,
    down_nic: Any,
    to_link: Any,
    to_state: Any,
) -> Any:
    """Fill in the next hops of a switch towards a NIC and return their number."""
    switch, phase = state >> 1, state & 1
    left = near[row, phase, switch]
    count = 0
    if left == 0:
        low, high = np.int64(down_ptr[switch]), np.int64(down_ptr[switch + 1])
        end = high
        while low < high:
            middle = (low + high) >> 1
            if down_nic[middle] < target:
                low = middle + 1
            else:
                high = middle
        while low < end and down_nic[low] == target:
            to_link[count] = down_link[low]
            to_state[count] = HERE
            count += 1
            low += 1
        return count
    for k in range(hop_ptr[switch], hop_ptr[switch + 1]):
        direction = hop_direction[k]
        if phase == 1 and direction >= 0:
            continue
        after = 0 if direction > 0 else 1
        if near[row, after, hop_switch[k]] == left - 1:
            to_link[count] = hop_link[k]
            to_state[count] = 2 * hop_switch[k] + after
            count += 1
    return count


@jit(
    "void(i4[::1], i4[::1], i4[::1], i2[:, :, ::1], i4[::1], i4[::1], i4[::1], i4[::1], i4[::1],"
    " i4[::1], i8, i4[::1])"
)
def lengths(
    source: Any,
    target: Any,
    row_of_nic: Any,
    near: Any,
    up_ptr: Any,
    up_link: Any,
    up_switch: Any,
    pair_ptr: Any,
    pair_link: Any,
    pair_nic: Any,
    widest: Any,
    out: Any,
) -> None:
    """Fill ``out`` with the links between NICs of each flow: 0 for no NICs, -1 for no route."""
    to_link, to_state = np.empty(widest, np.int32), np.empty(widest, np.int32)
    for i in range(len(source)):
        out[i] = 0
        if source[i] < 0:
            continue
        row = np.int64(row_of_nic[target[i]])
        count = leave(
            np.int64(source[i]), np.int64(target[i]), row, near, up_ptr, up_link, up_switch,
            pair_ptr, pair_link, pair_nic, to_link, to_state,
        )  # fmt: skip
        if count == 0:
            out[i] = -1
        elif to_state[0] == HERE:
            out[i] = 1
        else:
            out[i] = near[row, 0, to_state[0] >> 1] + 2


@jit(
    "void(i8, i4[::1], i4[::1], i4[::1], i4[::1], u8[::1], i4[::1], i2[:, :, ::1],"
    " i4[::1], i4[::1], i4[::1], i4[::1], i4[::1], i4[::1],"
    " i4[::1], i4[::1], i4[::1], i1[::1], i4[::1], i4[::1], i4[::1],"
    " u8[::1], i8[::1], i4[::1], i4[::1], i4[::1], i8, i4[::1], i4[::1])"
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
    up_link: Any,
    up_switch: Any,
    pair_ptr: Any,
    pair_link: Any,
    pair_nic: Any,
    hop_ptr: Any,
    hop_link: Any,
    hop_switch: Any,
    hop_direction: Any,
    down_ptr: Any,
    down_link: Any,
    down_nic: Any,
    state_hash: Any,
    position: Any,
    tier: Any,
    inside_ptr: Any,
    inside_link: Any,
    widest: Any,
    ptr: Any,
    links: Any,
) -> None:
    """Write the links of each flow at ``links[ptr[i]:ptr[i + 1]]``.

    ``first`` and ``last`` number the stretches inside the hosts (-1: none); between them the flow
    goes from NIC ``source`` to NIC ``target`` (-1: it stays inside). By destination, a path climbs
    by the digits of the destination's position, lowest first, and comes down each tier by the
    digit that brought it up there.
    """
    switches = len(tier)
    to_link, to_state = np.empty(widest, np.int32), np.empty(widest, np.int32)
    top = 0
    for switch in range(switches):
        top = max(top, tier[switch])
    digits = np.empty(top + 2, np.int64)
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
            word_from, word_to = np.uint64(nic), np.uint64(goal)
            port = source_port(queue_pair[i], word_from, word_to)
            digit: Any = position[goal]
            count = leave(
                nic, goal, row, near, up_ptr, up_link, up_switch,
                pair_ptr, pair_link, pair_nic, to_link, to_state,
            )  # fmt: skip
            pick: Any = np.int64(0)
            if count > 1:
                if policy == BY_HASH:
                    pick = hash_index(state_hash[switches + nic], word_from, word_to, port, count)
                else:
                    pick = digit % count
                    digit = digit // count
            level: Any
            for level in range(top + 2):
                digits[level] = digit
            links[at] = to_link[pick]
            at += 1
            state: Any = np.int64(to_state[pick])
            while state != HERE:
                switch = state >> 1
                count = onward(
                    state, goal, row, near, hop_ptr, hop_link, hop_switch, hop_direction,
                    down_ptr, down_link, down_nic, to_link, to_state,
                )  # fmt: skip
                pick = np.int64(0)
                if policy == BY_HASH:
                    if count > 1:
                        pick = hash_index(state_hash[switch], word_from, word_to, port, count)
                else:
                    level = max(np.int64(tier[switch]), 0)
                    if (state & 1) == 0:
                        digits[level] = digit
                    after = np.int64(to_state[0])
                    if after != HERE:
                        if (after & 1) == 0:
                            digit = digits[level] // count
                        else:
                            level = max(np.int64(tier[after >> 1]), 0)
                    pick = digits[level] % count
                links[at] = to_link[pick]
                at += 1
                state = np.int64(to_state[pick])
        if last[i] >= 0:
            for k in range(inside_ptr[last[i]], inside_ptr[last[i] + 1]):
                links[at] = inside_link[k]
                at += 1


@jit("void(i4[::1], i4[::1], i4[::1], i4[::1], i4[::1], b1[::1], i4[::1], i4[:, ::1])")
def inside(
    source: Any,
    target: Any,
    out_ptr: Any,
    out_link: Any,
    link_dst: Any,
    forwards: Any,
    length: Any,
    links: Any,
) -> None:
    """Find the shortest path between two devices of each pair over the links given.

    Only devices that ``forwards`` marks pass bytes on. ``length`` is -1 where there is no path;
    rows of ``links`` hold as much of it as fits.
    """
    stamp = np.zeros(len(forwards), np.int32)
    via = np.empty(len(forwards), np.int32)
    came = np.empty(len(forwards), np.int32)
    hops = np.empty(len(forwards), np.int32)
    queue = np.empty(len(forwards), np.int32)
    for i in range(len(source)):
        length[i] = -1
        head, tail = 0, 1
        queue[0] = source[i]
        stamp[source[i]] = i + 1
        hops[source[i]] = 0
        while head < tail and stamp[target[i]] != i + 1:
            device = queue[head]
            head += 1
            if head > 1 and not forwards[device]:
                continue
            for k in range(out_ptr[device], out_ptr[device + 1]):
                peer = link_dst[out_link[k]]
                if stamp[peer] != i + 1:
                    stamp[peer] = i + 1
                    via[peer] = out_link[k]
                    came[peer] = device
                    hops[peer] = hops[device] + 1
                    queue[tail] = peer
                    tail += 1
        if stamp[target[i]] == i + 1:
            length[i] = hops[target[i]]
            device = target[i]
            for k in range(length[i] - 1, -1, -1):
                if k < links.shape[1]:
                    links[i, k] = via[device]
                device = came[device]
