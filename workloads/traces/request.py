# SPDX-License-Identifier: Apache-2.0
"""A request of a trace, and a trace as it was read."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Trace", "TraceRequest"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceRequest:
    """One request: when it arrives, what it reads and generates.

    Parameters
    ----------
    at_ps
        Arrival, in ps after the first request.
    prompt_tokens, output_tokens
        Lengths.
    hash_ids
        One id per block of ``hash_block`` tokens of the prompt, the last of which may be partial;
        none if the trace does not tell what prompts have in common. An id stands for its block and
        all before it: two prompts whose ids agree at a place agree up to there.
    hash_block
        Tokens of such a block; 0 without ids.
    session
        What the turns of one conversation share; empty without one.
    row
        Line of the file, or number of the entry, from 1; 0 for requests that no file holds. Two
        requests that differ in it alone are equal.
    """

    at_ps: int
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    hash_block: int = 0
    session: str = ""
    row: int = field(default=0, compare=False)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What a trace file holds.

    Parameters
    ----------
    requests
        In order of arrival; those of one instant keep the file's order.
    format
        Name of the format: ``azure``, ``mooncake``, ...
    file
        The file.
    notes
        What was done with rows that are not plain: left out, put in order, or of one instant. Each
        names the rows.
    """

    requests: tuple[TraceRequest, ...]
    format: str
    file: str
    notes: tuple[str, ...] = ()
