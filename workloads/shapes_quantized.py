# SPDX-License-Identifier: Apache-2.0
"""How many bytes weights take: number formats and the storage rules of quantised checkpoints.

Formats, besides a dtype for everything:

``fp8``
    One byte per element of every layer matrix but the router, plus one fp32 scale per block of
    128 x 128 (DeepSeek-V3, arXiv 2412.19437; Qwen3 FP8, MiniMax-M2).
``fp8-tensor``
    The same, with one fp32 scale of the weights and one of the inputs per matrix (NVIDIA
    ModelOpt ``FP8``, compressed-tensors with a ``tensor`` strategy).
``mxfp4``
    Half a byte per element of the routed experts' matrices plus one scale byte per 32 inputs
    (OCP Microscaling Formats 1.0; gpt-oss).
``nvfp4``
    Half a byte per element of every layer matrix but the router, one fp8 scale per 16 inputs, and
    two fp32 scales per matrix (NVIDIA ModelOpt ``NVFP4``).
``int4``
    Half a byte per element of every layer matrix but the router; per group of inputs and output
    an fp16 scale and a zero point of half a byte (AWQ, arXiv 2306.00978; GPTQ, arXiv 2210.17323).

What is not converted keeps the model's own format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from railweave.fabric.errors import InputError, nearest_name
from railweave.workloads.shapes_blocks import MoeFeedForward
from railweave.workloads.shapes_model import DTYPE_BYTES, parse_dtype
from railweave.workloads.shapes_tensors import Store

if TYPE_CHECKING:
    from collections.abc import Iterable

    from railweave.workloads.shapes_model import ModelShape
    from railweave.workloads.shapes_tensors import Weight

__all__ = ["FORMATS", "QUANTIZED", "is_quantized", "storage_format", "stored_bytes"]

QUANTIZED: Final = ("fp8", "fp8-tensor", "mxfp4", "nvfp4", "int4")
FORMATS: Final = (*(name for name in DTYPE_BYTES if name != "fp8"), *QUANTIZED)
_FP8_BLOCK: Final = (128, 128)
_GROUPS: Final = {"mxfp4": 32, "nvfp4": 16, "int4": 128}


def is_quantized(fmt: str) -> bool:
    """Say whether a storage format converts some tensors only."""
    return fmt in QUANTIZED


def storage_format(shape: ModelShape, dtype: str | None) -> str:
    """Return how weights are stored: a dtype of `DTYPE_BYTES` or one of `QUANTIZED`.

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
        if dtype.lower() in QUANTIZED:
            fmt = dtype.lower()
        else:
            try:
                return parse_dtype(dtype)
            except InputError as error:
                near = error.nearest or nearest_name(dtype.lower(), FORMATS)
                expected = "one of " + ", ".join(FORMATS)
                raise InputError(
                    error.message, field="dtype", expected=expected, nearest=near
                ) from error
        if fmt == "mxfp4" and not experts:
            raise InputError(
                f"mxfp4 stores experts only and {shape.name} has none",
                field="dtype",
                expected="one of " + ", ".join(name for name in FORMATS if name != fmt),
            )
        return fmt
    quantized = shape.quantization
    if quantized is None:
        return shape.dtype
    method, block, group = quantized.method, quantized.block, quantized.group
    understood = (
        (method == "mxfp4" and experts)
        or (method == "fp8" and block == _FP8_BLOCK)
        or method == "fp8-tensor"
        or (method in ("int4", "nvfp4") and group in (None, _GROUPS[method]))
    )
    if understood:
        return method
    detail = "" if block is None else f" with blocks of {block}"
    detail += "" if group is None else f" with groups of {group}"
    raise InputError(
        f"{shape.name} is quantised by '{method}'{detail}, which is not understood",
        field="quantization_config",
        expected="fp8 in 128x128 blocks or per tensor, mxfp4 experts, nvfp4 in groups of 16, int4 "
        "in groups of 128; or override the dtype of the weights",
    )


def stored_bytes(weights: Iterable[Weight], *, fmt: str, plain: int, tp: int = 1) -> int:
    """Return the bytes of tensors on one of ``tp`` ranks.

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
        if weight.store is Store.FLOAT32:
            size = 4 * rows * columns
        elif fmt in QUANTIZED and _converts(fmt, weight.store):
            size = _converted(fmt, rows, columns, fused=weight.fused)
        else:
            size = plain * rows * columns
        total += size * weight.count
    return total


def _converts(fmt: str, store: Store) -> bool:
    return store is Store.EXPERT or (store is Store.LINEAR and fmt != "mxfp4")


def _converted(fmt: str, rows: int, columns: int, *, fused: bool) -> int:
    """Return the bytes of one converted matrix of ``rows`` inputs and ``columns`` outputs."""
    per_matrix = 0 if fused else 8
    if fmt == "fp8":
        return rows * columns + 4 * -(-rows // _FP8_BLOCK[0]) * -(-columns // _FP8_BLOCK[1])
    if fmt == "fp8-tensor":
        return rows * columns + per_matrix
    groups = -(-rows // _GROUPS[fmt])
    packed = columns * -(-rows // 2)
    if fmt == "mxfp4":
        return packed + columns * groups
    if fmt == "nvfp4":
        return packed + columns * groups + per_matrix
    return packed + groups * (2 * columns + -(-columns // 2))
