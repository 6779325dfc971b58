# SPDX-License-Identifier: Apache-2.0
"""What the packet engine needs to know beyond frame sizes: buffers, pauses, marks, rate control.

Sources, by tag: [P15] Zhu et al., "Congestion control for large-scale RDMA deployments", SIGCOMM
2015; [HPCC] public code of Li et al., "HPCC: high precision congestion control", SIGCOMM 2019,
https://github.com/alibaba-edu/High-Precision-Congestion-Control; [NV] NVIDIA, "DCQCN parameters",
https://enterprise-support.nvidia.com/s/article/dcqcn-parameters; [AST] ASTRA-sim's sample
configuration of ns-3; [802] IEEE 802.3 annex 31B and 802.1Qbb; [SON] SONiC's headroom script;
[A] an assumption, free to change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

__all__ = [
    "CcSettings",
    "PacketSettings",
    "Watchdog",
    "cc_profile",
    "ecn_thresholds",
    "headroom_bytes",
    "most_dynamic_ecn_bytes",
    "most_static_pfc_bytes",
]

US: Final = 1_000_000

_RESPONSE_QUANTA: Final = (  # most that a receiver of a pause may take [802] [SON]
    *((25, 80), (40, 118), (50, 147), (100, 394), (200, 453), (400, 905), (800, 905)),
)
_QUANTUM_BITS: Final = 512  # [802]
_ECN_KB: Final = {  # Kmin, Kmax in KB by Gb/s
    25: (100, 400),  # [HPCC]
    100: (400, 1600),  # [HPCC]
    200: (600, 2400),  # [AST]
    400: (800, 3200),  # [AST]
    800: (1200, 4800),  # [A]
}
_SIMULATED_RESPONSE: Final = 0.2  # of the most [A]


@dataclass(frozen=True, kw_only=True)
class CcSettings:
    """DCQCN's constants; rates in bit/s, times in ps.

    ``paper`` tells the structure: the published algorithm, or that of NICs. ``rai_bps`` and
    ``rhai_bps`` hold for lines of 25 Gb/s where ``scales``.
    """

    paper: bool
    g: float
    alpha0: float
    alpha_ps: int
    decrease_ps: int
    rate_ps: int
    byte_counter: int
    fast_recovery: int
    rai_bps: float
    rhai_bps: float
    min_bps: float
    cnp_ps: int
    clamp: bool = False
    scales: bool = False
    rai_fixed_bps: float | None = None
    rhai_fixed_bps: float | None = None

    def steps_bps(self, line_bps: Any) -> tuple[Any, Any]:
        """Return additive and hyper increase on a line, or on each of an array of them."""
        scale = line_bps / 25e9 if self.scales else 1.0
        rai = self.rai_bps * scale if self.rai_fixed_bps is None else self.rai_fixed_bps
        rhai = self.rhai_bps * scale if self.rhai_fixed_bps is None else self.rhai_fixed_bps
        return rai, rhai


_PROFILES: Final = {
    "paper": CcSettings(  # [P15]; hyper increase and least rate [A]
        paper=True, g=1 / 256, alpha0=1.0, alpha_ps=55 * US, decrease_ps=50 * US, rate_ps=55 * US,
        byte_counter=10_000_000, fast_recovery=5, rai_bps=40e6, rhai_bps=400e6, min_bps=10e6,
        cnp_ps=50 * US,
    ),
    "nic": CcSettings(  # [NV]; byte counter off and interval of notifications [A]
        paper=False, g=5 / 1024, alpha0=1023 / 1024, alpha_ps=US, decrease_ps=4 * US,
        rate_ps=300 * US, byte_counter=0, fast_recovery=1, rai_bps=5e6, rhai_bps=50e6, min_bps=1e6,
        cnp_ps=4 * US,
    ),
    "scaled": CcSettings(  # [HPCC]; interval of notifications [P15]
        paper=False, g=1 / 256, alpha0=1.0, alpha_ps=US, decrease_ps=4 * US, rate_ps=300 * US,
        byte_counter=0, fast_recovery=1, rai_bps=5e6, rhai_bps=50e6, min_bps=1000e6, cnp_ps=50 * US,
        scales=True,
    ),
}  # fmt: skip


def cc_profile(name: str, **changes: object) -> CcSettings:
    """Return a profile's constants, some of them replaced (None: not).

    Examples
    --------
    >>> cc_profile("paper").fast_recovery, cc_profile("scaled", g=0.5).g
    (5, 0.5)
    """
    given = {key: value for key, value in changes.items() if value is not None}
    return replace(_PROFILES[name], **given)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Watchdog:
    """A watchdog over paused queues of switches; times in ps [SON].

    Parameters
    ----------
    detect_ps
        A queue is taken for stuck when it was paused so long without a break.
    poll_ps
        How often it looks [A].
    restore_ps
        Without a pause for so long, pauses count again.
    action
        ``drop`` what the queue has and gets, ``forward`` it in spite of pauses, or ``alert`` only.
    """

    detect_ps: int = 200_000 * US
    poll_ps: int = 100_000 * US
    restore_ps: int = 400_000 * US
    action: Literal["drop", "forward", "alert"] = "drop"


@dataclass(frozen=True, kw_only=True)
class PacketSettings:
    """Settings of the packet engine; None: the default of the link's rate or of the device.

    Parameters
    ----------
    ack_control
        Acknowledgements travel in the control class, else in the data's.
    nic_first
        At the sending host they overtake data.
    fct_at_sender
        A message ends with the last acknowledgement at its sender, else at its receiver.
    priority, control_priority
        802.1p priorities of data and of acknowledgements and notifications.
    pfc
        Lossless priorities pause their senders.
    lossless
        Priorities that do.
    response_ps
        From a pause frame's arrival to its effect.
    pfc_expiry
        Pauses end by themselves after 65,535 quanta and are refreshed before.
    refresh_ps
        How long after a pause it is repeated; None: half of 65,535 quanta.
    watchdog
        Over paused queues, or None.
    buffer_bytes
        Of a switch; None: its catalogue entry's, or 64 MB.
    reserve_bytes
        Per port and lossless priority [HPCC].
    alpha, hysteresis_bytes
        Dynamic threshold: share of the free buffer, and how far below it a pause ends [HPCC].
    alpha_lossy
        The same share for egress queues of lossy priorities [A].
    headroom_bytes
        Per port and lossless priority; None: what the links' lengths demand.
    xoff_bytes, xon_bytes
        Static thresholds instead of dynamic ones.
    ecn
        Switches mark.
    kmin_bytes, kmax_bytes, pmax
        The law of the marks; None: by the link's rate, or by the room of a trimming queue.
    ecn_at_enqueue
        Mark on arrival at the queue, else on departure.
    cc
        DCQCN, or None: every queue pair sends at its line's rate.
    cc_given
        Somebody asked for it; else there is none where receivers give credit.
    trim_given
        Somebody said how packets are trimmed, which is an error where they are not.
    ack_echo
        Marks are echoed on acknowledgements, else told by notification packets.
    recovery
        What is done about lost packets; None: ``trim`` on fabrics with trimming links, else
        ``go-back-n``.
    trim_bytes
        What is left of a trimmed packet, without preamble and gap.
    trim_queue_bytes
        Beyond this a queue's packets are trimmed; None: one bandwidth-delay product. Headers may
        take twice that.
    unasked_bytes
        What a sender sends before it needs credit; None: its path's bandwidth-delay product.
    pull_packets, pull_share
        Packets that one pull asks for, and the share of the line that pulls ask for altogether.
    rto_ps, rto_low_ps
        Retransmission timeout (0: none), and that of a selective repeat with fewer than three
        packets under way. None:
        `railweave.fabric.packet.timeouts.timeout_ps`.
    retries
        Timeouts in a row before a queue pair fails.
    livelock_packets
        So many packets sent again in a row, without one acknowledged for the first time and without
        a timeout, are a livelock, which ends the run (assumed); 0: it goes on.
    loss_rate
        Probability that a packet is lost on a network link.
    spread
        How packets choose among equal ways at each switch: not at all (the routing decides), each
        by itself (``random``, ``rr``: in turn, ``adaptive``: shortest queue, ``two-choices``),
        again after a pause (``flowlet``), or by the one of ``entropies`` values that it carries.
        ``spray``: that where packets are trimmed, else at random.
    adaptive_quantum_bytes
        Queues are compared in steps of this many bytes (assumed).
    flowlet_gap_ps
        Pause after which a flowlet ends (assumed).
    seed
        Of all random draws.
    elide
        Messages that nobody disturbs take no packets: the same results, faster.
    quantum
        Packets of a message that go as one where no feedback can act: an approximation.
    ends_kept
        Ends of messages whose times are kept, to compare runs by.
    use_wheel
        Keep near events in a timing wheel, else all in the heap: the same results, slower.
    lazy_ends
        The end of a frame that nobody waits for has no event, else each has: the same results,
        slower.
    """

    ack_control: bool = True
    nic_first: bool = True
    fct_at_sender: bool = False
    priority: int = 3
    control_priority: int = 6
    pfc: bool = True
    lossless: tuple[int, ...] = (3,)
    response_ps: int | None = None
    pfc_expiry: bool = True
    refresh_ps: int | None = None
    watchdog: Watchdog | None = None
    buffer_bytes: int | None = None
    reserve_bytes: int = 4096
    alpha: float = 0.125
    hysteresis_bytes: int = 3072
    alpha_lossy: float = 1.0
    headroom_bytes: int | None = None
    xoff_bytes: int | None = None
    xon_bytes: int | None = None
    ecn: bool = True
    kmin_bytes: int | None = None
    kmax_bytes: int | None = None
    pmax: float | None = None
    ecn_at_enqueue: bool = False
    cc: CcSettings | None = None
    cc_given: bool = True
    trim_given: bool = False
    ack_echo: bool = False
    recovery: Literal["go-back-n", "go-back-0", "selective-repeat", "trim"] | None = None
    rto_ps: int | None = None
    rto_low_ps: int = 100 * US
    retries: int = 7
    livelock_packets: int = 10**6
    loss_rate: float = 0.0
    trim_bytes: int = 64
    trim_queue_bytes: int | None = None
    unasked_bytes: int | None = None
    pull_packets: int = 4
    pull_share: float = 0.98
    spread: Literal[
        "none", "spray", "random", "rr", "adaptive", "two-choices", "flowlet", "entropy"
    ] = "none"
    entropies: int = 256
    adaptive_quantum_bytes: int = 8192
    flowlet_gap_ps: int = 50 * US
    seed: int = 1
    elide: bool = True
    quantum: int = 1
    ends_kept: int = 0
    use_wheel: bool = True
    lazy_ends: bool = True

    @property
    def drops_on_storms(self) -> bool:
        """Whether a watchdog may have packets dropped."""
        return self.watchdog is not None and self.watchdog.action != "alert"


def quantum_ps(rate_bps: int) -> int:
    """Return the length of a pause quantum: 512 bit times [802]."""
    return round(_QUANTUM_BITS * 1e12 / rate_bps)


def most_response_ps(rate_bps: int) -> int:
    """Return how long a sender may take to heed a pause at most.

    Examples
    --------
    >>> most_response_ps(100 * 10**9)
    2017280
    """
    gbps = rate_bps / 1e9
    quanta = next((q for rate, q in _RESPONSE_QUANTA if rate >= gbps), _RESPONSE_QUANTA[-1][1])
    return quanta * quantum_ps(rate_bps)


def response_ps(rate_bps: int) -> int:
    """Return how long a sender takes to heed a pause: a fifth of what it may."""
    return round(_SIMULATED_RESPONSE * most_response_ps(rate_bps))


def ecn_thresholds(rate_bps: int) -> tuple[int, int]:
    """Return Kmin and Kmax in bytes for a port's rate.

    Rates without published thresholds follow the rule of 100 and 400 KB for each 25 Gb/s [HPCC].

    Examples
    --------
    >>> ecn_thresholds(100 * 10**9), ecn_thresholds(50 * 10**9)
    ((400000, 1600000), (200000, 800000))
    """
    gbps = rate_bps / 1e9
    known = _ECN_KB.get(round(gbps)) if gbps == round(gbps) else None
    low, high = known if known is not None else (100 * gbps / 25, 400 * gbps / 25)
    return round(low * 1000), round(high * 1000)


def most_static_pfc_bytes(buffer_bytes: int, ports: int, headroom_bytes: int) -> float:
    """Return the highest static pause threshold at which no port is paused into loss [P15].

    ``(B - 8 n t) / (8 n)``: eight priorities at each of ``n`` ports with headroom ``t``.

    Examples
    --------
    >>> most_static_pfc_bytes(12_000_000, 32, 22_400)
    24475.0
    """
    return (buffer_bytes - 8 * ports * headroom_bytes) / (8 * ports)


def most_dynamic_ecn_bytes(
    buffer_bytes: int, ports: int, headroom_bytes: int, *, beta: float
) -> float:
    """Return where marks must begin at the latest, so that they come before pauses [P15].

    ``b (B - 8 n t) / (8 n (b + 1))`` with dynamic thresholds of gain ``b``.
    """
    return beta * (buffer_bytes - 8 * ports * headroom_bytes) / (8 * ports * (beta + 1))


def headroom_bytes(
    rate_bps: int,
    prop_ps: int,
    *,
    response_ps: int,
    pipeline_ps: int,
    frame_bytes: int,
    pfc_bytes: int = 84,
) -> int:
    """Return what still arrives after a pause was decided on, in bytes.

    ``C/8 (2 t_prop + t_response + t_pipeline) + pause frame + W + W``: one frame may be on the wire
    ahead of the pause frame, another the sender has just begun (802.1Qbb annex O; [SON]).

    Parameters
    ----------
    rate_bps, prop_ps
        The link's rate, and its one-way propagation.
    response_ps
        How long the sender takes to heed the pause.
    pipeline_ps
        Between a frame's reception and its admission to the buffer.
    frame_bytes
        Largest frame on the wire.

    Examples
    --------
    >>> headroom_bytes(100 * 10**9, 10**6, response_ps=2017280, pipeline_ps=0, frame_bytes=4178)
    58656
    """
    waiting = 2 * prop_ps + response_ps + pipeline_ps
    return math.ceil(rate_bps * waiting / 8e12) + pfc_bytes + 2 * frame_bytes
