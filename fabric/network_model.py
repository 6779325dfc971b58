# SPDX-License-Identifier: Apache-2.0
"""The ``network:`` block of topology and scenario files, and what it means to an engine."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field, model_validator

from railweave.fabric.fields import Delay, FileModel, HeaderSize, Size, fault
from railweave.fabric.network import NetworkSettings

__all__ = ["PHY_LATENCY_PS", "AckModel", "NetworkModel", "network_settings", "phy_latency_ps"]

PHY_LATENCY_PS: Final = 100_000
"""FEC and SerDes of a link at 100G and above; assumed, added to 5 ns per metre."""

_PACKET_KEYS: Final = (
    *("buffer", "pfc", "ecn", "cc", "recovery", "rto", "loss", "fct_at", "headroom"),
    *("class", "nic_first"),
)


def _refuse_packet_keys(data: Any) -> Any:
    for key in data if isinstance(data, dict) else ():
        if key in _PACKET_KEYS:
            raise fault("needs engine packet, which this version does not have", key=str(key))
    return data


class AckModel(FileModel):
    """How often packets are acknowledged."""

    every: int | None = Field(
        None, ge=0, description="One ACK for this many packets; 0: no ACKs (4)"
    )
    size: HeaderSize | None = Field(None, description="Wire bytes of an ACK (86B on IPv4)")

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        return _refuse_packet_keys(data)


class NetworkModel(FileModel):
    """Frame sizes and fixed latencies; what is left out keeps its default."""

    mtu: Size | None = Field(
        None, ge=1, le=2**30, description="RDMA payload of a full packet (4096B)"
    )
    ip: Literal[4, 6] | None = Field(None, description="IP version (4)")
    vlan: bool | None = Field(None, description="Frames carry an 802.1Q tag (false)")
    switching: Literal["store-and-forward", "cut-through"] | None = Field(
        None, description="How switches forward (store-and-forward)"
    )
    switch_latency: Delay | None = Field(None, description="Added per switch (600ns)")
    host_latency: Delay | None = Field(
        None, description="Added once per message at each end of a network path (500ns)"
    )
    phy_latency: Delay | None = Field(
        None, description="Added to 5 ns/m on links given by their length (100ns)"
    )
    ack: AckModel | None = None
    frame_overhead: HeaderSize | None = Field(
        None, description="Replaces every frame field, RETH included"
    )

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        return _refuse_packet_keys(data)


def _latest(models: tuple[NetworkModel | None, ...], name: str) -> Any:
    """Return what the last model that says anything about ``name`` says, else None."""
    for model in reversed(models):
        value = getattr(model, name, None)
        if value is not None:
            return value
    return None


def network_settings(*models: NetworkModel | None) -> NetworkSettings:
    """Merge ``network:`` blocks, later over earlier, over the defaults.

    Examples
    --------
    >>> topology, scenario = NetworkModel(mtu="1024B", vlan=True), NetworkModel(mtu="4096B")
    >>> merged = network_settings(topology, scenario)
    >>> merged.mtu_bytes, merged.vlan
    (4096, True)
    """
    acks = tuple(model.ack for model in models if model is not None and model.ack is not None)
    switching = _latest(models, "switching")
    given = {
        "mtu_bytes": _latest(models, "mtu"),
        "ip_version": _latest(models, "ip"),
        "vlan": _latest(models, "vlan"),
        "cut_through": None if switching is None else switching == "cut-through",
        "switch_latency_ps": _latest(models, "switch_latency"),
        "host_latency_ps": _latest(models, "host_latency"),
        "ack_every": next((a.every for a in reversed(acks) if a.every is not None), None),
        "ack_bytes": next((a.size for a in reversed(acks) if a.size is not None), None),
        "frame_overhead_bytes": _latest(models, "frame_overhead"),
    }
    return NetworkSettings(**{name: value for name, value in given.items() if value is not None})


def phy_latency_ps(*models: NetworkModel | None) -> int:
    """Return the PHY constant in ps, from the last block that gives one."""
    given = _latest(models, "phy_latency")
    return PHY_LATENCY_PS if given is None else int(given)
