# SPDX-License-Identifier: Apache-2.0
"""The weight tensors of a shape: how many parameters, how many bytes, how they are split.

One list of tensors gives the parameter count, the bytes of a checkpoint and the bytes of a rank.
How tensor parallelism splits each tensor follows vLLM's layers (``ColumnParallelLinear``,
``RowParallelLinear``, ``QKVParallelLinear``, ``ReplicatedLinear``, ``FusedMoE``), after
Megatron-LM (arXiv 1909.08053). Next-token-prediction modules, vision towers and buffers other
than the router's correction bias are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from railweave.fabric.errors import InputError
from railweave.workloads.shapes_model import (
    DTYPE_BYTES,
    Attention,
    FeedForward,
    GroupedAttention,
    LayerShape,
    ModelShape,
    MoeFeedForward,
    parse_dtype,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "Split",
    "Store",
    "Weight",
    "attention_weights",
    "embedding_weights",
    "feed_forward_weights",
    "head_weights",
    "layer_weights",
    "storage_format",
    "stored_bytes",
]


class Split(Enum):
    """What tensor parallelism does to a tensor."""

    NONE = "replicated"
    IN = "rows"  # the input dimension is divided
    OUT = "columns"  # the output dimension is divided
    KV = "heads"  # divided like the key/value heads: at least one whole head per rank


class Store(Enum):
    """Which tensors a quantised checkpoint converts."""

    PLAIN = "plain"  # tables, heads, norms, biases, routers: kept in the model's own format
    LINEAR = "linear"  # a matrix of a layer
    EXPERT = "expert"  # a matrix of a routed expert
    FLOAT32 = "float32"  # kept in fp32


@dataclass(frozen=True)
class Weight:
    """``count`` equal tensors of ``rows`` (inputs) by ``columns`` (outputs) elements."""

    name: str
    rows: int
    columns: int
    count: int = 1
    split: Split = Split.NONE
    store: Store = Store.PLAIN
    heads: int = 0

    @property
    def parameters(self) -> int:
        """Elements of all ``count`` tensors."""
        return self.rows * self.columns * self.count

    def local(self, tp: int) -> tuple[int, int]:
        """Return the rows and columns that one of ``tp`` ranks holds (the fullest rank)."""
        if self.split is Split.IN:
            return -(-self.rows // tp), self.columns
        if self.split is Split.OUT:
            return self.rows, -(-self.columns // tp)
        if self.split is Split.KV:
            return self.rows, self.columns // self.heads * max(self.heads // tp, 1)
        return self.rows, self.columns


def attention_weights(attention: Attention, hidden: int) -> Iterator[Weight]:
    """Yield the tensors of one attention block, its norm left out."""
    column, linear = Split.OUT, Store.LINEAR
    heads = attention.heads
    if not isinstance(attention, GroupedAttention):
        head = attention.nope_dim + attention.rope_dim
        if attention.q_lora_rank is None:
            yield Weight("q", hidden, heads * head, 1, column, linear)
        else:
            yield Weight("q_a", hidden, attention.q_lora_rank, 1, Split.NONE, linear)
            yield Weight("q_a_norm", 1, attention.q_lora_rank)
            yield Weight("q_b", attention.q_lora_rank, heads * head, 1, column, linear)
        latent = attention.kv_lora_rank
        yield Weight("kv_a", hidden, latent + attention.rope_dim, 1, Split.NONE, linear)
        yield Weight("kv_a_norm", 1, latent)
        up = heads * (attention.nope_dim + attention.v_dim)
        yield Weight("kv_b", latent, up, 1, column, linear)
        yield Weight("o", heads * attention.v_dim, hidden, 1, Split.IN, linear)
        return
    kv, width = attention.kv_heads, attention.head_dim
    yield Weight("q", hidden, heads * width, 1, column, linear)
    yield Weight("kv", hidden, kv * width, 2, Split.KV, linear, heads=kv)
    yield Weight("o", heads * width, hidden, 1, Split.IN, linear)
    if attention.qkv_bias:
        yield Weight("q_bias", 1, heads * width, 1, column)
        yield Weight("kv_bias", 1, kv * width, 2, Split.KV, heads=kv)
    if attention.out_bias:
        yield Weight("o_bias", 1, hidden)
    if attention.qk_norm:
        yield Weight("qk_norm", 1, width, 2)
    if attention.sinks:
        yield Weight("sinks", 1, heads, 1, column)


def feed_forward_weights(feed_forward: FeedForward, hidden: int) -> Iterator[Weight]:
    """Yield the tensors of one feed-forward block, its norm left out."""
    if not isinstance(feed_forward, MoeFeedForward):
        yield from _gated("mlp", hidden, feed_forward.size, 1, Store.LINEAR)
        if feed_forward.bias:
            yield Weight("mlp_bias", 1, feed_forward.size, 2, Split.OUT)
            yield Weight("mlp_down_bias", 1, hidden)
        return
    experts = feed_forward.experts
    yield Weight("router", hidden, experts)
    if feed_forward.router_bias:
        yield Weight("router_bias", 1, experts)
    if feed_forward.correction_bias:
        yield Weight("router_correction", 1, experts, store=Store.FLOAT32)
    yield from _gated("experts", hidden, feed_forward.size, experts, Store.EXPERT)
    if feed_forward.expert_bias:
        yield Weight("experts_bias", 1, feed_forward.size, 2 * experts, Split.OUT)
        yield Weight("experts_down_bias", 1, hidden, experts)
    if feed_forward.shared_size:
        yield from _gated("shared", hidden, feed_forward.shared_size, 1, Store.LINEAR)
    if feed_forward.shared_gate:
        yield Weight("shared_gate", hidden, 1)


def _gated(name: str, hidden: int, size: int, count: int, store: Store) -> Iterator[Weight]:
    yield Weight(f"{name}_gate_up", hidden, size, 2 * count, Split.OUT, store)
    yield Weight(f"{name}_down", size, hidden, count, Split.IN, store)


@lru_cache(maxsize=256)
def layer_weights(layer: LayerShape, hidden: int) -> tuple[Weight, ...]:
    """Return the tensors of one decoder layer, its two norms included."""
    return (
        Weight("norms", 1, hidden, 2),
        *attention_weights(layer.attention, hidden),
        *feed_forward_weights(layer.feed_forward, hidden),
    )


def embedding_weights(shape: ModelShape) -> tuple[Weight, ...]:
    """Return the input table, split over the vocabulary."""
    return (Weight("embedding", shape.hidden_size, shape.vocab_size, 1, Split.OUT),)


def head_weights(shape: ModelShape) -> tuple[Weight, ...]:
    """Return the final norm and, unless it is the input table, the output head."""
    norm = Weight("final_norm", 1, shape.hidden_size)
    if shape.tied:
        return (norm,)
    return (norm, Weight("head", shape.hidden_size, shape.vocab_size, 1, Split.OUT))


def storage_format(shape: ModelShape, dtype: str | None) -> str:
    """Return how weights are stored: a dtype of `DTYPE_BYTES` or ``mxfp4``.

    Parameters
    ----------
    shape
        The model.
    dtype
        What to store instead of what the checkpoint has, or None.

    Raises
    ------
    InputError
        The checkpoint's quantisation is not understood and ``dtype`` does not replace it.
    """
    experts = any(isinstance(layer.feed_forward, MoeFeedForward) for layer in shape.layers)
    if dtype is not None:
        if dtype.lower() != "mxfp4":
            return parse_dtype(dtype)
        if not experts:
            raise InputError(
                f"mxfp4 stores experts only and {shape.name} has none",
                field="dtype",
                expected="one of " + ", ".join(DTYPE_BYTES),
            )
        return "mxfp4"
    quantized = shape.quantization
    if quantized is None:
        return shape.dtype
    if quantized.method == "mxfp4" and experts:
        return "mxfp4"
    if quantized.method == "fp8" and quantized.block == FP8_BLOCK:
        return "fp8"
    block = "" if quantized.block is None else f" with blocks of {quantized.block}"
    raise InputError(
        f"{shape.name} is quantised by '{quantized.method}'{block}, which is not understood",
        field="quantization_config",
        expected="fp8 in 128x128 blocks or mxfp4 experts; or override the dtype of the weights",
    )


FP8_BLOCK: Final = (128, 128)
_MXFP4_GROUP: Final = 32


def stored_bytes(weights: Iterable[Weight], *, fmt: str, plain: int, tp: int = 1) -> int:
    """Return the bytes of tensors on one of ``tp`` ranks.

    ``fp8`` is one byte per element of every layer matrix but the router, plus an fp32 scale per
    128x128 block (DeepSeek-V3, arXiv 2412.19437, and the Qwen3 FP8 checkpoints). ``mxfp4`` is half
    a byte per element of the expert matrices plus one scale byte per 32 (OCP Microscaling
    Formats 1.0; gpt-oss). All other tensors keep ``plain`` bytes per element.

    Parameters
    ----------
    weights
        The tensors.
    fmt
        As `storage_format` returns it.
    plain
        Bytes per element of what is not quantised.
    tp
        Ranks that share each split tensor.
    """
    total = 0
    for weight in weights:
        rows, columns = weight.local(tp)
        elements = rows * columns
        if weight.store is Store.FLOAT32:
            size = 4 * elements
        elif fmt == "fp8" and weight.store in (Store.LINEAR, Store.EXPERT):
            blocks = -(-rows // FP8_BLOCK[0]) * -(-columns // FP8_BLOCK[1])
            size = elements + 4 * blocks
        elif fmt == "mxfp4" and weight.store is Store.EXPERT:
            size = columns * (-(-rows // 2) + -(-rows // _MXFP4_GROUP))
        else:
            size = plain * elements
        total += size * weight.count
    return total
