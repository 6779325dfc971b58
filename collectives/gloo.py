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
    """Return steps one after another, and bytes that all ranks together send.

    Examples
    --------
    >>> gloo_counts("all_reduce", size_bytes=400, ranks=4), gloo_counts("broadcast", size_bytes=8,
    ...     ranks=4)
    ((6, 2400.0), (2, 24.0))

    Raises
    ------
    InputError
        The operation is not among those that are known.
    """
    op, n = canonical_op(op), ranks
    if n < 2:
        return 0, 0.0
    once = float((n - 1) * size_bytes)  # a buffer to every other rank, whole or as n shares
    counts = {
        "all_reduce": (2 * (n - 1), 2 * once),
        "all_gather": (n - 1, once),
        "reduce_scatter": (2 * (n - 1), 2 * once),
        "all_to_all": (1, once),
        "broadcast": ((n - 1).bit_length(), once),
        "reduce": (n, once + once / n),
        "send": (1, float(n * size_bytes)),
        "scatter": (1, once / n),
        "gather": (1, once / n),
    }
    if op not in counts:
        raise InputError(f"{op} by gloo is not known", expected=" | ".join(counts))
    return counts[op]


def predict_gloo(profile: HostProfile, op: str, *, size_bytes: int, ranks: int) -> Prediction:
    """Predict the time of an operation: steps at a cost each, and all bytes at the host's rate.

    Hockney's model with the bytes of all ranks, since the same cores copy them all.

    Raises
    ------
    InputError
        The operation is not among those that are known.
    """
    op = canonical_op(op)
    steps, moved = gloo_counts(op, size_bytes=size_bytes, ranks=ranks)
    bound = moved / (profile.rate_bps / 8)
    waits = profile.factor.get(op, 1.0) * steps * profile.step_ps / PS_PER_S
    return Prediction(
        time_s=waits + bound,
        algorithm=_ALGORITHM[op],
        protocol="",
        bound_s=bound,
        parts={"steps": waits, "bytes": bound},
    )
