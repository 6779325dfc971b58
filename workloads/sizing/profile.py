# SPDX-License-Identifier: Apache-2.0
"""What a trace looks like: lengths, rate, how both vary, what prompts have in common."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import TYPE_CHECKING

from railweave.workloads.stats import nearest_rank
from railweave.workloads.traces import prefix_reuse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.workloads.traces import PrefixReuse, TraceRequest

__all__ = ["Spread", "TraceProfile", "profile_trace"]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How a quantity is spread: mean, nearest-rank percentiles, largest, and variation.

    Parameters
    ----------
    cv
        Coefficient of variation: standard deviation over mean (of the population).
    """

    mean: float
    p50: int
    p99: int
    largest: int
    cv: float

    @classmethod
    def of(cls, values: Sequence[int]) -> Spread:
        """Return the spread of whole numbers, at least one.

        Examples
        --------
        >>> Spread.of([1, 3])
        Spread(mean=2.0, p50=1, p99=3, largest=3, cv=0.5)
        """
        ordered = sorted(values)
        mean = sum(ordered) / len(ordered)
        variance = sum((value - mean) ** 2 for value in ordered) / len(ordered)
        return cls(
            mean=mean,
            p50=nearest_rank(ordered, 50),
            p99=nearest_rank(ordered, 99),
            largest=ordered[-1],
            cv=sqrt(variance) / mean if mean else 0.0,
        )


@dataclass(frozen=True, kw_only=True)
class TraceProfile:
    """See the module.

    Parameters
    ----------
    requests
        How many.
    span_ps
        From the first arrival to the last.
    prompt, output
        Tokens.
    gaps_cv
        Coefficient of variation of the times between arrivals: 1 for a Poisson process, more for
        bursts; None with fewer than three arrivals or all at once.
    reuse
        Prefix hits of an unbounded cache; None if the trace has no ids.
    sessions
        Conversations with at least two turns, and the turns of these.
    """

    requests: int
    span_ps: int
    prompt: Spread
    output: Spread
    gaps_cv: float | None
    reuse: PrefixReuse | None
    sessions: tuple[int, int]

    @property
    def rate_per_s(self) -> float | None:
        """Arrivals per second over the span; None if they come all at once."""
        return (self.requests - 1) / (self.span_ps / 1e12) if self.span_ps else None


def profile_trace(requests: Sequence[TraceRequest]) -> TraceProfile:
    """Describe requests, at least one, in order of arrival."""
    gaps = [after.at_ps - before.at_ps for before, after in pairwise(requests)]
    turns = Counter(request.session for request in requests if request.session)
    several = [count for count in turns.values() if count > 1]
    return TraceProfile(
        requests=len(requests),
        span_ps=requests[-1].at_ps - requests[0].at_ps,
        prompt=Spread.of([request.prompt_tokens for request in requests]),
        output=Spread.of([request.output_tokens for request in requests]),
        gaps_cv=Spread.of(gaps).cv if len(gaps) > 1 and any(gaps) else None,
        reuse=prefix_reuse(requests) if any(r.hash_block for r in requests) else None,
        sessions=(len(several), sum(several)),
    )
