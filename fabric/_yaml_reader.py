# SPDX-License-Identifier: Apache-2.0
"""From YAML text to plain values with their lines, without ever making an object.

The text is read as a stream of parser events, never handed to a constructor: no tag can make an
object, aliases are counted before they are used, and every key keeps the line it came from.
YAML 1.1 reads some innocent words as something else (``no``, ``12:30:00``, ``010``); what can only
be an accident is refused here with the spelling that was meant (YAML 1.1, yaml.org/type).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import yaml

from railweave.fabric.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Key", "Marked", "field_name", "read_marked"]

Key = str | int

MAX_DEPTH: Final = 64
MAX_ALIASED_NODES: Final = 200_000
_INT64_MAX: Final = 2**63 - 1

_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE: Final = frozenset(w for s in ("yes", "true", "on") for w in (s, s.title(), s.upper()))
_FALSE: Final = frozenset(w for s in ("no", "false", "off") for w in (s, s.title(), s.upper()))
_INT: Final = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)")
_OCTAL: Final = re.compile(r"[-+]?0[0-7_]+")
_FLOAT: Final = re.compile(r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_BASE_60: Final = re.compile(
    r"[-+]?(?:[1-9][0-9_]*(?::[0-5]?[0-9])+|[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*)"
)
_BAD_CHARACTER: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")

Event = Any  # PyYAML's stubs give the events none of their fields
_PARSER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Marked:
    """A value, the lines below it, and how many nodes it is with its aliases written out."""

    value: Any
    line: int
    children: Mapping[Key, Marked] = field(default_factory=dict)
    key_lines: Mapping[Key, int] = field(default_factory=dict)
    nodes: int = 1


def field_name(loc: tuple[Key, ...]) -> str:
    """Write a key path as people do.

    Examples
    --------
    >>> field_name(("workload", "flows", 0, "size"))
    'workload.flows[0].size'
    """
    text = ""
    for key in loc:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else str(key)
    return text


def read_marked(text: str, *, file: str) -> Marked | None:
    """Read YAML text into values with lines; None when there is nothing in it.

    Raises
    ------
    InputError
        Not safe YAML; the message has the file and the line.
    """
    bad = _BAD_CHARACTER.search(text)
    if bad is not None:
        line = text.count("\n", 0, bad.start()) + 1
        what = f"the character U+{ord(bad[0]):04X} does not belong in text"
        raise InputError(what, file=file, line=line, expected="YAML in UTF-8")
    try:
        return _Reader(text, file).read()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = f"this is not YAML: {error.problem or error.context}"
        raise InputError(what, file=file, line=mark.line + 1 if mark else None) from None
    except yaml.YAMLError as error:
        raise InputError(f"this is not YAML: {error}".splitlines()[0], file=file) from None


class _Reader:
    """One pass over the events of a YAML stream."""

    def __init__(self, text: str, file: str) -> None:
        self._events: Iterator[Any] = yaml.parse(text, Loader=_PARSER)
        self._file = file
        self._anchors: dict[str, Marked | None] = {}
        self._aliased = 0
        self._path: list[Key] = []

    def read(self) -> Marked | None:
        root = None
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise self._fault(event, "a second document begins", "one document in a file")
                root = self._value(next(self._events))
        return root

    def _fault(self, event: Event, what: str, expected: str | None = None) -> InputError:
        return InputError(
            what,
            file=self._file,
            line=_line(event),
            field=field_name(tuple(self._path)) or None,
            expected=expected,
        )

    def _value(self, event: Event) -> Marked:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        tag = event.tag
        if tag is not None and not (tag == "!" or tag == "tag:yaml.org,2002:str"):
            shown = tag.replace("tag:yaml.org,2002:", "!!")
            raise self._fault(event, f"the tag {shown} is not allowed", "plain YAML without tags")
        if event.anchor is not None:
            self._anchors[event.anchor] = None  # open: an alias to it now would be endless
        if isinstance(event, yaml.ScalarEvent):
            marked = Marked(self._scalar(event), _line(event))
        elif len(self._path) >= MAX_DEPTH:
            raise self._fault(event, f"more than {MAX_DEPTH} levels of nesting")
        elif isinstance(event, yaml.SequenceStartEvent):
            marked = self._sequence(event)
        else:
            marked = self._mapping(event)
        if event.anchor is not None:
            self._anchors[event.anchor] = marked
        return marked

    def _alias(self, event: Event) -> Marked:
        if event.anchor not in self._anchors:
            raise self._fault(event, f"the alias *{event.anchor} has no anchor before it")
        marked = self._anchors[event.anchor]
        if marked is None:
            raise self._fault(event, f"the alias *{event.anchor} contains itself")
        self._aliased += marked.nodes
        if self._aliased > MAX_ALIASED_NODES:
            expected = f"aliases that stand for at most {MAX_ALIASED_NODES:,} values"
            raise self._fault(event, "the aliases of this file explode", expected)
        return marked

    def _sequence(self, start: Event) -> Marked:
        items: list[Marked] = []
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            self._path.append(len(items))
            items.append(self._value(event))
            self._path.pop()
        return Marked(
            [item.value for item in items],
            _line(start),
            dict(enumerate(items)),
            {index: item.line for index, item in enumerate(items)},
            1 + sum(item.nodes for item in items),
        )

    def _mapping(self, start: Event) -> Marked:
        own: dict[Key, Marked] = {}
        lines: dict[Key, int] = {}
        merged: list[Marked] = []
        for event in self._events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            key = self._key(event)
            if key in own:
                self._path.append(key)
                what = f"the key '{key}' is written twice (first on line {lines[key]})"
                raise self._fault(event, what, "every key once")
            self._path.append(key)
            value = self._value(next(self._events))
            if key == "<<" and not event.style:
                merged += self._merge_sources(event, value)
            else:
                own[key], lines[key] = value, _line(event)
            self._path.pop()
        for source in merged:  # a mapping's own keys win, then the earlier source
            for name, value in source.children.items():
                if name not in own:
                    own[name], lines[name] = value, source.key_lines[name]
        return Marked(
            {key: marked.value for key, marked in own.items()},
            _line(start),
            own,
            lines,
            1 + sum(marked.nodes for marked in own.values()),
        )

    def _merge_sources(self, event: Event, value: Marked) -> list[Marked]:
        sources = list(value.children.values()) if isinstance(value.value, list) else [value]
        if not all(isinstance(source.value, dict) for source in sources):
            raise self._fault(event, "<< merges something else", "an alias of a mapping")
        return sources

    def _key(self, event: Event) -> str:
        if isinstance(event, yaml.AliasEvent):
            raise self._fault(event, f"the alias *{event.anchor} is a key", "a name")
        if not isinstance(event, yaml.ScalarEvent) or event.anchor or event.tag:
            raise self._fault(event, "this key is not a plain name", "a name")
        key = self._scalar(event)
        if not isinstance(key, str):
            written = event.value
            what = f"YAML reads the key {written or '(nothing)'} as {_kind(key)}, not as a name"
            raise self._fault(event, what, f'a name; if it is meant, in quotes: "{written}"')
        return key

    def _scalar(self, event: Event) -> str | int | float | bool | None:
        """Read one scalar by YAML 1.1's rules for plain text, refusing its accidents."""
        text: str = event.value
        bad = _BAD_CHARACTER.search(text)
        if bad is not None:  # written as an escape, "\0"
            what = f"the character U+{ord(bad[0]):04X} does not belong in text"
            raise self._fault(event, what)
        if event.style or event.tag is not None:
            return text
        if text in _NULL:
            return None
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        quoted = f'"{text}" in quotes'
        if _BASE_60.fullmatch(text):
            what = f"YAML reads an unquoted {text} as a base-60 number"
            raise self._fault(event, what, f"{quoted}, or a time with its unit such as 90s")
        if _OCTAL.fullmatch(text):
            raise self._fault(
                event, f"YAML reads {text} as an octal number", f"no zero, or {quoted}"
            )
        if _NOT_FINITE.fullmatch(text):
            raise self._fault(event, f"{text} is not a finite number", f"a number, or {quoted}")
        digits = text.replace("_", "")
        if _INT.fullmatch(text):
            number = _whole(digits)
            if number is None or abs(number) > _INT64_MAX:
                raise self._fault(event, "this number is too large", f"at most {_INT64_MAX}")
            return number
        if _FLOAT.fullmatch(text):
            if float(digits) in (float("inf"), float("-inf")):
                raise self._fault(event, "this number is too large", "at most 1.7e+308")
            return float(digits)
        return text


def _line(event: Event) -> int:
    """Return the 1-based line an event begins on."""
    return int(event.start_mark.line) + 1


def _whole(digits: str) -> int | None:
    """Read a decimal, hexadecimal or binary number of at most 80 digits."""
    return int(digits, 0) if 0 < len(digits) <= 80 and digits[-1].isalnum() else None


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    return "a boolean" if isinstance(value, bool) else "a number"
