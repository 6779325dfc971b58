# SPDX-License-Identifier: Apache-2.0
"""Where the parts of a host sit: on which CPU root, behind which PCIe switch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Seats"]


@dataclass(frozen=True, kw_only=True)
class Seats:
    """The seat of each part by name (``gpu3``): its CPU root, and its PCIe switch or -1.

    Parameters
    ----------
    roots
        Number of CPU roots.
    tree_root
        CPU root of each PCIe switch.
    seat
        ``(root, switch)`` of each part.
    """

    roots: int
    tree_root: Sequence[int]
    seat: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, roots: Sequence[Sequence[str | Sequence[str]]]) -> Seats:
        """Read a list per root of its parts, those behind a PCIe switch in a list of their own."""
        tree_root: list[int] = []
        seat: dict[str, tuple[int, int]] = {}
        for root, parts in enumerate(roots):
            for part in parts:
                if isinstance(part, str):
                    seat[part] = (root, -1)
                    continue
                seat |= dict.fromkeys(part, (root, len(tree_root)))
                tree_root.append(root)
        return cls(roots=len(roots), tree_root=tree_root, seat=seat)

    def column(self, kind: str, count: int, which: int) -> tuple[int, ...]:
        """Return the root (0) or PCIe switch (1) of all parts of a kind."""
        return tuple(self.seat[f"{kind}{i}"][which] for i in range(count)) if self.roots else ()

    def affine(self, gpus: int, nics: int) -> tuple[int, ...]:
        """Give each GPU one of the nearest NICs, in turn; without roots, one by one."""
        if not self.roots:
            return tuple(i % nics for i in range(gpus))
        taken: dict[tuple[int, ...], int] = {}
        chosen = []
        for i in range(gpus):
            root, tree = self.seat[f"gpu{i}"]
            seats = [self.seat[f"nic{j}"] for j in range(nics)]
            pools = (
                [j for j, seat in enumerate(seats) if tree >= 0 and seat[1] == tree],
                [j for j, seat in enumerate(seats) if seat[0] == root],
                list(range(nics)),
            )
            pool = tuple(next(filter(None, pools)))
            turn = taken[pool] = taken.get(pool, -1) + 1
            chosen.append(pool[turn % len(pool)])
        return tuple(chosen)
