# SPDX-License-Identifier: Apache-2.0
"""How near the CPUs are to binding, watched from the inside while bytes move.

Two things can hold bytes up here: the one process that sends and receives them, and the CPU on
which the kernel takes packets from cable to cable (softirq). Each is watched in windows: a second
of saturation does not become harmless by a minute of idleness.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from railweave.tools.emulate.loop import Loop

__all__ = ["Watch", "Worked"]

_WINDOW_NS: Final = 250_000_000
_LEAST_NS: Final = 100_000_000  # ticks are 10 ms: less says nothing
_IRQ, _SOFTIRQ = 5, 6  # columns of proc_stat(5)


@dataclass(frozen=True, kw_only=True)
class Worked:
    """What had been done by a time of the monotonic clock, all in ns.

    ``moving``: this process ran or waited for a CPU (first two words of /proc/PID/schedstat,
    sched-stats.rst of Linux); ``packets``: of each CPU, interrupts and softirqs.
    """

    at: int
    moving: int
    packets: tuple[int, ...]

    @classmethod
    def now(cls) -> Worked:
        """Read the counters; raises OSError where the kernel keeps none."""
        tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        ran, waited = Path("/proc/self/schedstat").read_text(encoding="ascii").split()[:2]
        packets = []
        for line in Path("/proc/stat").read_text(encoding="ascii").split("\n")[1:]:
            if not line.startswith("cpu"):
                break
            columns = line.split()[1:]
            packets.append((int(columns[_IRQ]) + int(columns[_SOFTIRQ])) * tick)
        return cls(at=time.monotonic_ns(), moving=int(ran) + int(waited), packets=tuple(packets))

    def shares_since(self, before: Worked) -> tuple[float, float]:
        """Return the share of time for moving, and for packets on the CPU busiest with them."""
        took = max(1, self.at - before.at)
        each = [now - then for now, then in zip(self.packets, before.packets, strict=False)]
        return (self.moving - before.moving) / took, max(each, default=0) / took


class Watch:
    """Notes the worst window."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._before: Worked | None = None
        self._worst: tuple[float, float] | None = None
        self._turn = 0

    def begin(self) -> None:
        """Watch from now on."""
        self._turn += 1
        try:
            self._before = Worked.now()
        except OSError:
            self._before = None
            return
        self._next(self._turn)

    def end(self) -> dict[str, float] | None:
        """Return the worst shares ``moving`` and ``packets``; None where none can be known."""
        self._turn += 1
        if self._before is not None:
            self._look(least_ns=_LEAST_NS if self._worst else 0)
            self._before = None
        if self._worst is None:
            return None
        (moving, packets), self._worst = self._worst, None
        return {"moving": moving, "packets": packets}

    def _next(self, turn: int) -> None:
        def look() -> None:
            if turn == self._turn:
                self._look(least_ns=_LEAST_NS)
                self._next(turn)

        self._loop.at(time.monotonic_ns() + _WINDOW_NS, look)

    def _look(self, *, least_ns: int) -> None:
        now = Worked.now()
        assert self._before is not None
        if now.at - self._before.at < least_ns:
            return
        shares = now.shares_since(self._before)
        worst = self._worst or shares
        self._worst = (max(worst[0], shares[0]), max(worst[1], shares[1]))
        self._before = now
