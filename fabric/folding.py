# SPDX-License-Identifier: Apache-2.0
"""Symmetry folding: simulate one transfer of each kind where all of a kind fare alike.

Transfers and links are coloured until no colour can be split further: transfers of one colour
have equal sizes and delays, cross links of equal colours, and have equally coloured transfers
before and behind them; links of one colour carry transfers of the same colours (colour refinement:
Weisfeiler and Leman, 1968; the coarsest equitable partition: Paige and Tarjan, "Three partition
refinement algorithms", SIAM J. Comput. 16, 1987). Max-min rates are unique, so transfers of one
colour start, run and end together.

Only coverings are folded: no link carries two transfers of one colour. Then the small simulation
does, link by link, the very sums that the whole one would. Where some do, their numbers tell them
apart, and the refinement goes on from there. What the colouring found is checked
exactly (`railweave.fabric._folding_checks`). A failed link, a collision or an uneven size makes
colours of its own, and where nearly every transfer ends up alone nothing is folded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.fabric._distinct import count_distinct, distinct
from railweave.fabric._fluid_layout import HOP, LOOP, PATH, records

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.fabric.fluid_graph import FluidGraph
    from railweave.fabric.fluid_state import SolvePaths

    Words = NDArray[np.uint64]

__all__ = ["Folded", "FoldedPaths", "fold"]

_LEAST = 4096  # nodes; a schedule with fewer is simulated as it is
_GAIN = 4  # times fewer nodes, which makes folding worth its while
_SPREAD = 8  # links that a message crosses on average; more only where it is sprayed
_PATIENCE = 256  # rounds of refinement


@dataclass(eq=False)
class FoldedPaths:
    """Paths over classes of links: what a simulation reads of a table of paths."""

    routes: Any
    hops: Any
    longest: int

    def __len__(self) -> int:
        return len(self.routes)


@dataclass(frozen=True, eq=False)
class Folded:
    """One transfer of each class over one link of each class.

    ``link_class`` int32 (links,): class of each link; ``capacity`` and ``ack_share`` float64
    (classes,); ``kept`` int64: the node of the whole graph that stands for each class.
    """

    graph: FluidGraph
    paths: FoldedPaths
    capacity: NDArray[np.float64]
    ack_share: NDArray[np.float64]
    link_class: NDArray[np.int32]
    kept: NDArray[np.int64]

    def resized(self, graph: FluidGraph) -> Folded:
        """Return the fold of a graph that differs in sizes and delays, with the same ones equal."""
        kept = self.kept
        sized = replace(
            self.graph, wire_bytes=graph.wire_bytes[kept], delay_ps=graph.delay_ps[kept]
        )
        return replace(self, graph=sized)


def fold(
    graph: FluidGraph,
    paths: SolvePaths,
    capacity: NDArray[np.float64],
    ack_share: NDArray[np.float64],
) -> Folded | None:
    """Return what is enough to simulate of a schedule that has its links for itself.

    Parameters
    ----------
    graph
        The schedule; all of its nodes begin at one time.
    paths
        The paths it uses, over links ``2 * cable`` and ``2 * cable + 1``.
    capacity, ack_share
        float64 (links,), as in `FluidState`.

    Returns
    -------
    Folded or None
        None where folding is not exact, or gains too little.
    """
    if len(graph) < _LEAST:
        return None
    lengths = paths.routes.hops_end - paths.routes.hops
    if not len(graph.succ) and lengths.sum() > _SPREAD * len(graph):
        return None  # messages that all start at once take one solve: less than their colours
    columns = _Columns(graph, paths, capacity, ack_share)
    colours = columns.refined(most=len(graph) // _GAIN)
    if colours is None:
        return None
    node_class, link_class = colours
    return columns.folded(node_class, link_class)


def _mixed(words: Words, salt: int) -> Words:
    """Mix words well (the finaliser of splitmix64), a different way for each ``salt``."""
    word = np.uint64
    words = words + word((salt * 0x9E3779B97F4A7C15) & (2**64 - 1))
    words = (words ^ (words >> word(30))) * word(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> word(27))) * word(0x94D049BB133111EB)
    return words ^ (words >> word(31))


def _words(values: NDArray[Any]) -> Words:
    """Return the bits of numbers of 64 bits, or of integers."""
    if values.dtype.kind == "f":
        return np.ascontiguousarray(values, np.float64).view(np.uint64)
    return values.astype(np.int64).view(np.uint64)


def _combined(*columns: NDArray[Any]) -> Words:
    """Hash rows of columns."""
    out = np.zeros(len(columns[0]), np.uint64)
    for number, column in enumerate(columns):
        out = _mixed(out ^ _mixed(_words(column), 2 * number + 1), 2 * number + 2)
    return out


def _summed(into: NDArray[Any], words: Words, rows: int) -> Words:
    """Add up words by row: a hash of each row's multiset."""
    out = np.zeros(rows, np.uint64)
    np.add.at(out, into, words)
    return out


def _numbered(words: Words) -> NDArray[np.int32]:
    """Return the number of each colour, in order of their first rows."""
    _, first, number = np.unique(words, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int32)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first), dtype=np.int32)
    return rank[number]


class _Columns:
    """A graph and its paths as columns: nodes, edges, crossings and links."""

    def __init__(
        self,
        graph: FluidGraph,
        paths: SolvePaths,
        capacity: NDArray[np.float64],
        ack_share: NDArray[np.float64],
    ) -> None:
        self.graph, self.paths = graph, paths
        self.capacity, self.ack_share = capacity, ack_share
        self.before = np.repeat(np.arange(len(graph)), np.diff(graph.succ_ptr))
        self.again = graph.succ < 0
        self.after = np.where(self.again, ~graph.succ, graph.succ).astype(np.int64)
        routes = paths.routes
        lengths = routes.hops_end - routes.hops
        self.owner = np.repeat(np.arange(len(routes)), lengths)  # path of each crossing
        self.nth = np.arange(len(self.owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        at = np.repeat(routes.hops, lengths) + self.nth
        self.link = np.asarray(paths.hops.link[at], np.int64)
        self.share = np.asarray(paths.hops.share[at])
        # Nodes of one path take turns; among those ready at once their numbers decide.
        self.users = np.argsort(graph.path, kind="stable")
        self.users = self.users[np.searchsorted(graph.path[self.users], 0) :]
        user_path = graph.path[self.users]
        starts = np.searchsorted(user_path, user_path)
        self.turn = np.zeros(len(graph), np.int64)
        self.turn[self.users] = np.arange(len(self.users)) - starts

    def _first_colours(self) -> tuple[Words, Words]:
        """Colour nodes and links by themselves."""
        graph = self.graph
        rows = np.zeros((len(graph), len(LOOP.names or ())), np.int64)
        for number, name in enumerate(LOOP.names or ()):
            rows[graph.looped, number] = graph.loop_rows[name]
        even = rows[:, (LOOP.names or ()).index("longer")] == 0
        rows[even, (LOOP.names or ()).index("part")] = 0  # every part is as long as the others
        node = _combined(
            graph.wire_bytes, graph.delay_ps, graph.n_deps, graph.path < 0, self.turn, *rows.T
        )
        return node, _combined(self.capacity, self.ack_share, np.arange(len(self.capacity)) & 1)

    def refined(self, *, most: int) -> tuple[NDArray[np.int32], NDArray[np.int32]] | None:
        """Return the class of each node and link once no more can be told apart.

        None where there are more than ``most`` classes of nodes, or no end in sight.
        """
        graph, routes = self.graph, self.paths.routes
        n, n_links, n_paths = len(graph), len(self.capacity), len(routes)
        node, link = self._first_colours()
        path = _combined(*(np.asarray(routes[name]) for name in ("latency", "per_byte", "first")))
        crossing = _combined(self.nth, self.share)
        edge = _mixed(self.again.astype(np.uint64), 77)
        crosses = np.flatnonzero(graph.path >= 0)
        own = graph.path[crosses]
        counts, parted = (0, 0), False
        for _ in range(_PATIENCE):
            on_path = _mixed(crossing ^ _mixed(link[self.link], 3), 4)
            path = _mixed(path ^ _summed(self.owner, on_path, n_paths), 5)
            path = _mixed(path ^ _summed(own, _mixed(node[crosses], 6), n_paths), 7)
            links = _summed(self.link, _mixed(crossing ^ path[self.owner], 8), n_links)
            link = _mixed(link ^ links, 9)
            link = _mixed(link ^ _mixed(link.reshape(-1, 2)[:, ::-1].reshape(-1), 10), 11)
            behind = _summed(self.before, _mixed(edge ^ node[self.after], 12), n)
            ahead = _summed(self.after, _mixed(edge ^ node[self.before], 13), n)
            node = _mixed(node ^ _mixed(behind, 14) ^ _mixed(ahead, 15), 16)
            node[crosses] = _mixed(node[crosses] ^ path[own], 17)
            found = (count_distinct(node), count_distinct(link))
            if found[0] > most:
                return None
            if found == counts and not parted:
                parted, beside = True, self._beside(node)
                if beside.any():
                    node, counts = _mixed(node ^ _mixed(_words(beside), 18), 19), (0, 0)
                    continue
            if found == counts:
                # The two directions of a cable are numbered side by side, as in a fabric.
                cable = _numbered(_combined(link[0::2], link[1::2]))
                return _numbered(node), (cable[:, None] * 2 + np.arange(2)).reshape(-1)
            counts = found
        return None

    def _beside(self, node: Words) -> NDArray[np.int64]:
        """Return how many nodes of its colour precede each on a link, by number, int64 (nodes,).

        Nodes that are alike and share a link must be told apart. In the order of their numbers they
        often can be, all over the schedule: two trees side by side on the links of each host.
        """
        crosses = np.flatnonzero(self.graph.path >= 0)
        lengths = self.paths.routes.hops_end - self.paths.routes.hops
        start = np.cumsum(lengths) - lengths
        path = self.graph.path[crosses]
        out = np.zeros(len(self.graph), np.int64)
        for nth in range(int(lengths.max(initial=0))):
            there = lengths[path] > nth
            at = crosses[there]
            words = _combined(self.link[start[path[there]] + nth], node[at])
            order = np.argsort(words, kind="stable")
            words = words[order]
            head = np.ones(len(words), np.bool_)
            head[1:] = words[1:] != words[:-1]
            first = np.flatnonzero(head)
            rank = np.arange(len(words)) - np.repeat(first, np.diff(np.append(first, len(words))))
            np.maximum.at(out, at[order], rank)
        return out

    def folded(self, node_class: NDArray[np.int32], link_class: NDArray[np.int32]) -> Folded | None:
        """Return the folded graph, None if the classes are no covering."""
        from railweave.fabric._folding_checks import is_covering

        graph, routes = self.graph, self.paths.routes
        _, kept = np.unique(node_class, return_index=True)  # the first of each class
        _, kept_links = np.unique(link_class, return_index=True)
        if not is_covering(self, node_class, link_class, kept, kept_links):
            return None
        used = distinct(graph.path[kept])
        used = used[used >= 0]
        row = np.full(len(routes) + 1, -1, np.int32)
        row[used] = np.arange(len(used), dtype=np.int32)
        lengths = (routes.hops_end - routes.hops)[used]
        end = np.cumsum(lengths)
        chosen = np.flatnonzero(np.isin(self.owner, used))
        new_routes = records(PATH, len(used))
        for name in ("latency", "per_byte", "first"):
            new_routes[name] = routes[name][used]
        new_routes.hops, new_routes.hops_end = end - lengths, end
        hops = records(HOP, len(chosen))
        hops.link, hops.share = link_class[self.link[chosen]], self.share[chosen]
        return Folded(
            graph=self._folded_graph(node_class, kept, row),
            paths=FoldedPaths(new_routes, hops, int(lengths.max(initial=1))),
            capacity=self.capacity[kept_links],
            ack_share=self.ack_share[kept_links],
            link_class=link_class,
            kept=kept,
        )

    def _folded_graph(
        self, node_class: NDArray[np.int32], kept: NDArray[np.int64], row: NDArray[np.int32]
    ) -> FluidGraph:
        graph = self.graph
        ours = np.isin(self.before, kept)
        ends = np.stack(
            (node_class[self.before[ours]], node_class[self.after[ours]], self.again[ours])
        ).astype(np.int64)
        edges = np.unique(ends, axis=1)  # a class waits once for a class
        ptr = np.zeros(len(kept) + 1, np.int32)
        np.cumsum(np.bincount(edges[0], minlength=len(kept)), out=ptr[1:])
        again = edges[2] == 1
        looped_class = node_class[graph.looped]
        looped, first = np.unique(looped_class, return_index=True)
        rows = graph.loop_rows[first].copy()
        runs = np.ones(len(kept), np.int64)
        runs[looped] = rows["left"]
        return replace(
            graph,
            path=row[graph.path[kept]],
            wire_bytes=graph.wire_bytes[kept],
            delay_ps=graph.delay_ps[kept],
            n_deps=np.bincount(edges[1][~again], minlength=len(kept)).astype(np.int32),
            succ_ptr=ptr,
            succ=np.where(again, ~edges[1], edges[1]).astype(np.int32),
            looped=looped.astype(np.int64),
            loop_rows=rows,
            n_runs=int(runs.sum()),
        )
