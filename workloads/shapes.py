# SPDX-License-Identifier: Apache-2.0
"""Model shapes: read a Hugging Face ``config.json``, count parameters, weights and cache bytes."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from railweave.fabric.errors import InputError, nearest_name
from railweave.workloads.shapes_families import shape_from_fields
from railweave.workloads.shapes_fields import Fields, read_config
from railweave.workloads.shapes_model import (
    DTYPE_BYTES,
    Attention,
    DenseFeedForward,
    FeedForward,
    GatedDelta,
    GroupedAttention,
    LatentAttention,
    LayerShape,
    Mamba1,
    Mamba2,
    Mixer,
    ModelShape,
    MoeFeedForward,
    Quantization,
    dtype_bytes,
    parse_dtype,
)
from railweave.workloads.shapes_quantized import is_quantized, storage_format, stored_bytes
from railweave.workloads.shapes_weights import (
    Weight,
    embedding_weights,
    head_weights,
    layer_weights,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "Attention",
    "DenseFeedForward",
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
    "active_parameters",
    "dtype_bytes",
    "kv_bytes",
    "kv_bytes_below_window",
    "kv_bytes_per_token",
    "kv_constant_bytes",
    "kv_element_bytes",
    "layer_kv_bytes",
    "load_shape",
    "parameters",
    "parse_dtype",
    "plain_bytes",
    "shipped_models",
    "state_bytes",
    "weight_bytes",
]


def shipped_models() -> tuple[str, ...]:
    """Return the names of the shipped models, sorted."""
    folder = resources.files("railweave.workloads.models")
    names = (entry.name for entry in folder.iterdir())
    return tuple(sorted(name[: -len(".json")] for name in names if name.endswith(".json")))


def load_shape(model: str | Path) -> ModelShape:
    """Read the shape of a model.

    Parameters
    ----------
    model
        A ``config.json``, a folder that holds one, or the name of a shipped model in any case.

    Raises
    ------
    InputError
        No such model (the nearest name is given), or its file is not understood: the error names
        the file, the line and the field.

    Examples
    --------
    >>> load_shape("Llama-3.1-70B").n_layers
    80
    """
    text, path = str(model), Path(model)
    known = shipped_models()
    if isinstance(model, str) and text.lower() in known:
        return _shipped(text.lower())
    try:
        folder, exists = path.is_dir(), path.exists()
    except (OSError, ValueError):  # a name too long for the file system, or with a null in it
        folder = exists = False
    if folder:
        return _read(path / "config.json", name=path.resolve().name)
    if exists:
        stem = path.resolve().parent.name if path.name == "config.json" else path.stem
        return _read(path, name=stem)
    near = nearest_name(text.lower(), known)
    shown = text if len(text) <= 80 else text[:77] + "..."
    raise InputError(
        f"no model '{shown}'",
        field="model",
        expected=f"a config.json, its folder, or one of the {len(known)} that `railweave models` "
        "lists",
        nearest=near,
    )


def _shipped(name: str) -> ModelShape:
    resource = resources.files("railweave.workloads.models").joinpath(f"{name}.json")
    with resources.as_file(resource) as path:
        data, text = read_config(path)
        fields = Fields(data, file=str(path), text=text)
        source = fields.optional_text("source") or ""
        return shape_from_fields(fields, name=name, source=source)


def _read(path: Path, *, name: str) -> ModelShape:
    data, text = read_config(path)
    fields = Fields(data, file=str(path), text=text)
    return shape_from_fields(fields, name=name, source=str(path))


def _all_weights(shape: ModelShape) -> Iterator[Weight]:
    yield from embedding_weights(shape)
    for layer in shape.layers:
        yield from layer_weights(layer, shape.hidden_size)
    yield from head_weights(shape)


def _total(weights: Iterable[Weight]) -> int:
    return sum(weight.parameters for weight in weights)


def parameters(shape: ModelShape) -> int:
    """Return the number of parameters: every weight, bias and correction bias once.

    Examples
    --------
    >>> parameters(load_shape("llama-3.1-8b"))
    8030261248
    """
    return _total(_all_weights(shape))


def active_parameters(shape: ModelShape, *, embedding: bool = True) -> int:
    """Return the parameters that one token meets: ``top_k`` of each layer's routed experts.

    Parameters
    ----------
    shape
        The model.
    embedding
        Whether an input table of its own, and learned positions, count. Model cards do both; a
        step computes without them.
    """
    total = parameters(shape)
    for layer in shape.layers:
        block = layer.feed_forward
        if isinstance(block, MoeFeedForward):
            weights = layer_weights(layer, shape.hidden_size)
            routed = _total(w for w in weights if w.name.startswith("experts"))
            total -= routed // block.experts * (block.experts - block.top_k)
    if not embedding:
        total -= shape.position_table * shape.hidden_size
        if not shape.tied:
            total -= shape.vocab_size * shape.hidden_size
    return total


def weight_bytes(shape: ModelShape, *, dtype: str | None = None) -> int:
    """Return the bytes of all weights.

    Parameters
    ----------
    shape
        The model.
    dtype
        Store them so, instead of as the checkpoint does: ``bf16``, ``fp16``, ``fp32``, or one of
        the quantised formats of `railweave.workloads.shapes_quantized`.

    Raises
    ------
    InputError
        The format is unknown, or the checkpoint's own is not understood.

    Examples
    --------
    >>> weight_bytes(load_shape("llama-3.1-70b"))
    141107412992
    """
    fmt = storage_format(shape, dtype)
    return stored_bytes(_all_weights(shape), fmt=fmt, plain=plain_bytes(shape, fmt))


def plain_bytes(shape: ModelShape, fmt: str) -> int:
    """Return the bytes per element of what a storage format leaves unquantised."""
    if is_quantized(fmt):
        return max(DTYPE_BYTES[shape.dtype], 2)
    return DTYPE_BYTES[fmt]


def kv_element_bytes(shape: ModelShape, kv_dtype: str | None = None) -> int:
    """Return the bytes of one cache element.

    Of ``kv_dtype``; else of the format that a quantised checkpoint is calibrated for; else of the
    activations.
    """
    if kv_dtype is not None:
        return dtype_bytes(kv_dtype, field="kv_dtype")
    quantized = shape.quantization
    calibrated = None if quantized is None else quantized.kv_dtype
    return DTYPE_BYTES[calibrated or shape.dtype]


def layer_kv_bytes(layer: LayerShape, tokens: int, *, element_bytes: int, block: int = 1) -> int:
    """Return the cache bytes of one layer for a sequence, over all heads and without replication.

    Parameters
    ----------
    layer
        The layer.
    tokens
        Tokens of the sequence; a sliding window keeps no more than its width, chunked attention
        the chunk of the last token, a recurrent mixer its state if there was any token.
    element_bytes
        Bytes of one cache element.
    block
        Tokens of a cache block, to whose multiple the kept tokens are rounded up.
    """
    total = layer.mixer.state_bytes() if layer.mixer is not None and tokens else 0
    attention = layer.attention
    if attention is not None:
        kept = -(-attention.kept_tokens(tokens) // block) * block
        total += kept * (attention.kv_elements * element_bytes + attention.kv_extra_bytes)
    return total


def kv_bytes(shape: ModelShape, tokens: int, *, kv_dtype: str | None = None, block: int = 1) -> int:
    """Return the cache bytes of one sequence over all layers, every head once.

    Parameters
    ----------
    shape
        The model.
    tokens
        Tokens of the sequence.
    kv_dtype
        Number format of the cache; default as `kv_element_bytes`.
    block
        Tokens of a cache block; 1 counts exact tokens.

    Examples
    --------
    >>> kv_bytes(load_shape("llama-3.1-70b"), 2150)
    704512000
    """
    size = kv_element_bytes(shape, kv_dtype)
    return sum(
        layer_kv_bytes(layer, tokens, element_bytes=size, block=block) for layer in shape.layers
    )


def _token_bytes(attention: Attention, element_bytes: int) -> int:
    return attention.kv_elements * element_bytes + attention.kv_extra_bytes


def kv_bytes_per_token(shape: ModelShape, *, kv_dtype: str | None = None) -> int:
    """Return the bytes by which a long sequence's cache grows per token.

    Layers with a window stop growing once it is full: they are in `kv_constant_bytes`. Before
    that a token costs `kv_bytes_below_window`.

    Examples
    --------
    >>> kv_bytes_per_token(load_shape("gpt-oss-20b"))
    24576
    """
    size = kv_element_bytes(shape, kv_dtype)
    return sum(
        _token_bytes(layer.attention, size)
        for layer in shape.layers
        if layer.attention is not None and layer.attention.window is None
    )


def kv_constant_bytes(shape: ModelShape, *, kv_dtype: str | None = None) -> int:
    """Return the bytes of one sequence that do not grow: full windows and recurrent states.

    A window counts with its width; of chunked attention that is the most it ever holds.
    """
    size = kv_element_bytes(shape, kv_dtype)
    return state_bytes(shape) + sum(
        _token_bytes(layer.attention, size) * layer.attention.window
        for layer in shape.layers
        if layer.attention is not None and layer.attention.window is not None
    )


def state_bytes(shape: ModelShape) -> int:
    """Return the bytes of one sequence's recurrent states, whatever its length.

    Examples
    --------
    >>> state_bytes(load_shape("qwen3.5-27b"))
    153944064
    """
    return sum(layer.mixer.state_bytes() for layer in shape.layers if layer.mixer is not None)


def kv_bytes_below_window(shape: ModelShape, *, kv_dtype: str | None = None) -> int:
    """Return the bytes of one token while every window still fills, states left out."""
    size = kv_element_bytes(shape, kv_dtype)
    return sum(
        _token_bytes(layer.attention, size) for layer in shape.layers if layer.attention is not None
    )
