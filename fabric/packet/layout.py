# SPDX-License-Identifier: Apache-2.0
"""The packet engine's state as record arrays, shared by its kernels.

What is touched together lies together. Times are ps, sizes bytes, rates bit/s. A port is one
direction of a cable: its egress queues stand at the link's source, its ingress counters at the
link's destination. ``link * classes + class`` numbers the queues of both kinds.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np

FOREVER: Final = 2**62
NONE: Final = -1

# Time wheel: buckets of 2**13 ps, and bitmap words of 32 buckets behind them.
LOW_BITS: Final = 13
LOW_MASK: Final = (1 << LOW_BITS) - 1
BUCKETS: Final = 2048
WORDS: Final = BUCKETS // 32
BLOCK: Final = 8  # events of a bucket that lie together
BEHIND: Final = 4  # blocks of a bucket that one block knows

# Keys order the events of an instant by content: class, then entity.
CLASS_SHIFT: Final = 46
ENTITY_MASK: Final = (1 << CLASS_SHIFT) - 1
KEY_MASK: Final = (1 << (CLASS_SHIFT + 4)) - 1
KIND_SHIFT: Final = 40  # kinds of timers and of sends come before their entity

HEADER_BYTES: Final = 128  # read before a frame is cut through; assumed

LINK_CHANGE: Final = 0
TX_END: Final = 1
EFFECTIVE: Final = 2  # a pause, a resume or a credit takes effect at a sender
ARRIVE: Final = 3
TIMER: Final = 4
SEND: Final = 5
DONE: Final = 6
CHECK: Final = 7

# Kinds of EFFECTIVE, ARRIVE, TIMER and SEND events.
PAUSE: Final = 0
EXPIRY: Final = 1
CREDIT: Final = 2
WHOLE: Final = 0
HEAD: Final = 1
DECREASE: Final = 1
RATE: Final = 2
RTO: Final = 3
REFRESH: Final = 4
TRAIN: Final = 6  # several packets of a message arrive at a port as one
REPOST: Final = 5  # a message that was taken for undisturbed is sent packet by packet after all
POST: Final = 0
PACE: Final = 1
PULL: Final = 2

# Flags of packets.
LAST: Final = 1  # of its message
CE: Final = 2  # congestion experienced
ACK_REQUEST: Final = 4
FIRST: Final = 8
BARE: Final = 16  # carries no network headers
CONTROL: Final = 32  # anything but data
TRIMMED: Final = 64
RESENT: Final = 128
KIND_ACK: Final = 256
KIND_NAK: Final = 512
KIND_CNP: Final = 1024
KIND_CREDIT: Final = 2048
ECHO: Final = 4096  # an ACK that echoes a mark

CLASS_BITS: Final = 13

# What a call of the event kernel returned.
REACHED: Final = 0
COMPLETED: Final = 1
IDLE: Final = 2
PAUSED: Final = 3
NEED_EVENTS: Final = 4
NEED_PACKETS: Final = 5
SUSPECT: Final = 6  # paused queues that have not moved for a while
FAILED: Final = 7  # a queue pair gave up
ACTION: Final = 8  # a link changes, a storm or a watchdog has its turn
NEED_ROWS: Final = 9  # of messages and of flights
LIVELOCK: Final = 10

# Entities of CHECK events: the look for deadlocks, the poll of the watchdog, a sample.
LOOK: Final = 0
POLL: Final = 1
SAMPLE: Final = 2

# What a queue pair is doing.
QP_IDLE: Final = 0
QP_READY: Final = 1  # in the ready list of its port
QP_PACED: Final = 2  # waits for its time
QP_BLOCKED: Final = 3  # waits for acknowledgements or credit

# States of a packet in the window of a queue pair.
RECEIVED: Final = 1
SACKED: Final = 2
WANTED: Final = 4  # was trimmed: to be sent again

# Congestion controls and loss recoveries, by number.
CC_NONE: Final = 0
CC_PAPER: Final = 1
CC_NIC: Final = 2
SPREAD_NONE: Final = 0  # how packets choose among equal ways
SPREAD_RANDOM: Final = 1
SPREAD_TURNS: Final = 2
SPREAD_ADAPTIVE: Final = 3
SPREAD_TWO: Final = 4  # adaptive, between two at random
SPREAD_FLOWLET: Final = 5
SPREAD_ENTROPY: Final = 6  # by a value that each packet carries
TRUST: Final = 0  # nothing can be lost: no recovery
GO_BACK_N: Final = 1
GO_BACK_0: Final = 2
SELECTIVE: Final = 3
TRIM: Final = 4
NEW_WINDOW: Final = 3  # state of a message that a queue pair began with after silence

#: Scalars of the whole simulation.
RUN: Final = np.dtype(
    [
        ("now", "i8"),
        ("tie", "i8"),  # frames that end now on links below this one have left already
        # events
        ("ev_free", "i8"),
        ("ev_left", "i8"),  # unused blocks of the event pool
        ("far", "i8"),  # entries of the heap
        ("at", "i8"),  # bucket being served: next entry, entries
        ("count", "i8"),
        ("bucket", "i8"),  # absolute number of the bucket being served
        ("scan", "i8"),  # no event of the wheel lies in a bucket before this one
        ("in_wheel", "i8"),
        ("use_wheel", "i8"),
        ("ev_time", "i8"),  # the event taken last
        ("ev_key", "i8"),
        ("ev_arg", "i8"),
        ("events", "i8"),
        ("fetch", "i8"),  # 1: rows lie beyond the nearest caches
        ("tracing", "i8"),
        ("traced", "i8"),  # rows of the trace in use
        ("digest", "u8"),  # of all events, in order
        # packets
        ("pk_free", "i8"),
        ("pk_left", "i8"),
        ("hops", "i8"),  # data frames sent
        # nodes and groups
        ("ready", "i8"),  # nodes on the ready stack
        ("done", "i8"),  # groups that ended in this instant
        ("live", "i8"),  # nodes that have begun and not ended
        # settings
        ("classes", "i8"),
        ("strict", "i8"),  # classes from this one on are served strictly first
        ("control", "i8"),  # class of answers; NONE: that of the data
        ("mtu", "i8"),
        ("overhead", "i8"),  # of a data packet on the wire, and the first's further overhead
        ("first", "i8"),
        ("gap", "i8"),  # wire bytes that buffers do not hold: preamble and gap
        ("frame", "i8"),  # of the largest frame on the wire
        ("eager", "i8"),  # 1: every end of a frame has an event, if nobody waits for it too
        ("cut", "i8"),  # cut-through
        ("fold", "i8"),  # arrivals that change nothing need no event
        ("ack_wire", "i8"),
        ("cnp_wire", "i8"),
        ("pfc_wire", "i8"),
        ("nic_first", "i8"),
        ("sender_ends", "i8"),  # a message ends with the sender's last acknowledgement
        ("pfc_expiry", "i8"),
        ("check_ps", "i8"),  # how long a paused queue may stand before it is suspect (0: never)
        ("checking", "i8"),
        ("enqueue_marks", "i8"),
        ("spread", "i8"),
        ("spread_key", "u8"),
        ("spread_quantum", "i8"),  # queues that differ by less are alike
        ("flowlet_ps", "i8"),  # idle for longer: another way
        ("seed", "u8"),
        # congestion control
        ("cc", "i8"),
        ("ack_echo", "i8"),
        ("cnp_ps", "i8"),
        ("g", "f8"),
        ("alpha0", "f8"),
        ("alpha_ps", "i8"),
        ("decrease_ps", "i8"),
        ("rate_ps", "i8"),
        ("rate_bytes", "i8"),  # byte counter; 0: none
        ("recovery_steps", "i8"),
        ("clamp", "i8"),
        ("idle_ps", "i8"),
        # recovery
        ("rto_ps", "i8"),
        ("rto_low_ps", "i8"),
        ("retries", "i8"),
        ("cnps", "i8"),
        ("acks", "i8"),
        ("naks", "i8"),
        ("drops_buffer", "i8"),
        ("drops_random", "i8"),
        ("drops_down", "i8"),
        ("drops_watchdog", "i8"),
        ("violations", "i8"),
        ("trims", "i8"),
        ("timeouts", "i8"),
        ("resent", "i8"),
        ("late", "i8"),
        ("failed_qp", "i8"),
        ("vain", "i8"),  # packets sent again since one was acknowledged for the first time
        ("most_vain", "i8"),  # so many are a livelock
        ("blocked", "i8"),  # queues that are paused now
        # trimming and receiver credit
        ("trim_wire", "i8"),  # of a trimmed packet; 0: full queues drop
        ("pull_wire", "i8"),
        ("pull_packets", "i8"),  # that one pull grants at most
        ("pull_share", "f8"),  # of the receiver's rate that pulls ask for
        ("pulls", "i8"),
        ("failing", "i8"),  # packets may go astray: links fail, or a watchdog drops
        ("poll_ps", "i8"),  # of the watchdog; 0: there is none
        ("polling", "i8"),  # 1 while a poll is on its way
        ("refresh_ps", "i8"),  # between refreshes of a pause; 0: half of what a pause lasts
        # messages of looped nodes, and elision
        ("row_free", "i8"),
        ("row_left", "i8"),
        ("elide", "i8"),  # 1: it is known who is on which link, for what follows
        ("fly", "i8"),  # 1: messages whose packets wait for nobody need no packets
        ("flight_free", "i8"),
        ("flight_left", "i8"),
        ("flights", "i8"),  # messages under way without packets
        ("flown", "i8"),  # all of them so far
        ("grounded", "i8"),  # of which were turned into packets
        ("elided_hops", "i8"),  # data frames of those that ended so
        ("quantum", "i8"),  # packets that go as one where no feedback can act; 1: each by itself
        ("calm_bytes", "i8"),  # as long as no more is under way, nothing is paused or marked
        ("under_way", "i8"),  # bytes of messages that go as packets or trains
        ("train_free", "i8"),
        ("train_left", "i8"),
        ("train_hops", "i8"),  # data frames that went in trains
        ("ended", "i8"),  # messages
    ],
    align=True,
)

#: An event in the wheel: ``key`` begins with the low bits of its time. Rows come in blocks of
#: BLOCK; ``next`` of a block's first rows are the last rows of the blocks before it in its bucket,
#: up to the BEHIND-th. That of an unused one's first row: how far behind the block after it the
#: next unused one is.
EVENT: Final = np.dtype([("key", "i8"), ("next", "i4"), ("arg", "i4")], align=True)

#: An event in the heap.
FAR: Final = np.dtype([("time", "i8"), ("key", "i8"), ("arg", "i8")], align=True)

#: An entry of the bucket being served, sorted.
NEAR: Final = np.dtype([("key", "i8"), ("arg", "i8")], align=True)

#: One direction of a cable. Lines of 64 bytes: what every frame needs, the rest.
PORT: Final = np.dtype(
    [
        ("busy", "i8"),  # the wire is taken until then
        ("svc_end", "i8"),  # when the last bit of the frame in service leaves
        ("data_bytes", "i8"),  # wire bytes of data sent
        ("fixed", "i8"),  # from a frame's end to its arrival at the other end
        ("tau", "i4"),  # ps per byte; 0: not a whole number, or a large one
        ("svc_queue", "i4"),  # queue of the frame in service, whose room it still holds, or NONE
        ("svc_in", "i4"),  # its ingress queue
        ("svc_bytes", "i4"),
        ("mask", "i2"),  # classes that have something to send
        ("blocked", "i2"),  # classes that may not
        ("switch", "i4"),  # whose buffer the queues are in, or NONE
        ("pending", "i1"),  # 1 while a TX_END event is on its way
        ("lazy", "i1"),  # 1 while a frame's room is given back without an event
        ("inside", "i1"),  # 1: NVLink or PCIe, headers do not count
        ("up", "i1"),
        ("credit", "i1"),  # 1: sends against credit
        ("lossy", "i1"),  # packets may be lost on it at random
        ("alternate", "i1"),  # served last: 1 a queue pair, 2 a control packet, 0 data
        ("turn", "i1"),  # class served last by deficit round robin
        ("rate", "i8"),
        ("carry", "i8"),  # remainder of a time per byte that is not whole
        ("prop", "i8"),
        ("peer_prop", "i8"),  # propagation of the other direction
        ("control_bytes", "i8"),  # wire bytes of everything but data sent
        ("response", "i8"),  # from a pause frame's arrival to its effect, at this sender
        ("quantum", "i8"),  # ps of one pause quantum, at this sender
        ("draws", "u8"),  # key of its random draws
        ("pauses", "i4"),  # pause frames that this port sent
        ("need", "i4"),  # credit without which it waits
        ("headers", "i8"),  # urgent frames sent in a row while data waited (trimming)
        ("pull_at", "i8"),  # no pull from this host before
        ("pull_head", "i4"),  # queue pairs that this host is to give credit to, in turn
        ("pull_tail", "i4"),
        ("pull_on", "i8"),  # 1 while a pull event is on its way
        ("deaf", "i4"),  # classes that heed no pause
        ("dropping", "i4"),  # classes of which it drops whatever comes
        ("loss", "f8"),  # probability that a packet is lost on it
        ("unused", "i8"),
    ],
    align=True,
)

#: A queue at the source of a link. A line of 64 bytes: what every frame needs.
EGRESS: Final = np.dtype(
    [
        ("head", "i4"),  # packets
        ("tail", "i4"),
        ("ready", "i4"),  # queue pairs that may send, in turn
        ("ready_tail", "i4"),
        ("bytes", "i8"),  # with the frame in service
        ("peak", "i8"),
        ("kmin", "i8"),
        ("kmax", "i8"),
        ("frames", "i8"),  # sent
        ("marked", "i8"),
        ("limit", "f8"),  # lossy: share of the free buffer it may take
        ("deficit", "i8"),
        ("pmax", "f8"),
        ("credit", "i8"),  # bytes that may still be sent
        ("until", "i8"),  # a pause lasts until then
        ("since", "i8"),  # when the present pause began
        ("paused", "i8"),  # ps, without the present pause
        ("pauses", "i8"),  # XOFF frames that took effect
        ("dropped", "i8"),
        ("trimmed", "i8"),
        ("quantum", "i4"),
        ("expiry", "i4"),  # 1 while an expiry event is on its way
        ("seen", "i8"),  # frames at the last check
        ("room", "i8"),  # lossy: bytes it may hold at most
        ("heard", "i8"),  # when the last XOFF took effect
        ("lost", "i8"),  # packets lost at random on the wire
        ("unused", "i8", 5),  # as of an ingress queue
    ],
    align=True,
)

#: What the arrivals of a link hold in the buffer of the switch at its end.
INGRESS: Final = np.dtype(
    [
        ("held", "i8"),  # reserve and shared
        ("head", "i8"),  # headroom
        ("reserve", "i8"),
        ("peak", "i8"),
        ("alpha", "f8"),  # 0: static thresholds
        ("xoff", "i8"),
        ("kind", "i1"),  # 0 lossy, 1 lossless by pause, 2 lossless by credit
        ("off", "i1"),  # 1 between XOFF and XON
        ("refresh", "i1"),  # 1 while a refresh event is on its way
        ("credit", "i1"),  # 1: its link sends against credit
        ("switch", "i4"),
        ("lazy", "i4"),  # frames from it whose end has no event
        ("quiet", "i4"),  # port of the last of them
        ("room", "i8"),  # headroom there is
        ("xon", "i8"),
        ("hysteresis", "i8"),
        ("since", "i8"),  # when XOFF was sent
        ("sent", "i8"),  # XOFF frames, refreshes included
        ("dropped", "i8"),
        ("stuck", "i8"),  # at a look for deadlocks: what it has in queues that wait
        ("waits", "i8"),  # 1: paused, and not yet known to move again
        ("unused", "i8", 4),  # lines of two classes' rows spread over all sets of a cache
    ],
    align=True,
)

#: The buffer of a switch.
SWITCH: Final = np.dtype(
    [
        ("shared", "i8"),  # bytes in use
        ("total", "i8"),  # bytes there are
        ("lazy", "i8"),  # frames whose end has no event
        ("first", "i4"),  # its ports
        ("last", "i4"),
    ],
    align=True,
)

#: A packet.
PACKET: Final = np.dtype(
    [
        ("qp", "i4"),
        ("psn", "i4"),
        ("next", "i4"),  # in its queue; on the wire: link of ``at``; unused: see `free_packet`
        ("at", "i4"),  # its hop: the one that it waits for; on the wire: the one after
        ("wire", "i4"),
        ("node", "i4"),  # message; of a control packet: what it tells
        ("ingress", "i4"),  # queue number where it is held
        ("flag", "u2"),  # its class in the three highest bits
        ("again", "u2"),  # see `railweave.fabric.packet.queues.sent_before`
    ],
    align=True,
)

#: A hop of a path. ``link`` NONE: the path ends here. Below it: ``-1 - link`` ways lead on, in the
#: rows that follow, and a packet takes one of them.
HOP: Final = np.dtype(
    [
        ("link", "i4"),
        ("next", "i4"),  # row of the hop after it; of a choice: its turn
    ],
    align=True,
)

#: The sending and receiving ends of a queue pair.
QP: Final = np.dtype(
    [
        # Two lines of 64 bytes: what each frame sent needs.
        ("next", "i4"),  # in a ready list
        ("state", "i4"),
        ("node", "i4"),  # message being sent
        ("left", "i4"),  # its packets that are left
        ("psn", "i4"),  # of the next packet
        ("path", "i4"),  # first hop
        ("queue", "i4"),  # egress queue of the first hop
        ("klass", "i4"),
        ("rate", "f8"),  # wire bit/s; 0: the port's
        ("free", "i8"),  # next frame not before
        ("began", "i8"),  # start of the last frame
        ("sent", "i8"),  # wire bytes, all
        ("armed", "i8"),  # time of the pace event that counts
        ("flow", "i8"),  # number that random draws go by
        ("wire", "i4"),  # size of the last frame
        ("since_ack", "i4"),
        ("every", "i4"),  # packets per acknowledgement; 0: none
        ("overhead", "i4"),
        ("pad", "i1"),
        ("bare", "i1"),  # BARE or 0
        ("mode", "i1"),  # recovery
        ("begins", "i1"),  # 1: the next packet is the first of its message
        ("tx", "i4"),  # packets sent, retransmissions included
        ("high", "i4"),  # highest packet sent + 1
        ("first", "i4"),  # further overhead of a message's first packet
        ("entropies", "i4"),  # values that its packets take in turn
        ("cap_packets", "i4"),  # packets under way at most; 0: any number
        ("expected", "i4"),
        # the rest of the sender
        ("tail", "i4"),  # last message posted
        ("back", "i4"),  # first hop of the way back
        ("back_queue", "i4"),
        ("inflight", "i4"),  # control packets (and data that may be lost) under way
        ("lose", "i4"),  # transmission that is lost in any case; NONE: none
        ("una", "i4"),  # oldest packet not acknowledged
        ("una_node", "i4"),  # its message
        ("retry", "i4"),
        ("rto_on", "i4"),
        ("recover", "i4"),
        ("posted", "i4"),  # packets of all messages posted so far
        ("sacked", "i4"),  # highest (selectively) acknowledged + 1
        ("sacks", "i4"),  # packets beyond the oldest that have arrived
        ("scan", "i4"),  # next hole to look at
        ("bits", "i4"),  # first byte of its window of packet states
        ("window", "i4"),  # bytes of it, a power of two
        # trimming and receiver credit, in packets
        ("wanted", "i4"),  # packets known to be trimmed or lost
        ("unasked", "i4"),  # packets it may send before it holds credit
        ("avoid", "i4"),  # first byte of the values to be left out of their next turn
        ("line", "f8"),  # rate of its NIC
        ("cap", "f8"),  # of its flow; inf: none
        ("latency", "i8"),  # of the host, at each end
        ("rto_at", "i8"),
        ("resent", "i8"),  # wire bytes
        ("timeouts", "i8"),
        ("flowlet", "i8"),
        ("used", "i8"),  # transmissions
        ("grant", "i8"),  # transmissions allowed
        # receiver
        ("cnp_at", "i8"),  # when the last notification was sent
        ("late", "i8"),  # packets that arrived out of order
        ("marks", "i8"),
        ("naks", "i8"),
        ("answers", "i8"),  # control packets sent back
        ("arrived", "i8"),
        ("want", "i8"),  # transmissions that it takes as far as is known
        ("granted", "i8"),
        ("nak", "i4"),  # one was sent since the last advance
        ("ce", "i4"),  # a mark that no acknowledgement has echoed yet
        ("known", "i4"),  # packets of all messages heard of
        ("fresh", "i4"),  # first packet of the last message that began a new window
        ("pull_next", "i4"),
        ("pulling", "i4"),  # 1 while it waits for credit at its receiver
        ("pacer", "i4"),  # port of the receiver that sends the credit
        ("unused", "i4", 5),
    ],
    align=True,
)

#: Rate control of a queue pair.
RATE_STATE: Final = np.dtype(
    [
        ("target", "f8"),
        ("alpha", "f8"),
        ("alpha_at", "i8"),  # last alpha tick that was counted
        ("decrease_at", "i8"),
        ("grid", "i8"),  # first notification: ticks count from it
        ("rate_at", "i8"),  # when the rate timer fires
        ("bytes", "i8"),
        ("on", "i4"),
        ("seen_alpha", "i4"),
        ("seen_cut", "i4"),
        ("timer_steps", "i4"),
        ("byte_steps", "i4"),
        ("armed", "i4"),  # a rate event is on its way
        ("cut_armed", "i4"),
        ("cnps", "i4"),
        ("floor", "f8"),  # lowest rate
        ("step", "f8"),  # additive increase
        ("leap", "f8"),  # hyper increase
    ],
    align=True,
)

#: A node of a schedule under way.
NODE: Final = np.dtype(
    [
        ("payload", "i8"),
        ("delay", "i8"),  # before it begins; of a message in trains: when it was posted
        ("qp", "i4"),  # NONE: crosses no link
        ("next", "i4"),  # next message of its queue pair
        ("group", "i4"),
        ("deps", "i4"),
        ("succ", "i4"),
        ("n_succ", "i4"),
        ("packets", "i4"),
        ("got", "i4"),  # packets that have arrived
        ("psn", "i4"),  # of its first packet
        ("state", "i4"),  # 0 waits, 1 sends, 2 ended; NEW_WINDOW: sends
        ("loop", "i4"),  # row of what it repeats, or NONE
        ("parent", "i4"),  # node that a message belongs to: itself, or a looped one
    ],
    align=True,
)

#: What elision knows of a queue pair.
LANE: Final = np.dtype(
    [
        ("most", "i8"),  # bytes that it may have in any one switch without an effect; 0: never
        ("until", "i8"),  # its flights have arrived by then
        ("head", "i4"),  # flights under way, in their order
        ("tail", "i4"),
        ("last", "i4"),  # flight that ended last and is kept: the next is often like it
        ("hops", "i4"),
        ("explicit", "i4"),  # messages under way packet by packet
        ("next", "i4"),  # in the list of those to be grounded
        ("listed", "i4"),
        ("linger", "i4"),  # 1: control packets are still under way
        ("shy", "i4"),  # 1: its flights were disturbed
        ("sends", "i4"),  # message that trains leave with now, and the last one that waits
        ("waits", "i4"),
        ("unused", "i4"),
    ],
    align=True,
)

#: A message under way without packets.
FLIGHT: Final = np.dtype(
    [
        ("post", "i8"),
        ("until", "i8"),  # its last frame has arrived
        ("payload", "i8"),
        ("wire", "i8"),  # of all its frames
        ("last_start", "i8"),  # of its last frame at the host
        ("order", "i8"),  # place in the order of all posts
        ("lane", "i4"),
        ("node", "i4"),
        ("next", "i4"),
        ("state", "i4"),
        ("packets", "i4"),
        ("last_wire", "i4"),
        ("alone", "i4"),  # 1: it met idle ports only, so that another may be like it
    ],
    align=True,
)

#: Packets of one message that go as one. Its head is its first frame, its tail its last one.
TRAIN_ROW: Final = np.dtype(
    [
        ("wire", "i8"),  # bytes
        ("tail_at", "i8"),  # when its last frame has arrived at the port where its head is
        ("row", "i4"),  # message
        ("at", "i4"),  # its present hop
        ("frames", "i4"),
        ("head", "i4"),  # wire bytes
        ("tail", "i4"),
        ("next", "i4"),
        ("left", "i4"),  # packets of the message behind it
        ("leads", "i4"),  # 1: the next train follows when it has reached the first shared port
        ("lane", "i4"),
        ("klass", "i4"),
    ],
    align=True,
)

#: Lanes at a device.
ZONE: Final = np.dtype([("explicit", "i4"), ("flying", "i4")], align=True)

#: Most hops of a path whose packets can be elided, and columns of a flight's trail. For each hop:
#: when the wire is free, the remainder it carries, most bytes held, and frames not yet sent, with
#: their ends and sizes.
MOST_HOPS: Final = 8
WAITING: Final = 4
FREE_AT: Final = 0
CARRY: Final = 1
PEAK: Final = 2
WAITS: Final = 3
ENDS: Final = 4
SIZES: Final = ENDS + WAITING
TRAIL: Final = SIZES + WAITING

#: States of a flight.
FLYING: Final = 1
LANDED: Final = 2  # counted, its node has not ended
GROUNDED: Final = 3  # goes on as packets
KEPT: Final = 4

#: A schedule or a flow under way.
GROUP: Final = np.dtype(
    [("left", "i8"), ("first", "i8"), ("open", "i8"), ("done", "i8")], align=True
)


def records(dtype: np.dtype[Any], rows: int) -> Any:
    """Return ``rows`` records of zeros, with their fields as attributes.

    They begin at a multiple of 64 bytes, so that rows of that size do not straddle cache lines.
    """
    raw = np.zeros(rows * dtype.itemsize + 64, np.uint8)
    skip = -raw.ctypes.data % 64
    return raw[skip : skip + rows * dtype.itemsize].view(_record(dtype)).view(np.recarray)


@cache
def _record(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the one type of arrays of a record: telling two equal types apart takes long."""
    return np.dtype((np.record, dtype))
