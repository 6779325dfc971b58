# SPDX-License-Identifier: Apache-2.0
"""The keys of the ``network:`` block that only the packet engine heeds.

Defaults are those of `railweave.fabric.packet.settings`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from railweave.fabric import units
from railweave.fabric.about import EQDS, HPCC, PFC, SONIC, UEC, about
from railweave.fabric.errors import InputError
from railweave.fabric.fields import FileModel, Size, Time, fault

if TYPE_CHECKING:
    from railweave.fabric.packet.model_rates import EcnModel

__all__ = [
    "BufferModel",
    "LinkBufferModel",
    "LinkPfcModel",
    "LossModel",
    "PfcModel",
    "TrimModel",
    "link_settings",
    "merged",
]


def _word_or(word: str, parse: Any, *, least: int = 0) -> BeforeValidator:
    """Let a word stand for -1, and parse anything else, which must be ``least`` or more."""

    def read(value: object) -> int:
        if value in (word, -1):
            return -1
        try:
            found = int(parse(value))
        except InputError as error:
            raise fault(error.message, expected=f"{word}, or {error.expected}") from None
        if found < least:
            raise fault(f"{value} is too little", expected=f"{word}, or more than that")
        return found

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
    _word_or("none", units.parse_time_ps, least=1),
    PlainSerializer(
        lambda v: "none" if v < 0 else units.format_time(v), return_type=str, when_used="json"
    ),
    _word_schema("none", "a duration, with its unit", "500us"),
]


class BufferModel(FileModel):
    """The packet buffer of each switch."""

    total: Size | None = Field(
        None,
        ge=1,
        description=about("Of a switch", "the catalogue's, else 64MB", unit="bytes"),
    )
    reserve: Size | None = Field(
        None,
        description=about("Kept for each port and lossless priority", "4KiB", HPCC, unit="bytes"),
    )
    alpha: float | None = Field(
        None,
        gt=0,
        le=1024,
        description=about(
            "Dynamic threshold: what a lossless queue may share, over the free buffer; of a port "
            "faster than the hosts as much more, up to 1",
            "0.125",
            HPCC,
            unit="a share",
        ),
    )
    headroom: SizeOrAuto | None = Field(
        None,
        description=about(
            "Kept for each port and lossless priority, for what arrives after a pause was sent",
            "auto, by the link's rate and length",
            PFC,
            unit="bytes",
        ),
    )
    mode: Literal["dynamic", "static"] | None = Field(
        None,
        description=about(
            "Thresholds follow the free buffer, or stand at xoff and xon", "dynamic", HPCC
        ),
    )
    xoff: Size | None = Field(
        None,
        description=about(
            "Static threshold beyond which senders are paused",
            "none: mode static needs one",
            unit="bytes",
        ),
    )
    xon: Size | None = Field(
        None,
        description=about(
            "Static threshold down to which they go on", "xoff less hysteresis", HPCC, unit="bytes"
        ),
    )
    hysteresis: Size | None = Field(
        None,
        description=about("How far below the threshold a pause ends", "3KiB", HPCC, unit="bytes"),
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

    enabled: bool | None = Field(
        None, description=about("It watches", "true, where the block is given")
    )
    detect: Time | None = Field(
        None,
        ge=1,
        description=about(
            "A queue paused so long without a break is stuck", "200ms", SONIC, unit="a time"
        ),
    )
    poll: Time | None = Field(
        None, ge=1, description=about("How often it looks", "100ms", unit="a time")
    )
    restore: Time | None = Field(
        None,
        ge=1,
        description=about(
            "Without pauses for so long they count again", "twice detect", SONIC, unit="a time"
        ),
    )
    action: Literal["drop", "forward", "alert"] | None = Field(
        None,
        description=about(
            "Drop a stuck queue, send it in spite of pauses, or only tell", "drop", SONIC
        ),
    )


class PfcModel(FileModel):
    """Priority flow control (IEEE 802.1Qbb)."""

    enabled: bool | None = Field(
        None, description=about("Lossless priorities pause their senders", "true", PFC)
    )
    response: Time | None = Field(
        None,
        description=about(
            "From a pause's arrival to its effect",
            "a fifth of the most that the standard allows at the link's rate",
            unit="a time",
        ),
    )
    expiry: bool | None = Field(
        None,
        description=about(
            "Pauses end after 65535 quanta of 512 bit times and are refreshed before", "true", PFC
        ),
    )
    lossless: tuple[Annotated[int, Field(ge=0, le=7)], ...] | None = Field(
        None,
        description=about("Priorities that are lossless", "[3]", unit="802.1p priorities, 0 to 7"),
    )
    refresh: Time | None = Field(
        None,
        ge=1,
        description=about(
            "A pause is repeated so long after it", "half of 65535 quanta", PFC, unit="a time"
        ),
    )
    watchdog: WatchdogModel | None = Field(
        None, description=about("Over paused queues of switches", "none", SONIC)
    )


class LinkBufferModel(FileModel):
    """What arrives by some links has buffers of its own kind."""

    reserve: Size | None = Field(
        None,
        description=about(
            "Kept for each lossless priority", "network.buffer.reserve", HPCC, unit="bytes"
        ),
    )
    alpha: float | None = Field(
        None,
        gt=0,
        le=1024,
        description=about(
            "Dynamic threshold: what a lossless queue may share, over the free buffer",
            "network.buffer.alpha",
            HPCC,
            unit="a share",
        ),
    )
    headroom: Size | None = Field(
        None,
        description=about(
            "Kept for each lossless priority, for what arrives after a pause was sent",
            "network.buffer.headroom",
            PFC,
            unit="bytes",
        ),
    )
    xoff: Size | None = Field(
        None,
        description=about(
            "Static threshold instead of a dynamic one", "network.buffer.xoff", unit="bytes"
        ),
    )
    xon: Size | None = Field(
        None,
        description=about(
            "Static threshold down to which senders go on",
            "xoff less hysteresis",
            HPCC,
            unit="bytes",
        ),
    )
    hysteresis: Size | None = Field(
        None,
        description=about(
            "How far below the threshold a pause ends",
            "network.buffer.hysteresis",
            HPCC,
            unit="bytes",
        ),
    )

    @model_validator(mode="after")
    def _xon_below(self) -> LinkBufferModel:
        if self.xon is not None and (self.xoff is None or self.xon > self.xoff):
            raise fault("xon needs an xoff at or above it", key="xon", expected="at most xoff")
        return self


class LinkPfcModel(FileModel):
    """Pauses on some links."""

    enabled: bool | None = Field(
        None,
        description=about("Lossless priorities pause their senders", "network.pfc.enabled", PFC),
    )
    response: Time | None = Field(
        None,
        description=about(
            "From a pause's arrival to its effect", "network.pfc.response", unit="a time"
        ),
    )


class TrimModel(FileModel):
    """Trimming and receiver credit (recovery: trim)."""

    size: Size | None = Field(
        None,
        ge=64,
        le=2**14,
        description=about(
            "What is left of a trimmed packet, from its MAC addresses to its checksum",
            "64B",
            UEC,
            unit="bytes",
        ),
    )
    queue: SizeOrAuto | None = Field(
        None,
        description=about(
            "Beyond it a queue's data is trimmed; headers may take twice that",
            "auto: one bandwidth-delay product of the longest way",
            f"{UEC}; NDP, SIGCOMM 2017: eight packets",
            unit="bytes",
        ),
    )
    window: SizeOrAuto | None = Field(
        None,
        description=about(
            "Sent before credit is needed",
            "auto: the path's bandwidth-delay product",
            EQDS,
            unit="bytes",
        ),
    )
    pull: int | None = Field(
        None, ge=1, description=about("What one pull grants", "4", UEC, unit="packets")
    )
    credit: float | None = Field(
        None,
        gt=0,
        le=1,
        description=about(
            "What a receiver grants of its line's rate, altogether", "0.98", unit="a share"
        ),
    )


class LossModel(FileModel):
    """Random loss on network links."""

    rate: float | None = Field(
        None,
        ge=0,
        lt=1,
        description=about(
            "Each packet is lost on each network link with this probability",
            "0",
            unit="a probability",
        ),
    )


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
