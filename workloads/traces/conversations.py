# SPDX-License-Identifier: Apache-2.0
"""Synthetic conversations, whose prompts have prefixes in common as those of real ones do.

Every conversation begins with the same system prompt. Each turn's prompt is all that was said
before, the answers included, and something new; what was said before has the same block ids again.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.workloads.traces.mooncake import HASH_BLOCK
from railweave.workloads.traces.request import TraceRequest
from railweave.workloads.traces.synthetic import LengthMoments

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "MOONCAKE_LIKE",
    "ConversationMoments",
    "generate_conversations",
    "write_mooncake_trace",
]


@dataclass(frozen=True, kw_only=True)
class ConversationMoments:
    """What synthetic conversations are drawn from.

    Parameters
    ----------
    rate_per_s
        Conversations that begin in a second (Poisson).
    turns
        Mean number of turns (geometric).
    think_s
        Mean time between the turns of a conversation (exponential).
    system_tokens
        Tokens that every prompt begins with.
    first, further, output
        New tokens of the first and of each further turn's prompt, and of the answers.
    largest
        Longest prompt; a conversation that would pass it ends.
    """

    rate_per_s: float
    turns: float
    think_s: float
    system_tokens: int
    first: LengthMoments
    further: LengthMoments
    output: LengthMoments
    largest: int


MOONCAKE_LIKE: Final = ConversationMoments(
    rate_per_s=2.0,
    turns=1.6,
    think_s=60.0,
    system_tokens=512,
    first=LengthMoments(mean=11_000, median=7_000, largest=100_000),
    further=LengthMoments(mean=900, median=300, largest=20_000),
    output=LengthMoments(mean=343, median=300, largest=2_000),
    largest=126_195,
)
"""Prompts and answers about as long as those of Mooncake's conversation trace (12,035 tokens in and
343 out in the mean, 126,195 in at most; kvcache-ai/Mooncake, ``FAST25-release/traces``,
Apache-2.0), where every prompt begins with the same block. The number of turns is chosen so that
an unbounded cache hits about as often as there, 36.6 % of the blocks; the time between turns is
assumed.
"""


def generate_conversations(
    count: int, *, moments: ConversationMoments = MOONCAKE_LIKE, seed: int
) -> list[TraceRequest]:
    """Draw the earliest ``count`` requests of conversations; the first arrives at 0.

    The same arguments give the same requests on every machine. Ids are numbered in order of first
    use, and an id that an answer completes is new: answers are not in a prompt's chain until they
    come back in the next turn's.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    turns: list[tuple[int, int, int, int]] = []  # us, conversation, prompt, output
    begins_us = 0
    # A turn in excess of those wanted can only be later than they are.
    for conversation in range(count):
        if conversation:
            begins_us += _exponential_us(random.random(), 1 / moments.rate_per_s)
        at_us, kept = begins_us, moments.system_tokens
        new = moments.first
        while True:
            prompt = kept + new.value(max(random.random(), 1e-12))
            output = moments.output.value(max(random.random(), 1e-12))
            stop, think = random.random(), random.random()
            if prompt > moments.largest:
                break
            turns.append((at_us, conversation, prompt, output))
            if stop < 1 / moments.turns:
                break
            kept, new = prompt + output, moments.further
            at_us += _exponential_us(think, moments.think_s)
    turns.sort()
    first_us = turns[0][0] if turns else 0
    return _numbered(turns[:count], moments.system_tokens, first_us)


def _exponential_us(uniform: float, mean_s: float) -> int:
    return round(-math.log1p(-uniform) * mean_s * 1e6)


def _numbered(
    turns: Sequence[tuple[int, int, int, int]], system: int, first_us: int
) -> list[TraceRequest]:
    """Give ids to blocks: the whole ones of the turn before keep theirs, all others are new."""
    free = system // HASH_BLOCK
    shared = tuple(range(free))
    before: dict[int, tuple[int, ...]] = {}
    requests = []
    for at_us, conversation, prompt, output in turns:
        kept = before.get(conversation, shared)
        blocks = -(-prompt // HASH_BLOCK)
        ids = (*kept, *range(free, free + blocks - len(kept)))
        free += blocks - len(kept)
        before[conversation] = ids[: prompt // HASH_BLOCK]
        requests.append(
            TraceRequest(
                at_ps=(at_us - first_us) * 10**6,
                prompt_tokens=prompt,
                output_tokens=output,
                hash_ids=ids,
                hash_block=HASH_BLOCK,
                session=f"c{conversation}",
            )
        )
    return requests


def write_mooncake_trace(
    path: Path | str, requests: Sequence[TraceRequest], *, grid_ms: int = 1
) -> None:
    """Write requests in Mooncake's format.

    Parameters
    ----------
    path
        File to write.
    requests
        In order of arrival, with ids of 512 tokens each.
    grid_ms
        Arrivals are rounded down to a multiple of this, as the real traces' are to 3000.
    """
    lines = []
    for request in requests:
        row = {
            "timestamp": request.at_ps // (grid_ms * 10**9) * grid_ms,
            "input_length": request.prompt_tokens,
            "output_length": request.output_tokens,
            "hash_ids": list(request.hash_ids),
        }
        lines.append(json.dumps(row) + "\n")
    Path(path).write_text("".join(lines), encoding="ascii")
