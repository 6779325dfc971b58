# SPDX-License-Identifier: Apache-2.0
"""Faults: links and nodes that go down, slow down and come back, before a run and during it.

A link is up while nothing holds it down: no fault of its own, and none of the device at either end.
Faults of one thing may overlap; each holds it down until it ends by itself (`Fault.for_ps`) or an
``up`` of the same thing ends them all. Of several rates that faults leave a link, the one that
began last is in force.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.errors import InputError, nearest_name
from railweave.fabric.fault_names import devices_of, links_of
from railweave.fabric.kinds import DeviceKind, LinkModel
from railweave.fabric.units import format_rate, format_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric

__all__ = [
    "DETECTION_DELAY_PS",
    "Fault",
    "FaultMark",
    "FaultPlan",
    "LinkChange",
    "Storm",
    "apply_faults",
    "links_of",
    "plan_faults",
]

DETECTION_DELAY_PS: Final = 10 * 10**9
"""From a link's going down or coming up until routes follow: 10 ms, an assumption of the order of
BFD with three intervals of 3.3 ms (detection time = multiplier x interval: RFC 5880, 6.8.4)."""

_DEEDS: Final = ("down", "up", "degrade", "pause-storm")
_BUILT: Final = -1  # what holds down a link that was down in the fabric already


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that goes wrong, or comes right again.

    Parameters
    ----------
    at_ps
        When; at 0 it is there before the run begins, and routes are made without it.
    link, node
        One of them: a cable ``leaf0.r0:33-spine1:0`` or one direction ``leaf0.r0:33>spine1:0``;
        a host, or a device (all its links).
    do
        ``down``, ``up`` again, ``degrade`` to ``rate_bps`` in bit/s, or ``pause-storm``: hosts send
        pause frames without cause.
    for_ps
        How long it lasts, but for ``up``; None: until something else ends it.
    priority
        802.1p priority that a storm pauses; None: the network's.
    """

    at_ps: int = 0
    link: str | None = None
    node: str | None = None
    do: str = "down"
    rate_bps: int | None = None
    for_ps: int | None = None
    priority: int | None = None

    @property
    def what(self) -> str:
        """Name of the thing."""
        return self.link if self.link is not None else self.node or ""


@dataclass(frozen=True, kw_only=True)
class LinkChange:
    """One link as it is from ``at_ps`` on: whether it is up, and its rate in bit/s."""

    at_ps: int
    link: int
    up: bool
    rate_bps: int


@dataclass(frozen=True, kw_only=True)
class Storm:
    """Pause frames without cause against the sender of ``link``, until ``until_ps`` (-1: for good).

    ``priority`` None: the network's own.
    """

    at_ps: int
    until_ps: int
    link: int
    priority: int | None


@dataclass(frozen=True, kw_only=True)
class FaultMark:
    """What a reader is told of an instant: ``leaf0:2-spine0:0`` ``down``."""

    at_ps: int
    what: str
    did: str
    links: int


@dataclass(frozen=True, eq=False, kw_only=True)
class FaultPlan:
    """What faults make of a fabric over time.

    Parameters
    ----------
    fabric
        As it is when the run begins; its rates are the most that each link has at any time.
    changes
        In the order of their times; those at 0 set rates that are lower then than later.
    marks
        The faults and their ends, in the order of their times.
    changing
        bool (links,): links that occur in ``changes``.
    storms
        Pause storms, in the order of the faults.
    """

    fabric: Fabric
    changes: tuple[LinkChange, ...]
    marks: tuple[FaultMark, ...]
    changing: NDArray[np.bool_]
    storms: tuple[Storm, ...] = ()


def apply_faults(fabric: Fabric, faults: Iterable[Fault]) -> Fabric:
    """Return the fabric with faults in force that precede a run; routes are made on what is left.

    Raises
    ------
    InputError
        As `plan_faults` says; or a fault that begins later than 0 or ends.
    """
    faults = tuple(faults)
    for position, fault in enumerate(faults):
        if fault.at_ps or fault.for_ps is not None:
            key, time = ("at", fault.at_ps) if fault.at_ps else ("for", fault.for_ps or 0)
            raise InputError(
                f"no fault of a fabric at rest begins or ends at a time ({format_time(time)})",
                field=f"faults.{position}.{key}",
                expected="faults that precede a run",
            )
    return plan_faults(fabric, faults).fabric


def plan_faults(fabric: Fabric, faults: Iterable[Fault]) -> FaultPlan:
    """Work out which links change when.

    Raises
    ------
    InputError
        An unknown link or node, a time that cannot be, an ``up`` of what is not down, or a rate
        that is no loss; ``field`` is ``faults.N.KEY``.
    """
    faults = tuple(faults)
    board = _Board(fabric)
    steps: list[tuple[int, bool, int]] = []  # at one time, ends come before beginnings
    for position, fault in enumerate(faults):
        with _InFault(position, fault):
            _check(fault)
            board.find(position, fault)
        steps.append((fault.at_ps, True, position))
        if fault.for_ps is not None:
            steps.append((fault.at_ps + fault.for_ps, False, position))
    steps.sort()
    marks: list[FaultMark] = []
    begun = False
    for at_ps, begins, position in steps:
        if at_ps > 0 and not begun:
            board.begin()
            begun = True
        board.move_to(at_ps)
        fault = faults[position]
        with _InFault(position, fault):
            did = board.apply(position, fault) if begins else board.end(position, fault)
        if did:
            links = len(board.links[position])
            marks.append(FaultMark(at_ps=at_ps, what=fault.what, did=did, links=links))
    if not begun:
        board.begin()
    board.move_to(-1)
    return replace(board.plan(marks), storms=tuple(_storms(fabric, faults, board.links)))


def _storms(
    fabric: Fabric, faults: Sequence[Fault], links: dict[int, list[int]]
) -> Iterator[Storm]:
    """Find the links whose senders hosts pause without cause."""
    for position, fault in enumerate(faults):
        if fault.do != "pause-storm":
            continue
        until = -1 if fault.for_ps is None else fault.at_ps + fault.for_ps
        hosts = fabric.kind[fabric.link_src] != DeviceKind.SWITCH
        found = [
            link ^ 1
            for link in links[position]
            if hosts[link] and fabric.link_model[link] == LinkModel.ROCE_LOSSLESS
        ]
        with _InFault(position, fault):
            if not found:
                raise InputError(
                    f"'{fault.what}' sends no pauses from a host",
                    expected="a host, a NIC, or a lossless cable of one",
                )
        for link in sorted(set(found)):
            yield Storm(
                at_ps=fault.at_ps, until_ps=until, link=link, priority=fault.priority
            )  # fmt: skip


class _InFault:
    """Say of an input error inside in which fault it is."""

    def __init__(self, position: int, fault: Fault) -> None:
        self.position = position
        self.named = "link" if fault.link is not None else "node"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InputError):
            raise InputError(
                error.message,
                field=f"faults.{self.position}.{error.field or self.named}",
                expected=error.expected,
                nearest=error.nearest,
            ) from None


def _check(fault: Fault) -> None:
    """Refuse a fault that makes no sense on any fabric."""
    if (fault.link is None) == (fault.node is None):
        raise InputError("a fault names one thing", field="link", expected="either link or node")
    if fault.at_ps < 0:
        raise InputError("a fault cannot precede time 0", field="at", expected="0s or more")
    if fault.do not in _DEEDS:
        raise InputError(
            f"there is no fault '{fault.do}'",
            field="do",
            expected=" | ".join(_DEEDS),
            nearest=nearest_name(fault.do, _DEEDS),
        )
    if fault.priority is not None and fault.do != "pause-storm":
        raise InputError(
            "only a pause storm has a priority", field="priority", expected="no 'priority'"
        )
    if fault.for_ps is not None and fault.do == "up":
        raise InputError(
            "'up' has no end", field="for", expected="no 'for', or a later fault 'down'"
        )
    if fault.for_ps is not None and fault.for_ps <= 0:
        raise InputError("a fault must last", field="for", expected="more than 0s")
    if fault.do != "degrade" and fault.rate_bps is not None:
        raise InputError(f"'{fault.do}' takes no rate", field="rate", expected="no rate")
    if fault.do == "degrade" and (fault.rate_bps is None or fault.rate_bps <= 0):
        raise InputError("a degraded link needs a rate", field="rate", expected="more than 0bps")


class _Board:
    """Which faults hold which links and devices, as time goes by."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.links: dict[int, list[int]] = {}  # of each fault
        self._devices: dict[int, list[int]] = {}
        self._held: dict[int, set[int]] = defaultdict(set)  # link -> faults that hold it down
        for link in np.flatnonzero(~fabric.link_up).tolist():
            self._held[link].add(_BUILT)
        self._dead: dict[int, set[int]] = defaultdict(set)  # device -> likewise
        self._slowed: dict[int, dict[int, int]] = defaultdict(dict)  # link -> fault -> rate
        self._touched: set[int] = set()
        self._shown: dict[int, tuple[bool, int]] = {}
        self._at_ps = 0
        self._first: dict[int, tuple[bool, int]] = {}  # links that faults at 0 touched
        self._changes: list[LinkChange] = []

    def find(self, position: int, fault: Fault) -> None:
        """Look up what a fault names."""
        self.links[position] = links_of(self.fabric, link=fault.link, node=fault.node)
        named = devices_of(self.fabric, fault.node) if fault.node is not None else ()
        self._devices[position] = [int(device) for device in named]
        if fault.do == "degrade":
            built = self.fabric.link_rate_bps[self.links[position]]
            most = int(built.min()) if len(built) else 0
            if fault.rate_bps is not None and fault.rate_bps > most:
                raise InputError(
                    f"{format_rate(fault.rate_bps)} is no loss",
                    field="rate",
                    expected=f"at most {format_rate(most)}",
                )

    def _state(self, link: int) -> tuple[bool, int]:
        fabric = self.fabric
        ends = (int(fabric.link_src[link]), int(fabric.link_dst[link]))
        up = not self._held.get(link) and not any(self._dead.get(end) for end in ends)
        slowed = self._slowed.get(link)
        rate = next(reversed(slowed.values())) if slowed else int(fabric.link_rate_bps[link])
        return up, rate

    def begin(self) -> None:
        """Take what was applied so far for what there is before the run."""
        self._first = {link: self._state(link) for link in sorted(self._touched)}
        self._shown = dict(self._first)
        self._touched.clear()

    def move_to(self, at_ps: int) -> None:
        """Write down what changed, if ``at_ps`` is not the time of the last fault."""
        if at_ps == self._at_ps:
            return
        for link in sorted(self._touched):
            up, rate = now = self._state(link)
            was = self._shown.get(link)
            if was is None:
                was = bool(self.fabric.link_up[link]), int(self.fabric.link_rate_bps[link])
            if now != was:
                self._changes.append(LinkChange(at_ps=self._at_ps, link=link, up=up, rate_bps=rate))
                self._shown[link] = now
        self._touched.clear()
        self._at_ps = at_ps

    def apply(self, position: int, fault: Fault) -> str:
        """Let a fault begin; return what it does in a word or two."""
        links, devices = self.links[position], self._devices[position]
        if fault.do == "pause-storm":
            return "storms with pauses"
        self._touched.update(links)
        if fault.do == "degrade":
            assert fault.rate_bps is not None
            for link in links:
                self._slowed[link].pop(position, None)
                self._slowed[link][position] = fault.rate_bps
            return f"degraded to {format_rate(fault.rate_bps)}"
        if fault.do == "down":
            for device in devices:
                self._dead[device].add(position)
            for link in () if devices else links:
                self._held[link].add(position)
            return "down"
        found = False
        for device in devices:
            found |= bool(self._dead.pop(device, None))
        for link in links:
            if not devices:
                found |= bool(self._held.pop(link, None))
            elif _BUILT in self._held.get(link, ()):
                self._held[link].discard(_BUILT)
                found = True
        if not found:
            self._refuse_up(fault, links)
        return "up again"

    def _refuse_up(self, fault: Fault, links: Sequence[int]) -> None:
        dead = {
            self.fabric.device_names[end]
            for link in links
            for end in (int(self.fabric.link_src[link]), int(self.fabric.link_dst[link]))
            if fault.node is None and self._dead.get(end)
        }
        if dead:
            name = min(dead)
            raise InputError(
                f"'{fault.what}' is not down by itself at {format_time(fault.at_ps)}, but "
                f"'{name}' is",
                expected=f"node: {name}, or the host it is in",
            )
        raise InputError(
            f"'{fault.what}' is not down at {format_time(fault.at_ps)}",
            expected="something that an earlier fault took down",
        )

    def end(self, position: int, fault: Fault) -> str:
        """Let a fault end; return what that does, or nothing if something ended it before."""
        if fault.do == "pause-storm":
            return "storms no longer"
        found = False
        for device in self._devices[position]:
            if position in self._dead.get(device, ()):
                self._dead[device].discard(position)
                found = True
        for link in self.links[position]:
            if position in self._held.get(link, ()):
                self._held[link].discard(position)
                found = True
            found |= self._slowed.get(link, {}).pop(position, None) is not None
        self._touched.update(self.links[position])
        if not found:
            return ""
        return "up again" if fault.do == "down" else "no longer degraded"

    def plan(self, marks: Sequence[FaultMark]) -> FaultPlan:
        """Return the whole."""
        up: NDArray[np.bool_] = self.fabric.link_up.copy()
        rate: NDArray[np.int64] = self.fabric.link_rate_bps.copy()
        changing: NDArray[np.bool_] = np.zeros(len(up), np.bool_)
        for link, (first_up, first_rate) in self._first.items():
            up[link], rate[link] = first_up, first_rate
        for change in self._changes:
            changing[change.link] = True
            rate[change.link] = max(int(rate[change.link]), change.rate_bps)
        slow = [
            LinkChange(at_ps=0, link=link, up=first_up, rate_bps=first_rate)
            for link, (first_up, first_rate) in self._first.items()
            if first_rate < rate[link]
        ]
        return FaultPlan(
            fabric=self.fabric.with_links(up=up, rate_bps=rate),
            changes=(*slow, *self._changes),
            marks=tuple(marks),
            changing=changing,
        )
