# SPDX-License-Identifier: Apache-2.0
"""Where the replicas of both pools sit, and whether the model fits there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from railweave.fabric.devices import gpu_model
from railweave.workloads.memory import memory_fit
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.serving.replica import ReplicaPlan
from railweave.workloads.serving.steps import Stage

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from railweave.fabric.devices import GpuModel
    from railweave.fabric.graph import Fabric
    from railweave.workloads.serving.model import PoolModel, ServingModel
    from railweave.workloads.shapes_model import ModelShape
    from railweave.workloads.workload import WorkloadContext

__all__ = ["POOLS", "place_pools", "plan_pool"]

POOLS: Final = ("prefill", "decode")


def place_pools(workload: ServingModel, context: WorkloadContext) -> dict[str, list[list[int]]]:
    """Return, by pool, the device indices of each replica's GPUs, tensor parallelism innermost.

    Packed pools fill hosts in order, prefill first. The decode pool begins on a host of its own,
    and a replica that one host can hold is not split over two, as long as there are hosts enough.

    Raises
    ------
    InputError
        There are not enough GPUs.
    """
    fabric = context.fabric
    pools = {name: getattr(workload, name) for name in POOLS}
    needs = {name: pool.replicas * pool.tp * pool.pp for name, pool in pools.items()}
    total = sum(needs.values())
    if total > len(fabric.gpus):
        asked = " + ".join(f"{needs[name]} for {name}" for name in POOLS)
        raise context.error(
            f"the replicas need {total} GPUs ({asked}), but {fabric.name} has {len(fabric.gpus)}",
            at=("prefill" if needs["prefill"] >= needs["decode"] else "decode", "replicas"),
            expected=f"replicas x tp x pp of both pools at most {len(fabric.gpus)}",
        )
    own = [name for name in POOLS if pools[name].placement is not None]
    placed: dict[str, list[list[int]]] = {}
    taken: set[int] = set()
    for name in own:
        pool = pools[name]
        with context.at(name, "replicas"):
            order = context.place(
                needs[name] if pool.placement.policy != "packed" else None,
                placement=pool.placement,
                at=(name, "placement"),
                taken=taken,
            )
        packed = pool.placement.policy == "packed"
        placed[name] = _replicas(fabric, order, [pool], packed=packed)[0]
        taken.update(gpu for replica in placed[name] for gpu in replica)
    shared = [name for name in POOLS if name not in own]
    if shared:
        packed = context.placement.policy == "packed"
        need = sum(needs[name] for name in shared)
        with context.at(shared[0], "replicas"):
            order = context.place(None if packed else need, taken=taken)
        found = _replicas(fabric, order, [pools[name] for name in shared], packed=packed)
        placed.update(zip(shared, found, strict=True))
    return placed


def _replicas(
    fabric: Fabric, order: Sequence[int], pools: Sequence[PoolModel], *, packed: bool
) -> list[list[list[int]]]:
    """Divide GPUs in this order among pools and their replicas."""
    if packed:
        whole = _on_whole_hosts(fabric, order, pools)
        if whole is not None:
            return whole
    at, found = 0, []
    for pool in pools:
        size = pool.tp * pool.pp
        found.append([list(order[at + i * size : at + (i + 1) * size])
                      for i in range(pool.replicas)])  # fmt: skip
        at += pool.replicas * size
    return found


def _on_whole_hosts(
    fabric: Fabric, order: Sequence[int], pools: Sequence[PoolModel]
) -> list[list[list[int]]] | None:
    """Divide GPUs without splitting what a host can hold; None if the hosts do not suffice."""
    hosts: dict[int, list[int]] = {}
    for gpu in order:
        hosts.setdefault(int(fabric.host[gpu]), []).append(gpu)
    rest = list(hosts.values())
    found = []
    for pool in pools:
        size = pool.tp * pool.pp
        replicas: list[list[int]] = []
        here: list[int] = []
        for _ in range(pool.replicas):
            if len(here) < size:
                here = []
            while len(here) < size and rest:
                here += rest.pop(0)
            if len(here) < size:
                return None
            replicas.append(here[:size])
            here = here[size:]
        found.append(replicas)
    return found


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
        ``prefill`` or ``decode``.
    places
        Device indices of the GPUs of each replica.
    shape, workload, context
        The model, and what was asked for.
    dtype
        Number format of the weights, by its short name.
    shared_hosts
        Hosts on which caches move between the pools over NVLink.
    """
    pool: PoolModel = getattr(workload, name)
    plan = ParallelismPlan(pool.tp, pool.pp)
    with context.at(name):
        plan.check(shape)
    made = []
    for number, devices in enumerate(places):
        gpu = _gpu(name, devices, context)
        blocks = _blocks(name, plan, gpu, shape, workload, context)
        hosts = [int(context.fabric.host[device]) for device in devices]
        with context.at():
            stages = tuple(
                Stage(
                    shape,
                    plan,
                    stage,
                    gpu=gpu,
                    devices=devices,
                    hosts=hosts,
                    phase=name,
                    alternate=_uses_shared_links(plan, stage, hosts, shared_hosts),
                    dtype=dtype,
                    kv_dtype=workload.kv_dtype,
                )
                for stage in range(plan.pp)
            )
        made.append(
            ReplicaPlan(
                name=f"{name}{number}",
                devices=tuple(devices),
                stages=stages,
                blocks=blocks,
                block_tokens=workload.block,
            )
        )
    return made


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
    return blocks
