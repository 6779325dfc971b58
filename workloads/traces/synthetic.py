# SPDX-License-Identifier: Apache-2.0
"""Synthetic traces, drawn from the published statistics of real ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Final

import numpy as np

from railweave.workloads.traces.request import TraceRequest

__all__ = ["AZURE_CONV", "LengthMoments", "TraceMoments", "generate_trace"]

_NORMAL: Final = NormalDist()


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
