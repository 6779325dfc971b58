# SPDX-License-Identifier: Apache-2.0
"""Read a request trace of any format, by the same rules.

- Rows are sorted by time, stably: those of one instant keep the file's order.
- A bad row is refused with its line; nothing is ever cut to fit.
- Requests without output are refused or left out, as asked or as the format documents.
- Whatever was left out, put in order or shares its time with another row is told in a note.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.errors import InputError
from railweave.workloads.traces.formats import FORMATS, json_object
from railweave.workloads.traces.request import Trace, TraceRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from railweave.workloads.traces.formats import EmptyOutput, TraceFormat, TraceRow

__all__ = ["read_trace"]

_NAMED: Final = 3  # lines that a note names before it only counts


def read_trace(
    path: Path | str,
    *,
    format: str = "auto",
    limit: int | None = None,
    rate_scale: float = 1.0,
    empty_output: EmptyOutput | None = None,
    jitter_ps: int = 0,
    seed: int = 1,
) -> Trace:
    """Read a trace; the first request of the file is at 0 ps.

    Prompts are never cut: what the file says is what arrives.

    Parameters
    ----------
    path
        The file.
    format
        ``azure``, ``mooncake``, ``burstgpt``, ``vllm-bench``, ``jsonl``, or ``auto``: by its
        columns or keys.
    limit
        Keep only this many requests, the earliest; None keeps all.
    rate_scale
        Arrivals come this many times as fast.
    empty_output
        What becomes of a request that generates no token: ``refuse`` or ``drop``. None: dropped
        where the format says that it failed (burstgpt, vllm-bench), refused elsewhere.
    jitter_ps
        Each arrival is moved later by a random time below this, in the time of the trace (before
        ``rate_scale``), for traces whose timestamps lie on a grid; 0 moves nothing.
    seed
        Seed of the jitter.

    Raises
    ------
    InputError
        Unreadable, binary or empty file; no known format; a missing column; a bad row (with its
        line); a limit or scale that is not positive.
    """
    file = str(path)
    if limit is not None and limit < 1:
        raise InputError(f"limit {limit} keeps no request", field="limit", expected="at least 1")
    if not (math.isfinite(rate_scale) and rate_scale > 0):
        raise InputError(f"{rate_scale} is not a rate scale", field="rate_scale", expected="> 0")
    if jitter_ps < 0:
        raise InputError(f"{jitter_ps}ps is not a jitter", field="jitter", expected="0s or more")
    text = _text(Path(path))
    known = FORMATS.get(format) if format != "auto" else _recognise(text, file)
    rows = known.parse(text, file)
    notes: list[str] = []
    rows = _without_empty(rows, known, empty_output or known.empty_output, file, notes)
    if not rows:
        raise InputError("the trace has no requests", file=file, expected="a row per request")
    rows = _sorted(rows, known.row, notes)[:limit]
    _note_shared(rows, known.row, jitter_ps, notes)
    return Trace(
        requests=tuple(_requests(rows, rate_scale, jitter_ps, seed)),
        format=known.name,
        file=file,
        notes=tuple(notes),
    )


def _text(path: Path) -> str:
    file = str(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"cannot read the trace: {reason}", file=file) from None
    expected = "text: CSV, JSON or JSONL"
    if b"\0" in raw:
        raise InputError("this is a binary file", file=file, expected=expected)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("this is a binary file", file=file, expected=expected) from None
    if not text.strip():
        raise InputError("the trace is empty", file=file, expected=expected)
    return text


def _recognise(text: str, file: str) -> TraceFormat:
    """Return the format that most of whose keys are there."""
    names = _names(text)
    formats = [FORMATS.get(name) for name in FORMATS.names()]
    found = {known.name: len(names.intersection(known.keys)) for known in formats}
    best = max(formats, key=lambda known: (found[known.name], known.name))
    if found[best.name] < 2 or list(found.values()).count(found[best.name]) > 1:
        raise InputError(
            "is in no known format",
            file=file,
            expected=" | ".join(f"{known.name} ({', '.join(known.keys)})" for known in formats),
        )
    return best


def _names(text: str) -> set[str]:
    """Return the columns of a CSV, or the keys of the first object of JSON or JSONL."""
    head = text.lstrip()
    first = head.split("\n", 1)[0]
    if not head.startswith("{"):
        return {name.strip() for name in first.split(",")}
    for part in (first, text):
        try:
            return set(json_object(part))
        except InputError:
            continue
    return set()


def _without_empty(
    rows: list[TraceRow], known: TraceFormat, policy: EmptyOutput, file: str, notes: list[str]
) -> list[TraceRow]:
    empty = [row for row in rows if row.output_tokens == 0]
    if not empty:
        return rows
    if policy == "refuse":
        raise InputError(
            "0 tokens",
            file=file,
            line=empty[0].line,
            field=known.output_key,
            expected="at least 1, or empty_output: drop",
        )
    notes.append(f"{_count(empty)} without output left out ({_places(empty, known.row)})")
    return [row for row in rows if row.output_tokens]


def _sorted(rows: list[TraceRow], row: str, notes: list[str]) -> list[TraceRow]:
    late = [after for before, after in pairwise(rows) if after.at_ps < before.at_ps]
    if not late:
        return rows
    places = _places(late, row)
    notes.append(f"{_count(late)} earlier than the row before: sorted by time ({places})")
    return sorted(rows, key=lambda row: row.at_ps)  # stable


def _note_shared(rows: Sequence[TraceRow], row: str, jitter_ps: int, notes: list[str]) -> None:
    """Tell of requests that arrive at the same instant as the one before."""
    shared = [after for before, after in pairwise(rows) if after.at_ps == before.at_ps]
    if not shared:
        return
    spread = f"a jitter below {jitter_ps / 1e12:g} s spreads them" if jitter_ps else "kept in order"
    places = _places(shared, row)
    notes.append(f"{_count(shared)} at the instant of the one before: {spread} ({places})")
    if len(shared) * 2 > len(rows) and not jitter_ps:
        instants = sorted({row.at_ps for row in rows})
        gaps = sorted(b - a for a, b in pairwise(instants))
        if gaps:
            notes.append(
                f"arrivals come in bursts about {gaps[len(gaps) // 2] / 1e12:g} s apart, which is "
                "how the trace was recorded rather than how requests came: see jitter"
            )


def _requests(
    rows: Sequence[TraceRow], rate_scale: float, jitter_ps: int, seed: int
) -> Iterator[TraceRequest]:
    first, scale = rows[0].at_ps, Fraction(repr(float(rate_scale)))
    if jitter_ps:
        random = np.random.Generator(np.random.PCG64(seed))
        moves = random.integers(jitter_ps, size=len(rows)).tolist()
        moved = [
            replace(row, at_ps=row.at_ps + move) for row, move in zip(rows, moves, strict=True)
        ]
        rows = sorted(moved, key=lambda row: row.at_ps)
    for row in rows:
        yield TraceRequest(
            at_ps=(row.at_ps - first) * scale.denominator // scale.numerator,
            prompt_tokens=row.prompt_tokens,
            output_tokens=row.output_tokens,
            hash_ids=row.hash_ids,
            hash_block=row.hash_block,
            session=row.session,
            row=row.line,
        )


def _count(rows: Sequence[TraceRow]) -> str:
    return f"{len(rows):,} request" + "s" * (len(rows) != 1)


def _places(rows: Sequence[TraceRow], row: str) -> str:
    """Name the first lines, or entries, and count the rest."""
    named = ", ".join(str(one.line) for one in rows[:_NAMED])
    more = f" and {len(rows) - _NAMED:,} more" if len(rows) > _NAMED else ""
    several = row.removesuffix("y") + "ies" if row.endswith("y") else f"{row}s"
    return f"{row if len(rows) == 1 else several} {named}{more}"
