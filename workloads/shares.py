# SPDX-License-Identifier: Apache-2.0
"""What a rank holds of a model: its layers, its share of their tensors, its experts.

Of each routed expert's tensors a rank of ``ep`` has those of its own experts: whole where a
serving engine divides experts over tensor-parallel ranks too, else divided over ``tp``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from railweave.fabric.errors import InputError
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.shapes import plain_bytes
from railweave.workloads.shapes_weights import (
    embedding_weights,
    head_weights,
    layer_weights,
    storage_format,
    stored_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from railweave.workloads.shapes_model import LayerShape, ModelShape
    from railweave.workloads.shapes_weights import Weight

__all__ = [
    "Parameters",
    "chunk_layers",
    "held_bytes",
    "layer_parameters",
    "outer_parameters",
    "stage_parameters",
]


@dataclass(frozen=True)
class Parameters:
    """Parameters on the fullest rank of a stage: those of routed experts, and all others."""

    dense: int
    experts: int = 0

    def __add__(self, other: Parameters) -> Parameters:
        return Parameters(self.dense + other.dense, self.experts + other.experts)

    @property
    def total(self) -> int:
        """All of them."""
        return self.dense + self.experts


def chunk_layers(shape: ModelShape, plan: ParallelismPlan, *, chunks: int = 1) -> list[list[range]]:
    """Return the layers of each chunk of each stage.

    Layers are dealt out to ``pp * chunks`` parts in order; part i is chunk ``i // pp`` of stage
    ``i % pp`` (Narayanan et al., arXiv 2104.04473, section 2.2.2).

    Parameters
    ----------
    shape, plan
        The model and how it is divided.
    chunks
        Chunks of each stage.
    """
    if chunks > 1 and plan.pp * chunks > shape.n_layers:
        raise InputError(
            f"{plan.pp} stages of {chunks} chunks are more than {shape.n_layers} layers",
            field="chunks",
            expected=f"pp x chunks of at most {shape.n_layers}",
        )
    parts = ParallelismPlan(pp=plan.pp * chunks).stage_layers(shape.n_layers)
    return [[parts[c * plan.pp + stage] for c in range(chunks)] for stage in range(plan.pp)]


def _local(weight: Weight, plan: ParallelismPlan) -> tuple[Weight, int]:
    """Return the tensors of which a rank has a share, and over how many ranks they are divided."""
    if plan.ep > 1 and weight.name.startswith("experts"):
        own = replace(weight, count=weight.count // plan.ep)
        return own, 1 if plan.ep_over_tp else plan.tp
    return weight, plan.tp


def _counted(weights: tuple[Weight, ...], plan: ParallelismPlan) -> Parameters:
    sums = {False: 0, True: 0}
    for weight in weights:
        own, tp = _local(weight, plan)
        rows, columns = own.local(tp)
        sums[weight.name.startswith("experts")] += rows * columns * own.count
    return Parameters(sums[False], sums[True])


def layer_parameters(layer: LayerShape, hidden: int, plan: ParallelismPlan) -> Parameters:
    """Return the parameters of one layer on its fullest rank."""
    return _counted(layer_weights(layer, hidden), plan)


def outer_parameters(shape: ModelShape, plan: ParallelismPlan, stage: int) -> Parameters:
    """Return the parameters of a stage outside its layers: tables, the last norm, the head.

    With a tied table and several stages the first and the last have a copy each.
    """
    return _counted(tuple(_outer(shape, plan, stage)), plan)


def _outer(shape: ModelShape, plan: ParallelismPlan, stage: int) -> Iterator[Weight]:
    last = stage == plan.pp - 1
    if stage == 0 or (last and shape.tied):
        yield from embedding_weights(shape)
    if last:
        yield from head_weights(shape)


def stage_parameters(
    shape: ModelShape, plan: ParallelismPlan, stage: int, *, chunks: int = 1
) -> Parameters:
    """Return the parameters on the fullest rank of a stage.

    Examples
    --------
    >>> from railweave.workloads.shapes import load_shape
    >>> stage_parameters(load_shape("llama-3.1-8b"), ParallelismPlan(), 0).total
    8030261248
    """
    total = outer_parameters(shape, plan, stage)
    for layers in chunk_layers(shape, plan, chunks=chunks)[stage]:
        for index in layers:
            total += layer_parameters(shape.layers[index], shape.hidden_size, plan)
    return total


def held_bytes(
    shape: ModelShape, plan: ParallelismPlan, stage: int, *, dtype: str | None = None
) -> int:
    """Return the bytes of weights on the fullest rank of a stage, as the checkpoint stores them.

    Parameters
    ----------
    shape, plan, stage
        The model, how it is divided, and which stage.
    dtype
        Another number format, as for `railweave.workloads.shapes.weight_bytes`.
    """
    fmt = storage_format(shape, dtype)
    plain, total = plain_bytes(shape, fmt), 0
    weights = list(_outer(shape, plan, stage))
    for index in plan.stage_layers(shape.n_layers)[stage]:
        weights += layer_weights(shape.layers[index], shape.hidden_size)
    for weight in weights:
        own, tp = _local(weight, plan)
        total += stored_bytes([own], fmt=fmt, plain=plain, tp=tp)
    return total
