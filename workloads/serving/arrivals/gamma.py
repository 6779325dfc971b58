# SPDX-License-Identifier: Apache-2.0
"""Bursts: gaps between arrivals that are gamma distributed, of a coefficient of variation.

With ``cv`` 1 it is a Poisson process; above, requests come in bursts, as vLLM's benchmark makes
them with ``--burstiness`` (its shape is ``1 / cv**2``).
"""

from __future__ import annotations

from railweave.workloads.serving.arrivals import Arrivals, arrivals

__all__ = ["Gamma"]


@arrivals("gamma")
class Gamma(Arrivals):
    """Gamma gaps of shape ``1 / cv**2`` and mean ``1 / rate_per_s``; the first arrives at 0."""

    needs = ("rate_per_s", "cv")

    def times(self, count: int) -> list[int]:
        """Draw the arrivals."""
        assert self.keys.cv is not None
        shape = 1 / self.keys.cv**2
        draws = self.random.standard_gamma(shape, size=count).tolist()
        return self.gaps(draws, 1 / shape)
