# SPDX-License-Identifier: Apache-2.0
"""Weighted max-min fair rates by progressive filling, re-solving only what a change reaches.

Progressive filling: Bertsekas and Gallager, *Data Networks*, section 6.5.2. A flow f of weight w
that puts a share s of its bytes on link l takes ``s * rate`` of it; all levels ``rate / w`` rise
together until a link is full or a flow is at its cap.

The re-solve starts from the flows that a change touches and holds everybody else's rate. Then each
link touched is checked: a held flow above its link's level, or whose bottleneck is no longer full
or no longer its own, joins, and the filling starts again. Where nothing joins, every flow is at its
cap or crosses a full link on which its level is the highest, which is the proof of max-min
optimality (same book), so the answer is that of a full solve.
"""

from __future__ import annotations

import numpy as np

from railweave.fabric._fluid_layout import (
    ACK_SHARE,
    ACKED,
    ACKS,
    AT_CAP,
    BOTTLENECK,
    CAP,
    CAPACITY,
    CHANGED,
    COUNT,
    EPOCH,
    FILL,
    FROZEN,
    INSTANT,
    LEVEL,
    LISTED,
    LOAD,
    MEMBERS,
    MEMBERS_AT,
    OLD_RATE,
    PATH,
    RATE,
    RESIDUAL,
    SAVED,
    SOLVED_FLOWS,
    SOLVES,
    STAMP,
    TOUCHED,
    TOUCHES,
    UNFROZEN,
    USABLE,
    WEIGHT,
)
from railweave.fabric.jit import jit

__all__ = ["solve", "touch_link"]

_EPS = 1e-9  # relative width within which levels are equal and a link is full
_RIPPLES = 24  # rounds of acknowledgement feedback; each is 100 times weaker than the last


@jit()
def _push(heap_key, heap_id, n, key, ident):  # type: ignore[no-untyped-def]
    """Push onto a binary heap ordered by (key, ident)."""
    at = n
    while at > 0:
        up = (at - 1) >> 1
        if heap_key[up] < key or (heap_key[up] == key and heap_id[up] <= ident):
            break
        heap_key[at] = heap_key[up]
        heap_id[at] = heap_id[up]
        at = up
    heap_key[at] = key
    heap_id[at] = ident
    return n + 1


@jit()
def _pop(heap_key, heap_id, n):  # type: ignore[no-untyped-def]
    """Drop the top of a binary heap of ``n`` entries and return the new size."""
    n -= 1
    key = heap_key[n]
    ident = heap_id[n]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= n:
            break
        right = child + 1
        if right < n and (
            heap_key[right] < heap_key[child]
            or (heap_key[right] == heap_key[child] and heap_id[right] < heap_id[child])
        ):
            child = right
        if key < heap_key[child] or (key == heap_key[child] and ident <= heap_id[child]):
            break
        heap_key[at] = heap_key[child]
        heap_id[at] = heap_id[child]
        at = child
    heap_key[at] = key
    heap_id[at] = ident
    return n


@jit(inline=True)
def _choose(slot, round_, chosen, n_chosen, changed, slot_f, slot_i, scalars):  # type: ignore[no-untyped-def]
    """Add a flow to the set being solved; keep the rate it had before this instant."""
    if slot_i[slot, STAMP] != round_:
        slot_i[slot, STAMP] = round_
        chosen[n_chosen] = slot
        n_chosen += 1
        if slot_i[slot, SAVED] != scalars[INSTANT]:
            slot_i[slot, SAVED] = scalars[INSTANT]
            slot_f[slot, OLD_RATE] = slot_f[slot, RATE]
            changed[scalars[CHANGED]] = slot
            scalars[CHANGED] += 1
    return n_chosen


@jit()
def _fill(  # type: ignore[no-untyped-def]
    round_, fill, chosen, n_chosen, listed, slot_f, slot_i, link_f, link_i, pool, path_ptr,
    path_link, path_share, heap_key, heap_id,
):
    """Give the chosen flows their max-min rates, everybody else's held; return their links."""
    n_listed = 0
    heap = 0
    for i in range(n_chosen):
        slot = chosen[i]
        path = slot_i[slot, PATH]
        for k in range(path_ptr[path], path_ptr[path + 1]):
            link = path_link[k]
            if link_i[link, LISTED] != fill:
                link_i[link, LISTED] = fill
                listed[n_listed] = link
                n_listed += 1
    for i in range(n_listed):
        link = listed[i]
        residual = link_f[link, USABLE]
        unfrozen = 0.0
        count = 0
        at = link_i[link, MEMBERS_AT]
        for m in range(at, at + link_i[link, MEMBERS]):
            slot = pool[m] >> 16
            share = path_share[path_ptr[slot_i[slot, PATH]] + (pool[m] & 0xFFFF)]
            if slot_i[slot, STAMP] == round_:
                unfrozen += share * slot_f[slot, WEIGHT]
                count += 1
            else:
                residual -= share * slot_f[slot, RATE]
        link_f[link, RESIDUAL] = residual
        link_f[link, UNFROZEN] = unfrozen
        link_f[link, FILL] = np.inf
        link_i[link, COUNT] = count
        heap = _push(heap_key, heap_id, heap, max(residual, 0.0) / unfrozen, np.int64(link))
    for i in range(n_chosen):
        slot = chosen[i]
        if slot_f[slot, CAP] < np.inf:
            level = slot_f[slot, CAP] / slot_f[slot, WEIGHT]
            heap = _push(heap_key, heap_id, heap, level, np.int64(-1 - slot))
    while heap > 0:
        level = heap_key[0]
        ident = heap_id[0]
        heap = _pop(heap_key, heap_id, heap)
        at = np.int64(0)
        end = np.int64(1)
        if ident >= 0:
            if link_i[ident, COUNT] == 0:
                continue
            now = max(link_f[ident, RESIDUAL], 0.0) / link_f[ident, UNFROZEN]
            if now > level * (1.0 + 1e-12):
                heap = _push(heap_key, heap_id, heap, now, ident)
                continue
            level = now
            link_f[ident, FILL] = level
            at = link_i[ident, MEMBERS_AT]
            end = at + link_i[ident, MEMBERS]
        for m in range(at, end):
            slot = pool[m] >> 16 if ident >= 0 else -1 - ident
            if slot_i[slot, STAMP] != round_ or slot_i[slot, FROZEN] == fill:
                continue
            slot_i[slot, FROZEN] = fill
            slot_i[slot, BOTTLENECK] = ident if ident >= 0 else AT_CAP
            slot_f[slot, LEVEL] = level
            rate = level * slot_f[slot, WEIGHT] if ident >= 0 else slot_f[slot, CAP]
            slot_f[slot, RATE] = rate
            path = slot_i[slot, PATH]
            for k in range(path_ptr[path], path_ptr[path + 1]):
                link = path_link[k]
                link_f[link, RESIDUAL] -= path_share[k] * rate
                link_f[link, UNFROZEN] -= path_share[k] * slot_f[slot, WEIGHT]
                link_i[link, COUNT] -= 1
    return n_listed


@jit()
def _check(  # type: ignore[no-untyped-def]
    link, round_, fill, chosen, n_chosen, changed, slot_f, slot_i, link_f, link_i, pool,
    path_ptr, path_share, scalars,
):
    """Add the held flows of a link whose rate is no longer max-min fair; note the link's load."""
    at = link_i[link, MEMBERS_AT]
    end = at + link_i[link, MEMBERS]
    load = 0.0
    highest = 0.0
    for m in range(at, end):
        slot = pool[m] >> 16
        share = path_share[path_ptr[slot_i[slot, PATH]] + (pool[m] & 0xFFFF)]
        load += share * slot_f[slot, RATE]
        highest = max(highest, slot_f[slot, LEVEL])
    link_f[link, LOAD] = load
    usable = link_f[link, USABLE]
    full = load >= usable * (1.0 - _EPS)
    over = load > usable * (1.0 + _EPS)
    filled = link_f[link, FILL] if link_i[link, LISTED] == fill else np.inf
    for m in range(at, end):
        slot = pool[m] >> 16
        if slot_i[slot, STAMP] == round_:
            continue
        level = slot_f[slot, LEVEL]
        above = level > filled * (1.0 + _EPS)
        lost = slot_i[slot, BOTTLENECK] == link and (
            not full or level < highest * (1.0 - _EPS)
        )
        if above or lost or (over and filled == np.inf):
            n_chosen = _choose(slot, round_, chosen, n_chosen, changed, slot_f, slot_i, scalars)
    return n_chosen


@jit(inline=True)
def touch_link(link, touched, link_i, scalars):  # type: ignore[no-untyped-def]
    """Note that the next round must look at a link."""
    if link_i[link, TOUCHED] != scalars[INSTANT]:
        link_i[link, TOUCHED] = scalars[INSTANT]
        touched[scalars[TOUCHES]] = link
        scalars[TOUCHES] += 1


@jit()
def _acknowledge(link, nexttouch_linked, n_next, link_f, link_i):  # type: ignore[no-untyped-def]
    """Let a link's load take acknowledgements from its other direction; list that if it matters."""
    share = link_f[link, ACK_SHARE]
    load = link_f[link, LOAD]
    if share > 0.0 and abs(load - link_f[link, ACKED]) > 1e-12 * link_f[link, CAPACITY]:
        link_f[link, ACKED] = load
        other = link ^ 1
        link_f[other, USABLE] = link_f[other, CAPACITY] - share * load
        if link_i[other, MEMBERS] > 0:
            nexttouch_linked[n_next] = other
            n_next += 1
    return n_next


@jit(inline=True)
def _alone(slot, slot_f, slot_i, link_f, link_i, path_ptr, path_link, path_share):  # type: ignore[no-untyped-def]
    """Give a flow that shares no link its rate; return whether it is such a flow."""
    path = slot_i[slot, PATH]
    rate = slot_f[slot, CAP]
    bottleneck = np.int64(AT_CAP)
    for k in range(path_ptr[path], path_ptr[path + 1]):
        link = path_link[k]
        if link_i[link, MEMBERS] != 1:
            return False
        most = link_f[link, USABLE] / path_share[k]
        if most < rate:
            rate = most
            bottleneck = link
    slot_f[slot, RATE] = rate
    slot_f[slot, LEVEL] = rate / slot_f[slot, WEIGHT]
    slot_i[slot, BOTTLENECK] = bottleneck
    return True


@jit()
def solve(  # type: ignore[no-untyped-def]
    arrived, n_arrived, touched, chosen, listed, changed, slot_f, slot_i, link_f, link_i, pool,
    path_ptr, path_link, path_share, heap_key, heap_id, scalars,
):
    """Solve for the arrived flows and the touched links.

    On return ``changed[:scalars[CHANGED]]`` are the slots whose rate may have changed, with the
    rate before in OLD_RATE. ``touched`` holds ``scalars[TOUCHES]`` links that lost a flow or
    changed capacity; it is consumed.
    """
    scalars[EPOCH] += 1
    round_ = scalars[EPOCH]
    n_chosen = 0
    for i in range(n_arrived):
        slot = arrived[i]
        if scalars[ACKS] == 0 and _alone(
            slot, slot_f, slot_i, link_f, link_i, path_ptr, path_link, path_share
        ):
            slot_i[slot, SAVED] = scalars[INSTANT]
            slot_f[slot, OLD_RATE] = 0.0
            changed[scalars[CHANGED]] = slot
            scalars[CHANGED] += 1
        else:
            n_chosen = _choose(slot, round_, chosen, n_chosen, changed, slot_f, slot_i, scalars)
            path = slot_i[slot, PATH]
            for k in range(path_ptr[path], path_ptr[path + 1]):
                touch_link(path_link[k], touched, link_i, scalars)
    for _ in range(_RIPPLES):
        ntouch_linked = scalars[TOUCHES]
        for i in range(ntouch_linked):
            link = touched[i]
            at = link_i[link, MEMBERS_AT]
            for m in range(at, at + link_i[link, MEMBERS]):
                slot = pool[m] >> 16
                if slot_i[slot, BOTTLENECK] == link:
                    n_chosen = _choose(
                        slot, round_, chosen, n_chosen, changed, slot_f, slot_i, scalars
                    )
        if n_chosen == 0 and scalars[ACKS] == 0:
            break
        while True:
            before = n_chosen
            scalars[SOLVES] += 1
            scalars[SOLVED_FLOWS] += n_chosen
            scalars[EPOCH] += 1
            fill = scalars[EPOCH]
            n_listed = _fill(
                round_, fill, chosen, n_chosen, listed, slot_f, slot_i, link_f, link_i, pool,
                path_ptr, path_link, path_share, heap_key, heap_id,
            )
            for i in range(n_listed):
                n_chosen = _check(
                    listed[i], round_, fill, chosen, n_chosen, changed, slot_f, slot_i, link_f,
                    link_i, pool, path_ptr, path_share, scalars,
                )
            for i in range(ntouch_linked):
                if link_i[touched[i], LISTED] != fill:
                    n_chosen = _check(
                        touched[i], round_, fill, chosen, n_chosen, changed, slot_f, slot_i,
                        link_f, link_i, pool, path_ptr, path_share, scalars,
                    )
            if n_chosen == before:
                break
        if scalars[ACKS] == 0:
            break
        n_next = 0
        for i in range(ntouch_linked):
            if link_i[touched[i], LISTED] != fill:
                listed[n_listed] = touched[i]
                n_listed += 1
        for i in range(n_listed):
            n_next = _acknowledge(listed[i], touched, n_next, link_f, link_i)
        scalars[TOUCHES] = n_next
        if n_next == 0:
            break
        scalars[EPOCH] += 1
        round_ = scalars[EPOCH]
        n_chosen = 0
    scalars[TOUCHES] = 0
