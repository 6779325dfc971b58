# SPDX-License-Identifier: Apache-2.0
"""Whether the CPUs had room: an emulation whose CPUs bind measures them, not the network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["MOST_BUSY", "MOST_MOVING", "CpuTimes", "Headroom"]

MOST_MOVING: Final = 0.65
"""Most of any quarter of a second that the process which moves the bytes may run or wait for a CPU,
and that one CPU may spend on packets: ``benchmarks/emulation_load.py`` shows what is beyond."""
MOST_BUSY: Final = 0.40
"""Mean share of all CPUs that may be taken by whatever runs on the machine. Most programs beside an
emulation do it no harm, as it goes before them; some did, and which ones cannot be told."""


@dataclass(frozen=True, kw_only=True)
class CpuTimes:
    """CPU time of the machine since boot, in ticks: all of it and the idle part (proc_stat(5))."""

    total: int
    idle: int

    @classmethod
    def now(cls) -> CpuTimes:
        """Read the times; time stolen by other guests counts as busy."""
        line = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0]
        fields = [int(word) for word in line.split()[1:9]]
        return cls(total=sum(fields), idle=fields[3] + fields[4])


@dataclass(frozen=True, kw_only=True)
class Headroom:
    """How near the CPUs were to binding while traffic ran.

    Parameters
    ----------
    busy
        Mean share of all CPUs that anything on the machine took, 0 to 1.
    moving
        Share of the worst quarter of a second in which the process that moves the bytes ran or
        waited for a CPU; None: programs moved them, or the kernel does not tell.
    packets
        Share of the worst quarter of a second that the CPU busiest with packets spent on them.
    """

    busy: float
    moving: float | None = None
    packets: float | None = None

    @classmethod
    def between(cls, before: CpuTimes, after: CpuTimes) -> Headroom:
        """Return the share between two readings."""
        total = after.total - before.total
        return cls(busy=1 - (after.idle - before.idle) / total if total else 0.0)

    @property
    def why_not(self) -> str | None:
        """Why what was measured does not count; None where the CPUs had room."""
        for share, most, what in (
            (self.moving, MOST_MOVING, "the process that moves the bytes needed {} of a CPU"),
            (self.packets, MOST_MOVING, "packets took {} of a CPU"),
            (self.busy, MOST_BUSY, "the CPUs were {} busy"),
        ):
            if share is not None and share > most:
                return f"{what.format(f'{100 * share:.0f} %')}, above {100 * most:.0f} %"
        return None

    @property
    def valid(self) -> bool:
        """Whether the CPUs had room."""
        return self.why_not is None
