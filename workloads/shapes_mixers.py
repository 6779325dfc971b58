# SPDX-License-Identifier: Apache-2.0
"""The weight tensors of recurrent mixers: Mamba, Mamba-2 and gated delta networks.

Tensors as in the modeling classes of ``huggingface/transformers`` (``jamba``, ``nemotron_h``,
``falcon_h1``, ``qwen3_5``). Tensor parallelism divides inner channels and heads; of the groups
that share an input and an output projection each rank keeps at least one (vLLM's
``MambaMixer2``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.workloads.shapes_blocks import GatedDelta, Mamba1, Mamba2, Mixer
from railweave.workloads.shapes_tensors import Split, Store, Weight

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["mixer_weights"]


def mixer_weights(mixer: Mixer, hidden: int) -> Iterator[Weight]:
    """Yield the tensors of one recurrent mixer, its norm left out."""
    if isinstance(mixer, Mamba1):
        yield from _mamba1(mixer, hidden)
    elif isinstance(mixer, Mamba2):
        yield from _mamba2(mixer, hidden)
    else:
        yield from _gated_delta(mixer, hidden)


def _mamba1(mixer: Mamba1, hidden: int) -> Iterator[Weight]:
    inner, state, rank = mixer.inner, mixer.state, mixer.dt_rank
    column, linear = Split.OUT, Store.LINEAR
    yield Weight("in", hidden, inner, 2, column, linear)
    yield Weight("conv", mixer.conv, inner, 1, column)
    yield Weight("conv_bias", 1, inner, 1, column)
    yield Weight("x", inner, rank + 2 * state, 1, Split.IN, linear)
    yield Weight("dt", rank, inner, 1, column, linear)
    yield Weight("dt_bias", 1, inner, 1, column)
    yield Weight("A", state, inner, 1, column)
    yield Weight("D", 1, inner, 1, column)
    yield Weight("inner_norms", 1, rank + 2 * state)
    yield Weight("out", inner, hidden, 1, Split.IN, linear)


def _mamba2(mixer: Mamba2, hidden: int) -> Iterator[Weight]:
    inner, heads, groups, state = mixer.inner, mixer.heads, mixer.groups, mixer.state
    column, linear = Split.OUT, Store.LINEAR
    # One matrix in the checkpoint: gate and input, B and C per group, one step size per head.
    yield Weight("in", hidden, 2 * inner + heads, 1, column, linear)
    yield Weight("in_groups", hidden, groups * state, 2, Split.KV, linear, heads=groups, fused=True)
    yield Weight("conv", mixer.conv, inner, 1, column)
    yield Weight("conv_groups", mixer.conv, groups * state, 2, Split.KV, heads=groups)
    yield Weight("conv_bias", 1, inner, 1, column)
    yield Weight("conv_groups_bias", 1, groups * state, 2, Split.KV, heads=groups)
    yield Weight("A_D_dt_bias", 1, heads, 3, column)
    if mixer.gated_norm:
        yield Weight("gated_norm", 1, inner, 1, column)
    yield Weight("out", inner, hidden, 1, Split.IN, linear)


def _gated_delta(mixer: GatedDelta, hidden: int) -> Iterator[Weight]:
    keys, values = mixer.key_heads * mixer.key_dim, mixer.inner
    column, linear, heads = Split.OUT, Store.LINEAR, mixer.key_heads
    yield Weight("in_qk", hidden, keys, 2, Split.KV, linear, heads=heads, fused=True)
    yield Weight("in_v", hidden, values, 1, column, linear)
    yield Weight("in_z", hidden, values, 1, column, linear)
    yield Weight("in_ba", hidden, mixer.value_heads, 2, column, linear)
    yield Weight("conv_qk", mixer.conv, keys, 2, Split.KV, heads=heads)
    yield Weight("conv_v", mixer.conv, values, 1, column)
    yield Weight("A_dt_bias", 1, mixer.value_heads, 2, column)
    yield Weight("norm", 1, mixer.value_dim)
    yield Weight("out", values, hidden, 1, Split.IN, linear)
