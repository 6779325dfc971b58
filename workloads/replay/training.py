# SPDX-License-Identifier: Apache-2.0
"""The workload ``training``: steps of a job that is divided in up to five ways."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field

from railweave.workloads.op_schedules import link_bytes
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.replay.step_model import StepModel
from railweave.workloads.replay.step_report import (
    gpu_of,
    lanes_of,
    place_ranks,
    step_row,
)
from railweave.workloads.replay.training_graph import TrainingStep
from railweave.workloads.training import TrainingStyle, stage_memory, training_ops
from railweave.workloads.workload import WorkloadContext, workload_kind

if TYPE_CHECKING:
    from collections.abc import Generator

    import simpy

    from railweave.fabric.devices import GpuModel
    from railweave.workloads.shapes_model import ModelShape

__all__ = ["TrainingModel"]

_STYLE: Final = (
    "sequence", "micro_batch_size", "micro_batches", "schedule", "chunks", "sequence_parallel",
    "recompute", "zero", "dtype", "grad_dtype", "context",
)  # fmt: skip


class TrainingModel(StepModel):
    """Training steps of one job."""

    kind: Literal["training"]
    sequence: int = Field(4096, ge=1, description="Tokens of a sequence")
    micro_batch_size: int = Field(1, ge=1, description="Sequences of a micro-batch")
    micro_batches: int = Field(1, ge=1, description="Micro-batches of a step, of each replica")
    schedule: str = Field("1f1b", description="1f1b, interleaved, zero-bubble or gpipe")
    chunks: int = Field(1, ge=1, description="Chunks of layers on a stage; for interleaved")
    sequence_parallel: bool | None = Field(None, description="Default: wherever tp is above 1")
    recompute: Literal["none", "full"] = Field("none", description="Activations computed again")
    zero: int = Field(1, ge=0, le=3, description="Stage of ZeRO; 1: Megatron-LM's, 3: FSDP")
    dtype: str = Field("bf16", description="Format of activations and parameters")
    grad_dtype: str = Field("fp32", description="Format of gradients on the wire")
    context: str = Field("ring", description="ring, all_gather or ulysses; where cp is above 1")
    bucket: int | None = Field(
        None, ge=1, description="Elements of a gradient bucket; default: Megatron-LM's"
    )
    overlap_grad_reduce: bool = Field(
        True, description="Sum gradients while the last backward pass runs"
    )
    steps: int = Field(1, ge=1, le=10_000, description="How many, one after another")

    def plan(self) -> ParallelismPlan:
        """Return how the model is divided."""
        return ParallelismPlan(
            tp=self.tp, pp=self.pp, cp=self.cp, dp=self.dp, ep=self.ep, order="pp-dp-cp-tp"
        )

    def style(self) -> TrainingStyle:
        """Return how it is trained."""
        return TrainingStyle(**{name: getattr(self, name) for name in _STYLE})


@workload_kind(TrainingModel)
def start(workload: TrainingModel, context: WorkloadContext) -> simpy.Event:
    """Check the job and start its steps."""
    shape = workload.shape(context)
    with context.at():
        plan, style = workload.plan(), workload.style()
        ops = training_ops(shape, plan, style)
    devices = place_ranks(plan, context)
    gpu = gpu_of(devices, context)
    _check_memory(shape, plan, style, gpu, workload, context)
    hosts = [int(context.fabric.host[device]) for device in devices]
    block = _lane_members(plan)
    members = [tuple(range(i, i + block)) for i in range(0, plan.dp, block)]
    lanes, how = lanes_of(
        plan, members, devices, hosts, [op for op in ops if op.axis not in ("dp", "edp")],
        context, replicas=workload.replicas,
        tasks=2 * style.micro_batches * style.chunks * plan.pp * len(members),
    )  # fmt: skip
    step = TrainingStep(
        shape, plan, style, gpu, lanes, bucket=workload.bucket,
        overlap=workload.overlap_grad_reduce, compute=workload.compute,
    )  # fmt: skip
    moved = link_bytes(ops, plan, hosts)
    tokens = style.sequence * style.micro_batch_size * style.micro_batches * plan.dp
    about = {"kind": "training", "model": shape.name, "phase": "train", "tokens": tokens,
             "replicas": how}  # fmt: skip

    def run() -> Generator[simpy.Event, Any, None]:
        if workload.start:
            yield context.env.timeout(workload.start)
        graph = step.graph()
        context.findings.waiting.append(graph.waiting)
        for number in range(workload.steps):
            begin = int(context.env.now)
            with context.at():
                yield graph.run(context.env, context.engine, prefix=context.prefix)
            row = step_row(graph, context, plan, ops, moved, begin_ps=begin, number=number)
            context.findings.steps.append({"workload": context.name, **about, **row})

    return context.env.process(run())


def _lane_members(plan: ParallelismPlan) -> int:
    """Return the replicas that share an expert-parallel group."""
    if plan.ep <= plan.cp and plan.cp % plan.ep == 0:
        return 1
    return plan.ep // plan.cp if plan.ep % plan.cp == 0 else plan.dp


def _check_memory(
    shape: ModelShape,
    plan: ParallelismPlan,
    style: TrainingStyle,
    gpu: GpuModel,
    workload: TrainingModel,
    context: WorkloadContext,
) -> None:
    needs = [stage_memory(shape, plan, style, stage).total for stage in range(plan.pp)]
    if max(needs) <= gpu.memory_bytes:
        return
    said = (
        f"{shape.name} does not fit: a rank of stage {needs.index(max(needs))} needs "
        f"{max(needs) / 1e9:.2f} GB and {gpu.name} has {gpu.memory_bytes / 1e9:.2f} GB"
    )
    if workload.check_memory:
        raise context.error(
            said, expected="more ranks, a higher zero, recompute: full, or check_memory: false"
        )
    context.findings.warn(said)
