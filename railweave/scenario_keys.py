# SPDX-License-Identifier: Apache-2.0
"""Blocks of a scenario file: ``routing:``, ``fluid:``, ``packet:``, ``telemetry:``, ``faults:``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from railweave.fabric.about import NCCL, UEC, about
from railweave.fabric.engine import MOST_TOLERANCE
from railweave.fabric.faults import DETECTION_DELAY_PS
from railweave.fabric.fields import FileModel, Rate, Size, Time

__all__ = ["FaultModel", "FluidModel", "PacketModel", "RoutingModel", "TelemetryModel"]


class RoutingModel(FileModel):
    """How flows choose among equal paths."""

    policy: Literal["ecmp", "ecmp-polarised", "rail", "spray", "flowlet", "adaptive"] = Field(
        "ecmp",
        description=about(
            "How flows choose among equal paths; flowlet and adaptive are for the packet engine",
            "ecmp",
            "RFC 2992",
        ),
    )
    spray: Literal["random", "rr"] | None = Field(
        None,
        description=about("Sprayed packets go at random or in turn (packet engine)", "random"),
    )
    entropies: int | None = Field(
        None,
        ge=1,
        le=2**16,
        description=about(
            "Sprayed packets carry so many values in turn, and switches go by them (packet engine)",
            "256 with recovery: trim, else each switch chooses by itself",
            UEC,
            unit="values",
        ),
    )
    adaptive: Literal["full", "two-choices"] | None = Field(
        None,
        description=about(
            "Compare the queues of all ways, or of two taken at random (packet engine)", "full"
        ),
    )
    adaptive_quantum: Size | None = Field(
        None,
        ge=1,
        description=about(
            "Queues are compared in such steps (packet engine)", "8KiB", unit="bytes"
        ),
    )
    flowlet_gap: Time | None = Field(
        None,
        ge=1,
        description=about(
            "A pause after which a flow may go another way (packet engine)", "50us", unit="a time"
        ),
    )
    qps: int = Field(
        1,
        ge=1,
        le=4096,
        description=about(
            "Queue pairs of each pair of NICs that talk", "1", NCCL, unit="queue pairs"
        ),
    )
    qp_mode: Literal["split", "round-robin"] = Field(
        "split",
        description=about(
            "split: a share of a message's bytes on each queue pair; round-robin: messages "
            "take turns",
            "split",
        ),
    )
    detection_delay: Time = Field(
        DETECTION_DELAY_PS,
        description=about(
            "From a link's going down or coming up in mid-run until routes follow",
            "10ms",
            unit="a time",
        ),
    )
    failover: Literal["none", "nic"] = Field(
        "none",
        description=about(
            "nic: GPUs whose NIC is cut off when the run begins use another of their host", "none"
        ),
    )


class FluidModel(FileModel):
    """How exact the fluid engine has to be."""

    tolerance: float = Field(
        0.0,
        ge=0.0,
        le=MOST_TOLERANCE,
        description=about(
            "How far a rate may be from the fair one, relative to itself, for the sake of speed; "
            "times are off by less on average, single ones by several times as much",
            "0, which is exact",
            unit="a share",
        ),
        examples=[0.01],
    )


class PacketModel(FileModel):
    """How much work the packet engine may save itself."""

    elide: bool = Field(
        True,
        description=about(
            "Messages that no other one disturbs take no events for their packets: exact, results "
            "are the same to the picosecond either way",
            "true",
        ),
    )
    quantum: int = Field(
        1,
        ge=1,
        le=4096,
        description=about(
            "Packets of a message that go as one where no pause, mark or loss can act; the rest "
            "stays exact. An approximation: its share and its error are told",
            "1, which is exact",
            unit="packets",
        ),
        examples=[4, 16],
    )


class TelemetryModel(FileModel):
    """Queues over time (packet engine): series of chosen ports, and percentiles of all."""

    every: Time = Field(
        10_000_000,
        ge=1,
        description=about("Between samples; it grows with long runs", "10us", unit="a time"),
    )
    ports: tuple[str, ...] = Field(
        (),
        description=about(
            "Ports (leaf0:3) or links (leaf0:3>spine1:0) whose series are kept", "none"
        ),
    )
    most: int = Field(
        4096,
        ge=2,
        le=10**6,
        description=about("What a series has at most", "4096", unit="samples"),
    )


class FaultModel(FileModel):
    """What breaks, slows down or comes back, before the run begins or during it."""

    at: Time = Field(
        0, description=about("When it happens", "0s: before the run begins", unit="a time")
    )
    link: str | None = Field(
        None,
        description=about("A cable or one direction of it, by name", "none: node names what fails"),
    )
    node: str | None = Field(
        None,
        description=about("A device or a host, by name", "none: link names what fails"),
    )
    do: Literal["down", "up", "degrade", "pause-storm"] = Field(
        description=about(
            "What happens: it goes down, comes back, has its rate lowered, or (a host; packet "
            "engine) sends pauses without end"
        )
    )
    rate: Rate | None = Field(
        None,
        description=about(
            "What is left of a degraded link's rate", "none: degrade needs one", unit="a rate"
        ),
    )
    duration: Time | None = Field(
        None,
        alias="for",
        description=about("How long it lasts; not for up", "to the end of the run", unit="a time"),
    )
    priority: int | None = Field(
        None,
        ge=0,
        le=7,
        description=about(
            "What a storm pauses (packet engine)",
            "3, the network's own",
            unit="an 802.1p priority, 0 to 7",
        ),
    )
