# SPDX-License-Identifier: Apache-2.0
"""A replica before it runs: its pool, the GPUs of its ranks, its stages, its KV blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from railweave.workloads.serving.steps import Stage

__all__ = ["ReplicaPlan"]


@dataclass(frozen=True, kw_only=True)
class ReplicaPlan:
    """A replica before it runs.

    Parameters
    ----------
    pool
        ``prefill``, ``decode`` or ``colocated``.
    number
        Which of its pool.
    devices
        Device index of the GPU of every rank.
    stages
        Its pipeline stages.
    blocks
        KV blocks that it has room for.
    block_tokens
        Tokens of a block.
    flops_per_s
        Peak arithmetic rate of a rank.
    """

    pool: str
    number: int
    devices: tuple[int, ...]
    stages: tuple[Stage, ...]
    blocks: int
    block_tokens: int
    flops_per_s: int = 0

    @property
    def name(self) -> str:
        """``prefill0``, ``decode3``."""
        return f"{self.pool}{self.number}"

    def blocks_of(self, tokens: int) -> int:
        """Return the blocks that so many tokens take.

        Examples
        --------
        >>> plan = ReplicaPlan(
        ...     pool="decode", number=0, devices=(), stages=(), blocks=9, block_tokens=16
        ... )
        >>> plan.blocks_of(50)
        4
        """
        return -(-tokens // self.block_tokens)
