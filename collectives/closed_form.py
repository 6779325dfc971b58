# SPDX-License-Identifier: Apache-2.0
"""Closed forms of what is not executed as a schedule yet: NCCL's protocols and NVLS.

The closed form of every schedule stands beside it (`railweave.collectives.closed_form_ps`). The
ones here take the same form, a latency and a size over a rate, with NCCL's own constants.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from railweave.collectives.operations import operation
from railweave.fabric.errors import InputError, nearest_name
from railweave.fabric.units import PS_PER_S

__all__ = ["PROTOCOLS", "Protocol", "nvls_all_reduce_ps", "protocol", "ring_ps"]

_RINGS: Final = ("all_reduce", "all_gather", "reduce_scatter")
_NVLS_EFFICIENCY: Final = Fraction(85, 100)  # Hopper, NCCL src/graph/tuning.cc


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How NCCL moves bytes within an NVLink domain.

    Parameters
    ----------
    name
        ``LL``, ``LL128`` or ``Simple``.
    base_ps, step_ps
        Latency of a ring operation and of each of its steps over NVLink.
    share
        Payload of what is moved: LL has a flag of 4 bytes for every 4 bytes, LL128 moves 120 of
        128 bytes and is reckoned with less.
    cap_bps
        Most payload bit/s on one node of Hopper GPUs, or None.

    Notes
    -----
    Source: NCCL src/graph/tuning.cc (``baseLat``, ``hwLat``, ``llMaxBws``, version 2.30).
    """

    name: str
    base_ps: int
    step_ps: int
    share: Fraction
    cap_bps: int | None = None

    def rate_bps(self, link_bps: int) -> Fraction:
        """Return the payload rate over a ring whose links move ``link_bps``."""
        rate = self.share * link_bps
        return rate if self.cap_bps is None else min(rate, Fraction(self.cap_bps))

    def latency_ps(self, steps: int) -> int:
        """Return what a ring operation of ``steps`` steps takes beyond its bytes."""
        return self.base_ps + steps * self.step_ps


PROTOCOLS: Final = (
    Protocol(
        name="LL",
        base_ps=6_600_000,
        step_ps=600_000,
        share=Fraction(1, 2),
        cap_bps=8 * 141_000_000_000,
    ),
    Protocol(name="LL128", base_ps=14_000_000, step_ps=1_900_000, share=Fraction(92, 100)),
    Protocol(name="Simple", base_ps=8_400_000, step_ps=3_400_000, share=Fraction(1)),
)


def protocol(name: str) -> Protocol:
    """Return a protocol by its name.

    Raises
    ------
    InputError
        There is none of that name.
    """
    for known in PROTOCOLS:
        if known.name == name:
            return known
    names = [known.name for known in PROTOCOLS]
    raise InputError(
        f"'{name}' is not a protocol",
        field="protocol",
        expected=" | ".join(names),
        nearest=nearest_name(name, names),
    )


def ring_ps(op: str, name: str, *, ranks: int, size_bytes: int, rate_bps: int) -> Fraction:
    """Return the time of a ring under a protocol: base + steps x latency + bytes over its rate.

    Parameters
    ----------
    op
        ``all_reduce``, ``all_gather`` or ``reduce_scatter``.
    name
        The protocol.
    ranks, size_bytes
        Ranks of one NVLink domain and the full logical buffer.
    rate_bps
        Rate of a GPU's links, bit/s.

    Examples
    --------
    >>> [float(ring_ps("all_reduce", p.name, ranks=8, size_bytes=0, rate_bps=1)) / 1e6
    ...  for p in PROTOCOLS]
    [15.0, 40.6, 56.0]
    """
    if operation(op).name not in _RINGS:
        raise InputError(f"{op} is not done by a ring", field="op", expected=" | ".join(_RINGS))
    found, factor = protocol(name), operation(op).bus_factor(ranks)
    steps = factor * ranks  # each moves 1 / ranks of the buffer
    moved = factor * size_bytes * 8 * PS_PER_S
    return found.latency_ps(int(steps)) + moved / found.rate_bps(rate_bps)


def nvls_all_reduce_ps(
    *, ranks: int, size_bytes: int, rate_bps: int, efficiency: Fraction = _NVLS_EFFICIENCY
) -> Fraction:
    """Return the time of an all_reduce inside the NVSwitch, without its latency.

    Each GPU sends its buffer up once and, as the owner of a share, the sum of that share for the
    switch to multicast: ``(1 + 1 / n) * S / (efficiency * B)``.

    Source: NCCL src/graph/tuning.cc for the efficiency; for the traffic, Klenk et al., "An
    in-network architecture for accelerating shared-memory multiprocessor collectives", ISCA 2020.

    Examples
    --------
    >>> took = nvls_all_reduce_ps(ranks=8, size_bytes=2**30, rate_bps=8 * 370_800_000_000)
    >>> round(float(took) / 1e6, 2)
    3832.6
    """
    moved = Fraction(ranks + 1, ranks) * size_bytes * 8 * PS_PER_S
    return moved / (efficiency * rate_bps)
