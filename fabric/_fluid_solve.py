# SPDX-License-Identifier: Apache-2.0
"""Weighted max-min fair rates by progressive filling, solving only for what a change reaches.

Progressive filling: Bertsekas and Gallager, *Data Networks*, section 6.5.2. A flow of weight w
that puts a share s of its bytes on a link takes ``s * rate`` of it; all levels ``rate / w`` rise
together until a link is full or a flow is at its cap.

The filling begins with the flows that have arrived. Everybody else is held at its rate and joins
when the rising level shows that its rate cannot stay:

- a link would be full below the level of flows held there (those for whom it is the bottleneck
  come first: their level is the highest);
- the level passes that of flows for whom a link is the bottleneck, and the link has room.

A flow that joins gives back what it had of its links and rises with the others. It joins no later
than the level gets to its own, so nobody is frozen otherwise than if it had been there from the
start. At the end every flow is at its cap or crosses a full link on which its level is the highest,
which is the proof of max-min optimality (same book).

With a tolerance, held flows that are no further than it from their fair rate stay as they are; no
link carries more than it can.

Acknowledgements take what they need of a link from the data that goes the same way. They are
reckoned anew whenever the link takes part in a solve; a change of the other way's rates alone does
not start one, so they may be off by a part of the few per mille that they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric._fluid_layout import (
    ARRIVED,
    AT_CAP,
    CHANGED,
    CHOSEN,
    LISTED,
    NOWHERE,
    TOUCHED,
)
from railweave.fabric._fluid_levels import drop_level, put_level
from railweave.fabric.jit import jit

__all__ = ["acknowledge", "held_by", "solve", "touch_link"]

_EPS = 1e-9  # relative width within which levels are equal and a link is full


@jit(inline=True)
def held_by(slots: Any, links: Any, slot: Any, bottleneck: Any) -> None:
    """Note what holds a flow back: a link, AT_CAP or NOWHERE."""
    flow = slots[slot]
    if flow.bottleneck >= 0:
        links[flow.bottleneck].holding -= 1
    flow.bottleneck = bottleneck
    if bottleneck >= 0:
        links[bottleneck].holding += 1


@jit(inline=True)
def touch_link(run: Any, lists: Any, links: Any, number: Any) -> None:
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
def _list_link(run: Any, lists: Any, links: Any, number: Any, fill: Any) -> None:
    """Look at a link, unless this fill does so already."""
    link = links[number]
    if link.listed == fill:
        return
    link.listed = fill
    link.usable = link.capacity
    if link.ack_share > 0.0:
        link.usable -= link.ack_share * links[number ^ 1].load
    link.residual = link.usable - link.load
    link.unfrozen = 0.0
    link.count = 0
    link.heap_at = -1
    lists[LISTED, run.listed] = number
    run.listed += 1


@jit(inline=True)
def _unfreeze(
    run: Any,
    lists: Any,
    slots: Any,
    links: Any,
    hops: Any,
    slot: Any,
    round_: Any,
    fill: Any,
) -> None:
    """Solve for a flow; keep the rate that it had before this instant."""
    flow = slots[slot]
    if flow.stamp != round_:
        flow.stamp = round_
        lists[CHOSEN, run.chosen] = slot
        run.chosen += 1
        flow.old_rate = flow.rate
        lists[CHANGED, run.changes] = slot
        run.changes += 1
        held_by(slots, links, slot, np.int64(NOWHERE))
    for h in range(flow.hops, flow.hops_end):
        number = np.int64(hops[h].link)
        _list_link(run, lists, links, number, fill)
        link = links[number]
        link.unfrozen += hops[h].share * flow.weight
        link.count += 1
        if link.count == link.members:
            link.residual = link.usable
        else:
            link.residual += hops[h].share * flow.rate


@jit(inline=True)
def _freeze(
    slots: Any,
    links: Any,
    hops: Any,
    slot: Any,
    rate: Any,
    bottleneck: Any,
) -> None:
    """Fix a flow's rate and take it off what its links have left."""
    flow = slots[slot]
    flow.rate = rate
    held_by(slots, links, slot, bottleneck)
    for h in range(flow.hops, flow.hops_end):
        link = links[hops[h].link]
        link.residual -= hops[h].share * rate
        link.count -= 1
        link.unfrozen = link.unfrozen - hops[h].share * flow.weight if link.count > 0 else 0.0


@jit(inline=True)
def _reached(links: Any, number: Any) -> Any:
    """Return the level at which a link is full, inf where nothing rises there."""
    link = links[number]
    if link.count == 0:
        return np.inf
    return link.residual / link.unfrozen if link.residual > 0.0 else 0.0


@jit(inline=True)
def _passed(links: Any, number: Any, fill: Any, eps: Any) -> Any:
    """Return the level that passes that of the flows held by a link with room, inf: none."""
    link = links[number]
    if link.holding == 0 or link.filled == fill:
        return np.inf
    if link.count == 0 and link.residual <= eps * link.usable:
        return np.inf
    return link.hold_level * (1.0 + eps)


@jit(inline=True)
def _expect(run: Any, links: Any, number: Any, fill: Any, eps: Any) -> None:
    """Put a link into the heap of levels, if anything can happen there."""
    due = _reached(links, number)
    passed = _passed(links, number, fill, eps)
    if passed < due:
        due = passed
    if due < np.inf:
        put_level(run, links, due, number)


@jit(inline=True)
def _expect_cap(run: Any, slots: Any, links: Any, slot: Any) -> None:
    if slots[slot].cap < np.inf:
        put_level(run, links, slots[slot].cap / slots[slot].weight, -1 - slot)


@jit(inline=True)
def _join(
    run: Any,
    lists: Any,
    slots: Any,
    links: Any,
    pool: Any,
    hops: Any,
    number: Any,
    level: Any,
    round_: Any,
    fill: Any,
    eps: Any,
) -> Any:
    """Let held flows of a link join: those that it holds, or (level >= 0) those above a level.

    Returns whether any did.
    """
    link = links[number]
    before = run.chosen
    left = link.holding
    for m in range(link.members_at, link.members_at + link.members):
        slot = np.int64(pool[m]) >> run.hop_bits
        flow = slots[slot]
        if flow.stamp == round_:
            continue
        if level >= 0.0:
            if flow.rate <= level * (1.0 + eps) * flow.weight:
                continue
        elif flow.bottleneck != number:
            continue
        _unfreeze(run, lists, slots, links, hops, slot, round_, fill)
        for h in range(flow.hops, flow.hops_end):
            _expect(run, links, np.int64(hops[h].link), fill, eps)
        _expect_cap(run, slots, links, slot)
        left -= 1
        if level < 0.0 and left == 0:
            break
    return run.chosen > before


@jit(inline=True)
def _fill(
    run: Any,
    lists: Any,
    slots: Any,
    links: Any,
    pool: Any,
    hops: Any,
    round_: Any,
    fill: Any,
    eps: Any,
) -> None:
    """Give the chosen flows, and those that join them, their max-min rates."""
    run.levels = 0
    for i in range(run.listed):
        _expect(run, links, np.int64(lists[LISTED, i]), fill, eps)
    for i in range(run.chosen):
        _expect_cap(run, slots, links, np.int64(lists[CHOSEN, i]))
    while run.levels > 0:
        level = links[0].heap_key
        ident = links[0].heap_id
        drop_level(run, links)
        if ident < 0:
            slot = -1 - ident
            if slots[slot].bottleneck == NOWHERE:
                _freeze(slots, links, hops, slot, slots[slot].cap, np.int64(AT_CAP))
            continue
        reached = _reached(links, ident)
        passed = _passed(links, ident, fill, eps)
        due = passed if passed < reached else reached
        if due > level * (1.0 + 1e-12):
            if due < np.inf:
                put_level(run, links, due, ident)
            continue
        link = links[ident]
        holds = link.holding > 0 and link.filled != fill
        wanted = np.float64(reached)
        if passed <= reached or (holds and link.hold_level > reached * (1.0 + eps)):
            wanted = np.float64(-1.0)
        if _join(run, lists, slots, links, pool, hops, ident, wanted, round_, fill, eps):
            continue
        if link.count + link.holding > 1:
            link.contended = 1
        if link.holding == 0 or reached < link.hold_level:
            link.hold_level = reached
        link.filled = fill
        for m in range(link.members_at, link.members_at + link.members):
            slot = np.int64(pool[m]) >> run.hop_bits
            flow = slots[slot]
            if flow.stamp == round_ and flow.bottleneck == NOWHERE:
                _freeze(slots, links, hops, slot, reached * flow.weight, ident)
                if link.count == 0:
                    break
    for i in range(run.listed):
        link = links[lists[LISTED, i]]
        link.load = link.usable - link.residual


@jit(inline=True)
def _alone(slots: Any, links: Any, hops: Any, slot: Any) -> Any:
    """Give a flow that shares no link its rate; return whether it is such a flow."""
    flow = slots[slot]
    rate = flow.cap
    bottleneck = np.int64(AT_CAP)
    for h in range(flow.hops, flow.hops_end):
        link = links[hops[h].link]
        if link.members != 1 or (link.ack_share > 0.0 and links[hops[h].link ^ 1].members > 0):
            return False
        link.usable = link.capacity
        most = link.capacity / hops[h].share
        if most < rate:
            rate = most
            bottleneck = np.int64(hops[h].link)
    flow.rate = rate
    held_by(slots, links, slot, bottleneck)
    if bottleneck >= 0:
        links[bottleneck].hold_level = rate / flow.weight
    for h in range(flow.hops, flow.hops_end):
        links[hops[h].link].load = hops[h].share * rate
    return True


@jit(inline=True)
def _narrowed(
    run: Any,
    lists: Any,
    slots: Any,
    links: Any,
    pool: Any,
    hops: Any,
    number: Any,
    round_: Any,
    fill: Any,
) -> None:
    """Choose the flows of a link that has lost capacity, and those that were moved to it."""
    link = links[number]
    over = link.residual < -_EPS * link.usable
    for m in range(link.members_at, link.members_at + link.members):
        slot = np.int64(pool[m]) >> run.hop_bits
        flow = slots[slot]
        if flow.stamp != round_ and (over or flow.bottleneck == NOWHERE):
            _unfreeze(run, lists, slots, links, hops, slot, round_, fill)


@jit(inline=True)
def solve(run: Any, lists: Any, slots: Any, links: Any, pool: Any, hops: Any) -> None:
    """Solve for the arrived flows and the touched links.

    On return the first ``run.changes`` of ``changed`` are the slots whose rate may have changed,
    with the rate before in ``old_rate``; no link is touched any more.
    """
    run.epoch += 1
    round_ = run.epoch
    fill = round_
    eps = _EPS if run.tolerance < _EPS else run.tolerance
    run.chosen = 0
    run.listed = 0
    for i in range(run.arrived):
        slot = np.int64(lists[ARRIVED, i])
        if _alone(slots, links, hops, slot):
            slots[slot].old_rate = 0.0
            lists[CHANGED, run.changes] = slot
            run.changes += 1
        else:
            _unfreeze(run, lists, slots, links, hops, slot, round_, fill)
    # The second round reckons with the acknowledgements of the rates that the first one found.
    for turn in range(1 + run.acks):
        if turn > 0:
            run.epoch += 1
            fill = run.epoch
            run.listed = 0
            for i in range(run.chosen):
                slot = np.int64(lists[CHOSEN, i])
                held_by(slots, links, slot, np.int64(NOWHERE))
                _unfreeze(run, lists, slots, links, hops, slot, round_, fill)
        for i in range(run.touches):
            number = np.int64(lists[TOUCHED, i])
            if links[number].members > 0:
                _list_link(run, lists, links, number, fill)
                if run.narrowed:
                    _narrowed(run, lists, slots, links, pool, hops, number, round_, fill)
        if run.listed > 0:
            _fill(run, lists, slots, links, pool, hops, round_, fill, eps)
            run.solves += run.chosen > 0
            run.solved_flows += run.chosen
    run.touches = 0
    run.narrowed = 0
