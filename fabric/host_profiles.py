# SPDX-License-Identifier: Apache-2.0
"""Host profiles: what gloo makes of ranks that share one CPU host.

Ranks on one host share cores, memory and the network stack of the kernel, so what a step costs and
how many bytes pass in a second differ from operation to operation by how many ranks copy at once;
a profile has both for each. They are measured, per host (``railweave calibrate``).
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
    """Constants of each operation on one host.

    Parameters
    ----------
    name
        What the profile is called.
    step_ps
        What a step costs in ps, by operation.
    rate_bps
        Bits that the busiest rank moves in a second, by operation.
    source
        What it was fitted to.
    """

    name: str
    step_ps: Mapping[str, int]
    rate_bps: Mapping[str, int]
    source: str = ""


class HostFile(FileModel):
    """A host profile in YAML."""

    schema_: Literal[1] = Field(1, alias="schema")
    kind: Literal["host-profile"]
    name: str = "host"
    step: Annotated[dict[str, Time], Field(min_length=1)]
    rate: dict[str, Annotated[Rate, Field(ge=1)]]
    source: str = ""

    @field_validator("step", "rate")
    @classmethod
    def _keys(cls, value: dict[str, Any]) -> dict[str, Any]:
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
    document = load_yaml(path)
    model = document.check(TypeAdapter(HostFile))
    for name in model.step:
        if name not in model.rate:
            raise document.error(f"'{name}' has a step and no rate", at=("rate",), expected=name)
    return HostProfile(
        name=model.name,
        step_ps=MappingProxyType(model.step),
        rate_bps=MappingProxyType(model.rate),
        source=model.source,
    )


def host_profile_text(profile: HostProfile) -> str:
    """Return a host profile as the text of a file that `load_host_profile` reads."""
    import yaml

    data: dict[str, Any] = {"schema": 1, "kind": "host-profile", "name": profile.name}
    data["step"] = {op: format_time(value) for op, value in profile.step_ps.items()}
    data["rate"] = {op: format_rate(value) for op, value in profile.rate_bps.items()}
    data["source"] = profile.source
    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100))
