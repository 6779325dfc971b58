# SPDX-License-Identifier: Apache-2.0
"""How unevenly a hash spreads flows over equal links: balls thrown into bins.

Flows are balls, links bins, each ball in a bin of its own choice. P(fullest <= k) is computed
exactly: n balls in m bins are m Poisson variables given their sum (Mitzenmacher and Upfal,
"Probability and Computing", section 5.4), so it is the m-fold convolution of the Poisson law cut
off at k, over the Poisson law of the sum, both at n.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Spread", "expected_fullest", "expected_used", "qps_for", "simulate_shift"]

_QPS: Final = (
    *range(1, 17),
    *range(18, 33, 2),
    *range(36, 65, 4),
    80,
    96,
    112,
    128,
    192,
    256,
    384,
    512,
)
_NEGLIGIBLE: Final = 1e-12


def expected_used(balls: int, bins: int) -> float:
    """Return how many bins get a ball on average: ``m (1 - (1 - 1/m)^n)``.

    Examples
    --------
    >>> round(expected_used(16, 16) / 16, 4)
    0.6439
    """
    return bins * (1 - (1 - 1 / bins) ** balls)


def expected_fullest(balls: int, bins: int) -> float:
    """Return the mean number of balls in the fullest bin.

    Examples
    --------
    >>> [round(expected_fullest(n, n), 3) for n in (4, 8, 16, 64)]
    [2.125, 2.597, 3.078, 3.958]
    """
    if balls == 0 or bins == 1:
        return float(balls)
    mean = balls / bins
    reach = 12 * math.sqrt(mean) + 40  # a bin is further off with less than 1e-15
    first = max(0, math.floor(mean - reach))
    last = min(balls, math.ceil(mean + reach))
    k = np.arange(first, last + 1)
    factorials = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, last + 1)))))
    law = np.exp(k * math.log(mean) - mean - factorials[first:])
    log_sum = balls * math.log(balls) - balls - math.lgamma(balls + 1)

    def at_most(most: int) -> float:
        """Return P(no bin has more than ``most`` balls)."""
        one = law[: most - first + 1]
        if bins * most < balls or not len(one):
            return 0.0
        # The law of one bin is scaled to 1, so that its convolutions neither vanish nor grow.
        scale = float(one.sum())
        size = 1 << (bins * (len(one) - 1) + 1).bit_length()
        whole = np.fft.irfft(np.fft.rfft(one / scale, size) ** bins, size)
        here = max(float(whole[balls - bins * first]), 0.0)
        return min(1.0, math.exp(bins * math.log(scale) - log_sum) * here)

    low, high = balls // bins - 1, last  # the fullest has at least the mean
    while high - low > 1:
        middle = (low + high) // 2
        if at_most(middle) < _NEGLIGIBLE:
            low = middle
        else:
            high = middle
    total = float(low + 1)
    for most in range(low + 1, last + 1):
        above = 1.0 - at_most(most)
        total += above
        if above < _NEGLIGIBLE:
            break
    return total


def qps_for(flows: int, links: int, share: float) -> int | None:
    """Return the fewest queue pairs per flow that hold the fullest link at ``1/share`` of the mean.

    With q queue pairs each flow is q balls of a q-th of the size. None: more than 512.

    Examples
    --------
    >>> qps_for(32, 8, 0.5), qps_for(8, 1, 0.9)
    (1, 1)
    """
    low, high = 0, len(_QPS)  # the share grows with the queue pairs
    while low < high:
        middle = (low + high) // 2
        balls = flows * _QPS[middle]
        if balls / links / expected_fullest(balls, links) >= share:
            high = middle
        else:
            low = middle + 1
    return _QPS[low] if low < len(_QPS) else None


class Spread(NamedTuple):
    """What a simulated spread gives, as shares of the line rate.

    ``mean`` is over all flows, ``slowest`` that of the slowest queue pair of each sample.
    """

    mean: float
    slowest: float
    fullest: float


def simulate_shift(flows: int, links: int, qps: int, *, samples: int, seed: int = 1) -> Spread:
    """Simulate flows of one leaf to another over random equal links, with max-min fair sharing.

    Each of ``flows`` hosts sends one flow, split over ``qps`` queue pairs, over ``links`` links as
    fast as all hosts together where ``links`` equals ``flows``. Rates are relative to a NIC's; a
    queue pair gets at most a NIC's rate over its ``qps``.

    Parameters
    ----------
    flows, links, qps
        Senders, links of their leaf, queue pairs of each flow.
    samples
        How many times to draw.
    seed
        Of the draws.
    """
    draws = np.random.default_rng(seed)
    means, slowest, fullest = [], [], []
    for _ in range(samples):
        choice = draws.integers(links, size=(flows, qps))
        load = np.bincount(choice.ravel(), minlength=links)
        rate = _max_min(choice, links)
        means.append(float(rate.sum() / flows))
        slowest.append(float(rate.min() * qps))
        fullest.append(float(load.max() * links / (flows * qps)))
    return Spread(*(float(np.mean(values)) for values in (means, slowest, fullest)))


def _max_min(choice: NDArray[np.int64], links: int) -> NDArray[np.float64]:
    """Return the max-min fair rates of queue pairs, float64 (flows, qps).

    Resources are the flows' NICs and the links, each of rate 1 (a link of a leaf that is not
    oversubscribed); progressive filling (Bertsekas and Gallager, "Data Networks", section 6.5.2).
    """
    flows, qps = choice.shape
    at = np.stack([np.repeat(np.arange(flows), qps), flows + choice.ravel()])
    left = np.ones(flows + links)
    rate = np.zeros(flows * qps)
    open_ = np.ones(flows * qps, np.bool_)
    while open_.any():
        users = np.bincount(at[:, open_].ravel(), minlength=flows + links)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(users > 0, left / users, np.inf)
        step = float(share.min())
        rate[open_] += step
        left -= step * users
        full = (users > 0) & (share <= step * (1 + 1e-12))
        open_ &= ~(full[at[0]] | full[at[1]])
    return rate.reshape(flows, qps)
