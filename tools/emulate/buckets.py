# SPDX-License-Identifier: Apache-2.0
"""The token buckets of the shapers: what may leave at once after a pause.

A token bucket of ``b`` bytes at rate ``r`` passes at most ``b + r t`` in any time ``t`` (Cruz, "A
calculus for network delay, part I", IEEE Trans. Inf. Theory 37 (1991)), so what begins on idle
cables ends ``b / r`` sooner than the rate alone says. `Buckets` follows every cable's tokens and
shares them among those that begin together, max-min fairly like the rates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["Buckets"]


class Buckets:
    """Tokens of every link, in bytes.

    Parameters
    ----------
    burst_bytes
        float64 (links,): size of each bucket; 0 where nothing is shaped.
    rate_bps
        int64 (links,): rate at which it fills.
    """

    def __init__(self, burst_bytes: NDArray[np.float64], rate_bps: NDArray[np.int64]) -> None:
        self._burst = burst_bytes
        self._rate_Bps = rate_bps / 8.0
        self._tokens = burst_bytes.copy()
        self._carried = np.zeros(len(burst_bytes))
        self._now_ps = 0

    def advance(self, now_ps: int, carried_bytes: NDArray[np.int64]) -> None:
        """Fill the buckets up to a time by what their links did not carry since the last one."""
        filled = self._rate_Bps * ((now_ps - self._now_ps) / PS_PER_S)
        used = carried_bytes - self._carried
        self._tokens = np.clip(self._tokens + filled - used, 0.0, self._burst)
        self._now_ps, self._carried = now_ps, carried_bytes.astype(np.float64)

    def take(self, paths: Sequence[Sequence[int]], wanted: Sequence[float]) -> list[float]:
        """Share the tokens among transfers that begin now; return what each gets, in bytes.

        Parameters
        ----------
        paths
            Shaped links of each.
        wanted
            Most that each can use, in bytes.
        """
        given = [0.0] * len(paths)
        open_ = [i for i, path in enumerate(paths) if path and wanted[i] > 0]
        while open_:
            users = np.zeros(len(self._tokens))
            for i in open_:
                np.add.at(users, list(paths[i]), 1)
            share = np.full(len(users), np.inf)
            np.divide(self._tokens, users, out=share, where=users > 0)
            step = min(float(share.min()), min(wanted[i] - given[i] for i in open_))
            self._tokens -= step * users
            for i in open_:
                given[i] += step
            self._tokens[self._tokens < 1e-6] = 0.0
            open_ = [
                i
                for i in open_
                if wanted[i] - given[i] > 1e-6 and all(self._tokens[link] > 0 for link in paths[i])
            ]
        return given
