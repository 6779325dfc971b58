# SPDX-License-Identifier: Apache-2.0
"""A flow: bytes from one endpoint to another; and the record of what became of it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Flow", "FlowRecord"]


@dataclass(frozen=True, kw_only=True)
class Flow:
    """What is to be sent.

    Parameters
    ----------
    id
        Name, unique within a run.
    src, dst
        Device indices of the endpoints (GPUs or NICs).
    size_bytes
        Payload.
    weight
        Share of a bottleneck relative to other flows; above 0.
    cap_bps
        Highest wire rate in bit/s, or None.
    qps
        Queue pairs that the payload is split over, or None for the routing policy's number.
    path
        Link indices to follow instead of the routing policy's choice, or None.
    tag
        A word for accounting (``kv``, ``pp``, ...).
    priority
        802.1p priority 0 to 7, or None for the network's own; only packets heed it.
    ack_path
        Link indices that acknowledgements follow, or None: back along the cables of the data.
    """

    id: str
    src: int
    dst: int
    size_bytes: int
    weight: float = 1.0
    cap_bps: int | None = None
    qps: int | None = None
    path: tuple[int, ...] | None = None
    tag: str = ""
    priority: int | None = None
    ack_path: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class FlowRecord:
    """What happened: times in ps; ``end_ps`` is -1 while the flow has not ended."""

    flow: Flow
    start_ps: int
    end_ps: int
    bound_ps: int
    wire_bytes: int
    path: tuple[int, ...]

    @property
    def fct_ps(self) -> int:
        """Flow completion time, -1 while it has not ended."""
        return self.end_ps - self.start_ps if self.end_ps >= 0 else -1
