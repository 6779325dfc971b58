# SPDX-License-Identifier: Apache-2.0
"""Which experts tokens visit: seeded draws, even or skewed, and what follows from them.

A draw ranks the experts of each token by ``log popularity + Gumbel noise`` and takes the first k:
k draws without replacement in proportion to popularity (Gumbel-max; Kool et al., "Stochastic
Beams and Where to Find Them", arXiv 1903.06059). Popularity falls off as ``rank ** -skew``, which
expert has which rank being drawn too; a skew of 0 is uniform. ai-dynamo/aiconfigurator reckons
with 1.2, and with 0.6 where experts are rebalanced.

Node-limited routing (DeepSeek-V3, arXiv 2412.19437, section 2.1.2): experts lie in groups; a token
keeps the groups whose best experts score highest together, and picks among their experts alone.
"""

from __future__ import annotations

from fractions import Fraction
from math import comb
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["draw_experts", "expected_targets", "message_matrix", "visited_counts"]

_STREAM: Final = 11  # domain of the random streams of gates
_DRAWN_TOGETHER: Final = 2**22  # scores in memory at one time


def draw_experts(
    tokens: int,
    experts: int,
    top_k: int,
    *,
    seed: int,
    skew: float = 0.0,
    groups: int = 1,
    group_limit: int | None = None,
) -> NDArray[np.int32]:
    """Return the experts that each token visits, int32 (tokens, top_k), distinct in each row.

    Parameters
    ----------
    tokens, experts, top_k
        How many of each.
    seed
        Of the draw; equal arguments give equal draws on every machine.
    skew
        Exponent of the popularity's power law, 0 or more.
    groups, group_limit
        Experts lie in ``groups`` equal groups, of which a token visits at most ``group_limit``
        (None: all).

    Raises
    ------
    InputError
        The numbers do not go together.

    Examples
    --------
    >>> draw_experts(3, 8, 2, seed=1).shape
    (3, 2)
    """
    if not 0 < top_k <= experts:
        raise InputError(f"{top_k} of {experts} experts", field="top_k", expected="1 to experts")
    if not 0 <= skew < 100:
        raise InputError(f"{skew} is out of range", field="skew", expected="0 to 100")
    limit = groups if group_limit is None else group_limit
    if groups < 1 or experts % groups or not 1 <= limit <= groups:
        raise InputError(
            f"{limit} of {groups} groups of {experts} experts",
            field="group_limit",
            expected="equal groups, and 1 up to all of them",
        )
    if top_k > limit * (experts // groups):
        raise InputError(
            f"{limit} groups of {experts // groups} experts are too few for {top_k}",
            field="group_limit",
            expected=f"at least {-(-top_k * groups // experts)}",
        )
    key = np.random.SeedSequence(seed, spawn_key=(_STREAM,))
    random = np.random.Generator(np.random.PCG64(key))
    popularity = -skew * np.log(1.0 + random.permutation(experts))
    found = np.empty((tokens, top_k), np.int32)
    block = max(_DRAWN_TOGETHER // experts, 1)
    for first in range(0, tokens, block):
        some = min(block, tokens - first)
        score = popularity + random.gumbel(size=(some, experts))
        if limit < groups:
            _leave_out_groups(score.reshape(some, groups, -1), limit, top_k)
        chosen = np.argpartition(-score, top_k - 1, axis=1)[:, :top_k]
        found[first : first + some] = np.sort(chosen, axis=1)
    return found


def _leave_out_groups(per_group: NDArray[np.float64], limit: int, top_k: int) -> None:
    """Take all but ``limit`` groups of experts out of the scores of each token."""
    best = -np.sort(-per_group, axis=2)[:, :, : -(-top_k // limit)].sum(axis=2)
    left_out = np.argsort(-best, axis=1, kind="stable")[:, limit:]
    np.put_along_axis(per_group, left_out[:, :, None], -np.inf, axis=1)


def expected_targets(experts: int, top_k: int, groups: int) -> Fraction:
    """Return the expected number of distinct groups that a token's experts lie in, exact.

    ``R (1 - C(E - E/R, k) / C(E, k))``, k of E experts at random in R equal groups (ranks or
    nodes).

    Examples
    --------
    >>> [round(float(expected_targets(256, 8, ranks)), 2) for ranks in (8, 16, 32, 64)]
    [5.29, 6.52, 7.27, 7.68]
    """
    if groups < 1 or experts % groups:
        raise InputError(
            f"{experts} experts in {groups} groups", field="groups", expected="equal groups"
        )
    missed = Fraction(comb(experts - experts // groups, top_k), comb(experts, top_k))
    return groups * (1 - missed)


def message_matrix(
    sources: NDArray[np.int32], targets: NDArray[np.int32], n: int, *, once: bool
) -> NDArray[np.int64]:
    """Count the messages from each of n places to each other, int64 (n, n).

    Parameters
    ----------
    sources
        int32 (tokens,): where each token is.
    targets
        int32 (tokens, k): where its experts are.
    n
        Number of places.
    once
        Whether a token goes to a place once, however many of its experts are there.

    Examples
    --------
    >>> at = np.array([[1, 1, 0]], np.int32)
    >>> message_matrix(np.zeros(1, np.int32), at, 2, once=False).tolist()
    [[1, 2], [0, 0]]
    >>> message_matrix(np.zeros(1, np.int32), at, 2, once=True).tolist()
    [[1, 1], [0, 0]]
    """
    where = np.sort(targets, axis=1)
    kept = np.ones(where.shape, np.bool_)
    if once:
        kept[:, 1:] = where[:, 1:] != where[:, :-1]
    code = (sources[:, None].astype(np.int64) * n + where)[kept]
    return np.bincount(code, minlength=n * n).reshape(n, n)


def visited_counts(routes: NDArray[np.int32], experts: int) -> Sequence[int]:
    """Return how many tokens visit each expert.

    Examples
    --------
    >>> visited_counts(np.array([[0, 2], [2, 3]], np.int32), 4)
    [1, 0, 2, 1]
    """
    counts: list[int] = np.bincount(routes.ravel(), minlength=experts).tolist()
    return counts
