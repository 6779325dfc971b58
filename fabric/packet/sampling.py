# SPDX-License-Identifier: Apache-2.0
"""Queues over time: a bounded series for chosen ports, and percentiles for all.

Samples are taken at multiples of a period, after everything else of their instant, and change
nothing. When a series is full every other sample is dropped and the period doubled, so it never
holds more than twice what was asked for at least. Percentiles come from a histogram of all samples,
each weighted by its period, with bins a sixteenth of their size wide: they are low by 6 % at most.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from railweave.fabric.errors import InputError
from railweave.fabric.fault_names import links_of
from railweave.fabric.packet import layout as lay
from railweave.fabric.packet.failures import push_event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric
    from railweave.fabric.packet.state import PacketState

__all__ = ["PERCENTILES", "SampleSettings", "Sampler", "bin_floor", "bin_of", "port_links"]

PERCENTILES: Final = (50, 99)
_FINE: Final = 4  # bits of a bin within its octave
_BINS: Final = 48 << _FINE


@dataclass(frozen=True, kw_only=True)
class SampleSettings:
    """What is sampled.

    Parameters
    ----------
    every_ps
        Period.
    ports
        Links whose series are kept.
    most
        Samples kept at most.
    """

    every_ps: int
    ports: tuple[int, ...] = ()
    most: int = 4096


def bin_of(size: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bin of each size in bytes: exact up to 31 B, then sixteenths of octaves.

    Examples
    --------
    >>> bin_of(np.array([0, 5, 31, 32, 33, 34, 1 << 20])).tolist()
    [0, 5, 31, 32, 32, 33, 272]
    """
    exponent = np.maximum(np.frexp(np.maximum(size, 1).astype(np.float64))[1] - 1 - _FINE, 0)
    return np.where(size > 0, (exponent << _FINE) + (size >> exponent), 0).astype(np.int64)


def bin_floor(number: int) -> int:
    """Return the least size of a bin.

    Examples
    --------
    >>> [bin_floor(n) for n in (0, 31, 32, 33, 272)]
    [0, 31, 32, 34, 1048576]
    """
    exponent = max((number >> _FINE) - 1, 0)
    return (number - (exponent << _FINE)) << exponent


def port_links(fabric: Fabric, names: Sequence[str]) -> tuple[int, ...]:
    """Return the links that leave by ports (``leaf0:3``), or that are named as links.

    Raises
    ------
    InputError
        There is no such port or link.
    """
    found: list[int] = []
    for name in names:
        device, _, port = name.rpartition(":")
        if "-" in name.split(":", 1)[-1] or ">" in name or not port.isdigit():
            found += links_of(fabric, link=name)
            continue
        out = np.flatnonzero(
            (fabric.link_src == fabric.device(device)) & (fabric.link_src_port == int(port))
        )
        if not len(out):
            raise InputError(f"'{device}' has no port {port} with a cable")
        found += [int(link) for link in out]
    return tuple(dict.fromkeys(found))


@dataclass
class Sampler:
    """The samples of one run."""

    settings: SampleSettings
    links: int
    times: list[int] = field(default_factory=list)
    rows: list[NDArray[np.int64]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.every_ps = self.settings.every_ps
        self.histogram = np.zeros((self.links, _BINS), np.int64)
        self._armed = False

    def arm(self, state: PacketState) -> None:
        """See to the next sample, when work begins."""
        if not self._armed:
            self._armed = True
            at = (int(state.run.now) // self.every_ps + 1) * self.every_ps
            push_event(state, at, (lay.CHECK << lay.CLASS_SHIFT) | lay.SAMPLE)

    def take(self, state: PacketState) -> None:
        """Take a sample, and see to the next one while anything else is to come."""
        self._armed = False
        run, ports = state.run, state.ports
        queue = self._queues(state)
        weight = self.every_ps // self.settings.every_ps
        self.histogram[np.arange(self.links), bin_of(queue)] += weight
        chosen = list(self.settings.ports)
        if chosen:
            classes = int(run.classes)

            def total(column: Any) -> Any:
                return column.reshape(self.links, classes)[chosen].sum(axis=1)

            sent = ports.data_bytes[chosen] + ports.control_bytes[chosen]
            self.rows.append(
                np.stack(
                    (
                        queue[chosen], sent, total(state.paused_ps(int(run.now))),
                        total(state.egress.marked), total(state.egress.dropped),
                    ),
                    axis=1,
                )
            )  # fmt: skip
            self.times.append(int(run.now))
            if len(self.times) >= self.settings.most:
                self.every_ps *= 2
                keep = [i for i, at in enumerate(self.times) if at % self.every_ps == 0]
                self.times = [self.times[i] for i in keep]
                self.rows = [self.rows[i] for i in keep]
        if run.far > 0 or run.in_wheel > 0 or run.at < run.count:
            self.arm(state)

    def _queues(self, state: PacketState) -> NDArray[np.int64]:
        """Bytes in the queues of each link; a frame whose end had no event has left."""
        ports = state.ports
        queue = state.egress.bytes.reshape(self.links, -1).sum(axis=1)
        gone = (ports.svc_queue >= 0) & (ports.svc_end <= state.run.now)
        return np.asarray(queue - np.where(gone, ports.svc_bytes, 0), np.int64)

    def percentiles(self) -> dict[str, list[int]]:
        """Return columns of ``links.csv``: percentiles of each link's queue over time, in bytes."""
        seen = np.cumsum(self.histogram, axis=1)
        columns = {}
        for percent in PERCENTILES:
            need = np.maximum(-(-seen[:, -1] * percent // 100), 1)
            bins = (seen < need[:, None]).sum(axis=1)
            sizes = [bin_floor(int(i)) if i < _BINS else 0 for i in bins]
            columns[f"queue_p{percent}_bytes"] = sizes
        return columns

    def series(self, names: Sequence[str]) -> list[list[Any]]:
        """Return rows of ``ports.csv``: time, port, then `railweave.fabric.engine.SERIES`."""
        ports = [names[link] for link in self.settings.ports]
        return [
            [at, port, *(int(value) for value in row[i])]
            for at, row in zip(self.times, self.rows, strict=True)
            for i, port in enumerate(ports)
        ]
