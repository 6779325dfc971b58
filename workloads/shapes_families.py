# SPDX-License-Identifier: Apache-2.0
"""How the fields of a Hugging Face config become a shape.

The rules of each family are those of its configuration and modeling classes in
``huggingface/transformers``. A family whose fields differ is one more decorated function in
`shapes_dense`, `shapes_moe` or `shapes_hybrid`; a family that is not there is refused, never
guessed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from railweave.fabric.errors import InputError, nearest_name
from railweave.workloads import shapes_dense, shapes_hybrid, shapes_moe  # noqa: F401 (they register)
from railweave.workloads.shapes_kept import keep_blocks
from railweave.workloads.shapes_model import Dtype, ModelShape, Quantization, parse_dtype
from railweave.workloads.shapes_quantized import is_quantized
from railweave.workloads.shapes_reading import FAMILIES

if TYPE_CHECKING:
    from railweave.workloads.shapes_fields import Fields

__all__ = ["FAMILIES", "shape_from_fields"]

_MAX_LAYERS: Final = 10_000


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
    if not {"hidden_size", "n_embd"} & fields.data.keys() and "text_config" in fields.data:
        inner = fields.optional_object("text_config")
        if inner is not None:
            fields, text_only = inner, True
    model_type = _model_type(fields)
    hidden = fields.integer("hidden_size", "n_embd")
    count = fields.integer("num_hidden_layers", "n_layer", maximum=_MAX_LAYERS)
    body = FAMILIES[model_type](fields, hidden, count)
    place = outer if "quantization_config" in outer.data else fields
    quantization = _quantization(place)
    layers = body.layers
    if quantization is not None and is_quantized(quantization.method):
        layers = keep_blocks(place.object("quantization_config"), layers)
    # Gemma3TextConfig: published files leave out the vocabulary.
    vocabulary = 262208 if model_type == "gemma3_text" else None
    shape = ModelShape(
        name=name,
        model_type=model_type,
        hidden_size=hidden,
        vocab_size=fields.integer("vocab_size", default=vocabulary),
        layers=tuple(layers),
        tied=_tied(fields, outer, default=body.tied_by_default),
        dtype=_dtype(fields, outer),
        quantization=quantization,
        max_positions=fields.optional_integer("max_position_embeddings", "n_positions"),
        text_only=text_only,
        source=source,
        final_norms=body.final_norms,
        head_bias=body.head_bias,
        position_table=body.position_table,
    )
    fields.refuse_unread_structure(model_type)
    return shape


def _model_type(fields: Fields) -> str:
    expected = "one of " + ", ".join(sorted(FAMILIES))
    model_type = fields.optional_text("model_type")
    if model_type is None:
        fields.fail("model_type", "is missing", expected=expected)
    if model_type not in FAMILIES:
        near = nearest_name(model_type, FAMILIES)
        fields.fail(
            "model_type",
            f"'{model_type}' is not an architecture that is understood"
            + (f" (nearest: '{near}')" if near else ""),
            expected=expected,
        )
    return model_type


def _tied(fields: Fields, outer: Fields, *, default: bool) -> bool:
    """Read whether the head is the input table; a wrapper's file may say so outside."""
    place = fields if "tie_word_embeddings" in fields.data else outer
    return place.flag("tie_word_embeddings", default=default)


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
    if method in ("awq", "gptq"):
        bits = inner.integer("bits", "w_bit")
        return Quantization(
            "int4" if bits == 4 else f"{method} of {bits} bits",
            group=inner.optional_integer("group_size", "q_group_size"),
        )
    if method == "modelopt":
        algorithm = inner.optional_text("quant_algo")
        names = {"FP8": "fp8-tensor", "NVFP4": "nvfp4"}
        return Quantization(
            names.get(algorithm or "", f"modelopt {algorithm}"), kv_dtype=_cache_dtype(inner)
        )
    block = inner.optional_list("weight_block_size", int)
    if block is None:
        return Quantization(method)
    if len(block) != 2 or min(block) < 1:
        inner.fail("weight_block_size", f"{block} is not a block", expected="two whole numbers")
    return Quantization(method, (block[0], block[1]))


def _cache_dtype(inner: Fields) -> Dtype | None:
    """Read the format of the cache that ModelOpt calibrated; it writes it in two ways."""
    text = inner.optional_text("kv_cache_quant_algo")
    scheme = inner.optional_object("kv_cache_scheme")
    if text is None and scheme is not None:
        bits = scheme.integer("num_bits")
        kind = scheme.optional_text("type") or "float"
        text = f"{kind.upper().replace('FLOAT', 'FP')}{bits}"
    if text is None:
        return None
    if text != "FP8":
        inner.fail("kv_cache_quant_algo", f"'{text}' is not understood", expected="FP8")
    return "fp8"
