# SPDX-License-Identifier: Apache-2.0
"""The weight tensors of a shape: how many parameters, and how ranks divide them.

One list of tensors gives the parameter count, the bytes of a checkpoint and the bytes of a rank.
How tensor parallelism splits each tensor follows vLLM's layers (``ColumnParallelLinear``,
``RowParallelLinear``, ``QKVParallelLinear``, ``ReplicatedLinear``, ``FusedMoE``), after
Megatron-LM (arXiv 1909.08053). Next-token-prediction modules, vision towers and buffers other
than the router's correction bias are not counted.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from railweave.workloads.shapes_blocks import (
    Attention,
    FeedForward,
    LatentAttention,
    MoeFeedForward,
)
from railweave.workloads.shapes_mixers import mixer_weights
from railweave.workloads.shapes_quantized import storage_format, stored_bytes
from railweave.workloads.shapes_tensors import Split, Store, Weight

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from railweave.workloads.shapes_blocks import GroupedAttention
    from railweave.workloads.shapes_model import Block, LayerShape, ModelShape

__all__ = [
    "Split",
    "Store",
    "Weight",
    "attention_weights",
    "embedding_weights",
    "feed_forward_weights",
    "head_weights",
    "kept_plain",
    "layer_weights",
    "mixer_weights",
    "norm_shares",
    "storage_format",
    "stored_bytes",
]


def attention_weights(attention: Attention, hidden: int) -> Iterator[Weight]:
    """Yield the tensors of one attention block, its norm left out."""
    if isinstance(attention, LatentAttention):
        yield from _latent(attention, hidden)
    else:
        yield from _grouped(attention, hidden)


def _grouped(attention: GroupedAttention, hidden: int) -> Iterator[Weight]:
    column, linear = Split.OUT, Store.LINEAR
    heads, kv = attention.heads, attention.kv_heads
    width, value = attention.head_dim, attention.value_dim
    query = heads * width * (2 if attention.output_gate else 1)
    yield Weight("q", hidden, query, 1, column, linear)
    if value == width:
        yield Weight("kv", hidden, kv * width, 2, Split.KV, linear, heads=kv)
    else:
        yield Weight("k", hidden, kv * width, 1, Split.KV, linear, heads=kv)
        yield Weight("v", hidden, kv * value, 1, Split.KV, linear, heads=kv)
    yield Weight("o", heads * value, hidden, 1, Split.IN, linear)
    if attention.qkv_bias:
        yield Weight("q_bias", 1, query, 1, column)
        yield Weight("k_bias", 1, kv * width, 1, Split.KV, heads=kv)
        yield Weight("v_bias", 1, kv * value, 1, Split.KV, heads=kv)
    if attention.out_bias:
        yield Weight("o_bias", 1, hidden)
    if attention.qk_norm == "head":
        yield Weight("qk_norm", 1, width, 2)
    elif attention.qk_norm == "full":
        yield Weight("q_norm", 1, heads * width, 1, column)
        yield Weight("k_norm", 1, kv * width, 1, Split.KV, heads=kv)
    if attention.sinks:
        yield Weight("sinks", 1, heads, 1, column)


def _latent(attention: LatentAttention, hidden: int) -> Iterator[Weight]:
    column, linear, heads = Split.OUT, Store.LINEAR, attention.heads
    head, compressed = attention.nope_dim + attention.rope_dim, attention.q_lora_rank
    if compressed is None:
        yield Weight("q", hidden, heads * head, 1, column, linear)
    else:
        yield Weight("q_a", hidden, compressed, 1, Split.NONE, linear)
        yield Weight("q_a_norm", 1, compressed)
        yield Weight("q_b", compressed, heads * head, 1, column, linear)
    latent = attention.kv_lora_rank
    yield Weight("kv_a", hidden, latent + attention.rope_dim, 1, Split.NONE, linear)
    yield Weight("kv_a_norm", 1, latent)
    up = heads * (attention.nope_dim + attention.v_dim)
    yield Weight("kv_b", latent, up, 1, column, linear)
    yield Weight("o", heads * attention.v_dim, hidden, 1, Split.IN, linear)
    if attention.index_heads:
        # vLLM and SGLang replicate the indexer; its head weights stay unquantised.
        width = attention.index_dim
        yield Weight("index_q", compressed or hidden, attention.index_heads * width, 1,
                     Split.NONE, linear)  # fmt: skip
        yield Weight("index_k", hidden, width, 1, Split.NONE, linear)
        yield Weight("index_k_norm", 1, width, 2)
        yield Weight("index_weights", hidden, attention.index_heads)


def feed_forward_weights(feed_forward: FeedForward, hidden: int) -> Iterator[Weight]:
    """Yield the tensors of one feed-forward block, its norm left out."""
    block = feed_forward
    if not isinstance(block, MoeFeedForward):
        yield from _matrices("mlp", hidden, block.size, 1, Store.LINEAR, gated=block.gated)
        if block.bias:
            yield Weight("mlp_bias", 1, block.size, 2 if block.gated else 1, Split.OUT)
            yield Weight("mlp_down_bias", 1, hidden)
        return
    experts = block.experts
    yield Weight("router", hidden, experts)
    if block.router_bias:
        yield Weight("router_bias", 1, experts)
    if block.correction_bias:
        yield Weight("router_correction", 1, experts, store=Store.FLOAT32)
    yield from _matrices("experts", hidden, block.size, experts, Store.EXPERT, gated=block.gated)
    if block.expert_bias:
        yield Weight("experts_bias", 1, block.size, (2 if block.gated else 1) * experts, Split.OUT)
        yield Weight("experts_down_bias", 1, hidden, experts)
    if block.shared_size:
        size = block.shared_size
        yield from _matrices("shared", hidden, size, 1, Store.LINEAR, gated=block.gated)
    if block.shared_gate:
        yield Weight("shared_gate", hidden, 1)


def _matrices(
    name: str, hidden: int, size: int, count: int, store: Store, *, gated: bool
) -> Iterator[Weight]:
    if gated:
        yield Weight(f"{name}_gate_up", hidden, size, 2 * count, Split.OUT, store)
    else:
        yield Weight(f"{name}_up", hidden, size, count, Split.OUT, store)
    yield Weight(f"{name}_down", size, hidden, count, Split.IN, store)


def norm_shares(layer: LayerShape) -> tuple[int, int]:
    """Return how many of a layer's norm vectors go with attention or mixer, and feed-forward."""
    if layer.feed_forward is None:
        return layer.norms, 0
    if layer.attention is None and layer.mixer is None:
        return 0, layer.norms
    return layer.norms - layer.norms // 2, layer.norms // 2


@lru_cache(maxsize=1024)
def layer_weights(layer: LayerShape, hidden: int) -> tuple[Weight, ...]:
    """Return the tensors of one decoder layer, its norms included."""
    parts: list[Weight] = []
    if layer.norms:
        parts.append(Weight("norms", 1, hidden, layer.norms))
    if layer.attention is not None:
        parts += kept_plain(attention_weights(layer.attention, hidden), "attention", layer.plain)
    if layer.mixer is not None:
        parts += kept_plain(mixer_weights(layer.mixer, hidden), "mixer", layer.plain)
    if layer.feed_forward is not None:
        block = feed_forward_weights(layer.feed_forward, hidden)
        parts += kept_plain(block, "feed_forward", layer.plain)
    return tuple(parts)


def kept_plain(weights: Iterable[Weight], block: Block, plain: tuple[str, ...]) -> Iterator[Weight]:
    """Yield a block's tensors, marking those that a quantised checkpoint does not convert.

    Parameters
    ----------
    weights
        The tensors.
    block, plain
        Which block they are of, and what of the layer is kept; see `LayerShape`.
    """
    kept = {name.removeprefix(f"{block}.") for name in plain if name.startswith(f"{block}.")}
    if {"k", "v"} <= kept:
        kept.add("kv")  # one entry for both where they are equally wide
    for weight in weights:
        converted = weight.store in (Store.LINEAR, Store.EXPERT)
        own = converted and (block in plain or weight.name in kept)
        yield replace(weight, store=Store.PLAIN) if own else weight


def embedding_weights(shape: ModelShape) -> tuple[Weight, ...]:
    """Return the input table, split over the vocabulary, and the table of positions if any."""
    table = Weight("embedding", shape.hidden_size, shape.vocab_size, 1, Split.OUT)
    if not shape.position_table:
        return (table,)
    return (table, Weight("positions", shape.hidden_size, shape.position_table))


def head_weights(shape: ModelShape) -> tuple[Weight, ...]:
    """Return the final norm and, unless it is the input table, the output head."""
    parts = [Weight("final_norm", 1, shape.hidden_size, shape.final_norms)]
    if not shape.tied:
        parts.append(Weight("head", shape.hidden_size, shape.vocab_size, 1, Split.OUT))
    if shape.head_bias:
        parts.append(Weight("head_bias", 1, shape.vocab_size, 1, Split.OUT))
    return tuple(parts)
