# SPDX-License-Identifier: Apache-2.0
"""How packets choose among equal ways at a switch: compiled choice, and the table of ways.

``spray`` takes a way for each packet, at random or in turn; ``flowlet`` another one after a pause
(Vanini et al., "Let it flow: resilient asymmetric load balancing with flowlet switching", NSDI
2017); ``adaptive`` the one with the shortest queue, paused ports last, among all or between two
chosen at random (Mitzenmacher, "The power of two choices in randomized load balancing", IEEE TPDS
12(10), 2001). Ties are broken at random.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.fabric._walk import mix
from railweave.fabric.jit import jit
from railweave.fabric.packet.layout import (
    CLASS_BITS,
    CONTROL,
    FOREVER,
    NONE,
    SPREAD_ENTROPY,
    SPREAD_FLOWLET,
    SPREAD_RANDOM,
    SPREAD_TURNS,
    SPREAD_TWO,
)
from railweave.fabric.packet.queues import sent_before

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.fabric.packet.state import PacketState

__all__ = ["Ways", "choose"]

_32 = np.uint64(32)


@jit(inline=True)
def _pick(word: Any, count: Any) -> Any:
    """Return a number below ``count`` from a hash's upper half."""
    return np.int64(((word >> _32) * np.uint64(count)) >> _32)


@jit(inline=True)
def _load(runs: Any, ports: Any, egress: Any, hops: Any, row: Any, klass: Any) -> Any:
    """Return how long a way's queue is, in steps; a paused or broken way is longer than any."""
    run = runs[0]
    link = np.int64(hops[row].link)
    port = ports[link]
    if port.up == 0 or (port.blocked >> klass) & 1:
        return np.int64(FOREVER)
    queue = link * run.classes + klass
    size = egress[queue].bytes
    if port.svc_queue == queue and port.svc_end <= run.now:  # left without an event
        size -= port.svc_bytes
    return size // run.spread_quantum


@jit(inline=True)
def choose(
    runs: Any, ports: Any, egress: Any, qps: Any, hops: Any, packet: Any, branch: Any
) -> Any:
    """Return the hop row that a packet takes at a choice of ways."""
    run = runs[0]
    count = np.int64(NONE - hops[branch].link)
    qp = qps[packet.qp]
    klass = np.int64(packet.flag) >> CLASS_BITS
    sent = sent_before(qp, packet)
    if run.spread == SPREAD_FLOWLET:
        sent = np.int64(qp.flowlet)
    elif run.spread == SPREAD_ENTROPY:
        sent = (sent & 65535) % qp.entropies
    sent = 2 * sent + (1 if packet.flag & CONTROL else 0)
    word = (np.uint64(qp.flow) << _32) | np.uint64(sent & 0xFFFFFFFF)
    word = mix((run.spread_key + np.uint64(branch)) ^ mix(word))
    if run.spread == SPREAD_RANDOM or run.spread == SPREAD_FLOWLET or run.spread == SPREAD_ENTROPY:
        first = _pick(word, count)
        for i in range(count):  # around broken ways
            row = branch + 1 + (first + i) % count
            if ports[hops[row].link].up == 1:
                return np.int64(row)
        return np.int64(branch + 1 + first)
    if run.spread == SPREAD_TURNS:
        turn = np.int64(hops[branch].next)
        hops[branch].next = (turn + 1) % count
        return np.int64(branch + 1 + (turn + _pick(mix(run.spread_key), count)) % count)
    if run.spread == SPREAD_TWO and count > 2:
        a = _pick(word, count)
        b = (a + 1 + _pick(mix(word), count - 1)) % count
        one = _load(runs, ports, egress, hops, branch + 1 + a, klass)
        other = _load(runs, ports, egress, hops, branch + 1 + b, klass)
        return np.int64(branch + 1 + (b if other < one else a))
    first = _pick(word, count)
    best = np.int64(branch + 1 + first)
    least = _load(runs, ports, egress, hops, best, klass)
    for i in range(1, count):
        row = branch + 1 + (first + i) % count
        load = _load(runs, ports, egress, hops, row, klass)
        if load < least:
            least = load
            best = np.int64(row)
    return best


class Ways:
    """The ways to each destination, shared by all that go there, as rows of hops.

    Behind one link and towards one destination the ways on are the same whoever comes: paths climb
    and then descend, and the link tells which.

    Parameters
    ----------
    state
        Where the rows are written.
    routing
        What the equal-cost paths come from.
    """

    def __init__(self, state: PacketState, routing: Any) -> None:
        self._state = state
        self._routing = routing
        self._after: dict[tuple[int, int], set[int]] = {}  # (destination, link): links after it
        self._known: set[tuple[int, int]] = set()
        self._rows: dict[tuple[int, int], int] = {}  # (destination, link): row behind it

    def first_hop(self, src: int, dst: int) -> tuple[int, list[int]]:
        """Return the row at which packets from ``src`` to ``dst`` begin, and the first links."""
        paths = self._routing.equal_cost_paths(src, dst)
        head = min(path[0] for path in paths)  # a device with several cables sends on the first
        paths = [path for path in paths if path[0] == head]
        for path in paths:
            for link, after in zip(path, [*path[1:], NONE], strict=True):
                self._after.setdefault((dst, link), set()).add(after)
        return self._row_of(dst, head), list(paths[0])

    def _row_of(self, dst: int, link: int) -> int:
        """Return the row of one link on the way to a destination."""
        known = self._rows.get((dst, link))
        if known is not None:
            return known
        behind = self._behind(dst, link)
        row = self._state.add_rows([(link, behind)])
        self._rows[dst, link] = row
        return row

    def _behind(self, dst: int, link: int) -> int:
        """Return the row that follows a link: a hop, a choice, or the end."""
        after: Sequence[int] = sorted(self._after[dst, link])
        if after == [NONE]:
            return self._state.add_rows([(NONE, 0)])
        if len(after) == 1:
            return self._row_of(dst, after[0])
        ways = [(way, self._behind(dst, way)) for way in after]
        return self._state.add_rows([(NONE - len(ways), 0), *ways])
