# SPDX-License-Identifier: Apache-2.0
"""What prompts have in common, counted from their block ids alone."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from railweave.workloads.traces.request import TraceRequest

__all__ = ["PrefixReuse", "prefix_reuse"]

_UNBOUNDED: Final = 2**62


@dataclass(frozen=True, kw_only=True)
class PrefixReuse:
    """What one cache finds of prompts that arrive in order.

    Parameters
    ----------
    blocks
        Blocks of all prompts, partial ones included.
    hits
        Of them, leading blocks that an earlier prompt had too.
    whole_hits
        Those that a server can take from its cache: whole blocks, and never the last token of a
        prompt, which has to be computed to get the next one (vLLM V1).
    prompt_tokens, hit_tokens
        Tokens of the prompts, and of the whole hits.
    """

    blocks: int
    hits: int
    whole_hits: int
    prompt_tokens: int
    hit_tokens: int

    @property
    def hit_share(self) -> float:
        """Hits over blocks."""
        return self.hits / self.blocks if self.blocks else 0.0


def prefix_reuse(requests: Iterable[TraceRequest], *, room_tokens: int = _UNBOUNDED) -> PrefixReuse:
    """Count the prefix hits of one cache that all requests share, in order of arrival.

    Requests without ids count their tokens and nothing else.

    Parameters
    ----------
    requests
        In order of arrival.
    room_tokens
        Tokens that the cache holds; when it is full, the block goes that was used longest ago, of
        one prompt the last first. Blocks count as whole ones. Default: no bound.

    Examples
    --------
    >>> from railweave.workloads.traces import TraceRequest
    >>> first = TraceRequest(at_ps=0, prompt_tokens=1024, output_tokens=1,
    ...                      hash_ids=(0, 1), hash_block=512)
    >>> again = TraceRequest(at_ps=5, prompt_tokens=1500, output_tokens=1,
    ...                      hash_ids=(0, 1, 2), hash_block=512)
    >>> found = prefix_reuse([first, first, again])
    >>> found.blocks, found.hits, found.whole_hits, found.hit_tokens
    (7, 4, 3, 1536)
    >>> prefix_reuse([first, first, again], room_tokens=512).hits
    2
    """
    kept: OrderedDict[int, None] = OrderedDict()  # the one used longest ago first
    blocks = hits = whole_hits = prompt_tokens = hit_tokens = 0
    for request in requests:
        prompt_tokens += request.prompt_tokens
        if not request.hash_block:
            continue
        found = 0
        for here in request.hash_ids:
            if here not in kept:
                break
            found += 1
        whole = min(found, (request.prompt_tokens - 1) // request.hash_block)
        blocks += len(request.hash_ids)
        hits += found
        whole_hits += whole
        hit_tokens += whole * request.hash_block
        for here in reversed(request.hash_ids):
            kept[here] = None
            kept.move_to_end(here)
        while len(kept) * request.hash_block > room_tokens:
            kept.popitem(last=False)
    return PrefixReuse(
        blocks=blocks,
        hits=hits,
        whole_hits=whole_hits,
        prompt_tokens=prompt_tokens,
        hit_tokens=hit_tokens,
    )
