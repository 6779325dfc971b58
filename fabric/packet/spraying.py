# SPDX-License-Identifier: Apache-2.0
"""Setting up trimming queues, receiver credit and entropy values.

Defaults are those of Ultra Ethernet's public model: queues of one bandwidth-delay product, marks
from a fifth to four fifths of it, pulls of four packets. The base round trip of a fabric is that of
the longest way up and down its tiers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from railweave.fabric.errors import InputError
from railweave.fabric.graph import LinkModel
from railweave.fabric.packet import layout as lay

if TYPE_CHECKING:
    from railweave.fabric.graph import Fabric
    from railweave.fabric.packet.settings import PacketSettings
    from railweave.fabric.packet.state import PacketState

__all__ = [
    "limit_queues",
    "prepare_trimming",
    "recovery_of",
    "run_sprays",
    "set_entropies",
    "trim_marks",
]

_WIRE_ONLY: Final = 20  # preamble and gap
_MARKS: Final = (0.2, 0.8, 1.0)  # of a queue's room, and the odds at the upper one


def recovery_of(fabric: Fabric, settings: PacketSettings) -> str:
    """Return the recovery that is asked for, or the one that suits the links."""
    if settings.recovery is not None:
        return settings.recovery
    return "trim" if (fabric.link_model == LinkModel.TRIMMING).any() else "go-back-n"


def prepare_trimming(state: PacketState) -> None:
    """Write the settings of trimming and credit where they are asked for.

    Raises
    ------
    InputError
        They are, but nothing can be lost; or acknowledgements share the data's class.
    """
    run, settings = state.run, state.settings
    if state.mode == lay.TRUST and settings.recovery == "trim":
        raise InputError(
            "nothing is ever trimmed where every link is lossless", field="network.recovery",
            expected="pfc: {enabled: false}, or links of model trimming or roce-lossy",
        )  # fmt: skip
    if state.mode != lay.TRIM:
        if settings.trim_given:
            raise InputError(
                "packets are not trimmed here", field="network.trim",
                expected="recovery: trim, on links that can lose packets; or no trim",
            )  # fmt: skip
        return
    if not settings.ack_control:
        raise InputError(
            "headers, credit and acknowledgements of trimmed packets go ahead of data",
            field="network.ack.class", expected="control",
        )  # fmt: skip
    run.trim_wire = settings.trim_bytes + run.gap
    run.pull_wire = 64 + _WIRE_ONLY
    run.pull_packets = settings.pull_packets
    run.pull_share = settings.pull_share


def _base_trip_ps(state: PacketState, rate_bps: int) -> float:
    """Return the round trip of a full frame and its answer over the longest way of a fabric."""
    fabric, run = state.fabric, state.run
    net = fabric.link_network
    hops = 2 * max(int(fabric.tier.max(initial=0)), 1)
    frame = (run.mtu + run.overhead + run.ack_wire) * 8e12 / rate_bps
    delay = int(fabric.link_delay_ps[net].max(initial=0))
    return float(hops * (frame + 2 * delay) + 2 * (hops - 1) * state.network.switch_latency_ps)


def limit_queues(state: PacketState) -> None:
    """Give each queue in a switch the room beyond which packets are trimmed, and headers twice it.

    Queues of links whose buffers are kept lossless keep all the room they had.
    """
    fabric, settings, egress = state.fabric, state.settings, state.egress
    classes = len(state.priorities)
    lossless = (LinkModel.INFINIBAND, *((LinkModel.ROCE_LOSSLESS,) if settings.pfc else ()))
    trims = fabric.link_network & (state.ports.switch >= 0)
    trims &= ~np.isin(fabric.link_model, lossless)
    rooms: dict[int, int] = {}
    for link in np.flatnonzero(trims):
        rate = int(fabric.link_rate_bps[link])
        room = settings.trim_queue_bytes
        if room is None:
            if rate not in rooms:
                rooms[rate] = math.ceil(rate * _base_trip_ps(state, rate) / 8e12)
            room = rooms[rate]
        room = max(room, int(state.run.mtu + state.run.overhead + state.run.first))
        egress.room[link * classes : (link + 1) * classes - 1] = room
        egress.room[(link + 1) * classes - 1] = 2 * room


def trim_marks(room: int) -> tuple[int, int, float]:
    """Return the law of marks of a trimming queue: from where, up to where, and the odds there.

    Examples
    --------
    >>> trim_marks(100_000)
    (20000, 80000, 1.0)
    """
    low, high, most = _MARKS
    return round(low * room), round(high * room), most


def run_sprays(state: PacketState) -> bool:
    """Whether packets carry entropy values."""
    return bool(state.run.spread == lay.SPREAD_ENTROPY)


def set_entropies(state: PacketState, rows: Any, entropies: int | None) -> None:
    """Give new queue pairs their entropy values, and a byte for each."""
    count = state.settings.entropies if entropies is None else entropies
    rows["entropies"] = count
    rows["avoid"] = state.n_bits + count * np.arange(len(rows))
    state.claim_bits(count * len(rows))
