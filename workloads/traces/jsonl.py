# SPDX-License-Identifier: Apache-2.0
"""Railweave's own format: JSONL, one request a line, with the keys of a scenario's ``requests``.

::

    {"at": "0ms", "prompt": 2150, "output": 64}
    {"at": "12ms", "prompt": 700, "output": 9, "session": "s1", "hash_block": 256,
     "hash_ids": [0, 1, 2]}

(each on one line). ``session`` names a conversation; ``hash_ids`` tell what prompts have in common,
one id for each ``hash_block`` tokens begun, chained as Mooncake's are. All rows with ids have
blocks of one size.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from railweave.fabric.errors import InputError
from railweave.fabric.units import format_time, parse_time_ps
from railweave.workloads.traces.formats import TraceRow, count_of, json_rows, trace_format
from railweave.workloads.traces.mooncake import Chains, hash_ids_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from railweave.workloads.traces.request import TraceRequest

__all__ = ["parse", "write_jsonl_trace"]

_KEYS: Final = ("prompt", "output", "at")
_OPTIONAL: Final = ("session", "hash_ids", "hash_block")


@trace_format("jsonl", keys=_KEYS, output_key="output")
def parse(text: str, file: str) -> list[TraceRow]:
    """Return the rows of a trace in railweave's own format; see the module."""
    rows: list[TraceRow] = []
    chains, block, first = Chains(), 0, 0
    for line, found in json_rows(text, file, _KEYS, _OPTIONAL):
        try:
            row = _row(line, found)
            if row.hash_block:
                chains.add(row.hash_ids, line)
                if block not in (0, row.hash_block):
                    raise InputError(
                        f"{row.hash_block} is another size than that of line {first}",
                        field="hash_block",
                        expected=f"{block}",
                    )
                if not block:
                    block, first = row.hash_block, line
        except InputError as error:
            raise error.located(file=file, line=line) from None
        rows.append(row)
    return rows


def _row(line: int, found: dict[str, Any]) -> TraceRow:
    try:
        at_ps = parse_time_ps(found["at"])
    except InputError as error:
        raise error.located(field="at") from None
    prompt = count_of(found["prompt"], "prompt", least=1)
    session = found.get("session", "")
    if not isinstance(session, str):
        raise InputError(f"{str(session)[:40]} is not text", field="session", expected='"a name"')
    block = 0
    ids: tuple[int, ...] = ()
    if ("hash_ids" in found) != ("hash_block" in found):
        raise InputError("stands alone", field="hash_ids" if "hash_ids" in found else "hash_block",
                         expected="hash_ids and hash_block, or neither")  # fmt: skip
    if "hash_ids" in found:
        block = count_of(found["hash_block"], "hash_block", least=1)
        ids = hash_ids_of(found["hash_ids"], prompt, block, length_key="prompt")
    return TraceRow(
        line=line,
        at_ps=at_ps,
        prompt_tokens=prompt,
        output_tokens=count_of(found["output"], "output"),
        hash_ids=ids,
        hash_block=block,
        session=session,
    )


def write_jsonl_trace(path: Path | str, requests: Iterable[TraceRequest]) -> None:
    """Write requests in railweave's own format; what is read back is equal.

    Parameters
    ----------
    path
        File to write.
    requests
        In any order.
    """
    lines = []
    for request in requests:
        row: dict[str, object] = {
            "at": format_time(request.at_ps),
            "prompt": request.prompt_tokens,
            "output": request.output_tokens,
        }
        if request.session:
            row["session"] = request.session
        if request.hash_block:
            row |= {"hash_block": request.hash_block, "hash_ids": list(request.hash_ids)}
        lines.append(json.dumps(row) + "\n")
    Path(path).write_text("".join(lines), encoding="utf-8")
