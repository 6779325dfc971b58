# SPDX-License-Identifier: Apache-2.0
"""What gloo takes among ranks of one CPU host.

Counts are those of PyTorch's ProcessGroupGloo and of gloo (facebookincubator/gloo, ``gloo/*.cc``):
all_reduce is a ring; all_gather a ring; reduce_scatter an all_reduce of the whole buffer, of which
each rank keeps its share; all_to_all sends to all peers at once; broadcast goes down a binomial
tree; reduce is a ring's reduce-scatter and a gather to the root; gather and scatter are messages of
the root with every peer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.collectives.operations import canonical_op
from railweave.collectives.predict import Prediction
from railweave.fabric.errors import InputError
from railweave.fabric.units import PS_PER_S

if TYPE_CHECKING:
    from railweave.fabric.host_profiles import HostProfile

__all__ = ["gloo_counts", "predict_gloo"]

_ALGORITHM = {
    "all_reduce": "Ring",
    "all_gather": "Ring",
    "reduce_scatter": "Ring",
    "all_to_all": "Pairwise",
    "broadcast": "BinomialTree",
    "reduce": "Ring",
    "send": "P2P",
    "scatter": "Linear",
    "gather": "Linear",
}


def gloo_counts(op: str, *, size_bytes: int, ranks: int) -> tuple[int, float]:
    """Return steps one after another, and bytes that the busiest rank sends or receives.

    Examples
    --------
    >>> gloo_counts("all_reduce", size_bytes=400, ranks=4), gloo_counts("broadcast", size_bytes=8,
    ...     ranks=4)
    ((6, 600.0), (2, 16.0))

    Raises
    ------
    InputError
        The operation is not among those that are known.
    """
    op, n = canonical_op(op), ranks
    if n < 2:
        return 0, 0.0
    share, depth = (n - 1) / n * size_bytes, (n - 1).bit_length()
    counts: dict[str, tuple[int, float]] = {
        "all_reduce": (2 * (n - 1), 2 * share),
        "all_gather": (n - 1, share),
        "reduce_scatter": (2 * (n - 1), 2 * share),
        "all_to_all": (1, share),
        "broadcast": (depth, float(depth * size_bytes)),
        "reduce": (n, 2 * share),
        "send": (1, float(size_bytes)),
        "scatter": (1, share),
        "gather": (1, share),
    }
    if op not in counts:
        raise InputError(f"{op} by gloo is not known", expected=" | ".join(counts))
    return counts[op]


def predict_gloo(profile: HostProfile, op: str, *, size_bytes: int, ranks: int) -> Prediction:
    """Predict the time of an operation by Hockney's model: steps at a cost each, bytes at a rate.

    Raises
    ------
    InputError
        The operation is not among those that are known.
    """
    op = canonical_op(op)
    steps, moved = gloo_counts(op, size_bytes=size_bytes, ranks=ranks)
    factor = profile.factor.get(op, 1.0)
    bound = moved / (profile.rate_bps / 8)
    parts = {"steps": factor * steps * profile.step_ps / PS_PER_S, "bytes": factor * bound}
    return Prediction(
        time_s=sum(parts.values()),
        algorithm=_ALGORITHM[op],
        protocol="",
        bound_s=bound,
        parts=parts,
    )
