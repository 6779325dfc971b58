# SPDX-License-Identifier: Apache-2.0
"""Exact checks that a folded schedule is a covering of the whole one (see `folding`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.fabric._distinct import distinct
from railweave.fabric._fluid_layout import LOOP

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.fabric.folding import _Columns

__all__ = ["is_covering"]


def is_covering(
    columns: _Columns,
    node_class: NDArray[np.int32],
    link_class: NDArray[np.int32],
    kept: NDArray[np.int64],
    kept_links: NDArray[np.int64],
) -> bool:
    """Tell whether each node and link looks just as the kept one of its class.

    Nodes: in size, delay and loop, in the classes before and behind them, in the classes of the
    links that they cross and in what takes turns with them. Links: in capacity and in the classes
    of nodes that cross them, none of which does so twice.
    """
    graph, routes = columns.graph, columns.paths.routes
    like = kept[node_class]  # the kept node of each node's class
    if not all(
        np.array_equal(column, column[like])
        for column in (graph.wire_bytes, graph.delay_ps, graph.path < 0, *_loop_columns(columns))
    ):
        return False
    if not all(
        np.array_equal(column, column[kept_links[link_class]])
        for column in (columns.capacity, columns.ack_share)
    ):
        return False
    mark = columns.again.astype(np.int64)
    edges = ((columns.before, columns.after), (columns.after, columns.before))
    for ends, others in edges:
        if not _rows_alike(ends, 2 * node_class[others].astype(np.int64) + mark, node_class, kept):
            return False

    # Paths: latency, links and shares in their order, and the classes that take turns on them.
    crosses = np.flatnonzero(graph.path >= 0)
    path, like_path = graph.path[crosses], graph.path[like[crosses]]
    for name in ("latency", "per_byte", "first"):
        if not np.array_equal(routes[name][path], routes[name][like_path]):
            return False
    lengths = routes.hops_end - routes.hops
    if not np.array_equal(lengths[path], lengths[like_path]):
        return False
    start = np.concatenate(([0], np.cumsum(lengths)))
    span = lengths[path]
    nth = np.arange(span.sum()) - np.repeat(np.cumsum(span) - span, span)
    here, there = (np.repeat(start[p], span) + nth for p in (path, like_path))
    if not np.array_equal(columns.share[here], columns.share[there]):
        return False
    if not np.array_equal(link_class[columns.link[here]], link_class[columns.link[there]]):
        return False
    if not _turns_alike(columns, node_class, kept):
        return False

    # Links: each (link, class of a node that crosses it) once, and alike for links of one class.
    link = columns.link[here]
    pairs = distinct(link * len(kept) + np.repeat(node_class[crosses], span))
    if len(pairs) != len(link):
        return False
    return _rows_alike(pairs // len(kept), pairs % len(kept), link_class, kept_links)


def _loop_columns(columns: _Columns) -> list[NDArray[np.int64]]:
    """Return what loops of one class must have in common, by node."""
    graph = columns.graph
    out = []
    even = graph.loop_rows["longer"] == 0
    for name in LOOP.names or ():
        column = np.full(len(columns.graph), -1, np.int64)
        column[graph.looped] = np.where(even & (name == "part"), 0, graph.loop_rows[name])
        out.append(column)
    return out


def _turns_alike(columns: _Columns, node_class: NDArray[np.int32], kept: NDArray[np.int64]) -> bool:
    """Tell whether the nodes on a path come in the same order of classes as on the kept one.

    The classes are numbered by their first nodes; among nodes ready at once the lower number has
    its turn first, so the order of classes on each path must be that of their numbers.
    """
    path = columns.graph.path[columns.users]
    order = node_class[columns.users].astype(np.int64)
    same = path[1:] == path[:-1]
    if (order[1:][same] <= order[:-1][same]).any():
        return False
    first = np.searchsorted(path, path)
    leader = columns.users[first]  # the first node on each node's path
    return _rows_alike(leader, order, node_class, kept, only=distinct(leader))


def _rows_alike(
    row: NDArray[Any],
    value: NDArray[Any],
    class_of: NDArray[np.int32],
    kept: NDArray[np.int64],
    *,
    only: NDArray[np.int64] | None = None,
) -> bool:
    """Tell whether rows of one class have the same set of values as the kept row of that class."""
    width = int(value.max(initial=0)) + 1
    pairs = distinct(row.astype(np.int64) * width + value)
    row, value = pairs // width, pairs % width
    count = np.bincount(row, minlength=len(class_of))
    start = np.cumsum(count) - count
    like = kept[class_of]
    rows = np.arange(len(class_of)) if only is None else only
    if not np.array_equal(count[rows], count[like[rows]]):
        return False
    span = count[rows]
    nth = np.arange(span.sum()) - np.repeat(np.cumsum(span) - span, span)
    mine = np.repeat(start[rows], span) + nth
    theirs = np.repeat(start[like[rows]], span) + nth
    return np.array_equal(value[mine], value[theirs])
