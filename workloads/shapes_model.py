# SPDX-License-Identifier: Apache-2.0
"""The nouns of a model's shape: layers, attention kinds, feed-forward kinds, number formats.

Only what fixes bytes is kept: head counts and widths, windows, expert counts, biases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from railweave.fabric.errors import InputError, nearest_name

__all__ = [
    "DTYPE_BYTES",
    "Attention",
    "DenseFeedForward",
    "Dtype",
    "FeedForward",
    "GroupedAttention",
    "LatentAttention",
    "LayerShape",
    "ModelShape",
    "MoeFeedForward",
    "Quantization",
    "dtype_bytes",
    "parse_dtype",
]

Dtype = Literal["fp32", "bf16", "fp16", "fp8"]

DTYPE_BYTES: Final[dict[str, int]] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}

_ALIASES: Final[dict[str, Dtype]] = {
    "fp32": "fp32",
    "float32": "fp32",
    "float": "fp32",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "half": "fp16",
    "fp8": "fp8",
    "float8": "fp8",
    "float8_e4m3fn": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
}


def parse_dtype(text: str, *, field: str = "dtype") -> Dtype:
    """Return the short name of a number format.

    Parameters
    ----------
    text
        A name as PyTorch, vLLM or people write it: ``bfloat16``, ``torch.float16``, ``fp8``.
    field
        Name of the field that an error speaks of.

    Raises
    ------
    InputError
        The name is unknown.

    Examples
    --------
    >>> parse_dtype("torch.bfloat16")
    'bf16'
    """
    key = text.lower().removeprefix("torch.")
    if key not in _ALIASES:
        raise InputError(
            f"'{text}' is not a known number format",
            field=field,
            expected="one of " + ", ".join(DTYPE_BYTES),
            nearest=nearest_name(key, _ALIASES),
        )
    return _ALIASES[key]


def dtype_bytes(text: str, *, field: str = "dtype") -> int:
    """Return the bytes of one element of a number format.

    Examples
    --------
    >>> dtype_bytes("bf16"), dtype_bytes("fp8")
    (2, 1)
    """
    return DTYPE_BYTES[parse_dtype(text, field=field)]


@dataclass(frozen=True)
class GroupedAttention:
    """Attention with query heads in groups that share a key/value head (MHA, GQA and MQA).

    Parameters
    ----------
    heads, kv_heads, head_dim
        Query heads, key/value heads, width of a head in elements.
    window
        Tokens that a sliding window keeps, or None for full attention.
    qkv_bias, out_bias
        Whether the projections carry biases.
    qk_norm
        Whether queries and keys are normalised per head (two vectors of ``head_dim``).
    sinks
        Whether there is one learned sink logit per query head.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False

    @property
    def kind(self) -> Literal["full", "sliding"]:
        """``full`` or ``sliding``."""
        return "full" if self.window is None else "sliding"

    @property
    def kv_elements(self) -> int:
        """Cache elements per token over all key/value heads: keys and values."""
        return 2 * self.kv_heads * self.head_dim


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (MLA, DeepSeek-V2, arXiv 2405.04434).

    One compressed latent and one rotary key per token serve all heads, so the cache has neither
    a head count nor a factor two, and every tensor-parallel rank keeps all of it.

    Parameters
    ----------
    heads
        Query heads.
    q_lora_rank
        Width of the compressed query in elements, or None for a direct projection.
    kv_lora_rank
        Width of the compressed key/value latent in elements.
    nope_dim, rope_dim, v_dim
        Widths of a head in elements: the part without position, the rotary part, the value.
    """

    heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int

    @property
    def kind(self) -> Literal["mla"]:
        """``mla``."""
        return "mla"

    @property
    def window(self) -> None:
        """None: the whole sequence is kept."""
        return

    @property
    def kv_elements(self) -> int:
        """Cache elements per token, the same for every rank."""
        return self.kv_lora_rank + self.rope_dim


Attention = GroupedAttention | LatentAttention


@dataclass(frozen=True)
class DenseFeedForward:
    """A gated feed-forward block: gate, up and down matrices.

    Parameters
    ----------
    size
        Intermediate width in elements.
    bias
        Whether the three matrices carry biases.
    """

    size: int
    bias: bool = False

    @property
    def kind(self) -> Literal["dense"]:
        """``dense``."""
        return "dense"


@dataclass(frozen=True)
class MoeFeedForward:
    """A mixture of gated experts behind a router.

    Parameters
    ----------
    experts, top_k
        Routed experts, and how many of them each token visits.
    size
        Intermediate width of one routed expert in elements.
    shared_size
        Intermediate width of the shared expert, 0 if there is none.
    shared_gate
        Whether a learned sigmoid gate scales the shared expert.
    router_bias, expert_bias
        Whether the router and the experts' matrices carry biases.
    correction_bias
        Whether the router has a load-balancing correction per expert (kept in fp32).
    """

    experts: int
    top_k: int
    size: int
    shared_size: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    correction_bias: bool = False

    @property
    def kind(self) -> Literal["moe"]:
        """``moe``."""
        return "moe"


FeedForward = DenseFeedForward | MoeFeedForward


@dataclass(frozen=True)
class LayerShape:
    """One decoder layer: an attention block and a feed-forward block, each behind a norm."""

    attention: Attention
    feed_forward: FeedForward


@dataclass(frozen=True)
class Quantization:
    """How a checkpoint stores its weights.

    Parameters
    ----------
    method
        ``quant_method`` of the file, such as ``fp8`` or ``mxfp4``.
    block
        Rows and columns that share one scale, or None.
    """

    method: str
    block: tuple[int, int] | None = None


@dataclass(frozen=True)
class ModelShape:
    """The numbers of a model that fix its weights, its cache and its traffic.

    Parameters
    ----------
    name
        Shipped name, or the name of the file or folder that it was read from.
    model_type
        Family, as Hugging Face names it.
    hidden_size, vocab_size
        Width of the residual stream in elements, entries of the vocabulary.
    layers
        The decoder layers in order.
    tied
        Whether the output head is the input table.
    dtype
        Number format of activations, and of weights unless quantised.
    quantization
        How the checkpoint is quantised, or None.
    max_positions
        Longest sequence in tokens, or None if the file does not say.
    text_only
        Whether the file wraps a text model in a multimodal one, of which only the text is counted.
    source
        Where the fields come from.
    """

    name: str
    model_type: str
    hidden_size: int
    vocab_size: int
    layers: tuple[LayerShape, ...]
    tied: bool = False
    dtype: Dtype = "bf16"
    quantization: Quantization | None = None
    max_positions: int | None = None
    text_only: bool = False
    source: str = ""

    @property
    def n_layers(self) -> int:
        """Number of decoder layers."""
        return len(self.layers)

    @property
    def heads(self) -> int:
        """Query heads of a layer (equal in all layers of the known families)."""
        return self.layers[0].attention.heads
