# SPDX-License-Identifier: Apache-2.0
"""What one training step puts on the wire, by layer and micro-batch.

Tensor parallelism, per layer and micro-batch, with ``M = sequence * micro-batch * hidden * b``:
two all_reduces forward and two backward (Shoeybi et al., arXiv 1909.08053); with sequence
parallelism two all_gathers and two reduce_scatters forward, four and two backward, because the
column-parallel layers gather their input again for the gradient of their weights (Korthikanti et
al., arXiv 2205.05198; ``megatron/core/tensor_parallel/layers.py``). Full recomputation repeats the
forward pass. The embedding is summed (scattered) once, the output layer is a column-parallel
layer, and the vocabulary-parallel loss sums three vectors of one fp32 value for each token
(``megatron/core/tensor_parallel/cross_entropy.py``). A tied table is on the first and the last
stage, who sum its gradients.

Pipeline: ``M / c`` forward and as much backward for each micro-batch and boundary, ``/ t`` with
sequence parallelism, since each tensor-parallel rank holds a slice
(``megatron/core/pipeline_parallel/schedules.py``, ``get_tensor_shapes``). Experts: an all_to_all
there and one back, each way; ``T k / t`` tokens on a rank, gathered and scattered over ``tp`` at
their experts. Data parallelism is in `railweave.workloads.optimizer`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from railweave.fabric.errors import InputError
from railweave.workloads.context import context_ops
from railweave.workloads.limits import MOST_PASSES, MOST_STEP_TOKENS, MOST_TOKENS, check_range
from railweave.workloads.ops import TrafficOp, collective, send
from railweave.workloads.optimizer import TrainingMemory, data_parallel_ops
from railweave.workloads.pipeline_schedules import pipeline_order
from railweave.workloads.shapes_model import MoeFeedForward, dtype_bytes
from railweave.workloads.shares import chunk_layers, stage_parameters

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from railweave.workloads.parallelism import ParallelismPlan
    from railweave.workloads.shapes_model import LayerShape, ModelShape

__all__ = ["TrainingStyle", "boundary_ops", "layer_ops", "stage_memory", "training_ops"]

_FP32: Final = 4


@dataclass(frozen=True, kw_only=True)
class TrainingStyle:
    """How a job trains, beyond the plan.

    Parameters
    ----------
    sequence
        Tokens of a sequence.
    micro_batch_size, micro_batches
        Sequences of a micro-batch, and micro-batches of a step, of each replica.
    schedule, chunks
        As for `railweave.workloads.pipeline_schedules.pipeline_order`.
    sequence_parallel
        Megatron-LM's sequence parallelism beside tensor parallelism; None: with ``tp`` above 1.
    recompute
        ``none`` keeps all activations but the attention's scores, ``full`` the inputs of layers.
    zero
        Stage of ZeRO.
    dtype, grad_dtype
        Formats of activations and parameters, and of gradients on the wire.
    context
        As in `railweave.workloads.context`.
    """

    sequence: int
    micro_batch_size: int = 1
    micro_batches: int = 1
    schedule: str = "1f1b"
    chunks: int = 1
    sequence_parallel: bool | None = None
    recompute: Literal["none", "full"] = "none"
    zero: int = 1
    dtype: str = "bf16"
    grad_dtype: str = "fp32"
    context: str = "ring"

    @property
    def element(self) -> int:
        """Bytes of an activation or parameter."""
        return dtype_bytes(self.dtype)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of a gradient on the wire."""
        return dtype_bytes(self.grad_dtype, field="grad_dtype")

    def scattered(self, plan: ParallelismPlan) -> bool:
        """Return whether sequence parallelism is in use."""
        return plan.tp > 1 and self.sequence_parallel is not False

    def tokens(self, plan: ParallelismPlan) -> int:
        """Return the tokens of a micro-batch on one context-parallel rank."""
        return self.sequence // plan.cp * self.micro_batch_size

    def check(self, shape: ModelShape, plan: ParallelismPlan) -> None:
        """Raise `InputError` unless the job can be divided so."""
        plan.check(shape)
        if plan.order != "pp-dp-cp-tp":
            raise InputError("a training job numbers ranks as Megatron-LM does", field="order")
        check_range(self.sequence, "sequence", MOST_TOKENS, least=1, what="tokens")
        check_range(
            self.micro_batch_size, "micro_batch_size", MOST_TOKENS // self.sequence, least=1,
            what=f"sequences of {self.sequence:,} tokens",
        )  # fmt: skip
        if self.zero not in (0, 1, 2, 3):
            raise InputError(f"there is no ZeRO-{self.zero}", field="zero", expected="0 to 3")
        if self.zero == 3 and plan.pp > 1:
            raise InputError(
                "ZeRO-3 gathers layers where they run, with no pipeline",
                field="zero",
                expected="at most 2, or pp: 1",
            )
        if self.zero == 3 and self.chunks > 1:
            raise InputError(
                "ZeRO-3 has no stages whose layers chunks could divide", field="chunks",
                expected="1, or zero of at most 2",
            )  # fmt: skip
        parts = plan.cp * (plan.tp if self.scattered(plan) else 1)
        if self.sequence % parts:
            raise InputError(
                f"{parts} ranks do not divide a sequence of {self.sequence} tokens",
                field="sequence",
                expected=f"a multiple of {parts}",
            )
        if plan.ep > 1 and plan.tp > 1 and not self.scattered(plan):
            raise InputError(
                "expert beside tensor parallelism needs it (Megatron-LM)",
                field="sequence_parallel",
                expected="true",
            )
        most = MOST_PASSES // (plan.pp * max(self.chunks, 1))
        most = min(most, MOST_STEP_TOKENS // (self.sequence * self.micro_batch_size))
        if self.chunks <= shape.n_layers:  # else it says so below
            check_range(
                self.micro_batches, "micro_batches", most, least=1,
                what=f"micro-batches of {plan.pp} stages, {self.chunks} chunks and "
                f"{self.sequence * self.micro_batch_size:,} tokens",
            )  # fmt: skip
        chunk_layers(shape, plan, chunks=max(self.chunks, 1))
        pipeline_order(
            self.schedule, stages=plan.pp, micro_batches=self.micro_batches, chunks=self.chunks
        )


def layer_ops(
    layers: Sequence[LayerShape],
    shape: ModelShape,
    plan: ParallelismPlan,
    style: TrainingStyle,
    *,
    stage: int,
    phase: str,
    times: int = 1,
) -> Iterator[TrafficOp]:
    """Yield what layers of one stage ask for in one pass of ``times`` micro-batches.

    Parameters
    ----------
    layers, shape, plan, style
        The layers, the model, how it is divided and trained.
    stage
        Pipeline stage.
    phase
        ``forward``, ``recompute`` or ``backward``.
    times
        Micro-batches.
    """
    whole = style.tokens(plan) * shape.hidden_size * style.element
    columns = {"stage": stage, "phase": phase, "what": "attention and feed-forward"}
    # Experts are reached by all_to_alls: of their block tensor parallelism sums nothing.
    by_experts = [
        plan.ep > 1 and isinstance(layer.feed_forward, MoeFeedForward) for layer in layers
    ]
    moe = sum(by_experts)
    sums = times * sum(
        layer.reductions - (experts and not layer.parallel)
        for layer, experts in zip(layers, by_experts, strict=True)
    )
    if style.scattered(plan):
        gathers = sums * (2 if phase == "backward" else 1)
        yield from collective("all_gather", "tp", plan.tp, whole, count=gathers, **columns)
        yield from collective("reduce_scatter", "tp", plan.tp, whole, count=sums, **columns)
    else:
        yield from collective("all_reduce", "tp", plan.tp, whole, count=sums, **columns)
    yield from context_ops(
        layers, plan, style.context, tokens=style.tokens(plan) * plan.cp,
        element=style.element, stage=stage, phase=phase, times=times,
    )  # fmt: skip
    if moe:
        block = next(x.feed_forward for x in layers if isinstance(x.feed_forward, MoeFeedForward))
        routed = whole * block.top_k
        for what in ("dispatch", "combine") if phase != "backward" else ("combine", "dispatch"):
            named = {"stage": stage, "phase": phase, "what": f"{what} of experts"}
            yield from collective(
                "all_to_all", "ep", plan.ep, routed // plan.tp, count=moe * times, **named
            )
            op = "all_gather" if (what == "dispatch") != (phase == "backward") else "reduce_scatter"
            yield from collective(op, "tp", plan.tp, routed, count=moe * times, **named)


def _end_ops(
    shape: ModelShape, plan: ParallelismPlan, style: TrainingStyle, stage: int
) -> Iterator[TrafficOp]:
    """Yield what the embedding, the output layer and the loss ask for in the whole step."""
    times, tokens = style.micro_batches, style.tokens(plan)
    whole, tp = tokens * shape.hidden_size * style.element, plan.tp
    scattered = style.scattered(plan)
    if stage == 0:
        for phase, op in (("forward", "reduce_scatter"), ("backward", "all_gather")):
            if scattered or phase == "forward":
                yield from collective(
                    op if scattered else "all_reduce", "tp", tp, whole, count=times, stage=stage,
                    phase=phase, what="embedding",
                )  # fmt: skip
    if stage == plan.pp - 1:
        output: tuple[tuple[str, str], ...] = (("backward", "all_reduce"),)
        if scattered:
            output = (
                ("forward", "all_gather"), ("backward", "all_gather"),
                ("backward", "reduce_scatter"),
            )  # fmt: skip
        for phase, op in output:
            yield from collective(
                op, "tp", tp, whole, count=times, stage=stage, phase=phase, what="output layer"
            )
        yield from collective(
            "all_reduce", "tp", tp, tokens * _FP32, count=3 * times, stage=stage, what="loss"
        )


def boundary_ops(
    shape: ModelShape, plan: ParallelismPlan, style: TrainingStyle, stage: int
) -> Iterator[TrafficOp]:
    """Yield what a stage sends on: forward to the next, backward to the one before."""
    size = style.tokens(plan) * shape.hidden_size * style.element
    if style.scattered(plan):
        size //= plan.tp
    last, chunks = plan.pp - 1, style.chunks
    for phase, to, edge in (("forward", stage + 1, last), ("backward", stage - 1, 0)):
        # With several chunks the last stage sends on to the first, but for the last chunk.
        passes = chunks - 1 if stage == edge else chunks
        if plan.pp > 1:
            yield from send(
                size, stage=stage, to_stage=to % plan.pp, count=passes * style.micro_batches,
                phase=phase, what="activations" if phase == "forward" else "their gradients",
            )  # fmt: skip


def training_ops(shape: ModelShape, plan: ParallelismPlan, style: TrainingStyle) -> list[TrafficOp]:
    """Return the operations of one training step, stage by stage.

    Parameters
    ----------
    shape, plan, style
        The model, how it is divided, how it is trained.

    Raises
    ------
    InputError
        They do not go together.
    """
    style.check(shape, plan)
    found: list[TrafficOp] = []
    for stage, parts in enumerate(chunk_layers(shape, plan, chunks=style.chunks)):
        layers = [shape.layers[i] for part in parts for i in part]
        phases = ["forward", "backward"]
        if style.recompute == "full":
            phases.insert(1, "recompute")
        for phase in phases:
            found += layer_ops(
                layers, shape, plan, style, stage=stage, phase=phase, times=style.micro_batches
            )
        found += _end_ops(shape, plan, style, stage)
        found += boundary_ops(shape, plan, style, stage)
        found += data_parallel_ops(
            stage_parameters(shape, plan, stage, chunks=style.chunks), plan, stage=stage,
            zero=style.zero, gradient_bytes=style.gradient_bytes, element=style.element,
            micro_batches=style.micro_batches,
        )  # fmt: skip
    if shape.tied and plan.pp > 1:
        table = shape.vocab_size * shape.hidden_size // plan.tp * style.gradient_bytes
        found += collective(
            "all_reduce", "embedding", 2, table, stage=0, phase="gradients",
            what="gradients of the tied table",
        )  # fmt: skip
    return found


def stage_memory(
    shape: ModelShape, plan: ParallelismPlan, style: TrainingStyle, stage: int
) -> TrainingMemory:
    """Return what a rank of a stage holds.

    Activations, per layer and token, without the attention's scores: ``34 h / t`` bytes with
    sequence parallelism, ``h (10 + 24 / t)`` without, and with full recomputation only a layer's
    input, ``2 h`` (``/ t``), beside one layer whole (Korthikanti et al., arXiv 2205.05198,
    section 4); 1F1B keeps those of ``p - s`` micro-batches on stage s, interleaving
    those of the passes that its warm-up runs ahead, GPipe all. Experts are counted as one dense
    block of the usual width.
    """
    h, tp = shape.hidden_size, plan.tp
    scattered = style.scattered(plan)
    layer = 34 * h // tp if scattered else h * 10 + 24 * h // tp
    kept = layer
    if style.recompute == "full":
        kept = 2 * h // tp if scattered else 2 * h
    parts = chunk_layers(shape, plan, chunks=style.chunks)[stage]
    layers = sum(map(len, parts))
    ahead = {"gpipe": style.micro_batches}.get(style.schedule, plan.pp - stage)
    flying = min(ahead, style.micro_batches) * layers
    if style.schedule == "interleaved":
        # the warm-up's chunk passes, and one more, of the mean size of a chunk
        passes = 2 * (plan.pp - stage - 1) + (style.chunks - 1) * plan.pp + 1
        flying = min(passes, style.micro_batches * style.chunks) * -(-layers // style.chunks)
    activations = style.tokens(plan) * (flying * kept + (layer if kept != layer else 0))
    return TrainingMemory.of(
        stage_parameters(shape, plan, stage, chunks=style.chunks), plan, zero=style.zero,
        gradient_bytes=style.gradient_bytes, element=style.element, activations=activations,
    )  # fmt: skip
