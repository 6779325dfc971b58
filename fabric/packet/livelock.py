# SPDX-License-Identifier: Apache-2.0
"""What to say of a run whose packets move and get nowhere.

Go-back-0 sends a message from its beginning whenever a packet of it is lost, and where messages
are long for the losses there are, none ever ends (Guo et al., "RDMA over commodity Ethernet at
scale", SIGCOMM 2016). The kernel counts packets sent again since one was acknowledged for the first
time; what a timeout sends again does not count, for timeouts end with their retries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.fabric.units import format_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from railweave.fabric.graph import Fabric
    from railweave.fabric.packet.state import PacketState

__all__ = ["livelock_text", "stuck_pairs"]

_SHOWN = 8  # queue pairs named in an error


def stuck_pairs(
    state: PacketState, fabric: Fabric, owner: Callable[[int], str]
) -> list[dict[str, Any]]:
    """Return the queue pairs that wait for acknowledgements, and of how many packets.

    Parameters
    ----------
    owner
        Group of work -> name of the flow or collective it is.
    """
    found = []
    names, dst = fabric.device_names, fabric.link_dst
    classes = int(state.run.classes)
    for number in np.flatnonzero(state.qps.una_node[: state.n_qps] >= 0).tolist():
        qp = state.qps[number]
        message = state.nodes[qp.una_node]
        found.append(
            {
                "work": owner(int(message.group)),
                "src": names[fabric.link_src[int(qp.queue) // classes]],
                "dst": names[dst[(int(qp.back_queue) // classes) ^ 1]],
                "packets": int(message.packets),
                "acknowledged": int(max(qp.sacked, qp.una) - message.psn),
                "retransmitted_bytes": int(qp.resent),
            }
        )
    return found


def livelock_text(state: PacketState, fabric: Fabric, owner: Callable[[int], str]) -> str:
    """Say that a run is a livelock, and who waits for what."""
    pairs = stuck_pairs(state, fabric, owner)
    lines = [
        f"{one['work']} ({one['src']} -> {one['dst']}) waits for packet {one['acknowledged']} of "
        f"{one['packets']} to be acknowledged"
        for one in pairs[:_SHOWN]
    ]
    if len(pairs) > _SHOWN:
        lines.append(f"and {len(pairs) - _SHOWN} more")
    return (
        f"livelock at {format_time(int(state.run.now))}: {state.run.vain} packets were sent again "
        "since one was acknowledged for the first time (network.livelock); " + "; ".join(lines)
    )
