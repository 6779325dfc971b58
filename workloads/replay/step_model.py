# SPDX-License-Identifier: Apache-2.0
"""The keys that workloads made of steps share."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from railweave.workloads.replay.of_model import OfModel

__all__ = ["StepModel"]


class StepModel(OfModel):
    """A model, how it is divided, and how its steps are looked at."""

    tp: int = Field(1, ge=1, description="Tensor-parallel ranks")
    pp: int = Field(1, ge=1, description="Pipeline stages")
    cp: int = Field(1, ge=1, description="Context-parallel ranks; in inference for prefill only")
    dp: int = Field(1, ge=1, description="Data-parallel replicas")
    ep: int = Field(
        1, ge=1,
        description="Ranks that experts are divided over: of dp x cp in training, tp x replicas "
        "in inference",
    )  # fmt: skip
    compute: bool = Field(
        True, description="Let arithmetic take time; false: communication alone, the same bytes"
    )
    replicas: Literal["auto", "lockstep", "each"] = Field(
        "auto",
        description="Run replicas in lockstep, each by itself, or in lockstep where that is exact",
    )
    check_memory: bool = Field(True, description="Refuse what does not fit its GPUs")
