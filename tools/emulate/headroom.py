# SPDX-License-Identifier: Apache-2.0
"""Whether the CPUs had room: an emulation whose CPUs bind measures them, not the network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["MOST_BUSY", "SAFE_PACKETS_PER_S", "CpuTimes", "Headroom"]

MOST_BUSY: Final = 0.40
"""Busy share of all CPUs above which a run is invalid. In trials on 2 CPUs goodput began to fall
where one CPU was full."""
SAFE_PACKETS_PER_S: Final = 120_000
"""GSO packets times hops per second that 2 CPUs carried with room to spare in trials; about
200,000 was their limit."""


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
    """How busy the machine was while traffic ran, by everything on it.

    Parameters
    ----------
    busy
        Mean share of all CPUs, 0 to 1.
    """

    busy: float

    @classmethod
    def between(cls, before: CpuTimes, after: CpuTimes) -> Headroom:
        """Return the share between two readings."""
        total = after.total - before.total
        return cls(busy=1 - (after.idle - before.idle) / total if total else 0.0)

    @property
    def valid(self) -> bool:
        """Whether the CPUs had room."""
        return self.busy <= MOST_BUSY
