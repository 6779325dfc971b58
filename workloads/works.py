# SPDX-License-Identifier: Apache-2.0
"""Parts of a step: schedules on their devices and time that passes, one after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from railweave.fabric.engine import Engine, FabricEnvironment
    from railweave.fabric.schedule import Schedule

__all__ = ["Work", "bound_ps", "perform", "repeats"]

_LONGEST_PATTERN: Final = 8


@dataclass(frozen=True)
class Work:
    """A part of a step: a schedule run ``repeat`` times, or only time passing.

    Parameters
    ----------
    devices
        GPU of each rank of the schedule.
    schedule
        None: nothing crosses a link.
    repeat
        Times in a row.
    wait_ps
        Time that passes if there is no schedule.
    """

    devices: tuple[int, ...] = ()
    schedule: Schedule | None = None
    repeat: int = 1
    wait_ps: int = 0


def bound_ps(engine: Engine, works: Sequence[Work]) -> int:
    """Return the least that these parts take one after another on an empty fabric, in ps."""
    return sum(
        part.wait_ps
        if part.schedule is None
        else part.repeat * engine.bound_ps(part.schedule, part.devices)
        for part in works
    )


def perform(
    env: FabricEnvironment, engine: Engine, works: Sequence[Work], *, tag: str
) -> Generator[Any, Any, None]:
    """Do the parts one after another."""
    for part in works:
        if part.schedule is not None:
            yield engine.execute(part.schedule, part.devices, tag=tag, repeat=part.repeat)
        elif part.wait_ps:
            yield env.timeout(part.wait_ps)


def repeats(order: Sequence[int]) -> list[tuple[tuple[int, ...], int]]:
    """Write a sequence as patterns that repeat, from left to right, the longest run first.

    Examples
    --------
    >>> repeats([0, 0, 0, 1, 1, 1, 1])
    [((0,), 3), ((1,), 4)]
    >>> repeats([0, 1, 0, 1, 0, 1])
    [((0, 1), 3)]
    """
    found, at = [], 0
    while at < len(order):
        best = (tuple(order[at : at + 1]), 1)
        for length in range(1, min(_LONGEST_PATTERN, len(order) - at) + 1):
            pattern, times = tuple(order[at : at + length]), 1
            while tuple(order[at + times * length : at + (times + 1) * length]) == pattern:
                times += 1
            if (times > 1 or length == 1) and times * length > best[1] * len(best[0]):
                best = (pattern, times)
        found.append(best)
        at += len(best[0]) * best[1]
    return found
