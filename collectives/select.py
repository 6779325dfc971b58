# SPDX-License-Identifier: Apache-2.0
"""Which algorithm ``auto`` means.

- all_reduce, all_gather, reduce_scatter: ``hierarchical`` when the ranks lie on two hosts or more,
  all with the same number of ranks and that number at least two; else ``ring``.
- barrier: ``tree``, since only latencies count.
- send and recv: ``pair`` between two ranks, ``shift`` among more. Under nccl-tests' name
  ``sendrecv`` always ``shift``, which is what that test does.
- everything else: the first by name, which is ``chain`` or ``direct``.

The rule looks at the shape alone, never at the size: the choice by size that NCCL makes needs the
latencies of the network at hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.collectives.algorithm import algorithms
from railweave.collectives.operations import canonical_op, plain_name

if TYPE_CHECKING:
    from railweave.collectives.algorithm import Shape

__all__ = ["select_algorithm"]


def select_algorithm(op: str, shape: Shape) -> str:
    """Return the name of the algorithm for an operation (any of its names) over a shape.

    Examples
    --------
    >>> from railweave.collectives.algorithm import Shape
    >>> select_algorithm("all_reduce", Shape(4, (0, 0, 1, 1)))
    'hierarchical'
    >>> select_algorithm("all_reduce", Shape(4)), select_algorithm("sendrecv", Shape(2))
    ('ring', 'shift')
    """
    name = canonical_op(op)
    if name in ("all_reduce", "all_gather", "reduce_scatter"):
        shares = shape.host_shares
        even = len(set(shares)) == 1
        return "hierarchical" if len(shares) > 1 and even and shares[0] > 1 else "ring"
    if name in ("send", "recv"):
        return "shift" if shape.ranks > 2 or plain_name(op) == "sendrecv" else "pair"
    return "tree" if name == "barrier" else algorithms(name)[0]
