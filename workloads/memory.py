# SPDX-License-Identifier: Apache-2.0
"""Does a model fit: weight bytes of a rank, cache bytes of a rank, tokens that are left room for.

A rank holds its share of every tensor that its engine divides and the whole of those that it
replicates: norms, routers, the compressing projections and the indexer of latent attention, and
key/value heads when there are more ranks than heads. Vocabulary tables are divided over ranks; of
pipeline stages the first has the input table, the last the norm and the output head (with a tied
table a copy each). Cache memory is what a fraction of the GPU's memory, 0.9 as in vLLM's
``gpu_memory_utilization``, leaves beside the weights; activations and CUDA graphs live in the
rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from railweave.fabric.errors import InputError
from railweave.workloads.limits import MOST_TOKENS, check_range
from railweave.workloads.shapes import kv_element_bytes
from railweave.workloads.shapes_model import GroupedAttention
from railweave.workloads.shares import held_bytes

if TYPE_CHECKING:
    from railweave.workloads.parallelism import ParallelismPlan
    from railweave.workloads.shapes_model import LayerShape, ModelShape

__all__ = [
    "MEMORY_FRACTION",
    "MemoryFit",
    "kv_bytes_per_rank",
    "kv_bytes_per_token_per_rank",
    "kv_capacity_tokens",
    "memory_fit",
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
    sequences
        Sequences of the tokens asked for that every rank has room for; None if none were.
    free_bytes_per_rank
        Bytes that are left beside the weights on the rank with the most weights; 0 if none.
    """

    weight_bytes_per_rank: int
    kv_bytes_per_token_per_rank: int
    kv_capacity_tokens: int
    fits: bool
    sequences: int | None = None
    free_bytes_per_rank: int = 0


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
    return held_bytes(shape, plan, stage, dtype=dtype)


def _cache_bytes(
    layer: LayerShape, tokens: int, tp: int, *, element: int, block: int, most: bool
) -> int:
    """Return the cache bytes of one sequence in one layer on the rank that holds most.

    Key/value heads are divided, and replicated where there are more ranks than heads; a latent
    is whole on every rank; a recurrent state is divided by its heads.
    """
    total = 0 if layer.mixer is None else layer.mixer.state_bytes(tp)
    attention = layer.attention
    if attention is not None:
        kept = -(-attention.kept_tokens(tokens, most=most) // block) * block
        elements = attention.kv_elements
        if isinstance(attention, GroupedAttention):
            elements = elements // attention.kv_heads * -(-attention.kv_heads // tp)
        total += kept * (elements * element + attention.kv_extra_bytes)
    return total


def kv_bytes_per_rank(
    shape: ModelShape,
    plan: ParallelismPlan,
    tokens: int,
    *,
    stage: int,
    kv_dtype: str | None = None,
    block: int = 1,
    most: bool = False,
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
    most
        Count the most that chunked attention ever held, for which room must be kept.
    """
    element = kv_element_bytes(shape, kv_dtype)
    return sum(
        _cache_bytes(shape.layers[index], tokens, plan.tp, element=element, block=block, most=most)
        for index in plan.stage_layers(shape.n_layers)[stage]
    )


def kv_bytes_per_token_per_rank(
    shape: ModelShape, plan: ParallelismPlan, *, stage: int, kv_dtype: str | None = None
) -> int:
    """Return the bytes by which a sequence's cache grows per token on a rank of one stage.

    Full windows and recurrent states do not grow. If nothing else of the stage does, the bytes of
    a token while its windows still fill are returned instead; 0 if it has no attention at all.
    """
    element = kv_element_bytes(shape, kv_dtype)
    layers = [shape.layers[i] for i in plan.stage_layers(shape.n_layers)[stage]]
    attending = [replace(layer, mixer=None) for layer in layers if layer.attention is not None]
    growing = [layer for layer in attending if layer.attention and layer.attention.window is None]
    return sum(
        _cache_bytes(layer, 1, plan.tp, element=element, block=1, most=True)
        for layer in growing or attending
    )


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
    if tokens is not None:
        check_range(tokens, "tokens", MOST_TOKENS, what="tokens")
    usable = int(share * memory_bytes)
    stages = range(plan.pp)
    weights = [weight_bytes_per_rank(shape, plan, stage=s, dtype=dtype) for s in stages]
    growth = [kv_bytes_per_token_per_rank(shape, plan, stage=s, kv_dtype=kv_dtype) for s in stages]
    asked = [
        kv_bytes_per_rank(shape, plan, tokens or 0, stage=s, kv_dtype=kv_dtype, most=True)
        if tokens
        else 0
        for s in stages
    ]
    left = [max(usable - w, 0) for w in weights]
    loaded = all(w <= usable for w in weights)
    rooms = [free // g for free, g in zip(left, growth, strict=True) if g]
    return MemoryFit(
        weight_bytes_per_rank=max(weights),
        kv_bytes_per_token_per_rank=max(growth),
        kv_capacity_tokens=min(rooms, default=0) if loaded else 0,
        fits=loaded and all(kv <= free for kv, free in zip(asked, left, strict=True)),
        sequences=min((free // kv for kv, free in zip(asked, left, strict=True) if kv), default=0)
        if tokens
        else None,
        free_bytes_per_rank=min(left),
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
