# SPDX-License-Identifier: Apache-2.0
"""The replicas of a pool at their places: whether the model fits there, and what they compute."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from railweave.fabric.devices import gpu_model
from railweave.workloads.compute import arithmetic_formats
from railweave.workloads.experts import ExpertStyle
from railweave.workloads.inference import StepStyle
from railweave.workloads.memory import memory_fit
from railweave.workloads.serving.replica_plan import ReplicaPlan
from railweave.workloads.serving.steps import Stage
from railweave.workloads.serving.wide import WideStage
from railweave.workloads.step_load import StepLoad

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from railweave.fabric.devices import GpuModel
    from railweave.workloads.parallelism import ParallelismPlan
    from railweave.workloads.serving.model import ServingModel
    from railweave.workloads.serving.pool_keys import PoolModel
    from railweave.workloads.shapes_model import ModelShape
    from railweave.workloads.workload import WorkloadContext

__all__ = ["plan_pool"]


def plan_pool(
    name: str,
    places: Sequence[Sequence[int]],
    shape: ModelShape,
    workload: ServingModel,
    context: WorkloadContext,
    *,
    dtype: str | None,
    shared_hosts: Collection[int],
) -> list[ReplicaPlan]:
    """Return the replicas of a pool, checked: the plan fits the model, and the model the GPUs.

    Parameters
    ----------
    name
        Of the pool.
    places
        Device indices of the GPUs of each replica.
    shape, workload, context
        The model, and what was asked for.
    dtype
        Number format of the weights, by its short name.
    shared_hosts
        Hosts on which caches move over NVLink.
    """
    pool = workload.pools[name]
    plan = pool.plan
    with context.at(name):
        plan.check(shape)
    made = []
    for number, devices in enumerate(places):
        gpu = _gpu(name, devices, context)
        blocks = _blocks(name, plan, gpu, shape, workload, context)
        hosts = [int(context.fabric.host[device]) for device in devices]
        _, arithmetic = arithmetic_formats(shape, gpu, dtype=dtype)
        if pool.wide:
            style = _style(name, pool, hosts, context)
            with context.at(name):
                stage = WideStage(
                    shape,
                    plan,
                    style,
                    gpu=gpu,
                    devices=devices,
                    hosts=hosts,
                    dtype=dtype,
                    kv_dtype=workload.kv_dtype,
                )
                stage.works([StepLoad.decode([1])] * pool.dp)  # what cannot be, it says here
            made += [
                ReplicaPlan(
                    pool=name,
                    number=number * pool.dp + member,
                    devices=tuple(devices[member * pool.tp : (member + 1) * pool.tp]),
                    stages=(),
                    blocks=blocks,
                    block_tokens=workload.block,
                    flops_per_s=gpu.flops[arithmetic],
                    wide=stage,
                    group=number,
                    member=member,
                )
                for member in range(pool.dp)
            ]
            continue
        with context.at():
            stages = tuple(
                Stage(
                    shape,
                    plan,
                    stage,
                    gpu=gpu,
                    devices=devices,
                    hosts=hosts,
                    alternate=_uses_shared_links(plan, stage, hosts, shared_hosts),
                    dtype=dtype,
                    kv_dtype=workload.kv_dtype,
                )
                for stage in range(plan.pp)
            )
        made.append(
            ReplicaPlan(
                pool=name,
                number=number,
                devices=tuple(devices),
                stages=stages,
                blocks=blocks,
                block_tokens=workload.block,
                flops_per_s=gpu.flops[arithmetic],
            )
        )
    return made


def _style(name: str, pool: PoolModel, hosts: Sequence[int], context: WorkloadContext) -> StepStyle:
    """Return how an engine of the pool runs a step whose tokens travel to their experts."""
    return StepStyle(
        pad_to=pool.pad_to,
        experts=ExpertStyle(
            backend=pool.ep_backend,
            mode=pool.ep_mode or ("low_latency" if name == "decode" else "normal"),
            dispatch_dtype=pool.dispatch_dtype,
            seed=context.seed,
            skew=pool.skew,
            node_limit=pool.node_limit,
            gpus_per_host=max(Counter(hosts).values()),
        ),
    )


def _uses_shared_links(
    plan: ParallelismPlan, stage: int, hosts: Sequence[int], shared_hosts: Collection[int]
) -> bool:
    """Return whether a stage's collectives may meet other traffic of this workload."""
    own = {hosts[rank] for rank in plan.tp_group(stage)}
    return len(own) > 1 or not own.isdisjoint(shared_hosts)


def _gpu(pool: str, devices: Sequence[int], context: WorkloadContext) -> GpuModel:
    names = sorted({context.fabric.model[device] for device in devices})
    if len(names) > 1:
        raise context.error(
            f"a replica would sit on different GPUs: {', '.join(names)}",
            at=(pool, "placement"),
            expected="one kind of GPU for each replica",
        )
    with context.at(pool):
        return gpu_model(names[0])


def _blocks(
    pool: str,
    plan: ParallelismPlan,
    gpu: GpuModel,
    shape: ModelShape,
    workload: ServingModel,
    context: WorkloadContext,
) -> int:
    with context.at():
        fit = memory_fit(
            shape,
            plan,
            memory_bytes=gpu.memory_bytes,
            fraction=workload.gpu_memory_utilization,
            dtype=workload.dtype,
            kv_dtype=workload.kv_dtype,
        )
    blocks = fit.kv_capacity_tokens // workload.block
    if fit.kv_capacity_tokens >= 1 > blocks:
        raise context.error(
            f"no block of {workload.block} tokens fits: a replica has room for the cache of "
            f"{fit.kv_capacity_tokens} tokens",
            at=("block",),
            expected=f"at most {fit.kv_capacity_tokens}",
        )
    if not fit.fits or blocks < 1:
        usable = workload.gpu_memory_utilization * gpu.memory_bytes
        raise context.error(
            f"{shape.name} does not fit: a rank has {fit.weight_bytes_per_rank / 1e9:.2f} GB of "
            f"weights, and {gpu.name} offers {usable / 1e9:.2f} GB for weights and KV cache",
            at=(pool, "tp"),
            expected="more ranks, larger GPUs or a smaller dtype",
        )
    if workload.kv_blocks is None:
        return blocks
    if workload.kv_blocks > blocks:
        raise context.error(
            f"a replica of {pool} has room for {blocks} blocks",
            at=("kv_blocks",),
            expected=f"at most {blocks}",
        )
    return workload.kv_blocks
