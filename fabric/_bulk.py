# SPDX-License-Identifier: Apache-2.0
"""What a fabric under construction is collected in, and copies of a small one in that form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric

__all__ = ["Copies", "Table", "copied_names", "copy_fabric"]


class Table:
    """Rows of ``width`` int64 numbers, in the order in which they were added, singly or many.

    Examples
    --------
    >>> table = Table(2)
    >>> table.append((1, 2))
    >>> table.extend(np.array([[3, 4], [5, 6]]))
    >>> len(table), table.columns().tolist()
    (3, [[1, 3, 5], [2, 4, 6]])
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._blocks: list[NDArray[np.int64]] = []
        self._rows: list[tuple[int, ...]] = []  # those after the last block
        self._in_blocks = 0

    def __len__(self) -> int:
        return self._in_blocks + len(self._rows)

    def append(self, row: tuple[int, ...]) -> None:
        """Add a row."""
        self._rows.append(row)

    def extend(self, rows: NDArray[np.integer]) -> None:
        """Add rows, shape (n, width)."""
        self._close()
        self._blocks.append(rows.astype(np.int64))
        self._in_blocks += len(rows)

    def _close(self) -> None:
        if self._rows:
            self._blocks.append(np.array(self._rows, np.int64))
            self._in_blocks += len(self._rows)
            self._rows = []

    def columns(self) -> NDArray[np.int64]:
        """Return all rows as contiguous columns, shape (width, rows)."""
        self._close()
        empty = np.empty((0, self._width), np.int64)
        return np.ascontiguousarray(np.concatenate((empty, *self._blocks)).T)


@dataclass(frozen=True, kw_only=True, eq=False)
class Copies:
    """Copies of a fabric as rows for the tables of a `FabricBuilder`.

    Parameters
    ----------
    numbers
        int32 (copies, devices): dense index of each device in each copy.
    devices, cables
        int64: a row per device and per cable.
    affine
        int64 (copies * devices,): dense index of the NIC of each GPU, else -1.
    free_ports
        int64 (copies * devices,): the first free port of each device.
    """

    numbers: NDArray[np.int32]
    devices: NDArray[np.int64]
    cables: NDArray[np.int64]
    affine: NDArray[np.int64]
    free_ports: NDArray[np.int64]


def copy_fabric(like: Fabric, count: int, *, first_device: int, first_host: int) -> Copies:
    """Return ``count`` copies of a fabric, numbered on from what there is."""
    size = like.n_devices
    first = first_device + size * np.arange(count)
    parts = np.stack([like.kind, like.host, like.index, like.tier, like.group, like.rail], axis=1)
    devices = np.tile(parts.astype(np.int64), (count, 1))
    inside = devices[:, 1] >= 0
    host = first_host + len(like.host_names) * np.arange(count)
    devices[inside, 1] += np.repeat(host, size)[inside]
    links = np.stack(
        [
            *(like.link_src, like.link_dst, like.link_src_port, like.link_dst_port),
            *(like.link_rate_bps, like.link_delay_ps, like.link_model),
        ],
        axis=1,
    )
    cables = np.tile(links[::2].astype(np.int64), (count, 1))
    cables[:, :2] += np.repeat(first, like.n_links // 2)[:, None]
    free = np.zeros(size, np.int64)
    np.maximum.at(free, like.link_src, like.link_src_port + 1)
    return Copies(
        numbers=(first[:, None] + np.arange(size)).astype(np.int32),
        devices=devices,
        cables=cables,
        affine=np.where(like.gpu_nic >= 0, first[:, None] + like.gpu_nic, -1).ravel(),
        free_ports=np.tile(free, count),
    )


def copied_names(like: Fabric, names: Sequence[str], hosts: Sequence[str]) -> Iterator[str]:
    """Yield the names of the devices of each copy; see `FabricBuilder.add_copies`."""
    inside = like.host.tolist()
    heads = [like.name if host < 0 else like.host_names[host] for host in inside]
    tails = [name.removeprefix(head) for name, head in zip(like.device_names, heads, strict=True)]
    each = len(like.host_names)
    for i, name in enumerate(names):
        for host, tail in zip(inside, tails, strict=True):
            yield (name if host < 0 else hosts[i * each + host]) + tail
