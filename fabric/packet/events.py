# SPDX-License-Identifier: Apache-2.0
"""Events in their total order (time, class, entity, argument), compiled.

A timing wheel (Brown, "Calendar queues", CACM 31(10), 1988; Varghese and Lauck, "Hashed and
hierarchical timing wheels", SOSP 1987) holds what comes within some 16 us; a bucket is sorted when
its turn comes. A binary heap holds the rest: far timers, and events that fall into the bucket being
served. With ``use_wheel`` 0 the heap holds everything: the reference that the wheel must equal.
"""

from __future__ import annotations

from typing import Any

from railweave.fabric.jit import jit
from railweave.fabric.packet.layout import (
    BUCKETS,
    CLASS_SHIFT,
    FOREVER,
    KEY_MASK,
    LOW_BITS,
    LOW_MASK,
    NONE,
)

__all__ = ["pull", "push"]

_TIME_SHIFT = CLASS_SHIFT + 4
_SHORT = 20  # longest run sorted by insertion


@jit(inline=True)
def push(runs: Any, ev: Any, wheel: Any, far: Any, time: Any, key: Any, arg: Any) -> None:
    """Add an event; the pools must have room (the event loop sees to it)."""
    run = runs[0]
    bucket = time >> LOW_BITS
    ahead = bucket - run.bucket
    if 0 < ahead < BUCKETS and run.use_wheel == 1:
        number = run.ev_free
        event = ev[number]
        run.ev_free = event.next
        run.ev_left -= 1
        run.in_wheel += 1
        event.key = ((time & LOW_MASK) << _TIME_SHIFT) | key
        event.arg = arg
        slot = bucket & (BUCKETS - 1)
        head = wheel[slot]
        event.next = head
        wheel[slot] = number
        if head < 0:
            wheel[BUCKETS + (slot >> 5)] |= 1 << (slot & 31)
            if bucket < run.scan:
                run.scan = bucket
        return
    at = run.far
    run.far += 1
    while at > 0:
        up = (at - 1) >> 1
        other = far[up]
        if other.time < time or (
            other.time == time and (other.key < key or (other.key == key and other.arg <= arg))
        ):
            break
        far[at].time = other.time
        far[at].key = other.key
        far[at].arg = other.arg
        at = up
    far[at].time = time
    far[at].key = key
    far[at].arg = arg


@jit(inline=True)
def _drop_top(runs: Any, far: Any) -> None:
    """Take the first entry out of the heap."""
    run = runs[0]
    run.far -= 1
    n = run.far
    time = far[n].time
    key = far[n].key
    arg = far[n].arg
    at = 0
    while True:
        child = 2 * at + 1
        if child >= n:
            break
        if child + 1 < n:
            a = far[child]
            b = far[child + 1]
            if b.time < a.time or (
                b.time == a.time and (b.key < a.key or (b.key == a.key and b.arg < a.arg))
            ):
                child += 1
        c = far[child]
        if time < c.time or (time == c.time and (key < c.key or (key == c.key and arg <= c.arg))):
            break
        far[at].time = c.time
        far[at].key = c.key
        far[at].arg = c.arg
        at = child
    far[at].time = time
    far[at].key = key
    far[at].arg = arg


@jit(inline=True)
def _sort(near: Any, n: Any) -> None:
    """Sort ``near[:n]``; ``near[n:2n]`` is scratch (insertion, then merging of runs)."""
    first = 0
    while first < n:
        end = min(first + _SHORT, n)
        for i in range(first + 1, end):
            key = near[i].key
            arg = near[i].arg
            at = i
            while at > first and (
                near[at - 1].key > key or (near[at - 1].key == key and near[at - 1].arg > arg)
            ):
                near[at].key = near[at - 1].key
                near[at].arg = near[at - 1].arg
                at -= 1
            near[at].key = key
            near[at].arg = arg
        first = end
    width = _SHORT
    here = 0
    there = n
    while width < n:
        out = 0
        while out < n:
            a = out
            a_end = min(a + width, n)
            b = a_end
            b_end = min(b + width, n)
            while a < a_end or b < b_end:
                take_a = b >= b_end
                if not take_a and a < a_end:
                    x = near[here + a]
                    y = near[here + b]
                    take_a = x.key < y.key or (x.key == y.key and x.arg <= y.arg)
                if take_a:
                    near[there + out].key = near[here + a].key
                    near[there + out].arg = near[here + a].arg
                    a += 1
                else:
                    near[there + out].key = near[here + b].key
                    near[there + out].arg = near[here + b].arg
                    b += 1
                out += 1
        width *= 2
        here, there = there, here
    if here != 0:
        for i in range(n):
            near[i].key = near[here + i].key
            near[i].arg = near[here + i].arg


@jit(inline=True)
def _open_bucket(runs: Any, ev: Any, wheel: Any, far: Any, near: Any, limit: Any) -> None:
    """Find the next bucket of the wheel and serve it if nothing in the heap comes long before."""
    run = runs[0]
    top = FOREVER
    if run.far > 0:
        top = far[0].time >> LOW_BITS
    top = min(top, limit >> LOW_BITS)
    bucket = max(run.scan, run.bucket + 1)
    while bucket <= top:
        slot = bucket & (BUCKETS - 1)
        bits = wheel[BUCKETS + (slot >> 5)] >> (slot & 31)
        if bits == 0:
            bucket += 32 - (slot & 31)
            continue
        while bits & 1 == 0:
            if bits & 255 == 0:
                bits >>= 8
                bucket += 8
            else:
                bits >>= 1
                bucket += 1
        break
    run.scan = bucket
    if bucket > top:
        return
    slot = bucket & (BUCKETS - 1)
    number = wheel[slot]
    wheel[slot] = NONE
    wheel[BUCKETS + (slot >> 5)] &= ~(1 << (slot & 31))
    count = 0
    while number >= 0:
        event = ev[number]
        near[count].key = event.key
        near[count].arg = event.arg
        count += 1
        after = event.next
        event.next = run.ev_free
        run.ev_free = number
        number = after
    run.ev_left += count
    run.in_wheel -= count
    run.bucket = bucket
    run.scan = bucket + 1
    run.at = 0
    run.count = count
    if count > 1:
        _sort(near, count)


@jit(inline=True)
def pull(runs: Any, ev: Any, wheel: Any, far: Any, near: Any, limit: Any) -> Any:
    """Take the next event into ``ev_time, ev_key, ev_arg`` and return 1; 0: none by ``limit``."""
    run = runs[0]
    if run.at >= run.count and run.in_wheel > 0:
        _open_bucket(runs, ev, wheel, far, near, limit)
    time = FOREVER
    if run.at < run.count:
        entry = near[run.at]
        time = (run.bucket << LOW_BITS) | (entry.key >> _TIME_SHIFT)
        if run.far > 0:
            top = far[0]
            if top.time < time or (
                top.time == time
                and (
                    top.key < entry.key & KEY_MASK
                    or (top.key == entry.key & KEY_MASK and top.arg < entry.arg)
                )
            ):
                time = FOREVER
        if time < FOREVER:
            if time > limit:
                return 0
            run.at += 1
            run.ev_time = time
            run.ev_key = entry.key & KEY_MASK
            run.ev_arg = entry.arg
            return 1
    if run.far == 0 or far[0].time > limit:
        return 0
    run.ev_time = far[0].time
    run.ev_key = far[0].key
    run.ev_arg = far[0].arg
    _drop_top(runs, far)
    if run.at >= run.count:  # follow the time, so that what comes next lies within the wheel
        bucket = run.ev_time >> LOW_BITS
        if bucket > run.bucket and (run.in_wheel == 0 or bucket < run.scan):
            run.bucket = bucket
            run.scan = max(run.scan, bucket + 1)
    return 1
