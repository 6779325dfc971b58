# SPDX-License-Identifier: Apache-2.0
"""Which blocks a quantised checkpoint leaves in the model's own number format.

Checkpoints list modules by name: ``modules_to_not_convert`` (transformers), ``ignore``
(compressed-tensors, ModelOpt), ``exclude_modules``. Tables, heads, norms, routers, convolutions
and biases are never converted here, so naming them changes nothing; a whole attention, mixer or
feed-forward block of a layer is kept, or single matrices of attention. Anything else is refused.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from railweave.workloads.shapes_fields import Fields
    from railweave.workloads.shapes_model import Block, LayerShape

__all__ = ["keep_blocks"]

_LISTS: Final = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")
_LAYER: Final = re.compile(r"(?:^|\.)layers\.(\d+|\*)\.(.+)$")
# Never converted anyhow, or of a part that is not counted.
_PLAIN: Final = re.compile(
    r"(head|embed|norm|gate|router|conv1d|e_score|bias|vision|visual|multi_modal|projector|mtp)"
    r"\w*\*?$|^(model\.)?(vision|visual|mtp)|shared_expert_gate"
)
_TENSORS: Final = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o"}
_MATRICES: Final[dict[Block, frozenset[str]]] = {
    "attention": frozenset({"q_proj", "k_proj", "v_proj", "o_proj"}),
    "mixer": frozenset({"in_proj", "out_proj"}),
    "feed_forward": frozenset({"up_proj", "down_proj"}),
}


def keep_blocks(config: Fields, layers: list[LayerShape]) -> list[LayerShape]:
    """Return the layers with the blocks marked that the checkpoint does not convert.

    Parameters
    ----------
    config
        The file's ``quantization_config``.
    layers
        The layers as read.

    Raises
    ------
    InputError
        A listed module is not understood.
    """
    kept: dict[int, set[str]] = defaultdict(set)
    for name in _LISTS:
        matrices: dict[tuple[int, Block], set[str]] = defaultdict(set)
        for entry in config.optional_list(name, str) or ():
            for index, block, matrix in _meant(config, name, entry, layers):
                if matrix is None:
                    kept[index].add(block)
                else:
                    matrices[index, block].add(matrix)
        for (index, block), found in matrices.items():
            if found == _MATRICES[block]:
                kept[index].add(block)
            elif block == "attention" and ("k_proj" in found) == ("v_proj" in found):
                kept[index].update(f"{block}.{_TENSORS[matrix]}" for matrix in found)
            else:
                config.fail(
                    name,
                    f"keeps only {', '.join(sorted(found))} of layer {index}",
                    expected="whole blocks, or of attention single matrices, k_proj with v_proj",
                )
    return [
        replace(layer, plain=tuple(sorted(kept[index]))) if index in kept else layer
        for index, layer in enumerate(layers)
    ]


def _meant(
    config: Fields, name: str, entry: str, layers: list[LayerShape]
) -> list[tuple[int, Block, str | None]]:
    """Return the (layer, block, matrix) triples of an entry; matrix None is the whole block."""
    if _PLAIN.search(entry):
        return []
    match = _LAYER.search(entry.removesuffix("*").removesuffix("."))
    if match is None:
        config.fail(name, f"'{entry}' is not understood", expected="modules of layers")
    index, tail = match[1], match[2].split(".")
    which = range(len(layers)) if index == "*" else [int(index)]
    if which[0] >= len(layers):  # next-token prediction modules follow the layers: not counted
        return []
    found: list[tuple[int, Block, str | None]] = []
    for layer in which:
        block = _block(tail[0], layers[layer])
        matrix = tail[1] if len(tail) == 2 else None
        if block is None or len(tail) > 2 or (matrix and matrix not in _MATRICES[block]):
            config.fail(name, f"'{entry}' is not understood", expected="whole blocks of layers")
        found.append((layer, block, matrix))
    return found


def _block(module: str, layer: LayerShape) -> Block | None:
    named: dict[str, Block] = {
        "self_attn": "attention",
        "attention": "attention",
        "linear_attn": "mixer",
        "mamba": "mixer",
        "mlp": "feed_forward",
        "feed_forward": "feed_forward",
    }
    if module == "mixer":  # Nemotron-H calls every kind of block so
        if layer.attention is not None:
            return "attention"
        return "mixer" if layer.mixer is not None else "feed_forward"
    return named.get(module)
