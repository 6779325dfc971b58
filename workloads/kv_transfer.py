# SPDX-License-Identifier: Apache-2.0
"""Which prefill rank sends which bytes of the key/value cache to which decode rank.

The mapping is the one of vLLM's NIXL connector (``tp_mapping.py``) and of SGLang's
disaggregation (``disaggregation/common/conn.py``), with tensor-parallel degrees Tp and Td:

- equal degrees: rank i sends its heads to rank i;
- Td > Tp: decode rank j takes its heads from prefill rank ``floor(j Tp / Td)``;
- Td < Tp: decode rank j takes from the ``Tp / Td`` consecutive prefill ranks from ``j Tp / Td``;
- more ranks than key/value heads replicate heads: a decode rank still pulls its own copy (the
  wire carries ``Td / Hk`` times the unique bytes), but of prefill ranks that hold the same head
  only one is read;
- a latent cache (MLA) is whole on every rank: decode rank j pulls all of it from one prefill
  rank, ``floor(j Tp / Td)``;
- recurrent states (Mamba, gated delta) are divided by their heads, as heads are where each rank
  has several: no rank's part is the same as another's, so nothing is left out;
- pipeline stages: each prefill stage sends the layers that it has to the decode stage that will
  have them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from railweave.fabric.errors import InputError
from railweave.workloads.limits import MOST_TOKENS, check_range
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.shapes import kv_bytes, kv_element_bytes, layer_kv_bytes
from railweave.workloads.shapes_model import GroupedAttention

if TYPE_CHECKING:
    from railweave.workloads.shapes_model import Attention, ModelShape

__all__ = ["KvFlow", "KvTransfer", "held_heads", "kv_matrix", "source_heads"]


class KvFlow(NamedTuple):
    """Bytes from a prefill rank to a decode rank (each numbered within its own replica)."""

    src_rank: int
    dst_rank: int
    size_bytes: int


@dataclass(frozen=True)
class KvTransfer:
    """One sequence's cache on its way from a prefill to a decode replica.

    Parameters
    ----------
    unique_bytes
        Bytes of the cache with every head once.
    wire_bytes
        Bytes of all transfers together; more than unique when heads or latents are replicated.
    transfers
        One `KvFlow` for each pair of ranks that has bytes to move, in order of rank.
    messages
        For each of `transfers`, the messages (descriptors) that it is made of: one for the keys
        and one for the values of each block in each layer, one for both of a latent cache, one
        for the state of a recurrent layer.
    """

    unique_bytes: int
    wire_bytes: int
    transfers: tuple[KvFlow, ...]
    messages: tuple[int, ...]


def held_heads(rank: int, *, tp: int, kv_heads: int) -> range:
    """Return the key/value heads that a tensor-parallel rank holds.

    Examples
    --------
    >>> held_heads(1, tp=4, kv_heads=8), held_heads(5, tp=16, kv_heads=8)
    (range(2, 4), range(2, 3))
    """
    if tp >= kv_heads:
        head = rank * kv_heads // tp
        return range(head, head + 1)
    share = kv_heads // tp
    return range(rank * share, (rank + 1) * share)


def source_heads(
    decode_rank: int, *, prefill_tp: int, decode_tp: int, kv_heads: int
) -> dict[int, int]:
    """Return how many heads a decode rank takes from each prefill rank.

    Parameters
    ----------
    decode_rank
        The decode rank, 0 to ``decode_tp - 1``.
    prefill_tp, decode_tp
        Tensor-parallel degrees, one a multiple of the other.
    kv_heads
        Key/value heads of the layer.

    Examples
    --------
    >>> source_heads(0, prefill_tp=16, decode_tp=4, kv_heads=8)
    {0: 1, 2: 1}
    """
    wanted = set(held_heads(decode_rank, tp=decode_tp, kv_heads=kv_heads))
    first = decode_rank * prefill_tp // decode_tp
    taken: dict[int, int] = {}
    for rank in range(first, first + max(prefill_tp // decode_tp, 1)):
        here = wanted.intersection(held_heads(rank, tp=prefill_tp, kv_heads=kv_heads))
        if here:
            taken[rank] = len(here)
            wanted -= here
    return taken


def kv_matrix(
    shape: ModelShape,
    prefill_tp: int,
    decode_tp: int,
    tokens: int,
    *,
    block: int = 1,
    prefill_pp: int = 1,
    decode_pp: int = 1,
    kv_dtype: str | None = None,
) -> KvTransfer:
    """Return what moves when one sequence goes from prefill to decode.

    Parameters
    ----------
    shape
        The model.
    prefill_tp, decode_tp
        Tensor-parallel degrees of the two replicas, one a multiple of the other.
    tokens
        Tokens whose cache moves.
    block
        Tokens of a cache block; kept tokens are rounded up to it. 1 moves exact tokens.
    prefill_pp, decode_pp
        Pipeline stages of each replica; its ranks are ``stage * tp + tp_rank``.
    kv_dtype
        Number format of the cache; default that of the activations.

    Raises
    ------
    InputError
        A degree does not fit the model or the other degree, or a count is out of range.

    Examples
    --------
    >>> from railweave.workloads.shapes import load_shape
    >>> moved = kv_matrix(load_shape("llama-3.1-70b"), 8, 8, 2150)
    >>> moved.unique_bytes, moved.transfers[0]
    (704512000, KvFlow(src_rank=0, dst_rank=0, size_bytes=88064000))
    >>> kv_matrix(load_shape("llama-3.1-70b"), 8, 8, 2150, block=16).messages[0]
    21600
    """
    prefill, decode = ParallelismPlan(prefill_tp, prefill_pp), ParallelismPlan(decode_tp, decode_pp)
    for plan in (prefill, decode):
        plan.check(shape)
    if max(prefill_tp, decode_tp) % min(prefill_tp, decode_tp):
        raise InputError(
            f"prefill tp {prefill_tp} and decode tp {decode_tp} do not divide each other",
            field="decode_tp",
            expected=f"a divisor or a multiple of {prefill_tp}",
        )
    check_range(tokens, "tokens", MOST_TOKENS, what="tokens")
    check_range(block, "block", MOST_TOKENS, least=1, what="tokens")
    element = kv_element_bytes(shape, kv_dtype)
    sent: Counter[tuple[int, int]] = Counter()
    posted: Counter[tuple[int, int]] = Counter()
    both = [plan.stage_layers(shape.n_layers) for plan in (prefill, decode)]
    for stage, of_prefill in enumerate(both[0]):
        for to_stage, of_decode in enumerate(both[1]):
            layers = [index for index in of_prefill if index in of_decode]
            alike: Counter[Attention] = Counter()
            parts: Counter[Attention] = Counter()
            states = mixers = 0
            for index in layers:
                layer = shape.layers[index]
                if layer.mixer is not None and tokens:
                    states += layer.mixer.state_bytes()
                    mixers += 1
                if layer.attention is not None:
                    parts[layer.attention] += _messages(layer.attention, tokens, block)
                    alike[layer.attention] += layer_kv_bytes(
                        replace(layer, mixer=None), tokens, element_bytes=element, block=block
                    )

            def ends(i: int, j: int, a: int = stage, b: int = to_stage) -> tuple[int, int]:
                return prefill.rank(stage=a, tp_rank=i), decode.rank(stage=b, tp_rank=j)

            for i, j, part in _state_parts(states, prefill_tp, decode_tp):
                sent[ends(i, j)] += part
                posted[ends(i, j)] += mixers
            for attention, size in alike.items():
                for j in range(decode_tp):
                    for i, part in _sources(attention, j, prefill_tp, decode_tp, size):
                        sent[ends(i, j)] += part
                        posted[ends(i, j)] += parts[attention]
    flows = tuple(KvFlow(i, j, size) for (i, j), size in sorted(sent.items()) if size)
    return KvTransfer(
        unique_bytes=kv_bytes(shape, tokens, kv_dtype=kv_dtype, block=block),
        wire_bytes=sum(flow.size_bytes for flow in flows),
        transfers=flows,
        messages=tuple(posted[flow.src_rank, flow.dst_rank] for flow in flows),
    )


def _messages(attention: Attention, tokens: int, block: int) -> int:
    """Return the messages of one layer between two ranks: of whole blocks, keys and values."""
    return -(-attention.kept_tokens(tokens) // block) * (
        1 + isinstance(attention, GroupedAttention)
    )


def _state_parts(size_bytes: int, prefill_tp: int, decode_tp: int) -> list[tuple[int, int, int]]:
    """Return (prefill rank, decode rank, bytes) of recurrent states, divided by their heads.

    The finer of the two divisions makes the parts; what does not divide goes to the first.
    """
    parts = max(prefill_tp, decode_tp)
    even, rest = divmod(size_bytes, parts)
    return [
        (part * prefill_tp // parts, part * decode_tp // parts, even + (part < rest))
        for part in range(parts)
        if size_bytes
    ]


def _sources(
    attention: Attention, decode_rank: int, prefill_tp: int, decode_tp: int, size_bytes: int
) -> list[tuple[int, int]]:
    """Return (prefill rank, bytes) for the layers of one attention kind, ``size_bytes`` unique."""
    if not isinstance(attention, GroupedAttention):
        return [(decode_rank * prefill_tp // decode_tp, size_bytes)]
    per_head = size_bytes // attention.kv_heads
    heads = source_heads(
        decode_rank, prefill_tp=prefill_tp, decode_tp=decode_tp, kv_heads=attention.kv_heads
    )
    return [(rank, count * per_head) for rank, count in heads.items()]
