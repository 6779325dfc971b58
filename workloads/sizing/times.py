# SPDX-License-Identifier: Apache-2.0
"""How long a replica computes and what it sends, in closed form; links are counted alone.

Compute is the roofline of `railweave.workloads.compute`. Collectives take the time of their wire
bytes at the link's rate: the latency of each, which matters where they are small, comes on top.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from railweave.fabric.units import PS_PER_S
from railweave.workloads.compute import StageTimer
from railweave.workloads.inference import step_ops
from railweave.workloads.shapes import kv_bytes
from railweave.workloads.step_load import StepLoad

if TYPE_CHECKING:
    from railweave.fabric.devices import GpuModel
    from railweave.workloads.parallelism import ParallelismPlan
    from railweave.workloads.shapes_model import ModelShape

__all__ = ["ReplicaTimes", "StepTraffic"]


@dataclass(frozen=True, kw_only=True)
class StepTraffic:
    """What the busiest rank of a replica sends in one step.

    Parameters
    ----------
    bytes_per_rank, collectives
        Of the collectives within the stage that sends most.
    between_stages_bytes
        Of the rank that sends most to the next stage.
    """

    bytes_per_rank: int
    collectives: int
    between_stages_bytes: int

    def ps(self, rate_Bps: float) -> int:
        """Return how long the bytes of the collectives take over links of this rate."""
        return int(self.bytes_per_rank * PS_PER_S / rate_Bps)


@dataclass(frozen=True)
class ReplicaTimes:
    """Times of one replica.

    Parameters
    ----------
    shape, plan, gpu
        The model, how it is divided, and what each rank runs on.
    dtype, kv_dtype
        Number formats of the weights and of the cache.
    """

    shape: ModelShape
    plan: ParallelismPlan
    gpu: GpuModel
    dtype: str | None = None
    kv_dtype: str | None = None

    @cached_property
    def _timers(self) -> list[StageTimer]:
        return [
            StageTimer(
                self.shape,
                self.plan,
                self.gpu,
                stage=stage,
                dtype=self.dtype,
                kv_dtype=self.kv_dtype,
            )
            for stage in range(self.plan.pp)
        ]

    def stages_ps(self, load: StepLoad) -> list[int]:
        """Return the compute time of each stage for one step."""
        found = []
        for timer in self._timers:
            costs, head_ps = timer.times(load)
            found.append(sum(costs[kind].total_ps for kind in timer.order) + head_ps)
        return found

    def prefill_ps(self, tokens: int, *, cached: int = 0) -> int:
        """Return how long a prompt takes through all stages, ``cached`` tokens taken as there."""
        return sum(self.stages_ps(StepLoad.prefill(tokens - cached, cached=cached)))

    def busy_prefill_ps(self, tokens: int) -> int:
        """Return how long a prompt keeps the slowest stage."""
        return max(self.stages_ps(StepLoad.prefill(tokens)))

    def decode_ps(self, sequences: int, context: int) -> int:
        """Return how long the slowest stage takes for a token of each sequence."""
        return max(self.stages_ps(StepLoad.decode([context] * sequences)))

    def break_even_Bps(self, tokens: int) -> float:
        """Return the rate below which a cache is computed again sooner than it is moved.

        Bytes of the cache over the time of its prefill (Qin et al., "Mooncake", FAST 2025,
        equation 2), for ``tokens`` from an empty cache.
        """
        moved = kv_bytes(self.shape, tokens, kv_dtype=self.kv_dtype)
        return moved * PS_PER_S / self.prefill_ps(tokens)

    def traffic(self, phase: str, tokens: int) -> StepTraffic:
        """Return what a step of so many tokens sends.

        Parameters
        ----------
        phase
            ``prefill`` or ``decode``.
        tokens
            Tokens in the step.
        """
        ops = step_ops(self.shape, self.plan, phase=phase, tokens=tokens)
        within = [op for op in ops if op.to_stage is None]
        between = [op.wire_bytes_per_rank for op in ops if op.to_stage is not None]
        by_stage = [
            (
                sum(op.wire_bytes_per_rank for op in within if op.stage == stage),
                sum(op.count for op in within if op.stage == stage),
            )
            for stage in range(self.plan.pp)
        ]
        most = max(by_stage)
        return StepTraffic(
            bytes_per_rank=most[0],
            collectives=most[1],
            between_stages_bytes=max(between, default=0),
        )
