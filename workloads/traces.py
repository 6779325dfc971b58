# SPDX-License-Identifier: Apache-2.0
"""Request traces: when requests arrive and how many tokens each reads and writes.

The format is that of the Azure LLM inference traces of 2023 (Azure/AzurePublicDataset, CC-BY-4.0):
a CSV with the columns ``TIMESTAMP, ContextTokens, GeneratedTokens``, timestamps with seven
fractional digits, CRLF line ends and no line end after the last row.
"""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fractions import Fraction
from functools import cached_property
from io import StringIO
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from railweave.fabric.errors import InputError, nearest_name

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "AZURE_CONV",
    "AZURE_HEADER",
    "LengthMoments",
    "TraceMoments",
    "TraceRequest",
    "generate_trace",
    "read_azure_trace",
    "write_azure_trace",
]

AZURE_HEADER: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_PS_PER_TICK: Final = 100_000  # seven fractional digits of a second: 100 ns
_TICKS_PER_S: Final = 10**7
_TIMESTAMP: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,7}))?"
)
_COUNT: Final = re.compile(r"[0-9]{1,9}")
_EPOCH: Final = datetime(1970, 1, 1)  # traces carry no time zone
_NORMAL: Final = NormalDist()


@dataclass(frozen=True, kw_only=True)
class TraceRequest:
    """One request: arrival in ps after the first request, prompt and output tokens."""

    at_ps: int
    prompt_tokens: int
    output_tokens: int


def read_azure_trace(
    path: Path | str,
    *,
    limit: int | None = None,
    rate_scale: float = 1.0,
    empty_output: Literal["refuse", "drop"] = "refuse",
    jitter_ps: int = 0,
    seed: int = 1,
) -> list[TraceRequest]:
    """Read a trace in Azure's format, sorted by time (stable), the first request at 0 ps.

    Prompts are never cut: what the file says is what arrives.

    Parameters
    ----------
    path
        The CSV file.
    limit
        Keep only this many requests, the earliest; None keeps all.
    rate_scale
        Arrivals come this many times as fast.
    empty_output
        What becomes of a request that generates no token: an error, or it is left out.
    jitter_ps
        Each arrival is moved later by a random time below this, for traces whose timestamps lie on
        a grid; 0 moves nothing.
    seed
        Seed of the jitter.

    Raises
    ------
    InputError
        Unreadable, binary or empty file; a missing column; a bad row (with its line); a limit or
        scale that is not positive.
    """
    file = str(path)
    if limit is not None and limit < 1:
        raise InputError(f"limit {limit} keeps no request", field="limit", expected="at least 1")
    if not (math.isfinite(rate_scale) and rate_scale > 0):
        raise InputError(f"{rate_scale} is not a rate scale", field="rate_scale", expected="> 0")
    rows = _rows(_text(Path(path)), file, drop_empty=empty_output == "drop")
    if not rows:
        raise InputError("the trace has no requests", file=file, expected="a row per request")
    rows.sort(key=lambda row: row[0])  # stable: requests of one instant keep the file's order
    if limit is not None:
        del rows[limit:]
    first, scale = rows[0][0], Fraction(repr(float(rate_scale)))
    requests = [
        TraceRequest(
            at_ps=int((ticks - first) * _PS_PER_TICK / scale),
            prompt_tokens=prompt,
            output_tokens=output,
        )
        for ticks, prompt, output in rows
    ]
    return _jittered(requests, jitter_ps, seed) if jitter_ps > 0 else requests


def _jittered(requests: list[TraceRequest], jitter_ps: int, seed: int) -> list[TraceRequest]:
    moves = np.random.Generator(np.random.PCG64(seed)).integers(jitter_ps, size=len(requests))
    moved = [
        replace(request, at_ps=request.at_ps + int(move))
        for request, move in zip(requests, moves, strict=True)
    ]
    moved.sort(key=lambda request: request.at_ps)
    return moved


def _text(path: Path) -> str:
    file = str(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"cannot read the trace: {reason}", file=file) from None
    expected = "a CSV text file with the columns " + ", ".join(AZURE_HEADER)
    if b"\0" in raw:
        raise InputError("this is a binary file", file=file, expected=expected)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("this is a binary file", file=file, expected=expected) from None
    if not text.strip():
        raise InputError("the trace is empty", file=file, expected=expected)
    return text


def _rows(text: str, file: str, *, drop_empty: bool) -> list[tuple[int, int, int]]:
    """Return ``(ticks of 100 ns, prompt tokens, output tokens)`` of each row, in file order."""
    reader = csv.reader(StringIO(text, newline=""))
    header = [name.strip() for name in next(reader)]
    columns = []
    for name in AZURE_HEADER:
        if name not in header:
            raise InputError(
                f"the trace has no column {name}",
                file=file,
                line=1,
                expected=", ".join(AZURE_HEADER),
                nearest=nearest_name(name, header),
            )
        columns.append(header.index(name))
    rows = []
    try:
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise InputError(f"{len(cells)} columns", expected=f"{len(header)} as in line 1")
            time, prompt, output = (cells[column].strip() for column in columns)
            row = (
                _ticks(time),
                _tokens(prompt, AZURE_HEADER[1]),
                _tokens(output, AZURE_HEADER[2]),
            )
            if row[2] == 0:
                if drop_empty:
                    continue
                raise InputError("0 tokens", field="GeneratedTokens", expected="at least 1")
            if row[1] == 0:
                raise InputError("0 tokens", field="ContextTokens", expected="at least 1")
            rows.append(row)
    except InputError as error:
        raise error.located(file=file, line=reader.line_num) from None
    except csv.Error as error:
        raise InputError(f"bad CSV: {error}", file=file, line=reader.line_num) from None
    return rows


def _ticks(text: str) -> int:
    """Parse a timestamp into ticks of 100 ns; seven digits are more than ``%f`` takes."""
    expected = "YYYY-MM-DD hh:mm:ss with up to 7 fractional digits"
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise InputError(f"'{text}' is not a timestamp", field="TIMESTAMP", expected=expected)
    try:
        second = datetime.fromisoformat(f"{match[1]} {match[2]}")
    except ValueError:
        raise InputError(
            f"'{text}' is not a timestamp", field="TIMESTAMP", expected=expected
        ) from None
    whole = (second - _EPOCH) // timedelta(seconds=1)
    return whole * _TICKS_PER_S + int((match[3] or "").ljust(7, "0"))


def _tokens(text: str, field: str) -> int:
    if not _COUNT.fullmatch(text):
        raise InputError(
            f"'{text}' is not a number of tokens", field=field, expected="a whole number, 0 or more"
        )
    return int(text)


@dataclass(frozen=True, kw_only=True)
class LengthMoments:
    """Token counts by their published mean, median and largest value.

    Drawn as ``min(X, largest)`` with X lognormal: ln X is normal around ln(median), and its spread
    is the one that gives ``min(X, largest)`` the mean asked for. A service caps its outputs in the
    same way: what would have been longer ends at the cap.
    """

    mean: float
    median: float
    largest: int

    def capped_mean(self, sigma: float) -> float:
        """Return the mean of ``min(X, largest)`` when ln X has standard deviation ``sigma``."""
        mu, cap = math.log(self.median), math.log(self.largest)
        below = math.exp(mu + sigma**2 / 2) * _NORMAL.cdf((cap - mu) / sigma - sigma)
        return below + self.largest * _NORMAL.cdf((mu - cap) / sigma)

    @cached_property
    def sigma(self) -> float:
        """Standard deviation of ln X."""
        low, high = 1e-3, 5.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.capped_mean(middle) < self.mean else (low, middle)
        return high

    def value(self, uniform: float) -> int:
        """Return the count, 1 or more, at the quantile ``uniform`` (0 to 1, both exclusive)."""
        length = self.median * math.exp(self.sigma * _NORMAL.inv_cdf(uniform))
        return max(1, min(self.largest, round(length)))


@dataclass(frozen=True, kw_only=True)
class TraceMoments:
    """What a synthetic trace is drawn from: Poisson arrivals and independent lengths."""

    rate_per_s: float
    prompt: LengthMoments
    output: LengthMoments


AZURE_CONV: Final = TraceMoments(
    rate_per_s=5.53,
    prompt=LengthMoments(mean=1155, median=1020, largest=14_050),
    output=LengthMoments(mean=211, median=129, largest=1000),
)
"""The conversation trace of 2023: 19,366 requests in 58.4 min, their mean and largest lengths
(Azure/AzurePublicDataset, AzureLLMInferenceTrace_conv.csv, CC-BY-4.0); the medians as published in
Patel et al., "Splitwise", ISCA 2024, section III.
"""


def generate_trace(
    count: int, *, moments: TraceMoments = AZURE_CONV, seed: int
) -> list[TraceRequest]:
    """Draw a trace; the same arguments give the same requests on every machine.

    Each request takes three uniform numbers of one PCG64 stream (gap, prompt, output), turned into
    an exponential gap in whole microseconds and two lengths by their inverse distribution
    functions. The first request arrives at 0.

    Examples
    --------
    >>> [(r.prompt_tokens, r.output_tokens) for r in generate_trace(2, seed=1)]
    [(2321, 41), (799, 105)]
    """
    uniforms = np.random.Generator(np.random.PCG64(seed)).random((count, 3))
    requests, at_us = [], 0
    for i, (gap, prompt, output) in enumerate(uniforms.tolist()):
        if i:
            at_us += round(-math.log1p(-gap) / moments.rate_per_s * 1e6)
        requests.append(
            TraceRequest(
                at_ps=at_us * 10**6,
                prompt_tokens=moments.prompt.value(max(prompt, 1e-12)),
                output_tokens=moments.output.value(max(output, 1e-12)),
            )
        )
    return requests


def write_azure_trace(
    path: Path | str, requests: Sequence[TraceRequest], *, start: str = "2023-11-16 18:00:00"
) -> None:
    """Write requests in Azure's format: seven fractional digits, CRLF, no final line end.

    Parameters
    ----------
    path
        File to write.
    requests
        Arrivals in whole 100 ns.
    start
        Wall-clock time of 0 ps, ``YYYY-MM-DD hh:mm:ss``.
    """
    zero = datetime.fromisoformat(start)
    lines = [",".join(AZURE_HEADER)]
    for request in requests:
        seconds, ticks = divmod(request.at_ps // _PS_PER_TICK, _TICKS_PER_S)
        stamp = zero + timedelta(seconds=seconds)
        lines.append(f"{stamp}.{ticks:07d},{request.prompt_tokens},{request.output_tokens}")
    Path(path).write_bytes("\r\n".join(lines).encode("ascii"))
