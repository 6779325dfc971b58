# SPDX-License-Identifier: Apache-2.0
"""Column numbers of the fluid engine's state arrays, shared by its kernels.

State that is touched together lies together: one row per active flow (slot) or link.
"""

from __future__ import annotations

from typing import Final

# Active flows, float64 columns of ``slot_f``.
RATE: Final = 0  # wire bit/s now
REMAINING: Final = 1  # wire bytes left at time UPDATED
WEIGHT: Final = 2
CAP: Final = 3  # highest rate in bit/s (inf: none)
LEVEL: Final = 4  # RATE / WEIGHT: the fair-share level the flow is frozen at
OLD_RATE: Final = 5  # RATE before this instant's solve
SLOT_F: Final = 6

# Active flows, int64 columns of ``slot_i``.
NODE: Final = 0
UPDATED: Final = 1  # ps
FINISH: Final = 2  # ps; FOREVER while the rate is 0
HEAP_AT: Final = 3  # place in the finish heap
BOTTLENECK: Final = 4  # link that limits it; AT_CAP; NOWHERE before its first solve
STAMP: Final = 5  # round in which it was last re-solved
FROZEN: Final = 6  # fill in which it was last frozen
PATH: Final = 7
SAVED: Final = 8  # instant in which OLD_RATE was taken
SLOT_I: Final = 9

AT_CAP: Final = -1
NOWHERE: Final = -2
FOREVER: Final = 2**62
NO_TIMER: Final = -1
OPEN: Final = 8  # lists of timers that are open for more events (a power of two)
SLOT_BITS: Final = 28  # bits of a slot number beside a node number in one int64

# Links, float64 columns of ``link_f``.
CAPACITY: Final = 0  # wire bit/s
USABLE: Final = 1  # CAPACITY less the acknowledgements of the reverse direction
RESIDUAL: Final = 2
UNFROZEN: Final = 3  # sum of weight x share of flows not yet frozen
FILL: Final = 4  # level at which the current solve froze flows here (inf: none)
LOAD: Final = 5  # data bit/s after the last solve
ACKED: Final = 6  # the LOAD that the other direction's USABLE reckons with
ACK_SHARE: Final = 7  # reverse bits per data bit
LINK_F: Final = 8

# Links, int64 columns of ``link_i``.
MEMBERS_AT: Final = 0  # start of the member list in the pool
MEMBERS: Final = 1  # its length
ROOM: Final = 2  # its capacity
LISTED: Final = 3  # fill in which it was last listed
COUNT: Final = 4  # flows not yet frozen
TOUCHED: Final = 5  # round for which it was last touched
LINK_I: Final = 6

# Paths: float64 and int64 columns.
PER_BYTE: Final = 0  # ps per byte of the first packet, for the links that store it
FIRST: Final = 1  # largest first packet, wire bytes
PATH_F: Final = 2
LATENCY: Final = 0  # ps, without the first packet's part
PATH_I: Final = 1

# Groups (one per executed schedule or sent flow): int64 and float64 columns.
LEFT: Final = 0  # nodes that have not completed; negative: cancelled
BASE: Final = 1  # first node
ENDED: Final = 2  # ps
GROUP_I: Final = 3
G_WEIGHT: Final = 0
G_CAP: Final = 1
GROUP_F: Final = 2

# Scalars.
NOW: Final = 0
TIMERS: Final = 1  # lists in the timer heap
ACTIVE: Final = 2  # flows in the finish heap
FREE: Final = 3  # free slots on the stack
SLOTS_USED: Final = 4  # slots ever used
POOL_USED: Final = 5
EPOCH: Final = 6
ARRIVALS: Final = 7
ARRIVED: Final = 8  # arrivals already placed (a call may stop for memory in between)
TOUCHES: Final = 9
DONE: Final = 10
PLACING: Final = 11  # 1 while stopped between placing arrivals
INSTANT: Final = 12
SOLVES: Final = 13
SOLVED_FLOWS: Final = 14
CHANGED: Final = 15
ACKS: Final = 16  # 1 where acknowledgements take capacity
SCALARS: Final = 17

# What a call of the event kernel returned.
REACHED: Final = 0  # nothing more at or before the limit
COMPLETED: Final = 1  # groups ended at NOW
IDLE: Final = 2  # nothing will ever happen
NEED_SLOTS: Final = 3
NEED_POOL: Final = 4
