# SPDX-License-Identifier: Apache-2.0
"""Transfer profiles: what engines that move KV caches and expert tokens make of a host's NICs.

A transfer takes its start (look-up, registration, hand-shake of a request) and then its bytes at a
share of the line rate: ``start + S / (efficiency * rate)``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Annotated

from pydantic import Field

from railweave.fabric.catalogue import find_entry
from railweave.fabric.fields import FileModel, Time
from railweave.fabric.units import PS_PER_S

__all__ = ["TransferProfile", "find_transfer"]


@dataclass(frozen=True, kw_only=True)
class TransferProfile:
    """An engine of transfers.

    Parameters
    ----------
    name, title
        Its name and what it stands for.
    start_ps
        What passes before the bytes of a request flow.
    efficiency
        Share of the line rate that payload reaches.
    source, fitted_to
        Where the figures come from, and the data sets to which they were fitted.
    """

    name: str
    title: str
    start_ps: int
    efficiency: float
    source: str = field(default="", repr=False)
    fitted_to: tuple[str, ...] = field(default=(), repr=False)

    def time_ps(self, size_bytes: int, *, rate_bps: int) -> int:
        """Return the time of one request over NICs of ``rate_bps`` together.

        Examples
        --------
        >>> find_transfer("mooncake").time_ps(20 * 10**6, rate_bps=1600 * 10**9) // 10**6
        537
        """
        return self.start_ps + round(size_bytes * 8 * PS_PER_S / (rate_bps * self.efficiency))

    def utilisation(self, size_bytes: int, *, rate_bps: int) -> float:
        """Return the share of the line rate that one request of ``size_bytes`` reaches."""
        return size_bytes * 8 * PS_PER_S / rate_bps / self.time_ps(size_bytes, rate_bps=rate_bps)


class _Entry(FileModel):
    title: str
    aliases: tuple[str, ...] = ()
    start: Time
    efficiency: Annotated[float, Field(gt=0, le=1)]
    source: str
    fitted_to: tuple[str, ...] = ()


@cache
def find_transfer(name: str) -> TransferProfile:
    """Return a transfer profile of the catalogue.

    Raises
    ------
    InputError
        There is none of that name; the nearest is given.
    """
    name, content = find_entry("transfers", "transfer profile", name)
    entry = _Entry.model_validate(content)
    return TransferProfile(
        name=name,
        title=entry.title,
        start_ps=entry.start,
        efficiency=entry.efficiency,
        source=entry.source,
        fitted_to=entry.fitted_to,
    )
