# SPDX-License-Identifier: Apache-2.0
"""What workloads of one model share: its name or file, and its shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field

from railweave.workloads.shapes import load_shape, shipped_models
from railweave.workloads.workload import WorkloadContext, WorkloadModel

if TYPE_CHECKING:
    from pathlib import Path

    from railweave.workloads.shapes_model import ModelShape

__all__ = ["OfModel"]


class OfModel(WorkloadModel):
    """A workload of one model."""

    model: str = Field(description="A shipped model, or a config.json of Hugging Face")

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
