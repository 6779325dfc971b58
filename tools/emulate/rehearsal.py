# SPDX-License-Identifier: Apache-2.0
"""Which way every circuit goes after each of a scenario's faults, asked of the kernels beforehand.

The same deeds are done to the same network before any traffic runs, and after each the kernels are
asked again. Their choice depends on seeds, ports and routes alone, so it will be the same later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from railweave.tools.emulate.faults import Deed
    from railweave.tools.emulate.lab import Lab

__all__ = ["Phase", "rehearse"]

Way = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Phase:
    """The network after a deed.

    Parameters
    ----------
    wall_ns
        When it begins, in ns of the wall clock after the fabric's time 0.
    name
        Of the deed.
    ways
        Circuit number -> its links now, or None where its data or its acknowledgements get lost.
    rates
        Link -> its rate in bit/s of the fabric, where the deed changed it.
    """

    wall_ns: int
    name: str
    ways: Mapping[int, Way | None]
    rates: Mapping[int, int]


def rehearse(lab: Lab, plan_deeds: Sequence[Deed]) -> list[Phase]:
    """Do everything once without traffic, and return what each deed changed.

    The network is no longer what it was: build it again before traffic runs.
    """
    phases = []
    for deed in plan_deeds:
        for lines in deed.ip:
            lab.sandbox.call("ip", namespaces=lines)
        if deed.tc:
            lab.sandbox.call("tc", namespaces=deed.tc)
        ways: dict[int, Way | None] = {}
        for circuit in lab.circuits.all():
            there, back = lab.circuits.trace(circuit)
            ways[circuit.number] = None if back is None else there
        phases.append(
            Phase(
                wall_ns=deed.wall_after(lab.plan.scale),
                name=deed.name,
                ways=ways,
                rates=deed.rates,
            )
        )
    return phases
