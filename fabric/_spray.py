# SPDX-License-Identifier: Apache-2.0
"""Compiled kernel that spreads a flow over all its shortest paths (states as in ``_walk``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric._walk import HERE, leave, onward
from railweave.fabric.jit import jit

__all__ = ["spray"]


@jit(
    "Tuple((i4[::1], i4[::1], f8[::1]))(i4[::1], i4[::1], i4[::1], i4[::1], i4[::1],"
    " i2[:, :, ::1], i4[::1], i4[:, ::1], i4[::1], i4[:, ::1],"
    " i4[::1], i4[:, ::1], i4[::1], i4[:, ::1], i4[::1], i4[::1], i8, i8)"
)
def spray(
    source: Any,
    target: Any,
    first: Any,
    last: Any,
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
    inside_ptr: Any,
    inside_link: Any,
    widest: Any,
    link_count: Any,
) -> Any:
    """Return ``(ptr, links, share)``: every link of every shortest path with its share of bytes.

    ``links`` and ``share`` have room to spare after ``ptr[-1]``.
    Each device splits what reaches it evenly over its next hops. All shortest paths have one
    length, so going level by level sees each state once, with all that flows into it.
    """
    switches = len(hop_ptr) - 1
    ahead = np.empty((2, widest), np.int32)
    now, then = np.empty(2 * switches, np.int32), np.empty(2 * switches, np.int32)
    amount = np.zeros(2 * switches, np.float64)
    on_link = np.zeros(link_count, np.float64)
    seen = np.zeros(link_count, np.bool_)
    touched = np.empty(link_count, np.int32)
    ptr = np.zeros(len(source) + 1, np.int32)
    links, share = np.empty(1024, np.int32), np.empty(1024, np.float64)
    used = 0
    for i in range(len(source)):
        found = 0
        if first[i] >= 0:
            for k in range(inside_ptr[first[i]], inside_ptr[first[i] + 1]):
                touched[found] = inside_link[k]
                on_link[inside_link[k]] = 1.0
                found += 1
        if source[i] >= 0:
            goal = np.int64(target[i])
            row = np.int64(row_of_nic[goal])
            count = leave(np.int64(source[i]), goal, row, near, up_ptr, up, pair_ptr, pair, ahead)
            waiting, level = 0, -1
            carried = 1.0
            while True:
                reached = 0
                for k in range(max(waiting, 1)):
                    if level >= 0:
                        state = np.int64(now[k])
                        carried = amount[state]
                        amount[state] = 0.0
                        count = onward(state, goal, row, near, hop_ptr, hop, down_ptr, down, ahead)
                    part = carried / count
                    for c in range(count):
                        link = ahead[0, c]
                        if not seen[link]:
                            seen[link] = True
                            touched[found] = link
                            found += 1
                        on_link[link] += part
                        after = ahead[1, c]
                        if after != HERE:
                            if amount[after] == 0.0:
                                then[reached] = after
                                reached += 1
                            amount[after] += part
                if reached == 0:
                    break
                now, then = then, now
                waiting = reached
                level += 1
        if last[i] >= 0:
            for k in range(inside_ptr[last[i]], inside_ptr[last[i] + 1]):
                touched[found] = inside_link[k]
                on_link[inside_link[k]] = 1.0
                found += 1
        if used + found > len(links):
            room = 2 * (used + found)
            more_links, more_share = np.empty(room, np.int32), np.empty(room, np.float64)
            for k in range(used):
                more_links[k], more_share[k] = links[k], share[k]
            links, share = more_links, more_share
        for k in range(found):
            link = touched[k]
            links[used] = link
            share[used] = on_link[link]
            on_link[link] = 0.0
            seen[link] = False
            used += 1
        ptr[i + 1] = used
    return ptr, links, share
