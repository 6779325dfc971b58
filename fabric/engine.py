# SPDX-License-Identifier: Apache-2.0
"""The engine seam: how workloads hand flows and schedules to whatever computes their times.

`FabricEnvironment` is a SimPy environment whose clock counts integer picoseconds. Before its time
advances it gives the engine all that was started at this instant, then lets it run to its first
completion or to the next SimPy event, whichever comes first. Engine events never become SimPy
events: a collective of two million transfers is one event here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import simpy
from simpy.core import EmptySchedule

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from numpy.typing import NDArray

    from railweave.fabric.flow import Flow, FlowRecord
    from railweave.fabric.graph import Fabric
    from railweave.fabric.iterations import Iterations
    from railweave.fabric.schedule import Schedule

MOST_TOLERANCE = 0.2
"""Largest relative error that an engine may be allowed."""

SERIES = ("queue_bytes", "sent_bytes", "paused_ps", "ecn_marked", "dropped")
"""Columns of ``ports.csv`` after time and port: the queue, and what was counted up to then."""

__all__ = [
    "MOST_TOLERANCE",
    "SERIES",
    "Capabilities",
    "CollectiveRecord",
    "Engine",
    "FabricEnvironment",
    "LinkCounters",
]


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What an engine can show."""

    contention: bool  # flows slow each other down
    packets: bool  # queues, pauses, marks and losses are visible
    set_link: bool  # link rates and states may change during a run


@dataclass(frozen=True, kw_only=True)
class LinkCounters:
    """What each link carried so far: int64 arrays of shape (links,).

    ``wire_bytes`` are data with their headers (payload on NVLink and PCIe), ``ack_bytes`` the
    acknowledgements of data that crossed the other direction of the same cable.
    """

    wire_bytes: NDArray[np.int64]
    ack_bytes: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class CollectiveRecord:
    """One executed schedule: times in ps, payload bytes of all its transfers."""

    tag: str
    ranks: int
    transfers: int
    size_bytes: int
    start_ps: int
    end_ps: int
    bound_ps: int
    repeat: int = 1


class FabricEnvironment(simpy.Environment):
    """A SimPy environment in integer picoseconds that drives one engine.

    Examples
    --------
    >>> env = FabricEnvironment()
    >>> env.now
    0
    """

    def __init__(self) -> None:
        super().__init__(initial_time=0)
        self._engine: Engine | None = None

    def attach(self, engine: Engine) -> None:
        """Let ``engine`` advance with this environment's clock."""
        self._engine = engine

    def step(self) -> None:
        """Process the next event, of SimPy's queue or of the engine's."""
        engine = self._engine
        if engine is not None and engine.busy:
            ahead = self.peek()
            if ahead != self._now:
                limit = None if ahead == float("inf") else int(ahead)
                reached = engine.advance(limit)
                if reached is not None:
                    self._now = reached
                    engine.deliver()
                    return
                if limit is None:
                    raise EmptySchedule
        super().step()


class Engine(ABC):
    """Turns flows and schedules into completion times and counters.

    Every engine is bound to one fabric and one environment. Methods that start work return a
    SimPy event that fires at completion and fails with a typed error when it cannot complete.
    """

    name: str
    capabilities: Capabilities
    tolerance: float = 0.0
    """Relative error that its times may have."""
    burst_bytes: int = 0
    """What a link may carry beyond its rate x time: the bucket of a real shaper, else nothing."""
    rounded_bytes: int = 0
    """By how much the bytes of a link may be off, where messages changed paths on their way."""

    @property
    def repeated_bytes(self) -> int:
        """Wire bytes that were sent again after a loss: no link carried more of them."""
        return 0

    def unreserved_bytes(
        self, wire_bytes: NDArray[np.int64], ack_bytes: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the bytes of each link, int64 (links,), that rates left no room for: none."""
        return np.zeros(len(wire_bytes), np.int64)

    def __init__(self, env: FabricEnvironment, fabric: Fabric) -> None:
        self.env = env
        self.fabric = fabric
        env.attach(self)

    @abstractmethod
    def send(self, flow: Flow) -> simpy.Event:
        """Start a flow now; the event's value is its `FlowRecord`."""

    def send_all(self, flows: Sequence[Flow], *, start_ps: Sequence[int]) -> simpy.Event:
        """Send each flow at its time, now or later; the event fires when all have ended.

        What becomes of them is what `send` would make of each; only speed depends on this.
        """
        env = self.env

        def one(flow: Flow, at_ps: int) -> Generator[simpy.Event, Any, None]:
            if at_ps > env.now:
                yield env.timeout(at_ps - env.now)
            yield self.send(flow)

        pairs = zip(flows, start_ps, strict=True)
        return env.all_of([env.process(one(flow, int(at_ps))) for flow, at_ps in pairs])

    @abstractmethod
    def prepare(self, flows: Iterable[Flow]) -> None:
        """Make ready for flows that will be sent later; only speed depends on it."""

    def set_up(self) -> None:  # noqa: B027 - most have nothing to do
        """Get ready to run, when all that is to run was announced.

        Raises
        ------
        InputError
            Settings contradict each other or the fabric; its field names one of them.
        """

    def expect(self, flow: Flow, after: Sequence[str]) -> None:  # noqa: B027 - a hint
        """Note that a prepared flow will be sent as soon as others, by id, have ended.

        Only speed depends on it: whoever says so sends the flow nevertheless.
        """

    @abstractmethod
    def execute(
        self, schedule: Schedule, ranks: Sequence[int], *, tag: str = "", repeat: int = 1
    ) -> simpy.Event:
        """Start a schedule now on ``ranks`` (device index of each rank).

        ``repeat`` runs it that many times, each after the end of the one before. The event's
        value is a `CollectiveRecord`.
        """

    def iterate(
        self,
        parts: Sequence[tuple[Schedule, int]],
        ranks: Sequence[int],
        pauses_ps: Sequence[int],
        *,
        tag: str = "",
    ) -> Iterations:
        """Start iterations: in each all ``parts`` one after another, then a pause.

        At least one iteration is done, and at most one for each of ``pauses_ps``: as many as an
        engine can without looking again, whose times are those of one after another.

        Parameters
        ----------
        parts
            Schedules, and how often each runs in a row; all over the same ranks.
        ranks
            Device index of each rank.
        pauses_ps
            Pause after each iteration in ps, at least one.
        tag
            A word for accounting.
        """
        from railweave.fabric.iterations import Iterations, single

        if not parts:
            return Iterations(self.env, 0, pauses_ps)
        return single(self, parts, ranks, pauses_ps[0], tag=tag)

    @abstractmethod
    def bound_ps(self, schedule: Schedule, ranks: Sequence[int]) -> int:
        """Return the least that one run of a schedule can take on an empty fabric, in ps.

        It holds also if the transfers of a schedule without dependencies are sent one by one.
        """

    @abstractmethod
    def cancel(self, flow: Flow) -> None:
        """Stop a flow; its event fails with `RailweaveError`."""

    @abstractmethod
    def set_link(self, link: int, *, up: bool | None = None, rate_bps: int | None = None) -> None:
        """Change one direction of a cable from now on."""

    @abstractmethod
    def counters(self) -> LinkCounters:
        """Return what each link has carried up to now."""

    def class_counters(self) -> dict[str, LinkCounters]:
        """Return what each link has carried up to now of each class of traffic, by name."""
        return {}

    @abstractmethod
    def records(self) -> Sequence[FlowRecord]:
        """Return a record for each flow given to `send`, in order of start."""

    @abstractmethod
    def collectives(self) -> Sequence[CollectiveRecord]:
        """Return a record for each schedule that ended, in order of their ends."""

    def cautions(self) -> list[str]:
        """Say, a sentence each, what this engine could not show of what was run."""
        return []

    @abstractmethod
    def waiting(self) -> list[str]:
        """Say, a line each, what has started and cannot end (stalled flows and ranks)."""

    def network(self) -> dict[str, Any]:
        """Return what the network did beside carrying bytes, for ``result.json``."""
        return {}

    def link_columns(self) -> dict[str, list[int]]:
        """Return further columns of ``links.csv``: a value for each link."""
        return {}

    def port_series(self) -> list[list[Any]]:
        """Return rows of ``ports.csv``: time, port, and `SERIES`."""
        return []

    def flow_columns(self) -> dict[str, list[Any]]:
        """Return further columns of ``flows.csv``: a value for each record."""
        return {}

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether anything has started that has not ended."""

    @abstractmethod
    def advance(self, limit_ps: int | None) -> int | None:
        """Run to the first completions at or before ``limit_ps`` and return their time, else None.

        It may also stop before, with nothing to deliver, so that others get a turn. None with
        ``limit_ps`` None means that nothing will ever complete.
        """

    @abstractmethod
    def deliver(self) -> None:
        """Succeed the events of the completions that `advance` reached."""

    def _event(self) -> simpy.Event:
        return self.env.event()

    def check_bound(self, what: str, *, took_ps: int, bound_ps: int) -> None:
        """Raise `PhysicsError` if a result beat its lower bound (beyond float rounding)."""
        from railweave.fabric.errors import PhysicsError

        if took_ps < bound_ps - 2 - bound_ps * max(self.tolerance, 1e-9):
            raise PhysicsError(f"{what} took {took_ps} ps, below its bound of {bound_ps} ps")
