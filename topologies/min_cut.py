# SPDX-License-Identifier: Apache-2.0
"""Exact minimum cuts of a fabric's network, however large, through its symmetry.

The maximum flow between two sets of switches equals the minimum cut (Ford and Fulkerson, "Maximal
flow through a network", Canadian Journal of Mathematics 8, 1956). Switches that are alike fall into
one cell of the coarsest equitable partition: every switch of a cell has as much bandwidth to each
other cell, and as much from it. A flow between cells can then be spread over their links in
proportion to the links' rates without overfilling any, so that the flow of the cells, with summed
capacities, is the flow of the switches (Grohe et al., "Dimension reduction via colour refinement",
ESA 2014, for linear programs in general). Rates are integers, and so is the result.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.graph import DeviceKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric

__all__ = ["ENDLESS", "SwitchGraph"]

ENDLESS: Final = 2**60
"""A capacity in bit/s above any sum of links."""


@dataclass(frozen=True, eq=False)
class SwitchGraph:
    """The switches of a fabric and the bandwidth between them; links that are down do not count.

    Parameters
    ----------
    fabric
        The fabric.
    """

    fabric: Fabric

    @cached_property
    def number(self) -> NDArray[np.int64]:
        """int64 (devices,): dense number of each switch, -1 for other devices."""
        found = np.full(self.fabric.n_devices, -1, np.int64)
        found[self.fabric.switches] = np.arange(len(self.fabric.switches))
        return found

    @cached_property
    def bundles(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Parallel links taken together: switch, switch, bit/s in that direction."""
        fabric = self.fabric
        is_switch = fabric.kind == DeviceKind.SWITCH
        links = fabric.link_network & fabric.link_up
        links &= is_switch[fabric.link_src] & is_switch[fabric.link_dst]
        src, dst = self.number[fabric.link_src[links]], self.number[fabric.link_dst[links]]
        count = max(1, len(fabric.switches))
        pair, place = np.unique(src * count + dst, return_inverse=True)
        rate = np.zeros(len(pair), np.int64)
        np.add.at(rate, place, fabric.link_rate_bps[links])
        return pair // count, pair % count, rate

    def cells(self, colour: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the coarsest equitable partition finer than ``colour``, int64 (switches,)."""
        src, dst, rate = self.bundles
        count = len(self.fabric.switches)
        _, colour = np.unique(colour, return_inverse=True)
        kinds = int(colour.max(initial=0)) + 1
        while True:
            marks: list[list[tuple[int, int]]] = [[] for _ in range(count)]
            for here, there, sign in ((src, dst, 0), (dst, src, 1)):
                key = (here * kinds + colour[there]) * 2 + sign
                keys, place = np.unique(key, return_inverse=True)
                total = np.zeros(len(keys), np.int64)
                np.add.at(total, place, rate)
                owners, peers = np.divmod(keys // 2, kinds)
                for owner, peer, sum_bps in zip(
                    owners.tolist(), peers.tolist(), total.tolist(), strict=True
                ):
                    marks[owner].append((2 * peer + sign, sum_bps))
            known: dict[tuple[int, tuple[tuple[int, int], ...]], int] = {}
            finer = np.array(
                [
                    known.setdefault((own, tuple(mark)), len(known))
                    for own, mark in zip(colour.tolist(), marks, strict=True)
                ],
                np.int64,
            )
            if len(known) == kinds or not count:
                return finer
            colour, kinds = finer, len(known)

    def max_flow_bps(self, supply_bps: NDArray[np.int64], drain_bps: NDArray[np.int64]) -> int:
        """Return the most that can flow through the switches, in bit/s.

        Parameters
        ----------
        supply_bps, drain_bps
            int64 (switches,): what may enter and leave the network at each switch; `ENDLESS` where
            there is no limit.
        """
        if not len(self.fabric.switches):
            return 0
        pairs = np.stack([supply_bps, drain_bps])
        _, colour = np.unique(pairs, axis=1, return_inverse=True)
        cell = self.cells(colour)
        count = int(cell.max(initial=0)) + 1
        network = _Network(count + 2)
        source, sink = count, count + 1
        src, dst, rate = self.bundles
        between: dict[tuple[int, int], int] = {}
        for a, b, bps in zip(cell[src].tolist(), cell[dst].tolist(), rate.tolist(), strict=True):
            if a != b:
                between[a, b] = between.get((a, b), 0) + bps
        for (a, b), bps in sorted(between.items()):
            network.add(a, b, bps)
        for one in range(count):
            mine = cell == one
            for bps, ends in ((supply_bps, (source, one)), (drain_bps, (one, sink))):
                total = sum(bps[mine].tolist())  # Python's integers have no end
                if total:
                    network.add(*ends, total)
        return network.max_flow(source, sink)


class _Network:
    """A small network with integer capacities, for Dinic's algorithm.

    E. A. Dinic, "Algorithm for solution of a problem of maximum flow in networks with power
    estimation", Soviet Mathematics Doklady 11, 1970.
    """

    def __init__(self, nodes: int) -> None:
        self._out: list[list[int]] = [[] for _ in range(nodes)]
        self._to: list[int] = []
        self._left: list[int] = []

    def add(self, a: int, b: int, capacity: int) -> None:
        for one, other, room in ((a, b, capacity), (b, a, 0)):
            self._out[one].append(len(self._to))
            self._to.append(other)
            self._left.append(room)

    def max_flow(self, source: int, sink: int) -> int:
        total = 0
        while True:
            level = self._levels(source)
            if level[sink] < 0:
                return total
            at = [0] * len(self._out)
            while sent := self._push(source, sink, level, at):
                total += sent

    def _levels(self, source: int) -> list[int]:
        level = [-1] * len(self._out)
        level[source] = 0
        queue = deque([source])
        while queue:
            node = queue.popleft()
            for arc in self._out[node]:
                if self._left[arc] and level[self._to[arc]] < 0:
                    level[self._to[arc]] = level[node] + 1
                    queue.append(self._to[arc])
        return level

    def _push(self, source: int, sink: int, level: list[int], at: list[int]) -> int:
        """Send what fits along one shortest path; 0 when there is none left."""
        path: list[int] = []
        node = source
        while node != sink:
            while at[node] < len(self._out[node]):
                arc = self._out[node][at[node]]
                if self._left[arc] and level[self._to[arc]] == level[node] + 1:
                    path.append(arc)
                    node = self._to[arc]
                    break
                at[node] += 1
            else:
                if node == source:
                    return 0
                arc = path.pop()
                node = self._to[arc ^ 1]
                at[node] += 1
        sent = min(self._left[arc] for arc in path)
        for arc in path:
            self._left[arc] -= sent
            self._left[arc ^ 1] += sent
        return sent
