# SPDX-License-Identifier: Apache-2.0
"""The process groups of a workload: which GPUs have to reach each other, and what for."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from railweave.fabric.kinds import DeviceKind
from railweave.workloads.replay.collective import CollectiveModel
from railweave.workloads.replay.flows import FlowsModel
from railweave.workloads.replay.inference import InferenceModel
from railweave.workloads.replay.kv_transfer import KvTransferModel, cache_flows
from railweave.workloads.replay.training import TrainingModel
from railweave.workloads.serving.model import ServingModel
from railweave.workloads.serving.placing import place_pools, placed_replicas

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from railweave.workloads.parallelism import ParallelismPlan
    from railweave.workloads.workload import WorkloadContext, WorkloadModel

__all__ = ["ProcessGroup", "process_groups"]

_AXES = ("tp", "cp", "dp", "ep", "edp")


class ProcessGroup(NamedTuple):
    """GPUs that exchange bytes: what for, and their device indices in rank order."""

    name: str
    devices: tuple[int, ...]


def process_groups(workload: WorkloadModel, context: WorkloadContext) -> list[ProcessGroup]:
    """Return the groups of two ranks and more of a workload.

    Those of `ParallelismPlan.groups` and the stages of a pipeline, for steps; those within the
    replicas of each pool, and the ranks that hand KV caches over, for serving; all ranks, for a
    collective; both ends, for a flow between GPUs and for each part of a KV cache.

    Raises
    ------
    InputError
        There are not enough GPUs.
    """
    found: Iterator[ProcessGroup]
    if isinstance(workload, CollectiveModel):
        ranks = None if workload.ranks == "all" else workload.ranks
        with context.at():
            found = iter([ProcessGroup(workload.op, tuple(context.place(ranks)))])
    elif isinstance(workload, TrainingModel | InferenceModel):
        plan = workload.plan()
        with context.at():
            found = _of_plan(plan, context.place(plan.n_ranks))
    elif isinstance(workload, ServingModel):
        found = _of_pools(workload, context)
    elif isinstance(workload, KvTransferModel):
        pairs = dict.fromkeys((one.src, one.dst) for one in cache_flows(workload, context))
        found = (ProcessGroup("KV cache", pair) for pair in pairs)
    elif isinstance(workload, FlowsModel):
        found = _of_flows(workload, context)
    else:
        found = iter(())
    return [group for group in found if len(group.devices) > 1]


def _of_plan(
    plan: ParallelismPlan, devices: Sequence[int], prefix: str = ""
) -> Iterator[ProcessGroup]:
    for axis in _AXES:
        if axis in ("ep", "edp") and plan.ep == 1:
            continue
        for stage in range(plan.pp):
            for ranks in plan.groups(axis, stage=stage):
                yield ProcessGroup(prefix + axis, tuple(devices[rank] for rank in ranks))
    for places in zip(*(plan.stage_ranks(stage) for stage in range(plan.pp)), strict=True):
        yield ProcessGroup(prefix + "pp", tuple(devices[rank] for rank in places))


def _of_pools(workload: ServingModel, context: WorkloadContext) -> Iterator[ProcessGroup]:
    """Yield the groups inside replicas, and the ranks of pools whose parts of a cache meet."""
    placed = place_pools(workload.pools, placed_replicas(workload), context)
    tp = {}
    for name, replicas in placed.items():
        pool = workload.pools[name]
        tp[name] = pool.tp
        for devices in replicas:
            yield from _of_plan(pool.plan, devices, f"{name} ")
    if "prefill" not in placed or "decode" not in placed:
        return
    for i in range(tp["prefill"]):
        for k in range(tp["decode"]):
            # A rank holds the i-th of tp equal parts of a cache: those that overlap meet.
            if (
                i * tp["decode"] < (k + 1) * tp["prefill"]
                and k * tp["prefill"] < (i + 1) * tp["decode"]
            ):
                members = [
                    device
                    for name, part in (("prefill", i), ("decode", k))
                    for devices in placed[name]
                    for device in devices[part :: tp[name]]
                ]
                yield ProcessGroup("KV cache", tuple(members))


def _of_flows(workload: FlowsModel, context: WorkloadContext) -> Iterator[ProcessGroup]:
    fabric = context.fabric
    for flow in workload.flows:
        ends = tuple(fabric.endpoint(name) for name in (flow.src, flow.dst))
        if all(fabric.kind[end] == DeviceKind.GPU for end in ends):
            yield ProcessGroup("flow", ends)
