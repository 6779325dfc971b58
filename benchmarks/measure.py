# SPDX-License-Identifier: Apache-2.0
"""CPU times of functions and of commands, and a line for each in a table."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["HEADER", "Cpu", "cpu_of", "cpu_of_command", "machine", "peak_mib", "reference", "row"]

HEADER = f"{'':66}{'median':>8}  {'min':>8}  {'max':>8}"

_MIB_OF_RSS = 2**10 if sys.platform != "darwin" else 2**20  # ru_maxrss: KiB, on macOS bytes


@dataclass(frozen=True)
class Cpu:
    """CPU seconds (user and system) of several runs of one thing."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median over the runs."""
        return median(self.seconds)

    def scaled(self, factor: float) -> Cpu:
        """Return the times of ``factor`` as much work."""
        return Cpu(tuple(second * factor for second in self.seconds))

    def less(self, other: Cpu) -> Cpu:
        """Return the times without the median of another."""
        return Cpu(tuple(second - other.median for second in self.seconds))


def cpu_of(
    run: Callable[[Any], object], *, setup: Callable[[], Any] = lambda: None, repeats: int = 5
) -> Cpu:
    """Time ``run(setup())`` in this process, without the setup.

    Parameters
    ----------
    run
        What to time; it gets what ``setup`` returned.
    setup
        Called before each run.
    repeats
        Number of runs.
    """
    seconds = []
    for _ in range(repeats):
        ready = setup()
        started = time.process_time()
        run(ready)
        seconds.append(time.process_time() - started)
    return Cpu(tuple(seconds))


def cpu_of_command(
    command: Sequence[str], *, repeats: int = 5, environment: Mapping[str, str] | None = None
) -> Cpu:
    """Time a command in processes of its own; its output is dropped.

    Parameters
    ----------
    command
        Program and arguments.
    repeats
        Number of runs.
    environment
        Variables set beside those of this process.

    Raises
    ------
    RuntimeError
        The command failed; the message ends with what it said.
    """
    seconds = []
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            command,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
        used = after.ru_utime + after.ru_stime
        seconds.append(used - before.ru_utime - before.ru_stime)
    return Cpu(tuple(seconds))


def reference(_: object = None) -> int:
    """Do a fixed piece of work, by which two runs can tell how busy the machine was."""
    total = 0
    for number in range(1_000_000):
        total += number
    return total


def peak_mib() -> float:
    """Return the most memory that this process has held so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _MIB_OF_RSS


def machine() -> str:
    """Return a line on what the figures were measured with."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return (
        f"CPU seconds on {platform.machine()} with {os.cpu_count()} CPUs, load average {load:.1f}, "
        f"Python {platform.python_version()}"
    )


def row(
    what: str,
    cpu: Cpu,
    *,
    limit: float | None = None,
    against: Cpu | None = None,
    least: float | None = None,
) -> str:
    """Return a line of the table: median, minimum and maximum, and how they compare.

    Parameters
    ----------
    what
        What was timed.
    cpu
        The times.
    limit
        Seconds it may take: the line says what part of it the median is.
    against
        A peer timed in the same run: the line says how many times as long it takes.
    least
        Least of that number that is good enough.
    """
    times = f"{cpu.median:8.3f}  {min(cpu.seconds):8.3f}  {max(cpu.seconds):8.3f}"
    said = ""
    if limit is not None:
        verdict = "ok" if cpu.median <= limit else "MISSED"
        said = f"  {cpu.median / limit:5.2f} of the limit {limit:g} s: {verdict}"
    if against is not None:
        ratio = against.median / cpu.median
        said = f"  {ratio:5.1f} times faster"
        if least is not None:
            said += f", at least {least:g} wanted: {'ok' if ratio >= least else 'MISSED'}"
    return f"{what:<66}{times}{said}"
