# SPDX-License-Identifier: Apache-2.0
"""The Mooncake traces (kvcache-ai/Mooncake, ``FAST25-release/traces``, Apache-2.0).

JSONL with the keys ``timestamp`` (milliseconds), ``input_length``, ``output_length`` and
``hash_ids``: one id for each 512 tokens of the prompt, the last block partial. An id is that of a
chained hash: it stands for its block and all blocks before it, so each id has one parent.

The real traces lie on a grid of 3 s (Qin et al., "Mooncake", FAST 2025; 11,986 of the 12,031
conversation rows are at 0 or 2999 ms of it): replayed as they stand they make bursts that were
never there. A jitter of 3 s spreads them.
"""

from __future__ import annotations

from typing import Any, Final

from railweave.fabric.errors import InputError
from railweave.workloads.traces.formats import (
    TraceRow,
    count_of,
    json_rows,
    seconds_ps,
    trace_format,
)

__all__ = ["HASH_BLOCK", "Chains", "hash_ids_of", "parse"]

HASH_BLOCK: Final = 512
_KEYS: Final = ("timestamp", "input_length", "output_length", "hash_ids")


@trace_format("mooncake", keys=_KEYS, output_key="output_length")
def parse(text: str, file: str) -> list[TraceRow]:
    """Return the rows of a trace in Mooncake's format; see the module."""
    rows, chains = [], Chains()
    for line, found in json_rows(text, file, _KEYS):
        try:
            prompt = count_of(found["input_length"], "input_length", least=1)
            ids = hash_ids_of(found["hash_ids"], prompt, HASH_BLOCK, length_key="input_length")
            chains.add(ids, line)
            rows.append(
                TraceRow(
                    line=line,
                    at_ps=seconds_ps(found["timestamp"], "timestamp", per_s=1000),
                    prompt_tokens=prompt,
                    output_tokens=count_of(found["output_length"], "output_length"),
                    hash_ids=ids,
                    hash_block=HASH_BLOCK,
                )
            )
        except InputError as error:
            raise error.located(file=file, line=line) from None
    return rows


def hash_ids_of(value: Any, prompt: int, block: int, *, length_key: str) -> tuple[int, ...]:
    """Return the ids of a prompt, checked: whole numbers, one for each block begun.

    Parameters
    ----------
    value
        What the file has.
    prompt, block
        Tokens of the prompt and of a block.
    length_key
        What the prompt's length is called in the file.

    Raises
    ------
    InputError
        They are no list of whole numbers, or their count does not fit the length.
    """
    expected = "a list of whole numbers, from 0 to 2^63 - 1"
    if not isinstance(value, list):
        raise InputError("is not a list", field="hash_ids", expected=expected)
    for found in value:
        if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < 2**63:
            raise InputError(f"{str(found)[:40]!r} is not an id", field="hash_ids",
                             expected=expected)  # fmt: skip
    blocks = -(-prompt // block)
    if len(value) != blocks:
        raise InputError(
            f"{len(value)} ids do not fit {length_key} {prompt}",
            field="hash_ids",
            expected=f"{blocks}, one for each {block} tokens begun",
        )
    return tuple(value)


class Chains:
    """Checks that every id has one parent, as those of chained hashes have."""

    def __init__(self) -> None:
        self._parents: dict[int, tuple[int, int]] = {}

    def add(self, ids: tuple[int, ...], line: int) -> None:
        """Take the ids of a prompt.

        Raises
        ------
        InputError
            An id follows another one than it did before.
        """
        before = -1
        for here in ids:
            known, first = self._parents.setdefault(here, (before, line))
            if known != before:
                raise InputError(
                    f"id {here} {_after(before)}, but in line {first} it {_after(known)}",
                    field="hash_ids",
                    expected="ids of chained hashes, which have one parent",
                )
            before = here


def _after(before: int) -> str:
    return "comes first" if before < 0 else f"follows {before}"
