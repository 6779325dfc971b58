# SPDX-License-Identifier: Apache-2.0
"""A schedule under a protocol: latencies of its steps, and the share of the wire that is payload.

Engines move bytes at the rate of links, after a delay. Under a protocol a step waits for a flag or
a fence before it begins, and less than the whole rate is payload; so each transfer of a tuned
schedule has a delay and carries more bytes than it delivers. Being part of the schedule, both
contend with other traffic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from railweave.collectives.algorithm import Links
from railweave.fabric.schedule import NodeKind

if TYPE_CHECKING:
    from collections.abc import Hashable

    from numpy.typing import NDArray

    from railweave.fabric.schedule import Schedule

__all__ = ["Tuning", "tuned"]


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What a protocol does to transfers.

    Parameters
    ----------
    local_delay_ps, net_delay_ps
        Delay of each transfer within a node and between nodes, beyond the latency of its path.
    root_delay_ps
        Delay of those that wait for nothing.
    local_scale, net_scale
        Bytes that a transfer occupies its path for, over its payload.
    """

    local_delay_ps: int = 0
    net_delay_ps: int = 0
    root_delay_ps: int = 0
    local_scale: float = 1.0
    net_scale: float = 1.0

    def felt(self, links: Links, *, across: bool) -> Links:
        """Return what a message costs under the protocol, for those that cut buffers in pieces.

        ``across`` tells whether the first latency and rate of ``links`` are those between nodes.
        """
        delay, scale = (
            (self.net_delay_ps, self.net_scale)
            if across
            else (self.local_delay_ps, self.local_scale)
        )
        return Links(
            alpha_ps=links.alpha_ps + delay,
            rate_bps=max(round(links.rate_bps / scale), 1),
            local_alpha_ps=links.local_alpha_ps + self.local_delay_ps,
            local_rate_bps=max(round(links.local_rate_bps / self.local_scale), 1),
        )


def tuned(schedule: Schedule, tuning: Tuning, *, node: NDArray[np.int32]) -> Schedule:
    """Return a schedule with the delays and bytes of a protocol.

    Parameters
    ----------
    schedule
        What is sent, in bytes of payload.
    tuning
        What the protocol does.
    node
        int32 (n_ranks,): node of each rank, also of those that are switches.

    Examples
    --------
    >>> from railweave.collectives import plan
    >>> ring = plan("all_gather", ranks=4, size_bytes=4096)
    >>> slow = tuned(ring, Tuning(local_delay_ps=7, local_scale=2.0), node=np.zeros(4, np.int32))
    >>> slow.total_bytes, set(slow.delay_ps.tolist())
    (24576, {7})
    """
    local = node[schedule.src] == node[schedule.dst]
    moving = schedule.kind == NodeKind.TRANSFER
    scale = np.where(local, tuning.local_scale, tuning.net_scale)
    sizes = np.ceil(schedule.size_bytes * np.where(moving, scale, 1.0) - 1e-6).astype(np.int64)
    delay = np.where(local, tuning.local_delay_ps, tuning.net_delay_ps)
    delay = schedule.delay_ps + np.where(moving, delay, 0)
    if tuning.root_delay_ps:
        delay = delay + np.where(schedule.n_deps == 0, tuning.root_delay_ps, 0)
    key: Hashable = None
    if schedule.key is not None:
        key = (schedule.key, tuning, node.tobytes())
    return replace(schedule, size_bytes=sizes, delay_ps=delay.astype(np.int64), key=key)
