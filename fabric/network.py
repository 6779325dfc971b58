# SPDX-License-Identifier: Apache-2.0
"""How payload becomes wire bytes and what a path costs in time, for one set of network settings.

Frame fields: RoCEv2 (InfiniBand Architecture Annex A17) in Ethernet (IEEE 802.3); InfiniBand
packets (IBTA volume 1). Host and switch latencies are assumptions, free to change.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

__all__ = ["Framing", "NetworkSettings"]

_ETHERNET: Final = 8 + 12 + 14 + 4  # preamble+SFD, inter-frame gap, header, FCS
_ROCE: Final = 8 + 12 + 4  # UDP, BTH, ICRC
_INFINIBAND: Final = 8 + 12 + 4 + 2  # LRH, BTH, ICRC, VCRC
_RETH: Final = 16  # first packet of an RDMA WRITE
_AETH: Final = 4
_VLAN: Final = 4


class Framing(IntEnum):
    """What wraps the payload on a path."""

    NONE = 0  # NVLink and PCIe: their usable rates already count protocol bytes
    ETHERNET = 1
    INFINIBAND = 2


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """Frame sizes and fixed latencies of a network.

    Parameters
    ----------
    mtu_bytes
        RDMA payload bytes of a full packet.
    ip_version
        4 or 6.
    vlan
        Whether frames carry an 802.1Q tag.
    cut_through
        Cut-through forwarding instead of store-and-forward.
    switch_latency_ps, host_latency_ps
        Added per switch, and once per message at each end of a network path.
    ack_every
        One ACK acknowledges this many packets; 0: no ACKs.
    ack_bytes
        Wire bytes of an ACK; None: from the frame fields (86 B on IPv4).
    frame_overhead_bytes
        Replaces every frame field above (RETH included); None: count the fields.
    """

    mtu_bytes: int = 4096
    ip_version: int = 4
    vlan: bool = False
    cut_through: bool = False
    switch_latency_ps: int = 600_000
    host_latency_ps: int = 500_000
    ack_every: int = 4
    ack_bytes: int | None = None
    frame_overhead_bytes: int | None = None

    def overhead_bytes(self, framing: Framing) -> int:
        """Wire bytes around the payload of each packet."""
        if framing == Framing.NONE:
            return 0
        if self.frame_overhead_bytes is not None:
            return self.frame_overhead_bytes
        if framing == Framing.INFINIBAND:
            return _INFINIBAND
        ip_bytes = 20 if self.ip_version == 4 else 40
        return _ETHERNET + ip_bytes + _ROCE + (_VLAN if self.vlan else 0)

    def first_overhead_bytes(self, framing: Framing) -> int:
        """Extra wire bytes of a message's first packet (RETH)."""
        counted = framing != Framing.NONE and self.frame_overhead_bytes is None
        return _RETH if counted else 0

    def packets(self, size_bytes: int) -> int:
        """Packets of a message; an empty one still sends one."""
        return max(1, -(-size_bytes // self.mtu_bytes))

    def wire_bytes(self, size_bytes: int, framing: Framing = Framing.ETHERNET) -> int:
        """Bytes that a message of ``size_bytes`` payload occupies on the wire.

        Examples
        --------
        >>> NetworkSettings().wire_bytes(2**20)
        1069584
        """
        if framing == Framing.NONE:
            return size_bytes
        padded = -(-size_bytes // 4) * 4 if self.frame_overhead_bytes is None else size_bytes
        headers = self.packets(size_bytes) * self.overhead_bytes(framing)
        return padded + headers + self.first_overhead_bytes(framing)

    def first_packet_bytes(self, size_bytes: int, framing: Framing) -> int:
        """Wire bytes of the first packet of a message."""
        payload = min(size_bytes, self.mtu_bytes)
        return self.wire_bytes(payload, framing)

    def efficiency(self, framing: Framing = Framing.ETHERNET) -> float:
        """Payload share of a long message's wire bytes.

        Examples
        --------
        >>> round(NetworkSettings().efficiency(), 5)
        0.98037
        """
        return self.mtu_bytes / (self.mtu_bytes + self.overhead_bytes(framing))

    def ack_wire_bytes(self, framing: Framing) -> int:
        """Wire bytes of one ACK (BTH + AETH + ICRC in the path's framing)."""
        if framing == Framing.NONE or self.ack_every == 0:
            return 0
        if self.ack_bytes is not None:
            return self.ack_bytes
        if framing == Framing.INFINIBAND:
            return _INFINIBAND + _AETH
        ip_bytes = 20 if self.ip_version == 4 else 40
        frame = 14 + 4 + ip_bytes + _ROCE + _AETH + (_VLAN if self.vlan else 0)
        return 8 + 12 + max(64, frame)

    def ack_share(self, framing: Framing) -> float:
        """Reverse ACK bytes per forward wire byte of a long message."""
        if framing == Framing.NONE or self.ack_every == 0:
            return 0.0
        full = self.mtu_bytes + self.overhead_bytes(framing)
        return self.ack_wire_bytes(framing) / (self.ack_every * full)
