# SPDX-License-Identifier: Apache-2.0
"""What one inference step puts on the wire.

Megatron-style tensor parallelism (arXiv 1909.08053) as vLLM runs it: one all_reduce of
``tokens * hidden`` activations after the vocabulary-parallel embedding, after each attention
block's output projection and after each feed-forward block (a mixture of experts whose experts
are all split over the tensor-parallel ranks sums its output in one all_reduce just the same),
then an all_gather of the logits. Models whose attention and feed-forward blocks work side by side
(GPT-J, Falcon, phi-2) sum both in one all_reduce. With sequence parallelism (Korthikanti et al.,
arXiv 2205.05198) each all_reduce is a reduce_scatter, and an all_gather before the next block;
vLLM leaves that off in a step whose tokens ``tp`` does not divide.

Between pipeline stages vLLM's Llama-style models pass two tensors, hidden states and residual;
each rank sends its ``1/tp`` slice of both to its peer and the receiving stage gathers them
(vllm-project/vllm pull request 6695, ``send_tensor_dict``); under sequence parallelism they are
slices already. The sampled token ids go back from the last stage to the first.

Replicas with experts in common run every step together: one without requests computes a token for
nobody (vLLM's ``execute_dummy_batch``). What the experts exchange is in
`railweave.workloads.experts`, what divides sequences in `railweave.workloads.context`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from railweave.fabric.errors import InputError
from railweave.workloads.context import context_ops
from railweave.workloads.experts import ExpertStyle, expert_ops, joins_attention
from railweave.workloads.limits import MOST_TOKENS, check_range
from railweave.workloads.ops import TrafficOp, collective, ring_wire_bytes, send
from railweave.workloads.shapes_model import MoeFeedForward, dtype_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from railweave.workloads.parallelism import ParallelismPlan
    from railweave.workloads.shapes_model import FeedForward, LayerShape, ModelShape

__all__ = [
    "StepOps",
    "StepStyle",
    "TrafficOp",
    "padded_tokens",
    "ring_wire_bytes",
    "step_ops",
]

# vLLM's sampler narrows ids to int32 (vllm/v1/sample/sampler.py).
_TOKEN_ID_BYTES: Final = 4
_BOUNDARY: Final = "hidden states and residual"


@dataclass(frozen=True, kw_only=True)
class StepStyle:
    """How an engine runs a step, beyond the plan.

    Parameters
    ----------
    sequence_parallel
        Scatter and gather the tokens between blocks instead of summing everywhere.
    parallel_blocks
        Attention and feed-forward side by side: one sum per layer; None: what the model does.
    pad_to
        Round tokens up to a multiple, as captured CUDA graphs do.
    context
        How sequences are divided where ``cp`` is more than 1: ``ring``, ``all_gather`` or
        ``ulysses``.
    experts
        What experts exchange where ``ep`` is more than 1.
    """

    sequence_parallel: bool = False
    parallel_blocks: bool | None = None
    pad_to: int = 1
    context: str = "all_gather"
    experts: ExpertStyle = field(default_factory=ExpertStyle)


def step_ops(
    shape: ModelShape,
    plan: ParallelismPlan,
    *,
    phase: str,
    tokens: int | Sequence[int],
    rows: int | Sequence[int] | None = None,
    dtype: str | None = None,
    pad_to: int = 1,
    style: StepStyle | None = None,
) -> list[TrafficOp]:
    """Return the operations of one step, stage by stage.

    Parameters
    ----------
    shape
        The model.
    plan
        How it is divided.
    phase
        ``prefill`` (``tokens`` of prompts) or ``decode`` (one token for each of ``tokens``
        requests).
    tokens
        Tokens in the step over all requests of a replica: the same for each of ``plan.dp``, or a
        number for each. A step without tokens has no operations.
    rows
        Requests that need logits, likewise; default 1 in prefill (one prompt ends), ``tokens`` in
        decode.
    dtype
        Number format of activations; default that of the model.
    pad_to
        As in `StepStyle`, without which it is given.
    style
        How the engine runs the step.

    Raises
    ------
    InputError
        The plan does not fit the model, or a count is out of range.
    """
    style = StepStyle(pad_to=pad_to) if style is None else style
    plan.check(shape)
    if phase not in ("prefill", "decode"):
        raise InputError(f"'{phase}' is no phase", field="phase", expected="prefill or decode")
    if phase == "decode" and plan.cp > 1:
        raise InputError(
            "a decode step has one token of each sequence", field="cp", expected="1, or prefill"
        )
    given = _per_member(tokens, plan, "tokens")
    check_range(min(given), "tokens", MOST_TOKENS, what="tokens")
    if not any(given):
        return []
    if rows is None:
        rows = [min(n, 1) for n in given] if phase == "prefill" else given
    wanted = _per_member(rows, plan, "rows")
    for n, most in zip(wanted, given, strict=True):
        if not 0 <= n <= most:
            raise InputError(f"{n} is out of range", field="rows", expected=f"0 to {most}")
    element = dtype_bytes(dtype or shape.dtype)
    step = StepOps(shape, plan, style, element, padded_tokens(given, plan, style))
    return [
        op
        for stage in range(plan.pp)
        for op in (*step.stage(stage), *step.head(stage, wanted), *step.ids(stage, wanted))
    ]


def _per_member(value: int | Sequence[int], plan: ParallelismPlan, field: str) -> list[int]:
    if isinstance(value, int):
        return [value] * plan.dp
    if len(value) != plan.dp:
        raise InputError(
            f"{len(value)} numbers are given for {plan.dp} replicas",
            field=field,
            expected="one number, or one for each of dp",
        )
    return list(value)


def padded_tokens(given: Sequence[int], plan: ParallelismPlan, style: StepStyle) -> list[int]:
    """Return the tokens that each replica computes.

    Parameters
    ----------
    given
        Tokens that requests of each replica have in the step.
    plan, style
        Replicas that share experts all compute something, and counts are rounded up.

    Raises
    ------
    InputError
        There are too many.
    """
    check_range(style.pad_to, "pad_to", MOST_TOKENS, least=1, what="tokens")
    check_range(max(given), "tokens", MOST_TOKENS, what="tokens of a replica")
    tokens = [-(-n // style.pad_to) * style.pad_to for n in given]
    for first in range(0, plan.dp, plan.ep_members):
        block = slice(first, first + plan.ep_members)
        if plan.ep_members > 1 and any(tokens[block]):
            tokens[block] = [n or style.pad_to for n in tokens[block]]  # a dummy batch
    return tokens


@dataclass(frozen=True)
class StepOps:
    """The operations of one step, part by part.

    Parameters
    ----------
    shape, plan, style
        The model, how it is divided, how the engine runs it.
    element
        Bytes of an activation.
    tokens
        Tokens that each replica computes.
    """

    shape: ModelShape
    plan: ParallelismPlan
    style: StepStyle
    element: int
    tokens: Sequence[int]

    def _members(self, values: Sequence[int]) -> Iterator[tuple[int | None, int]]:
        """Yield what replicas do: once where all do the same."""
        if len(set(values)) == 1:
            yield None, values[0]
        else:
            yield from enumerate(values)

    def _local(self, tokens: int) -> int:
        """Tokens of a context-parallel rank."""
        return -(-tokens // self.plan.cp)

    def _scattered(self, tokens: int) -> bool:
        tp = self.plan.tp
        return self.style.sequence_parallel and tp > 1 and self._local(tokens) % tp == 0

    def _hidden(self, tokens: int) -> int:
        return self._local(tokens) * self.shape.hidden_size * self.element

    def _sliced(self, tokens: int) -> bool:
        return (self._local(tokens) * self.shape.hidden_size) % self.plan.tp == 0

    def stage(self, stage: int) -> Iterator[TrafficOp]:
        """Yield what enters a stage, what its layers do, and what leaves it."""
        layers = self._stage_layers(stage)
        yield from self.entry(stage)
        named = ["embedding"] * (stage == 0)
        sums = [self.sums(layer) for layer in layers]
        named.append(
            "attention and feed-forward outputs" if any(s[1] for s in sums) else "attention"
        )
        count = sum(map(sum, sums)) + (stage == 0)
        yield from self.summed(stage, what=", ".join(named), count=count)
        yield from self.context(stage, layers)
        blocks = [layer.feed_forward for layer in layers if self.by_experts(layer)]
        if blocks:
            yield from self.experts(stage, blocks[0], count=len(blocks))
        yield from self.exit(stage)

    def by_experts(self, layer: LayerShape) -> bool:
        """Return whether expert parallelism sums the outputs of a layer's feed-forward block."""
        return self.plan.ep > 1 and isinstance(layer.feed_forward, MoeFeedForward)

    def experts(self, stage: int, block: FeedForward | None, *, count: int) -> Iterator[TrafficOp]:
        """Yield what the experts of ``count`` layers exchange."""
        assert isinstance(block, MoeFeedForward)
        yield from expert_ops(
            block, self.plan, self.style.experts, stage=stage, count=count,
            hidden=self.shape.hidden_size, element=self.element, tokens=self.tokens,
        )  # fmt: skip

    def _stage_layers(self, stage: int) -> list[LayerShape]:
        return [self.shape.layers[i] for i in self.plan.stage_layers(self.shape.n_layers)[stage]]

    def _busy(self) -> Iterator[tuple[int | None, int]]:
        """Yield the replicas that compute something, and their tokens."""
        return ((member, n) for member, n in self._members(self.tokens) if n)

    def entry(self, stage: int) -> Iterator[TrafficOp]:
        """Yield what joins the slices that the stage before sent."""
        for member, tokens in self._busy():
            if stage and self._sliced(tokens) and not self._scattered(tokens):
                yield from collective(
                    "all_gather", "tp", self.plan.tp, self._hidden(tokens), count=2,
                    stage=stage, member=member, what=_BOUNDARY,
                )  # fmt: skip

    def sums(self, layer: LayerShape) -> tuple[int, int]:
        """Return how many outputs of a layer are summed: before its feed-forward, and its own."""
        parallel = self.style.parallel_blocks
        parallel = layer.parallel if parallel is None else parallel
        # Expert parallelism sums the outputs of experts in its own way, and one backend does the
        # sum of the attention block before too.
        experts = self.by_experts(layer)
        mixing = (layer.attention is not None) + (layer.mixer is not None)
        mixing = min(mixing, 1) if parallel else mixing
        own = layer.feed_forward is not None and not experts and not (parallel and mixing)
        return mixing - (experts and joins_attention(self.style.experts, self.plan)), int(own)

    def summed(self, stage: int, *, what: str, count: int = 1) -> Iterator[TrafficOp]:
        """Yield ``count`` sums of hidden states; scattered and gathered where that is the style."""
        for member, tokens in self._busy():
            ops: tuple[str, ...] = ("all_reduce",)
            if self._scattered(tokens):
                ops = ("reduce_scatter", "all_gather")
            for op in ops:
                yield from collective(
                    op, "tp", self.plan.tp, self._hidden(tokens), count=count, stage=stage,
                    member=member, what=what,
                )  # fmt: skip

    def context(self, stage: int, layers: Sequence[LayerShape]) -> Iterator[TrafficOp]:
        """Yield what divides the sequences of some layers."""
        for member, tokens in self._busy():
            yield from context_ops(
                layers, self.plan, self.style.context, tokens=tokens,
                element=self.element, stage=stage, member=member,
            )  # fmt: skip

    def exit(self, stage: int) -> Iterator[TrafficOp]:
        """Yield the sends to the next stage.

        A tensor whose elements ``tp`` does not divide is sent whole by every rank, not gathered.
        """
        for member, tokens in self._busy():
            if stage < self.plan.pp - 1:
                size = self._hidden(tokens)
                if self._sliced(tokens):
                    size //= self.plan.tp
                yield from send(
                    size, stage=stage, to_stage=stage + 1, count=2, what=_BOUNDARY, member=member
                )

    def head(self, stage: int, rows: Sequence[int]) -> Iterator[TrafficOp]:
        """Yield the logits of the last stage."""
        if stage == self.plan.pp - 1:
            for member, n in self._members(rows):
                size = n * self.shape.vocab_size * self.element
                yield from collective(
                    "all_gather", "tp", self.plan.tp, size, stage=stage, member=member,
                    what="logits",
                )  # fmt: skip

    def ids(self, stage: int, rows: Sequence[int]) -> Iterator[TrafficOp]:
        """Yield the way back of the sampled ids."""
        if stage == self.plan.pp - 1 and self.plan.pp > 1:
            for member, n in self._members(rows):
                yield from send(
                    n * _TOKEN_ID_BYTES, stage=stage, to_stage=0, what="sampled token ids",
                    member=member,
                )  # fmt: skip
