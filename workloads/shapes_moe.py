# SPDX-License-Identifier: Apache-2.0
"""Families with mixtures of experts, by the classes of ``huggingface/transformers``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.workloads.shapes_model import (
    DenseFeedForward,
    FeedForward,
    GroupedAttention,
    LatentAttention,
    LayerShape,
    MoeFeedForward,
)
from railweave.workloads.shapes_reading import (
    Body,
    experts,
    family,
    heads,
    layer_kinds,
    refuse,
    windows,
)

if TYPE_CHECKING:
    from railweave.workloads.shapes_fields import Fields

__all__ = ["sparse_layers"]


@family("mixtral")
def _mixtral(fields: Fields, hidden: int, count: int) -> Body:
    query, kv, width = heads(fields, hidden)
    routed = experts(fields, size=fields.integer("intermediate_size"))
    return Body(
        [
            LayerShape(GroupedAttention(query, kv, width, window), routed)
            for window in windows(fields, count, used_by_default=True, slides=lambda _: True)
        ]
    )


@family("phimoe")
def _phimoe(fields: Fields, hidden: int, count: int) -> Body:
    query, kv, width = heads(fields, hidden)
    bias = fields.flag("attention_bias", default=False)
    routed = experts(fields, size=fields.integer("intermediate_size"))
    sliding = windows(fields, count, used_by_default=True, slides=lambda _: True)
    return Body(
        [
            LayerShape(
                GroupedAttention(query, kv, width, window, qkv_bias=bias, out_bias=bias),
                routed,
                norms=4,
            )
            for window in sliding
        ],
        final_norms=2,
        head_bias=fields.flag("lm_head_bias", default=False),
    )


@family("qwen2_moe", "qwen3_moe")
def _qwen_moe(fields: Fields, hidden: int, count: int) -> Body:
    third = fields.data["model_type"] == "qwen3_moe"
    query, kv, width = heads(fields, hidden, explicit_dim=third)
    first = fields.optional_integer("max_window_layers", minimum=0)
    slides = None if first is None else lambda layer: layer >= first
    sliding = windows(fields, count, used_by_default=False, slides=slides)
    name, default = ("attention_bias", False) if third else ("qkv_bias", True)
    bias = fields.flag(name, default=default)
    shared = 0 if third else fields.integer("shared_expert_intermediate_size", minimum=0)
    routed = experts(
        fields,
        size=fields.integer("moe_intermediate_size"),
        shared_size=shared,
        shared_gate=shared > 0,
    )
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
                block,
            )
            for window, block in zip(sliding, sparse_layers(fields, count, routed), strict=True)
        ]
    )


def sparse_layers(fields: Fields, count: int, routed: MoeFeedForward) -> list[FeedForward]:
    """Return each layer's feed-forward: every ``decoder_sparse_step``-th has experts."""
    step = fields.integer("decoder_sparse_step", default=1)
    plain = set(fields.optional_list("mlp_only_layers", int) or ())
    sparse = [layer not in plain and (layer + 1) % step == 0 for layer in range(count)]
    if all(sparse):
        return [routed] * count
    dense = DenseFeedForward(fields.integer("intermediate_size"))
    return [routed if here else dense for here in sparse]


@family("gpt_oss")
def _gpt_oss(fields: Fields, hidden: int, count: int) -> Body:
    query, kv, width = heads(fields, hidden, explicit_dim=True)
    bias = fields.flag("attention_bias", default=True)
    routed = experts(
        fields, size=fields.integer("intermediate_size"), router_bias=True, expert_bias=True
    )
    return Body(
        [
            LayerShape(
                GroupedAttention(
                    query, kv, width, window, qkv_bias=bias, out_bias=bias, sinks=True
                ),
                routed,
            )
            for window in windows(fields, count, used_by_default=True, slides=None)
        ]
    )


@family("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2")
def _deepseek(fields: Fields, hidden: int, count: int) -> Body:
    refuse(fields, attention_bias=False)
    second = fields.data["model_type"] == "deepseek_v2"
    indexed = fields.data["model_type"] == "deepseek_v32"
    attention = LatentAttention(
        heads=fields.integer("num_attention_heads"),
        q_lora_rank=fields.optional_integer("q_lora_rank"),
        kv_lora_rank=fields.integer("kv_lora_rank"),
        nope_dim=fields.integer("qk_nope_head_dim"),
        rope_dim=fields.integer("qk_rope_head_dim"),
        v_dim=fields.integer("v_head_dim"),
        index_heads=fields.integer("index_n_heads") if indexed else 0,
        index_dim=fields.integer("index_head_dim") if indexed else 0,
        index_topk=fields.integer("index_topk") if indexed else 0,
    )
    size = fields.integer("moe_intermediate_size")
    shared = fields.integer("n_shared_experts", "num_shared_experts", default=0, minimum=0)
    routed = experts(fields, size=size, shared_size=shared * size, correction_bias=not second)
    method = fields.optional_text("topk_method")
    if not second and method not in (None, "noaux_tc"):
        fields.fail("topk_method", f"'{method}' is not understood", expected="noaux_tc")
    dense = DenseFeedForward(fields.integer("intermediate_size"))
    first = fields.integer("first_k_dense_replace", minimum=0)
    step = fields.integer("moe_layer_freq", default=1)
    return Body(
        [
            LayerShape(attention, routed if layer >= first and layer % step == 0 else dense)
            for layer in range(count)
        ]
    )


@family("glm4_moe")
def _glm4_moe(fields: Fields, hidden: int, count: int) -> Body:
    query, kv, width = heads(fields, hidden, explicit_dim=True)
    bias = fields.flag("attention_bias", default=False)
    norm = fields.flag("use_qk_norm", default=False)
    attention = GroupedAttention(
        query, kv, width, qkv_bias=bias, qk_norm="head" if norm else "none"
    )
    size = fields.integer("moe_intermediate_size")
    shared = fields.integer("n_shared_experts", "num_shared_experts", minimum=0)
    routed = experts(fields, size=size, shared_size=shared * size, correction_bias=True)
    dense = DenseFeedForward(fields.integer("intermediate_size"))
    first = fields.integer("first_k_dense_replace", minimum=0)
    return Body([LayerShape(attention, dense if i < first else routed) for i in range(count)])


@family("minimax_m2")
def _minimax_m2(fields: Fields, hidden: int, count: int) -> Body:
    query, kv, width = heads(fields, hidden, explicit_dim=True)
    kinds = fields.optional_list("attn_type_list", int)
    if kinds is not None and kinds != [1] * count:
        fields.fail("attn_type_list", "has layers that are not understood", expected=f"{count} x 1")
    refuse(fields, shared_intermediate_size=0, qk_norm_type="per_layer")
    norm = fields.flag("use_qk_norm", default=True)
    attention = GroupedAttention(query, kv, width, qk_norm="full" if norm else "none")
    routed = experts(
        fields,
        size=fields.integer("intermediate_size"),
        correction_bias=fields.flag("use_routing_bias", default=True),
    )
    return Body([LayerShape(attention, routed)] * count)


@family("mimo_v2_flash")
def _mimo(fields: Fields, hidden: int, count: int) -> Body:
    """Read MiMo-V2: full layers and sliding ones, each with heads of their own widths."""
    refuse(fields, attention_bias=False, n_shared_experts=None)
    fields.ask("attention_chunk_size")  # the window once more, which its code does not read
    window = fields.integer("sliding_window", "sliding_window_size")
    attentions = [
        _mimo_attention(fields, "", "full", None),
        _mimo_attention(fields, "swa_", "swa", window),
    ]
    routed = experts(fields, size=fields.integer("moe_intermediate_size"), correction_bias=True)
    dense = DenseFeedForward(fields.integer("intermediate_size"))
    sliding = _marks(fields, "hybrid_layer_pattern", count)
    sparse = _marks(fields, "moe_layer_freq", count)
    return Body(
        [LayerShape(attentions[sliding[i]], routed if sparse[i] else dense) for i in range(count)]
    )


def _mimo_attention(fields: Fields, prefix: str, kind: str, window: int | None) -> GroupedAttention:
    query = fields.integer(f"{prefix}num_attention_heads")
    kv = fields.integer(f"{prefix}num_key_value_heads")
    if query % kv:
        name = f"{prefix}num_key_value_heads"
        fields.fail(name, f"{kv} does not divide {query} heads", expected=f"a divisor of {query}")
    return GroupedAttention(
        query,
        kv,
        fields.integer(f"{prefix}head_dim"),
        window,
        v_head_dim=fields.integer(f"{prefix}v_head_dim"),
        sinks=fields.flag(f"add_{kind}_attention_sink_bias", default=False),
    )


def _marks(fields: Fields, name: str, count: int) -> list[int]:
    """Read a list of 0 and 1, one per layer."""
    marks = fields.optional_list(name, int)
    if marks is None:
        fields.fail(name, "is missing", expected="0 or 1 per layer")
    if len(marks) != count or set(marks) - {0, 1}:
        fields.fail(name, f"has {len(marks)} entries", expected=f"{count}, each 0 or 1")
    return marks


@family("llama4_text")
def _llama4(fields: Fields, hidden: int, count: int) -> Body:
    query, kv, width = heads(fields, hidden, explicit_dim=True)
    bias = fields.flag("attention_bias", default=False)
    fields.flag("use_qk_norm", default=True)  # an RMS norm without weights
    chunk = fields.optional_integer("attention_chunk_size")
    longest = fields.optional_integer("max_position_embeddings")
    if chunk is not None and longest is not None and chunk >= longest:
        chunk = None
    size = fields.integer("intermediate_size")
    routed = experts(fields, size=size, shared_size=size)
    step = fields.integer("interleave_moe_layer_step", default=1)
    dense = DenseFeedForward(fields.integer("intermediate_size_mlp"))
    listed = fields.optional_list("moe_layers", int)
    sparse = {i for i in range(count) if (i + 1) % step == 0} if listed is None else set(listed)
    layers = []
    for layer, chunked in enumerate(_chunked(fields, count)):
        if chunked and chunk is None and longest is None:
            fields.fail("attention_chunk_size", "is missing", expected="the length of a chunk")
        attention = GroupedAttention(
            query,
            kv,
            width,
            window=chunk if chunked else None,
            chunked=chunked and chunk is not None,
            qkv_bias=bias,
            out_bias=bias,
        )
        layers.append(LayerShape(attention, routed if layer in sparse else dense))
    return Body(layers)


def _chunked(fields: Fields, count: int) -> list[bool]:
    """Return which layers attend within chunks: those with rotary positions.

    By default three of four; ``no_rope_layers`` marks those with rotary positions by 1 (its name
    says the opposite).
    """
    kinds = layer_kinds(fields, count, ("chunked_attention", "full_attention"))
    rotary = fields.optional_list("no_rope_layers", int)
    if kinds is not None:
        return [kind == "chunked_attention" for kind in kinds]
    if rotary:
        if len(rotary) != count:
            fields.fail("no_rope_layers", f"has {len(rotary)} entries", expected=f"{count}")
        return [bool(entry) for entry in rotary]
    every = fields.integer("no_rope_layer_interval", default=4)
    return [(layer + 1) % every != 0 for layer in range(count)]
