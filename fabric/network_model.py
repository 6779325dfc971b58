# SPDX-License-Identifier: Apache-2.0
"""The ``network:`` block of topology and scenario files, and what it means to the engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, Literal

from pydantic import Field

from railweave.fabric.about import DCQCN, HPCC, IBTA, NCCL, PFC, ROCE, UEC, about
from railweave.fabric.fields import Delay, FileModel, HeaderSize, Size
from railweave.fabric.network import NetworkSettings
from railweave.fabric.packet.model import (
    BufferModel,
    LossModel,
    PfcModel,
    TimeOrNone,
    TrimModel,
    WatchdogModel,
    merged,
)
from railweave.fabric.packet.model_rates import CcModel, EcnModel
from railweave.fabric.packet.settings import PacketSettings, Watchdog, cc_profile

__all__ = [
    "PACKET_KEYS",
    "PHY_LATENCY_PS",
    "AckModel",
    "NetworkModel",
    "network_settings",
    "packet_settings",
    "phy_latency_ps",
]

PHY_LATENCY_PS: Final = 100_000
"""FEC and SerDes of a link at 100G and above; assumed, added to 5 ns per metre."""

PACKET_KEYS: Final = (
    *("buffer", "pfc", "ecn", "cc", "recovery", "trim", "rto", "retries", "livelock", "loss"),
    "fct_at",
)
"""Keys that only the packet engine heeds."""


class AckModel(FileModel):
    """How packets are acknowledged."""

    every: int | None = Field(
        None,
        ge=0,
        description=about("One ACK for so many packets; 0: no ACKs at all", "4", unit="packets"),
    )
    size: HeaderSize | None = Field(
        None,
        description=about(
            "An ACK on the wire", "86B on IPv4, 106B on IPv6, 30B on InfiniBand", ROCE, unit="bytes"
        ),
    )
    traffic_class: Literal["control", "data"] | None = Field(
        None,
        alias="class",
        description=about("ACKs travel in the control priority, or in that of the data", "control"),
    )
    nic_first: bool | None = Field(
        None, description=about("ACKs overtake data at the sending host's NIC", "true")
    )


class NetworkModel(FileModel):
    """Frame sizes and fixed latencies; what is left out keeps its default."""

    mtu: Size | None = Field(
        None,
        ge=1,
        le=2**30,
        description=about("RDMA payload of a full packet", "4096B", IBTA, unit="bytes"),
    )
    ip: Literal[4, 6] | None = Field(
        None, description=about("IP version: 20 or 40 bytes of header", "4", ROCE, unit="a version")
    )
    vlan: bool | None = Field(
        None, description=about("Frames carry an 802.1Q tag of 4 bytes", "false", "IEEE 802.1Q")
    )
    switching: Literal["store-and-forward", "cut-through"] | None = Field(
        None, description=about("How switches forward", "store-and-forward")
    )
    switch_latency: Delay | None = Field(
        None,
        description=about(
            "Added by each switch; vendors quote 250ns to 800ns", "600ns", unit="a time"
        ),
    )
    host_latency: Delay | None = Field(
        None,
        description=about(
            "Added once for each message at each end of a network path", "500ns", unit="a time"
        ),
    )
    phy_latency: Delay | None = Field(
        None,
        description=about(
            "Added to 5 ns/m on links given by their length (error correction, serialisers)",
            "100ns",
            unit="a time",
        ),
    )
    ack: AckModel | None = Field(
        None, description=about("How packets are acknowledged", "an ACK for each 4 packets")
    )
    frame_overhead: HeaderSize | None = Field(
        None,
        description=about(
            "Replaces every frame field, RETH, preamble and gap included",
            "none: the fields of RoCEv2, 82B and 16B on a message's first packet",
            ROCE,
            unit="bytes",
        ),
    )
    fct_at: Literal["receiver", "sender-ack"] | None = Field(
        None,
        description=about(
            "A message ends with its last byte, or with its sender's last ACK", "receiver"
        ),
    )
    buffer: BufferModel | None = Field(
        None,
        description=about(
            "The packet buffer of each switch", "of its catalogue entry, dynamic thresholds", HPCC
        ),
    )
    pfc: PfcModel | None = Field(
        None, description=about("Priority flow control", "on, for priority 3", PFC)
    )
    ecn: EcnModel | None = Field(
        None, description=about("Marks of switches (RFC 3168)", "on, by the link's rate", DCQCN)
    )
    cc: CcModel | None = Field(
        None,
        description=about("Congestion control of queue pairs", "DCQCN, profile scaled", HPCC),
    )
    recovery: Literal["go-back-n", "go-back-0", "selective-repeat", "trim"] | None = Field(
        None,
        description=about(
            "What is done about lost packets. trim: switches cut packets to headers, and receivers "
            "give credit",
            "go-back-n; trim on links of model trimming",
            f"{IBTA}; {UEC}",
        ),
    )
    trim: TrimModel | None = Field(
        None,
        description=about("Trimming and receiver credit", "with recovery: trim", UEC),
    )
    rto: TimeOrNone | None = Field(
        None,
        description=about(
            "Retransmission timeout, or none",
            "500us; where retries would end before a failed link or a paused queue is noticed, the "
            "least 4.096us x 2^n that outlasts it",
            f"assumed; steps {IBTA}, 9.7.6.1.3",
            unit="a time",
        ),
    )
    retries: int | None = Field(
        None,
        ge=0,
        le=10**6,
        description=about(
            "Timeouts in a row before a queue pair gives up, and its work fails",
            "7",
            NCCL,
            unit="timeouts",
        ),
    )
    livelock: int | None = Field(
        None,
        ge=0,
        description=about(
            "So many packets sent again in a row, timeouts aside, without one acknowledged for the "
            "first time, end the run as a livelock; 0: never",
            "1000000",
            unit="packets",
        ),
    )
    loss: LossModel | None = Field(None, description=about("Random loss on network links", "none"))


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


def packet_keys(*models: NetworkModel | None) -> list[str]:
    """Return the keys given that only the packet engine heeds."""
    return [key for key in PACKET_KEYS if any(getattr(m, key, None) is not None for m in models)]


def packet_blocks(*models: NetworkModel | None) -> NetworkModel:
    """Merge what the packet engine alone heeds, later blocks over earlier, key by key."""
    given = [model for model in models if model is not None]
    blocks = {
        "buffer": BufferModel, "pfc": PfcModel, "ecn": EcnModel, "cc": CcModel, "loss": LossModel,
        "ack": AckModel, "trim": TrimModel,
    }  # fmt: skip
    values: dict[str, Any] = {
        name: merged([getattr(model, name) for model in given], kind)
        for name, kind in blocks.items()
    }
    alone = ("fct_at", "recovery", "rto", "retries", "livelock")
    values |= {name: _latest(models, name) for name in alone}
    return NetworkModel().model_copy(update=values)


def _watchdog(model: WatchdogModel | None) -> Watchdog | None:
    """Return a watchdog as the engine has it."""
    if model is None or model.enabled is False:
        return None
    given = {"detect_ps": model.detect, "poll_ps": model.poll, "action": model.action}
    known: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    dog = Watchdog(**known)
    return replace(dog, restore_ps=model.restore or 2 * dog.detect_ps)


def packet_settings(*models: NetworkModel | None, seed: int = 1) -> PacketSettings:
    """Merge ``network:`` blocks into the packet engine's settings.

    Examples
    --------
    >>> packet_settings(NetworkModel(cc={"kind": "none"}), NetworkModel(rto="1ms")).rto_ps
    1000000000
    """
    all_of = packet_blocks(*models)
    buffer, pfc, ecn, cc, ack, trim = (
        getattr(all_of, name) for name in ("buffer", "pfc", "ecn", "cc", "ack", "trim")
    )
    assert all_of.loss is not None
    control = None
    if cc.kind != "none":
        control = cc_profile(
            cc.profile or "scaled", g=cc.g, alpha_ps=cc.alpha_period,
            decrease_ps=cc.decrease_period, rate_ps=cc.rate_timer, byte_counter=cc.byte_counter,
            fast_recovery=cc.fast_recovery, min_bps=cc.min_rate, clamp=cc.clamp,
            cnp_ps=cc.cnp_interval,
        )  # fmt: skip
        # Given increases hold as they are; a profile's may grow with the line's rate.
        if cc.rai is not None or cc.rhai is not None:
            control = replace(
                control,
                rai_fixed_bps=cc.rai if cc.rai is not None else control.rai_fixed_bps,
                rhai_fixed_bps=cc.rhai if cc.rhai is not None else control.rhai_fixed_bps,
            )
    given = {
        "ack_control": None if ack.traffic_class is None else ack.traffic_class == "control",
        "nic_first": ack.nic_first,
        "fct_at_sender": None if all_of.fct_at is None else all_of.fct_at == "sender-ack",
        "pfc": pfc.enabled,
        "lossless": pfc.lossless,
        "response_ps": pfc.response,
        "pfc_expiry": pfc.expiry,
        "refresh_ps": pfc.refresh,
        "watchdog": _watchdog(pfc.watchdog),
        "buffer_bytes": buffer.total,
        "reserve_bytes": buffer.reserve,
        "alpha": buffer.alpha,
        "hysteresis_bytes": buffer.hysteresis,
        "headroom_bytes": None if buffer.headroom in (None, -1) else buffer.headroom,
        "xoff_bytes": buffer.xoff,
        "xon_bytes": buffer.xon,
        "ecn": ecn.enabled,
        "kmin_bytes": ecn.kmin,
        "kmax_bytes": ecn.kmax,
        "pmax": ecn.pmax,
        "ecn_at_enqueue": None if ecn.at is None else ecn.at == "enqueue",
        "ack_echo": None if cc.notify is None else cc.notify == "ack-echo",
        "recovery": all_of.recovery,
        "rto_ps": None if all_of.rto is None else max(all_of.rto, 0),
        "retries": all_of.retries,
        "livelock_packets": all_of.livelock,
        "trim_bytes": trim.size,
        "trim_queue_bytes": None if trim.queue in (None, -1) else trim.queue,
        "unasked_bytes": None if trim.window in (None, -1) else trim.window,
        "pull_packets": trim.pull,
        "pull_share": trim.credit,
        "loss_rate": all_of.loss.rate,
    }
    known = {name: value for name, value in given.items() if value is not None}
    return PacketSettings(
        cc=control, cc_given=bool(cc.model_fields_set), trim_given=bool(trim.model_fields_set),
        seed=seed, **known,
    )  # fmt: skip
