# SPDX-License-Identifier: Apache-2.0
"""Write plain data as YAML that a person likes to read and that reads back as it was.

Mappings go in blocks; a list holds an entry a line, each in one piece. Text is quoted wherever any
YAML reader, 1.1 or 1.2, could take it for something else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["yaml_text"]

_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*|[0-9]+(?:\.[0-9]+)?[A-Za-z]+(?:/s)?")
_WORDS: Final = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))


def yaml_text(data: Mapping[str, Any]) -> str:
    """Return a mapping of plain data as the text of a YAML file.

    Examples
    --------
    >>> print(yaml_text({"a": {"b": "1e9", "c": [{"d": "64MiB", "e": []}]}}), end="")
    a:
      b: "1e9"
      c:
        - {d: 64MiB, e: []}
    """
    return "".join(f"{line}\n" for line in _block(data, ""))


def _block(data: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in data.items():
        head = f"{indent}{_scalar(key)}:"
        if isinstance(value, Mapping) and value:
            yield head
            yield from _block(value, indent + "  ")
        elif isinstance(value, list) and any(isinstance(entry, Mapping) for entry in value):
            yield head
            for entry in value:
                yield from _entry(entry, indent + "  ")
        else:
            yield f"{head} {_flow(value)}"


def _entry(entry: Any, indent: str) -> Iterator[str]:
    """Write an entry of a list: a line, or a block where it holds such lists itself."""
    nested = isinstance(entry, Mapping) and any(
        isinstance(value, list) and any(isinstance(item, Mapping) for item in value)
        for value in entry.values()
    )
    if not nested:
        yield f"{indent}- {_flow(entry)}"
        return
    lead = f"{indent}- "
    for line in _block(entry, ""):
        yield f"{lead}{line}"
        lead = f"{indent}  "


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_scalar(k)}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_flow(entry) for entry in value) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
        return value if plain else json.dumps(value, ensure_ascii=False)
    text = json.dumps(value)
    if isinstance(value, float) and "." not in text:
        return text.replace("e", ".0e")  # YAML 1.1 wants a dot in a number with an exponent
    return text
