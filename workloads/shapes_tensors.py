# SPDX-License-Identifier: Apache-2.0
"""What a weight tensor is to a rank and to a checkpoint: its size, its split, its storage."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Split", "Store", "Weight"]


class Split(Enum):
    """What tensor parallelism does to a tensor."""

    NONE = "replicated"
    IN = "rows"  # the input dimension is divided
    OUT = "columns"  # the output dimension is divided
    KV = "heads"  # divided like the key/value heads: at least one whole head per rank


class Store(Enum):
    """Which tensors a quantised checkpoint converts."""

    PLAIN = "plain"  # tables, heads, norms, biases, routers: kept in the model's own format
    LINEAR = "linear"  # a matrix of a layer
    EXPERT = "expert"  # a matrix of a routed expert
    FLOAT32 = "float32"  # kept in fp32


@dataclass(frozen=True)
class Weight:
    """``count`` equal tensors of ``rows`` (inputs) by ``columns`` (outputs) elements.

    Parameters
    ----------
    name
        What it is, for people; those of routed experts begin with ``experts``.
    rows, columns, count
        Inputs, outputs, and how many such tensors.
    split, heads
        What tensor parallelism does; of a tensor divided by heads, how many it has.
    store
        What a quantised checkpoint does.
    fused
        Whether the checkpoint keeps it in one matrix with the tensor before it, so that it has no
        scale per matrix of its own.
    """

    name: str
    rows: int
    columns: int
    count: int = 1
    split: Split = Split.NONE
    store: Store = Store.PLAIN
    heads: int = 0
    fused: bool = False

    @property
    def parameters(self) -> int:
        """Elements of all ``count`` tensors."""
        return self.rows * self.columns * self.count

    def local(self, tp: int) -> tuple[int, int]:
        """Return the rows and columns that one of ``tp`` ranks holds (the fullest rank)."""
        if self.split is Split.IN:
            return -(-self.rows // tp), self.columns
        if self.split is Split.OUT:
            return self.rows, -(-self.columns // tp)
        if self.split is Split.KV:
            return self.rows, self.columns // self.heads * max(-(-self.heads // tp), 1)
        return self.rows, self.columns
