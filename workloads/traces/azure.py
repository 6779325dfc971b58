# SPDX-License-Identifier: Apache-2.0
"""The Azure LLM inference traces (Azure/AzurePublicDataset, CC-BY-4.0).

A CSV with the columns ``TIMESTAMP, ContextTokens, GeneratedTokens``, timestamps with seven
fractional digits, CRLF line ends and no line end after the last row. Further columns, such as
``NumImages`` of 2025, are passed over.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from railweave.fabric.errors import InputError
from railweave.workloads.traces.formats import TraceRow, count_of, csv_rows, trace_format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.workloads.traces.request import TraceRequest

__all__ = ["AZURE_HEADER", "parse", "write_azure_trace"]

AZURE_HEADER: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_PS_PER_TICK: Final = 100_000  # seven fractional digits of a second: 100 ns
_TICKS_PER_S: Final = 10**7
_TIMESTAMP: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,7}))?"
)
_EPOCH: Final = datetime(1970, 1, 1)  # traces carry no time zone


@trace_format("azure", keys=AZURE_HEADER, output_key=AZURE_HEADER[2])
def parse(text: str, file: str) -> list[TraceRow]:
    """Return the rows of a trace in Azure's format; see the module."""
    rows = []
    for line, (time, prompt, output) in csv_rows(text, file, AZURE_HEADER):
        try:
            rows.append(
                TraceRow(
                    line=line,
                    at_ps=_ticks(time) * _PS_PER_TICK,
                    prompt_tokens=count_of(prompt, AZURE_HEADER[1], least=1),
                    output_tokens=count_of(output, AZURE_HEADER[2]),
                )
            )
        except InputError as error:
            raise error.located(file=file, line=line) from None
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
