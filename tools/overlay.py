# SPDX-License-Identifier: Apache-2.0
"""What the links of a run carried, read from its folder, to be drawn over its topology."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.errors import InputError, nearest_name
from railweave.fabric.graph import DeviceKind

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric

__all__ = ["LinkLoads", "links_by_name", "read_link_loads"]


@dataclass(frozen=True, eq=False)
class LinkLoads:
    """Utilisation (0 to 1) and wire bytes of each link of a fabric, arrays of shape (links,)."""

    run: str
    utilisation: NDArray[np.float64]
    wire_bytes: NDArray[np.int64]

    def hottest(self, n: int) -> list[int]:
        """Return the links of the ``n`` highest utilisations, idle ones left out."""
        order = np.lexsort((np.arange(len(self.utilisation)), -self.utilisation))
        return [int(link) for link in order[:n] if self.utilisation[link] > 0]

    def of_devices(self, fabric: Fabric) -> NDArray[np.float64]:
        """float64 (devices,): highest utilisation at each; at a NIC, of its network links."""
        peak = np.zeros(fabric.n_devices)
        for ends in (fabric.link_src, fabric.link_dst):
            nic = fabric.kind[ends] == DeviceKind.NIC
            counted = np.where(nic & ~fabric.link_network, 0.0, self.utilisation)
            np.maximum.at(peak, ends, counted)
        return peak

    def of_hosts(self, fabric: Fabric) -> NDArray[np.float64]:
        """float64 (hosts,): highest utilisation of the network links of each host."""
        peak = np.zeros(len(fabric.host_names))
        nics = fabric.nics[fabric.host[fabric.nics] >= 0]
        np.maximum.at(peak, fabric.host[nics], self.of_devices(fabric)[nics])
        return peak


def read_link_loads(run: Path, fabric: Fabric) -> LinkLoads:
    """Read ``links.csv`` of a run folder.

    Raises
    ------
    InputError
        No such file, a missing column, a number that is none, or a link that ``fabric`` has not:
        the run was of another topology.
    """
    path = run / "links.csv"
    number = links_by_name(fabric)
    utilisation = np.zeros(fabric.n_links)
    wire_bytes = np.zeros(fabric.n_links, np.int64)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            missing = {"link", "utilisation", "wire_bytes"} - set(rows.fieldnames or ())
            if missing:
                raise InputError(
                    f"has no column {', '.join(sorted(missing))}",
                    file=str(path),
                    line=1,
                    expected="links.csv of a railweave run",
                )
            for row in rows:
                _read_row(row, str(path), rows.line_num, number, utilisation, wire_bytes)
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}",
            file=str(path),
            expected="a folder that `run` wrote",
        ) from None
    except (UnicodeDecodeError, csv.Error):
        raise InputError("is not CSV text", file=str(path)) from None
    return LinkLoads(run.name, utilisation, wire_bytes)


def links_by_name(fabric: Fabric) -> dict[str, int]:
    """Return the number of each link by its name; as `Fabric.link_name`, but all at once."""
    names = fabric.device_names
    ends = (fabric.link_src, fabric.link_src_port, fabric.link_dst, fabric.link_dst_port)
    rows = zip(*(column.tolist() for column in ends), strict=True)
    return {f"{names[a]}:{p}>{names[b]}:{q}": link for link, (a, p, b, q) in enumerate(rows)}


def _read_row(
    row: dict[str, str],
    file: str,
    line: int,
    number: dict[str, int],
    utilisation: NDArray[np.float64],
    wire_bytes: NDArray[np.int64],
) -> None:
    link = number.get(row["link"])
    if link is None:
        raise InputError(
            f"'{row['link']}' is not a link of this topology",
            file=file,
            line=line,
            field="link",
            expected="a run of the topology that is drawn",
            nearest=nearest_name(row["link"] or "", number) if len(number) < 20_000 else None,
        )
    try:
        used, carried = float(row["utilisation"]), int(row["wire_bytes"])
    except (TypeError, ValueError):
        raise InputError(
            "holds something that is not a number", file=file, line=line, expected="numbers"
        ) from None
    if not 0 <= used < float("inf") or not 0 <= carried < 2**63:
        raise InputError(
            "holds a number that no run gives", file=file, line=line, expected="0 or more"
        )
    utilisation[link], wire_bytes[link] = used, carried
