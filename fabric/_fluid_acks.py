# SPDX-License-Identifier: Apache-2.0
"""What acknowledgements of one direction of a cable take of the other.

A message is answered by one ACK per so many packets begun (`NetworkSettings.ack_every`), at least
one. So what a flow's ACKs take per bit of its own depends on its size: that of a long message
(``ack_share``), times ``1 + excess``. The load of ACKs on a link is the sum over the flows of the
other direction, and what is left is for the data that goes the same way.

Both directions of a cable limit one another. Where both are full, what each can carry is the
solution of ``x + s' x' = C`` and ``x' + s x = C'``, with the mean shares ``s`` and ``s'`` of those
on it; elsewhere the other one's load is taken as it is. After each fill the links whose ACKs have
outgrown what was left to them are solved for again, until none is overfull.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric._fluid_layout import LISTED, TOUCHED
from railweave.fabric.jit import jit

__all__ = ["ack_excess", "acknowledge", "outgrown", "touch_link", "usable_bps"]

_OVER = 1e-7  # of its capacity: a link that carries so much more than it can is overfull
_UNDER = 1e-3  # of its capacity: a link that is left so much less than it could have is looked at
_TRIES = 4  # turns in which links that could have more are looked at
_STRICT = 8  # turns after which what is left to data may only shrink, so that the turns end


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
def ack_excess(run: Any, paths: Any, path: Any, wire: Any) -> Any:
    """Return by what share a message's ACKs are more than those of a long one's bytes.

    One ACK answers ``acked`` wire bytes of full packets. Rounding up to packets and then to ACKs is
    rounding up to ACKs.
    """
    acked = run.acks * (paths[path].first - run.beyond)
    if acked <= 0.0:
        return 0.0
    excess = np.ceil((wire - run.beyond) / acked) * acked / wire - 1.0
    return excess if excess > 0.0 else 0.0


@jit(inline=True)
def usable_bps(run: Any, links: Any, number: Any) -> Any:
    """Return what a link can carry of data, beside the ACKs of the other direction's."""
    link = links[number]
    if link.ack_share <= 0.0:
        return link.capacity
    other = links[number ^ 1]
    if run.excesses == 0:
        return link.capacity - link.ack_share * other.load
    usable = link.capacity - link.ack_share * (other.load + other.excess)
    if run.turn > _STRICT:
        return usable if usable < link.usable else link.usable
    if link.full and other.full and link.load > 0.0 and other.load > 0.0:
        own = other.ack_share * (1.0 + link.excess / link.load)
        theirs = link.ack_share * (1.0 + other.excess / other.load)
        both = link.capacity - theirs * other.capacity
        if own * theirs < 1.0 and both > 0.0 and own * link.capacity < other.capacity:
            usable = both / (1.0 - own * theirs)
    return usable


@jit(inline=True)
def outgrown(run: Any, lists: Any, links: Any) -> Any:
    """Touch the links whose ACKs are not those that the last fill reckoned with; tell if any are.

    ACKs may take more than a link has left, or much less than was left to them while flows wait.
    """
    any_is = False
    for i in range(run.listed):
        number = np.int64(lists[LISTED, i]) ^ 1
        link = links[number]
        if link.ack_share <= 0.0 or link.members == 0:
            continue
        other = links[number ^ 1]
        left = link.capacity - link.ack_share * (other.load + other.excess)
        room = left if left > 0.0 else 0.0
        if link.load > room + _OVER * link.capacity:
            run.narrowed = 1
        elif not (
            run.turn < _TRIES and link.holding > 0 and left > link.usable + _UNDER * link.capacity
        ):
            continue
        touch_link(run, lists, links, number)
        any_is = True
    return any_is
