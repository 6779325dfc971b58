# SPDX-License-Identifier: Apache-2.0
"""Cyclic buffer dependencies: rings in which pauses or credits could wait for each other.

A lossless link can only send while the buffer at its far end has room, which frees up as the next
link of each path sends. So link u waits for link v where some flow crosses u, then v, in the same
priority. A cycle of such waits is necessary for a deadlock, though not sufficient (Dally and
Seitz, "Deadlock-free message routing in multiprocessor interconnection networks", IEEE
Transactions on Computers C-36(5), 1987; Hu et al., "Deadlocks in datacenter networks: why do they
form, and how to avoid them", HotNets 2016).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.graph import LinkModel
from railweave.fabric.routing import PathSet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from railweave.fabric.graph import Fabric

__all__ = ["LOSSLESS_PRIORITY", "Dependencies", "buffer_dependencies", "cycles", "first_cycle"]

Node = tuple[int, int]

LOSSLESS_PRIORITY = 3
"""802.1p priority of lossless traffic where nothing is said."""

_WAITING_MODELS = (LinkModel.ROCE_LOSSLESS, LinkModel.INFINIBAND)


@dataclass(frozen=True, eq=False)
class Dependencies:
    """Who waits for whom: ``after[node]`` are the nodes (link, priority) that a node waits for."""

    after: dict[Node, tuple[Node, ...]]

    @property
    def edges(self) -> int:
        """Number of dependencies."""
        return sum(len(nodes) for nodes in self.after.values())


def buffer_dependencies(
    fabric: Fabric,
    paths: PathSet | Sequence[Sequence[int]],
    *,
    priorities: ArrayLike | int = LOSSLESS_PRIORITY,
    waits: NDArray[np.bool_] | None = None,
) -> Dependencies:
    """Return the dependencies of flows on these paths.

    Parameters
    ----------
    fabric
        The fabric; only its lossless links (PFC or credits) wait.
    paths
        Routed flows, or lists of link indices. Sprayed flows stand for all their paths: each of
        their links is taken to depend on each that leaves where it ends.
    priorities
        (n,) or one for all: lossless priority (virtual lane) of each flow.
    waits
        bool (links,): the links that wait; None: those of lossless models.
    """
    if isinstance(paths, PathSet):
        ptr, links = paths.ptr.astype(np.int64), paths.links.astype(np.int64)
    else:
        ptr = np.concatenate(([0], np.cumsum([len(path) for path in paths]))).astype(np.int64)
        links = np.array([link for path in paths for link in path], np.int64)
    flows = len(ptr) - 1
    if waits is None:
        waits = np.isin(fabric.link_model, _WAITING_MODELS)
    lanes, lane_of = np.unique(
        np.broadcast_to(np.asarray(priorities, np.int64), (flows,)), return_inverse=True
    )
    count = fabric.n_links
    owner = np.repeat(np.arange(flows), np.diff(ptr))
    before, after, flow_of = links[:-1], links[1:], owner[:-1]
    together = flow_of == owner[1:]
    meets = fabric.link_dst[before] == fabric.link_src[after]
    scattered = np.zeros(flows, np.bool_)
    scattered[flow_of[together & ~meets]] = True
    straight = together & waits[before] & waits[after] & ~scattered[flow_of]
    keys = [((lane_of[flow_of] * count + before) * count + after)[straight]]
    for flow in np.flatnonzero(scattered):
        own = links[ptr[flow] : ptr[flow + 1]]
        own = own[waits[own]]
        u, v = np.nonzero(fabric.link_dst[own][:, None] == fabric.link_src[own][None, :])
        keys.append((lane_of[flow] * count + own[u]) * count + own[v])
    waiting: dict[Node, list[Node]] = {}
    for key in np.unique(np.concatenate(keys)).tolist():
        ends, v = divmod(key, count)
        lane, u = divmod(ends, count)
        priority = int(lanes[lane])
        waiting.setdefault((u, priority), []).append((v, priority))
    return Dependencies({node: tuple(sorted(nodes)) for node, nodes in waiting.items()})


def cycles(
    fabric: Fabric,
    paths: PathSet | Sequence[Sequence[int]],
    *,
    priorities: ArrayLike | int = LOSSLESS_PRIORITY,
    waits: NDArray[np.bool_] | None = None,
    limit: int = 100,
) -> list[list[Node]]:
    """Return the elementary cycles of buffer dependencies among flows on these paths.

    Parameters
    ----------
    fabric, paths, priorities, waits
        As for `buffer_dependencies`.
    limit
        Stop after so many cycles (there can be exponentially many).

    Returns
    -------
    list of list of (link, priority)
        Each cycle from its lowest node, none twice. Empty: no deadlock is possible.
    """
    graph = buffer_dependencies(fabric, paths, priorities=priorities, waits=waits)
    found: list[list[Node]] = []
    for component in _knots(graph.after):
        for cycle in _elementary(graph.after, component):
            found.append(cycle)
            if len(found) == limit:
                return found
    return found


def first_cycle(
    fabric: Fabric,
    paths: Mapping[int, Sequence[Sequence[int]]],
    *,
    waits: Mapping[int, NDArray[np.bool_]] | None = None,
) -> list[Node]:
    """Return the first cycle among paths of several priorities, which never wait for each other.

    Parameters
    ----------
    fabric, paths
        As for `buffer_dependencies`, paths by priority.
    waits
        The links that wait, by priority; None: those of lossless models.

    Returns
    -------
    list of (link, priority)
        From its lowest node; empty: no deadlock is possible.
    """
    for priority in sorted(paths):
        own = None if waits is None else waits[priority]
        found = cycles(fabric, paths[priority], priorities=priority, waits=own, limit=1)
        if found:
            return found[0]
    return []


def _knots(after: dict[Node, tuple[Node, ...]]) -> list[list[Node]]:
    """Return the strongly connected components that hold a cycle (Tarjan 1972), sorted."""
    number: dict[Node, int] = {}
    low: dict[Node, int] = {}
    stack: list[Node] = []
    on_stack: set[Node] = set()
    found = []
    for root in sorted(after):
        if root in number:
            continue
        work = [(root, iter(after[root]))]
        number[root] = low[root] = len(number)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, ahead = work[-1]
            for peer in ahead:
                if peer not in number:
                    number[peer] = low[peer] = len(number)
                    stack.append(peer)
                    on_stack.add(peer)
                    work.append((peer, iter(after.get(peer, ()))))
                    break
                if peer in on_stack:
                    low[node] = min(low[node], number[peer])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    component = [stack.pop()]
                    while component[-1] != node:
                        component.append(stack.pop())
                    on_stack.difference_update(component)
                    if len(component) > 1 or node in after.get(node, ()):
                        found.append(sorted(component))
    return sorted(found)


def _elementary(after: dict[Node, tuple[Node, ...]], component: list[Node]) -> Iterator[list[Node]]:
    """Yield the elementary cycles of a component, each from its lowest node (Johnson 1975)."""
    remaining = set(component)
    for start in component:
        path = [start]
        blocked = {start}
        waiting: dict[Node, set[Node]] = {}
        closed: list[bool] = [False]
        work = [iter(after[start])]
        while work:
            node = path[-1]
            for peer in work[-1]:
                if peer not in remaining:
                    continue
                if peer == start:
                    yield list(path)
                    closed[-1] = True
                elif peer not in blocked:
                    path.append(peer)
                    blocked.add(peer)
                    closed.append(False)
                    work.append(iter(after.get(peer, ())))
                    break
            else:
                work.pop()
                path.pop()
                if closed.pop():
                    _unblock(node, blocked, waiting)
                    if closed:
                        closed[-1] = True
                else:
                    for peer in after.get(node, ()):
                        if peer in remaining:
                            waiting.setdefault(peer, set()).add(node)
        remaining.discard(start)


def _unblock(node: Node, blocked: set[Node], waiting: dict[Node, set[Node]]) -> None:
    freed = [node]
    while freed:
        one = freed.pop()
        if one in blocked:
            blocked.discard(one)
            freed.extend(waiting.pop(one, ()))
