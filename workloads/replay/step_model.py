# SPDX-License-Identifier: Apache-2.0
"""The keys that workloads made of steps share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field

from railweave.workloads.shapes import load_shape, shipped_models
from railweave.workloads.workload import WorkloadContext, WorkloadModel

if TYPE_CHECKING:
    from pathlib import Path

    from railweave.workloads.shapes_model import ModelShape

__all__ = ["StepModel"]


class StepModel(WorkloadModel):
    """A model, how it is divided, and how its steps are looked at."""

    model: str = Field(description="A shipped model, or a config.json of Hugging Face")
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

    def explicit(self, base: Path, *, seed: int = 1) -> Self:
        """Return the same workload with the model's file by its whole path."""
        return self.model_copy(update={"model": self.model_file(base)})

    def model_file(self, base: Path) -> str:
        """Return the path of the model's file relative to ``base``, or the name as it is."""
        path = base / self.model
        known = self.model.lower() in shipped_models() or not path.exists()
        return self.model if known else str(path)

    def shape(self, context: WorkloadContext) -> ModelShape:
        """Return the model.

        Raises
        ------
        InputError
            There is none, or its file is not understood.
        """
        with context.at():
            return load_shape(self.model_file(context.base))
