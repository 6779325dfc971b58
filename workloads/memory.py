# SPDX-License-Identifier: Apache-2.0
"""Does a model fit: weight bytes of a rank, cache bytes of a rank, tokens that are left room for.

A rank holds its share of every tensor that its engine divides and the whole of those that it
replicates: norms, routers, the compressing projections of latent attention, and key/value heads
when there are more ranks than heads. Vocabulary tables are divided over ranks; of pipeline
stages the first has the input table, the last the norm and the output head (with a tied table a
copy each). Cache memory is what a fraction of the GPU's memory, 0.9 as in vLLM's
``gpu_memory_utilization``, leaves beside the weights; activations and CUDA graphs live in the
rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from railweave.fabric.errors import InputError
from railweave.workloads.shapes import kv_element_bytes, layer_kv_bytes, plain_bytes
from railweave.workloads.shapes_model import GroupedAttention
from railweave.workloads.shapes_weights import (
    embedding_weights,
    head_weights,
    layer_weights,
    storage_format,
    stored_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from railweave.workloads.parallelism import ParallelismPlan
    from railweave.workloads.shapes_model import LayerShape, ModelShape
    from railweave.workloads.shapes_weights import Weight

__all__ = [
    "MEMORY_FRACTION",
    "MemoryFit",
    "kv_bytes_per_rank",
    "kv_bytes_per_token_per_rank",
    "kv_capacity_tokens",
    "memory_fit",
    "stage_weights",
    "weight_bytes_per_rank",
]

MEMORY_FRACTION: Final = Fraction(9, 10)


@dataclass(frozen=True)
class MemoryFit:
    """How a model sits in the memory of its fullest rank.

    Parameters
    ----------
    weight_bytes_per_rank
        Weights of the rank with the most.
    kv_bytes_per_token_per_rank
        Growth of a sequence's cache per token on the rank where it is largest.
    kv_capacity_tokens
        Tokens of cache for which every rank has room; 0 if the weights alone do not fit.
    fits
        Whether the weights fit and, if tokens were asked for, one sequence of them beside.
    """

    weight_bytes_per_rank: int
    kv_bytes_per_token_per_rank: int
    kv_capacity_tokens: int
    fits: bool


def stage_weights(shape: ModelShape, plan: ParallelismPlan, stage: int) -> Iterator[Weight]:
    """Yield the tensors of one pipeline stage."""
    last = stage == plan.pp - 1
    if stage == 0 or (last and shape.tied):
        yield from embedding_weights(shape)
    for index in plan.stage_layers(shape.n_layers)[stage]:
        yield from layer_weights(shape.layers[index], shape.hidden_size)
    if last:
        yield from head_weights(shape)


def weight_bytes_per_rank(
    shape: ModelShape, plan: ParallelismPlan, *, stage: int, dtype: str | None = None
) -> int:
    """Return the weight bytes of a rank of one stage.

    Parameters
    ----------
    shape, plan
        The model and how it is divided.
    stage
        Pipeline stage.
    dtype
        Storage of the weights; default the checkpoint's.
    """
    fmt = storage_format(shape, dtype)
    weights = stage_weights(shape, plan, stage)
    return stored_bytes(weights, fmt=fmt, plain=plain_bytes(shape, fmt), tp=plan.tp)


def _shares(layer: LayerShape, tp: int) -> int:
    """Return into how many parts the ranks divide a layer's cache; 1 if each has all of it."""
    attention = layer.attention
    return min(tp, attention.kv_heads) if isinstance(attention, GroupedAttention) else 1


def kv_bytes_per_rank(
    shape: ModelShape,
    plan: ParallelismPlan,
    tokens: int,
    *,
    stage: int,
    kv_dtype: str | None = None,
    block: int = 1,
) -> int:
    """Return the cache bytes of one sequence on a rank of one stage.

    Parameters
    ----------
    shape, plan
        The model and how it is divided.
    tokens
        Tokens of the sequence.
    stage
        Pipeline stage.
    kv_dtype
        Number format of the cache; default that of the activations.
    block
        Tokens of a cache block.
    """
    element = kv_element_bytes(shape, kv_dtype)
    total = 0
    for index in plan.stage_layers(shape.n_layers)[stage]:
        layer = shape.layers[index]
        size = layer_kv_bytes(layer, tokens, element_bytes=element, block=block)
        total += size // _shares(layer, plan.tp)
    return total


def kv_bytes_per_token_per_rank(
    shape: ModelShape, plan: ParallelismPlan, *, stage: int, kv_dtype: str | None = None
) -> int:
    """Return the bytes by which a sequence's cache grows per token on a rank of one stage.

    Full sliding windows do not grow. If every layer of the stage has a window, the bytes of a
    token while the windows still fill are returned instead.
    """
    element = kv_element_bytes(shape, kv_dtype)
    growing = sum(
        layer.attention.kv_elements * element // _shares(layer, plan.tp)
        for layer in (shape.layers[i] for i in plan.stage_layers(shape.n_layers)[stage])
        if layer.attention.window is None
    )
    return growing or kv_bytes_per_rank(shape, plan, 1, stage=stage, kv_dtype=kv_dtype)


def memory_fit(
    shape: ModelShape,
    plan: ParallelismPlan,
    *,
    memory_bytes: int,
    fraction: Fraction | float | str = MEMORY_FRACTION,
    tokens: int | None = None,
    dtype: str | None = None,
    kv_dtype: str | None = None,
) -> MemoryFit:
    """Say whether a model fits and how many tokens of cache are left.

    ``kv_capacity_tokens = floor((fraction * memory - weights) / cache bytes per token)``, each
    per rank, and the least over the stages.

    Parameters
    ----------
    shape, plan
        The model and how it is divided.
    memory_bytes
        Memory of one GPU.
    fraction
        Share of it for weights and cache.
    tokens
        Also ask for room for one sequence of so many tokens.
    dtype, kv_dtype
        Number formats of the weights and of the cache.

    Raises
    ------
    InputError
        The plan does not fit the model, or the fraction is not between 0 and 1.
    """
    plan.check(shape)
    try:
        share = Fraction(str(fraction))
    except ValueError:
        share = Fraction(0)
    if not 0 < share <= 1:
        raise InputError(
            f"{fraction} is out of range", field="memory_fraction", expected="more than 0, up to 1"
        )
    if tokens is not None and tokens < 0:
        raise InputError(f"{tokens} is too few", field="tokens", expected="at least 0")
    usable = int(share * memory_bytes)
    stages = range(plan.pp)
    weights = [weight_bytes_per_rank(shape, plan, stage=s, dtype=dtype) for s in stages]
    growth = [kv_bytes_per_token_per_rank(shape, plan, stage=s, kv_dtype=kv_dtype) for s in stages]
    asked = [
        kv_bytes_per_rank(shape, plan, tokens or 0, stage=s, kv_dtype=kv_dtype) for s in stages
    ]
    return MemoryFit(
        weight_bytes_per_rank=max(weights),
        kv_bytes_per_token_per_rank=max(growth),
        kv_capacity_tokens=min(
            max(usable - w, 0) // g for w, g in zip(weights, growth, strict=True)
        ),
        fits=all(w + kv <= usable for w, kv in zip(weights, asked, strict=True)),
    )


def kv_capacity_tokens(
    shape: ModelShape,
    plan: ParallelismPlan,
    *,
    memory_bytes: int,
    fraction: Fraction | float | str = MEMORY_FRACTION,
    dtype: str | None = None,
    kv_dtype: str | None = None,
) -> int:
    """Return how many tokens of cache every rank has room for; see `memory_fit`."""
    return memory_fit(
        shape, plan, memory_bytes=memory_bytes, fraction=fraction, dtype=dtype, kv_dtype=kv_dtype
    ).kv_capacity_tokens
