# SPDX-License-Identifier: Apache-2.0
"""Families of dense models, by the classes of ``huggingface/transformers``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from railweave.workloads.shapes_model import (
    DenseFeedForward,
    GroupedAttention,
    LayerShape,
)
from railweave.workloads.shapes_reading import Body, family, head_width, heads, refuse, windows

if TYPE_CHECKING:
    from railweave.workloads.shapes_fields import Fields

__all__: list[str] = []


@family("llama")
def _llama(fields: Fields, hidden: int, count: int) -> Body:
    query, kv, width = heads(fields, hidden)
    bias = fields.flag("attention_bias", default=False)
    attention = GroupedAttention(query, kv, width, qkv_bias=bias, out_bias=bias)
    dense = DenseFeedForward(
        fields.integer("intermediate_size"), bias=fields.flag("mlp_bias", default=False)
    )
    return Body([LayerShape(attention, dense)] * count)


@family("mistral", "phi3")
def _mistral(fields: Fields, hidden: int, count: int) -> Body:
    query, kv, width = heads(fields, hidden)
    refuse(fields, attention_bias=False)
    dense = DenseFeedForward(fields.integer("intermediate_size"))
    return Body(
        [
            LayerShape(GroupedAttention(query, kv, width, window), dense)
            for window in windows(fields, count, used_by_default=True, slides=lambda _: True)
        ]
    )


@family("qwen2", "qwen3")
def _qwen(fields: Fields, hidden: int, count: int) -> Body:
    third = fields.data["model_type"] == "qwen3"
    query, kv, width = heads(fields, hidden, explicit_dim=third)
    first = fields.optional_integer("max_window_layers", minimum=0)
    slides = None if first is None else lambda layer: layer >= first
    # Qwen2's biases are not in its files; Qwen3 normalises queries and keys instead.
    bias = fields.flag("attention_bias", default=False) if third else True
    dense = DenseFeedForward(fields.integer("intermediate_size"))
    return Body(
        [
            LayerShape(
                GroupedAttention(
                    query,
                    kv,
                    width,
                    window,
                    qkv_bias=bias,
                    out_bias=bias and third,
                    qk_norm="head" if third else "none",
                ),
                dense,
            )
            for window in windows(fields, count, used_by_default=False, slides=slides)
        ]
    )


@family("gemma2")
def _gemma2(fields: Fields, hidden: int, count: int) -> Body:
    # The class, not the file, alternates windows: even layers slide. Four norms per layer.
    query, kv, width = heads(fields, hidden, explicit_dim=True)
    refuse(fields, attention_bias=False)
    dense = DenseFeedForward(fields.integer("intermediate_size"))
    sliding = windows(fields, count, used_by_default=True, slides=lambda layer: layer % 2 == 0)
    return Body(
        [
            LayerShape(GroupedAttention(query, kv, width, window), dense, norms=4)
            for window in sliding
        ],
        tied_by_default=True,
    )


@family("gemma3_text")
def _gemma3(fields: Fields, hidden: int, count: int) -> Body:
    # Published files leave out what equals a default of Gemma3TextConfig.
    query, kv, width = heads(fields, hidden, defaults=(8, 4, 256))
    refuse(fields, attention_bias=False)
    every = fields.integer("sliding_window_pattern", "_sliding_window_pattern", default=6)
    sliding = windows(
        fields, count, used_by_default=True, slides=lambda layer: (layer + 1) % every != 0
    )
    dense = DenseFeedForward(fields.integer("intermediate_size"))
    return Body(
        [
            LayerShape(GroupedAttention(query, kv, width, window, qk_norm="head"), dense, norms=4)
            for window in sliding
        ],
        tied_by_default=True,
    )


@family("starcoder2")
def _starcoder2(fields: Fields, hidden: int, count: int) -> Body:
    query, kv, width = heads(fields, hidden)
    bias = fields.flag("use_bias", default=True)
    dense = DenseFeedForward(fields.integer("intermediate_size"), bias=bias, gated=False)
    sliding = windows(fields, count, used_by_default=True, slides=lambda _: True)
    return Body(
        [
            LayerShape(
                GroupedAttention(query, kv, width, window, qkv_bias=bias, out_bias=bias),
                dense,
                norms=4,
            )
            for window in sliding
        ],
        final_norms=2,
        tied_by_default=True,
    )


@family("gpt_bigcode")
def _gpt_bigcode(fields: Fields, hidden: int, count: int) -> Body:
    query = fields.integer("num_attention_heads", "n_head")
    kv = 1 if fields.flag("multi_query", default=True) else query
    width = head_width(fields, hidden, query, explicit=False)
    attention = GroupedAttention(query, kv, width, qkv_bias=True, out_bias=True)
    size = fields.integer("intermediate_size", "n_inner", default=4 * hidden)
    dense = DenseFeedForward(size, bias=True, gated=False)
    return Body(
        [LayerShape(attention, dense, norms=4)] * count,
        final_norms=2,
        position_table=fields.integer("max_position_embeddings", "n_positions"),
        tied_by_default=True,
    )


@family("gptj")
def _gptj(fields: Fields, hidden: int, count: int) -> Body:
    query = fields.integer("num_attention_heads", "n_head")
    width = head_width(fields, hidden, query, explicit=False)
    size = fields.integer("intermediate_size", "n_inner", default=4 * hidden)
    dense = DenseFeedForward(size, bias=True, gated=False)
    layer = LayerShape(GroupedAttention(query, query, width), dense, norms=2, parallel=True)
    return Body([layer] * count, final_norms=2, head_bias=True)


@family("phi")
def _phi(fields: Fields, hidden: int, count: int) -> Body:
    query, kv, width = heads(fields, hidden)
    refuse(fields, qk_layernorm=False)
    attention = GroupedAttention(query, kv, width, qkv_bias=True, out_bias=True)
    dense = DenseFeedForward(fields.integer("intermediate_size"), bias=True, gated=False)
    layer = LayerShape(attention, dense, norms=2, parallel=True)
    return Body([layer] * count, final_norms=2, head_bias=True)


@family("falcon")
def _falcon(fields: Fields, hidden: int, count: int) -> Body:
    query = fields.integer("num_attention_heads", "n_head")
    newer = fields.flag("new_decoder_architecture", default=False)
    single = fields.flag("multi_query", default=True)
    # Only the newer architecture groups heads; otherwise one key/value head, or one each.
    listed = fields.optional_integer("num_kv_heads", "num_key_value_heads")
    kv = (listed or query) if newer else 1 if single else query
    if query % kv:
        fields.fail("num_kv_heads", f"{kv} does not divide num_attention_heads {query}")
    parallel = newer or fields.flag("parallel_attn", default=True)
    fields.flag("parallel_attn", default=True)
    norms = fields.integer("num_ln_in_parallel_attn", default=2 if newer else 1)
    bias = fields.flag("bias", default=False)
    width = head_width(fields, hidden, query, explicit=False)
    attention = GroupedAttention(query, kv, width, qkv_bias=bias, out_bias=bias)
    size = fields.integer("ffn_hidden_size", default=4 * hidden)
    dense = DenseFeedForward(size, bias=bias, gated=False)
    layer = LayerShape(attention, dense, norms=2 * norms if parallel else 4, parallel=parallel)
    return Body([layer] * count, final_norms=2, tied_by_default=True)


@family("nemotron-nas")
def _nemotron_nas(fields: Fields, hidden: int, count: int) -> Body:
    """Read DeciLM: an attention and a feed-forward of its own for each layer, or none."""
    query = fields.integer("num_attention_heads")
    width = head_width(fields, hidden, query, explicit=False)
    refuse(fields, attention_bias=False, mlp_bias=False)
    blocks = fields.objects("block_configs")
    if len(blocks) != count:
        fields.fail("block_configs", f"has {len(blocks)} entries", expected=f"{count}")
    layers = []
    for block in blocks:
        attention = _nas_attention(block.object("attention"), query, width)
        dense = _nas_feed_forward(block.object("ffn"), hidden)
        norms = (attention is not None) + (dense is not None)
        layers.append(LayerShape(attention, dense, norms=norms))
    return Body(layers)


def _nas_attention(block: Fields, query: int, width: int) -> GroupedAttention | None:
    refuse(block, replace_with_linear=False, num_sink_tokens=None, sparsify=None)
    if block.flag("no_op", default=False):
        return None
    group = block.integer("n_heads_in_group")
    if query % group:
        block.fail("n_heads_in_group", f"{group} does not divide {query} heads")
    return GroupedAttention(query, query // group, width, block.optional_integer("window_length"))


def _nas_feed_forward(block: Fields, hidden: int) -> DenseFeedForward | None:
    refuse(block, replace_with_linear=False, sparsify=None)
    if block.flag("no_op", default=False):
        return None
    multiple: Any = block.data.get("ffn_mult")
    if isinstance(multiple, bool) or not isinstance(multiple, int | float) or not multiple > 0:
        block.fail("ffn_mult", f"{multiple!r} is not a positive number", expected="a number")
    size = int(2 * multiple * hidden / 3)
    return DenseFeedForward(-(-size // 256) * 256)
