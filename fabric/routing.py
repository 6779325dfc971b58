# SPDX-License-Identifier: Apache-2.0
"""Routing: which links a flow takes from one GPU or NIC to another.

Between switches with tiers a path climbs and then descends (up/down or "valley-free" routing,
which cannot deadlock); it may cross between two switches of one tier once, at the top. Where any
switch has no tier, plain shortest paths are taken. All shortest such paths are equal-cost, and a
policy says which of them a flow takes:

``ecmp``
    Each switch hashes the flow (`railweave.fabric.hashing`) under a seed of its own.
``ecmp-polarised``
    As above with one seed everywhere: successive choices repeat each other.
``rail``
    Static, by destination: the path climbs by the digits of the destination's place in the tree
    (d-mod-k: Zahavi, "D-Mod-K routing providing non-blocking traffic for shift permutations on
    real life fat trees", CCIT report 776, 2010; OpenSM's ``ftree`` engine).
``spray``
    Every equal-cost path, each device splitting evenly over its next hops.

Next hops are sorted by (dense device index, port); parallel cables are next hops of their own. A
NIC with several cables chooses among them as a switch would, with an identity after those of the
switches (number of switches + its dense number).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric import _walk
from railweave.fabric._inside import Inside, Journeys, pair_name
from railweave.fabric._tables import draw_tables
from railweave.fabric._to_switch import at_switches, with_switches
from railweave.fabric.errors import InputError, UnreachableError, nearest_name
from railweave.fabric.graph import DeviceKind
from railweave.fabric.hashing import hash_states, source_ports
from railweave.fabric.jit import call_for_work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    from railweave.fabric.graph import Fabric

__all__ = ["POLICIES", "PathSet", "Routing"]

POLICIES = ("ecmp", "ecmp-polarised", "rail", "spray")

_Int = np.int32


@dataclass(frozen=True, eq=False)
class PathSet:
    """The links of ``n`` flows.

    Parameters
    ----------
    ptr
        int32 (n + 1,): flow i takes ``links[ptr[i]:ptr[i + 1]]``.
    links
        int32: link indices, in the order of the path (sprayed flows: level by level).
    share
        float64: fraction of the flow's bytes on the link; below 1 only where it is sprayed.
    """

    ptr: NDArray[np.int32]
    links: NDArray[np.int32]
    share: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def path(self, flow: int) -> tuple[int, ...]:
        """Return the links of one flow."""
        return tuple(self.links[self.ptr[flow] : self.ptr[flow + 1]].tolist())


def _flows(
    src: ArrayLike, dst: ArrayLike, qp: ArrayLike | int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint64]]:
    """Return ends and queue pairs of flows as arrays of one length."""
    one, other, pair = np.broadcast_arrays(
        np.asarray(src, _Int), np.asarray(dst, _Int), np.asarray(qp).astype(np.uint64)
    )
    one, other = np.ascontiguousarray(one).reshape(-1), np.ascontiguousarray(other).reshape(-1)
    return one, other, np.ascontiguousarray(pair).reshape(-1)


class Routing:
    """Routes flows over a fabric as it stands (links that are down are not used).

    Parameters
    ----------
    fabric
        The fabric; links taken down later need a new ``Routing``.
    policy
        One of `POLICIES`.
    seed
        Global seed of the switches' hashes.

    Raises
    ------
    InputError
        Unknown policy.
    """

    def __init__(self, fabric: Fabric, *, policy: str = "ecmp", seed: int = 1) -> None:
        if policy not in POLICIES:
            raise InputError(
                f"'{policy}' is not a routing policy",
                expected=" | ".join(POLICIES),
                nearest=nearest_name(policy, POLICIES),
            )
        self.fabric = fabric
        self.policy = policy
        self.seed = seed
        self._tables = draw_tables(fabric)
        self._inside = Inside(fabric, self._tables)
        self._row_of_set = np.full(len(self._tables.access_sets) + 1, -1, _Int)  # [-1]: none
        self._near = np.empty((0, 2, len(fabric.switches)), np.int16)

    # -- between switches ---------------------------------------------------------------------

    def _ensure_rows(self, sets: NDArray[np.int32]) -> None:
        """Compute the distances to those access sets that nobody asked for yet."""
        wanted = np.unique(sets[sets >= 0])
        missing = wanted[self._row_of_set[wanted] < 0]
        if not len(missing):
            return
        tables = self._tables
        members = [tables.access_sets[number] for number in missing]
        target_ptr = np.zeros(len(members) + 1, _Int)
        np.cumsum([len(homes) for homes in members], out=target_ptr[1:])
        targets = np.array([switch for homes in members for switch in homes], _Int)
        twins = tables.twins
        merged = bool(twins.alone[targets].all())  # else a target's twins are not as near as it
        into = twins.into if merged else tables.into
        rows = np.full((len(missing), 2, len(into[0]) - 1), -1, np.int16)
        queue = np.empty(2 * len(tables.tier), _Int)
        work = 4 * rows.size + 2 * len(rows) * into[1].shape[1]
        call_for_work(
            work,
            _walk.distances,
            target_ptr,
            twins.one[targets] if merged else targets,
            *into,
            queue,
            rows,
        )
        if merged:
            rows = np.take(rows, twins.one, axis=2)
        self._row_of_set[missing] = np.arange(len(missing), dtype=_Int) + len(self._near)
        self._near = np.concatenate((self._near, rows))

    def _rows(self, nics: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return per NIC the row of distances to it (-1: no switch leads there, or not asked)."""
        access = self._tables.access
        self._ensure_rows(access[nics])
        return self._row_of_set[access]

    @cached_property
    def _hash_states(self) -> NDArray[np.uint64]:
        count = len(self.fabric.switches) + len(self.fabric.nics)
        return hash_states(self.seed, count, polarised=self.policy == "ecmp-polarised")

    def next_hops(self, switch: int, destination: int) -> list[int]:
        """Return the equal-cost next links of a switch towards another switch.

        Parameters
        ----------
        switch, destination
            Device indices of two switches.

        Returns
        -------
        list of int
            Link indices by (peer's device index, port); empty at the destination and where there
            is no way.

        Notes
        -----
        For a flow that has not begun to descend; one that has cannot climb again.
        """
        dense = self._tables.dense
        for device in (switch, destination):
            if self.fabric.kind[device] != DeviceKind.SWITCH:
                raise InputError(f"'{self.fabric.device_names[device]}' is not a switch")
        goal = int(dense[destination])
        self._ensure_rows(np.array([goal], _Int))
        row = int(self._row_of_set[goal])
        left = int(self._near[row, 0, dense[switch]])
        if left <= 0:
            return []
        return [link for link, _ in self._onward(2 * int(dense[switch]), left + 1, -1, row)]

    def _onward(self, state: int, left: int, goal: int, row: int) -> list[tuple[int, int]]:
        """Return ``(link, state)`` of the next hops: the reference of ``_walk.onward``."""
        ptr, (links, to, directions) = self._tables.ways
        switches = len(self._tables.tier)
        place, phase = state >> 1, state & 1
        found = []
        for k in range(ptr[place], ptr[place + 1]):
            if left == 1:
                if to[k] == goal:
                    found.append((int(links[k]), _walk.HERE))
            elif to[k] < switches:
                after = 0 if directions[k] > 0 else 1
                nearer = self._near[row, after, to[k]] == left - 2
                if nearer and (phase == 0 or directions[k] < 0):
                    found.append((int(links[k]), 2 * int(to[k]) + after))
        return found

    # -- whole flows --------------------------------------------------------------------------

    def routes(
        self, src: ArrayLike, dst: ArrayLike, qp: ArrayLike | int = 0, *, of: int | None = None
    ) -> PathSet:
        """Return the path of each flow.

        Parameters
        ----------
        src, dst
            (n,): device indices of GPUs or NICs.
        qp
            (n,) or one for all: number of the queue pair, from 0; it moves the RoCE source port.
        of
            Of how many flows these are a part, where others like them follow.

        Raises
        ------
        UnreachableError
            No path is left between a pair; it is named.
        TooLargeError
            So many flows, sprayed over so many links, do not fit into the memory.
        InputError
            An endpoint can neither send nor receive, or a NIC is to reach a GPU of its own host.
        """
        src, dst, pair = _flows(src, dst, qp)
        odd = at_switches(self.fabric, src, dst)
        if odd.any():

            def others(
                src: NDArray[np.int32], dst: NDArray[np.int32], qp: NDArray[np.uint64]
            ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]:
                paths = self.routes(src, dst, qp)
                return paths.ptr, paths.links, paths.share

            flows = (src, dst, pair)
            return PathSet(*with_switches(self.fabric, self._inside, flows, odd, others))
        trip = self._inside.journeys(src, dst, pair)
        tables = self._tables
        row_of_nic = self._rows(trip.target[trip.target >= 0])
        between = self._lengths(trip, row_of_nic)
        if (between < 0).any():
            i = int(np.argmax(between < 0))
            raise self._unreachable(int(src[i]), int(dst[i]))
        if self.policy == "spray":
            return self._sprayed(trip, between, row_of_nic, len(src) if of is None else of)
        stretch = np.append(np.diff(trip.stretch_ptr), 0)  # [-1]: no stretch
        total = between + stretch[trip.first] + stretch[trip.last]
        ptr = np.concatenate(([0], np.cumsum(total)))
        if ptr[-1] >= 2**31:
            raise InputError(f"{len(src)} flows cross {ptr[-1]} links", expected="below 2**31")
        links = np.empty(ptr[-1], _Int)
        connection = trip.source.astype(np.uint64) << np.uint64(32) | trip.target.astype(np.uint64)
        ahead = np.empty((2, tables.widest), _Int)
        digits = np.empty(max(int(tables.tier.max(initial=0)), 0) + 2, np.int64)
        by = _walk.BY_DESTINATION if self.policy == "rail" else _walk.BY_HASH
        with np.errstate(over="ignore"):  # hashes wrap; only uncompiled runs would say so
            call_for_work(
                len(links) * tables.widest, _walk.walk,
                by, trip.source, trip.target, trip.first, trip.last, between,
                source_ports(pair, connection), row_of_nic, self._near, *tables.ways,
                self._hash_states, tables.position, tables.tier,
                trip.stretch_ptr, trip.stretch_links, ahead, digits, ptr, links,
            )  # fmt: skip
        return PathSet(ptr.astype(_Int), links, np.broadcast_to(np.float64(1.0), len(links)))

    def reachable(
        self, src: ArrayLike, dst: ArrayLike, qp: ArrayLike | int = 0
    ) -> NDArray[np.bool_]:
        """Return which of the flows that `routes` takes have a path left, bool (n,)."""
        trip = self._inside.possible(*_flows(src, dst, qp))
        between = self._lengths(trip, self._rows(trip.target[trip.target >= 0]))
        return np.asarray(~trip.stuck & (between >= 0))

    def _lengths(self, trip: Journeys, row_of_nic: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the links between the NICs of each flow: 0 without NICs, -1 without a route."""
        tables = self._tables
        crosses = np.flatnonzero(trip.source >= 0)
        source, target = trip.source[crosses], trip.target[crosses]
        row = row_of_nic[target]
        ptr, (_, home) = tables.up
        start, ways = ptr[source], ptr[source + 1] - ptr[source]
        nearest = np.full(len(crosses), -1, np.int64)
        for k in range(int(ways.max(initial=0))):
            some = np.flatnonzero((row >= 0) & (k < ways))
            hops = self._near[row[some], 0, home[start[some] + k]]
            closer = (hops >= 0) & ((nearest[some] < 0) | (hops < nearest[some]))
            nearest[some[closer]] = hops[closer]
        length = np.where(nearest >= 0, nearest + 2, -1)
        pair_ptr, (_, peer) = tables.pair
        if len(peer):
            nics = len(self.fabric.nics)
            owner = np.repeat(np.arange(nics), np.diff(pair_ptr))
            length[np.isin(source * np.int64(nics) + target, owner * nics + peer)] = 1
        out = np.zeros(len(trip.source), np.int64)
        out[crosses] = length
        return out

    def _sprayed(
        self, trip: Journeys, between: NDArray[np.int64], row_of_nic: NDArray[np.int32], of: int
    ) -> PathSet:
        from railweave.fabric._spray import sprayed

        return PathSet(
            *sprayed(trip, between, row_of_nic, self._near, self._tables, self.fabric.n_links, of)
        )

    def equal_cost_paths(self, src: int, dst: int) -> list[tuple[int, ...]]:
        """Return every path that the two devices (GPUs or NICs) may use, as link indices.

        Paths are in the order of their next hops; the policy plays no part.
        """
        trip = self._inside.journeys(
            np.array([src], _Int), np.array([dst], _Int), np.zeros(1, np.uint64)
        )

        head, tail = trip.stretch(int(trip.first[0])), trip.stretch(int(trip.last[0]))
        if trip.source[0] < 0:
            return [head]
        nic, goal = int(trip.source[0]), int(trip.target[0])
        row_of_nic = self._rows(trip.target)
        row, end = int(row_of_nic[goal]), len(self._tables.tier) + goal
        length = int(self._lengths(trip, row_of_nic)[0])

        def finish(state: int, left: int) -> Iterator[tuple[int, ...]]:
            for link, after in self._onward(state, left, end, row):
                if after == _walk.HERE:
                    yield (link,)
                    continue
                for rest in finish(after, left - 1):
                    yield (link, *rest)

        start = 2 * (len(self._tables.tier) + nic)
        found = [(*head, *middle, *tail) for middle in finish(start, length)]
        if not found:
            raise self._unreachable(src, dst)
        return found

    def _unreachable(self, src: int, dst: int) -> UnreachableError:
        """Say that no route is left, and whether one exists that descends and climbs again."""
        fabric, tables = self.fabric, self._tables
        reason = "no cables in service join them"
        if len(tables.tier) and tables.tier[0] >= 0:
            usable = fabric.link_network & fabric.link_up
            links = np.flatnonzero(usable)
            links = links[np.lexsort((links, fabric.link_src[links]))].astype(_Int)
            ptr = np.zeros(fabric.n_devices + 1, _Int)
            np.cumsum(np.bincount(fabric.link_src[links], minlength=fabric.n_devices), out=ptr[1:])
            ends = [
                int(fabric.gpu_nic[end]) if fabric.kind[end] == DeviceKind.GPU else end
                for end in (src, dst)
            ]
            length, path = np.empty(1, _Int), np.empty((1, 1), _Int)
            call_for_work(
                fabric.n_links, _walk.inside,
                np.array(ends[:1], _Int), np.array(ends[1:], _Int), ptr, links, fabric.link_dst,
                fabric.kind == DeviceKind.SWITCH,
                np.zeros((_walk.ROOM, fabric.n_devices), _Int), length, path,
            )  # fmt: skip
            if length[0] >= 0:
                reason = "every path left descends and climbs again, which could deadlock"
        return UnreachableError(f"no route {pair_name(fabric, src, dst)}: {reason}")
