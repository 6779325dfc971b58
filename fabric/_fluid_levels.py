# SPDX-License-Identifier: Apache-2.0
"""A heap of the levels at which links fill up and flows reach their caps, compiled.

Its ``run.levels`` entries lie in two columns of the links, ordered by (key, ident). An ident is a
link, whose place stands in ``heap_at``, or -1 - slot for a flow with a cap.
"""

from __future__ import annotations

from typing import Any

from railweave.fabric.jit import jit

__all__ = ["drop_level", "put_level"]


@jit(inline=True)
def _set(links: Any, at: Any, key: Any, ident: Any) -> None:
    links[at].heap_key = key
    links[at].heap_id = ident
    if ident >= 0:
        links[ident].heap_at = at


@jit(inline=True)
def _rise(links: Any, at: Any, key: Any, ident: Any) -> None:
    """Put an entry at a place or above it."""
    while at > 0:
        up = (at - 1) >> 1
        above = links[up].heap_key
        if above < key or (above == key and links[up].heap_id <= ident):
            break
        _set(links, at, above, links[up].heap_id)
        at = up
    _set(links, at, key, ident)


@jit(inline=True)
def put_level(run: Any, links: Any, key: Any, ident: Any) -> None:
    """Add an entry; one of a link that has one already comes no later than it did."""
    at = run.levels
    if ident >= 0 and links[ident].heap_at >= 0:
        at = links[ident].heap_at
        if links[at].heap_key <= key:
            return
    else:
        run.levels += 1
    _rise(links, at, key, ident)


@jit(inline=True)
def drop_level(run: Any, links: Any) -> None:
    """Drop the first entry."""
    if links[0].heap_id >= 0:
        links[links[0].heap_id].heap_at = -1
    run.levels -= 1
    n = run.levels
    if n == 0:
        return
    key = links[n].heap_key
    ident = links[n].heap_id
    at = 0
    while True:
        child = 2 * at + 1
        if child >= n:
            break
        right = child + 1
        if right < n and (
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
        _set(links, at, links[child].heap_key, links[child].heap_id)
        at = child
    _set(links, at, key, ident)
