# SPDX-License-Identifier: Apache-2.0
"""The layout of device and network profiles in YAML."""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, TypeAdapter, field_validator

from railweave.fabric.document import load_yaml
from railweave.fabric.fields import FileModel, Rate, Size, Time, fault
from railweave.fabric.profiles import (
    ARCHITECTURES,
    LAUNCH_MODES,
    PROTOCOL_NAMES,
    DeviceProfile,
    NearbyGpus,
    NetworkProfile,
    NvlsProfile,
)

__all__ = ["DeviceFile", "NetworkFile", "read_profile"]

Share = Annotated[float, Field(gt=0, le=1.2)]
"""Of a rate that is itself an estimate: a little more than 1 is possible."""


def _check_keys(given: dict[str, Any], known: tuple[str, ...], needed: tuple[str, ...]) -> None:
    for key in given:
        if key not in known:
            raise fault(f"'{key}' is not known here", expected=" | ".join(known), key=key)
    for key in needed:
        if key not in given:
            raise fault(f"'{key}' is missing", expected=" | ".join(needed))


class NvlsFile(FileModel):
    """Reduction in NVSwitches."""

    latency: Time
    efficiency: Share
    ramp: Size
    least_ranks: int = Field(3, ge=2)


class NearbyFile(FileModel):
    """GPUs near to each other."""

    gpus: int = Field(ge=2)
    rate: Rate


class DeviceFile(FileModel):
    """A device profile."""

    schema_: Literal[1] = Field(1, alias="schema")
    kind: Literal["device-profile"] = "device-profile"
    name: str = ""
    title: str = ""
    aliases: tuple[str, ...] = ()
    architecture: Literal["volta", "turing", "ampere", "ada", "hopper", "blackwell"]
    interconnect: Literal["nvlink", "pcie"]
    gpus: tuple[str, ...] = ()
    domain: int = Field(8, ge=1)
    rate: Rate
    launch: dict[str, Time]
    step: dict[str, Time]
    efficiency: dict[str, Share]
    ramp: dict[str, Size]
    p2p: dict[str, Time]
    copy_: Rate = Field(alias="copy")
    nvls: NvlsFile | None = None
    nearby: NearbyFile | None = None
    source: str = ""
    fitted_to: tuple[str, ...] = ()

    KNOWN: ClassVar = {
        "launch": (LAUNCH_MODES, ()),
        "step": (PROTOCOL_NAMES, PROTOCOL_NAMES),
        "efficiency": ((*PROTOCOL_NAMES, "p2p"), (*PROTOCOL_NAMES, "p2p")),
        "ramp": (("Simple", "p2p"), ("Simple", "p2p")),
        "p2p": (("LL", "Simple"), ("LL", "Simple")),
    }

    @field_validator("launch", "step", "efficiency", "ramp", "p2p")
    @classmethod
    def _keys(cls, value: dict[str, Any], info: Any) -> dict[str, Any]:
        _check_keys(value, *cls.KNOWN[info.field_name])
        if not value:
            raise fault("no launch mode is given", expected=" | ".join(LAUNCH_MODES))
        return value

    def profile(self, name: str = "") -> DeviceProfile:
        """Return what the file describes."""
        assert self.architecture in ARCHITECTURES
        return DeviceProfile(
            name=name or self.name,
            title=self.title,
            architecture=self.architecture,
            interconnect=self.interconnect,
            gpus=self.gpus,
            domain=self.domain,
            rate_bps=self.rate,
            launch_ps=MappingProxyType(self.launch),
            step_ps=MappingProxyType(self.step),
            efficiency=MappingProxyType(self.efficiency),
            ramp_bytes=MappingProxyType(self.ramp),
            p2p_ps=MappingProxyType(self.p2p),
            copy_bps=self.copy_,
            nvls=None
            if self.nvls is None
            else NvlsProfile(
                latency_ps=self.nvls.latency,
                efficiency=self.nvls.efficiency,
                ramp_bytes=self.nvls.ramp,
                least_ranks=self.nvls.least_ranks,
            ),
            nearby=None
            if self.nearby is None
            else NearbyGpus(gpus=self.nearby.gpus, rate_bps=self.nearby.rate),
            source=self.source,
            fitted_to=self.fitted_to,
        )


class NetworkFile(FileModel):
    """A network profile."""

    title: str = ""
    aliases: tuple[str, ...] = ()
    kind: Literal["infiniband", "roce", "efa", "tcpx"]
    rate: Rate
    base: Time
    step: dict[str, Time]
    efficiency: Share
    ramp: Size
    reduction: bool = False
    source: str = ""
    fitted_to: tuple[str, ...] = ()

    @field_validator("step")
    @classmethod
    def _keys(cls, value: dict[str, Any]) -> dict[str, Any]:
        _check_keys(value, PROTOCOL_NAMES, PROTOCOL_NAMES)
        return value

    def profile(self, name: str) -> NetworkProfile:
        """Return what the entry describes."""
        return NetworkProfile(
            name=name,
            title=self.title,
            kind=self.kind,
            rate_bps=self.rate,
            base_ps=self.base,
            step_ps=MappingProxyType(self.step),
            efficiency=self.efficiency,
            ramp_bytes=self.ramp,
            reduction=self.reduction,
            source=self.source,
            fitted_to=self.fitted_to,
        )


def read_profile(path: str) -> DeviceProfile:
    """Return the device profile in a file.

    Raises
    ------
    InputError
        The file is missing or wrong: file, line, field and what was expected.
    """
    document = load_yaml(path)
    model = document.check(TypeAdapter(DeviceFile))
    return model.profile()
