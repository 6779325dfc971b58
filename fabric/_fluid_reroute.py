# SPDX-License-Identifier: Apache-2.0
"""Moving active flows of the fluid engine to other paths, compiled."""

from __future__ import annotations

from typing import Any

from railweave.fabric._fluid_events import sift
from railweave.fabric._fluid_kernel import join_links, lacks_room, leave_links
from railweave.fabric._fluid_layout import FOREVER
from railweave.fabric._fluid_solve import touch_link
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
        if lacks_room(run, links, pool, hops, start, n_hops):
            return i
        flow = slots[slot]
        if flow.rate > 0.0:
            left = flow.remaining - flow.rate * (run.now - flow.updated) / _PS
            flow.remaining = left if left > 0.0 else 0.0
            flow.updated = run.now
        flow.remaining *= scale[i]
        leave_links(run, lists, slots, place, links, pool, hops, slot)
        run.free -= 1  # it keeps its slot
        flow.path = target[i]
        flow.rate = 0.0
        flow.hops = start
        flow.hops_end = start + n_hops
        flow.finish = FOREVER
        join_links(run, lists, place, links, pool, hops, slot, start, n_hops)
        for k in range(n_hops):  # which makes it be solved for: nothing holds it back
            touch_link(run, lists, links, hops[start + k].link)
        at = where[slot]
        ends[at].time = FOREVER
        sift(ends, where, run.active, at)
    run.narrowed = 1
    return len(moved)
