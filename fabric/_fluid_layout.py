# SPDX-License-Identifier: Apache-2.0
"""The fluid engine's state as record arrays, shared by its kernels.

What is touched together lies together. Rates are wire bit/s, times ps, sizes wire bytes. Fields
marked ``*`` belong to no row in particular: they are columns used as a list of their own.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

__all__ = [
    "END",
    "EVENT",
    "GROUP",
    "HOP",
    "LANE",
    "LINK",
    "LIST",
    "LOOP",
    "NODE",
    "PATH",
    "RUN",
    "SLOT",
    "SOLE",
    "grown",
    "records",
]

AT_CAP: Final = -1  # a flow's bottleneck is its cap
NOWHERE: Final = -2  # a flow that has no rate yet
FOREVER: Final = 2**62
NO_EVENT: Final = -1
NO_LOOP: Final = -1
NO_NODE: Final = -1
OPEN: Final = 8  # lists of timers that are open for more events (a power of two)
SLOT_BITS: Final = 28  # bits of a slot number beside a node number in one int64

# Rows of the work lists, int32 (LISTS, rows): stacks and queues of slots and links.
FREE: Final = 0  # stack of unused slots
ARRIVED: Final = 1  # flows that joined in this instant
CHANGED: Final = 2  # flows whose rate may have changed in this instant
CHOSEN: Final = 3  # flows being solved for
TOUCHED: Final = 4  # links that lost or gained a flow, or changed
LISTED: Final = 5  # links that the present fill looks at
LISTS: Final = 6

_LINE: Final = 64  # bytes of a cache line

# What a call of the event kernel returned.
REACHED: Final = 0  # nothing more at or before the limit
COMPLETED: Final = 1  # groups ended now
IDLE: Final = 2  # nothing will ever happen
NEED_SLOTS: Final = 3
NEED_POOL: Final = 4
NEED_EVENTS: Final = 5
PAUSED: Final = 6  # a moment for Python, so that Ctrl-C is heard

#: An active flow.
SLOT: Final = np.dtype(
    [
        ("rate", "f8"),
        ("remaining", "f8"),  # at time ``updated``
        ("weight", "f8"),
        ("cap", "f8"),  # inf: none
        ("old_rate", "f8"),  # before this instant's solve
        ("updated", "i8"),
        ("began", "i8"),
        ("finish", "i8"),  # FOREVER while the rate is 0
        ("node", "i8"),
        ("stamp", "i8"),  # round in which it was last solved for
        ("bottleneck", "i4"),  # link, AT_CAP or NOWHERE
        ("path", "i4"),
        ("hops", "i4"),  # where its path's hops are
        ("hops_end", "i4"),
    ],
    align=True,
)

#: One direction of a cable. What every flow that comes, gets a rate or goes touches lies in one
#: cache line.
LINK: Final = np.dtype(
    [
        ("members_at", "i8"),  # where its member list starts in the pool
        ("members", "i4"),
        ("room", "i4"),
        ("count", "i4"),  # unfrozen flows
        ("holding", "i4"),  # flows whose bottleneck it is
        ("load", "f8"),  # what its flows put on it
        ("residual", "f8"),  # usable less the load of all flows that are not unfrozen
        ("unfrozen", "f8"),  # sum of weight x share over flows being solved for, not yet frozen
        ("listed", "i8"),  # fill in which it was last listed
        ("touched", "i8"),  # instant in which it was last touched
        # Here the second line begins.
        ("capacity", "f8"),
        ("usable", "f8"),  # capacity less the acknowledgements of the other direction's data
        ("hold_level", "f8"),  # lowest level of the flows whose bottleneck it is
        ("ack_share", "f8"),  # acknowledgement bits per data bit of the other direction
        ("filled", "i8"),  # fill in which it last was a bottleneck
        ("contended", "i4"),  # 1 once several flows were held back here together
        ("heap_at", "i4"),  # its place in the heap of levels, -1: none
        ("heap_key", "f8"),  # * heap of levels
        ("heap_id", "i8"),  # *
    ],
    align=True,
)

#: A node of a schedule that is under way.
NODE: Final = np.dtype(
    [
        ("wire", "i8"),  # of a message, the shorter one where they differ
        ("path", "i4"),  # -1: crosses no link
        ("group", "i4"),
        ("deps", "i4"),  # predecessors of its first run that have not completed; -1: it completed
        ("succ", "i4"),  # first successor
        ("n_succ", "i4"),
        ("loop", "i4"),  # -1: runs once
    ],
    align=True,
)

#: A node that runs again and again (see `railweave.fabric.loops`).
LOOP: Final = np.dtype(
    [
        ("left", "i4"),  # runs that have not completed
        ("early", "i4"),  # runs that were released before the first one
        ("part", "i4"),  # counts down with each message, modulo ``cycle``
        ("cycle", "i4"),
        ("longer", "i4"),  # a message is longer while ``part`` is below it
        ("longer_by", "i4"),  # wire bytes
    ],
    align=True,
)

#: An event of a node in a list of timers, or a node in the queue of a lane.
EVENT: Final = np.dtype([("next", "i4"), ("code", "i4")], align=True)

#: A schedule or a flow that is under way.
GROUP: Final = np.dtype(
    [
        ("left", "i8"),  # runs of nodes that have not completed; negative: cancelled
        ("first_node", "i8"),  # first node
        ("weight", "f8"),
        ("cap", "f8"),
        ("in_turn", "i8"),  # 1 where messages on one path take turns (a schedule)
        ("timed", "i8"),  # 1 where each node's ``wire`` becomes the time of its completion
        ("done", "i8"),  # * groups that ended in this instant
    ],
    align=True,
)

#: The queue of a path: messages of one schedule between two ranks go one after the other, as on one
#: queue pair.
LANE: Final = np.dtype(
    [
        ("busy", "i4"),  # 1 while a message is on the path
        ("reserved", "i4"),  # the message whose turn it is in this instant, or NO_NODE
        ("head", "i4"),  # event of the first message that waits, or NO_EVENT
        ("tail", "i4"),
    ],
    align=True,
)

#: A path whose links no other path crosses.
SOLE: Final = np.dtype(
    [
        ("rate", "f8"),  # what it always gets; 0: others cross its links
        ("free", "i8"),  # when the last message has left it
    ],
    align=True,
)

#: A path: where its hops are, and its latency after the last bit left the narrowest link.
PATH: Final = np.dtype(
    [
        ("hops", "i8"),
        ("hops_end", "i8"),
        ("latency", "i8"),  # without the first packet's part
        ("per_byte", "f8"),  # ps per byte of the first packet, for the links that store it
        ("first", "f8"),  # largest first packet
    ],
    align=True,
)

#: A limiting link of a path, and the share of a wire bit that it carries.
HOP: Final = np.dtype([("share", "f8"), ("link", "i4")], align=True)

#: When a flow ends: an entry of the finish heap.
END: Final = np.dtype([("time", "i8"), ("slot", "i8")], align=True)

#: A list of node events at one time, by its first and last event; an entry of the timer heap or an
#: open list.
LIST: Final = np.dtype([("time", "i8"), ("head", "i8"), ("tail", "i8")], align=True)

#: Counters of the whole simulation.
RUN: Final = np.dtype(
    [
        ("now", "i8"),
        ("timers", "i8"),  # lists in the timer heap
        ("events_used", "i8"),  # events ever used
        ("event_free", "i8"),  # first free one, or NO_EVENT
        ("events_free", "i8"),  # how many are free among those ever used
        ("events_need", "i8"),  # how many one instant may need
        ("active", "i8"),  # flows in the finish heap
        ("free", "i8"),
        ("slots_used", "i8"),  # slots ever used
        ("pool_used", "i8"),
        ("hop_bits", "i8"),  # an entry of the pool is a slot and, in so many bits, which hop
        ("epoch", "i8"),  # numbers rounds and fills
        ("instant", "i8"),
        ("arrivals", "i8"),
        ("placed", "i8"),  # arrivals that were given their place or their turn
        ("arrived", "i8"),
        ("touches", "i8"),
        ("changes", "i8"),
        ("chosen", "i8"),  # flows being solved for
        ("listed", "i8"),  # links that the present fill looks at
        ("levels", "i8"),  # entries of the heap of levels
        ("done", "i8"),
        ("placing", "i8"),  # 1 while stopped between placing arrivals
        ("tolerance", "f8"),  # of rates and of the time a flow is under way, 0: exact
        ("acks", "i8"),  # 1 where acknowledgements take capacity
        ("narrowed", "i8"),  # 1 where a link may have lost capacity in this instant
        ("solves", "i8"),
        ("solved_flows", "i8"),
    ],
    align=True,
)


def records(dtype: np.dtype[Any], rows: int) -> Any:
    """Return ``rows`` records of zeros, with their fields as attributes.

    The first one begins a cache line. Zeros take no memory until they are written.
    """
    room = np.zeros(rows * dtype.itemsize + _LINE, np.uint8)
    skipped = -room.ctypes.data % _LINE
    own = room[skipped : skipped + rows * dtype.itemsize]
    return own.view(dtype).view(np.recarray)


def grown(array: Any, rows: int, used: int | None = None) -> Any:
    """Return ``array`` with room for ``rows`` rows; new rows are zeros, touched by none yet.

    Of the old rows the first ``used`` matter (None: all).
    """
    used = len(array) if used is None else min(int(used), len(array))
    if len(array) >= rows:
        return array
    rows = max(rows, 2 * len(array))
    more: Any
    if isinstance(array, np.recarray):
        more = records(array.dtype, rows)
    else:
        more = np.zeros((rows, *array.shape[1:]), array.dtype)
    more[:used] = array[:used]
    return more
