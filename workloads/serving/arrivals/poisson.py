# SPDX-License-Identifier: Apache-2.0
"""Independent users: exponential gaps between arrivals."""

from __future__ import annotations

import math

from railweave.workloads.serving.arrivals import Arrivals, arrivals

__all__ = ["Poisson"]


@arrivals("poisson")
class Poisson(Arrivals):
    """A Poisson process of ``rate_per_s``; the first request arrives at 0."""

    needs = ("rate_per_s",)

    def times(self, count: int) -> list[int]:
        """Draw the arrivals."""
        return self.gaps([-math.log1p(-u) for u in self.random.random(count).tolist()])
