# SPDX-License-Identifier: Apache-2.0
"""Flows that the inside starts by itself when those before them end.

Told only when one has ended, it would hear of the next one milliseconds later. Cables stand idle
meanwhile, which a chain of short transfers feels.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Armed", "ArmedFlow"]


@dataclass(frozen=True, kw_only=True)
class ArmedFlow:
    """A flow's id, its number inside, and the numbers of those that must have ended before."""

    flow: str
    number: int
    after: tuple[int, ...]


class Armed:
    """Numbers of what runs inside, and which flows are to follow which.

    Examples
    --------
    >>> armed = Armed()
    >>> armed.expect("b", ["a"])
    >>> armed.expect("c", ["b"])
    >>> armed.number("a")
    1
    >>> [(one.flow, one.number, one.after) for one in armed.ready(["a"])]
    [('b', 2, (1,)), ('c', 3, (2,))]
    >>> armed.begun("b"), armed.begun("d")
    (2, None)
    """

    def __init__(self) -> None:
        self._count = 0
        self._numbers: dict[str, int] = {}  # of flows handed over or armed
        self._armed: dict[str, int] = {}
        self._after: dict[str, tuple[str, ...]] = {}
        self._next: dict[str, list[str]] = {}
        self._missing: dict[str, int] = {}

    def number(self, flow: str | None) -> int:
        """Return a new number, for a flow or for something else."""
        self._count += 1
        if flow is not None:
            self._numbers[flow] = self._count
        return self._count

    def expect(self, flow: str, after: Sequence[str]) -> None:
        """Note that a flow begins when others have ended."""
        self._after[flow] = tuple(dict.fromkeys(after))
        self._missing[flow] = len(self._after[flow])
        for before in self._after[flow]:
            self._next.setdefault(before, []).append(flow)

    def ready(self, begun: Iterable[str]) -> list[ArmedFlow]:
        """Return the flows all whose predecessors are inside now that ``begun`` ones are."""
        found, news = [], deque(begun)
        while news:
            for flow in self._next.pop(news.popleft(), ()):
                self._missing[flow] -= 1
                if self._missing[flow]:
                    continue
                after = tuple(self._numbers[before] for before in self._after[flow])
                self._armed[flow] = self.number(flow)
                found.append(ArmedFlow(flow=flow, number=self._armed[flow], after=after))
                news.append(flow)
        return found

    def begun(self, flow: str | None) -> int | None:
        """Return the number under which an armed flow has begun by itself, else None."""
        return None if flow is None else self._armed.pop(flow, None)
