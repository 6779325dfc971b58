# SPDX-License-Identifier: Apache-2.0
"""The workload ``inference``: one step of replicas of a model, prefill or decode."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from railweave.workloads.experts import ExpertStyle
from railweave.workloads.inference import StepStyle, step_ops
from railweave.workloads.limits import MOST_REQUESTS, MOST_TOKENS
from railweave.workloads.memory import kv_bytes_per_rank
from railweave.workloads.op_schedules import link_bytes
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.replay.inference_graph import InferenceStep, shared_out
from railweave.workloads.replay.step_model import StepModel
from railweave.workloads.replay.step_report import (
    gpu_of,
    lanes_of,
    place_ranks,
    step_row,
)
from railweave.workloads.shares import held_bytes
from railweave.workloads.workload import WorkloadContext, workload_kind

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    import simpy

    from railweave.workloads.shapes_model import ModelShape
    from railweave.workloads.step_layers import Lane

__all__ = ["InferenceModel", "inference_memory"]


class InferenceModel(StepModel):
    """One step of a model that serves."""

    kind: Literal["inference"]
    phase: Literal["prefill", "decode"] = Field("decode", description="Prompts, or a token each")
    batch: int = Field(1, ge=0, le=MOST_REQUESTS, description="Requests over all replicas")
    tokens: int = Field(
        2048,
        ge=1,
        le=MOST_TOKENS,
        description="Of each prompt; in decode those that are cached of each request",
    )  # fmt: skip
    dtype: str | None = Field(None, description="Format of weights; default the checkpoint's")
    kv_dtype: str | None = Field(None, description="Format of the cache; default the model's")
    sequence_parallel: bool = Field(False, description="Scatter and gather instead of sums")
    context: str = Field("all_gather", description="ring, all_gather or ulysses; where cp > 1")
    pad_to: int = Field(1, ge=1, description="Round tokens up to a multiple")
    ep_backend: str | None = Field(
        None, description="replicated, allgather_reducescatter, mixed or all_to_all"
    )
    ep_mode: Literal["low_latency", "normal"] | None = Field(
        None, description="Of all_to_all; default low_latency in decode, normal in prefill"
    )
    dispatch_dtype: Literal["fp8", "bf16"] = Field("fp8", description="On the way to experts")
    skew: float = Field(0.0, ge=0, lt=100, description="Of the experts' popularity; 0: even")
    node_limit: int | None = Field(None, ge=1, description="Most hosts of a token's experts")
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1, description="For weights and cache")

    def plan(self) -> ParallelismPlan:
        """Return how the model is divided."""
        return ParallelismPlan(tp=self.tp, pp=self.pp, cp=self.cp, dp=self.dp, ep=self.ep)

    def style(self, *, seed: int, gpus_per_host: int) -> StepStyle:
        """Return how the engine runs a step."""
        mode = self.ep_mode or ("low_latency" if self.phase == "decode" else "normal")
        return StepStyle(
            sequence_parallel=self.sequence_parallel,
            pad_to=self.pad_to,
            context=self.context,
            experts=ExpertStyle(
                backend=self.ep_backend, mode=mode, dispatch_dtype=self.dispatch_dtype,
                seed=seed, skew=self.skew, node_limit=self.node_limit,
                gpus_per_host=gpus_per_host,
            ),
        )  # fmt: skip


def inference_memory(
    shape: ModelShape, plan: ParallelismPlan, workload: InferenceModel
) -> list[tuple[int, int]]:
    """Return the bytes of weights and of cache on the fullest rank of each stage.

    A replica holds the cache of all its requests, those of every micro-batch. In decode a token
    more than is cached, the one that the step makes.
    """
    requests = max(shared_out(workload.batch, plan.dp))
    tokens = workload.tokens + (workload.phase == "decode")
    tokens = -(-tokens // plan.cp)
    return [
        (
            held_bytes(shape, plan, stage, dtype=workload.dtype),
            requests
            * kv_bytes_per_rank(shape, plan, tokens, stage=stage, kv_dtype=workload.kv_dtype),
        )
        for stage in range(plan.pp)
    ]


@workload_kind(InferenceModel)
def start(workload: InferenceModel, context: WorkloadContext) -> simpy.Event:
    """Check the step and start it."""
    shape = workload.shape(context)
    with context.at():
        plan = workload.plan()
        plan.check(shape)
    devices = place_ranks(plan, context)
    gpu = gpu_of(devices, context)
    _check_memory(shape, plan, workload, context, gpu.name, gpu.memory_bytes)
    hosts = [int(context.fabric.host[device]) for device in devices]
    style = workload.style(seed=context.seed, gpus_per_host=max(map(hosts.count, set(hosts))))
    with context.at():
        # What the plan cannot do, it says here.
        step_ops(shape, plan, phase=workload.phase, tokens=1, style=style)
    members = _members(plan)

    def made(lanes: Sequence[Lane]) -> InferenceStep:
        return InferenceStep(
            shape, plan, style, gpu, lanes,
            phase=workload.phase, batch=workload.batch, context_tokens=workload.tokens,
            dtype=workload.dtype, kv_dtype=workload.kv_dtype, compute=workload.compute,
        )  # fmt: skip

    with context.at():
        ops = made(()).ops()
    lanes, how = lanes_of(
        plan, members, devices, hosts, ops, context, replicas=workload.replicas,
        tasks=3 * plan.pp * plan.pp * len(members),
    )  # fmt: skip
    step = made(lanes)
    moved = link_bytes(ops, plan, hosts)
    about = {"kind": "inference", "model": shape.name, "phase": workload.phase,
             "tokens": sum(map(sum, map(step.tokens, step.micro_batches))),
             "replicas": how}  # fmt: skip

    def run() -> Generator[simpy.Event, object, None]:
        if workload.start:
            yield context.env.timeout(workload.start)
        graph, turn = step.graph()
        context.findings.waiting.append(graph.waiting)
        begin = int(context.env.now)
        with context.at():
            yield graph.run(context.env, context.engine, prefix=context.prefix)
        row = step_row(graph, context, plan, ops, moved, begin_ps=begin, number=0, turn=turn)
        context.findings.steps.append({"workload": context.name, **about, **row})

    return context.env.process(run())


def _members(plan: ParallelismPlan) -> list[tuple[int, ...]]:
    block = plan.ep_members
    return [tuple(range(i, i + block)) for i in range(0, plan.dp, block)]


def _check_memory(
    shape: ModelShape,
    plan: ParallelismPlan,
    workload: InferenceModel,
    context: WorkloadContext,
    gpu: str,
    memory_bytes: int,
) -> None:
    with context.at():
        held = inference_memory(shape, plan, workload)
    weights, cache = max(held, key=sum)
    usable = int(Fraction(str(workload.gpu_memory_utilization)) * memory_bytes)
    if weights + cache <= usable:
        return
    said = (
        f"{shape.name} does not fit: a rank holds {weights / 1e9:.2f} GB of weights and "
        f"{cache / 1e9:.2f} GB of cache, and {gpu} offers {usable / 1e9:.2f} GB"
    )
    if workload.check_memory:
        raise context.error(
            said, expected="more ranks, a smaller batch or dtype, or check_memory: false"
        )
    context.findings.warn(said)
