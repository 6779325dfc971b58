# SPDX-License-Identifier: Apache-2.0
"""Events in their total order (time, class, entity, argument), compiled.

A timing wheel (Brown, "Calendar queues", CACM 31(10), 1988; Varghese and Lauck, "Hashed and
hierarchical timing wheels", SOSP 1987) holds what comes within some 16 us; a bucket is sorted when
its turn comes. A binary heap holds the rest: far timers, and events that fall into the bucket being
served. With ``use_wheel`` 0 the heap holds everything: the reference that the wheel must equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric._prefetch import prefetch
from railweave.fabric.jit import jit
from railweave.fabric.packet.layout import (
    BEHIND,
    BLOCK,
    BUCKETS,
    CLASS_SHIFT,
    FOREVER,
    KEY_MASK,
    LOW_BITS,
    LOW_MASK,
    NONE,
)
from railweave.fabric.packet.lookahead import FAR, fetch_named

__all__ = ["pull", "push"]

_TIME_SHIFT = CLASS_SHIFT + 4
_SHORT = 16  # runs that rise are no shorter; insertion sees to it
_CLOSE = 3  # places off its place, which a merge would cost more than


@jit
def _push_far(runs: Any, far: Any, time: Any, key: Any, arg: Any) -> None:
    """Add an event to the heap."""
    run = runs[0]
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
def push(runs: Any, ev: Any, wheel: Any, far: Any, time: Any, key: Any, arg: Any) -> None:
    """Add an event; the pools must have room (the event loop sees to it)."""
    run = runs[0]
    bucket = time >> LOW_BITS
    ahead = bucket - run.bucket
    if 0 < ahead < BUCKETS and run.use_wheel == 1:
        slot = bucket & (BUCKETS - 1)
        number = wheel[slot]
        if number & (BLOCK - 1) == BLOCK - 1:  # the block is full, or there is none (NONE)
            fresh = run.ev_free
            run.ev_free = fresh + BLOCK + ev[fresh].next
            run.ev_left -= 1
            ev[fresh].next = number
            if number < 0:
                wheel[BUCKETS + (slot >> 5)] |= 1 << (slot & 31)
                if bucket < run.scan:
                    run.scan = bucket
            elif run.fetch == 1:  # those that there are not are never asked for
                for i in range(1, BEHIND):
                    ev[fresh + i].next = ev[number - BLOCK + i].next
            number = fresh
        else:
            number += 1
        wheel[slot] = number
        run.in_wheel += 1
        ev[number].key = ((time & LOW_MASK) << _TIME_SHIFT) | key
        ev[number].arg = arg
        return
    _push_far(runs, far, time, key, arg)


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
def _after(near: Any, a: Any, b: Any) -> Any:
    """Tell whether entry ``a`` comes after entry ``b``."""
    return near[a].key > near[b].key or (near[a].key == near[b].key and near[a].arg > near[b].arg)


@jit(inline=True)
def _sort(near: Any, first: Any, end: Any) -> Any:
    """Sort ``near[first:end]``, which is more than half empty before; return where it lies then.

    Events were added in some runs that rise (arrivals, ends of frames), so runs that rise are
    merged. Insertion makes short ones longer, and puts what is a few places off into its place.
    """
    n = end - first
    at = first
    while at < end:  # no run shorter than so many, but for the last
        stop = at + 1
        while stop < end and not _after(near, stop - 1, stop):
            stop += 1
        least = min(at + _SHORT, end)
        while stop < least:
            key = near[stop].key
            arg = near[stop].arg
            to = stop
            while to > at and (
                near[to - 1].key > key or (near[to - 1].key == key and near[to - 1].arg > arg)
            ):
                near[to].key = near[to - 1].key
                near[to].arg = near[to - 1].arg
                to -= 1
            near[to].key = key
            near[to].arg = arg
            stop += 1
        at = stop
    other = np.int64(0)
    while True:
        out = other
        a = first
        end = first + n
        merges = 0
        while a < end:
            b = a + 1
            while b < end and not _after(near, b - 1, b):
                b += 1
            if b == end and merges == 0 and a == first:
                return first
            merges += 1
            a_end = b
            b_end = min(b + 1, end)
            while b_end < end and not _after(near, b_end - 1, b_end):
                b_end += 1
            while a < a_end or b < b_end:
                if b >= b_end or (a < a_end and not _after(near, a, b)):
                    near[out].key = near[a].key
                    near[out].arg = near[a].arg
                    a += 1
                else:
                    near[out].key = near[b].key
                    near[out].arg = near[b].arg
                    b += 1
                out += 1
            a = b_end
        first, other = other, first


@jit(inline=True)
def _fetch_block(ev: Any, number: Any) -> None:
    """Fetch the block of an event, if there is one."""
    if number >= 0:
        block = number & ~(BLOCK - 1)
        prefetch(ev, block, 0)
        prefetch(ev, block, 1)


@jit(inline=True)
def _open_bucket(
    runs: Any, ev: Any, wheel: Any, far: Any, near: Any, packets: Any, ports: Any, egress: Any,
    ingress: Any, qps: Any, limit: Any,
) -> None:  # fmt: skip
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
    # What was added last comes first: written from the end on, it is in order again.
    first = len(near)
    block = number & ~(BLOCK - 1)
    if run.fetch == 1 and ev[block].next >= 0:
        for i in range(BEHIND - 1):
            _fetch_block(ev, np.int64(ev[block + i].next))
    while number >= 0:
        block = number & ~(BLOCK - 1)
        after = np.int64(ev[block].next)
        if run.fetch == 1 and after >= 0:
            _fetch_block(ev, np.int64(ev[block + BEHIND - 1].next))
        while number >= block:
            event = ev[number]
            first -= 1
            near[first].key = event.key
            near[first].arg = event.arg
            number -= 1
        ev[block].next = run.ev_free - block - BLOCK
        run.ev_free = block
        run.ev_left += 1
        number = after
    if run.fetch == 1:  # of the next bucket, as far as it is known
        _fetch_block(ev, wheel[(slot + 1) & (BUCKETS - 1)])
    count = len(near) - first
    run.in_wheel -= count
    run.bucket = bucket
    run.scan = bucket + 1
    if count > 1:
        first = _sort(near, first, first + count)
    run.at = first
    run.count = first + count
    if run.fetch == 1:
        for i in range(first, first + min(count, FAR)):
            fetch_named(run.classes, near[i].key, near[i].arg, packets, ports, egress, ingress, qps)


@jit(inline=True)
def pull(
    runs: Any, ev: Any, wheel: Any, far: Any, near: Any, packets: Any, ports: Any, egress: Any,
    ingress: Any, qps: Any, limit: Any,
) -> Any:  # fmt: skip
    """Take the next event into ``ev_time, ev_key, ev_arg`` and return 1; 0: none by ``limit``."""
    run = runs[0]
    if run.at >= run.count and run.in_wheel > 0:
        _open_bucket(runs, ev, wheel, far, near, packets, ports, egress, ingress, qps, limit)
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
