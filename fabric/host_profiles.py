# SPDX-License-Identifier: Apache-2.0
"""Host profiles: what gloo makes of ranks that share one CPU host.

Ranks on one host share cores, memory and the network stack of the kernel: what a step costs and how
many bytes all ranks together pass in a second are the host's, and a factor per operation says how
many ranks want the same cores at once in its steps. All are measured, on that host
(``railweave calibrate``).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, TypeAdapter, field_validator

from railweave.fabric.document import load_yaml
from railweave.fabric.fields import FileModel, Rate, Time, fault
from railweave.fabric.units import format_rate, format_time

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["HOST_OPERATIONS", "HostProfile", "host_profile_text", "load_host_profile"]

HOST_OPERATIONS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "send",
    "scatter",
    "gather",
)


@dataclass(frozen=True, kw_only=True)
class HostProfile:
    """Constants of one host.

    Parameters
    ----------
    name
        What the profile is called.
    step_ps
        What a step costs, ps.
    rate_bps
        Bits that all ranks together move in a second.
    factor
        What a step of an operation costs over ``step_ps``; 1 where it is not there.
    source
        What it was fitted to.
    """

    name: str
    step_ps: int
    rate_bps: int
    factor: Mapping[str, float]
    source: str = ""


class HostFile(FileModel):
    """A host profile in YAML."""

    schema_: Literal[1] = Field(1, alias="schema")
    kind: Literal["host-profile"]
    name: str = "host"
    step: Time
    rate: Annotated[Rate, Field(ge=1)]
    factor: dict[str, Annotated[float, Field(gt=0, le=1e4)]] = Field(default_factory=dict)
    source: str = ""

    @field_validator("factor")
    @classmethod
    def _keys(cls, value: dict[str, float]) -> dict[str, float]:
        for key in value:
            if key not in HOST_OPERATIONS:
                raise fault(
                    f"'{key}' is not known here", expected=" | ".join(HOST_OPERATIONS), key=key
                )
        return value


def load_host_profile(path: str) -> HostProfile:
    """Return the host profile in a file.

    Raises
    ------
    InputError
        The file is missing or wrong: file, line, field and what was expected.
    """
    model = load_yaml(path).check(TypeAdapter(HostFile))
    return HostProfile(
        name=model.name,
        step_ps=model.step,
        rate_bps=model.rate,
        factor=MappingProxyType(model.factor),
        source=model.source,
    )


def host_profile_text(profile: HostProfile) -> str:
    """Return a host profile as the text of a file that `load_host_profile` reads."""
    import yaml

    data: dict[str, Any] = {
        "schema": 1,
        "kind": "host-profile",
        "name": profile.name,
        "step": format_time(profile.step_ps),
        "rate": format_rate(profile.rate_bps),
        "factor": dict(profile.factor),
        "source": profile.source,
    }
    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100))
