# SPDX-License-Identifier: Apache-2.0
"""The shape of a model: its layers, number formats and quantisation.

What a layer is made of is in `railweave.workloads.shapes_blocks`, named here too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from railweave.fabric.errors import InputError, nearest_name
from railweave.workloads.shapes_blocks import (
    Attention,
    DenseFeedForward,
    FeedForward,
    GatedDelta,
    GroupedAttention,
    LatentAttention,
    Mamba1,
    Mamba2,
    Mixer,
    MoeFeedForward,
)

__all__ = [
    "DTYPE_BYTES",
    "Attention",
    "Block",
    "DenseFeedForward",
    "Dtype",
    "FeedForward",
    "GatedDelta",
    "GroupedAttention",
    "LatentAttention",
    "LayerShape",
    "Mamba1",
    "Mamba2",
    "Mixer",
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


Block = Literal["attention", "mixer", "feed_forward"]


@dataclass(frozen=True)
class LayerShape:
    """One decoder layer: blocks that each read the residual stream and add to it.

    Parameters
    ----------
    attention, mixer, feed_forward
        The blocks, None where the layer has no such one. Most layers have attention or a
        recurrent mixer, then a feed-forward; Falcon-H1's have all three (attention and mixer side
        by side), Nemotron-H's one each, and Nemotron-NAS leaves attention out of some.
    norms
        Learned vectors of the hidden width: one per RMSNorm, two per LayerNorm.
    parallel
        Whether attention and feed-forward add to the residual stream together (GPT-J, Falcon,
        Phi): their outputs are then summed in one all_reduce.
    plain
        What a quantised checkpoint keeps in the model's own number format: blocks by the names
        above, or matrices such as ``attention.o``.
    """

    attention: Attention | None
    feed_forward: FeedForward | None
    mixer: Mixer | None = None
    norms: int = 2
    parallel: bool = False
    plain: tuple[str, ...] = ()

    @property
    def reductions(self) -> int:
        """Outputs that tensor parallelism sums: one per block, one in all if they are parallel."""
        return sum(self.reductions_after)

    @property
    def reductions_after(self) -> tuple[int, int]:
        """Those after attention and mixer, and those after the feed-forward."""
        if self.parallel:
            return 0, 1
        mixing = (self.attention is not None) + (self.mixer is not None)
        return mixing, int(self.feed_forward is not None)


@dataclass(frozen=True)
class Quantization:
    """How a checkpoint stores its weights.

    Parameters
    ----------
    method
        ``fp8`` (blocks with one scale), ``fp8-tensor`` (one scale per matrix), ``mxfp4``,
        ``nvfp4`` or ``int4``; else ``quant_method`` of the file, which is not understood.
    block
        Rows and columns that share one scale, or None.
    group
        Inputs that share one scale (``int4``, ``nvfp4``), or None.
    kv_dtype
        Number format of the cache that the checkpoint is calibrated for, or None.
    """

    method: str
    block: tuple[int, int] | None = None
    group: int | None = None
    kv_dtype: Dtype | None = None


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
    final_norms
        Learned vectors of the hidden width in the last norm: 1 for RMSNorm, 2 for LayerNorm.
    head_bias
        Whether the output head carries a bias.
    position_table
        Learned positions, 0 with rotary ones.
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
    final_norms: int = 1
    head_bias: bool = False
    position_table: int = 0

    @property
    def n_layers(self) -> int:
        """Number of decoder layers."""
        return len(self.layers)

    @property
    def heads(self) -> int:
        """Most query heads of a layer; 0 without attention."""
        return max((x.attention.heads for x in self.layers if x.attention is not None), default=0)

    @property
    def reductions(self) -> int:
        """Outputs of all layers that tensor parallelism sums (2 per layer of a Llama)."""
        return sum(layer.reductions for layer in self.layers)

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts."""
        return sum(isinstance(layer.feed_forward, MoeFeedForward) for layer in self.layers)
