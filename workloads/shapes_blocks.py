# SPDX-License-Identifier: Apache-2.0
"""The blocks of a decoder layer: attention, recurrent mixers, feed-forward networks.

Only what fixes bytes and arithmetic is kept: head counts and widths, windows, expert counts,
biases, the sizes of recurrent states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Attention",
    "DenseFeedForward",
    "FeedForward",
    "GatedDelta",
    "GroupedAttention",
    "LatentAttention",
    "Mamba1",
    "Mamba2",
    "Mixer",
    "MoeFeedForward",
]


@dataclass(frozen=True)
class GroupedAttention:
    """Attention with query heads in groups that share a key/value head (MHA, GQA and MQA).

    Parameters
    ----------
    heads, kv_heads, head_dim
        Query heads, key/value heads, width of a query and key head in elements.
    window
        Positions that a new token attends to at most, its own included; None for all.
    qkv_bias, out_bias
        Whether the projections carry biases.
    qk_norm
        Learned vectors that normalise queries and keys: ``none``, one per ``head`` width, or
        ``full`` (over all heads at once, as MiniMax-M2).
    sinks
        Whether there is one learned sink logit per query head.
    v_head_dim
        Width of a value head in elements if it is not ``head_dim``.
    chunked
        Whether ``window`` is the length of fixed chunks (Llama-4) instead of sliding along.
    output_gate
        Whether the query projection also makes a gate for the output (Qwen3.5).
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"
    sinks: bool = False
    v_head_dim: int | None = None
    chunked: bool = False
    output_gate: bool = False

    @property
    def kind(self) -> Literal["full", "sliding", "chunked"]:
        """``full``, ``sliding`` or ``chunked``."""
        if self.window is None:
            return "full"
        return "chunked" if self.chunked else "sliding"

    @property
    def value_dim(self) -> int:
        """Width of a value head in elements."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim

    @property
    def kv_elements(self) -> int:
        """Cache elements per token over all key/value heads: keys and values."""
        return self.kv_heads * (self.head_dim + self.value_dim)

    @property
    def kv_extra_bytes(self) -> int:
        """Cache bytes per token whatever its number format: none."""
        return 0

    def kept_tokens(self, tokens: int, *, most: bool = False) -> int:
        """Return how many tokens of a sequence the cache holds.

        Parameters
        ----------
        tokens
            Tokens of the sequence.
        most
            The most that it ever held on the way there, which is what room must be kept for: a
            chunk is dropped when the next one begins.
        """
        if self.window is None or tokens <= self.window:
            return tokens
        if self.chunked and not most:
            return (tokens - 1) % self.window + 1
        return self.window


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (MLA, DeepSeek-V2, arXiv 2405.04434).

    One compressed latent and one rotary key per token serve all heads, so the cache has neither
    a head count nor a factor two, and every tensor-parallel rank keeps all of it. With an indexer
    (DeepSeek-V3.2, sparse attention) a new token attends to the ``index_topk`` positions that a
    small scoring head picks; the cache then also holds one fp8 key and its fp32 scale per 128
    elements, per token and layer.

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
    index_heads, index_dim, index_topk
        Heads and head width of the indexer, positions that it picks; all 0 without one.
    """

    heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    index_heads: int = 0
    index_dim: int = 0
    index_topk: int = 0

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

    @property
    def kv_extra_bytes(self) -> int:
        """Cache bytes per token whatever its number format: the indexer's key and scales.

        132 bytes for a width of 128, as in DeepSeek's ``inference/model.py`` of V3.2-Exp and in
        vLLM's ``DeepseekV32IndexerCache``.
        """
        return self.index_dim + -(-self.index_dim // 128) * 4

    def kept_tokens(self, tokens: int, *, most: bool = False) -> int:
        """Return how many tokens of a sequence the cache holds: all."""
        return tokens


Attention = GroupedAttention | LatentAttention


@dataclass(frozen=True)
class Mamba1:
    """A selective state space (Mamba, arXiv 2312.00752) with Jamba's inner norms.

    Parameters
    ----------
    inner
        Inner width in elements.
    state
        State elements per inner element.
    conv
        Width of the causal convolution in tokens.
    dt_rank
        Rank of the step-size projection.
    conv_bytes, state_bytes_each
        Bytes of an element of the convolution's tail and of the state.
    """

    inner: int
    state: int
    conv: int
    dt_rank: int
    conv_bytes: int = 2
    state_bytes_each: int = 4

    @property
    def kind(self) -> Literal["mamba1"]:
        """``mamba1``."""
        return "mamba1"

    @property
    def heads(self) -> int:
        """What tensor parallelism divides: inner elements."""
        return self.inner

    @property
    def state_elements(self) -> int:
        """Elements of the recurrent state of one sequence."""
        return self.inner * self.state

    def state_bytes(self, tp: int = 1) -> int:
        """Return the bytes that one of ``tp`` ranks keeps for one sequence."""
        inner = -(-self.inner // tp)
        tail = inner * (self.conv - 1) * self.conv_bytes
        return tail + inner * self.state * self.state_bytes_each


@dataclass(frozen=True)
class Mamba2:
    """A state space with scalar decay per head (Mamba-2, arXiv 2405.21060).

    Parameters
    ----------
    heads, head_dim
        Heads and their width in elements.
    groups, state
        Groups that share an input and an output projection, and their width (the state's).
    conv
        Width of the causal convolution in tokens.
    gated_norm
        Whether the output is normalised.
    conv_bytes, state_bytes_each
        Bytes of an element of the convolution's tail and of the state.
    """

    heads: int
    head_dim: int
    groups: int
    state: int
    conv: int
    gated_norm: bool = True
    conv_bytes: int = 2
    state_bytes_each: int = 4

    @property
    def kind(self) -> Literal["mamba2"]:
        """``mamba2``."""
        return "mamba2"

    @property
    def inner(self) -> int:
        """Inner width in elements."""
        return self.heads * self.head_dim

    @property
    def state_elements(self) -> int:
        """Elements of the recurrent state of one sequence."""
        return self.inner * self.state

    def state_bytes(self, tp: int = 1) -> int:
        """Return the bytes that one of ``tp`` ranks keeps for one sequence.

        Heads are divided; a rank keeps at least one whole group.
        """
        heads = -(-self.heads // tp)
        channels = heads * self.head_dim + 2 * max(-(-self.groups // tp), 1) * self.state
        tail = channels * (self.conv - 1) * self.conv_bytes
        return tail + heads * self.head_dim * self.state * self.state_bytes_each


@dataclass(frozen=True)
class GatedDelta:
    """Linear attention with a gated delta rule (Gated DeltaNet, arXiv 2412.06464).

    Parameters
    ----------
    key_heads, value_heads
        Heads of queries and keys, heads of values and of the state.
    key_dim, value_dim
        Their widths in elements.
    conv
        Width of the causal convolution in tokens.
    conv_bytes, state_bytes_each
        Bytes of an element of the convolution's tail and of the state.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv: int
    conv_bytes: int = 2
    state_bytes_each: int = 4

    @property
    def kind(self) -> Literal["gated_delta"]:
        """``gated_delta``."""
        return "gated_delta"

    @property
    def heads(self) -> int:
        """What tensor parallelism divides: value heads."""
        return self.value_heads

    @property
    def inner(self) -> int:
        """Width of the output in elements."""
        return self.value_heads * self.value_dim

    @property
    def state_elements(self) -> int:
        """Elements of the recurrent state of one sequence."""
        return self.value_heads * self.key_dim * self.value_dim

    def state_bytes(self, tp: int = 1) -> int:
        """Return the bytes that one of ``tp`` ranks keeps for one sequence."""
        values, keys = -(-self.value_heads // tp), max(-(-self.key_heads // tp), 1)
        channels = 2 * keys * self.key_dim + values * self.value_dim
        tail = channels * (self.conv - 1) * self.conv_bytes
        return tail + values * self.key_dim * self.value_dim * self.state_bytes_each


Mixer = Mamba1 | Mamba2 | GatedDelta


@dataclass(frozen=True)
class DenseFeedForward:
    """A feed-forward block: up and down matrices, and a gate matrix if it is gated.

    Parameters
    ----------
    size
        Intermediate width in elements.
    bias
        Whether the matrices carry biases.
    gated
        Whether there is a gate matrix (SwiGLU and its kin, arXiv 2002.05202).
    """

    size: int
    bias: bool = False
    gated: bool = True

    @property
    def kind(self) -> Literal["dense"]:
        """``dense``."""
        return "dense"


@dataclass(frozen=True)
class MoeFeedForward:
    """A mixture of experts behind a router.

    Parameters
    ----------
    experts, top_k
        Routed experts, and how many of them each token visits.
    size
        Intermediate width of one routed expert in elements.
    shared_size
        Intermediate width of the shared expert (of all of them together), 0 if there is none.
    shared_gate
        Whether a learned sigmoid gate scales the shared expert.
    router_bias, expert_bias
        Whether the router and the experts' matrices carry biases.
    correction_bias
        Whether the router has a load-balancing correction per expert (kept in fp32).
    gated
        Whether experts have a gate matrix.
    node_groups, top_groups
        Groups of experts, and how many of them one token's experts may come from; 1 and 1 where
        routing is free (DeepSeek's node-limited routing: ``n_group``, ``topk_group``).
    """

    experts: int
    top_k: int
    size: int
    shared_size: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    correction_bias: bool = False
    gated: bool = True
    node_groups: int = 1
    top_groups: int = 1

    @property
    def kind(self) -> Literal["moe"]:
        """``moe``."""
        return "moe"


FeedForward = DenseFeedForward | MoeFeedForward
