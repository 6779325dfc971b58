# SPDX-License-Identifier: Apache-2.0
"""Families that mix attention with recurrent layers, by ``huggingface/transformers``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from railweave.fabric.errors import InputError
from railweave.workloads.shapes_model import (
    DTYPE_BYTES,
    DenseFeedForward,
    FeedForward,
    GatedDelta,
    GroupedAttention,
    LayerShape,
    Mamba1,
    Mamba2,
    parse_dtype,
)
from railweave.workloads.shapes_moe import sparse_layers
from railweave.workloads.shapes_reading import Body, experts, family, heads, layer_kinds, refuse

if TYPE_CHECKING:
    from railweave.workloads.shapes_fields import Fields

__all__: list[str] = []


def _state_bytes(fields: Fields, *names: str) -> int:
    """Return the bytes of a state element; fp32 where the file does not say."""
    text = fields.optional_text(*names) if names else None
    if text is None:
        return 4
    try:
        return DTYPE_BYTES[parse_dtype(text)]
    except InputError as error:
        fields.fail(names[0], error.message, expected=error.expected)


@family("nemotron_h")
def _nemotron_h(fields: Fields, hidden: int, count: int) -> Body:
    """Read Nemotron-H: one block per layer, named by a letter of ``hybrid_override_pattern``."""
    pattern = fields.optional_text("hybrid_override_pattern")
    if pattern is None:
        fields.fail("hybrid_override_pattern", "is missing", expected="one letter per layer")
    if len(pattern) != count or set(pattern) - set("ME*-"):
        fields.fail(
            "hybrid_override_pattern",
            f"'{pattern[:60]}' has {len(pattern)} letters",
            expected=f"{count} of M (mamba), E (experts), * (attention) and - (feed-forward)",
        )
    query, kv, width = heads(fields, hidden, explicit_dim=True)
    refuse(fields, use_bias=False, attention_bias=False, mlp_bias=False, mamba_proj_bias=False,
           use_conv_bias=True, moe_latent_size=None)  # fmt: skip
    attention = GroupedAttention(query, kv, width)
    mixer = Mamba2(
        heads=fields.integer("mamba_num_heads"),
        head_dim=fields.integer("mamba_head_dim"),
        groups=fields.integer("n_groups"),
        state=fields.integer("ssm_state_size"),
        conv=fields.integer("conv_kernel"),
        state_bytes_each=_state_bytes(fields, "mamba_ssm_cache_dtype"),
    )
    routed = dense = None
    if "E" in pattern:
        shared = fields.integer("n_shared_experts", default=0, minimum=0)
        each = fields.integer("moe_shared_expert_intermediate_size", default=0, minimum=0)
        routed = experts(
            fields,
            size=fields.integer("moe_intermediate_size"),
            shared_size=shared * each,
            correction_bias=True,
            gated=False,
        )
    if "-" in pattern:
        dense = DenseFeedForward(fields.integer("intermediate_size"), gated=False)
    kinds = {
        "M": LayerShape(None, None, mixer, norms=1),
        "E": LayerShape(None, routed, norms=1),
        "*": LayerShape(attention, None, norms=1),
        "-": LayerShape(None, dense, norms=1),
    }
    return Body([kinds[letter] for letter in pattern])


@family("jamba")
def _jamba(fields: Fields, hidden: int, count: int) -> Body:
    query, kv, width = heads(fields, hidden)
    refuse(fields, mamba_conv_bias=True, mamba_proj_bias=False, sliding_window=None)
    attention = GroupedAttention(query, kv, width)
    mixer = Mamba1(
        inner=fields.integer("mamba_expand") * hidden,
        state=fields.integer("mamba_d_state"),
        conv=fields.integer("mamba_d_conv"),
        dt_rank=fields.integer("mamba_dt_rank"),
    )
    size = fields.integer("intermediate_size")
    routed, dense = experts(fields, size=size), DenseFeedForward(size)
    attends = _period(fields, "attn_layer", count)
    sparse = _period(fields, "expert_layer", count)
    return Body(
        [
            LayerShape(
                attention if attends[i] else None,
                routed if sparse[i] else dense,
                None if attends[i] else mixer,
            )
            for i in range(count)
        ]
    )


def _period(fields: Fields, name: str, count: int) -> list[bool]:
    period = fields.integer(f"{name}_period")
    offset = fields.integer(f"{name}_offset", minimum=0, maximum=period - 1)
    return [layer % period == offset for layer in range(count)]


@family("falcon_h1")
def _falcon_h1(fields: Fields, hidden: int, count: int) -> Body:
    query, kv, width = heads(fields, hidden, explicit_dim=True)
    refuse(fields, attention_bias=False, mlp_bias=False, projectors_bias=False,
           mamba_conv_bias=True, mamba_proj_bias=False, mamba_use_mlp=True)  # fmt: skip
    mixer = Mamba2(
        heads=fields.integer("mamba_n_heads"),
        head_dim=fields.integer("mamba_d_head"),
        groups=fields.integer("mamba_n_groups", "n_groups"),
        state=fields.integer("mamba_d_state"),
        conv=fields.integer("mamba_d_conv"),
        gated_norm=fields.flag("mamba_rms_norm", default=False),
    )
    fields.ask("mamba_expand")  # of no effect beside the heads
    inner = fields.optional_integer("mamba_d_ssm")
    if inner not in (None, mixer.inner):
        fields.fail(
            "mamba_d_ssm",
            f"{inner} is not {mixer.heads} heads of {mixer.head_dim}",
            expected=str(mixer.inner),
        )
    dense = DenseFeedForward(fields.integer("intermediate_size"))
    return Body([LayerShape(GroupedAttention(query, kv, width), dense, mixer)] * count)


@family("qwen3_5_text", "qwen3_5_moe_text")
def _qwen35(fields: Fields, hidden: int, count: int) -> Body:
    query, kv, width = heads(fields, hidden, explicit_dim=True)
    norm: Literal["head"] = "head"
    refuse(fields, attention_bias=False)
    attention = GroupedAttention(
        query,
        kv,
        width,
        qk_norm=norm,
        output_gate=fields.flag("attn_output_gate", default=True),
    )
    mixer = GatedDelta(
        key_heads=fields.integer("linear_num_key_heads"),
        value_heads=fields.integer("linear_num_value_heads"),
        key_dim=fields.integer("linear_key_head_dim"),
        value_dim=fields.integer("linear_value_head_dim"),
        conv=fields.integer("linear_conv_kernel_dim"),
        state_bytes_each=_state_bytes(fields, "mamba_ssm_dtype"),
    )
    kinds = layer_kinds(fields, count, ("linear_attention", "full_attention"))
    every = fields.optional_integer("full_attention_interval")
    if kinds is None and every is None:
        fields.fail("layer_types", "is missing", expected="it, or full_attention_interval")
    attends = (
        [(i + 1) % (every or 1) == 0 for i in range(count)]
        if kinds is None
        else [kind == "full_attention" for kind in kinds]
    )
    blocks: list[FeedForward]
    if fields.data["model_type"] == "qwen3_5_moe_text":
        shared = fields.integer("shared_expert_intermediate_size", minimum=0)
        routed = experts(
            fields,
            size=fields.integer("moe_intermediate_size"),
            shared_size=shared,
            shared_gate=shared > 0,
        )
        blocks = sparse_layers(fields, count, routed)
    else:
        blocks = [DenseFeedForward(fields.integer("intermediate_size"))] * count
    return Body(
        [
            LayerShape(attention, block) if here else LayerShape(None, block, mixer)
            for here, block in zip(attends, blocks, strict=True)
        ]
    )
