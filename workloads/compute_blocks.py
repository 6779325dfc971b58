# SPDX-License-Identifier: Apache-2.0
"""What one rank computes and reads for one block of a layer: attention, mixer, feed-forward.

Arithmetic is two operations per weight that a token meets; in attention two per query head,
attended position and element of its key and of its value; in a recurrent layer six per token and
element of the state (decay, outer product, read-out; Mamba-2, arXiv 2405.21060, section 6).
Activations between fused kernels are left out: they are small beside the weights in decode and
beside the arithmetic in prefill. Of experts only those are read that a token of the step visits,
under uniform routing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from railweave.workloads.shapes_blocks import LatentAttention, MoeFeedForward
from railweave.workloads.shapes_tensors import Split, Weight
from railweave.workloads.shapes_weights import (
    attention_weights,
    feed_forward_weights,
    kept_plain,
    mixer_weights,
    norm_shares,
    stored_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from railweave.workloads.shapes_model import Attention, Block, LayerShape, ModelShape
    from railweave.workloads.step_load import StepLoad

__all__ = ["BlockWork", "RankBlocks", "experts_visited", "head_work"]

_SCAN: Final = 6


@dataclass(frozen=True)
class BlockWork:
    """What a block does in one step on one rank.

    Parameters
    ----------
    flops
        Floating-point operations.
    moved_bytes
        Bytes read from and written to the GPU's memory.
    narrow
        Whether the arithmetic runs in the format of quantised weights.
    """

    flops: int
    moved_bytes: int
    narrow: bool = True

    def __add__(self, other: BlockWork) -> BlockWork:
        return BlockWork(
            self.flops + other.flops,
            self.moved_bytes + other.moved_bytes,
            narrow=self.narrow and other.narrow,
        )


def experts_visited(tokens: int, experts: int, top_k: int) -> int:
    """Return the expected number of distinct experts that ``tokens`` visit, rounded up.

    ``E (1 - (1 - k/E)^T)``, each token drawing k of E distinct experts uniformly.

    Examples
    --------
    >>> experts_visited(1, 128, 8), experts_visited(10_000, 128, 8)
    (8, 128)
    """
    # Repeated squaring in whole numbers of 2**-60: the same on every machine, unlike pow().
    one = 1 << 60
    missed, base, power = one, (experts - top_k) * one // experts, tokens
    while power:
        if power & 1:
            missed = missed * base >> 60
        base = base * base >> 60
        power >>= 1
    return min(-(-experts * (one - missed) // one), experts, tokens * top_k)


@dataclass(frozen=True)
class _Part:
    """What a block does whatever the load: its weights on this rank.

    ``matrices`` elements meet every token and ``moved_bytes`` are read in every step; a routed
    expert has ``expert`` elements, the rank's experts together ``expert_bytes``.
    """

    matrices: int
    moved_bytes: int
    expert: int = 0
    expert_bytes: int = 0


class RankBlocks:
    """The blocks of one layer on one rank.

    Parameters
    ----------
    layer
        The layer.
    hidden
        Width of the residual stream.
    tp
        Ranks that share the layer.
    ep, expert_tp, members
        Ranks that the experts are divided over, ranks that then share each expert, and replicas
        whose tokens meet there; 1, ``tp`` and 1 without expert parallelism.
    fmt, plain
        Storage of the weights, bytes per element of what is not converted.
    kv_element
        Bytes of a cache element.
    """

    def __init__(
        self,
        layer: LayerShape,
        *,
        hidden: int,
        tp: int,
        ep: int = 1,
        expert_tp: int | None = None,
        members: int = 1,
        fmt: str,
        plain: int,
        kv_element: int,
    ) -> None:
        self.layer = layer
        self._tp, self._ep, self._members = tp, ep, members
        self._expert_tp = tp if expert_tp is None else expert_tp
        self._fmt, self._plain, self._kv_element = fmt, plain, kv_element
        first, second = norm_shares(layer)
        self._attention = self._mixer = self._feed_forward = None
        if layer.attention is not None:
            weights = [*_norm(hidden, first), *attention_weights(layer.attention, hidden)]
            self._attention = self._part(weights, "attention")
        if layer.mixer is not None:
            own = first if layer.attention is None else 0
            weights = [*_norm(hidden, own), *mixer_weights(layer.mixer, hidden)]
            self._mixer = self._part(weights, "mixer")
        if layer.feed_forward is not None:
            weights = [*_norm(hidden, second), *feed_forward_weights(layer.feed_forward, hidden)]
            self._feed_forward = self._part(weights, "feed_forward")

    def _part(self, weights: list[Weight], block: Block) -> _Part:
        weights = list(kept_plain(weights, block, self.layer.plain))
        routed = [w for w in weights if w.name.startswith("experts")]
        common = [w for w in weights if not w.name.startswith("experts")]
        matrices = sum(_local(w, self._tp) for w in common if w.rows > 1)
        if not routed:
            return _Part(matrices, self._bytes(common, self._tp))
        tp = self._expert_tp
        experts = getattr(self.layer.feed_forward, "experts", 1)
        expert = sum(_local(w, tp) for w in routed if w.rows > 1) // experts
        held = self._bytes(routed, tp) // self._ep
        return _Part(matrices, self._bytes(common, self._tp), expert, held)

    def _bytes(self, weights: Iterable[Weight], tp: int) -> int:
        return stored_bytes(weights, fmt=self._fmt, plain=self._plain, tp=tp)

    def mixing(self, load: StepLoad) -> BlockWork | None:
        """Return the work of attention and recurrent mixer; None if the layer has neither."""
        work = None
        if self.layer.attention is not None and self._attention is not None:
            work = self._attention_work(self.layer.attention, self._attention, load)
        if self.layer.mixer is not None and self._mixer is not None:
            mixer, part = self.layer.mixer, self._mixer
            scan = _SCAN * -(-mixer.state_elements // self._tp)
            flops = (2 * part.matrices + scan) * load.tokens
            # Each sequence's state is read once and written once in a step.
            moved = part.moved_bytes + 2 * mixer.state_bytes(self._tp) * len(load.sequences)
            own = BlockWork(flops, moved, narrow="mixer" not in self.layer.plain)
            work = own if work is None else work + own
        return work

    def _attention_work(self, attention: Attention, part: _Part, load: StepLoad) -> BlockWork:
        flops = 2 * part.matrices * load.tokens + self._score_flops(attention, load)
        moved = part.moved_bytes + self._cache_bytes(attention, load)
        return BlockWork(flops, moved, narrow="attention" not in self.layer.plain)

    def _score_flops(self, attention: Attention, load: StepLoad) -> int:
        """Return the operations of scores and weighted values on this rank."""
        heads = attention.heads // self._tp
        if not isinstance(attention, LatentAttention):
            pairs = load.attended(attention.window, chunked=attention.chunked)
            return 2 * heads * (attention.head_dim + attention.value_dim) * pairs
        # DeepSeek-V2 (arXiv 2405.04434): a single new token attends in the latent space, with the
        # up-projection absorbed; longer pieces expand keys and values first. With an indexer
        # (V3.2) all attend in the latent space, to the positions that it picks.
        latent = 2 * attention.kv_lora_rank + attention.rope_dim
        if attention.index_topk:
            scores = 2 * attention.index_heads * attention.index_dim * load.attended(None)
            return 2 * heads * latent * load.attended(attention.index_topk) + scores
        expanded = attention.nope_dim + attention.rope_dim + attention.v_dim
        pairs = latent * load.attended(None, single=True)
        pairs += expanded * load.attended(None, single=False)
        return 2 * heads * pairs

    def _cache_bytes(self, attention: Attention, load: StepLoad) -> int:
        """Return the cache bytes that this rank reads or writes, each position once."""
        if isinstance(attention, LatentAttention):
            position = attention.kv_elements * self._kv_element
            if not attention.index_topk:
                return position * load.cached(None)
            return position * load.cached(attention.index_topk, single=True) + (
                attention.kv_extra_bytes * load.cached(None)
            )
        shares = min(self._tp, attention.kv_heads)
        position = attention.kv_elements * self._kv_element // shares
        return position * load.cached(attention.window, chunked=attention.chunked)

    def feeding(self, tokens: int) -> BlockWork | None:
        """Return the work of the feed-forward for the step's tokens; None if there is none."""
        part, block = self._feed_forward, self.layer.feed_forward
        if part is None:
            return None
        flops, moved = 2 * part.matrices * tokens, part.moved_bytes
        if isinstance(block, MoeFeedForward):
            meeting = tokens * self._members
            visited = experts_visited(meeting, block.experts, block.top_k)
            moved += part.expert_bytes * visited // block.experts
            # Uniform routing gives every rank its share of the (token, expert) pairs.
            flops += 2 * part.expert * -(-meeting * block.top_k // self._ep)
        return BlockWork(flops, moved, narrow="feed_forward" not in self.layer.plain)


def head_work(shape: ModelShape, rows: int, *, tp: int, plain: int) -> BlockWork:
    """Return the work of the last norm and the output head, which stays unquantised."""
    table = Weight("head", shape.hidden_size, shape.vocab_size, 1, Split.OUT)
    others = [*_norm(shape.hidden_size, shape.final_norms)]
    if shape.head_bias:
        others.append(Weight("head_bias", 1, shape.vocab_size, 1, Split.OUT))
    moved = plain * sum(_local(w, tp) for w in (table, *others))
    return BlockWork(2 * _local(table, tp) * rows, moved, narrow=False)


def _norm(hidden: int, count: int) -> list[Weight]:
    return [Weight("norm", 1, hidden, count)] if count else []


def _local(weight: Weight, tp: int) -> int:
    rows, columns = weight.local(tp)
    return rows * columns * weight.count
