# SPDX-License-Identifier: Apache-2.0
"""What the formats of request traces have in common. A new one is one module of this package.

::

    @trace_format("mine", keys=("when", "in", "out"), output_key="out")
    def parse(text, file):
        return [TraceRow(line=1, at_ps=0, prompt_tokens=5, output_tokens=7)]
"""

from __future__ import annotations

import csv
import json
import re
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal, InvalidOperation
from io import StringIO
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from railweave.fabric.errors import InputError, nearest_name
from railweave.fabric.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = [
    "FORMATS",
    "EmptyOutput",
    "TraceFormat",
    "TraceRow",
    "count_of",
    "csv_rows",
    "json_object",
    "json_rows",
    "seconds_ps",
    "trace_format",
]

EmptyOutput = Literal["refuse", "drop"]
"""What becomes of a request that generates no token."""

_COUNT: Final = re.compile(r"[0-9]{1,9}")
_NUMBER: Final = re.compile(r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,2})?")
_MOST: Final = 999_999_999
_LONGEST_S: Final = 10**9  # 31 years
_PS_DIGITS: Final = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceRow:
    """A row as it stands in a file; see `TraceRequest`.

    Parameters
    ----------
    line
        Line of the file, or number of the entry, from 1.
    at_ps
        When, in ps after whatever zero the file has.
    """

    line: int
    at_ps: int
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    hash_block: int = 0
    session: str = ""


class Parser(Protocol):
    """Turns the text of a file into its rows, in the file's order."""

    def __call__(self, text: str, file: str) -> list[TraceRow]:
        """Return the rows; raise `InputError` with the line of the first that is bad."""


@dataclass(frozen=True, kw_only=True)
class TraceFormat:
    """A format of trace files.

    Parameters
    ----------
    name
        How it is asked for.
    keys
        Columns or keys by which a file of it is recognised.
    parse
        Its reader.
    output_key
        The key or column of the output's length.
    empty_output
        What becomes of requests without output where nobody says so: refused where the format
        knows none, dropped where they mean that a request failed.
    row
        What a row is called: a line, or an entry where one file holds lists.
    """

    name: str
    keys: tuple[str, ...]
    parse: Parser
    output_key: str
    empty_output: EmptyOutput
    row: str = "line"


FORMATS: Final[Registry[TraceFormat]] = Registry(
    "trace format", package="railweave.workloads.traces"
)


def trace_format(
    name: str,
    *,
    keys: tuple[str, ...],
    output_key: str,
    empty_output: EmptyOutput = "refuse",
    row: str = "line",
) -> Callable[[Parser], Parser]:
    """Return the decorator that registers the reader of a format; see `TraceFormat`."""

    def register(parse: Parser) -> Parser:
        known = TraceFormat(
            name=name,
            keys=keys,
            parse=parse,
            output_key=output_key,
            empty_output=empty_output,
            row=row,
        )
        FORMATS.add(name, known)
        return parse

    return register


def csv_rows(
    text: str, file: str, columns: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and the wanted cells of each row of a CSV whose first line is a header.

    Parameters
    ----------
    text, file
        The content, and the name for messages.
    columns
        Those that must be there, in the order in which the cells are wanted.
    optional
        Those that may be; a missing one gives empty cells.

    Raises
    ------
    InputError
        A missing column, or a row with more or fewer cells than the header.
    """
    reader = csv.reader(StringIO(text, newline=""))
    try:
        header = [name.strip() for name in next(reader)]
        places = _places(header, columns, optional, file)
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise InputError(
                    f"{len(cells)} columns",
                    file=file,
                    line=reader.line_num,
                    expected=f"{len(header)} as in line 1",
                )
            cells.append("")
            yield reader.line_num, [cells[place].strip() for place in places]
    except csv.Error as error:
        raise InputError(f"bad CSV: {error}", file=file, line=reader.line_num) from None


def _places(
    header: list[str], columns: Sequence[str], optional: Sequence[str], file: str
) -> list[int]:
    """Return where each wanted column is; one past the last for a missing optional one."""
    places = []
    for name in (*columns, *optional):
        if name in header:
            places.append(header.index(name))
        elif name in optional:
            places.append(len(header))
        else:
            raise InputError(
                f"the trace has no column {name}",
                file=file,
                line=1,
                expected=", ".join(columns),
                nearest=nearest_name(name, header),
            )
    return places


def json_object(text: str) -> dict[str, Any]:
    """Return one JSON object, its numbers exact: whole ones as int, others as Decimal.

    Raises
    ------
    InputError
        It is none, or a key stands twice.
    """
    try:
        found = json.loads(
            text, parse_float=Decimal, parse_constant=_no_constant, object_pairs_hook=_no_repeats
        )
    except json.JSONDecodeError as error:
        raise InputError(
            f"is not JSON: {error.msg}", line=error.lineno if error.lineno > 1 else None
        ) from None
    except RecursionError:
        raise InputError("is nested too deeply") from None
    except InvalidOperation:
        raise InputError("has a number beyond reason") from None
    except ValueError as error:  # whole numbers of thousands of digits
        raise InputError(f"is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InputError("is not a JSON object", expected='{"key": value, ...}')
    return found


def json_rows(
    text: str, file: str, keys: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and object of each line of a JSONL file; blank lines are passed over.

    Parameters
    ----------
    text, file
        The content, and the name for messages.
    keys, optional
        Keys that each object must have, and that it may have.

    Raises
    ------
    InputError
        A line that is no object, lacks a key or has one that is not known.
    """
    known = (*keys, *optional)
    for line, written in enumerate(text.split("\n"), start=1):
        if not written.strip():
            continue
        try:
            found = json_object(written)
            for key in found:
                if key not in known:
                    raise InputError(
                        f"unknown key '{key}'",
                        expected=f"one of {', '.join(known)}",
                        nearest=nearest_name(key, known),
                    )
            for key in keys:
                if key not in found:
                    raise InputError(f"there is no {key}", expected=", ".join(keys))
        except InputError as error:
            raise error.located(file=file, line=line) from None
        yield line, found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key '{key}' stands twice")
            seen.add(key)
    return found


def count_of(value: object, field: str, *, least: int = 0) -> int:
    """Return a number of tokens, written as text or as a JSON number.

    Raises
    ------
    InputError
        It is negative, no whole number, or below ``least``.
    """
    number = -1
    if isinstance(value, str) and _COUNT.fullmatch(value):
        number = int(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        number = value
    if not 0 <= number <= _MOST:
        raise InputError(
            f"'{_short(value)}' is not a number of tokens",
            field=field,
            expected=f"a whole number from {least} to {_MOST:,}",
        )
    if number < least:
        raise InputError(f"{number} tokens", field=field, expected=f"at least {least}")
    return number


def seconds_ps(value: object, field: str, *, per_s: int = 1) -> int:
    """Return a time in ps, rounded down, from text or a JSON number.

    Parameters
    ----------
    value
        The time: 0 or more.
    field
        Its name in messages.
    per_s
        Units of it in a second: 1000 if it counts milliseconds.

    Raises
    ------
    InputError
        It is negative, no number, or more than 31 years.
    """
    unit = {1: "seconds", 1000: "milliseconds"}[per_s]
    number = None
    if isinstance(value, int | Decimal | str) and not isinstance(value, bool):
        odd = isinstance(value, str) and not _NUMBER.fullmatch(value)
        number = None if odd else Decimal(value)
    if number is None or not number.is_finite() or number < 0 or number > _LONGEST_S * per_s:
        raise InputError(
            f"'{_short(value)}' is not a time", field=field, expected=f"{unit}, 0 or more"
        )
    scaled = number.scaleb(_PS_DIGITS) / per_s
    return int(scaled.to_integral_value(rounding=ROUND_FLOOR))


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
