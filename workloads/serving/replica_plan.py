# SPDX-License-Identifier: Apache-2.0
"""A replica before it runs: its pool, the GPUs of its ranks, its stages, its KV blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from railweave.workloads.serving.steps import Stage
    from railweave.workloads.serving.wide import WideStage

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
        Its pipeline stages; none where it shares experts with others.
    blocks
        KV blocks that it has room for.
    block_tokens
        Tokens of a block.
    flops_per_s
        Peak arithmetic rate of a rank.
    wide
        The step of the attention replicas of which it is one, or None.
    group, member
        Which group of its pool it starts and fails with, and which of the group it is; by default
        it is a group of its own.
    """

    pool: str
    number: int
    devices: tuple[int, ...]
    stages: tuple[Stage, ...]
    blocks: int
    block_tokens: int
    flops_per_s: int = 0
    wide: WideStage | None = None
    group: int | None = None
    member: int = 0

    @property
    def group_name(self) -> str:
        """``prefill0``, ``decode3``."""
        return f"{self.pool}{self.number if self.group is None else self.group}"

    @property
    def name(self) -> str:
        """As that of its group; ``decode3.dp5`` is one of several attention replicas."""
        several = self.wide is not None and self.wide.members > 1
        return f"{self.group_name}.dp{self.member}" if several else self.group_name

    @property
    def n_stages(self) -> int:
        """Pipeline stages."""
        return max(len(self.stages), 1)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Pairs of GPUs between which its steps send: of a stage, and each with its next stage's.

        Of attention replicas that share experts, all with all.
        """
        if self.wide is not None:
            ranks = self.wide.devices
            return [(a, b) for a in ranks for b in ranks if a != b]
        size = len(self.devices) // self.n_stages
        stages = [self.devices[at : at + size] for at in range(0, len(self.devices), size)]
        within = [(a, b) for stage in stages for a in stage for b in stage if a != b]
        return [*within, *zip(self.devices, self.devices[size:], strict=False)]

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
