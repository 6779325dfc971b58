# SPDX-License-Identifier: Apache-2.0
"""Which paths connections take: the kernel's own choice, the fabric's, the best or the worst."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, Literal

from railweave.fabric.errors import InputError, nearest_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.fabric.routing import Routing
    from railweave.tools.emulate.plan import NetworkPlan

__all__ = ["CHOICES", "Choice", "PathChooser", "choice_of", "steered"]

Choice = Literal["kernel", "fabric", "spread", "collide"]
CHOICES: Final[tuple[Choice, ...]] = ("kernel", "fabric", "spread", "collide")


def choice_of(name: str) -> Choice:
    """Return a choice by name, or raise `InputError` with the nearest one."""
    for known in CHOICES:
        if name == known:
            return known
    raise InputError(
        f"there is no choice of paths '{name}'",
        field="paths",
        expected=" | ".join(CHOICES),
        nearest=nearest_name(name, CHOICES),
    )


class PathChooser:
    """Gives the network links that a connection is to take.

    Parameters
    ----------
    routing
        The fabric's own routing.
    choice
        ``kernel``: whatever the kernel's hash says; ``fabric``: what the fabric's own hash says, so
        that a scenario meets the collisions that it meets in `railweave run`; ``spread``: the least
        used of the equal-cost paths; ``collide``: the most used one.
    """

    def __init__(self, routing: Routing, choice: Choice) -> None:
        self._routing = routing
        self._choice = choice
        self._used: Counter[int] = Counter()

    def links(self, source: int, target: int, *, qp: int = 0) -> tuple[int, ...] | None:
        """Return the links between two NICs, or None where the kernel is to choose."""
        if self._choice == "kernel":
            return None
        if self._choice == "fabric":
            return self._routing.routes([source], [target], qp).path(0)
        paths = self._routing.equal_cost_paths(source, target)
        worst = max if self._choice == "collide" else min
        path = worst(
            paths, key=lambda links: max(self._used[link] for link in links[1:-1] or links)
        )
        self._used.update(path)
        return path


def steered(plan: NetworkPlan, choice: Choice) -> dict[int, dict[int, tuple[int, ...]]]:
    """Return next hops that leave nothing to the kernel's hash, for programs with their own ports.

    ``spread`` deals the destinations of each device out over its next hops in turn, ``collide``
    sends them all over the first; any other choice leaves every next hop.
    """
    found: dict[int, dict[int, tuple[int, ...]]] = {}
    for device, targets in plan.hops.items():
        mine: dict[int, tuple[int, ...]] = {}
        turns: Counter[tuple[int, ...]] = Counter()
        for target in sorted(targets):
            links: Sequence[int] = targets[target]
            if choice == "collide":
                links = links[:1]
            elif choice == "spread":
                turn = turns[tuple(links)]
                turns[tuple(links)] += 1
                links = (links[turn % len(links)],)
            mine[target] = tuple(links)
        found[device] = mine
    return found
