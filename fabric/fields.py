# SPDX-License-Identifier: Apache-2.0
"""The building blocks of file models: quantities with units, ratios, and the base model.

Every model that describes a file a person writes derives from `FileModel` and uses these types.
Quantities are text in the file (``400Gbps``) and exact integers in the program; dumped with
``mode="json"`` they become text again, so that what is written can be read back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from railweave.fabric import units
from railweave.fabric.errors import InputError, nearest_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import GetCoreSchemaHandler
    from pydantic_core import core_schema

__all__ = [
    "LONGEST_PS",
    "Delay",
    "FileModel",
    "HeaderSize",
    "Length",
    "Rate",
    "Ratio",
    "Size",
    "Time",
    "fault",
    "parse_ratio",
]

LONGEST_PS: Final = 240 * 3600 * 10**12
"""Longest time a file may give, ten days: a few of them added up stay within a run's clock."""

_LONGEST_DELAY_PS: Final = 3600 * 10**12
_LONGEST_MM: Final = 10**12  # a million kilometres
_LARGEST_HEADER_BYTES: Final = 2**16

FAULT: Final = "railweave"
"""Type of the pydantic errors that carry the parts of an `InputError`."""

FROM_FILE: Final = {"from_file": True}
"""Validation context of what was read from a file: only the spelling of files is known there."""


def fault(
    message: str,
    *,
    expected: str | None = None,
    nearest: str | None = None,
    key: str | None = None,
) -> PydanticCustomError:
    """Make the error that a validator of a file model raises.

    Parameters
    ----------
    message
        What is wrong, without file, line or field: `Document.check` adds those.
    expected, nearest
        What would have been right, and the nearest valid name.
    key
        The key at fault when a validator sees the whole mapping: the error is placed there.

    Examples
    --------
    >>> fault("7 GPUs are not a multiple of 8", expected="whole hosts").message()
    '7 GPUs are not a multiple of 8'
    """
    parts = {"text": message, "expected": expected, "nearest": nearest, "key": key}
    return PydanticCustomError(FAULT, "{text}", {k: v for k, v in parts.items() if v is not None})


def _inside_pydantic(parse: Callable[[object], Any]) -> Callable[[object], Any]:
    """Let ``parse`` report through pydantic, which alone knows the place in the file."""

    def validate(value: object) -> Any:
        try:
            return parse(value)
        except InputError as error:
            raise fault(error.message, expected=error.expected, nearest=error.nearest) from None

    return validate


def _at_most(
    parse: Callable[[object], int], most: int, write: Callable[[int], str]
) -> Callable[[object], int]:
    """Let ``parse`` refuse more than ``most``."""

    def limited(value: object) -> int:
        found = parse(value)
        if found > most:
            raise InputError(f"'{value}' is too large", expected=f"at most {write(most)}")
        return found

    return limited


def _hours(time_ps: int) -> str:
    return f"{time_ps // (3600 * 10**12)}h"


def _quantity(
    parse: Callable[[object], int], write: Callable[[int], str], what: str, example: str, unit: str
) -> tuple[BeforeValidator, PlainSerializer, WithJsonSchema]:
    schema = {
        "type": "string",
        "pattern": rf"^\s*\+?(\d+(\.\d+)?|\.\d+)\s*({unit})\s*$",
        "description": f"{what}, with its unit",
        "examples": [example],
    }
    return (
        BeforeValidator(_inside_pydantic(parse)),
        PlainSerializer(write, return_type=str, when_used="json"),
        WithJsonSchema(schema),
    )


_PREFIX: Final = "([kMGTP]|[KMGTP]i)?"

Rate = Annotated[
    int,
    *_quantity(
        units.parse_rate_bps,
        units.format_rate,
        "A rate: bits (400Gbps, 400Gb/s) or bytes (50GB/s) per second",
        "400Gbps",
        f"{_PREFIX}([bB]ps|[bB]/s|bit/s)|Kbps",
    ),
]
"""A rate in bit/s, written with its unit: ``400Gbps`` or ``50GB/s``."""

Size = Annotated[
    int,
    *_quantity(
        units.parse_size_bytes,
        units.format_size,
        "A size in bytes: k M G T are powers of 1000, Ki Mi Gi Ti powers of 1024",
        "64MiB",
        f"{_PREFIX}B|KB",
    ),
]
"""A size in bytes, written with its unit: ``64MiB`` or ``4096B``."""

HeaderSize = Annotated[
    int,
    *_quantity(
        _at_most(units.parse_size_bytes, _LARGEST_HEADER_BYTES, units.format_size),
        units.format_size,
        "A size in bytes, at most 64KiB",
        "48B",
        f"{_PREFIX}B|KB",
    ),
]
"""A size in bytes of what surrounds or acknowledges a packet: at most 64 KiB."""

_TIME_UNITS: Final = "ps|ns|us|µs|μs|ms|s|min|h"

Time = Annotated[
    int,
    *_quantity(
        _at_most(units.parse_time_ps, LONGEST_PS, _hours),
        units.format_time,
        "A duration: ps, ns, us, ms, s, min or h; at most 240h",
        "600ns",
        _TIME_UNITS,
    ),
]
"""A duration in picoseconds, written with its unit: ``600ns``."""

Delay = Annotated[
    int,
    *_quantity(
        _at_most(units.parse_time_ps, _LONGEST_DELAY_PS, _hours),
        units.format_time,
        "The latency of a part: ps, ns, us, ms, s, min or h; at most 1h",
        "600ns",
        _TIME_UNITS,
    ),
]
"""A latency in picoseconds, of which a path adds up many: ``600ns``."""

Length = Annotated[
    int,
    *_quantity(
        _at_most(units.parse_length_mm, _LONGEST_MM, units.format_length),
        units.format_length,
        "A length: mm, cm, m or km; at most 1000000km",
        "30m",
        "mm|cm|m|km",
    ),
]
"""A length in millimetres, written with its unit: ``30m``."""

_RATIO: Final = re.compile(r"\s*([0-9]{1,9})\s*:\s*([0-9]{1,9})\s*")


def parse_ratio(text: object) -> Fraction:
    """Parse a ratio such as ``2:1`` into an exact fraction.

    Examples
    --------
    >>> parse_ratio("3:2")
    Fraction(3, 2)

    Raises
    ------
    InputError
        Not text of the form ``N:M``, or a zero on either side.
    """
    expected = 'a ratio in quotes, such as "2:1"'
    if isinstance(text, Fraction):
        return text
    if not isinstance(text, str):
        raise InputError(
            f"{text!r} is not a ratio (YAML turns an unquoted 2:1 into a base-60 number)",
            expected=expected,
        )
    match = _RATIO.fullmatch(text)
    if match is None:
        raise InputError(f"'{text}' is not a ratio", expected=expected)
    left, right = int(match[1]), int(match[2])
    if left == 0 or right == 0:
        raise InputError(f"'{text}' has a zero", expected="two whole numbers of 1 or more")
    return Fraction(left, right)


def _format_ratio(ratio: Fraction) -> str:
    return f"{ratio.numerator}:{ratio.denominator}"


Ratio = Annotated[
    Fraction,
    PlainValidator(_inside_pydantic(parse_ratio)),
    PlainSerializer(_format_ratio, return_type=str, when_used="json"),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^\s*\d{1,9}\s*:\s*\d{1,9}\s*$",
            "description": "A ratio, in quotes: hosts' bandwidth down to bandwidth up",
            "examples": ["2:1"],
        }
    ),
]
"""A ratio, written in quotes: ``"2:1"``."""


def _forbid_coercion(schema: Any) -> None:
    """Make every scalar of a core schema strict: true is no number, and "8" no count.

    Lists stay lax, since YAML has no other way to write a tuple or a set.
    """
    if isinstance(schema, dict):
        if schema.get("type") in ("bool", "float", "int", "str"):
            schema["strict"] = True
        for key, part in schema.items():
            if key not in ("default", "metadata", "serialization"):
                _forbid_coercion(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            _forbid_coercion(part)


class FileModel(BaseModel):
    """Base of every model of a file: frozen, strict, unknown keys refused by name.

    Files use the alias of a field where it has one (``host-leaf``); Python code may use either.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True,
        extra="forbid",
        populate_by_name=True,
        arbitrary_types_allowed=True,
    )

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        schema = handler(source)
        _forbid_coercion(schema)
        return schema

    @classmethod
    def file_keys(cls) -> list[str]:
        """Return the keys a file may hold, in order of declaration."""
        return [field.alias or name for name, field in cls.model_fields.items()]

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, Mapping):
            return data
        known = cls.file_keys()
        for key in data:
            if key in cls.model_fields and not info.context:
                continue  # Python code may write host_leaf for host-leaf
            if key not in known:
                raise fault(
                    f"unknown key '{key}'",
                    expected=f"one of {', '.join(known)}",
                    nearest=nearest_name(str(key), known),
                    key=str(key),
                )
        return data
