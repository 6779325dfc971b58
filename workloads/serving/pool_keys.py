# SPDX-License-Identifier: Apache-2.0
"""The keys of a pool of replicas: how many, how each is divided, and where they sit."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from railweave.fabric.fields import FileModel, fault
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.workload import PlacementModel  # noqa: TC001 - pydantic reads it

__all__ = ["PoolModel", "ReplicasModel"]


class ReplicasModel(FileModel):
    """Replicas of a model, and where they sit."""

    replicas: int = Field(1, ge=1, description="How many")
    tp: int = Field(1, ge=1, description="Tensor-parallel ranks of a replica")
    pp: int = Field(1, ge=1, description="Pipeline stages of a replica")
    placement: PlacementModel | None = Field(None, description="Instead of the workload's")

    @property
    def ranks(self) -> int:
        """GPUs of a replica."""
        return self.tp * self.pp


class PoolModel(ReplicasModel):
    """Replicas of a model that do the same."""

    dp: int = Field(
        1,
        ge=1,
        description="Attention replicas (DP attention) that share the experts of a replica: each "
        "of tp ranks, with its own queue and KV cache, all in step",
    )
    ep: int = Field(
        1, ge=1, description="Ranks that experts are divided over: 1 (all on all), or tp x dp"
    )
    ep_backend: str | None = Field(
        None,
        description="replicated | allgather_reducescatter | mixed | all_to_all; default the first "
        "with dp 1, else the second",
    )
    ep_mode: Literal["low_latency", "normal"] | None = Field(
        None, description="Of all_to_all; default low_latency in a decode pool, else normal"
    )
    dispatch_dtype: Literal["fp8", "bf16"] = Field("fp8", description="On the way to experts")
    skew: float = Field(0.0, ge=0, lt=100, description="Of the experts' popularity; 0: even")
    node_limit: int | None = Field(None, ge=1, description="Most hosts of a token's experts")
    pad_to: int = Field(1, ge=1, description="Round tokens of an attention replica up, where dp")
    max_num_seqs: int | None = Field(None, ge=1, description="Instead of the workload's")
    max_num_batched_tokens: int | None = Field(None, ge=1, description="Instead of the workload's")

    @model_validator(mode="after")
    def _experts_within_a_replica(self) -> Self:
        if self.dp > 1 and self.ep == 1:
            raise fault(
                f"{self.dp} attention replicas without experts in common are replicas",
                expected=f"replicas: {self.dp * self.replicas}, or ep: {self.tp * self.dp}",
                key="dp",
            )
        if self.ep not in (1, self.tp * self.dp):
            raise fault(
                f"experts over {self.ep} ranks are not within a replica of {self.tp * self.dp}",
                expected=f"1 or {self.tp * self.dp} (tp x dp)",
                key="ep",
            )
        if self.ep == 1 and self.ep_backend is not None:
            raise fault("experts are not divided", expected="ep", key="ep_backend")
        if self.wide and self.pp > 1:
            raise fault("stages of attention replicas do not step together", expected="1", key="pp")
        for key in ("ep_mode", "skew", "node_limit", "pad_to", "dispatch_dtype"):
            if not self.wide and getattr(self, key) != type(self).model_fields[key].default:
                raise fault("no experts are reached that way", expected="dp or ep_backend", key=key)
        return self

    @property
    def wide(self) -> bool:
        """Whether tokens travel to their experts, instead of being on every rank."""
        return self.dp > 1 or self.ep_backend not in (None, "replicated")

    @property
    def ranks(self) -> int:
        """GPUs of a replica."""
        return self.tp * self.pp * self.dp

    @property
    def plan(self) -> ParallelismPlan:
        """How a replica is divided."""
        return ParallelismPlan(self.tp, self.pp, dp=self.dp, ep=self.ep)
