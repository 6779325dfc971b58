# SPDX-License-Identifier: Apache-2.0
"""What context parallelism exchanges so that every token attends to the whole sequence.

``ring``: keys and values go round (Liu, Zaharia and Abbeel, "Ring Attention", arXiv 2310.01889;
Megatron-LM's ``p2p``), each rank sending its part ``c - 1`` times, under cover of attention;
backward they go round again with their gradients. ``all_gather``: every rank gathers all keys and
values first (Llama 3, arXiv 2407.21783, section 3.3.2; SGLang's prefill). ``ulysses``: an
all_to_all trades a part of the sequence for a part of the heads, of Q, K and V before attention
and of the output after it (DeepSpeed-Ulysses, arXiv 2309.14509; Megatron-LM's ``a2a``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from railweave.fabric.errors import InputError, nearest_name
from railweave.workloads.ops import TrafficOp, collective
from railweave.workloads.shapes_model import GroupedAttention

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from railweave.workloads.parallelism import ParallelismPlan
    from railweave.workloads.shapes_model import Attention, LayerShape

__all__ = ["CONTEXT_KINDS", "context_ops", "kv_elements_per_rank"]

CONTEXT_KINDS: Final = ("ring", "all_gather", "ulysses")


def kv_elements_per_rank(attention: Attention, tp: int) -> int:
    """Return the key and value elements of a token on one of ``tp`` ranks.

    Heads are divided as far as there are heads; a latent is the same on every rank.
    """
    if isinstance(attention, GroupedAttention):
        return attention.kv_elements // attention.kv_heads * -(-attention.kv_heads // tp)
    return attention.kv_elements


def context_ops(
    layers: Sequence[LayerShape],
    plan: ParallelismPlan,
    kind: str,
    *,
    tokens: int,
    element: int,
    stage: int = 0,
    member: int | None = None,
    phase: str = "forward",
    times: int = 1,
) -> Iterator[TrafficOp]:
    """Yield what the attention blocks of one stage exchange over the context-parallel ranks.

    Parameters
    ----------
    layers
        The layers of the stage.
    plan
        How the model is divided.
    kind
        One of `CONTEXT_KINDS`.
    tokens
        Tokens of the sequences, all of them.
    element
        Bytes of an element.
    stage, member, phase
        As in `TrafficOp`.
    times
        Micro-batches.

    Raises
    ------
    InputError
        The kind is unknown, the heads of a rank cannot be divided, or a layer is recurrent.
    """
    if kind not in CONTEXT_KINDS:
        raise InputError(
            f"'{kind}' is no way to divide sequences",
            field="context",
            expected=" | ".join(CONTEXT_KINDS),
            nearest=nearest_name(kind, CONTEXT_KINDS),
        )
    cp = plan.cp
    if cp == 1:
        return
    local, backward = -(-tokens // cp), phase == "backward"
    if any(layer.mixer is not None for layer in layers):
        raise InputError("recurrent layers take sequences whole", field="cp", expected="1")
    blocks = [layer.attention for layer in layers if layer.attention is not None]
    for attention in dict.fromkeys(blocks):
        count = blocks.count(attention) * times
        kv = kv_elements_per_rank(attention, plan.tp)
        columns: dict[str, object] = {"stage": stage, "member": member, "phase": phase}
        if kind == "ring":
            # An all_gather's bytes: each part passes every rank. Backward with its gradient.
            yield from collective(
                "all_gather", "cp", cp, cp * local * kv * element, count=count * (1 + backward),
                what="keys and values, round" + " with gradients" * backward, **columns,
            )  # fmt: skip
        elif kind == "all_gather":
            op = "reduce_scatter" if backward else "all_gather"
            yield from collective(
                op, "cp", cp, cp * local * kv * element, count=count,
                what="gradients of keys and values" if backward else "keys and values", **columns,
            )  # fmt: skip
        else:
            yield from _ulysses(attention, plan, local * element, count, columns)


def _ulysses(
    attention: Attention,
    plan: ParallelismPlan,
    column_bytes: int,
    count: int,
    columns: dict[str, object],
) -> Iterator[TrafficOp]:
    """Yield the all_to_alls of queries, keys and values, and of the output."""
    if attention.heads // plan.tp % plan.cp:
        raise InputError(
            f"{plan.cp} does not divide the {attention.heads // plan.tp} heads of a rank",
            field="cp",
            expected="a divisor of heads / tp, or another way to divide sequences",
        )
    if isinstance(attention, GroupedAttention):
        width, value = attention.head_dim, attention.value_dim
        # Fewer heads than ranks are copied first, so that each rank gets one.
        kv = max(attention.kv_heads // plan.tp, 1)
        kv = max(kv, plan.cp) * (width + value)
        heads = attention.heads // plan.tp
        query, output = heads * width, heads * value
    else:
        heads = attention.heads // plan.tp
        query = heads * (attention.nope_dim + attention.rope_dim)
        output, kv = heads * attention.v_dim, query + heads * attention.v_dim
    for elements, what in (
        (query, "queries"), (kv, "keys and values"), (output, "attention outputs"),
    ):  # fmt: skip
        yield from collective(
            "all_to_all", "cp", plan.cp, elements * column_bytes, count=count, what=what, **columns
        )
