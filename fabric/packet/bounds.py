# SPDX-License-Identifier: Apache-2.0
"""Lower bounds of times at packet level.

Before the narrowest hop of a path the first packet is stored, and read up to 128 bytes where it is
cut through; after it the last packet, which may be little more than its headers. Where hops after
the narrowest one are faster, this lies below the fluid model's time of a flow alone, which has the
first packet stored everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.graph import DeviceKind
from railweave.fabric.network import Framing
from railweave.fabric.packet.layout import HEADER_BYTES
from railweave.fabric.paths import PathTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["PacketPaths"]


class PacketPaths(PathTable):
    """Paths whose costs are lower bounds of what packets take."""

    even = False  # each packet chooses

    def _append_costs(
        self, starts: NDArray[np.int64], link: NDArray[np.int32], share: NDArray[np.float64]
    ) -> None:
        n = self._n
        super()._append_costs(starts, link, share)
        fabric, settings = self.fabric, self.settings
        network = fabric.link_network[link]
        owner = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(link))))
        hop_tau = np.where(network, share * 8e12 / fabric.link_rate_bps[link], 0.0)
        widest = np.maximum.reduceat(hop_tau, starts)
        place = np.arange(len(link))
        narrowest = np.maximum.reduceat(np.where(hop_tau == widest[owner], place, -1), starts)
        ahead = np.add.reduceat(np.where(place < narrowest[owner], hop_tau, 0.0), starts)
        behind = np.add.reduceat(np.where(place > narrowest[owner], hop_tau, 0.0), starts)
        into_switch = network & (fabric.kind[fabric.link_dst[link]] == DeviceKind.SWITCH)
        latency = fabric.link_delay_ps[link] + into_switch * settings.switch_latency_ps
        crosses = np.logical_or.reduceat(network, starts)
        total = np.add.reduceat(share * latency, starts) + crosses * 2 * settings.host_latency_ps
        framing = self.framing[n : n + len(starts)]
        headers = [settings.overhead_bytes(kind) if kind else 0 for kind in Framing]
        least = np.array(headers, np.float64)[framing]
        rows = self.cost[n : n + len(starts)]
        if settings.cut_through:
            least = np.minimum(least, HEADER_BYTES)
            rows[:, 2] = np.minimum(rows[:, 2], HEADER_BYTES)
        # Sprayed packets overtake each other: a short one may be the first at the narrowest hop.
        sprayed = np.minimum.reduceat(np.where(network, share, 1.0), starts) < 1.0
        rows[:, 0] = np.floor(total + (behind + np.where(sprayed, ahead, 0.0)) * least)
        rows[:, 1] = np.where(sprayed, 0.0, ahead)
