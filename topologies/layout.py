# SPDX-License-Identifier: Apache-2.0
"""Which hosts of a tiered fabric share leaves, and which leaves are joined above."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Layout"]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Which hosts share leaves, and which leaves are joined.

    Parameters
    ----------
    places
        Places for hosts, in all.
    block
        Places in a row that share their leaves.
    unit
        Places of a scalable unit; a block never straddles two.
    rails
        Leaves of a block, NIC i going to that of rail ``i mod rails``; None: one leaf, no rails.
    planes
        Parts that share no switch, port p of a NIC going to plane ``p mod planes``.
    pod
        Units of a pod, under a core.
    apart
        ``rails``: nothing joins the rails, each has a Clos of its own.
    """

    places: int
    block: int
    unit: int
    rails: int | None = None
    planes: int = 1
    pod: int = 1
    apart: Literal["rails"] | None = None

    @property
    def units(self) -> int:
        """Scalable units."""
        return -(-self.places // self.unit)

    @property
    def blocks_per_unit(self) -> int:
        """Blocks of a full unit."""
        return -(-self.unit // self.block)

    @property
    def pods(self) -> int:
        """Pods under a core."""
        return -(-self.units // self.pod)

    @property
    def sections(self) -> int:
        """Parts that share no switch."""
        return self.planes * (self.rails or 1 if self.apart else 1)

    @property
    def leaves_of_block(self) -> int:
        """Leaves of a block in all sections."""
        return (self.rails or 1) * self.planes

    def block_of(self, place: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the block of each place."""
        unit, seat = np.divmod(place, self.unit)
        block: NDArray[np.int64] = unit * self.blocks_per_unit + seat // self.block
        return block

    @property
    def blocks(self) -> int:
        """Blocks in all; the last unit may have fewer than the others."""
        return int(self.block_of(np.array([self.places - 1]))[0]) + 1

    def section_name(self, section: int) -> str:
        """Return the ending of the names of a section's switches."""
        rail, plane = divmod(section, self.planes)
        return (f".r{rail}" if self.apart else "") + (f".p{plane}" if self.planes > 1 else "")
