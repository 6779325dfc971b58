# SPDX-License-Identifier: Apache-2.0
"""Weighted max-min fair rates by progressive filling, re-solving only what a change reaches.

Progressive filling: Bertsekas and Gallager, *Data Networks*, section 6.5.2. A flow of weight w
that puts a share s of its bytes on a link takes ``s * rate`` of it; all levels ``rate / w`` rise
together until a link is full or a flow is at its cap.

The re-solve starts from the flows that a change touches and holds everybody else's rate. Then each
link touched is checked: a held flow above its link's level, or whose bottleneck is no longer full
or no longer its own, joins, and the filling starts again. Where nothing joins, every flow is at its
cap or crosses a full link on which its level is the highest, which is the proof of max-min
optimality (same book), so the answer is that of a full solve.

With a tolerance, held flows that are no further than it from their fair rate stay as they are; no
link carries more than it can.

Acknowledgements take what they need of a link from the data that goes the same way. They are
reckoned anew whenever the link takes part in a solve; a change of the other way's rates alone does
not start one, so they may be off by a part of the few per mille that they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric._fluid_layout import ARRIVED, AT_CAP, CHANGED, CHOSEN, LISTED, TOUCHED
from railweave.fabric.jit import jit

__all__ = ["acknowledge", "held_by", "solve", "touch_link"]

_EPS = 1e-9  # relative width within which levels are equal and a link is full


@jit(inline=True)
def _push(links: Any, heap: Any, key: Any, ident: Any) -> Any:
    """Push onto the heap of ``heap`` levels, ordered by (key, ident)."""
    at = heap
    while at > 0:
        up = (at - 1) >> 1
        above = links[up].heap_key
        if above < key or (above == key and links[up].heap_id <= ident):
            break
        links[at].heap_key = above
        links[at].heap_id = links[up].heap_id
        at = up
    links[at].heap_key = key
    links[at].heap_id = ident


@jit(inline=True)
def _pop(links: Any, heap: Any) -> Any:
    """Drop the top of the heap, which then has ``heap`` levels."""
    key = links[heap].heap_key
    ident = links[heap].heap_id
    at = 0
    while True:
        child = 2 * at + 1
        if child >= heap:
            break
        right = child + 1
        if right < heap and (
            links[right].heap_key < links[child].heap_key
            or (
                links[right].heap_key == links[child].heap_key
                and links[right].heap_id < links[child].heap_id
            )
        ):
            child = right
        if key < links[child].heap_key or (
            key == links[child].heap_key and ident <= links[child].heap_id
        ):
            break
        links[at].heap_key = links[child].heap_key
        links[at].heap_id = links[child].heap_id
        at = child
    links[at].heap_key = key
    links[at].heap_id = ident


@jit(inline=True)
def _choose(run: Any, lists: Any, slots: Any, slot: Any, round_: Any, n_chosen: Any) -> Any:
    """Add a flow to the set being solved for; keep the rate it had before this instant."""
    flow = slots[slot]
    if flow.stamp == round_:
        return n_chosen
    flow.stamp = round_
    lists[CHOSEN, n_chosen] = slot
    if flow.saved != run.instant:
        flow.saved = run.instant
        flow.old_rate = flow.rate
        lists[CHANGED, run.changes] = slot
        run.changes += 1
    return n_chosen + 1


@jit(inline=True)
def held_by(slots: Any, links: Any, slot: Any, bottleneck: Any) -> Any:
    """Note what holds a flow back: a link, AT_CAP or NOWHERE."""
    flow = slots[slot]
    if flow.bottleneck >= 0:
        links[flow.bottleneck].holding -= 1
    flow.bottleneck = bottleneck
    if bottleneck >= 0:
        links[bottleneck].holding += 1


@jit(inline=True)
def _freeze(
    slots: Any,
    links: Any,
    paths: Any,
    hops: Any,
    slot: Any,
    fill: Any,
    level: Any,
    rate: Any,
    bottleneck: Any,
) -> Any:
    """Fix a flow's rate and take it off what its links have left."""
    flow = slots[slot]
    flow.frozen = fill
    flow.level = level
    flow.rate = rate
    held_by(slots, links, slot, bottleneck)
    for h in range(paths[flow.path].hops, paths[flow.path].hops_end):
        link = links[hops[h].link]
        link.residual -= hops[h].share * rate
        link.unfrozen -= hops[h].share * flow.weight
        link.count -= 1


@jit(inline=True)
def _refresh(slots: Any, links: Any, pool: Any, paths: Any, hops: Any, number: Any) -> None:
    """Take the acknowledgements of the other way's present load off what a link can carry."""
    link = links[number]
    link.usable = link.capacity
    if link.ack_share > 0.0:
        other = links[number ^ 1]
        load = 0.0
        for m in range(other.members_at, other.members_at + other.members):
            flow = slots[pool[m] >> 16]
            load += hops[paths[flow.path].hops + (pool[m] & 0xFFFF)].share * flow.rate
        link.usable -= link.ack_share * load


@jit(inline=True)
def _fill(
    lists: Any,
    slots: Any,
    links: Any,
    pool: Any,
    paths: Any,
    hops: Any,
    round_: Any,
    fill: Any,
    n_chosen: Any,
) -> Any:
    """Give the chosen flows their max-min rates, everybody else's held; list their links."""
    n_listed = 0
    heap = np.int64(0)
    for i in range(n_chosen):
        path = slots[lists[CHOSEN, i]].path
        for h in range(paths[path].hops, paths[path].hops_end):
            number = hops[h].link
            if links[number].listed != fill:
                links[number].listed = fill
                lists[LISTED, n_listed] = number
                n_listed += 1
    for i in range(n_listed):
        number = np.int64(lists[LISTED, i])
        link = links[number]
        _refresh(slots, links, pool, paths, hops, number)
        link.residual = link.usable
        link.unfrozen = 0.0
        link.count = 0
        link.filled_to = np.inf
        for m in range(link.members_at, link.members_at + link.members):
            flow = slots[pool[m] >> 16]
            share = hops[paths[flow.path].hops + (pool[m] & 0xFFFF)].share
            if flow.stamp == round_:
                link.unfrozen += share * flow.weight
                link.count += 1
            else:
                link.residual -= share * flow.rate
        left = link.residual if link.residual > 0.0 else 0.0
        _push(links, heap, left / link.unfrozen, number)
        heap += 1
    for i in range(n_chosen):
        slot = np.int64(lists[CHOSEN, i])
        if slots[slot].cap < np.inf:
            _push(links, heap, slots[slot].cap / slots[slot].weight, -1 - slot)
            heap += 1
    while heap > 0:
        level = links[0].heap_key
        ident = links[0].heap_id
        heap -= 1
        _pop(links, heap)
        if ident < 0:
            slot = -1 - ident
            if slots[slot].frozen != fill:
                _freeze(
                    slots,
                    links,
                    paths,
                    hops,
                    slot,
                    fill,
                    level,
                    slots[slot].cap,
                    np.int64(AT_CAP),
                )
            continue
        link = links[ident]
        if link.count == 0:
            continue
        left = link.residual if link.residual > 0.0 else 0.0
        reached = left / link.unfrozen
        if reached > level * (1.0 + 1e-12):
            _push(links, heap, reached, ident)
            heap += 1
            continue
        link.filled_to = reached
        if link.count > 1:
            link.contended = 1
        for m in range(link.members_at, link.members_at + link.members):
            slot = pool[m] >> 16
            flow = slots[slot]
            if flow.stamp == round_ and flow.frozen != fill:
                _freeze(
                    slots, links, paths, hops, slot, fill, reached, reached * flow.weight, ident
                )
    return n_listed


@jit(inline=True)
def _check(
    run: Any,
    lists: Any,
    slots: Any,
    links: Any,
    pool: Any,
    paths: Any,
    hops: Any,
    number: Any,
    round_: Any,
    fill: Any,
    n_chosen: Any,
) -> Any:
    """Add the held flows of a link whose rate is no longer max-min fair."""
    link = links[number]
    end = link.members_at + link.members
    load = 0.0
    highest = 0.0
    for m in range(link.members_at, end):
        flow = slots[pool[m] >> 16]
        load += hops[paths[flow.path].hops + (pool[m] & 0xFFFF)].share * flow.rate
        if flow.level > highest:
            highest = flow.level
    eps = _EPS if run.tolerance < _EPS else run.tolerance
    full = load >= link.usable * (1.0 - eps)
    over = load > link.usable * (1.0 + _EPS)
    filled = link.filled_to if link.listed == fill else np.inf
    for m in range(link.members_at, end):
        slot = pool[m] >> 16
        flow = slots[slot]
        if flow.stamp == round_:
            continue
        above = flow.level > filled * (1.0 + eps)
        lost = flow.bottleneck == number and (not full or flow.level < highest * (1.0 - eps))
        if above or lost or (over and filled == np.inf):
            n_chosen = _choose(run, lists, slots, slot, round_, n_chosen)
    return n_chosen


@jit(inline=True)
def touch_link(run: Any, lists: Any, links: Any, number: Any) -> Any:
    """Note that the next solve must look at a link."""
    if links[number].touched != run.instant:
        links[number].touched = run.instant
        lists[TOUCHED, run.touches] = number
        run.touches += 1


@jit(inline=True)
def acknowledge(run: Any, lists: Any, links: Any, number: Any) -> None:
    """Look at the other way of a link that began or ceased to carry flows, for its ACKs."""
    other = links[number ^ 1]
    if other.ack_share > 0.0 and other.members > 0:
        touch_link(run, lists, links, number ^ 1)
        run.narrowed = 1


@jit(inline=True)
def _alone(slots: Any, links: Any, paths: Any, hops: Any, slot: Any) -> Any:
    """Give a flow that shares no link its rate; return whether it is such a flow."""
    flow = slots[slot]
    rate = flow.cap
    bottleneck = np.int64(AT_CAP)
    for h in range(paths[flow.path].hops, paths[flow.path].hops_end):
        link = links[hops[h].link]
        if link.members != 1 or (link.ack_share > 0.0 and links[hops[h].link ^ 1].members > 0):
            return False
        link.usable = link.capacity
        most = link.capacity / hops[h].share
        if most < rate:
            rate = most
            bottleneck = np.int64(hops[h].link)
    flow.rate = rate
    flow.level = rate / flow.weight
    held_by(slots, links, slot, bottleneck)
    return True


@jit(inline=True)
def solve(run: Any, lists: Any, slots: Any, links: Any, pool: Any, paths: Any, hops: Any) -> Any:
    """Solve for the arrived flows and the touched links.

    On return the first ``run.changes`` of ``changed`` are the slots whose rate may have changed,
    with the rate before in ``old_rate``; no link is touched any more.
    """
    run.epoch += 1
    round_ = run.epoch
    n_chosen = np.int64(0)
    for i in range(run.arrived):
        slot = np.int64(lists[ARRIVED, i])
        if _alone(slots, links, paths, hops, slot):
            slots[slot].saved = run.instant
            slots[slot].old_rate = 0.0
            lists[CHANGED, run.changes] = slot
            run.changes += 1
        else:
            n_chosen = _choose(run, lists, slots, slot, round_, n_chosen)
            path = slots[slot].path
            for h in range(paths[path].hops, paths[path].hops_end):
                touch_link(run, lists, links, np.int64(hops[h].link))
    for i in range(run.touches):
        number = np.int64(lists[TOUCHED, i])
        link = links[number]
        left = link.holding
        for m in range(link.members_at, link.members_at + link.members):
            if left == 0:
                break
            slot = pool[m] >> 16
            if slots[slot].bottleneck == number:
                left -= 1
                n_chosen = _choose(run, lists, slots, slot, round_, n_chosen)
    if n_chosen == 0 and run.narrowed == 0:
        run.touches = 0
        return
    # The second round reckons with the acknowledgements of the rates that the first one found.
    for _ in range(1 + run.acks):
        before = np.int64(-1)
        while n_chosen != before:
            before = n_chosen
            run.solves += 1
            run.solved_flows += n_chosen
            run.epoch += 1
            fill = run.epoch
            n_listed = _fill(lists, slots, links, pool, paths, hops, round_, fill, n_chosen)
            for i in range(run.touches):
                number = np.int64(lists[TOUCHED, i])
                if links[number].listed != fill:
                    _refresh(slots, links, pool, paths, hops, number)
                    links[number].listed = fill
                    links[number].filled_to = np.inf
                    lists[LISTED, n_listed] = number
                    n_listed += 1
            for i in range(n_listed):
                number = np.int64(lists[LISTED, i])
                n_chosen = _check(
                    run, lists, slots, links, pool, paths, hops, number, round_, fill, n_chosen
                )
    run.touches = 0
    run.narrowed = 0
