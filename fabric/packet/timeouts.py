# SPDX-License-Identifier: Apache-2.0
"""Retransmission timeouts that fit the failures of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from railweave.fabric.packet import layout as lay
from railweave.fabric.units import format_time

if TYPE_CHECKING:
    from railweave.fabric.packet.engine import PacketEngine

__all__ = ["timeout_cautions", "timeout_ps"]

_RTO_PS: Final = 500 * 10**6  # assumed
_NIC_STEP_PS: Final = 4_096_000  # the shortest timeout of a NIC; others are powers of two times it


def timeout_ps(retries: int, notice_ps: int) -> int:
    """Return a retransmission timeout that lets queue pairs live until a failure is noticed.

    500 us (assumed), unless ``retries`` of them pass within ``notice_ps``: then the least of a
    NIC's timeouts, 4.096 us x 2^n (InfiniBand Architecture Specification, volume 1, section
    9.7.6.1.3), that is long enough.

    Parameters
    ----------
    retries
        Timeouts in a row that a queue pair survives.
    notice_ps
        Until routing knows of a failed link, or a watchdog of a paused queue; 0: nothing fails.

    Examples
    --------
    >>> timeout_ps(7, 0), timeout_ps(7, 10 * 10**9), timeout_ps(7, 300 * 10**9)
    (500000000, 2097152000, 67108864000)
    """
    wait = _RTO_PS
    if retries > 0 and retries * wait <= notice_ps:
        wait = _NIC_STEP_PS
        while retries * wait <= notice_ps:
            wait *= 2
    return wait


def timeout_cautions(engine: PacketEngine) -> list[str]:
    """Say that queue pairs give up before a failed link or a paused queue is noticed."""
    state, retries = engine.state, engine.packet.retries
    wait = int(state.run.rto_ps)
    if state.mode == lay.TRUST or wait == 0 or retries * wait > state.notice_ps:
        return []
    return [
        f"queue pairs give up after {retries} retries of {format_time(wait)}, before a failed link "
        f"or a paused queue is noticed ({format_time(state.notice_ps)}): a longer network.rto or "
        "more network.retries let them live"
    ]
