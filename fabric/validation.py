# SPDX-License-Identifier: Apache-2.0
"""Turn what pydantic finds wrong with a document into one `InputError` a person can act on."""

from __future__ import annotations

import itertools
import math
import re
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError

from railweave.fabric.errors import InputError, nearest_name
from railweave.fabric.fields import FAULT, FROM_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic_core import ErrorDetails

    from railweave.fabric._yaml_reader import Key

__all__ = ["validate"]

Model = TypeVar("Model")

_EXPECTED: Final = {
    "bool": "true or false",
    "dict": "a mapping (key: value)",
    "float": "a number",
    "int": "a whole number",
    "list": "a list",
    "mapping": "a mapping (key: value)",
    "model": "a mapping (key: value)",
    "model_attributes": "a mapping (key: value)",
    "none": "nothing",
    "string": "text",
    "set": "a list",
    "tuple": "a list",
}
_BOUND: Final = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
    "multiple_of": ("multiple_of", "a multiple of"),
    "too_long": ("max_length", "at most this many entries:"),
    "too_short": ("min_length", "at least this many entries:"),
    "string_too_long": ("max_length", "at most this many characters:"),
    "string_too_short": ("min_length", "at least this many characters:"),
}
_EXPONENT: Final = re.compile(r"[-+]?[0-9][0-9_.]*[eE][-+]?[0-9]+")


class Lines(Protocol):
    """What is needed of a document: its values, and how to say where one is wrong."""

    @property
    def file(self) -> str | None:
        """Name of the file."""

    def line(self, loc: tuple[Key, ...]) -> int | None:
        """Return the line of a key path."""

    def get(self, loc: tuple[Key, ...]) -> Any:
        """Return the value at a key path."""

    def error(
        self,
        message: str,
        *,
        at: tuple[Key, ...] = (),
        expected: str | None = None,
        nearest: str | None = None,
    ) -> InputError:
        """Make an error about the value at a key path."""


class _Finding:
    """One of pydantic's errors in the document's terms."""

    def __init__(self, document: Lines, at: tuple[Key, ...], error: ErrorDetails) -> None:
        kind, value, context = error["type"], error["input"], error.get("ctx", {})
        self.loc = at + _written_path(document.get(at), error)
        self.nearest: str | None = None
        names: list[str] = []
        self.expected: str | None = None
        self.message = _shown(value)
        if kind == FAULT:
            self.message = context["text"]
            self.expected = context.get("expected")
            self.nearest = context.get("nearest")
            if "key" in context:
                self.loc = (*self.loc, context["key"])
        elif kind == "missing":
            self.message = "it is missing"
        elif kind == "union_tag_not_found":
            self.message, self.loc = "it is missing", (*self.loc, _discriminator(context))
        elif kind == "union_tag_invalid":
            self.loc = (*self.loc, _discriminator(context))
            self.message = f"there is no '{context['tag']}'"
            names = re.findall(r"'([^']*)'", context["expected_tags"])
            self.expected = "one of " + ", ".join(names)
            self.nearest = nearest_name(context["tag"], names)
        elif kind in ("literal_error", "enum"):
            self.expected = context["expected"].replace("'", "").replace(" or ", ", ")
            names = re.findall(r"'([^']*)'", context["expected"])
            if len(names) > 1:
                self.expected = f"one of {self.expected}"
            if isinstance(value, str):
                self.nearest = nearest_name(value, names)
        elif kind == "string_pattern_mismatch":
            self.expected = f"text of the form {context['pattern'].strip('^$')}"
        elif kind == "value_error":
            self.message = str(context["error"])
        elif kind in _BOUND:
            name, words = _BOUND[kind]
            self.expected = f"{words} {context[name]}"
        elif (what := kind.removesuffix("_type").removesuffix("_from_float")) in _EXPECTED:
            self.expected = _EXPECTED[what]
        else:
            self.message = error["msg"][0].lower() + error["msg"][1:]
        self.message += _hint(kind, value, names)


def _shown(value: object) -> str:
    if value is None:
        return "it is empty"
    if isinstance(value, bool):
        return f"this is {'true' if value else 'false'}"
    if isinstance(value, dict):
        return "this is a mapping"
    if isinstance(value, list):
        return "this is a list"
    if isinstance(value, str):
        return f"this is '{value[:60]}{'...' if len(value) > 60 else ''}'"
    return f"this is {value}"


def _hint(kind: str, value: object, names: Sequence[str]) -> str:
    """Return the explanation of a YAML 1.1 trap that the value may have fallen into."""
    if kind in ("string_type", "literal_error", "enum"):
        if isinstance(value, bool):
            return " (YAML reads no, off, on and yes as booleans: put the word in quotes)"
        if isinstance(value, int | float) and (kind == "string_type" or str(value) in names):
            return f' (to mean text, write it in quotes: "{value}")'
    trapped = isinstance(value, str) and _EXPONENT.fullmatch(value)
    if trapped and kind in ("int_type", "float_type"):
        number = float(str(value).replace("_", ""))
        digits = f"{number:.0f}" if number == int(number) else repr(number)
        return f" (YAML reads {value} as text: write {digits})" if math.isfinite(number) else ""
    return ""


def _discriminator(context: dict[str, Any]) -> str:
    return str(context["discriminator"]).strip("'")


def _written_path(data: Any, error: ErrorDetails) -> tuple[Key, ...]:
    """Return the part of pydantic's location that exists in the file.

    Pydantic mixes names of union members and of validators into the location. The right reading
    is the longest subsequence of it that leads through the data to the value at fault.
    """
    loc = error["loc"]
    missing = error["type"] == "missing"
    inside = loc[:-1] if missing else loc
    for length in range(len(inside), -1, -1):
        for path in itertools.combinations(inside, length):
            for value in _follow(data, path):
                if value == error["input"]:
                    return (*path, loc[-1]) if missing else path
    return loc


def _follow(data: Any, path: tuple[Key, ...]) -> Iterator[Any]:
    """Yield what is at the end of ``path``, if it is there."""
    for key in path:
        if not isinstance(data, list | dict):
            return
        children: Any = dict(enumerate(data)) if isinstance(data, list) else data
        if key not in children:
            return
        data = children[key]
    yield data


def _joined(findings: list[_Finding]) -> _Finding:
    """Merge the alternatives of a union that all failed at the same place."""
    first = findings[0]
    expected = [finding.expected for finding in findings if finding.expected]
    first.expected = " or ".join(dict.fromkeys(expected)) or None
    first.nearest = next((finding.nearest for finding in findings if finding.nearest), None)
    return first


def validate(
    document: Lines, model: type[Model] | TypeAdapter[Model], at: tuple[Key, ...]
) -> Model:
    """Validate the value at ``at`` of a document; see `Document.check`."""
    adapter = model if isinstance(model, TypeAdapter) else TypeAdapter(model)
    data = document.get(at)
    try:
        return adapter.validate_python(data, context=FROM_FILE)
    except InputError as error:
        raise error.located(file=document.file, line=document.line(at)) from None
    except ValidationError as error:
        findings = [_Finding(document, at, details) for details in error.errors()]
    lines = {id(finding): document.line(finding.loc) or 0 for finding in findings}
    findings.sort(key=lambda finding: lines[id(finding)])
    place = findings[0].loc
    worst = _joined([finding for finding in findings if finding.loc == place])
    raise document.error(
        worst.message, at=worst.loc, expected=worst.expected, nearest=worst.nearest
    ) from None
