# SPDX-License-Identifier: Apache-2.0
"""Shapers: what turns a veth pair into a cable of a given rate, as lines for ``tc -batch``.

``fair``
    An htb class at the cable's rate over queues that share it by deficit round robin, a packet's
    queue being the last bits of its destination port: close to max-min.
``fifo``
    One queue for all data, as a plain switch port has: htb, or a token bucket (tbf) where programs
    choose their ports.

Where ports are ours, acknowledgements have a class of their own beside the data's: they are
counted apart, and the cable's rate is the data's alone. How many of them TCP sends depends on how
it cuts its packets, which no model of a fabric foretells.

Sources: tc-htb(8), tc-tbf(8), tc-bpf(8) of iproute2. Sizes follow from trials on kernel 6.18: a GSO
packet larger than the bucket is cut up in software, which costs the CPU that the emulation needs,
so packets are kept smaller than buckets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from railweave.tools.emulate.plan import NetworkPlan

__all__ = [
    "ACK_CLASS",
    "ACK_PORTS",
    "CLASSES",
    "FRAME_HEADER_BYTES",
    "MTU_BYTES",
    "PAYLOAD_BYTES",
    "Mode",
    "Shaping",
]

Mode = Literal["fair", "fifo"]

MTU_BYTES: Final = 1500
PAYLOAD_BYTES: Final = MTU_BYTES - 52
"""TCP payload of a full packet: IPv4 (RFC 791) 20, TCP (RFC 9293) 20, timestamps (RFC 7323) 12."""
FRAME_HEADER_BYTES: Final = MTU_BYTES + 14 - PAYLOAD_BYTES
"""What a shaper counts beyond the payload: those 52 and the Ethernet header of 14."""

CLASSES: Final = 64
"""Ports are told apart by their last 6 bits."""
ACK_PORTS: Final = CLASSES // 2
"""Ports with this bit are those of senders: packets to them are acknowledgements."""
ACK_CLASS: Final = 0x80
_QUANTUM_BYTES: Final = 20_000  # above one GSO packet, or a turn would need two
_FIRST_CLASS: Final = 0x100
_FIFO_LIMIT: Final = "4mb"
_NETWORK_HEADER: Final = 0xFFF00000
"""Offsets from here on count from the network header (SKF_NET_OFF of linux/filter.h)."""


def _program(mask: int, *, acks: bool) -> str:
    """Return a classic BPF program, as tc takes it: of a packet it makes ``1:100 + (port & mask)``.

    With ``acks``, packets to ports that have the bit `ACK_PORTS` go to ``1:80``.
    """
    port = (0x28, 0, 0, _NETWORK_HEADER + 22)  # load the half word at 22: TCP's destination port
    ours = [(0x45, 0, 1, ACK_PORTS), (0x06, 0, 0, (1 << 16) + ACK_CLASS)]  # bit set? return that
    steps = [
        port,
        *(ours if acks else []),
        (0x54, 0, 0, mask),  # and
        (0x04, 0, 0, (1 << 16) + _FIRST_CLASS),  # add
        (0x16, 0, 0, 0),  # return it
    ]
    return ",".join([str(len(steps)), *(" ".join(map(str, step)) for step in steps)])


PORT_CLASSIFIER: Final = _program(CLASSES - 1, acks=False)
"""A queue for each of the last bits of a packet's destination port."""
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
    acks_first
        Ports are ours, and acknowledgements (to ports with the bit `ACK_PORTS`) have a class of
        their own beside the data's, as in networks that give them one.
    """

    mode: Mode
    gso_bytes: int | None
    acks_first: bool

    @classmethod
    def of(cls, plan: NetworkPlan, mode: Mode, *, acks_first: bool = True) -> Shaping:
        """Choose by the slowest cable: one size for all, or a switch would cut packets up."""
        gso = _SMALL_GSO_BYTES if plan.slowest_bps < _SLOW_BPS else None
        return cls(mode=mode, gso_bytes=gso, acks_first=acks_first)

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
        if self._plain:
            return burst
        packet = (self.gso_bytes or _WHOLE_GSO_BYTES) // PAYLOAD_BYTES * (MTU_BYTES + 14)
        return burst + packet

    @property
    def _plain(self) -> bool:
        return self.mode == "fifo" and not self.acks_first

    def lines(self, name: str, rate_bps: int) -> list[str]:
        """Return the ``tc`` commands for one interface."""
        if self._plain:
            return [f"qdisc add dev {name} root handle 1: {self._bucket(rate_bps)}"]
        program = _program(self._queues - 1, acks=self.acks_first)
        lines = [
            f"qdisc add dev {name} root handle 1: htb default {_FIRST_CLASS:x}",
            *(f"class add dev {name} {one}" for one in self._classes(rate_bps)),
            f'filter add dev {name} parent 1: protocol ip bpf bytecode "{program}"',
        ]
        alone = [ACK_CLASS] * self.acks_first + [_FIRST_CLASS] * (self.mode == "fifo")
        lines += [
            f"qdisc add dev {name} parent 1:{one:x} handle {one:x}: bfifo limit {_FIFO_LIMIT}"
            for one in alone
        ]
        return lines

    def change(self, name: str, rate_bps: int) -> list[str]:
        """Return the ``tc`` commands that give a shaped interface another rate."""
        if self._plain:
            return [f"qdisc change dev {name} root handle 1: {self._bucket(rate_bps)}"]
        return [f"class change dev {name} {one}" for one in self._classes(rate_bps)]

    def _bucket(self, rate_bps: int) -> str:
        return f"tbf rate {rate_bps}bit burst {self.burst_bytes(rate_bps)} limit {_FIFO_LIMIT}"

    @property
    def _queues(self) -> int:
        """How many queues the data has."""
        if self.mode == "fifo":
            return 1
        return ACK_PORTS if self.acks_first else CLASSES

    def _classes(self, rate_bps: int) -> list[str]:
        """Return the classes of an interface: all data's, one per queue below it, and the ACKs'."""
        burst = self.burst_bytes(rate_bps)
        whole = (
            f"rate {rate_bps}bit ceil {rate_bps}bit burst {burst} cburst {burst} "
            f"quantum {_QUANTUM_BYTES}"
        )
        each = max(rate_bps // CLASSES, 8)
        classes = [f"parent 1: classid 1:1 htb {whole}"]
        classes += [
            f"parent 1:1 classid 1:{_FIRST_CLASS + k:x} htb prio 1 rate {each}bit "
            f"ceil {rate_bps}bit burst 1600 cburst {burst} quantum {_QUANTUM_BYTES}"
            for k in range(self._queues)
        ]
        if self.acks_first:
            classes.append(f"parent 1: classid 1:{ACK_CLASS:x} htb prio 0 {whole}")
        return classes
