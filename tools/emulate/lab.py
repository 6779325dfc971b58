# SPDX-License-Identifier: Apache-2.0
"""A built network: its sandbox, its plan, its circuits and what they are measured by."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from railweave.fabric.errors import RailweaveError
from railweave.fabric.units import PS_PER_S
from railweave.tools.emulate.batches import setup_request
from railweave.tools.emulate.circuits import Circuits
from railweave.tools.emulate.headroom import CpuTimes, Headroom
from railweave.tools.emulate.sandbox import Sandbox, SandboxError, check_features
from railweave.tools.emulate.shaping import Shaping

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from numpy.typing import NDArray

    from railweave.tools.emulate.faults import Deed
    from railweave.tools.emulate.plan import NetworkPlan
    from railweave.tools.emulate.shaping import Mode

__all__ = ["Carried", "Lab", "OverTimeError"]

_WINDOW_BYTES: Final = {"fair": 128 * 1024, "fifo": 32 * 1024}
"""SO_RCVBUF: bounds the queue of a connection; twice this is reserved, half of it is window. In one
queue for all, shares are in proportion to windows: small ones are filled at once and stay equal."""
_CONGESTION: Final[Mapping[str, Sequence[str]]] = {
    "fair": ("cubic", "reno"),
    "fifo": ("reno", "cubic"),  # cubic leaves slow start early (HyStart), some sooner than others
}
"""Congestion controls, best first."""
_BUILDING_S: Final = 120.0


class OverTimeError(RailweaveError):
    """The emulation took longer than it was allowed to."""


class Carried(NamedTuple):
    """Bytes by link: data, and acknowledgements where they have a class of their own."""

    data: dict[int, int]
    acks: dict[int, int]


class Lab:
    """A network while it exists; use it as a context manager.

    Parameters
    ----------
    plan, mode
        What to build, and how its cables queue.
    limit_s
        Wall time after which traffic is stopped.
    circuits
        Those of an earlier lab of the same plan.
    acks_first
        Whether acknowledgements go beside the data; not where programs choose their own ports.

    Raises
    ------
    MissingToolError
        Namespaces are not permitted here, or the kernel lacks something.
    """

    def __init__(
        self,
        plan: NetworkPlan,
        *,
        mode: Mode,
        limit_s: float,
        circuits: Circuits | None = None,
        acks_first: bool = True,
    ) -> None:
        self.plan = plan
        self.shaping = Shaping.of(plan, mode, acks_first=acks_first)
        self.limit_s = limit_s
        self.headroom: Headroom | None = None
        self.expected_s = 0.0
        self.acted: list[dict[str, Any]] = []
        self.deeds: list[Deed] = []
        self.sandbox = Sandbox(limit_s=limit_s + _BUILDING_S)
        try:
            features = self.sandbox.call("probe")
            check_features(features)
            self.congestion = next(one for one in _CONGESTION[mode] if not features[f"TCP {one}"])
            self.sandbox.call("build", **setup_request(plan, self.shaping))
            self._namespaces = sorted({one.namespace for one in plan.interfaces.values()})
            self.circuits = circuits or Circuits(self.sandbox, plan)
            self.circuits.moved_to(self.sandbox)
            self._opened = 0
            self._before = self._count()
            self._cpus: CpuTimes | None = None
            self._began_ns: int | None = None
        except BaseException:
            self.sandbox.close()
            raise

    # ------------------------------------------------------------------ figures of the shapers
    @property
    def burst_bytes(self) -> NDArray[np.float64]:
        """float64 (links,): how far each shaper is ahead of its rate, 0 where there is none."""
        sizes = np.zeros(self.plan.fabric.n_links)
        for link, one in self.plan.interfaces.items():
            sizes[link] = self.shaping.credit_bytes(one.rate_bps)
        return sizes

    @property
    def credit_ps(self) -> int:
        """Most that a transfer can be ahead of the rates thanks to the buckets, fabric time, ps."""
        return max(
            self.shaping.ahead_bytes(one.rate_bps)
            * 8
            * PS_PER_S
            // int(self.plan.fabric.link_rate_bps[link])
            for link, one in self.plan.interfaces.items()
        )

    @property
    def ahead_bytes(self) -> int:
        """Most that any shaper can be ahead of its rate, in bytes."""
        return max(self.shaping.ahead_bytes(one.rate_bps) for one in self.plan.interfaces.values())

    # ------------------------------------------------------------------ traffic
    def open(self) -> None:
        """Open the connections of circuits that have none yet."""
        new = [circuit for circuit in self.circuits.all() if circuit.number >= self._opened]
        if not new:
            return
        failed = self.sandbox.call(
            "open",
            connections=[self.circuits.request(circuit) for circuit in new],
            congestion=self.congestion,
            window=_WINDOW_BYTES[self.shaping.mode],
        )
        if failed:
            number, why = next(iter(failed.items()))
            circuit = next(one for one in new if one.number == int(number))
            names = self.plan.fabric.device_names
            raise RailweaveError(
                f"no connection from {names[circuit.source]} to {names[circuit.target]}: {why}"
            )
        self._opened = len(self.circuits)

    def begin(self) -> None:
        """Note that traffic begins now."""
        self._began_ns = time.monotonic_ns()
        self._before = self._count()
        self.sandbox.call("watch")
        self._cpus = CpuTimes.now()

    def schedule(self, zero_ns: int) -> None:
        """Have the deeds done when their time comes; ``zero_ns``: the fabric's time 0."""
        for deed in self.deeds:
            self.sandbox.call(
                "later",
                when_ns=zero_ns + deed.wall_after(self.plan.scale),
                name=deed.name,
                ip=deed.ip,
                tc=deed.tc,
            )

    def heard(self, event: Mapping[str, Any]) -> None:
        """Take note of an event that is not the end of a transfer."""
        if event["event"] == "failed":
            raise RailweaveError(f"{event['name']}: {event['said']}")
        if event["event"] == "acted":
            self.acted.append(dict(event))

    def due_ns(self, began_ns: int) -> int:
        """Return when everything should have ended, by what was expected."""
        return began_ns + int(2 * self.expected_s * 1e9)

    def check_time(self, now_ns: int) -> None:
        """Raise `OverTimeError` past the time limit."""
        if self._began_ns is not None and now_ns > self._began_ns + int(self.limit_s * 1e9):
            raise OverTimeError(f"the emulation was stopped at its limit of {self.limit_s:g} s")

    def end(self, *, programs: bool = False) -> None:
        """Note that traffic has ended, and whether programs moved the bytes."""
        if self._cpus is None:
            return
        self.headroom = Headroom.between(self._cpus, CpuTimes.now())
        with suppress(SandboxError):  # it is gone, as the run's own error says
            watched = self.sandbox.call("watched")
            if watched and not programs:
                self.headroom = replace(self.headroom, **watched)

    # ------------------------------------------------------------------ counters
    def _count(self) -> Carried:
        shown = self.sandbox.call("show", namespaces=self._namespaces)
        data, acks = {}, {}
        for link, one in self.plan.interfaces.items():
            counts = shown[one.namespace].get(one.name, {"bytes": 0, "acks": 0})
            data[link], acks[link] = counts["bytes"] - counts["acks"], counts["acks"]
        return Carried(data, acks)

    def carried(self) -> Carried:
        """Return what the shapers let through since traffic began."""
        now, before = self._count(), self._before
        return Carried(
            {link: count - before.data[link] for link, count in now.data.items()},
            {link: count - before.acks[link] for link, count in now.acks.items()},
        )

    def drops(self) -> int:
        """Return how many packets the shapers dropped."""
        shown = self.sandbox.call("show", namespaces=self._namespaces)
        return sum(one["drops"] for counts in shown.values() for one in counts.values())

    # ------------------------------------------------------------------ ending
    def close(self) -> None:
        """Remove the network."""
        self.sandbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
