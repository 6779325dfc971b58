# SPDX-License-Identifier: Apache-2.0
"""The keys of the ``network:`` block that only the packet engine heeds.

Defaults and their sources are those of `railweave.fabric.packet.settings`; the tags in the
descriptions are explained there.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from railweave.fabric import units
from railweave.fabric.errors import InputError
from railweave.fabric.fields import FileModel, Rate, Size, Time, fault

__all__ = [
    "BufferModel",
    "CcModel",
    "EcnModel",
    "LinkBufferModel",
    "LinkPfcModel",
    "LossModel",
    "PfcModel",
    "TrimModel",
    "link_settings",
    "merged",
]


def _word_or(word: str, parse: Any) -> BeforeValidator:
    """Let a word stand for -1, and parse anything else."""

    def read(value: object) -> int:
        if value in (word, -1):
            return -1
        try:
            return int(parse(value))
        except InputError as error:
            raise fault(error.message, expected=f"{word}, or {error.expected}") from None

    return BeforeValidator(read)


def _word_schema(word: str, what: str, example: str) -> WithJsonSchema:
    return WithJsonSchema(
        {"type": "string", "description": f"{word}, or {what}", "examples": [word, example]}
    )


SizeOrAuto = Annotated[
    int,
    _word_or("auto", units.parse_size_bytes),
    PlainSerializer(
        lambda v: "auto" if v < 0 else units.format_size(v), return_type=str, when_used="json"
    ),
    _word_schema("auto", "a size in bytes, with its unit", "100kB"),
]
TimeOrNone = Annotated[
    int,
    _word_or("none", units.parse_time_ps),
    PlainSerializer(
        lambda v: "none" if v < 0 else units.format_time(v), return_type=str, when_used="json"
    ),
    _word_schema("none", "a duration, with its unit", "500us"),
]


class BufferModel(FileModel):
    """The packet buffer of each switch."""

    total: Size | None = Field(
        None, ge=1, description="Of a switch (its catalogue entry's, else 64MB, assumed)"
    )
    reserve: Size | None = Field(None, description="Per port and lossless priority (4KiB [HPCC])")
    alpha: float | None = Field(
        None, gt=0, le=1024, description="Dynamic threshold over the free buffer (0.125 [HPCC])"
    )
    headroom: SizeOrAuto | None = Field(
        None, description="Per port and lossless priority (auto: by rate and length [802])"
    )
    mode: Literal["dynamic", "static"] | None = Field(
        None, description="Thresholds follow the free buffer, or stand at xoff and xon (dynamic)"
    )
    xoff: Size | None = Field(None, description="Static threshold at which senders are paused")
    xon: Size | None = Field(None, description="And at which they go on (xoff less hysteresis)")
    hysteresis: Size | None = Field(
        None, description="How far below the threshold a pause ends (3KiB [HPCC])"
    )

    @model_validator(mode="after")
    def _static_has_xoff(self) -> BufferModel:
        if self.mode == "static" and self.xoff is None:
            raise fault("static thresholds need a size", key="xoff", expected="xoff: 100kB")
        if self.mode != "static" and (self.xoff is not None or self.xon is not None):
            raise fault("xoff and xon are for static thresholds", key="mode", expected="static")
        if self.xon is not None and self.xoff is not None and self.xon > self.xoff:
            raise fault("xon lies above xoff", key="xon", expected="at most xoff")
        return self


class WatchdogModel(FileModel):
    """A watchdog over paused queues of switches (SONiC's)."""

    enabled: bool | None = Field(None, description="It watches (true, where the block is given)")
    detect: Time | None = Field(
        None, ge=1, description="A queue paused so long without a break is stuck (200ms [SON])"
    )
    poll: Time | None = Field(None, ge=1, description="How often it looks (100ms [A])")
    restore: Time | None = Field(
        None, ge=1, description="Without pauses for so long they count again (2 x detect [SON])"
    )
    action: Literal["drop", "forward", "alert"] | None = Field(
        None, description="Drop a stuck queue, send it in spite of pauses, or only tell (drop)"
    )


class PfcModel(FileModel):
    """Priority flow control (IEEE 802.1Qbb)."""

    enabled: bool | None = Field(None, description="Lossless priorities pause senders (true)")
    response: Time | None = Field(
        None, description="From a pause's arrival to its effect (a fifth of the most allowed [A])"
    )
    expiry: bool | None = Field(
        None, description="Pauses end after 65535 quanta and are refreshed before (true [802])"
    )
    lossless: tuple[Annotated[int, Field(ge=0, le=7)], ...] | None = Field(
        None, description="Priorities that are lossless ([3])"
    )

    refresh: Time | None = Field(
        None, ge=1, description="A pause is repeated so long after it (half of 65535 quanta [802])"
    )
    watchdog: WatchdogModel | None = None


class EcnModel(FileModel):
    """Marking of data packets at switches (RFC 3168; law of [P15])."""

    enabled: bool | None = Field(None, description="Switches mark (true)")
    kmin: Size | None = Field(None, description="No marks up to it (by rate [HPCC] [AST])")
    kmax: Size | None = Field(None, description="All marked above it (by rate [HPCC] [AST])")
    pmax: float | None = Field(
        None, ge=0, le=1, description="Probability of a mark at kmax (0.2 [HPCC])"
    )
    at: Literal["dequeue", "enqueue"] | None = Field(None, description="When (dequeue)")

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

    kind: Literal["none", "dcqcn"] | None = Field(None, description="Which (dcqcn)")
    profile: Literal["paper", "nic", "scaled"] | None = Field(
        None, description="Set of constants: [P15], [NV], [HPCC] (scaled)"
    )
    g: float | None = Field(None, gt=0, lt=1, description="Weight of a new mark in alpha")
    alpha_period: Time | None = Field(None, ge=1, description="Between decays of alpha")
    decrease_period: Time | None = Field(
        None, ge=1, description="Between cuts at most (nic, scaled)"
    )
    rate_timer: Time | None = Field(None, ge=1, description="Between increases of the rate")
    byte_counter: Size | None = Field(None, description="Bytes between increases; 0B: none")
    fast_recovery: int | None = Field(None, ge=1, description="Increases towards the old rate")
    rai: Rate | None = Field(None, description="Additive increase")
    rhai: Rate | None = Field(None, description="Hyper increase")
    min_rate: Rate | None = Field(None, ge=1, description="Lowest rate")
    clamp: bool | None = Field(
        None, description="The first cut lowers the target too (false; nic, scaled)"
    )
    notify: Literal["cnp", "ack-echo"] | None = Field(
        None, description="By notification packets, or marks echoed on ACKs at once (cnp)"
    )
    cnp_interval: Time | None = Field(
        None, description="Between notifications of a queue pair (50us [P15]; nic: 4us [A])"
    )


class LinkBufferModel(FileModel):
    """What arrives by some links has buffers of its own kind."""

    reserve: Size | None = Field(None, description="Per lossless priority")
    alpha: float | None = Field(None, gt=0, le=1024, description="Dynamic threshold")
    headroom: Size | None = Field(None, description="Per lossless priority")
    xoff: Size | None = Field(None, description="Static threshold instead of a dynamic one")
    xon: Size | None = Field(None, description="And where senders go on (xoff less hysteresis)")
    hysteresis: Size | None = Field(None, description="How far below the threshold a pause ends")

    @model_validator(mode="after")
    def _xon_below(self) -> LinkBufferModel:
        if self.xon is not None and (self.xoff is None or self.xon > self.xoff):
            raise fault("xon needs an xoff at or above it", key="xon", expected="at most xoff")
        return self


class LinkPfcModel(FileModel):
    """Pauses on some links."""

    enabled: bool | None = Field(None, description="Lossless priorities pause their senders")
    response: Time | None = Field(None, description="From a pause's arrival to its effect")


class TrimModel(FileModel):
    """Trimming and receiver credit (recovery: trim)."""

    size: Size | None = Field(
        None, ge=64, le=2**14, description="What is left of a trimmed packet, L2 (64B [UEC])"
    )
    queue: SizeOrAuto | None = Field(
        None,
        description="Beyond it data is trimmed; headers may take twice that (auto: one "
        "bandwidth-delay product [UEC]; NDP: eight packets)",
    )
    window: SizeOrAuto | None = Field(
        None, description="Sent before credit is needed (auto: the path's BDP [EQDS])"
    )
    pull: int | None = Field(None, ge=1, description="Packets that one pull grants (4 [UEC])")
    credit: float | None = Field(
        None, gt=0, le=1, description="Share of its line that a receiver grants (0.98 [A])"
    )


class LossModel(FileModel):
    """Random loss on network links."""

    rate: float | None = Field(None, ge=0, lt=1, description="Per packet and link (0)")


def link_settings(
    *,
    buffer: LinkBufferModel | None,
    pfc: LinkPfcModel | None,
    ecn: EcnModel | None,
    loss: LossModel | None,
) -> dict[str, Any]:
    """Return the keys given for some links, by the names that `override` knows."""
    given: dict[str, Any] = {}
    if buffer is not None:
        given |= {
            "reserve": buffer.reserve, "alpha": buffer.alpha, "room": buffer.headroom,
            "xoff": buffer.xoff, "xon": buffer.xon, "hysteresis": buffer.hysteresis,
        }  # fmt: skip
    if pfc is not None:
        given |= {"pfc": pfc.enabled, "response_ps": pfc.response}
    if ecn is not None:
        given |= {"ecn": ecn.enabled, "kmin": ecn.kmin, "kmax": ecn.kmax, "pmax": ecn.pmax}
    if loss is not None:
        given["loss_rate"] = loss.rate
    return {name: value for name, value in given.items() if value is not None}


RECOVERIES: Final = ("go-back-n", "go-back-0", "selective-repeat", "trim")


def merged(models: list[Any], kind: Any) -> Any:
    """Return one block out of several, later over earlier; what nobody gave stays None."""
    given: dict[str, Any] = {}
    for model in models:
        if model is not None:
            given |= {name: getattr(model, name) for name in model.model_fields_set}
    return kind().model_copy(update=given)
