# SPDX-License-Identifier: Apache-2.0
"""Moving active flows of the fluid engine to other paths, compiled."""

from __future__ import annotations

from typing import Any

from railweave.fabric._fluid_events import sift
from railweave.fabric._fluid_kernel import leave_links
from railweave.fabric._fluid_layout import FOREVER
from railweave.fabric._fluid_solve import acknowledge, held_by, touch_link
from railweave.fabric.jit import jit

__all__ = ["move_flows"]

_PS = 8e12  # picoseconds per second times bits per byte


@jit
def move_flows(
    all_runs: Any,
    lists: Any,
    slots: Any,
    ends: Any,
    where: Any,
    place: Any,
    links: Any,
    pool: Any,
    paths: Any,
    hops: Any,
    moved: Any,
    target: Any,
    scale: Any,
    begin: Any,
) -> Any:
    """Move the flows of slots ``moved[begin:]`` to the paths ``target``.

    ``scale`` is by how much a flow's bytes are more on its new path (other headers). A flow starts
    there with rate 0 and is solved for in this instant; ``updated`` of one that stood still stays
    when it came to stand. Returns how many are moved: fewer than all if the pool must grow first.
    """
    run = all_runs[0]
    for i in range(begin, len(moved)):
        slot = moved[i]
        start = paths[target[i]].hops
        n_hops = paths[target[i]].hops_end - start
        most = run.pool_used
        for k in range(n_hops):  # as when a flow is placed
            link = links[hops[start + k].link]
            if link.members + k >= link.room:
                most += 2 * link.room if link.room > 1 else 4
        if most > len(pool):
            return i
        flow = slots[slot]
        if flow.rate > 0.0:
            left = flow.remaining - flow.rate * (run.now - flow.updated) / _PS
            flow.remaining = left if left > 0.0 else 0.0
            flow.updated = run.now
        flow.remaining *= scale[i]
        leave_links(run, lists, slots, place, links, pool, paths, hops, slot)
        run.free -= 1  # it keeps its slot
        flow.path = target[i]
        flow.rate = 0.0
        flow.level = 0.0
        flow.finish = FOREVER
        held_by(slots, links, slot, hops[start].link)  # which is touched: it is solved for
        for k in range(n_hops):
            crossed = hops[start + k].link
            link = links[crossed]
            if link.members == link.room:
                room = 2 * link.room if link.room > 1 else 4
                for m in range(link.members):
                    pool[run.pool_used + m] = pool[link.members_at + m]
                link.members_at = run.pool_used
                link.room = room
                run.pool_used += room
            pool[link.members_at + link.members] = slot << 16 | k
            place[slot, k] = link.members
            link.members += 1
            touch_link(run, lists, links, crossed)
            if run.acks and link.members == 1:
                acknowledge(run, lists, links, crossed)
        at = where[slot]
        ends[at].time = FOREVER
        sift(ends, where, run.active, at)
    run.narrowed = 1
    return len(moved)
