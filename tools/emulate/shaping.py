# SPDX-License-Identifier: Apache-2.0
"""Shapers: what turns a veth pair into a cable of a given rate, as lines for ``tc -batch``.

``fair``
    An htb root at the cable's rate over `CLASSES` queues that share it by deficit round robin, a
    packet's queue being its destination port modulo `CLASSES`: close to max-min.
``fifo``
    A token bucket (tbf) over one queue, as a plain switch port has.

Sources: tc-htb(8), tc-tbf(8), tc-bpf(8) of iproute2. Sizes follow from trials on kernel 6.18: a GSO
packet larger than the bucket is cut up in software, which costs the CPU that the emulation needs,
so packets are kept smaller than buckets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from railweave.tools.emulate.plan import NetworkPlan

__all__ = ["CLASSES", "FRAME_HEADER_BYTES", "MTU_BYTES", "PAYLOAD_BYTES", "Mode", "Shaping"]

Mode = Literal["fair", "fifo"]

MTU_BYTES: Final = 1500
PAYLOAD_BYTES: Final = MTU_BYTES - 52
"""TCP payload of a full packet: IPv4 (RFC 791) 20, TCP (RFC 9293) 20, timestamps (RFC 7323) 12."""
FRAME_HEADER_BYTES: Final = MTU_BYTES + 14 - PAYLOAD_BYTES
"""What a shaper counts beyond the payload: those 52 and the Ethernet header of 14."""

CLASSES: Final = 64
_QUANTUM_BYTES: Final = 20_000  # above one GSO packet, or a turn would need two
_FIRST_CLASS: Final = 0x100
_FIFO_LIMIT: Final = "4mb"
_NETWORK_HEADER: Final = 0xFFF00000
"""Offsets from here on count from the network header (SKF_NET_OFF of linux/filter.h)."""
_PROGRAM: Final = (
    (0x28, _NETWORK_HEADER + 22),  # load the half word at 22: TCP's destination port
    (0x54, CLASSES - 1),  # and
    (0x04, (1 << 16) + _FIRST_CLASS),  # add: class 1:100 and those after it
    (0x16, 0),  # return it
)
PORT_CLASSIFIER: Final = ",".join(
    [str(len(_PROGRAM)), *(f"{code} 0 0 {value}" for code, value in _PROGRAM)]
)
"""A classic BPF program, as tc takes it, that makes a packet's queue of its destination port."""
_SMALL_GSO_BYTES: Final = 16_000
_WHOLE_GSO_BYTES: Final = 65_536
_SLOW_BPS: Final = 400_000_000  # from here on packets of 64 kB fit a bucket without bunching


@dataclass(frozen=True, kw_only=True)
class Shaping:
    """How the cables of one network are shaped.

    Parameters
    ----------
    mode
        ``fair`` or ``fifo``.
    gso_bytes
        Largest packet that a host hands to its interface at once; None: the kernel's 64 kB.
    """

    mode: Mode
    gso_bytes: int | None

    @classmethod
    def of(cls, plan: NetworkPlan, mode: Mode) -> Shaping:
        """Choose by the slowest cable: one size for all, or a switch would cut packets up."""
        return cls(mode=mode, gso_bytes=_SMALL_GSO_BYTES if plan.slowest_bps < _SLOW_BPS else None)

    def burst_bytes(self, rate_bps: int) -> int:
        """Return the bucket of a cable: what may leave at once after a pause, in bytes."""
        if self.gso_bytes is not None:
            return max(24_000, rate_bps // 16_000)  # 0.5 ms
        return max(80_000, rate_bps * 3 // 16_000)  # 1.5 ms

    def credit_bytes(self, rate_bps: int) -> int:
        """Return how far a cable is ahead of its rate after a pause on average, in bytes.

        The packet that htb sends on credit is the last one, which may be any part of a whole one.
        """
        return (self.burst_bytes(rate_bps) + self.ahead_bytes(rate_bps)) // 2

    def ahead_bytes(self, rate_bps: int) -> int:
        """Return how far a cable can be ahead of its rate after a pause at most, in bytes.

        A token bucket waits for the tokens of a whole packet; htb sends while any are left and owes
        the rest, which puts it ahead by up to one packet more (sch_htb.c of Linux).
        """
        burst = self.burst_bytes(rate_bps)
        if self.mode == "fifo":
            return burst
        packet = (self.gso_bytes or _WHOLE_GSO_BYTES) // PAYLOAD_BYTES * (MTU_BYTES + 14)
        return burst + packet

    def lines(self, name: str, rate_bps: int) -> list[str]:
        """Return the ``tc`` commands for one interface."""
        burst = self.burst_bytes(rate_bps)
        if self.mode == "fifo":
            return [
                f"qdisc add dev {name} root handle 1: tbf rate {rate_bps}bit "
                f"burst {burst} limit {_FIFO_LIMIT}"
            ]
        each = max(rate_bps // CLASSES, 8)
        return [
            f"qdisc add dev {name} root handle 1: htb default {_FIRST_CLASS:x}",
            f"class add dev {name} parent 1: classid 1:1 htb rate {rate_bps}bit "
            f"ceil {rate_bps}bit burst {burst} cburst {burst} quantum {_QUANTUM_BYTES}",
            *(
                f"class add dev {name} parent 1:1 classid 1:{_FIRST_CLASS + k:x} htb "
                f"rate {each}bit ceil {rate_bps}bit burst 1600 cburst {burst} "
                f"quantum {_QUANTUM_BYTES}"
                for k in range(CLASSES)
            ),
            f'filter add dev {name} parent 1: protocol ip bpf bytecode "{PORT_CLASSIFIER}"',
        ]

    def change(self, name: str, rate_bps: int) -> list[str]:
        """Return the ``tc`` commands that give a shaped interface another rate."""
        burst = self.burst_bytes(rate_bps)
        if self.mode == "fifo":
            return [
                f"qdisc change dev {name} root handle 1: tbf rate {rate_bps}bit "
                f"burst {burst} limit {_FIFO_LIMIT}"
            ]
        each = max(rate_bps // CLASSES, 8)
        return [
            f"class change dev {name} parent 1: classid 1:1 htb rate {rate_bps}bit "
            f"ceil {rate_bps}bit burst {burst} cburst {burst} quantum {_QUANTUM_BYTES}",
            *(
                f"class change dev {name} parent 1:1 classid 1:{_FIRST_CLASS + k:x} htb "
                f"rate {each}bit ceil {rate_bps}bit burst 1600 cburst {burst} "
                f"quantum {_QUANTUM_BYTES}"
                for k in range(CLASSES)
            ),
        ]
