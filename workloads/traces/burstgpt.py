# SPDX-License-Identifier: Apache-2.0
"""The BurstGPT traces (HPMLL/BurstGPT, data CC-BY-4.0).

A CSV with the columns ``Timestamp`` (seconds from midnight of the first day), ``Model``,
``Request tokens``, ``Response tokens``, ``Total tokens`` and ``Log Type``; newer files also have
``Session ID`` (of conversations only) and ``Elapsed time``. A response of 0 tokens is a request
that failed: it is left out unless asked for otherwise.
"""

from __future__ import annotations

from typing import Final

from railweave.fabric.errors import InputError
from railweave.workloads.traces.formats import (
    TraceRow,
    count_of,
    csv_rows,
    seconds_ps,
    trace_format,
)

__all__ = ["parse"]

_COLUMNS: Final = ("Timestamp", "Request tokens", "Response tokens", "Total tokens")


@trace_format("burstgpt", keys=_COLUMNS, output_key=_COLUMNS[2], empty_output="drop")
def parse(text: str, file: str) -> list[TraceRow]:
    """Return the rows of a trace in BurstGPT's format; see the module."""
    rows = []
    for line, cells in csv_rows(text, file, _COLUMNS, ("Session ID",)):
        time, prompt, output, total, session = cells
        try:
            at_ps = seconds_ps(time, _COLUMNS[0])
            counts = [
                count_of(_whole(cell), name)
                for cell, name in zip((prompt, output, total), _COLUMNS[1:], strict=True)
            ]
            if counts[0] + counts[1] != counts[2]:
                raise InputError(
                    f"{counts[2]} is not the sum", field=_COLUMNS[3], expected=f"{sum(counts[:2])}"
                )
            if counts[1]:  # requests that failed may have read nothing
                count_of(counts[0], _COLUMNS[1], least=1)
        except InputError as error:
            raise error.located(file=file, line=line) from None
        rows.append(
            TraceRow(
                line=line,
                at_ps=at_ps,
                prompt_tokens=counts[0],
                output_tokens=counts[1],
                session=session,
            )
        )
    return rows


def _whole(cell: str) -> str:
    """Drop the ``.0`` that a table with gaps puts after whole numbers."""
    return cell.removesuffix(".0")
