# SPDX-License-Identifier: Apache-2.0
"""What one inference step puts on the wire under tensor and pipeline parallelism.

Megatron-style tensor parallelism (arXiv 1909.08053) as vLLM runs it: one all_reduce of
``tokens * hidden`` activations after the vocabulary-parallel embedding, after each attention
block's output projection and after each feed-forward block (a mixture of experts whose experts
are all split over the tensor-parallel ranks sums its output in one all_reduce just the same),
then an all_gather of the logits. Between pipeline stages vLLM's Llama-style models pass two
tensors, hidden states and residual; each rank sends its ``1/tp`` slice of both to its peer and
the receiving stage gathers them (vllm-project/vllm pull request 6695,
``send_tensor_dict``). The sampled token ids go back from the last stage to the first.

Sizes follow one convention: the full logical buffer. An all_reduce's is what each rank holds, an
all_gather's is the gathered result, a send's is the message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from railweave.fabric.errors import InputError
from railweave.workloads.shapes_model import dtype_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from railweave.workloads.parallelism import ParallelismPlan
    from railweave.workloads.shapes_model import ModelShape

__all__ = [
    "LinkBytes",
    "TrafficOp",
    "link_bytes",
    "ring_wire_bytes",
    "stage_wire_bytes",
    "step_ops",
]

# vLLM's sampler narrows ids to int32 (vllm/v1/sample/sampler.py).
_TOKEN_ID_BYTES: Final = 4
_BOUNDARY: Final = "hidden states and residual"


@dataclass(frozen=True)
class TrafficOp:
    """Equal operations of one pipeline stage in one step.

    Parameters
    ----------
    op
        ``all_reduce``, ``all_gather`` or ``send``.
    axis
        ``tp``: among the ranks of the stage. ``pp``: to the same rank of another stage.
    count
        How many of them.
    size_bytes
        Full logical buffer of one operation.
    wire_bytes_per_rank
        Bytes that one rank of the stage sends in all ``count`` operations (ring or pairwise).
    stage
        The stage that runs it, or that sends.
    to_stage
        The stage that receives a ``send``, else None.
    what
        What the bytes are, for people.
    """

    op: str
    axis: Literal["tp", "pp"]
    count: int
    size_bytes: int
    wire_bytes_per_rank: int
    stage: int = 0
    to_stage: int | None = None
    what: str = ""


def ring_wire_bytes(op: str, size_bytes: int, n_ranks: int) -> int:
    """Return the bytes that each rank sends in one ring collective, rounded up.

    ``2 (n-1)/n M`` for an all_reduce, ``(n-1)/n M`` for an all_gather or a reduce_scatter
    (Thakur, Rabenseifner and Gropp, 2005; also the bus-bandwidth factors of nccl-tests).

    Parameters
    ----------
    op
        ``all_reduce``, ``all_gather`` or ``reduce_scatter``.
    size_bytes
        Full logical buffer M.
    n_ranks
        Ranks n.

    Examples
    --------
    >>> ring_wire_bytes("all_reduce", 16384, 8)
    28672
    """
    passes = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}[op]
    return -(-passes * (n_ranks - 1) * size_bytes // n_ranks)


def step_ops(
    shape: ModelShape,
    plan: ParallelismPlan,
    *,
    phase: str,
    tokens: int,
    rows: int | None = None,
    dtype: str | None = None,
    pad_to: int = 1,
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
        Tokens in the step over all requests.
    rows
        Requests that need logits; default 1 in prefill (one prompt ends), ``tokens`` in decode.
    dtype
        Number format of activations; default that of the model.
    pad_to
        Round ``tokens`` up to a multiple, as captured CUDA graphs do.

    Raises
    ------
    InputError
        The plan does not fit the model, or a count is out of range.
    """
    plan.check(shape)
    if phase not in ("prefill", "decode"):
        raise InputError(f"'{phase}' is no phase", field="phase", expected="prefill or decode")
    for name, value in (("tokens", tokens), ("pad_to", pad_to)):
        if value < 1:
            raise InputError(f"{value} is too few", field=name, expected="at least 1")
    if rows is None:
        rows = 1 if phase == "prefill" else tokens
    if not 0 <= rows <= tokens:
        raise InputError(f"{rows} is out of range", field="rows", expected=f"0 to {tokens}")
    element = dtype_bytes(dtype or shape.dtype)
    padded = -(-tokens // pad_to) * pad_to
    hidden_bytes = padded * shape.hidden_size * element
    logits_bytes = rows * shape.vocab_size * element
    whole = (padded * shape.hidden_size) % plan.tp != 0
    return [
        op
        for stage, layers in enumerate(plan.layers_per_stage(shape.n_layers))
        for op in (
            *_entry_ops(plan, stage, hidden_bytes=hidden_bytes, whole=whole),
            *_layer_ops(plan, stage, layers=layers, hidden_bytes=hidden_bytes),
            *_exit_ops(plan, stage, hidden_bytes=hidden_bytes, whole=whole),
            *_head_ops(plan, stage, rows=rows, logits_bytes=logits_bytes),
        )
    ]


def _entry_ops(
    plan: ParallelismPlan, stage: int, *, hidden_bytes: int, whole: bool
) -> Iterator[TrafficOp]:
    """Yield what joins the slices that the stage before sent."""
    if stage and plan.tp > 1 and not whole:
        wire = 2 * ring_wire_bytes("all_gather", hidden_bytes, plan.tp)
        yield TrafficOp("all_gather", "tp", 2, hidden_bytes, wire, stage, what=_BOUNDARY)


def _layer_ops(
    plan: ParallelismPlan, stage: int, *, layers: int, hidden_bytes: int
) -> Iterator[TrafficOp]:
    """Yield the all_reduces: one after the embedding, two per layer."""
    if plan.tp > 1:
        count = 2 * layers + (stage == 0)
        wire = count * ring_wire_bytes("all_reduce", hidden_bytes, plan.tp)
        what = "attention and feed-forward outputs"
        if stage == 0:
            what = f"embedding, {what}"
        yield TrafficOp("all_reduce", "tp", count, hidden_bytes, wire, stage, what=what)


def _exit_ops(
    plan: ParallelismPlan, stage: int, *, hidden_bytes: int, whole: bool
) -> Iterator[TrafficOp]:
    """Yield the sends to the next stage.

    A tensor whose elements ``tp`` does not divide is sent whole by every rank, and not gathered.
    """
    if stage < plan.pp - 1:
        size = hidden_bytes if whole else hidden_bytes // plan.tp
        yield TrafficOp("send", "pp", 2, size, 2 * size, stage, stage + 1, _BOUNDARY)


def _head_ops(
    plan: ParallelismPlan, stage: int, *, rows: int, logits_bytes: int
) -> Iterator[TrafficOp]:
    """Yield the logits of the last stage and the way back of the sampled ids."""
    if stage < plan.pp - 1 or not rows:
        return
    if plan.tp > 1:
        wire = ring_wire_bytes("all_gather", logits_bytes, plan.tp)
        yield TrafficOp("all_gather", "tp", 1, logits_bytes, wire, stage, what="logits")
    if plan.pp > 1:
        size = rows * _TOKEN_ID_BYTES
        yield TrafficOp("send", "pp", 1, size, size, stage, 0, "sampled token ids")


def stage_wire_bytes(ops: Iterable[TrafficOp], stage: int) -> int:
    """Return the bytes that one rank of a stage sends in all operations."""
    return sum(op.wire_bytes_per_rank for op in ops if op.stage == stage)


@dataclass(frozen=True)
class LinkBytes:
    """Bytes that one rank sends, by the class of link that they leave on."""

    nvlink: int = 0
    network: int = 0


def link_bytes(
    ops: Iterable[TrafficOp], plan: ParallelismPlan, *, stage: int, gpus_per_host: int
) -> LinkBytes:
    """Divide the bytes of a stage's ranks between NVLink and the network.

    Rank r sits on GPU ``r mod gpus_per_host`` of host ``r // gpus_per_host``. A ring through a
    group on H hosts crosses H of its n edges, and NCCL runs one ring per NIC with the crossings
    spread over the GPUs, so ``H/n`` of a rank's bytes leave by its NIC (rounded up). For a send
    the rank that crosses counts, if any does.

    Parameters
    ----------
    ops
        What `step_ops` returned.
    plan
        How the model is divided.
    stage
        The stage to count.
    gpus_per_host
        GPUs that share NVLink.

    Raises
    ------
    InputError
        ``gpus_per_host`` is less than one.
    """
    if gpus_per_host < 1:
        raise InputError(
            f"{gpus_per_host} is too few", field="gpus_per_host", expected="at least 1"
        )
    nvlink = network = 0
    for op in ops:
        if op.stage != stage:
            continue
        wire = op.wire_bytes_per_rank
        if op.to_stage is None:
            hosts = len({rank // gpus_per_host for rank in plan.tp_group(stage)})
            outside = -(-wire * hosts // plan.tp) if hosts > 1 else 0
        else:
            pairs = zip(plan.tp_group(stage), plan.tp_group(op.to_stage), strict=True)
            crosses = any(a // gpus_per_host != b // gpus_per_host for a, b in pairs)
            outside = wire if crosses else 0
        network += outside
        nvlink += wire - outside
    return LinkBytes(nvlink=nvlink, network=network)
