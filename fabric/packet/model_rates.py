# SPDX-License-Identifier: Apache-2.0
"""The keys ``ecn:`` and ``cc:`` of the ``network:`` block: marks, and who slows down for them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from railweave.fabric.about import ASTRA, DCQCN, HPCC, NVIDIA, UEC, about
from railweave.fabric.fields import FileModel, Rate, Size, Time, fault

__all__ = ["CcModel", "EcnModel"]


class EcnModel(FileModel):
    """Marking of data packets at switches (RFC 3168; law of [P15])."""

    enabled: bool | None = Field(None, description=about("Switches mark", "true", DCQCN))
    kmin: Size | None = Field(
        None,
        description=about(
            "No packet is marked up to this queue",
            "100kB at 25G, 400kB at 100G, 600kB at 200G, 800kB at 400G, 1200kB at 800G; trimming: "
            "a fifth of the queue's room",
            f"{HPCC}; from 200G {ASTRA}; 800G assumed; trimming {UEC}",
            unit="bytes",
        ),
    )
    kmax: Size | None = Field(
        None,
        description=about(
            "Every packet is marked above this queue",
            "four times kmin",
            f"{HPCC}; from 200G {ASTRA}; 800G assumed; trimming {UEC}",
            unit="bytes",
        ),
    )
    pmax: float | None = Field(
        None,
        ge=0,
        le=1,
        description=about(
            "Probability of a mark at kmax, growing from 0 at kmin",
            "0.2; trimming: 1",
            f"{HPCC}; trimming {UEC}",
            unit="a probability",
        ),
    )
    at: Literal["dequeue", "enqueue"] | None = Field(
        None, description=about("When it is decided", "dequeue", DCQCN)
    )

    @model_validator(mode="after")
    def _both(self) -> EcnModel:
        if (self.kmin is None) != (self.kmax is None):
            missing = "kmin" if self.kmin is None else "kmax"
            raise fault("kmin and kmax come together", key=missing, expected=f"a {missing}")
        if self.kmin is not None and self.kmax is not None and self.kmin > self.kmax:
            raise fault("kmin lies above kmax", key="kmin", expected="at most kmax")
        return self


class CcModel(FileModel):
    """Congestion control of queue pairs."""

    kind: Literal["none", "dcqcn"] | None = Field(
        None,
        description=about(
            "DCQCN, or every queue pair at its line's rate",
            "dcqcn; none where receivers give credit (recovery: trim)",
            f"{DCQCN}; {UEC}",
        ),
    )
    profile: Literal["paper", "nic", "scaled"] | None = Field(
        None,
        description=about(
            f"Set of constants and structure. paper: {DCQCN}; nic: {NVIDIA}; scaled: increases "
            "grow with the line's rate",
            "scaled",
            HPCC,
        ),
    )
    g: float | None = Field(
        None,
        gt=0,
        lt=1,
        description=about(
            "Weight of a new mark in alpha",
            "1/256; nic: 5/1024",
            f"{DCQCN}; nic {NVIDIA}",
            unit="a share",
        ),
    )
    alpha_period: Time | None = Field(
        None,
        ge=1,
        description=about(
            "Between decays of alpha",
            "1us; paper: 55us",
            f"{HPCC}, {NVIDIA}; paper {DCQCN}",
            unit="a time",
        ),
    )
    decrease_period: Time | None = Field(
        None,
        ge=1,
        description=about(
            "Between cuts of the rate at least; paper: every notification cuts",
            "4us",
            f"{HPCC}, {NVIDIA}",
            unit="a time",
        ),
    )
    rate_timer: Time | None = Field(
        None,
        ge=1,
        description=about(
            "Between increases of the rate",
            "300us; paper: 55us",
            f"{HPCC}, {NVIDIA}; paper {DCQCN}",
            unit="a time",
        ),
    )
    byte_counter: Size | None = Field(
        None,
        description=about(
            "Sent between increases of the rate; 0B: only the timer counts",
            "0B; paper: 10MB",
            f"{HPCC}; paper {DCQCN}",
            unit="bytes",
        ),
    )
    fast_recovery: int | None = Field(
        None,
        ge=1,
        description=about(
            "Increases half way to the target before it grows",
            "1; paper: 5",
            f"{HPCC}, {NVIDIA}; paper {DCQCN}",
            unit="increases",
        ),
    )
    rai: Rate | None = Field(
        None,
        description=about(
            "Additive increase of the target",
            "5Mbps for each 25 Gb/s of the line; nic: 5Mbps; paper: 40Mbps",
            f"{HPCC}; nic {NVIDIA}; paper {DCQCN}",
            unit="a rate",
        ),
    )
    rhai: Rate | None = Field(
        None,
        description=about(
            "Hyper increase of the target",
            "50Mbps for each 25 Gb/s of the line; nic: 50Mbps; paper: 400Mbps",
            f"{HPCC}; nic {NVIDIA}; paper assumed",
            unit="a rate",
        ),
    )
    min_rate: Rate | None = Field(
        None,
        ge=1,
        description=about(
            "Lowest rate",
            "1Gbps; nic: 1Mbps; paper: 10Mbps",
            f"{HPCC}; nic {NVIDIA}; paper assumed",
            unit="a rate",
        ),
    )
    clamp: bool | None = Field(
        None,
        description=about("The first cut lowers the target too; not for paper", "false", NVIDIA),
    )
    notify: Literal["cnp", "ack-echo"] | None = Field(
        None,
        description=about(
            "Senders learn of marks by notification packets, or echoed on ACKs at once",
            "cnp",
            DCQCN,
        ),
    )
    cnp_interval: Time | None = Field(
        None,
        description=about(
            "Between notifications of a queue pair at least",
            "50us; nic: 4us",
            f"{DCQCN}; nic assumed",
            unit="a time",
        ),
    )
