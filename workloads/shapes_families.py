# SPDX-License-Identifier: Apache-2.0
"""Model families: how the fields of a Hugging Face config become layers.

The rules are those of the family's configuration and modeling classes in
``huggingface/transformers``. A family whose fields differ is one more decorated function here; a
family that is not here is refused, never guessed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from railweave.fabric.errors import InputError, nearest_name
from railweave.workloads.shapes_model import (
    DenseFeedForward,
    Dtype,
    FeedForward,
    GroupedAttention,
    LatentAttention,
    LayerShape,
    ModelShape,
    MoeFeedForward,
    Quantization,
    parse_dtype,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from railweave.workloads.shapes_fields import Fields

    Reader = Callable[[Fields, int, int], list[LayerShape]]

__all__ = ["FAMILIES", "shape_from_fields"]

FAMILIES: Final[dict[str, Reader]] = {}
_MAX_LAYERS: Final = 10_000


def _family(*model_types: str) -> Callable[[Reader], Reader]:
    """Register a function of (fields, hidden size, layer count) that makes the layers."""

    def register(reader: Reader) -> Reader:
        FAMILIES.update(dict.fromkeys(model_types, reader))
        return reader

    return register


def shape_from_fields(fields: Fields, *, name: str, source: str) -> ModelShape:
    """Turn the fields of a config into a `ModelShape`.

    Parameters
    ----------
    fields
        The top-level object of the file.
    name, source
        Name of the shape and where its fields come from.

    Raises
    ------
    InputError
        A field is missing, has a wrong type or value, or is not understood for its family.
    """
    outer, text_only = fields, False
    if "hidden_size" not in fields.data and "text_config" in fields.data:
        inner = fields.optional_object("text_config")
        if inner is not None:
            fields, text_only = inner, True
    model_type = fields.optional_text("model_type")
    if model_type is None:
        fields.fail("model_type", "is missing", expected="one of " + ", ".join(sorted(FAMILIES)))
    if model_type not in FAMILIES:
        near = nearest_name(model_type, FAMILIES)
        fields.fail(
            "model_type",
            f"'{model_type}' is not an architecture that is understood"
            + (f" (nearest: '{near}')" if near else ""),
            expected="one of " + ", ".join(sorted(FAMILIES)),
        )
    hidden = fields.integer("hidden_size")
    count = fields.integer("num_hidden_layers", maximum=_MAX_LAYERS)
    layers = FAMILIES[model_type](fields, hidden, count)
    shape = ModelShape(
        name=name,
        model_type=model_type,
        hidden_size=hidden,
        vocab_size=fields.integer("vocab_size"),
        layers=tuple(layers),
        tied=fields.flag("tie_word_embeddings", default=False),
        dtype=_dtype(fields, outer),
        quantization=_quantization(outer if "quantization_config" in outer.data else fields),
        max_positions=fields.optional_integer("max_position_embeddings"),
        text_only=text_only,
        source=source,
    )
    fields.refuse_unread_structure(model_type)
    return shape


def _dtype(fields: Fields, outer: Fields) -> Dtype:
    for place in (fields, outer):
        text = place.optional_text("torch_dtype", "dtype")
        if text is None:
            continue
        try:
            return parse_dtype(text)
        except InputError as error:
            name = "torch_dtype" if "torch_dtype" in place.data else "dtype"
            place.fail(name, error.message, expected=error.expected)
    return "bf16"


def _quantization(fields: Fields) -> Quantization | None:
    inner = fields.optional_object("quantization_config")
    if inner is None:
        return None
    method = inner.optional_text("quant_method")
    if method is None:
        inner.fail("quant_method", "is missing", expected="the name of a quantisation method")
    block = inner.optional_list("weight_block_size", int)
    if block is None:
        return Quantization(method)
    if len(block) != 2 or min(block) < 1:
        inner.fail("weight_block_size", f"{block} is not a block", expected="two whole numbers")
    return Quantization(method, (block[0], block[1]))


def _heads(fields: Fields, hidden: int, *, explicit_dim: bool = False) -> tuple[int, int, int]:
    """Return query heads, key/value heads and head width."""
    heads = fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        fields.fail(
            "num_key_value_heads",
            f"{kv_heads} does not divide num_attention_heads {heads}",
            expected=f"a divisor of {heads}",
        )
    head_dim = fields.optional_integer("head_dim")
    if head_dim is None:
        # In these families the published width differs from hidden / heads: no safe fallback.
        if explicit_dim:
            fields.fail("head_dim", "is missing", expected="the width of a head")
        if hidden % heads:
            fields.fail(
                "head_dim",
                f"is missing and hidden_size {hidden} is no multiple of {heads} heads",
                expected="the width of a head",
            )
        head_dim = hidden // heads
    return heads, kv_heads, head_dim


def _windows(
    fields: Fields,
    count: int,
    *,
    used_by_default: bool,
    slides: Callable[[int], bool] | None,
) -> list[int | None]:
    """Return each layer's window in tokens.

    ``layer_types`` decides where the file has it, else ``slides(layer)``; a window that is
    switched off, or that is no shorter than the longest sequence, is none.
    """
    window = fields.optional_integer("sliding_window")
    if not fields.flag("use_sliding_window", default=used_by_default):
        window = None
    longest = fields.optional_integer("max_position_embeddings")
    types = fields.optional_list("layer_types", str)
    if types is not None:
        if len(types) != count:
            fields.fail(
                "layer_types", f"has {len(types)} entries", expected=f"{count}, one per layer"
            )
        for kind in types:
            if kind not in ("full_attention", "sliding_attention"):
                fields.fail(
                    "layer_types",
                    f"'{kind}' is not understood",
                    expected="full_attention or sliding_attention",
                )
        if window is None and "sliding_attention" in types:
            fields.fail("layer_types", "has sliding layers, but no sliding_window is in use")
        sliding = [kind == "sliding_attention" for kind in types]
    elif window is None:
        sliding = [False] * count
    elif slides is None:
        fields.fail("layer_types", "is missing", expected="which layers have the sliding window")
    else:
        sliding = [slides(layer) for layer in range(count)]
    if window is not None and longest is not None and window >= longest:
        window = None
    return [window if here else None for here in sliding]


@_family("llama")
def _llama(fields: Fields, hidden: int, count: int) -> list[LayerShape]:
    heads, kv_heads, head_dim = _heads(fields, hidden)
    bias = fields.flag("attention_bias", default=False)
    attention = GroupedAttention(heads, kv_heads, head_dim, qkv_bias=bias, out_bias=bias)
    dense = DenseFeedForward(
        fields.integer("intermediate_size"), bias=fields.flag("mlp_bias", default=False)
    )
    return [LayerShape(attention, dense)] * count


@_family("mistral", "phi3")
def _mistral(fields: Fields, hidden: int, count: int) -> list[LayerShape]:
    heads, kv_heads, head_dim = _heads(fields, hidden)
    windows = _windows(fields, count, used_by_default=True, slides=lambda _: True)
    if fields.flag("attention_bias", default=False):
        fields.fail("attention_bias", "true is not understood for this family", expected="false")
    dense = DenseFeedForward(fields.integer("intermediate_size"))
    return [
        LayerShape(GroupedAttention(heads, kv_heads, head_dim, window), dense) for window in windows
    ]


@_family("mixtral")
def _mixtral(fields: Fields, hidden: int, count: int) -> list[LayerShape]:
    heads, kv_heads, head_dim = _heads(fields, hidden)
    windows = _windows(fields, count, used_by_default=True, slides=lambda _: True)
    experts = _experts(fields, size=fields.integer("intermediate_size"))
    return [
        LayerShape(GroupedAttention(heads, kv_heads, head_dim, window), experts)
        for window in windows
    ]


@_family("qwen2", "qwen3", "qwen3_moe")
def _qwen(fields: Fields, hidden: int, count: int) -> list[LayerShape]:
    model_type = fields.data["model_type"]
    third = model_type != "qwen2"
    heads, kv_heads, head_dim = _heads(fields, hidden, explicit_dim=third)
    first = fields.optional_integer("max_window_layers", minimum=0)
    slides = None if first is None else lambda layer: layer >= first
    windows = _windows(fields, count, used_by_default=False, slides=slides)
    bias = fields.flag("attention_bias", default=False) if third else True
    return [
        LayerShape(
            GroupedAttention(
                heads,
                kv_heads,
                head_dim,
                window,
                qkv_bias=bias,
                out_bias=bias and third,
                qk_norm=third,
            ),
            feed_forward,
        )
        for window, feed_forward in zip(
            windows, _qwen_feed_forward(fields, count, moe=model_type == "qwen3_moe"), strict=True
        )
    ]


def _qwen_feed_forward(fields: Fields, count: int, *, moe: bool) -> list[FeedForward]:
    if not moe:
        return [DenseFeedForward(fields.integer("intermediate_size"))] * count
    experts = _experts(fields, size=fields.integer("moe_intermediate_size"))
    step = fields.integer("decoder_sparse_step", default=1)
    plain = set(fields.optional_list("mlp_only_layers", int) or ())
    sparse = [layer not in plain and (layer + 1) % step == 0 for layer in range(count)]
    if all(sparse):
        return [experts] * count
    dense = DenseFeedForward(fields.integer("intermediate_size"))
    return [experts if here else dense for here in sparse]


@_family("gpt_oss")
def _gpt_oss(fields: Fields, hidden: int, count: int) -> list[LayerShape]:
    heads, kv_heads, head_dim = _heads(fields, hidden, explicit_dim=True)
    windows = _windows(fields, count, used_by_default=True, slides=None)
    bias = fields.flag("attention_bias", default=True)
    experts = _experts(
        fields, size=fields.integer("intermediate_size"), router_bias=True, expert_bias=True
    )
    return [
        LayerShape(
            GroupedAttention(
                heads, kv_heads, head_dim, window, qkv_bias=bias, out_bias=bias, sinks=True
            ),
            experts,
        )
        for window in windows
    ]


@_family("deepseek_v2", "deepseek_v3")
def _deepseek(fields: Fields, hidden: int, count: int) -> list[LayerShape]:
    if fields.flag("attention_bias", default=False):
        fields.fail("attention_bias", "true is not understood for this family", expected="false")
    attention = LatentAttention(
        heads=fields.integer("num_attention_heads"),
        q_lora_rank=fields.optional_integer("q_lora_rank"),
        kv_lora_rank=fields.integer("kv_lora_rank"),
        nope_dim=fields.integer("qk_nope_head_dim"),
        rope_dim=fields.integer("qk_rope_head_dim"),
        v_dim=fields.integer("v_head_dim"),
    )
    size = fields.integer("moe_intermediate_size")
    shared = fields.integer("n_shared_experts", "num_shared_experts", default=0, minimum=0)
    third = fields.data["model_type"] == "deepseek_v3"
    experts = _experts(fields, size=size, shared_size=shared * size, correction_bias=third)
    method = fields.optional_text("topk_method")
    if third and method not in (None, "noaux_tc"):
        fields.fail("topk_method", f"'{method}' is not understood", expected="noaux_tc")
    dense = DenseFeedForward(fields.integer("intermediate_size"))
    first = fields.integer("first_k_dense_replace", minimum=0)
    step = fields.integer("moe_layer_freq", default=1)
    return [
        LayerShape(attention, experts if layer >= first and layer % step == 0 else dense)
        for layer in range(count)
    ]


def _experts(
    fields: Fields,
    *,
    size: int,
    shared_size: int = 0,
    router_bias: bool = False,
    expert_bias: bool = False,
    correction_bias: bool = False,
) -> MoeFeedForward:
    """Read how many experts there are and how many a token visits, under any known key."""
    experts = fields.integer(
        "num_experts", "num_local_experts", "n_routed_experts", "num_routed_experts"
    )
    top_k = fields.integer("num_experts_per_tok", "experts_per_token")
    if top_k > experts:
        fields.fail(
            "num_experts_per_tok", f"{top_k} is more than {experts} experts", expected="fewer"
        )
    return MoeFeedForward(
        experts=experts,
        top_k=top_k,
        size=size,
        shared_size=shared_size,
        router_bias=router_bias,
        expert_bias=expert_bias,
        correction_bias=correction_bias,
    )
